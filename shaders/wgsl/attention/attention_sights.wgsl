// Which keys each query sees, from positions, lengths, causality and a window; then the sinks and the slopes of heads: for each
// query of each sequence the first key, one past the last and its position, then a sink for each head, then a slope.
//
// A length beyond the number of keys is a fault and counts as all keys; the first one is reported.
#input positions: array<u32>
#input lengths: array<u32>
#input sinks: array<u32>
#input slopes: array<u32>
#output sights: array<u32>
#output fault: array<u32>
#param s: u32
#param t: u32
#param queries: u32
#param heads: u32
#param causal: u32
#param window: u32
#param positions_given: u32
#param lengths_given: u32
#param sinks_given: u32
#param slopes_given: u32
#param n: u32
#include common

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i == 0u {
        for (var sequence = 0u; sequence < p.lengths_given; sequence++) {
            if lengths[sequence] > p.t {
                fault[0] = sequence;
                fault[1] = lengths[sequence];
                break;
            }
        }
    }
    if i < p.queries {
        let query = i % p.s;
        var length = p.t;
        if p.lengths_given > 0u {
            length = min(lengths[min(i / p.s, p.lengths_given - 1u)], p.t);
        }
        var position = length + query - p.s;
        // One past the position, which is below 0 where the sequence has fewer keys than queries.
        var past = max(length + query + 1u, p.s) - p.s;
        if p.positions_given > 0u {
            position = positions[i % p.positions_given];
            past = max(position, position + 1u);
        }
        let end = select(length, min(past, length), p.causal != 0u);
        // Without a window the first key is 0.
        sights[3u * i] = min(past - min(past, p.window), end);
        sights[3u * i + 1u] = end;
        sights[3u * i + 2u] = position;
    } else if i < p.queries + p.heads {
        let head = i - p.queries;
        // A sink of -infinity adds nothing.
        var sink = 0xff800000u;
        var slope = 0u;
        if p.sinks_given > 0u { sink = sinks[head]; }
        if p.slopes_given > 0u { slope = slopes[head]; }
        sights[3u * p.queries + head] = sink;
        sights[3u * p.queries + p.heads + head] = slope;
    }
}
