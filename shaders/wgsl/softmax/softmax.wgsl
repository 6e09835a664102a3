// out = e^(x - m) / sum of e^(x - m) along rows, or with LOG the logarithm of that; m is the greatest of the row.
#trusted i is below the length of the row, and no row is past the last
#input x: array<F>
#output out: array<F>
#param rows: u32
#param vectors: u32
#constant WIDTH = 1, 4
#constant TEAM = 1, 16, 256
#constant HELD = 1, 4
#constant FULL = 0, 1
#constant LOG = 0, 1
#include common
#include math
#include precise
#include rows
#include exponentials
#include rows_main
    let team = number * (${WORKGROUP}u / ${TEAM}u);
    if team >= p.rows {
        return;
    }
    let row = team + local / ${TEAM}u;
    let count = select(0u, p.vectors, row < p.rows);
    let first = row * p.vectors;
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
    var powers: array<F, ${HELD}>;
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        if there(lane + h * ${TEAM}u, count) {
            let below = held[h] - m;
            powers[h] = lifted_exp(below);
#if LOG
            held[h] = below;
#endif
        }
    }
    let row_common = common_of(key, team_sum(local, lanes_sum(pairwise(powers))));
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        let i = lane + h * ${TEAM}u;
        if there(i, count) {
#if LOG
            out[first + i] = held[h] - row_common.rest;
#else
            out[first + i] = powers[h] * row_common.rest;
#endif
        }
    }
}
