// out[i, j] = sum over k of x[i, k] w[j, k] with quantised w, through cooperative matrices of f16, for formats whose weights are integers
// times a step. If ADDS, more[i, j] is added to it; then k must not be split.
//
// It is for formats whose blocks of 256 elements have a unit in f16, and whose sixteens have integers as steps: an element is
// unit (step q - least), with an integer q. The magnitude of step q is an integer below 2048, so its bits are those of an f16 that is
// 2^-24 times as large, subnormal below 1024: two weights take few operations, and one matrix holds them exactly. For Q6_K the magnitude
// is up to 4096, so a second matrix holds what f16 leaves, which is 0 or 1. Q3_K and Q6_K have no least.
//
// A workgroup makes ROWS rows of results for COLUMNS columns, a line of weights each, in slices of 64 elements (two parts). A subgroup makes
// 16 TALL of the rows for 16 WIDE of the columns. `quant_split` has written the rows of x as numbers of f16 in units of their own, what
// those leave, and the sums of sixteens. After each block the products of the least with the sums of sixteens are subtracted, and the
// difference is multiplied by the units of the lines and added to results that stay in registers. Slices are loaded one ahead. Four
// neighbours are in the order 0, 2, 1, 3, in x and in weights.
//
// A row of x whose unit is NaN, and a line whose numbers f16 does not hold, are multiplied element by element afterwards.
#cooperative blocks of 16 x 16 x 16, a workgroup is four or eight subgroups
#trusted rows of x and w are clamped or guarded, blocks are below those of a row, results are guarded; slices grow
#input x: array<vec4<f32>>
#input planes: array<vec4<u32>>
#input units: array<f32>
#input blocks: array<vec4<u32>>
#input more: array<f32>
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
#constant FORMAT = Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
#constant ROWS = 16, 32, 64
#constant ADDS = 0, 1
#include common
#include quantized
#include quant_exact

#set TALL 1
#set WIDE 2
#set DOWN 2
#if ROWS == 16
#set WIDE 1
#set DOWN 1
#endif
#if ROWS == 64
#set TALL 2
#endif
// The second matrix of weights takes the memory of more columns.
#if FORMAT == Q6_K
#set WIDE 1
#set DOWN 1
#if ROWS == 32
#set TALL 2
#endif
#if ROWS == 64
#set TALL 4
#endif
#endif
const DOWN: u32 = ${DOWN}u;
const ACROSS: u32 = 4u;
const SUBGROUPS: u32 = DOWN * ACROSS;
const THREADS: u32 = 32u * SUBGROUPS;
const ROWS: u32 = ${ROWS}u;
const COLUMNS: u32 = 16u * ${WIDE}u * ACROSS;
// From one row of x to the next, and from one line to the next. Rests come sixteen vectors after numbers. Reads of eight lines do not meet
// in a bank.
const LINE_A: u32 = 34u;
#if FORMAT == Q6_K
const LINE_B: u32 = 34u;
#else
const LINE_B: u32 = 18u;
#endif
// Where the sums of sixteens and the least begin, and from one row or line to the next; rests come four vectors after numbers. They take
// the place of a slice where there is no memory of their own for them.
#if ROWS == 64
const SUMS: u32 = 0u;
const LINE_S: u32 = LINE_A;
const LEAST: u32 = 0u;
const LINE_L: u32 = LINE_B;
#else
const SUMS: u32 = ROWS * LINE_A;
const LINE_S: u32 = 10u;
const LEAST: u32 = COLUMNS * LINE_B;
const LINE_L: u32 = 10u;
#endif

#if FORMAT == Q2_K, Q4_K, Q5_K
var<workgroup> tile_a: array<vec4<f16>, max(ROWS * LINE_A, SUMS + ROWS * LINE_S)>;
var<workgroup> tile_b: array<vec4<f16>, max(COLUMNS * LINE_B, LEAST + COLUMNS * LINE_L)>;
#else
var<workgroup> tile_a: array<vec4<f16>, ROWS * LINE_A>;
var<workgroup> tile_b: array<vec4<f16>, COLUMNS * LINE_B>;
#endif
var<workgroup> line_units: array<f32, COLUMNS>;
// A block of results for each subgroup.
var<workgroup> block_of: array<f32, 256u * SUBGROUPS>;
// Columns that are multiplied element by element, a bit each, and then rows. With an array of another size than whole vectors of sixteen
// bytes, the tiles would not begin at one.
var<workgroup> odd: array<atomic<u32>, 8>;
const ODD_ROWS: u32 = 4u;

