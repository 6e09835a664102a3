// Pooling of small windows: an invocation takes a window, its neighbours those beside it.
#trusted places of results are guarded, and windows lie within their planes
#input x: array<u32>
#output out: array<u32>
#param h: u32
#param w: u32
#param window_h: u32
#param window_w: u32
#param stride_h: u32
#param stride_w: u32
#param out_h: u32
#param out_w: u32
#param area: f32
#param n: u32
#constant MAX = 0, 1
#include common
#include pooling

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i >= p.n {
        return;
    }
    let column = i % p.out_w;
    let above = i / p.out_w;
    let plane = above / p.out_h;
    let row = above - plane * p.out_h;
    let corner = (plane * p.h + row * p.stride_h) * p.w + column * p.stride_w;
    // Rows of the window first, then their results: rounding grows with height plus width.
    var result = NOTHING;
    for (var r = 0u; r < p.window_h; r++) {
        var of_row = NOTHING;
        for (var s = 0u; s < p.window_w; s++) {
            of_row = joined(of_row, element(x[corner + r * p.w + s]));
        }
        result = joined(result, of_row);
    }
    out[i] = pooled(result, p.area);
}
