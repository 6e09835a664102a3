// out[i, j] = sum over k of x[i, k] w[j, k] with quantised w, for many rows of x, through cooperative matrices of f16.
//
// A workgroup makes ROWS rows of 128 results, in slices along k of a part, 32 elements. `quant_split` has written the rows of x
// as numbers of f16 in units of their own, and with three passes what those leave; weights are decoded, and split in units of
// 2^-7 in the same way. Three passes add the products of number and number, number and rest, and rest and number, of 128
// rows. One pass has the memory for 256 rows, which share what decoding takes. Lines of a slice have two vectors more than
// what they hold, so that reads of eight lines do not meet in a bank.
//
// Eight subgroups share the tile: each has 64 rows and 128 / ACROSS columns, whose sums stay in registers. Slices are loaded
// one ahead into registers.
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
#include quant_exact

// A subgroup makes 64 rows of 16 WIDE results.
#if PASSES == 3
#set WIDE 2
const ROWS: u32 = 128u;
const ACROSS: u32 = 4u;
// From one line to the next, in vectors, and from the first vector that an invocation loads of x to the other: the rests, or a
// row that is 128 rows away.
const LINE: u32 = 18u;
const OTHER: u32 = 8u;
#else
#set WIDE 4
const ROWS: u32 = 256u;
const ACROSS: u32 = 2u;
const LINE: u32 = 10u;
const OTHER: u32 = 128u * LINE;
#endif
const COLUMNS: u32 = 128u;
const UNIT: f32 = 128.0;

var<workgroup> tile_a: array<vec4<f16>, ROWS * LINE>;
var<workgroup> tile_b: array<vec4<f16>, COLUMNS * LINE>;
// A block of results for each subgroup.
var<workgroup> block_of: array<f32, 2048>;
// Rows of weights and then rows of x that are multiplied element by element, a bit each.
const ODD: u32 = (COLUMNS + ROWS) / 32u;
var<workgroup> odd: array<atomic<u32>, ODD>;
// The units of the rows of x.
var<workgroup> scales: array<f32, ROWS>;

alias Sums = coop_mat16x16<f32, C>;

struct Loaded {
    number: vec4<f16>,
    other: vec4<f16>,
}

fn load_a(first_row: u32, part: u32, number: u32, local: u32) -> Loaded {
    let row = first_row + local / 8u + 32u * number;
    let within = ((local / 4u) % 2u) * APART + (local % 4u) * 4u;
    let in_row = ((part / PARTS) * LEN + place(part % PARTS) + within) / 4u;
    let vectors = p.k_blocks * (LEN / 4u);
    let at = min(row, p.m - 1u) * vectors + in_row;
#if PASSES == 3
    return Loaded(planes[2u * at], planes[2u * at + 1u]);
#else
    return Loaded(planes[at], planes[min(row + 128u, p.m - 1u) * vectors + in_row]);
#endif
}

fn store_a(number: u32, local: u32, loaded: Loaded) {
    let to = (local / 8u + 32u * number) * LINE + local % 8u;
    tile_a[to] = loaded.number;
    tile_a[to + OTHER] = loaded.other;
}

// Stores four weights at vector `to`, and their rests eight vectors later.
fn store_four(to: u32, word: u32, step: f32, least: f32) {
    let e = elements(word, step, least);
#if PASSES == 3
    // The bits that an f16 has, and the others. (With a cast to f16 and back instead, errors on an H100 were 517 u.)
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

// Stores half of a part of the row of weights whose first block is `begin`. Returns whether it serves.
fn store_b(begin: u32, part: u32, local: u32, raw: Raw) -> bool {
    let w = unpacked(raw, begin + part / PARTS, part % PARTS);
    let steps = in_units(w.steps);
    let low = local % 2u == 0u;
    store_sixteen((local / 2u) * LINE + 4u * (local % 2u), select(w.high, w.low, low), select(steps.z, steps.x, low),
        select(steps.w, steps.y, low));
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

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
#include tiles_in_bands
    let first_slice = layer * p.slice;
    let end = min(first_slice + p.slice, p.k_blocks * PARTS);
    let subgroup = local / 32u;
    // The lines of this subgroup's blocks.
    let down = (subgroup / ACROSS) * 64u * LINE;
    let right = (subgroup % ACROSS) * (COLUMNS / ACROSS) * LINE;
    let w_begin = min(first_column + local / 2u, p.n - 1u) * p.k_blocks;

    if local < ODD {
        atomicStore(&odd[local], 0u);
    }
    let unit = units[min(first_row + local % ROWS, p.m - 1u)];
#for i 4
    store_a(${i}u, local, load_a(first_row, first_slice, ${i}u, local));
#endfor
    var serves = store_b(w_begin, first_slice, local, raw_of(w_begin + first_slice / PARTS, first_slice % PARTS));
    workgroupBarrier();
#for i 4
#for j WIDE
    var c_${i}_${j} = Sums();
#endfor
#endfor
    for (var slice = first_slice + 1u; slice < end; slice++) {
#for i 4
        let a${i} = load_a(first_row, slice, ${i}u, local);
#endfor
        let raw = raw_of(w_begin + slice / PARTS, slice % PARTS);
#include quant_slice
        workgroupBarrier();
#for i 4
        store_a(${i}u, local, a${i});
#endfor
        serves = store_b(w_begin, slice, local, raw) && serves;
        workgroupBarrier();
    }
#include quant_slice

    // With three passes each row has two invocations.
    scales[local % ROWS] = unit;
    if is_nan(unit) {
        atomicOr(&odd[(COLUMNS + local % ROWS) / 32u], 1u << (local % 32u));
    }
    if !serves {
        atomicOr(&odd[local / 64u], 1u << ((local / 2u) % 32u));
    }
    let lane = local % 32u;
    let base = layer * p.stride + p.out_first + first_column;
    let row = (subgroup / ACROSS) * 64u;
    let column = (subgroup % ACROSS) * (COLUMNS / ACROSS);
    let columns = p.n - first_column;
    let mine = &block_of[subgroup * 256u];
    // naga requires the operand of a store to be a name.
#for i 4
#for j WIDE
    { let sums = c_${i}_${j}; coopStoreT(sums, mine, 16u); }
    put(base, first_row, columns, row + 16u * ${i}u, column + 16u * ${j}u, subgroup, lane);
#endfor
#endfor
    // The next results take the place of others.
    storageBarrier();
    var any = 0u;
    for (var i = 0u; i < ODD; i++) {
        any |= atomicLoad(&odd[i]);
    }
    if any == 0u {
        return;
    }
    for (var i = local; i < ROWS * COLUMNS; i += ${WORKGROUP}u) {
        let r = i / COLUMNS;
        let j = i % COLUMNS;
        if (is_odd(j) || is_odd(COLUMNS + r)) && first_row + r < p.m && first_column + j < p.n {
            out[base + (first_row + r) * p.out_row + j] =
                exact(first_row + r, first_column + j, first_slice, end);
        }
    }
}
