// The kernel of normalisations of long rows, from the statistics of each.
#include common
#include math
#include precise
#include rows
#include norm_scale
#include rows_main
    if number >= p.total {
        return;
    }
    let known = rows_known[number / p.parts];
    let scale = scale_of(bitcast<u32>(known.w));
    let start = (number % p.parts) * (${TEAM}u * ${HELD}u);
    let first = (number / p.parts) * p.vectors;
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        let i = start + lane + h * ${TEAM}u;
        if there(i, p.vectors) {
            let own = rescaled(x[first + i], scale);
#if LAYER
            out[first + i] = weighed((own - known.x) - known.y, known.z, scale.back, gamma[i]) + beta[i];
#else
            out[first + i] = weighed(own, known.z, scale.back, gamma[i]);
#endif
        }
    }
}
