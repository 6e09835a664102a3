// out[i, j] = sum over k of x[i, k] w[j, k] with quantised w, for many rows of x, through cooperative matrices of f16.
//
// A workgroup makes 128 rows of 128 results, in slices along k. `quant_split` has written the rows of x as numbers of f16 in
// units of their own, and what those leave; weights are decoded, and split in units of 2^-7 in the same way. With three
// passes a slice is a part of 32 elements, and the sum is that of number by number, number by rest and rest by number. With
// one pass a slice is two parts of numbers alone. So a line of a slice is sixteen vectors of four in both cases, and two more,
// so that reads of eight lines do not meet in a bank.
//
// Its eight subgroups share the tile two by four: each has 64 rows and 32 columns, whose sums stay in registers. Slices are
// loaded one ahead into registers.
//
// Numbers of f16 do not hold every row. A row of x whose unit is NaN, and a row of weights with steps or minima that are too
// large or not finite, are multiplied element by element afterwards.
#cooperative blocks of 16 x 16 x 16, a workgroup is eight subgroups
#trusted rows of x and w are clamped or guarded, parts are below those of a row, results are guarded; slices grow
#input x: array<vec4<f32>>
#input planes: array<vec4<f16>>
#input units: array<f32>
#input blocks: array<vec4<u32>>
#output out: array<f32>
#param m: u32
#param n: u32
#param k_blocks: u32
#param out_row: u32
#param out_first: u32
#param down: u32
#param across: u32
#param slice: u32
#param stride: u32
#param total: u32
#constant FORMAT = all
#constant PASSES = 1, 3
#include common
#include quantized

const ROWS: u32 = 128u;
// From one line to the next, in vectors.
const LINE: u32 = 18u;
// Parts of a slice.
#if PASSES == 3
const TOGETHER: u32 = 1u;
#else
const TOGETHER: u32 = 2u;
#endif
const UNIT: f32 = 128.0;

var<workgroup> tile_a: array<vec4<f16>, ROWS * LINE>;
var<workgroup> tile_b: array<vec4<f16>, ROWS * LINE>;
// A block of results for each subgroup.
var<workgroup> block_of: array<f32, 2048>;
// Rows of x and then rows of weights that are multiplied element by element, a bit each.
var<workgroup> odd: array<atomic<u32>, 8>;
// The units of the rows of x.
var<workgroup> scales: array<f32, ROWS>;

alias Sums = coop_mat16x16<f32, C>;

// Four numbers of a row of x, and with three passes their rests; with one pass also the four numbers of the next part.
struct Loaded {
    a: vec4<f16>,
    b: vec4<f16>,
}

fn load_a(first_row: u32, slice: u32, number: u32, local: u32) -> Loaded {
    let row = min(first_row + local / 8u + 32u * number, p.m - 1u);
    let i = local % 8u;
    let part = slice * TOGETHER;
    let within = (i / 4u) * APART + (i % 4u) * 4u;
    let first = row * p.k_blocks * LEN + within;
    let at = (first + (part / PARTS) * LEN + place(part % PARTS)) / 4u;
#if PASSES == 3
    return Loaded(planes[2u * at], planes[2u * at + 1u]);
#else
    return Loaded(planes[at], planes[(first + ((part + 1u) / PARTS) * LEN + place((part + 1u) % PARTS)) / 4u]);
#endif
}

fn store_a(number: u32, local: u32, loaded: Loaded) {
    let to = (local / 8u + 32u * number) * LINE + local % 8u;
    tile_a[to] = loaded.a;
    tile_a[to + 8u] = loaded.b;
}

// The part of the row of weights whose first block is `begin` that an invocation decodes, or half of it.
fn load_b(begin: u32, slice: u32, local: u32) -> Raw {
    let part = slice * TOGETHER + local % TOGETHER;
    return raw_of(begin + part / PARTS, part % PARTS);
}

