// Sorted runs of candidates merged in pairs, as far as they may be among the k greatest: every candidate looks for its rank
// in the other run. With LAST numbers are written, else candidates.
#input x: array<u32>
#input keys_in: array<u32>
#input positions_in: array<u32>
#output values: array<u32>
#output indices: array<u32>
#param n: u32
#param size: u32
#param runs: u32
#param kept: u32
#param merged: u32
#param stride: u32
#param total: u32
#constant LAST = 0, 1
#include common
#include top_k_order

// Candidates in run `run` of a row: of `size` elements of the row the `kept` greatest, fewer in the last run.
fn length(run: u32) -> u32 {
    let start = run * p.size;
    return min(p.kept, p.n - min(start, p.n));
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i >= p.total {
        return;
    }
    let run = i / p.kept % p.runs;
    let row = i / p.kept / p.runs;
    let own = i % p.kept;
    if own >= length(run) {
        return;
    }
    let candidate = Candidate(keys_in[i], positions_in[i]);
    let other = run ^ 1u;
    let other_start = (row * p.runs + other) * p.kept;
    var low = 0u;
    var high = select(0u, length(other), other < p.runs);
    while low < high {
        let middle = (low + high) / 2u;
        if before(Candidate(keys_in[other_start + middle], positions_in[other_start + middle]), candidate) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    let rank = own + low;
    if rank < p.merged {
        let place = row * p.stride + (run / 2u) * p.merged + rank;
        indices[place] = candidate.position;
#if LAST
        values[place] = x[row * p.n + candidate.position];
#else
        values[place] = candidate.key;
#endif
    }
}
