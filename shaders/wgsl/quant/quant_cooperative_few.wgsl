// out[i, j] = sum over k of x[i, k] w[j, k] with quantised w, for some rows of x, through cooperative matrices of f16. If ADDS,
// more[i, j] is added to it; then k must not be split.
//
// It is for formats whose blocks of 256 elements have a unit in f16, and whose sixteens have integers as steps: an element is
// unit (step q - least), with an integer q. The magnitude of step q is an integer below 2048, so its bits are those of an f16 that is
// 2^-24 times as large, subnormal below 1024: two weights take few operations, and one matrix holds them exactly. For Q6_K step q has up
// to 13 bits, so a row of weights is two lines: one of the lower four bits of q, and one of the upper two, minus two, with sixteen times
// the unit. Q3_K and Q6_K have no least.
//
// A workgroup makes ROWS rows of results for LINES lines of weights, in slices of 64 elements (two parts); a subgroup has sixteen lines.
// `quant_split` has written the rows of x as numbers of f16 in units of their own, what those leave, and the sums of sixteens. After each
// block the products of the least with the sums of sixteens are subtracted, and the difference is multiplied by the units of the lines and
// added to results that stay in registers. Slices are loaded one ahead. Four neighbours are in the order 0, 2, 1, 3, in x and in weights.
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
#constant TALL = 1, 2
#constant ADDS = 0, 1
#include common
#include quantized
#include quant_exact

// A large tile has more invocations, so that as many registers are left for each.
const THREADS: u32 = 128u * ${TALL}u;
const ROWS: u32 = 16u * ${TALL}u;
const LINES: u32 = 64u * ${TALL}u;
#if FORMAT == Q6_K
const COLUMNS: u32 = LINES / 2u;
#else
const COLUMNS: u32 = LINES;
#endif
// From one row of x to the next, with its rests sixteen vectors after it; from one line to the next; and the words from one line to
// the next of sums and of least, eight words of numbers and eight of rests. Reads of eight lines do not meet in a bank.
const LINE_A: u32 = 34u;
const LINE_B: u32 = 18u;
const LINE_S: u32 = 20u;

var<workgroup> tile_a: array<vec4<f16>, ROWS * LINE_A>;
var<workgroup> tile_b: array<vec4<f16>, LINES * LINE_B>;
#if FORMAT == Q2_K, Q4_K, Q5_K
var<workgroup> sums_of_x: array<vec2<f16>, ROWS * LINE_S>;
var<workgroup> least: array<vec2<f16>, LINES * LINE_S>;
#endif
var<workgroup> line_units: array<f32, LINES>;
// A block of results for each subgroup.
var<workgroup> block_of: array<f32, 8u * THREADS>;
// Columns that are multiplied element by element, a bit each, and then rows. With an array of another size than whole vectors of sixteen
// bytes, the tiles would not begin at one.
var<workgroup> odd: array<atomic<u32>, 8>;
const ODD_ROWS: u32 = 4u;

alias Sums = coop_mat16x16<f32, C>;

// Integers of a part, a byte each.
struct Integers {
    low: vec4<u32>,
    high: vec4<u32>,
}

// For each format: what is read of a block (`Head`) and of a part (`Words`), the integers of a part, the steps of its sixteens (with
// signs), the units of a block, and the least of its sixteens in units of the first, where `ratio` is the second by the first.
#if FORMAT == Q4_K, Q5_K
alias Head = vec4<u32>;
#if FORMAT == Q4_K
alias Words = vec4<u32>;

fn head_of(block: u32) -> Head {
    return blocks[9u * block];
}

fn words_of(block: u32, part: u32, second: bool) -> Words {
    return blocks[9u * block + 1u + part];
}

fn integers_of(words: Words, head: Head, block: u32, part: u32, second: bool) -> Integers {
    let w = unpacked(Raw(words, head), block, part);
    return Integers(w.low, w.high);
}
#else
struct Words {
    q: vec4<u32>,
    fifth: vec4<u32>,
}

fn head_of(block: u32) -> Head {
    return blocks[11u * block];
}

