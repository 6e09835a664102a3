// Pooling of large windows: a workgroup takes a window.
//
// An invocation joins 64 elements, then the results of these blocks, 64 blocks at a time, then those: no chain is long.
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

#if MAX
var<workgroup> results: array<i32, ${WORKGROUP}>;
#else
var<workgroup> results: array<f32, ${WORKGROUP}>;
#endif

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups);
    if i >= p.n {
        return;
    }
    let column = i % p.out_w;
    let above = i / p.out_w;
    let plane = above / p.out_h;
    let row = above - plane * p.out_h;
    let corner = (plane * p.h + row * p.stride_h) * p.w + column * p.stride_w;
    let count = p.window_h * p.window_w;
    var result = NOTHING;
    var of_blocks = NOTHING;
    var of_block = NOTHING;
    var seen = 0u;
    for (var at = local; at < count; at += ${WORKGROUP}u) {
        let r = at / p.window_w;
        of_block = joined(of_block, element(x[corner + r * p.w + (at - r * p.window_w)]));
        seen += 1u;
        if seen % 64u == 0u {
            of_blocks = joined(of_blocks, of_block);
            of_block = NOTHING;
        }
        if seen % 4096u == 0u {
            result = joined(result, of_blocks);
            of_blocks = NOTHING;
        }
    }
    results[local] = joined(result, joined(of_blocks, of_block));
    for (var half = ${WORKGROUP}u / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            results[local] = joined(results[local], results[local + half]);
        }
    }
    if local == 0u {
        out[i] = pooled(results[0], p.area);
    }
}
