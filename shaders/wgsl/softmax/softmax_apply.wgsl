// For parts of long rows: the results, from the shared values of the row.
#trusted parts are below `total`, i is below the length of the row
#input x: array<F>
#input row_commons: array<vec2<f32>>
#output out: array<F>
#param vectors: u32
#param parts: u32
#param total: u32
#constant WIDTH = 1, 4
#constant TEAM = 256
#constant HELD = 4
#constant FULL = 0, 1
#constant LOG = 0, 1
#include common
#include math
#include precise
#include rows
#include exponentials
#include rows_main
    if number >= p.total {
        return;
    }
    let row_common = row_commons[number / p.parts];
    let start = (number % p.parts) * (${TEAM}u * ${HELD}u);
    let first = (number / p.parts) * p.vectors;
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        let i = start + lane + h * ${TEAM}u;
        if there(i, p.vectors) {
            let below = x[first + i] - row_common.x;
#if LOG
            out[first + i] = below - row_common.y;
#else
            out[first + i] = lifted_exp(below) * row_common.y;
#endif
        }
    }
}