fn words_of(block: u32, part: u32, second: bool) -> Words {
    return Words(blocks[11u * block + 3u + part], blocks[11u * block + 1u + part % 2u]);
}

fn integers_of(words: Words, head: Head, block: u32, part: u32, second: bool) -> Integers {
    let w = unpacked(Raw(words.q, words.fifth, head), block, part);
    return Integers(w.low, w.high);
}
#endif

fn units_of(words: Words, head: Head, block: u32, second: bool) -> vec2<f32> {
    return unpack2x16float(head.x);
}

fn steps_of_part(words: Words, head: Head, block: u32, part: u32) -> vec2<u32> {
    let codes = codes_of(head, part / 2u);
    return vec2<u32>(codes, codes >> 8u) & vec2<u32>(255u);
}

fn least_of_part(words: Words, head: Head, block: u32, part: u32, ratio: f32) -> vec2<f32> {
    let codes = codes_of(head, part / 2u);
    return ratio * vec2<f32>(vec2<u32>(codes >> 16u, codes >> 24u) & vec2<u32>(255u));
}
#endif
#if FORMAT == Q2_K, Q3_K
// A part is read with its codes and units.
alias Head = u32;
alias Words = Raw;

fn head_of(block: u32) -> Head {
    return 0u;
}

fn words_of(block: u32, part: u32, second: bool) -> Words {
    return raw_of(block, part);
}

fn integers_of(words: Words, head: Head, block: u32, part: u32, second: bool) -> Integers {
    let w = unpacked(words, block, part);
    return Integers(w.low, w.high);
}

#if FORMAT == Q2_K
fn units_of(words: Words, head: Head, block: u32, second: bool) -> vec2<f32> {
    return unpack2x16float(words.units);
}

fn steps_of_part(words: Words, head: Head, block: u32, part: u32) -> vec2<u32> {
    return codes_of(words, part).xz;
}

fn least_of_part(words: Words, head: Head, block: u32, part: u32, ratio: f32) -> vec2<f32> {
    return ratio * vec2<f32>(codes_of(words, part).yw);
}
#else
fn units_of(words: Words, head: Head, block: u32, second: bool) -> vec2<f32> {
    return vec2<f32>(unit_of(words, (block & 1u) != 0u), 0.0);
}

fn steps_of_part(words: Words, head: Head, block: u32, part: u32) -> vec2<i32> {
    return vec2<i32>(codes_of(words, part, (block & 1u) != 0u)) - vec2<i32>(32);
}
#endif
#endif
#if FORMAT == Q6_K
// The last twenty bytes of a block in five words: a block begins in the middle of a word if its number is odd.
struct Head {
    scales: vec4<u32>,
    last: u32,
}

// The bytes of a part that lines of one kind take.
struct Words {
    q: vec4<u32>,
    next: u32,
}

fn head_of(block: u32) -> Head {
    let at = (210u * block + 192u) >> 2u;
    return Head(four_words(at), word_at(at + 4u));
}

fn words_of(block: u32, part: u32, second: bool) -> Words {
    let byte = 210u * block;
    let at = select(byte + 16u * part, byte + 128u + 32u * (part / 4u) + 16u * (part % 2u), second) >> 2u;
    return Words(four_words(at), word_at(at + 4u));
}

fn integers_of(words: Words, head: Head, block: u32, part: u32, second: bool) -> Integers {
    let q = sixteen_bytes(words.q, words.next, (block & 1u) != 0u);
    let shift = select(0u, 2u * ((part / 2u) % 2u), second);
    let mask = vec4<u32>(select(0x0f0f0f0fu, 0x03030303u, second));
    return Integers((q >> vec4<u32>(shift)) & mask, (q >> vec4<u32>(shift + 4u)) & mask);
}

fn units_of(words: Words, head: Head, block: u32, second: bool) -> vec2<f32> {
    let unit = unpack2x16float(select(head.last, head.last >> 16u, (block & 1u) != 0u)).x;
    return vec2<f32>(select(unit, 16.0 * unit, second), 0.0);
}

