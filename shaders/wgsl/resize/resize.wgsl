// Images with another number of rows and columns: an invocation takes a result, its neighbours those beside it.
//
// Along a dimension result `j` lies at `(j step + start) / over`, computed in whole numbers. Where it lies between two pixels, both are
// weighted (BILINEAR); else one pixel is read, with half of the weight twice.
#trusted results are guarded, and no pixel is beyond the last one of its row or column
#input x: array<u32>
#output out: array<u32>
#param h: u32
#param w: u32
#param out_h: u32
#param out_w: u32
#param down_step: u32
#param down_start: u32
#param down_over: u32
#param across_step: u32
#param across_start: u32
#param across_over: u32
#param n: u32
#constant BILINEAR = 0, 1
#include common

struct Tap {
    first: u32,
    second: u32,
    near: f32,
    next: f32,
}

fn tap(j: u32, step: u32, start: u32, over: u32, last: u32) -> Tap {
    // Coordinates before the first pixel wrap around.
    let at = j * step + start;
    let inside = select(at, 0u, at >= 0x80000000u);
    let pixel = min(inside / over, last);
#if BILINEAR
    let rest = inside - pixel * over;
    if pixel < last && rest > 0u {
        return Tap(pixel, pixel + 1u, f32(over - rest) / f32(over), f32(rest) / f32(over));
    }
#endif
    return Tap(pixel, pixel, 0.5, 0.5);
}

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
    let above = i / p.out_w;
    let plane = above / p.out_h;
    let down = tap(above - plane * p.out_h, p.down_step, p.down_start, p.down_over, p.h - 1u);
    let across = tap(i - above * p.out_w, p.across_step, p.across_start, p.across_over, p.w - 1u);
    let first = (plane * p.h + down.first) * p.w;
#if BILINEAR
    let second = (plane * p.h + down.second) * p.w;
    let upper = bitcast<f32>(x[first + across.first]) * across.near + bitcast<f32>(x[first + across.second]) * across.next;
    let lower = bitcast<f32>(x[second + across.first]) * across.near + bitcast<f32>(x[second + across.second]) * across.next;
    out[i] = bitcast<u32>(upper * down.near + lower * down.next);
#else
    out[i] = x[first + across.first];
#endif
}
