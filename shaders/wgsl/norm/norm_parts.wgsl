// The statistics of parts of long rows that normalisations need: center, mean of the differences from it, sum of the
// squares of the differences from the mean, all of scaled elements, and the greatest magnitude, of unscaled elements.
#trusted parts are below `total`, i is below the length of the part
#input x: array<F>
#output out: array<vec4<f32>>
#param vectors: u32
#param parts: u32
#param total: u32
#param eps: f32
#param large_eps: f32
#param small_eps: f32
#param small_back: f32
#constant WIDTH = 1, 4
#constant TEAM = 256
#constant HELD = 2, 16
#constant FULL = 0, 1
#constant LAYER = 0, 1
#include common
#include math
#include precise
#include rows
#include norm_scale
#include rows_main
    if number >= p.total {
        return;
    }
    let start = (number % p.parts) * (${TEAM}u * ${HELD}u);
    let count = min(p.vectors - start, ${TEAM}u * ${HELD}u);
    let first = (number / p.parts) * p.vectors + start;
    let elements = count * ${WIDTH}u;
#include norm_moments
    if local == 0u {
#if LAYER
        out[number] = vec4<f32>(center, delta, squares, bitcast<f32>(magnitude));
#else
        out[number] = vec4<f32>(0.0, 0.0, squares, bitcast<f32>(magnitude));
#endif
    }
}
