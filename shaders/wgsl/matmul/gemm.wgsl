// Shared parts of tiled products. A workgroup computes a square tile of C of side TILE in slices of DEPTH along k. A slice of
// A and one of B are in workgroup memory k by k, each as vectors of four rows of A or columns of B, 512 vectors together.
//
// The first half of the workgroup loads A and the other half B, each invocation a block of four vectors, one slice ahead
// into registers. Where k is contiguous in memory the block is four by four elements, which registers turn around; the
// places of vectors are then permuted (`place`), so that neither these writes nor the reads meet in a bank.
//
// An invocation sums 4 x 4 elements (8 x 8 in the largest tile, as four such blocks half a tile apart). In the smallest
// tile four groups of 64 invocations share the k of a slice among them.

const TILE: u32 = ${TILE}u;
const QUARTERS: u32 = TILE / 4u;
const DEPTH: u32 = 2048u / TILE;
// The length of a chain of sums before they are added to those in C: rounding errors grow with it.
#if TILE == 32
// Four groups share a slice.
const CHAIN: u32 = 2048u;
#else
const CHAIN: u32 = 512u;
#endif
// Vectors along k of a row of a slice, where k is contiguous.
const ALONG: u32 = DEPTH / 4u;
// Rows of k that half a workgroup loads at a time, where k is not contiguous.
const AT_ONCE: u32 = 512u / TILE;

var<workgroup> tile: array<vec4<f32>, 1024>;

// The place of vector `quarter` within the given k.
fn place(quarter: u32, k: u32) -> u32 {
#if TILE == 128
    return quarter ^ ((k / 4u) * 2u);
#else
    return quarter ^ ((k / 4u) % 8u);
#endif
}

// The same for operands whose k may not be contiguous: those are not transposed and stay in order.
fn place_of_a(quarter: u32, k: u32) -> u32 {
#if TRANSPOSE_A
    return quarter;
#else
    return place(quarter, k);
#endif
}

fn place_of_b(quarter: u32, k: u32) -> u32 {
#if TRANSPOSE_B
    return place(quarter, k);
#else
    return quarter;
#endif
}

// Stores four rows of a block along k from `k` on, transposed.
fn store_along(base: u32, quarter: u32, k: u32, v0: vec4<f32>, v1: vec4<f32>, v2: vec4<f32>, v3: vec4<f32>) {
    let at = base + k * QUARTERS + place(quarter, k);
    tile[at] = vec4<f32>(v0.x, v1.x, v2.x, v3.x);
    tile[at + QUARTERS] = vec4<f32>(v0.y, v1.y, v2.y, v3.y);
    tile[at + 2u * QUARTERS] = vec4<f32>(v0.z, v1.z, v2.z, v3.z);
    tile[at + 3u * QUARTERS] = vec4<f32>(v0.w, v1.w, v2.w, v3.w);
}

// Stores vectors of four different k: `k` and those that follow at a distance of AT_ONCE.
fn store_across(base: u32, quarter: u32, k: u32, v0: vec4<f32>, v1: vec4<f32>, v2: vec4<f32>, v3: vec4<f32>) {
    let at = base + k * QUARTERS + quarter;
    tile[at] = v0;
    tile[at + AT_ONCE * QUARTERS] = v1;
    tile[at + 2u * AT_ONCE * QUARTERS] = v2;
    tile[at + 3u * AT_ONCE * QUARTERS] = v3;
}

// The place of an invocation among those that share a tile: the quarter of its columns, that of its rows. A subgroup of 32
// covers four by eight, so that what it reads of a slice is small.
fn position(local: u32) -> vec2<u32> {
#if TILE == 32
    return vec2<u32>(local % 8u, (local / 8u) % 8u);
#else
    let lane = local % 32u;
    let group = local / 32u;
    return vec2<u32>((group % 2u) * 8u + lane % 8u, (group / 2u) * 4u + lane / 8u);
#endif
}

// The tile of this number among `down * across`: they are taken in bands of eight rows of tiles, so that tiles that run at
// the same time share rows of A and columns of B. First its column, then its row.
fn tile_origin(number: u32, down: u32, across: u32) -> vec2<u32> {
    let band = number / (8u * across);
    let within = number - band * 8u * across;
    let height = min(8u, down - band * 8u);
    return vec2<u32>((within / height) * TILE, (band * 8u + within % height) * TILE);
}
