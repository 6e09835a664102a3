// C = A B for a stack of matrices of f16 through cooperative matrices: blocks of 16 x 16 that a subgroup of 32 multiplies
// together, with sums in f32.
//
// A workgroup computes 128 rows of C and COLUMNS columns, in slices of 32 along k. Its eight subgroups share the tile two
// by four: each has 64 rows and a fourth of the columns, whose sums stay in registers. Slices of A and B lie in workgroup
// memory as they lie in the operands, and are loaded one slice ahead into registers, eight neighbouring elements at a
// time. A row of a slice is eight elements longer than what it holds, so that neither writes nor reads of eight rows meet
// in a bank.
//
// Rows and columns outside of the matrices are those at their edge, read again: what comes of them is not stored. Only k
// needs zeros, where its end is not that of a slice (EDGE).
#cooperative blocks of 16 x 16 x 16, a workgroup is eight subgroups
#trusted rows and columns are clamped or guarded, k is guarded (EDGE) or ends with a slice; k grows
#input a: array<vec4<f16>>
#input b: array<vec4<f16>>
#output c: array<f32>
#param m: u32
#param n: u32
#param k: u32
#param a_batch: u32
#param b_batch: u32
#param down: u32
#param across: u32
#param total: u32
#constant COLUMNS = 128, 256
#constant TRANSPOSE_A = 0, 1
#constant TRANSPOSE_B = 0, 1
#constant EDGE = 0, 1

const ROWS: u32 = 128u;
const COLUMNS: u32 = ${COLUMNS}u;
const DEPTH: u32 = 32u;
// Elements of a row of a slice, in eights, and with those that are added.
#if TRANSPOSE_A
const EIGHTS_A: u32 = ROWS / 8u;
const LINES_A: u32 = DEPTH;
#else
const EIGHTS_A: u32 = DEPTH / 8u;
const LINES_A: u32 = ROWS;
#endif
#if TRANSPOSE_B
const EIGHTS_B: u32 = DEPTH / 8u;
const LINES_B: u32 = COLUMNS;
#else
const EIGHTS_B: u32 = COLUMNS / 8u;
const LINES_B: u32 = DEPTH;
#endif
const LINE_A: u32 = EIGHTS_A + 1u;
const LINE_B: u32 = EIGHTS_B + 1u;
// Lines that the workgroup loads at a time.
const STEP_A: u32 = ${WORKGROUP}u / EIGHTS_A;
const STEP_B: u32 = ${WORKGROUP}u / EIGHTS_B;
// Two slices, used in turn, where there is room: then one barrier a slice is enough.
#if COLUMNS == 128
const SLICES: u32 = 2u;
#else
const SLICES: u32 = 1u;
#endif
const SLICE_A: u32 = 2u * LINES_A * LINE_A;
const SLICE_B: u32 = 2u * LINES_B * LINE_B;

var<workgroup> tile_a: array<vec4<f16>, SLICES * SLICE_A>;
var<workgroup> tile_b: array<vec4<f16>, SLICES * SLICE_B>;
// A block of C for each subgroup, where not all of it is to be stored.
var<workgroup> edge_block: array<f32, 2048>;

alias Sums = coop_mat16x16<f32, C>;

struct Eight {
    low: vec4<f16>,
    high: vec4<f16>,
}

fn eight_of_a(at: u32, inside: bool) -> Eight {
#if EDGE
    if !inside {
        return Eight();
    }
#endif
    return Eight(a[2u * at], a[2u * at + 1u]);
}

fn eight_of_b(at: u32, inside: bool) -> Eight {
#if EDGE
    if !inside {
        return Eight();
    }
#endif
    return Eight(b[2u * at], b[2u * at + 1u]);
}

// What an invocation loads of a slice of A, from the k `k` on: eight elements of lines that are STEP_A apart.
fn load_a(base: u32, origin: u32, k: u32, number: u32, local: u32) -> Eight {
    let line = local / EIGHTS_A + number * STEP_A;
    let eight = local % EIGHTS_A;
#if TRANSPOSE_A
    let column = min(origin / 8u + eight, p.m / 8u - 1u);
    return eight_of_a(base + (k + line) * (p.m / 8u) + column, k + line < p.k);
#else
    let row = min(origin + line, p.m - 1u);
    return eight_of_a(base + row * (p.k / 8u) + k / 8u + eight, k + 8u * eight < p.k);
#endif
}