fn steps_of_part(words: Words, head: Head, block: u32, part: u32) -> vec2<i32> {
    let scales = sixteen_bytes(head.scales, head.last, (block & 1u) != 0u);
    let both = select(scales.xy, scales.zw, part >= 4u);
    let shift = 8u * (part % 4u);
    return vec2<i32>(extractBits(bitcast<i32>(both.x), shift, 8u), extractBits(bitcast<i32>(both.y), shift, 8u));
}
#endif

// A word as two numbers of f16 with its bits. (Drivers of NVIDIA fail to compile matrices of f16 that are loaded from an array of words.)
fn halves(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
}

// Stores sixteen weights from sixteen bytes. Both functions take two integers in the halves of each word.
#if FORMAT == Q2_K, Q4_K, Q5_K
fn store_sixteen(to: u32, bytes: vec4<u32>, step: u32, second: bool) {
    let even = (bytes & vec4<u32>(0x00ff00ffu)) * step;
    let odd = ((bytes >> vec4<u32>(8u)) & vec4<u32>(0x00ff00ffu)) * step;
#else
// step q with its sign, from the integers as they are stored.
fn signed(v: vec4<u32>, step: i32, second: bool) -> vec4<u32> {
    let ones = vec4<u32>(0x00010001u);
#if FORMAT == Q3_K
    // q is the lower two bits, minus four without the third.
    let is_negative = ~(v >> vec4<u32>(2u)) & ones;
    let magnitude = ((v & vec4<u32>(0x00030003u)) ^ (3u * is_negative)) + is_negative;
#else
    // q is the lower four bits, or the upper two minus two.
    let is_negative = select(vec4<u32>(0u), ~(v >> vec4<u32>(1u)) & ones, second);
    let two = (~(v | (v >> vec4<u32>(1u))) & ones) << vec4<u32>(1u);
    let magnitude = select(v, (v & ones) | two, second);
#endif
    return (magnitude * u32(abs(step))) | ((is_negative << vec4<u32>(15u)) ^ vec4<u32>(select(0u, 0x80008000u, step < 0)));
}

fn store_sixteen(to: u32, bytes: vec4<u32>, step: i32, second: bool) {
    let even = signed(bytes & vec4<u32>(0x00ff00ffu), step, second);
    let odd = signed((bytes >> vec4<u32>(8u)) & vec4<u32>(0x00ff00ffu), step, second);
#endif
    tile_b[to] = vec4<f16>(halves(even.x), halves(odd.x));
    tile_b[to + 1u] = vec4<f16>(halves(even.y), halves(odd.y));
    tile_b[to + 2u] = vec4<f16>(halves(even.z), halves(odd.z));
    tile_b[to + 3u] = vec4<f16>(halves(even.w), halves(odd.w));
}

// Stores part 2 quarter + half of a line, at its place within the 64 elements of a slice.
fn store_b(line: u32, words: Words, head: Head, block: u32, quarter: u32, half: u32, ratio: f32) {
    let part = 2u * quarter + half;
    let q = integers_of(words, head, block, part, line >= COLUMNS);
    let steps = steps_of_part(words, head, block, part);
    // The high sixteen come after the low ones, or after those of both parts.
    const FAR: u32 = min(APART / 4u, 8u);
    let to = line * LINE_B + (12u - FAR) * half;
    store_sixteen(to, q.low, steps.x, line >= COLUMNS);
    store_sixteen(to + FAR, q.high, steps.y, line >= COLUMNS);
#if FORMAT == Q2_K, Q4_K, Q5_K
    let all = least_of_part(words, head, block, part, ratio);
    let number = bitcast<vec2<f32>>(bitcast<vec2<u32>>(all) & vec2<u32>(0xffffe000u));
    least[line * LINE_S + part] = vec2<f16>(number);
    least[line * LINE_S + 8u + part] = vec2<f16>(all - number);
#endif
}

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

// The vector of a row of x at which a slice begins.
fn slice_at(slice: u32) -> u32 {
#if FORMAT == Q6_K
    return 32u * (slice / 2u) + 8u * (slice % 2u);
#else
    return 16u * slice;
#endif
}

fn store_a(i: u32, loaded: vec4<u32>) {
    let to = (i / 16u) * LINE_A + i % 16u;
    tile_a[to] = vec4<f16>(halves(loaded.x), halves(loaded.y));
    tile_a[to + 16u] = vec4<f16>(halves(loaded.z), halves(loaded.w));
}

// Where the planes have vector `i % 16` of a slice of row `i / 16` of the tile.
fn place_of_x(first_row: u32, i: u32) -> u32 {
    let row = min(first_row + i / 16u, p.m - 1u);
    let vector = i % 16u;
#if FORMAT == Q6_K
    return row * p.k_blocks * (LEN / 4u) + vector + 8u * (vector / 8u);
#else
    return row * p.k_blocks * (LEN / 4u) + vector;
#endif
}

#if FORMAT == Q2_K, Q4_K, Q5_K
// The sums of both sixteens of a part: a number each in the lower half, and in the upper one 2^11 times what it leaves.
fn load_sums(first_row: u32, block: u32, i: u32) -> vec2<u32> {
    let row = min(first_row + i / 8u, p.m - 1u);
    let sixteens = p.k_blocks * (LEN / 16u);
    let low = row * sixteens + (block * LEN + place(i % 8u)) / 16u;
    let high = low + APART / 16u;
    let first = 4u * p.m * sixteens;
    return vec2<u32>(planes[first + low / 4u][low % 4u], planes[first + high / 4u][high % 4u]);
}

fn store_sums(i: u32, sums: vec2<u32>) {
    let to = (i / 8u) * LINE_S + i % 8u;
    sums_of_x[to] = halves((sums.x & 0xffffu) | (sums.y << 16u));
    sums_of_x[to + 8u] = halves((sums.x >> 16u) | (sums.y & 0xffff0000u));
}
#endif

// Four results of an invocation, in the block of its subgroup.
fn four_of(at: u32) -> vec4<f32> {
    return vec4<f32>(block_of[at], block_of[at + 32u], block_of[at + 64u], block_of[at + 96u]);
}

fn put_four(at: u32, v: vec4<f32>) {
    block_of[at] = v.x;
    block_of[at + 32u] = v.y;
    block_of[at + 64u] = v.z;
    block_of[at + 96u] = v.w;
}

fn write(split: u32, row: u32, column: u32, sum: f32) {
    let at = p.out_first + row * p.out_row + column;
    var result = finished(sum);
#if ADDS
    result += more[at];
#endif
    out[split * p.stride + at] = result;
}

// Writes every second of eight rows of a column.
fn write_four(split: u32, row: u32, column: u32, sums: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if row + 2u * i < p.m && column < p.n {
            write(split, row + 2u * i, column, sums[i] * units[row + 2u * i]);
        }
    }
}