alias Sums = coop_mat16x16<f32, C>;

// Eight numbers.
struct Eight {
    first: vec4<f32>,
    second: vec4<f32>,
}

// For each format: what is read of a half of a block (`Head`) and of a part (`Words`), the integers of a part, the steps of its sixteens
// (with signs), the units of a block, and the least of the eight sixteens of a half, in units of the second.
#if FORMAT == Q4_K, Q5_K
alias Head = vec4<u32>;
#if FORMAT == Q4_K
alias Words = vec4<u32>;

fn head_of(block: u32, half: u32) -> Head {
    return blocks[9u * block];
}

fn words_of(block: u32, part: u32) -> Words {
    return blocks[9u * block + 1u + part];
}

fn integers_of(words: Words, head: Head, block: u32, part: u32) -> Integers {
    let w = unpacked(Raw(words, head), block, part);
    return Integers(w.low, w.high);
}
#else
struct Words {
    q: vec4<u32>,
    fifth: vec4<u32>,
}

fn head_of(block: u32, half: u32) -> Head {
    return blocks[11u * block];
}

fn words_of(block: u32, part: u32) -> Words {
    return Words(blocks[11u * block + 3u + part], blocks[11u * block + 1u + part % 2u]);
}

fn integers_of(words: Words, head: Head, block: u32, part: u32) -> Integers {
    let w = unpacked(Raw(words.q, words.fifth, head), block, part);
    return Integers(w.low, w.high);
}
#endif

fn units_of(words: Words, head: Head, block: u32) -> vec2<f32> {
    return unpack2x16float(head.x);
}

fn steps_of_part(words: Words, head: Head, block: u32, part: u32) -> vec2<u32> {
    let codes = codes_of(head, part / 2u);
    return vec2<u32>(codes, codes >> 8u) & vec2<u32>(255u);
}

fn least_of(head: Head, half: u32) -> Eight {
    let first = codes_of(head, 2u * half) >> 16u;
    let second = codes_of(head, 2u * half + 1u) >> 16u;
    let all = vec4<f32>(vec4<u32>(first & 255u, first >> 8u, second & 255u, second >> 8u));
    return Eight(all.xxyy, all.zzww);
}
#endif
#if FORMAT == Q2_K, Q3_K
// A part is read with its codes and units.
alias Words = Raw;
#if FORMAT == Q2_K
alias Head = vec2<u32>;

fn head_of(block: u32, half: u32) -> Head {
    let at = 21u * block + 2u * half;
    return vec2<u32>(word_at(at), word_at(at + 1u));
}
#else
alias Head = u32;

fn head_of(block: u32, half: u32) -> Head {
    return 0u;
}
#endif

fn words_of(block: u32, part: u32) -> Words {
    return raw_of(block, part);
}

fn integers_of(words: Words, head: Head, block: u32, part: u32) -> Integers {
    let w = unpacked(words, block, part);
    return Integers(w.low, w.high);
}

#if FORMAT == Q2_K
fn units_of(words: Words, head: Head, block: u32) -> vec2<f32> {
    return unpack2x16float(words.units);
}

fn steps_of_part(words: Words, head: Head, block: u32, part: u32) -> vec2<u32> {
    return codes_of(words, part).xz;
}

fn least_of(head: Head, half: u32) -> Eight {
    let shifts = vec4<u32>(4u, 12u, 20u, 28u);
    return Eight(
        vec4<f32>((vec4<u32>(head.x) >> shifts) & vec4<u32>(15u)),
        vec4<f32>((vec4<u32>(head.y) >> shifts) & vec4<u32>(15u)),
    );
}
#else
fn units_of(words: Words, head: Head, block: u32) -> vec2<f32> {
    return vec2<f32>(unit_of(words, (block & 1u) != 0u), 0.0);
}

fn steps_of_part(words: Words, head: Head, block: u32, part: u32) -> vec2<i32> {
    return vec2<i32>(codes_of(words, part, (block & 1u) != 0u)) - vec2<i32>(32);
}
#endif
#endif
#if FORMAT == Q6_K
// The last twenty bytes of a block in five words: a block begins in the middle of a word if its number is odd.
alias Head = Five;
alias Words = Bytes;

