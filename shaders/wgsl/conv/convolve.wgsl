// A convolution as a product C = A B in tiles: A holds a kernel in each row, B a column for each pixel of all results,
// with the elements below the kernel there. B is never stored: its slices are read from the image. Every group of
// channels is such a product. The rest is as in matmul.
#input a: array<f32>
#input x: array<f32>
#output c: array<f32>
#param m: u32
#param n: u32
#param k: u32
#param h: u32
#param w: u32
#param picture: u32
#param kh: u32
#param kw: u32
#param stride_h: u32
#param stride_w: u32
#param top: u32
#param left: u32
#param dilation_h: u32
#param dilation_w: u32
#param out_w: u32
#param pixels: u32
#param down: u32
#param across: u32
#param splits: u32
#param slice: u32
#param c_split: u32
#param group_x: u32
#param c_out: u32
#param total: u32
#constant TILE = 32, 64, 128
#constant DILATED = 0, 1
#constant SIDE = 0, 1, 3, 5, 7
#include common
#include gemm

// Where the side of the kernel is baked in, divisions by it are multiplications.
#if SIDE
fn kernel_height() -> u32 { return ${SIDE}u; }
fn kernel_width() -> u32 { return ${SIDE}u; }
#else
fn kernel_height() -> u32 { return p.kh; }
fn kernel_width() -> u32 { return p.kw; }
#endif

fn along_a(at: u32, count: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if count > 0u { v.x = a[at]; }
    if count > 1u { v.y = a[at + 1u]; }
    if count > 2u { v.z = a[at + 2u]; }
    if count > 3u { v.w = a[at + 3u]; }
    return v;
}

// Four pixels of the results: the corners of their windows, as rows, columns and places in the input. Before the image
// these numbers wrap around.
struct Pixels {
    y: vec4<u32>,
    x: vec4<u32>,
    at: vec4<u32>,
}

fn pixels_from(first: u32, group: u32) -> Pixels {
    let number = min(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.n - 1u));
    let picture = number / p.pixels;
    let pixel = number - picture * p.pixels;
    let row = pixel / p.out_w;
    let y = row * p.stride_h - p.top;
    let x = (pixel - row * p.out_w) * p.stride_w - p.left;
    return Pixels(y, x, picture * p.picture + group * p.group_x + y * p.w + x);
}

// The elements of the windows of four pixels at one place of the kernel; zeros outside of the image and past the last
// place.
fn seen(at_pixels: Pixels, k: u32, end: u32) -> vec4<f32> {
    let plane = k / (kernel_height() * kernel_width());
    let within = k - plane * (kernel_height() * kernel_width());
#if DILATED
    let kernel_row = within / kernel_width();
    let row = kernel_row * p.dilation_h;
    let column = (within - kernel_row * kernel_width()) * p.dilation_w;
#else
    let row = within / kernel_width();
    let column = within - row * kernel_width();
#endif
    let inside = (at_pixels.y + row < vec4<u32>(p.h)) & (at_pixels.x + column < vec4<u32>(p.w)) & vec4<bool>(k < end);
    let at = at_pixels.at + (plane * p.h + row) * p.w + column;
    var v = vec4<f32>();
    if inside.x { v.x = x[at.x]; }
    if inside.y { v.y = x[at.y]; }
    if inside.z { v.z = x[at.z]; }
    if inside.w { v.w = x[at.w]; }
    return v;
}

fn put(base: u32, row: u32, column: u32, sum: vec4<f32>, again: bool) {
    if row < p.m {
        put_one(base, row, column, sum.x, again);
        put_one(base, row, column + 1u, sum.y, again);
        put_one(base, row, column + 2u, sum.z, again);
        put_one(base, row, column + 3u, sum.w, again);
    }
}

fn put_one(base: u32, row: u32, column: u32, sum: f32, again: bool) {
    if column >= p.n {
        return;
    }
    let picture = column / p.pixels;
    let at = base + (picture * p.c_out + row) * p.pixels + (column - picture * p.pixels);
    if again {
        c[at] += sum;
    } else {
        c[at] = sum;
    }
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group_number(group, groups);
    if number >= p.total {
        return;
    }
    let tiles = p.down * p.across;
    let origin = tile_origin(number % tiles, p.down, p.across);
    let part = number / tiles;
    let group_of_channels = part / p.splits;
    let split = part - group_of_channels * p.splits;
    let here = position(local);
    let base = split * p.c_split + group_of_channels * p.m * p.pixels;
    let first = split * p.slice;
    let end = min(first + p.slice, p.k);

    let second = local >= 128u;
    let mine = local % 128u;
    let quarter_along = mine / ALONG;
    let k_along = 4u * (mine % ALONG);
    let quarter_across = mine % QUARTERS;
    let k_across = mine / QUARTERS;
    let rows = min(vec4<u32>(origin.y + 4u * quarter_along) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.m - 1u));
    var at = (rows + group_of_channels * p.m) * p.k + vec4<u32>(first + k_along);
    let at_pixels = pixels_from(origin.x + 4u * quarter_across, group_of_channels);
    let k_mine = select(k_along, k_across, second);

    var again = false;
    var k = first;
#include gemm_block
#include convolve_load
    loop {
        let chain_end = min(k + CHAIN, end);
#include gemm_sums
        loop {
            workgroupBarrier();
            if second {
                store_across(512u, quarter_across, k_across, v0, v1, v2, v3);
            } else {
                store_along(0u, quarter_along, k_along, v0, v1, v2, v3);
            }
            workgroupBarrier();
            k += DEPTH;
            if k < end {
                at += vec4<u32>(DEPTH);
#include convolve_load
            }
#include gemm_multiply
            if k >= chain_end {
                break;
            }
        }
#include gemm_finish
        if k >= end {
            break;
        }
        again = true;
    }
}