// Stores four weights at vector `to`, and their rests eight vectors later.
fn store_four(to: u32, word: u32, step: f32, least: f32) {
    let e = elements(word, step, least);
#if PASSES == 3
    let number = bitcast<vec4<f32>>(bitcast<vec4<u32>>(e) & vec4<u32>(0xffffe000u));
    tile_b[to] = vec4<f16>(number);
    tile_b[to + 8u] = vec4<f16>(e - number);
#else
    tile_b[to] = vec4<f16>(e);
#endif
}

fn store_sixteen(to: u32, q: vec4<u32>, step: f32, least: f32) {
    store_four(to, q.x, step, least);
    store_four(to + 1u, q.y, step, least);
    store_four(to + 2u, q.z, step, least);
    store_four(to + 3u, q.w, step, least);
}

// Steps and least of a part in units of weights. Those of MXFP4 are a step and a factor.
fn in_units(steps: vec4<f32>) -> vec4<f32> {
#if FORMAT == MXFP4
    return steps * vec4<f32>(UNIT, 1.0, UNIT, 1.0);
#else
    return steps * UNIT;
#endif
}

// Whether no weight of a part is beyond 256: integers have eight bits. Of MXFP4 nor is one below what an f16 holds.
fn serve(steps: vec4<f32>) -> bool {
    let m = bitcast<vec4<u32>>(steps) & vec4<u32>(0x7fffffffu);
#if FORMAT == MXFP4
    return m.x <= 0x3f800000u && m.x >= 0x31000000u;
#else
    return max(m.x, m.z) <= 0x3f800000u && max(m.y, m.w) <= 0x43000000u;
#endif
}

fn store_b(begin: u32, slice: u32, local: u32, raw: Raw) -> bool {
    let part = slice * TOGETHER + local % TOGETHER;
    let w = unpacked(raw, begin + part / PARTS, part % PARTS);
    let steps = in_units(w.steps);
    let line = (local / 2u) * LINE;
#if PASSES == 3
    let low = local % 2u == 0u;
    store_sixteen(line + 4u * (local % 2u), select(w.high, w.low, low), select(steps.z, steps.x, low),
        select(steps.w, steps.y, low));
#else
    store_sixteen(line + 8u * (local % 2u), w.low, steps.x, steps.y);
    store_sixteen(line + 8u * (local % 2u) + 4u, w.high, steps.z, steps.w);
#endif
    return serve(w.steps);
}

fn is_odd(i: u32) -> bool {
    return ((atomicLoad(&odd[i / 32u]) >> (i % 32u)) & 1u) != 0u;
}

// Writes the block of a subgroup from this row and column of the tile on.
fn put(base: u32, first_row: u32, columns: u32, row: u32, column: u32, subgroup: u32, lane: u32) {
    workgroupBarrier();
    let j = column + lane % 16u;
    for (var i = lane / 16u; i < 16u; i += 2u) {
        let r = row + i;
        if first_row + r < p.m && j < columns {
            out[base + (first_row + r) * p.out_row + j] =
                finished(block_of[subgroup * 256u + 16u * i + lane % 16u] * scales[r]);
        }
    }
    workgroupBarrier();
}

