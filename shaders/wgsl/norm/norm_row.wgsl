// The kernel of normalisations of rows that a team holds.
#include common
#include math
#include precise
#include rows
#include norm_scale
#include rows_main
    let team = number * (${WORKGROUP}u / ${TEAM}u);
    if team >= p.rows {
        return;
    }
    let row = team + local / ${TEAM}u;
    let count = select(0u, p.vectors, row < p.rows);
    let first = row * p.vectors;
    let elements = p.vectors * ${WIDTH}u;
#include norm_moments
    let inverse = inverse_deviation(squares, elements, scale, magnitude);
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        let i = lane + h * ${TEAM}u;
        if there(i, count) {
            let y = weighed(held[h], inverse, scale.back, gamma[i]);
#if LAYER
            out[first + i] = y + beta[i];
#else
            out[first + i] = y;
#endif
        }
    }
}