@compute @workgroup_size(THREADS)
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
    // Tiles that share weights are neighbours.
    let tiles = p.down * p.across;
    let split = number / tiles;
    let within = number % tiles;
    let first_row = (within % p.down) * ROWS;
    let first_column = (within / p.down) * COLUMNS;
    let first_slice = 4u * split * p.slice;
    let end = min(first_slice + 4u * p.slice, 4u * p.k_blocks);
    let subgroup = local / 32u;
    let lane = local % 32u;
    let right = subgroup * 16u;
    let line = local / 2u;
    let half = local % 2u;
    let second = line >= COLUMNS;
    let begin = min(first_column + line % COLUMNS, p.n - 1u) * p.k_blocks;
    let mine = &block_of[subgroup * 256u];
    let at = subgroup * 256u + lane;

    if local < 8u {
        atomicStore(&odd[local], 0u);
    }
    // What is loaded of a slice, and of a block: one ahead.
    let x0 = place_of_x(first_row, local);
    let x1 = place_of_x(first_row, local + THREADS);
    var a0 = planes[x0 + slice_at(first_slice)];
    var a1 = planes[x1 + slice_at(first_slice)];
#if FORMAT == Q2_K, Q4_K, Q5_K
    var sums = load_sums(first_row, first_slice / 4u, local);
#endif
    var head = head_of(begin + first_slice / 4u);
    var words = words_of(begin + first_slice / 4u, half, second);
    var ratio = 0.0;
    var serves = true;
    var all0 = vec4<f32>(0.0);
    var all1 = vec4<f32>(0.0);
    var c0 = Sums();