fn head_of(block: u32, half: u32) -> Head {
    return five_words((210u * block + 192u) >> 2u);
}

fn words_of(block: u32, part: u32) -> Words {
    return bytes_of(block, part);
}

fn integers_of(words: Words, head: Head, block: u32, part: u32) -> Integers {
    return joined(words, block, part);
}

fn units_of(words: Words, head: Head, block: u32) -> vec2<f32> {
    return vec2<f32>(unpack2x16float(select(head.next, head.next >> 16u, (block & 1u) != 0u)).x, 0.0);
}

fn steps_of_part(words: Words, head: Head, block: u32, part: u32) -> vec2<i32> {
    let scales = sixteen_bytes(head.four, head.next, (block & 1u) != 0u);
    let both = select(scales.xy, scales.zw, part >= 4u);
    let shift = 8u * (part % 4u);
    return vec2<i32>(extractBits(bitcast<i32>(both.x), shift, 8u), extractBits(bitcast<i32>(both.y), shift, 8u));
}
#endif

// A word as two numbers of f16 with its bits. (Drivers of NVIDIA fail to compile matrices of f16 that are loaded from an array of words.)
fn halves(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
}

// Stores sixteen weights from sixteen bytes, two integers in the halves of each word.
#if FORMAT == Q2_K, Q4_K, Q5_K
fn store_sixteen(to: u32, bytes: vec4<u32>, step: u32) {
    let even = (bytes & vec4<u32>(0x00ff00ffu)) * step;
    let odd = ((bytes >> vec4<u32>(8u)) & vec4<u32>(0x00ff00ffu)) * step;
#else
struct Signed {
    magnitudes: vec4<u32>,
    signs: vec4<u32>,
}

// step q, from the integers as they are stored.
fn signed(v: vec4<u32>, step: i32) -> Signed {
    let ones = vec4<u32>(0x00010001u);
#if FORMAT == Q3_K
    // q is the lower two bits, minus four without the third.
    let is_negative = ~(v >> vec4<u32>(2u)) & ones;
    let magnitudes = ((v & vec4<u32>(0x00030003u)) ^ (3u * is_negative)) + is_negative;
#else
    // q is the lower five bits, minus 32 without the sixth.
    let is_negative = ~(v >> vec4<u32>(5u)) & ones;
    let magnitudes = ((v & vec4<u32>(0x001f001fu)) ^ (31u * is_negative)) + is_negative;
#endif
    let signs = (is_negative << vec4<u32>(15u)) ^ vec4<u32>(select(0u, 0x80008000u, step < 0));
    return Signed(magnitudes * u32(abs(step)), signs);
}

#if FORMAT == Q6_K
// A one in each half with a magnitude from 2048 to 4096: there f16 has even integers only.
fn are_large(magnitudes: vec4<u32>) -> vec4<u32> {
    return ((magnitudes >> vec4<u32>(11u)) | (magnitudes >> vec4<u32>(12u))) & vec4<u32>(0x00010001u);
}

// The bits of the nearest numbers towards zero that f16 has.
fn numbers_of(v: Signed) -> vec4<u32> {
    let large = 65535u * are_large(v.magnitudes);
    let halved = ((v.magnitudes >> vec4<u32>(1u)) & vec4<u32>(0x7fff7fffu)) + vec4<u32>(0x04000400u);
    return (v.magnitudes & ~large) | (halved & large) | v.signs;
}

// Those of what they leave.
fn rests_of(v: Signed) -> vec4<u32> {
    return (v.magnitudes & are_large(v.magnitudes)) | v.signs;
}
#endif

fn store_sixteen(to: u32, bytes: vec4<u32>, step: i32) {
    let signed_even = signed(bytes & vec4<u32>(0x00ff00ffu), step);
    let signed_odd = signed((bytes >> vec4<u32>(8u)) & vec4<u32>(0x00ff00ffu), step);
#if FORMAT == Q3_K
    let even = signed_even.magnitudes | signed_even.signs;
    let odd = signed_odd.magnitudes | signed_odd.signs;
#else
    let even = numbers_of(signed_even);
    let odd = numbers_of(signed_odd);
    store_vectors(to + 16u, rests_of(signed_even), rests_of(signed_odd));
#endif
#endif
    store_vectors(to, even, odd);
}

fn store_vectors(to: u32, even: vec4<u32>, odd: vec4<u32>) {
#for i 4
    tile_b[to + ${i}u] = vec4<f16>(halves(even[${i}u]), halves(odd[${i}u]));
#endfor
}

// Stores part 2 quarter + half of a line, at its place within the 64 elements of a slice.
fn store_b(line: u32, words: Words, head: Head, block: u32, quarter: u32, half: u32) {
    let part = 2u * quarter + half;
    let q = integers_of(words, head, block, part);
    let steps = steps_of_part(words, head, block, part);
    // Invocations store sixteen bytes at once: those of four lines and both halves do not meet in a bank.
    let to = line * LINE_B + 8u * half;
    store_sixteen(to, q.low, steps.x);
    store_sixteen(to + 4u, q.high, steps.y);
}

#if FORMAT == Q2_K, Q4_K, Q5_K
// Stores half of the least of a line in units of the first, where `ratio` is the second by it: a number each, and four vectors later what
// those leave.
fn store_least(line: u32, head: Head, half: u32, ratio: f32) {
    let all = least_of(head, half);
    store_four(LEAST + line * LINE_L + 2u * half, ratio * all.first);
    store_four(LEAST + line * LINE_L + 2u * half + 1u, ratio * all.second);
}

fn store_four(to: u32, all: vec4<f32>) {
    let number = bitcast<vec4<f32>>(bitcast<vec4<u32>>(all) & vec4<u32>(0xffffe000u));
    tile_b[to] = vec4<f16>(number);
    tile_b[to + 4u] = vec4<f16>(all - number);
}
#endif

// The quotient of the units of a block; zero if the second is zero.
fn ratio_of(units: vec2<f32>) -> f32 {
    if (bitcast<u32>(units.y) & 0x7fffffffu) == 0u {
        return 0.0;
    }
    return units.y / units.x;
}

// Whether f16 and what it leaves hold up to 63 times a ratio, and a unit is finite.
fn serve(unit: f32, ratio: f32) -> bool {
    let r = bitcast<u32>(ratio) & 0x7fffffffu;
    return (bitcast<u32>(unit) & INFINITY_BITS) != INFINITY_BITS && (r == 0u || (r >= 0x3e000000u && r <= 0x44000000u));
}

// Where vector `i` of a slice of x lies in its row: as the weights that it is multiplied with, part by part. In x the low sixteens of both
// parts come before the high ones, unless those of a part are neighbours.
fn place_in_row(i: u32) -> u32 {
    if APART < 32u {
        return i;
    }
    return 8u * ((i >> 2u) & 1u) + 4u * (i >> 3u) + (i & 3u);
}

// Stores four numbers, and `far` vectors later their rests.
fn store_a(to: u32, far: u32, loaded: vec4<u32>) {
    tile_a[to] = vec4<f16>(halves(loaded.x), halves(loaded.y));
    tile_a[to + far] = vec4<f16>(halves(loaded.z), halves(loaded.w));
}

// Where the planes have vector `i % 16` of a slice of row `i / 16` of the tile. Sixteen rows of 64 neighbours lie together.
fn place_of_x(first_row: u32, slice: u32, i: u32) -> u32 {
    let rows = min(first_row / 16u + i / 256u, (p.m - 1u) / 16u) * 4u * p.k_blocks;
#if FORMAT == Q6_K
    let vector = i % 16u;
    let together = rows + 2u * (slice / 2u) + vector / 8u;
    return 256u * together + 16u * ((i / 16u) % 16u) + 8u * (slice % 2u) + vector % 8u;
#else
    return 256u * (rows + slice) + i % 256u;
#endif
}

#if FORMAT == Q2_K, Q4_K, Q5_K
// The same for vector `i % 4` of the sums of the sixteens of a block of row `i / 4`, in units of sixteen and 2^-11 times that.
fn place_of_sums(first_row: u32, block: u32, i: u32) -> u32 {
    let all = (p.m + 15u) / 16u;
    let rows = min(first_row / 16u + i / 64u, all - 1u);
    return all * 4u * p.k_blocks * 256u + 64u * (rows * p.k_blocks + block) + i % 64u;
}
#endif

// Four results of an invocation, in the block of its subgroup.
fn four_of(at: u32) -> vec4<f32> {
    return vec4<f32>(block_of[at], block_of[at + 32u], block_of[at + 64u], block_of[at + 96u]);
}

fn write(layer: u32, row: u32, column: u32, sum: f32) {
    let at = p.out_first + row * p.out_row + column;
    var result = finished(sum);
#if ADDS
    result += more[at];
#endif
    out[layer * p.stride + at] = result;
}

// Writes every second of eight rows of a column.
fn write_four(layer: u32, row: u32, column: u32, sums: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if row + 2u * i < p.m && column < p.n {
            write(layer, row + 2u * i, column, sums[i] * units[row + 2u * i]);
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
#include tiles_in_bands
    let first_slice = 4u * layer * p.slice;
    let end = min(first_slice + 4u * p.slice, 4u * p.k_blocks);
    let subgroup = local / 32u;
    let lane = local % 32u;
    // The rows and lines of a subgroup.
    let down = (subgroup / ACROSS) * ${TALL}u * 16u;
    let right = (subgroup % ACROSS) * ${WIDE}u * 16u;
    let line = local / 2u;
    let half = local % 2u;
    let begin = min(first_column + line, p.n - 1u) * p.k_blocks;
    let mine = &block_of[subgroup * 256u];
    let at = subgroup * 256u + lane;

    if local < 8u {
        atomicStore(&odd[local], 0u);
    }
    // What is loaded of a slice, and of a block: one ahead.
#for i TALL
#for h 2
    var a_${i}_${h} = planes[place_of_x(first_row, first_slice, local + (2u * ${i}u + ${h}u) * THREADS)];
#endfor
#endfor
    var head = head_of(begin + first_slice / 4u, half);
    var next_head = head;
    var words = words_of(begin + first_slice / 4u, half);
#if FORMAT == Q2_K, Q4_K, Q5_K
    var sums = vec4<u32>(0u);
#endif
    var ratio = 0.0;
    var serves = true;
#for i TALL
#for j WIDE
    var all_${i}_${j}_0 = vec4<f32>(0.0);
    var all_${i}_${j}_1 = vec4<f32>(0.0);
    var c_${i}_${j} = Sums();
#endfor
#endfor
    for (var block = first_slice / 4u; block < end / 4u; block++) {
        for (var quarter = 0u; quarter < 4u; quarter++) {
            workgroupBarrier();
            if quarter == 0u {
                let units = units_of(words, head, begin + block);
                ratio = ratio_of(units);
                serves = serves && serve(units.x, ratio);
                if half == 0u {
                    // Weights are 2^-24 times as large, and the units of rows of x 2^-7 times.
                    line_units[line] = units.x * 2147483648.0;
                }
            }
#for i TALL
#for h 2
            store_a((local + (2u * ${i}u + ${h}u) * THREADS) / 16u * LINE_A + place_in_row(local % 16u), 16u, a_${i}_${h});
#endfor
#endfor
            store_b(line, words, head, begin + block, quarter, half);
#if FORMAT == Q2_K, Q4_K, Q5_K
#if ROWS == 16, 32
            if quarter == 3u {
                store_least(line, head, half, ratio);
                if local < 4u * ROWS {
                    store_a(SUMS + local / 4u * LINE_S + local % 4u, 4u, sums);
                }
            }
#endif
#endif
            workgroupBarrier();
            // After the last slice it is loaded again.
            let next = min(4u * block + quarter + 1u, end - 1u);
#if FORMAT == Q2_K, Q4_K, Q5_K
            if quarter == 2u {
                sums = planes[place_of_sums(first_row, block, local)];
            }
#endif
#for i TALL
#for h 2
            a_${i}_${h} = planes[place_of_x(first_row, next, local + (2u * ${i}u + ${h}u) * THREADS)];
#endfor
#endfor
            words = words_of(begin + next / 4u, 2u * (next % 4u) + half);
            if quarter == 3u {
                next_head = head_of(begin + next / 4u, half);
            }
            // Units for cooperative matrices truncate: the sums of a slice are added with rounding. In each step rests come first,
            // because their products are the smallest.
#for i TALL
#for j WIDE
            var s_${i}_${j} = Sums();
#endfor
#endfor
#for s 4
            {
#for j WIDE
                let b_${j} = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(right + 16u * ${j}u) * LINE_B + 4u * ${s}u], LINE_B);
#if FORMAT == Q6_K
                let rest_${j} = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(right + 16u * ${j}u) * LINE_B + 16u + 4u * ${s}u], LINE_B);
#endif
#endfor
#for i TALL
                {
                    let r = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(down + 16u * ${i}u) * LINE_A + 16u + 4u * ${s}u], LINE_A);
                    let n = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(down + 16u * ${i}u) * LINE_A + 4u * ${s}u], LINE_A);
