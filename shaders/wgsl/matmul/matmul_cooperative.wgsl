// C = A B for a stack of matrices of f16 through cooperative matrices: blocks of 16 x 16 that a subgroup of 32 multiplies
// together, with sums in f32.
//
// A workgroup computes 128 rows of C and COLUMNS columns, in slices of DEPTH along k. Its eight subgroups share the tile two
// by four: each has 64 rows and a fourth of the columns, whose sums stay in registers. Slices of A and B lie in workgroup
// memory as they lie in the operands, and are loaded one slice ahead into registers, four neighbouring elements at a time:
// neighbouring invocations load neighbouring fours. A line of a slice is eight elements longer than what it holds, so that
// reads of eight lines do not meet in a bank.
//
// Loads of rows and columns outside of the matrices are clamped to the edge; their results are not stored. Only k needs
// zeros, where its end is not that of a slice (EDGE).
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
#if COLUMNS == 256
const DEPTH: u32 = 32u;
#else
const DEPTH: u32 = 64u;
#endif
// Vectors of four in a line of a slice, and the lines.
#if TRANSPOSE_A
const FOURS_A: u32 = ROWS / 4u;
const LINES_A: u32 = DEPTH;
#else
const FOURS_A: u32 = DEPTH / 4u;
const LINES_A: u32 = ROWS;
#endif
#if TRANSPOSE_B
const FOURS_B: u32 = DEPTH / 4u;
const LINES_B: u32 = COLUMNS;
#else
const FOURS_B: u32 = COLUMNS / 4u;
const LINES_B: u32 = DEPTH;
#endif
// From one line to the next.
const LINE_A: u32 = FOURS_A + 2u;
const LINE_B: u32 = FOURS_B + 2u;
// Lines that the workgroup loads at a time.
const STEP_A: u32 = ${WORKGROUP}u / FOURS_A;
const STEP_B: u32 = ${WORKGROUP}u / FOURS_B;

var<workgroup> tile_a: array<vec4<f16>, LINES_A * LINE_A>;
var<workgroup> tile_b: array<vec4<f16>, LINES_B * LINE_B>;
// A block of C for each subgroup, where not all of it is to be stored.
var<workgroup> edge_block: array<f32, 2048>;

alias Sums = coop_mat16x16<f32, C>;

fn four_of_a(at: u32, inside: bool) -> vec4<f16> {
#if EDGE
    if !inside {
        return vec4<f16>();
    }
#endif
    return a[at];
}

fn four_of_b(at: u32, inside: bool) -> vec4<f16> {
#if EDGE
    if !inside {
        return vec4<f16>();
    }
#endif
    return b[at];
}

// The elements that an invocation loads of a slice of A, from `k` on: four elements of lines that are STEP_A apart.
fn load_a(base: u32, origin: u32, k: u32, number: u32, local: u32) -> vec4<f16> {
    let line = local / FOURS_A + number * STEP_A;
    let four = local % FOURS_A;
#if TRANSPOSE_A
    let column = min(origin / 4u + four, p.m / 4u - 1u);
    return four_of_a(base + (k + line) * (p.m / 4u) + column, k + line < p.k);
#else
    let row = min(origin + line, p.m - 1u);
    return four_of_a(base + row * (p.k / 4u) + k / 4u + four, k + 4u * four < p.k);
#endif
}

fn load_b(base: u32, origin: u32, k: u32, number: u32, local: u32) -> vec4<f16> {
    let line = local / FOURS_B + number * STEP_B;
    let four = local % FOURS_B;
#if TRANSPOSE_B
    let row = min(origin + line, p.n - 1u);
    return four_of_b(base + row * (p.k / 4u) + k / 4u + four, k + 4u * four < p.k);
#else
    let column = min(origin / 4u + four, p.n / 4u - 1u);
    return four_of_b(base + (k + line) * (p.n / 4u) + column, k + line < p.k);
#endif
}

fn store_a(number: u32, local: u32, four: vec4<f16>) {
    tile_a[(local / FOURS_A + number * STEP_A) * LINE_A + local % FOURS_A] = four;
}

fn store_b(number: u32, local: u32, four: vec4<f16>) {
    tile_b[(local / FOURS_B + number * STEP_B) * LINE_B + local % FOURS_B] = four;
}

