// A convolution without a tile: for few results of few channels each, where reading and writing take all the time.
//
// An invocation computes four results below one another, and its neighbours those beside them: a row of the image is
// read once for all four, unless kernels are dilated or results far apart (APART), where they share few rows. A row of
// the kernel is summed first, then the rows of a channel, then the channels.
#input a: array<f32>
#input x: array<f32>
#output c: array<f32>
#param c_in: u32
#param c_out: u32
#param h: u32
#param w: u32
#param kh: u32
#param kw: u32
#param stride_h: u32
#param stride_w: u32
#param top: u32
#param left: u32
#param dilation_h: u32
#param dilation_w: u32
#param channels: u32
#param group_out: u32
#param out_h: u32
#param out_w: u32
#param fours: u32
#param n: u32
#constant SIDE = 0, 3, 5
#constant APART = 0, 1
#include common

#if SIDE
fn kernel_height() -> u32 { return ${SIDE}u; }
fn kernel_width() -> u32 { return ${SIDE}u; }
#else
fn kernel_height() -> u32 { return p.kh; }
fn kernel_width() -> u32 { return p.kw; }
#endif

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
    let row = 4u * (above % p.fours);
    let plane = above / p.fours;
    let picture = plane / p.c_out;
    let kernel = plane - picture * p.c_out;
    // The corner of the window of the first result; before the image these numbers wrap around.
    let y = row * p.stride_h - p.top;
    let left = column * p.stride_w - p.left;
    let area = kernel_height() * kernel_width();
    let first_channel = picture * p.channels + kernel / p.group_out * p.c_in;

    var sum = vec4<f32>();
    for (var channel = 0u; channel < p.c_in; channel++) {
        let weights = (kernel * p.c_in + channel) * area;
        let corner = (first_channel + channel) * p.h;
        var of_channel = vec4<f32>();
#if APART
        for (var kernel_row = 0u; kernel_row < kernel_height(); kernel_row++) {
            let rows = y + vec4<u32>(0u, 1u, 2u, 3u) * p.stride_h + kernel_row * p.dilation_h;
            let inside = rows < vec4<u32>(p.h);
            let at = (corner + rows) * p.w;
            let places = weights + kernel_row * kernel_width();
            var of_row = vec4<f32>();
            for (var r = 0u; r < kernel_width(); r++) {
                let across = left + r * p.dilation_w;
                var seen = vec4<f32>();
                if across < p.w {
                    if inside.x { seen.x = x[at.x + across]; }
                    if inside.y { seen.y = x[at.y + across]; }
                    if inside.z { seen.z = x[at.z + across]; }
                    if inside.w { seen.w = x[at.w + across]; }
                }
                of_row = fma(vec4<f32>(a[places + r]), seen, of_row);
            }
            of_channel += of_row;
        }
#else
        let read = 3u * p.stride_h + kernel_height();
        for (var down = 0u; down < read; down++) {
            // For each result, the row of the kernel that meets this row of the image; many wrap around.
            let kernel_row = vec4<u32>(down) - vec4<u32>(0u, 1u, 2u, 3u) * p.stride_h;
            let falls = kernel_row < vec4<u32>(kernel_height());
            if !any(falls) {
                continue;
            }
            let places = weights + select(vec4<u32>(), kernel_row, falls) * kernel_width();
            let inside = y + down < p.h;
            let at = (corner + y + down) * p.w + left;
            var of_row = vec4<f32>();
            for (var r = 0u; r < kernel_width(); r++) {
                var seen = 0.0;
                if inside && left + r < p.w {
                    seen = x[at + r];
                }
                let weight = vec4<f32>(a[places.x + r], a[places.y + r], a[places.z + r], a[places.w + r]);
                of_row = fma(weight, vec4<f32>(seen), of_row);
            }
            of_channel = select(of_channel, of_channel + of_row, falls);
        }
#endif
        sum += of_channel;
    }
    let to = (plane * p.out_h + row) * p.out_w + column;
    c[to] = sum.x;
    if row + 1u < p.out_h { c[to + p.out_w] = sum.y; }
    if row + 2u < p.out_h { c[to + 2u * p.out_w] = sum.z; }
    if row + 3u < p.out_h { c[to + 3u * p.out_w] = sum.w; }
}
