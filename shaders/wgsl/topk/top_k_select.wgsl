// The k greatest of each part of a row, for k up to 1024: a workgroup keeps candidates, and drops all but k of them
// whenever it has more than 1024; from then on it takes only what is before the last of those. With FROM it reads
// candidates instead of numbers, and with LAST it writes numbers, else candidates: nothing for those that a part lacks.
#input x: array<u32>
#input keys_in: array<u32>
#input positions_in: array<u32>
#output values: array<u32>
#output indices: array<u32>
#param n: u32
#param count: u32
#param parts: u32
#param span: u32
#param k: u32
#param total: u32
#constant FROM = 0, 1
#constant LAST = 0, 1
#include common
#include top_k_order
#include top_k_key
#include top_k_sort_in_groups

var<workgroup> taken: atomic<u32>;
var<workgroup> known: u32;

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group_number(group, groups);
    if number >= p.total {
        return;
    }
    let row = number / p.parts;
    let start = (number % p.parts) * p.span;
    let end = min(start + p.span, p.count);
    // Every candidate is before nothing.
    var last = Candidate(0u, 0u);
    if local == 0u {
        atomicStore(&taken, 0u);
    }
    workgroupBarrier();
    for (var block = start; block < end; block += 1024u) {
        for (var step = 0u; step < 1024u; step += ${WORKGROUP}u) {
            let i = block + step + local;
            if i < end {
#if FROM
                let candidate = Candidate(keys_in[row * p.count + i], positions_in[row * p.count + i]);
#else
                let candidate = Candidate(key_of(x[row * p.n + i]), i);
#endif
                if before(candidate, last) {
                    hold(atomicAdd(&taken, 1u), candidate);
                }
            }
        }
        workgroupBarrier();
        if local == 0u {
            known = atomicLoad(&taken);
        }
        let count = workgroupUniformLoad(&known);
        if count > 1024u {
            for (var i = count + local; i < 2048u; i += ${WORKGROUP}u) {
                hold(i, Candidate(0u, NOWHERE));
            }
            workgroupBarrier();
            sort(local, 2048u, 2048u);
            last = held(p.k - 1u);
            if local == 0u {
                atomicStore(&taken, p.k);
            }
            workgroupBarrier();
        }
    }
    if local == 0u {
        known = atomicLoad(&taken);
    }
    let count = workgroupUniformLoad(&known);
    var size = 2u;
    for (; size < max(count, p.k); size <<= 1u) {
    }
    for (var i = count + local; i < size; i += ${WORKGROUP}u) {
        hold(i, Candidate(0u, NOWHERE));
    }
    workgroupBarrier();
    sort(local, size, size);
    for (var i = local; i < p.k; i += ${WORKGROUP}u) {
        let candidate = held(i);
        let place = number * p.k + i;
        indices[place] = candidate.position;
#if LAST
        values[place] = x[row * p.n + candidate.position];
#else
        values[place] = candidate.key;
#endif
    }
}