fn load_b(base: u32, origin: u32, k: u32, number: u32, local: u32) -> Eight {
    let line = local / EIGHTS_B + number * STEP_B;
    let eight = local % EIGHTS_B;
#if TRANSPOSE_B
    let row = min(origin + line, p.n - 1u);
    return eight_of_b(base + row * (p.k / 8u) + k / 8u + eight, k + 8u * eight < p.k);
#else
    let column = min(origin / 8u + eight, p.n / 8u - 1u);
    return eight_of_b(base + (k + line) * (p.n / 8u) + column, k + line < p.k);
#endif
}

fn store_a(slice: u32, number: u32, local: u32, eight: Eight) {
    let at = slice * SLICE_A + 2u * ((local / EIGHTS_A + number * STEP_A) * LINE_A + local % EIGHTS_A);
    tile_a[at] = eight.low;
    tile_a[at + 1u] = eight.high;
}

fn store_b(slice: u32, number: u32, local: u32, eight: Eight) {
    let at = slice * SLICE_B + 2u * ((local / EIGHTS_B + number * STEP_B) * LINE_B + local % EIGHTS_B);
    tile_b[at] = eight.low;
    tile_b[at + 1u] = eight.high;
}

// Stores what of the block of a subgroup lies inside of C; its first element is that of `row` and `column`.
fn put_edge_block(base: u32, row: u32, column: u32, subgroup: u32, lane: u32) {
    workgroupBarrier();
    for (var i = lane; i < 256u; i += 32u) {
        let r = row + i / 16u;
        let j = column + i % 16u;
        if r < p.m && j < p.n {
            c[base + r * p.n + j] = edge_block[subgroup * 256u + i];
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // As `group_number` does; naga takes the result of a function for one that differs between invocations.
    let number = group.y * groups.x + group.x;
    if number >= p.total {
        return;
    }
    let tiles = p.down * p.across;
    let batch = number / tiles;
    // Tiles are taken in bands of eight rows of them, so that those that run at the same time share operands.
    let within = number % tiles;
    let band = within / (8u * p.across);
    let height = min(8u, p.down - 8u * band);
    let place = within - 8u * p.across * band;
    let row_origin = (8u * band + place % height) * ROWS;
    let column_origin = (place / height) * COLUMNS;
    let a_base = batch * p.a_batch / 8u;
    let b_base = batch * p.b_batch / 8u;
    let subgroup = local / 32u;
    // The block of C of this subgroup within the tile.
    let down = (subgroup / 4u) * 64u;
    let right = (subgroup % 4u) * (COLUMNS / 4u);

    var a0 = load_a(a_base, row_origin, 0u, 0u, local);
    var a1 = load_a(a_base, row_origin, 0u, 1u, local);
    var b0 = load_b(b_base, column_origin, 0u, 0u, local);
    var b1 = load_b(b_base, column_origin, 0u, 1u, local);
#if COLUMNS == 256
    var b2 = load_b(b_base, column_origin, 0u, 2u, local);
    var b3 = load_b(b_base, column_origin, 0u, 3u, local);
#endif
    // Row by row; two columns of blocks, or four.
    var c00 = Sums();
    var c01 = Sums();
    var c10 = Sums();
    var c11 = Sums();
    var c20 = Sums();
    var c21 = Sums();
    var c30 = Sums();
    var c31 = Sums();
#if COLUMNS == 256
    var c02 = Sums();
    var c03 = Sums();
    var c12 = Sums();
    var c13 = Sums();
    var c22 = Sums();
    var c23 = Sums();
    var c32 = Sums();
    var c33 = Sums();
#endif
    var k = 0u;
    var slice = 0u;
    loop {
        store_a(slice, 0u, local, a0);
        store_a(slice, 1u, local, a1);
        store_b(slice, 0u, local, b0);
        store_b(slice, 1u, local, b1);
#if COLUMNS == 256
        store_b(slice, 2u, local, b2);
        store_b(slice, 3u, local, b3);
#endif
        workgroupBarrier();
        k += DEPTH;
        if k < p.k {
            a0 = load_a(a_base, row_origin, k, 0u, local);
            a1 = load_a(a_base, row_origin, k, 1u, local);
            b0 = load_b(b_base, column_origin, k, 0u, local);
            b1 = load_b(b_base, column_origin, k, 1u, local);
#if COLUMNS == 256
            b2 = load_b(b_base, column_origin, k, 2u, local);
            b3 = load_b(b_base, column_origin, k, 3u, local);
#endif
        }
        {
            let step = 0u;
#include cooperative_step
        }
        {
            let step = 16u;
#include cooperative_step
        }
        if k >= p.k {
            break;
        }
#if COLUMNS == 128
        slice = 1u - slice;
#else
        workgroupBarrier();
#endif
    }

    let base = batch * p.m * p.n;
    let row = row_origin + down;
    let column = column_origin + right;
    if row_origin + ROWS <= p.m && column_origin + COLUMNS <= p.n {
        let at = base + row * p.n + column;
        let stride = p.n;
        let next = 16u * stride;
        // naga wants operands of a store that are names.
        { let sums = c00; let to = &c[at]; coopStoreT(sums, to, stride); }
        { let sums = c01; let to = &c[at + 16u]; coopStoreT(sums, to, stride); }
        { let sums = c10; let to = &c[at + next]; coopStoreT(sums, to, stride); }
        { let sums = c11; let to = &c[at + next + 16u]; coopStoreT(sums, to, stride); }
        { let sums = c20; let to = &c[at + 2u * next]; coopStoreT(sums, to, stride); }
        { let sums = c21; let to = &c[at + 2u * next + 16u]; coopStoreT(sums, to, stride); }
        { let sums = c30; let to = &c[at + 3u * next]; coopStoreT(sums, to, stride); }
        { let sums = c31; let to = &c[at + 3u * next + 16u]; coopStoreT(sums, to, stride); }
#if COLUMNS == 256
        { let sums = c02; let to = &c[at + 32u]; coopStoreT(sums, to, stride); }
        { let sums = c03; let to = &c[at + 48u]; coopStoreT(sums, to, stride); }
        { let sums = c12; let to = &c[at + next + 32u]; coopStoreT(sums, to, stride); }
        { let sums = c13; let to = &c[at + next + 48u]; coopStoreT(sums, to, stride); }
        { let sums = c22; let to = &c[at + 2u * next + 32u]; coopStoreT(sums, to, stride); }
        { let sums = c23; let to = &c[at + 2u * next + 48u]; coopStoreT(sums, to, stride); }
        { let sums = c32; let to = &c[at + 3u * next + 32u]; coopStoreT(sums, to, stride); }
        { let sums = c33; let to = &c[at + 3u * next + 48u]; coopStoreT(sums, to, stride); }
#endif
        return;
    }
    let lane = local % 32u;
    let mine = &edge_block[subgroup * 256u];
    { let sums = c00; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row, column, subgroup, lane);
    { let sums = c01; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row, column + 16u, subgroup, lane);
    { let sums = c10; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 16u, column, subgroup, lane);
    { let sums = c11; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 16u, column + 16u, subgroup, lane);
    { let sums = c20; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 32u, column, subgroup, lane);
    { let sums = c21; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 32u, column + 16u, subgroup, lane);
    { let sums = c30; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 48u, column, subgroup, lane);
    { let sums = c31; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 48u, column + 16u, subgroup, lane);
#if COLUMNS == 256
    { let sums = c02; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row, column + 32u, subgroup, lane);
    { let sums = c03; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row, column + 48u, subgroup, lane);
    { let sums = c12; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 16u, column + 32u, subgroup, lane);
    { let sums = c13; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 16u, column + 48u, subgroup, lane);
    { let sums = c22; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 32u, column + 32u, subgroup, lane);
    { let sums = c23; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 32u, column + 48u, subgroup, lane);
    { let sums = c32; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 48u, column + 32u, subgroup, lane);
    { let sums = c33; coopStoreT(sums, mine, 16u); }
    put_edge_block(base, row + 48u, column + 48u, subgroup, lane);
#endif
}