#if TALL == 2
    var all2 = vec4<f32>(0.0);
    var all3 = vec4<f32>(0.0);
    var c1 = Sums();
#endif
    for (var block = first_slice / 4u; block < end / 4u; block++) {
        for (var quarter = 0u; quarter < 4u; quarter++) {
            let slice = 4u * block + quarter;
            workgroupBarrier();
            if quarter == 0u {
                let units = units_of(words, head, begin + block, second);
                ratio = ratio_of(units);
                serves = serves && serve(units.x, ratio);
                if half == 0u {
                    // Weights are 2^-24 times as large, and the units of rows of x 2^-7 times.
                    line_units[line] = units.x * 2147483648.0;
                }
#if FORMAT == Q2_K, Q4_K, Q5_K
                store_sums(local, sums);
#endif
            }
            store_a(local, a0);
            store_a(local + THREADS, a1);
            store_b(line, words, head, begin + block, quarter, half, ratio);
            workgroupBarrier();
            // After the last slice it is loaded again.
            let next = min(slice + 1u, end - 1u);
            a0 = planes[x0 + slice_at(next)];
            a1 = planes[x1 + slice_at(next)];
            if quarter == 3u {
#if FORMAT == Q2_K, Q4_K, Q5_K
                sums = load_sums(first_row, next / 4u, local);
#endif
                head = head_of(begin + next / 4u);
            }
            words = words_of(begin + next / 4u, 2u * (next % 4u) + half, second);
            {
                let b0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right * LINE_B], LINE_B);
                let b1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right * LINE_B + 4u], LINE_B);
                let b2 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right * LINE_B + 8u], LINE_B);
                let b3 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right * LINE_B + 12u], LINE_B);
                // Units for cooperative matrices truncate: the sums of a slice are added with rounding. Rests come first, because
                // their products are the smallest.
                {
                    var s = Sums();
                    let r0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u], LINE_A);
                    s = coopMultiplyAdd(r0, b0, s);
                    let r1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[20u], LINE_A);
                    s = coopMultiplyAdd(r1, b1, s);
                    let r2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[24u], LINE_A);
                    s = coopMultiplyAdd(r2, b2, s);
                    let r3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[28u], LINE_A);
                    s = coopMultiplyAdd(r3, b3, s);
                    let n0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[0u], LINE_A);
                    s = coopMultiplyAdd(n0, b0, s);
                    let n1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[4u], LINE_A);
                    s = coopMultiplyAdd(n1, b1, s);
                    let n2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[8u], LINE_A);
                    s = coopMultiplyAdd(n2, b2, s);
                    let n3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[12u], LINE_A);
                    s = coopMultiplyAdd(n3, b3, s);
                    c0 = c0 + s;
                }
#if TALL == 2
                {
                    var s = Sums();
                    let r0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u * LINE_A + 16u], LINE_A);
                    s = coopMultiplyAdd(r0, b0, s);
                    let r1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u * LINE_A + 20u], LINE_A);
                    s = coopMultiplyAdd(r1, b1, s);
                    let r2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u * LINE_A + 24u], LINE_A);
                    s = coopMultiplyAdd(r2, b2, s);
                    let r3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u * LINE_A + 28u], LINE_A);
                    s = coopMultiplyAdd(r3, b3, s);
                    let n0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u * LINE_A], LINE_A);
                    s = coopMultiplyAdd(n0, b0, s);
                    let n1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u * LINE_A + 4u], LINE_A);
                    s = coopMultiplyAdd(n1, b1, s);
                    let n2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u * LINE_A + 8u], LINE_A);
                    s = coopMultiplyAdd(n2, b2, s);
                    let n3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[16u * LINE_A + 12u], LINE_A);
                    s = coopMultiplyAdd(n3, b3, s);
                    c1 = c1 + s;
                }
#endif
            }
        }