// An element of the result, from part `begin` to part `end`, product by product.
fn exact(row: u32, column: u32, begin: u32, end: u32) -> f32 {
    var sum = 0.0;
    for (var part = begin; part < end; part++) {
        let block = part / PARTS;
        let w = part_of(column * p.k_blocks + block, part % PARTS);
        let at = ((row * p.k_blocks + block) * LEN + place(part % PARTS)) / 4u;
        for (var i = 0u; i < 4u; i++) {
            sum = product(elements(w.low[i], w.steps.x, w.steps.y), x[at + i], sum);
            sum = product(elements(w.high[i], w.steps.z, w.steps.w), x[at + APART / 4u + i], sum);
        }
    }
    return finished(sum);
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // The same as `group_number`, inline: naga treats the result of a function as one that differs between invocations.
    let number = group.y * groups.x + group.x;
    if number >= p.total {
        return;
    }
    let tiles = p.down * p.across;
    let split = number / tiles;
    // Tiles are taken in bands of eight rows of them, so that those that run at the same time share weights.
    let within = number % tiles;
    let band = within / (8u * p.across);
    let height = min(8u, p.down - 8u * band);
    let place_in_band = within - 8u * p.across * band;
    let first_row = (8u * band + place_in_band % height) * ROWS;
    let first_column = (place_in_band / height) * ROWS;
    let first_slice = split * p.slice;
    let end = min(first_slice + p.slice, p.k_blocks * PARTS / TOGETHER);
    let subgroup = local / 32u;
    // The lines of this subgroup's blocks.
    let down = (subgroup / 4u) * 64u * LINE;
    let right = (subgroup % 4u) * 32u * LINE;
    let w_begin = min(first_column + local / 2u, p.n - 1u) * p.k_blocks;

    if local < 8u {
        atomicStore(&odd[local], 0u);
    }
    let unit = units[min(first_row + local % ROWS, p.m - 1u)];
    store_a(0u, local, load_a(first_row, first_slice, 0u, local));
    store_a(1u, local, load_a(first_row, first_slice, 1u, local));
    store_a(2u, local, load_a(first_row, first_slice, 2u, local));
    store_a(3u, local, load_a(first_row, first_slice, 3u, local));
    var serves = store_b(w_begin, first_slice, local, load_b(w_begin, first_slice, local));
    workgroupBarrier();
    var c00 = Sums();
    var c01 = Sums();
    var c10 = Sums();
    var c11 = Sums();
    var c20 = Sums();
    var c21 = Sums();
    var c30 = Sums();
    var c31 = Sums();
    for (var slice = first_slice + 1u; slice < end; slice++) {
        let a0 = load_a(first_row, slice, 0u, local);
        let a1 = load_a(first_row, slice, 1u, local);
        let a2 = load_a(first_row, slice, 2u, local);
        let a3 = load_a(first_row, slice, 3u, local);
        let raw = load_b(w_begin, slice, local);
#include quant_slice
        workgroupBarrier();
        store_a(0u, local, a0);
        store_a(1u, local, a1);
        store_a(2u, local, a2);
        store_a(3u, local, a3);
        serves = store_b(w_begin, slice, local, raw) && serves;
        workgroupBarrier();
    }
#include quant_slice

    // Each row has two invocations.
    scales[local % ROWS] = unit;
    if is_nan(unit) {
        atomicOr(&odd[(local % ROWS) / 32u], 1u << (local % 32u));
    }
    if !serves {
        atomicOr(&odd[4u + local / 64u], 1u << ((local / 2u) % 32u));
    }
    let lane = local % 32u;
    let base = split * p.stride + p.out_first + first_column;
    let row = (subgroup / 4u) * 64u;
    let column = (subgroup % 4u) * 32u;
    let columns = p.n - first_column;
    let mine = &block_of[subgroup * 256u];
    // naga requires the operand of a store to be a name.
    { let sums = c00; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row, column, subgroup, lane);
    { let sums = c01; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row, column + 16u, subgroup, lane);
    { let sums = c10; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row + 16u, column, subgroup, lane);
    { let sums = c11; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row + 16u, column + 16u, subgroup, lane);
    { let sums = c20; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row + 32u, column, subgroup, lane);
    { let sums = c21; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row + 32u, column + 16u, subgroup, lane);
    { let sums = c30; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row + 48u, column, subgroup, lane);
    { let sums = c31; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row + 48u, column + 16u, subgroup, lane);
    // The next results take the place of others.
    storageBarrier();
    var any = 0u;
    for (var i = 0u; i < 8u; i++) {
        any |= atomicLoad(&odd[i]);
    }
    if any == 0u {
        return;
    }
    for (var i = local; i < ROWS * ROWS; i += ${WORKGROUP}u) {
        let r = i / ROWS;
        let j = i % ROWS;
        if (is_odd(r) || is_odd(ROWS + j)) && first_row + r < p.m && first_column + j < p.n {
            out[base + (first_row + r) * p.out_row + j] =
                exact(first_row + r, first_column + j, first_slice * TOGETHER, end * TOGETHER);
        }
    }
}
