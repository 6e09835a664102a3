// For parts of long rows: the key of the greatest element, and the sum of the lifted exponentials relative to it.
#trusted parts are below `total`, i is below the length of the part
#input x: array<F>
#output out: array<vec2<u32>>
#param vectors: u32
#param parts: u32
#param total: u32
#constant WIDTH = 1, 4
#constant TEAM = 256
#constant HELD = 2, 16
#constant FULL = 0, 1
#constant LOG = 0
#include common
#include math
#include precise
#include rows
#include exponentials
#include rows_main
    if number >= p.total {
        return;
    }
    let start = (number % p.parts) * (${TEAM}u * ${HELD}u);
    let count = min(p.vectors - start, ${TEAM}u * ${HELD}u);
    let first = (number / p.parts) * p.vectors + start;
    var held: array<F, ${HELD}>;
    var keys = U(0u);
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        let i = lane + h * ${TEAM}u;
        if there(i, count) {
            held[h] = x[first + i];
            keys = max(keys, key_of(held[h]));
        }
    }
    let key = team_max(local, lanes_max(keys));
    let m = common_of(key, 1.0).greatest;
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        if there(lane + h * ${TEAM}u, count) {
            held[h] = lifted_exp(held[h] - m);
        }
    }
    let total = team_sum(local, lanes_sum(pairwise(held)));
    if local == 0u {
        out[number] = vec2<u32>(key, bitcast<u32>(total));
    }
}