#if FORMAT == Q2_K, Q4_K, Q5_K
        // The least times the sums of sixteens: 2^-20 for numbers, because sums are in units of sixteen and products of weights
        // 2^-24 times as large, and 2^-31 for rests.
        let l0 = coopLoad<coop_mat16x16<f16, B>>(&least[right * LINE_S], LINE_S);
        let l1 = coopLoad<coop_mat16x16<f16, B>>(&least[right * LINE_S + 8u], LINE_S);
        {
            var s = Sums();
            var rests = Sums();
            let n = coopLoadT<coop_mat16x16<f16, A>>(&sums_of_x[0u], LINE_S);
            let r = coopLoadT<coop_mat16x16<f16, A>>(&sums_of_x[8u], LINE_S);
            s = coopMultiplyAdd(n, l1, s);
            s = coopMultiplyAdd(n, l0, s);
            rests = coopMultiplyAdd(r, l0, rests);
            c0 = c0 - s * 9.5367431640625e-7;
            c0 = c0 - rests * 4.656612873077393e-10;
        }
#endif
        { let sums = c0; coopStoreT(sums, mine, 16u); }
        c0 = Sums();
        workgroupBarrier();
        let unit = line_units[right + lane % 16u];
        all0 += unit * four_of(at);
        all1 += unit * four_of(at + 128u);
#if TALL == 2
        workgroupBarrier();
#if FORMAT == Q2_K, Q4_K, Q5_K
        {
            var s = Sums();
            var rests = Sums();
            let n = coopLoadT<coop_mat16x16<f16, A>>(&sums_of_x[16u * LINE_S], LINE_S);
            let r = coopLoadT<coop_mat16x16<f16, A>>(&sums_of_x[16u * LINE_S + 8u], LINE_S);
            s = coopMultiplyAdd(n, l1, s);
            s = coopMultiplyAdd(n, l0, s);
            rests = coopMultiplyAdd(r, l0, rests);
            c1 = c1 - s * 9.5367431640625e-7;
            c1 = c1 - rests * 4.656612873077393e-10;
        }
#endif
        { let sums = c1; coopStoreT(sums, mine, 16u); }
        c1 = Sums();
        workgroupBarrier();
        all2 += unit * four_of(at);
        all3 += unit * four_of(at + 128u);
#endif
    }

#if FORMAT == Q6_K
    // The second lines are added to the first.
    if second {
        put_four(at, all0);
        put_four(at + 128u, all1);
    }
    workgroupBarrier();
    if !second {
        all0 += four_of(at + 4u * THREADS);
        all1 += four_of(at + 4u * THREADS + 128u);
    }
#if TALL == 2
    workgroupBarrier();
    if second {
        put_four(at, all2);
        put_four(at + 128u, all3);
    }
    workgroupBarrier();
    if !second {
        all2 += four_of(at + 4u * THREADS);
        all3 += four_of(at + 4u * THREADS + 128u);
    }
#endif
#endif
    if !serves {
        atomicOr(&odd[(line % COLUMNS) / 32u], 1u << (line % 32u));
    }
    if local < ROWS && is_nan(units[min(first_row + local, p.m - 1u)]) {
        atomicOr(&odd[ODD_ROWS], 1u << local);
    }
    if !second {
        let row = first_row + lane / 16u;
        let column = first_column + right + lane % 16u;
        write_four(split, row, column, all0);
        write_four(split, row + 8u, column, all1);
#if TALL == 2
        write_four(split, row + 16u, column, all2);
        write_four(split, row + 24u, column, all3);
#endif
    }
    // The next results take the place of others.
    storageBarrier();
    workgroupBarrier();
    let rows = atomicLoad(&odd[ODD_ROWS]);
    var any = rows;
    for (var i = 0u; i < ODD_ROWS; i++) {
        any |= atomicLoad(&odd[i]);
    }
    if any == 0u {
        return;
    }
    for (var i = local; i < ROWS * COLUMNS; i += THREADS) {
        let r = i / COLUMNS;
        let j = i % COLUMNS;
        let is_odd = (rows >> r) | (atomicLoad(&odd[j / 32u]) >> (j % 32u));
        if (is_odd & 1u) != 0u && first_row + r < p.m && first_column + j < p.n {
            let sum = exact(first_row + r, first_column + j, first_slice * 2u, end * 2u);
            write(split, first_row + r, first_column + j, sum);
        }
    }
}