#for j WIDE
                    s_${i}_${j} = coopMultiplyAdd(r, b_${j}, s_${i}_${j});
#endfor
#for j WIDE
#if FORMAT == Q6_K
                    s_${i}_${j} = coopMultiplyAdd(n, rest_${j}, s_${i}_${j});
#endif
                    s_${i}_${j} = coopMultiplyAdd(n, b_${j}, s_${i}_${j});
#endfor
                }
#endfor
            }
#endfor
#for i TALL
#for j WIDE
            c_${i}_${j} = c_${i}_${j} + s_${i}_${j};
#endfor
#endfor
        }
#if FORMAT == Q2_K, Q4_K, Q5_K
#if ROWS == 64
        workgroupBarrier();
        store_least(line, head, half, ratio);
        store_a(local / 4u * LINE_S + local % 4u, 4u, sums);
        workgroupBarrier();
#endif
        // The least times the sums of sixteens: 2^-20 for numbers, because sums are in units of sixteen and products of weights
        // 2^-24 times as large, and 2^-31 for rests.
#for j WIDE
        {
            let l0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[LEAST + (right + 16u * ${j}u) * LINE_L], LINE_L);
            let l1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[LEAST + (right + 16u * ${j}u) * LINE_L + 4u], LINE_L);
#for i TALL
            {
                var s = Sums();
                var rests = Sums();
                let n = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[SUMS + (down + 16u * ${i}u) * LINE_S], LINE_S);
                let r = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[SUMS + (down + 16u * ${i}u) * LINE_S + 4u], LINE_S);
                s = coopMultiplyAdd(n, l1, s);
                s = coopMultiplyAdd(n, l0, s);
                rests = coopMultiplyAdd(r, l0, rests);
                c_${i}_${j} = c_${i}_${j} - s * 9.5367431640625e-7;
                c_${i}_${j} = c_${i}_${j} - rests * 4.656612873077393e-10;
            }