// Stores the part of the block of a subgroup that is inside of C; its first element is at `row` and `column`.
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
#include tiles_in_bands
    let a_base = layer * p.a_batch / 4u;
    let b_base = layer * p.b_batch / 4u;
    let subgroup = local / 32u;
    // The block of C of this subgroup within the tile.
    let down = (subgroup / 4u) * 64u;
    let right = (subgroup % 4u) * (COLUMNS / 4u);

    store_a(0u, local, load_a(a_base, first_row, 0u, 0u, local));
    store_a(1u, local, load_a(a_base, first_row, 0u, 1u, local));
    store_a(2u, local, load_a(a_base, first_row, 0u, 2u, local));
    store_a(3u, local, load_a(a_base, first_row, 0u, 3u, local));
    store_b(0u, local, load_b(b_base, first_column, 0u, 0u, local));
    store_b(1u, local, load_b(b_base, first_column, 0u, 1u, local));
    store_b(2u, local, load_b(b_base, first_column, 0u, 2u, local));
    store_b(3u, local, load_b(b_base, first_column, 0u, 3u, local));
    store_b(4u, local, load_b(b_base, first_column, 0u, 4u, local));
    store_b(5u, local, load_b(b_base, first_column, 0u, 5u, local));
    store_b(6u, local, load_b(b_base, first_column, 0u, 6u, local));
    store_b(7u, local, load_b(b_base, first_column, 0u, 7u, local));
#if COLUMNS == 128
    store_a(4u, local, load_a(a_base, first_row, 0u, 4u, local));
    store_a(5u, local, load_a(a_base, first_row, 0u, 5u, local));
    store_a(6u, local, load_a(a_base, first_row, 0u, 6u, local));
    store_a(7u, local, load_a(a_base, first_row, 0u, 7u, local));
#endif
    workgroupBarrier();
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
    // The loads of a slice are between barriers, with the products of the slice before, which hide their latency:
    // otherwise drivers move loads towards their use.
    for (var k = DEPTH; k < p.k; k += DEPTH) {
        let a0 = load_a(a_base, first_row, k, 0u, local);
        let a1 = load_a(a_base, first_row, k, 1u, local);
        let a2 = load_a(a_base, first_row, k, 2u, local);
        let a3 = load_a(a_base, first_row, k, 3u, local);
        let b0 = load_b(b_base, first_column, k, 0u, local);
        let b1 = load_b(b_base, first_column, k, 1u, local);
        let b2 = load_b(b_base, first_column, k, 2u, local);
        let b3 = load_b(b_base, first_column, k, 3u, local);
        let b4 = load_b(b_base, first_column, k, 4u, local);
        let b5 = load_b(b_base, first_column, k, 5u, local);
        let b6 = load_b(b_base, first_column, k, 6u, local);
        let b7 = load_b(b_base, first_column, k, 7u, local);
#if COLUMNS == 128
        let a4 = load_a(a_base, first_row, k, 4u, local);
        let a5 = load_a(a_base, first_row, k, 5u, local);
        let a6 = load_a(a_base, first_row, k, 6u, local);
        let a7 = load_a(a_base, first_row, k, 7u, local);
#endif
#include cooperative_slice
        workgroupBarrier();
        store_a(0u, local, a0);
        store_a(1u, local, a1);
        store_a(2u, local, a2);
        store_a(3u, local, a3);
        store_b(0u, local, b0);
        store_b(1u, local, b1);
        store_b(2u, local, b2);
        store_b(3u, local, b3);
        store_b(4u, local, b4);
        store_b(5u, local, b5);
        store_b(6u, local, b6);
        store_b(7u, local, b7);
#if COLUMNS == 128
        store_a(4u, local, a4);
        store_a(5u, local, a5);
        store_a(6u, local, a6);
        store_a(7u, local, a7);
#endif
        workgroupBarrier();
    }
#include cooperative_slice

    let base = layer * p.m * p.n;
    let row = first_row + down;
    let column = first_column + right;
    if first_row + ROWS <= p.m && first_column + COLUMNS <= p.n {
        let at = base + row * p.n + column;
        let stride = p.n;
        let next = 16u * stride;
        // naga requires the operands of a store to be names.
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
