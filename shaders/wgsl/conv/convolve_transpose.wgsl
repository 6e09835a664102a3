// Transposed convolution: an invocation takes a result, its neighbours those beside it, and sums over the elements of the kernel that
// reach it, each times a pixel.
//
// With `q` the number of a result along a dimension, before any are cut off, element `k` reaches it from pixel
// `(q - k dilation) / stride` where that is whole: every `elements`th from one on if `common` divides `q`, and from one to the next the
// pixel is `pixels` further to the front. A row of the kernel is summed first, then the rows of a channel, then channels, 256 at a time.
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
#param dilation_h: u32
#param dilation_w: u32
#param top: u32
#param left: u32
#param common_h: u32
#param common_w: u32
#param elements_h: u32
#param elements_w: u32
#param pixels_h: u32
#param pixels_w: u32
#param inverse_h: u32
#param inverse_w: u32
#param channels: u32
#param group_out: u32
#param out_h: u32
#param out_w: u32
#param n: u32
#include common

// Beyond every image, however far one goes on from it to the front.
const NOWHERE: u32 = 0xffffffffu;

// The first element of a kernel of `k` that reaches result `q`, and the pixel that it does so from.
fn first_element(q: u32, divisor: u32, elements: u32, inverse: u32) -> u32 {
    return q / divisor % elements * inverse % elements;
}

fn first_pixel(q: u32, element: u32, k: u32, dilation: u32, stride: u32) -> u32 {
    if element >= k || element * dilation > q {
        return NOWHERE;
    }
    return (q - element * dilation) / stride;
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
    let down = above - plane * p.out_h + p.top;
    let across = i - above * p.out_w + p.left;
    let picture = plane / p.c_out;
    let channel = plane - picture * p.c_out;
    let of_group = channel / p.group_out;
    let first_channel = of_group * p.c_in;
    let o = channel - of_group * p.group_out;
    var sum = 0.0;
    if down % p.common_h == 0u && across % p.common_w == 0u {
        let first_row = first_element(down, p.common_h, p.elements_h, p.inverse_h);
        let first_column = first_element(across, p.common_w, p.elements_w, p.inverse_w);
        let y_first = first_pixel(down, first_row, p.kh, p.dilation_h, p.stride_h);
        let x_first = first_pixel(across, first_column, p.kw, p.dilation_w, p.stride_w);
        for (var block = 0u; block < p.c_in; block += 256u) {
            var of_block = 0.0;
            for (var number = block; number < min(block + 256u, p.c_in); number++) {
                let weights = ((first_channel + number) * p.group_out + o) * p.kh;
                let rows = (picture * p.channels + first_channel + number) * p.h;
                var of_channel = 0.0;
                var y = y_first;
                for (var kernel_row = first_row; kernel_row < p.kh; kernel_row += p.elements_h) {
                    if y < p.h {
                        var of_row = 0.0;
                        var at = x_first;
                        for (var kernel_column = first_column; kernel_column < p.kw; kernel_column += p.elements_w) {
                            if at < p.w {
                                let weight = a[(weights + kernel_row) * p.kw + kernel_column];
                                of_row = fma(weight, x[(rows + y) * p.w + at], of_row);
                            }
                            at -= p.pixels_w;
                        }
                        of_channel += of_row;
                    }
                    y -= p.pixels_h;
                }
                of_block += of_channel;
            }
            sum += of_block;
        }
    }
    c[i] = sum;
}
