// Groups of at most 2048 candidates sorted whole: short rows, several to a workgroup, and with LAST only their k
// greatest are written; or runs of long rows, whose candidates are written as keys and positions.
#input x: array<u32>
#output values: array<u32>
#output indices: array<u32>
#param n: u32
#param runs: u32
#param size: u32
#param k: u32
#param total: u32
#constant LAST = 0, 1
#constant SORTED = 0, 1
#constant ASCENDING = 0, 1
#constant STORED = f32, i32, u32
#include common
#include top_k_order
#include sort_key
#include top_k_sort_in_groups

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // Group `unit` is run unit % runs of row unit / runs.
    let together = 2048u / p.size;
    let unit = group_number(group, groups) * together;
    if unit >= p.total {
        return;
    }
    for (var i = local; i < 2048u; i += ${WORKGROUP}u) {
        let own = unit + i / p.size;
        let position = (own % p.runs) * p.size + i % p.size;
        var candidate = Candidate(0u, NOWHERE);
        if own < p.total && position < p.n {
            candidate = Candidate(key_of(x[(own / p.runs) * p.n + position]), position);
        }
        hold(i, candidate);
    }
    workgroupBarrier();
    sort(local, 2048u, p.size);
    for (var i = local; i < 2048u; i += ${WORKGROUP}u) {
        let own = unit + i / p.size;
        let rank = i % p.size;
        let candidate = held(i);
        // The last run of a row may be shorter.
        if own < p.total && rank < p.k && candidate.position < p.n {
            let place = own * p.k + rank;
            indices[place] = candidate.position;
#if LAST
            values[place] = x[own * p.n + candidate.position];
#else
            values[place] = candidate.key;
#endif
        }
    }
}