#endfor
        }
#endfor
#endif
        head = next_head;
#for i TALL
#for j WIDE
#if i
        workgroupBarrier();
#else
#if j
        workgroupBarrier();
#endif
#endif
        { let s = c_${i}_${j}; coopStoreT(s, mine, 16u); }
        c_${i}_${j} = Sums();
        workgroupBarrier();
        {
            let unit = line_units[right + 16u * ${j}u + lane % 16u];
            all_${i}_${j}_0 += unit * four_of(at);
            all_${i}_${j}_1 += unit * four_of(at + 128u);
        }
#endfor
#endfor
    }

    if !serves {
        atomicOr(&odd[line / 32u], 1u << (line % 32u));
    }
    if local < ROWS && is_nan(units[min(first_row + local, p.m - 1u)]) {
        atomicOr(&odd[ODD_ROWS + local / 32u], 1u << (local % 32u));
    }
    let row = first_row + down + lane / 16u;
    let column = first_column + right + lane % 16u;
#for i TALL
#for j WIDE
    write_four(layer, row + 16u * ${i}u, column + 16u * ${j}u, all_${i}_${j}_0);
    write_four(layer, row + 16u * ${i}u + 8u, column + 16u * ${j}u, all_${i}_${j}_1);
#endfor
#endfor
    // The next results take the place of others.
    storageBarrier();
    workgroupBarrier();
    var any = 0u;
    for (var i = 0u; i < 8u; i++) {
        any |= atomicLoad(&odd[i]);
    }
    if any == 0u {
        return;
    }
    for (var i = local; i < ROWS * COLUMNS; i += THREADS) {
        let r = i / COLUMNS;
        let j = i % COLUMNS;
        let is_odd = (atomicLoad(&odd[ODD_ROWS + r / 32u]) >> (r % 32u)) | (atomicLoad(&odd[j / 32u]) >> (j % 32u));
        if (is_odd & 1u) != 0u && first_row + r < p.m && first_column + j < p.n {
            let sum = exact(first_row + r, first_column + j, first_slice * 2u, end * 2u);
            write(layer, first_row + r, first_column + j, sum);
        }
    }
}
