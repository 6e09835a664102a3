// The products of ROWS rows of x with rows of quantised weights, at the speed of memory. A source that includes this
// has buffers x, blocks and out, parameters n, k_blocks, out_row, out_first, down and total, constants FORMAT, ROWS and
// LANES, and defines for tiles of ROWS rows `is_here`, `row_of_x`, `weight_rows` and `is_written`.
//
// LANES neighbouring invocations share four rows of w; each takes every LANES-th part of them, so that what is read of x
// serves four rows, and every element of w serves ROWS rows of x. Pieces of x are copied to workgroup memory one at a time.
//
// There x is laid out as integers of 16 bits with a scale for each sixteen elements, in two bytes, which are multiplied
// with the integers of w four at a time; steps and minima are applied to the sums. Sixteen elements that are tiny, or
// not all finite, have no scale: it is NaN, and so are the sums of every lane that reads it. Such a lane repeats its
// products of that row with the elements themselves.
//
// With GATED, which needs one row and `functions`, two of the four rows are those of `ups` that belong to the two of `blocks`.
//
// With NORMED, which needs one row, x is x / sqrt(mean of squares + eps) gamma: what is laid out is x gamma, and sums are divided by the
// root. Results whose sum is not finite, or whose row has squares that overflow or vanish, are computed again one by one. Sixteen products
// x gamma that all became zero, though both factors of one are not, have no scale either.

const ROWS: u32 = ${ROWS}u;
const LANES: u32 = ${LANES}u;
// Groups of lanes in a workgroup.
const SLOTS: u32 = ${WORKGROUP}u / LANES;
// Rows of the weights whose results a group of lanes writes.
#if GATED
const COLUMNS: u32 = 2u;
#else
const COLUMNS: u32 = 4u;
#endif
// Vectors of a row of x that are laid out at a time.
const PIECE: u32 = 1024u / ROWS;
// Sixteens of elements of a row that are laid out at a time.
const SIXTEENS: u32 = PIECE / 4u;

// The sums of each row of x with four rows of w. (In an array that a loop goes through they would lie in memory.)
#for r ROWS
var<private> sums_${r}: vec4<f32>;
#endfor

#if NORMED
// The sum of the squares of the elements that this invocation lays out, and those of the workgroup.
var<private> squares: f32;
var<workgroup> all_squares: array<f32, ${WORKGROUP}u>;

fn lanes_total(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

// Squares are neither infinite nor have lost digits, from 2^-80 to 2^120: with these bits of the mean and eps.
fn is_ordinary(mean: f32) -> bool {
    let b = bitcast<u32>(mean);
    return b >= 0x17800000u && b < 0x7b800000u;
}

alias F = vec4<f32>;
alias U = vec4<u32>;
alias B = vec4<bool>;
#include norm_factors

// Whether a product of two elements is not zero.
fn has_product(a: vec4<f32>, b: vec4<f32>) -> bool {
    return any((magnitude(a) != vec4<u32>(0u)) & (magnitude(b) != vec4<u32>(0u)));
}

fn rescaled(v: vec4<f32>, is_large: bool, is_small: bool) -> vec4<f32> {
    if is_small {
        return lifted(v);
    }
    return v * select(1.0, 8.077935669463161e-28, is_large);
}

// The product of the normalised row with a row of w that begins at a block, element by element: hardly any invocation runs it.
fn exact_product(begin: u32) -> f32 {
    let vectors = p.k_blocks * (LEN / 4u);
    var greatest = 0u;
    for (var i = 0u; i < vectors; i++) {
        let m = magnitude(x[i]);
        greatest = max(greatest, max(max(m.x, m.y), max(m.z, m.w)));
    }
    if greatest >= INFINITY_BITS {
        return bitcast<f32>(greatest | NAN_BITS);
    }
    // Squares of numbers from 2^50 on and below 2^-40 are of scaled numbers, and eps with them unless it is what counts: then their mean
    // and the results are scaled back.
    let is_large = greatest >= 0x58800000u;
    let is_small = greatest < 0x2b800000u;
    var eps = p.eps;
    var back = 1.0;
    if is_large {
        eps = (eps * 8.077935669463161e-28) * 8.077935669463161e-28;
    } else if is_small && eps < 8.673617379884035e-19 {
        eps = lifted(vec4<f32>(eps)).x * 1.2379400392853803e27;
    } else if is_small {
        back = 8.077935669463161e-28;
    }
    var all = vec4<f32>(0.0);
    for (var i = 0u; i < vectors; i += 16u) {
        var some = vec4<f32>(0.0);
        for (var j = i; j < min(i + 16u, vectors); j++) {
            let v = rescaled(x[j], is_large, is_small);
            some += v * v;
        }
        all += some;
    }
    let mean = ((lanes_total(all) / f32(4u * vectors)) * back) * back + eps;
    let is_zero = (bitcast<u32>(mean) & 0x7fffffffu) == 0u;
    let inverse = bitcast<f32>(select(bitcast<u32>(1.0 / sqrt(mean)), INFINITY_BITS, is_zero));
    var total = 0.0;
    for (var i = 0u; i < p.k_blocks * PARTS; i++) {
        let w = part_of(begin + i / PARTS, i % PARTS);
        let at = ((i / PARTS) * LEN + place(i % PARTS)) / 4u;
        var sum = 0.0;
        for (var j = 0u; j < 4u; j++) {
            let v = weighed(rescaled(x[at + j], is_large, is_small), inverse, back, more[at + j]);
            sum = product(elements(w.low[j], w.steps.x, w.steps.y), v, sum);
        }
        for (var j = 0u; j < 4u; j++) {
            let far = at + APART / 4u + j;
            let v = weighed(rescaled(x[far], is_large, is_small), inverse, back, more[far]);
            sum = product(elements(w.high[j], w.steps.z, w.steps.w), v, sum);
        }
        total += sum;
    }
    return total;
}
#else
// The sums of the products of every LANES-th part of the rows that begin at these blocks, with a row of x as it is stored: a row after
// the other, in little code, because hardly any workgroup runs it.
fn sums_of_elements(begin: vec4<u32>, lane: u32, row: u32) -> vec4<f32> {
    var sums: vec4<f32>;
    let x_begin = row * p.k_blocks * (LEN / 4u);
    for (var r = 0u; r < 4u; r++) {
#if GATED
        is_up = r > 1u;
#endif
        var sum = 0.0;
        for (var i = lane; i < p.k_blocks * PARTS; i += LANES) {
            let block = i / PARTS;
            let w = part_of(begin[r] + block, i % PARTS);
            let at = x_begin + (block * LEN + place(i % PARTS)) / 4u;
            for (var j = 0u; j < 4u; j++) {
                sum = product(elements(w.low[j], w.steps.x, w.steps.y), x[at + j], sum);
            }
            for (var j = 0u; j < 4u; j++) {
                sum = product(elements(w.high[j], w.steps.z, w.steps.w), x[at + APART / 4u + j], sum);
            }
        }
        sums[r] = sum;
    }
    return sums;
}
#endif

// The greatest of sixteen elements that have a scale is zero, or from this to 2^126, beyond which WGSL promises nothing of quotients.
#if NORMED
// 2^-60: sums that are divided by a small root must not have vanished.
const LEAST_BITS: u32 = 0x21800000u;
#else
// 2^-90.
const LEAST_BITS: u32 = 0x12800000u;
#endif

// Sixteen elements of x are scale (256 high + low), bytes each; with the scale goes the sum of the integers.
var<workgroup> highs: array<vec4<u32>, ${WORKGROUP}u>;
var<workgroup> lows: array<vec4<u32>, ${WORKGROUP}u>;
var<workgroup> scales: array<vec2<u32>, ${WORKGROUP}u>;

// The position of sixteen elements of a row of a piece: neighbouring lanes access different banks.
fn spread(at: u32) -> u32 {
    return at ^ (7u * ((at >> 3u) & 1u));
}

fn magnitude(v: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
}

// The lowest bytes of four words.
fn packed(v: vec4<u32>) -> u32 {
    return (v.x & 0xffu) | ((v.y & 0xffu) << 8u) | ((v.z & 0xffu) << 16u) | (v.w << 24u);
}

// The nearest integers, as the lowest bits of a number that ends at one.
fn rounded(v: vec4<f32>, over: f32) -> vec4<u32> {
    return bitcast<vec4<u32>>(v * over + 12582912.0);
}

fn upper_bytes(v: vec4<u32>) -> u32 {
    // The lower byte has a sign.
    return packed((v + vec4<u32>(128u)) >> vec4<u32>(8u));
}

fn total(bytes: vec4<u32>) -> i32 {
    let ones = 0x01010101u;
    return (dot4I8Packed(bytes.x, ones) + dot4I8Packed(bytes.y, ones))
        + (dot4I8Packed(bytes.z, ones) + dot4I8Packed(bytes.w, ones));
}

// Stores `size` vectors of each row of x, of `vectors` in all, as integers, from vector `piece` on.
fn lay_out(piece: u32, size: u32, vectors: u32, tile: u32, local: u32) {
    workgroupBarrier();
    let sixteen = local % SIXTEENS;
    if 4u * sixteen < size {
        let first = row_of_x(tile, local / SIXTEENS) * vectors;
        let at = piece + 4u * sixteen;
        var a = x[first + at];
        var b = x[first + at + 1u];
        var c = x[first + at + 2u];
        var d = x[first + at + 3u];
#if NORMED
        squares += lanes_total((a * a + b * b) + (c * c + d * d));
        a *= more[at];
        b *= more[at + 1u];
        c *= more[at + 2u];
        d *= more[at + 3u];
#endif
        let m = max(max(magnitude(a), magnitude(b)), max(magnitude(c), magnitude(d)));
        let most = max(max(m.x, m.y), max(m.z, m.w));
        var fits = most == 0u || (most >= LEAST_BITS && most <= 0x7e800000u);
#if NORMED
        if most == 0u {
            for (var i = at; i < at + 4u; i++) {
                fits = fits && !has_product(x[first + i], more[i]);
            }
        }
#endif
        // The largest integer whose bytes both have a sign.
        let over = select(32639.0 / bitcast<f32>(most), 0.0, most == 0u);
        let ia = rounded(a, over);
        let ib = rounded(b, over);
        let ic = rounded(c, over);
        let id = rounded(d, over);
        let low = vec4<u32>(packed(ia), packed(ib), packed(ic), packed(id));
        let high = vec4<u32>(upper_bytes(ia), upper_bytes(ib), upper_bytes(ic), upper_bytes(id));
        let to = local - sixteen + spread(sixteen);
        highs[to] = high;
        lows[to] = low;
        let scale = bitcast<u32>(bitcast<f32>(most) / 32639.0);
        scales[to] = vec2<u32>(select(NAN_BITS, scale, fits), bitcast<u32>(256 * total(high) + total(low)));
    }
    workgroupBarrier();
}

// The integers of x that sixteen integers of w are multiplied with.
struct Facing {
    high: vec4<u32>,
    low: vec4<u32>,
    scale: f32,
    total: i32,
}

fn facing(row: u32, at: u32) -> Facing {
    let to = row * SIXTEENS + spread(at);
    let scale = scales[to];
    return Facing(highs[to], lows[to], bitcast<f32>(scale.x), bitcast<i32>(scale.y));
}

// The sum of sixteen products.
fn met(w: vec4<u32>, v: Facing, step: f32, least: f32) -> f32 {
    let q = w ^ vec4<u32>(FLIPPED);
    let high = (dot4I8Packed(q.x, v.high.x) + dot4I8Packed(q.y, v.high.y))
        + (dot4I8Packed(q.z, v.high.z) + dot4I8Packed(q.w, v.high.w));
    let low = (dot4I8Packed(q.x, v.low.x) + dot4I8Packed(q.y, v.low.y))
        + (dot4I8Packed(q.z, v.low.z) + dot4I8Packed(q.w, v.low.w));
#if FORMAT == MXFP4
    return v.scale * (0.25 * f32(256 * high + low) * step * least);
#else
    return v.scale * (step * f32(256 * high + low - BIAS * v.total) - least * f32(v.total));
#endif
}

fn part_product(w: Part, low: Facing, high: Facing) -> f32 {
    return met(w.low, low, w.steps.x, w.steps.y) + met(w.high, high, w.steps.z, w.steps.w);
}

// The parts of four rows of w that are multiplied with the same elements of x, as they are read.
struct Four {
    a: Raw,
    b: Raw,
    c: Raw,
    d: Raw,
}

fn four_of(at: vec4<u32>, part: u32) -> Four {
#if GATED
    is_up = false;
    let a = raw_of(at.x, part);
    let b = raw_of(at.y, part);
    is_up = true;
    return Four(a, b, raw_of(at.z, part), raw_of(at.w, part));
#else
    return Four(raw_of(at.x, part), raw_of(at.y, part), raw_of(at.z, part), raw_of(at.w, part));
#endif
}

// Adds the products of every LANES-th part of the rows that begin at these blocks, with the integers of x.
fn add_parts(begin: vec4<u32>, lane: u32, tile: u32, local: u32) {
    let vectors = p.k_blocks * (LEN / 4u);
    for (var piece = 0u; piece < vectors; piece += PIECE) {
        let size = min(PIECE, vectors - piece);
        lay_out(piece, size, vectors, tile, local);
        for (var i = lane; i < size / 8u; i += LANES) {
            let part = i % PARTS;
            let at = begin + (piece / 8u + i) / PARTS;
            let raw = four_of(at, part);
            let a = unpacked(raw.a, at.x, part);
            let b = unpacked(raw.b, at.y, part);
            let c = unpacked(raw.c, at.z, part);
            let d = unpacked(raw.d, at.w, part);
            let meets = ((i / PARTS) * LEN + place(part)) / 16u;
#for row ROWS
            {
                let low = facing(${row}u, meets);
                let high = facing(${row}u, meets + APART / 16u);
                sums_${row} += vec4<f32>(
                    part_product(a, low, high),
                    part_product(b, low, high),
                    part_product(c, low, high),
                    part_product(d, low, high),
                );
            }
#endfor
        }
    }
}

// The result at a place, from the product.
fn result(product: f32, at: u32) -> f32 {
#if ADDS
    return product + more[at >> 2u][at & 3u];
#else
    return product;
#endif
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
    // Neighbouring workgroups share rows of w.
    var across = number;
    if p.down > 1u {
        across = number / p.down;
    }
    let tile = number - across * p.down;
    if !is_here(tile) {
        return;
    }
    let lane = local % LANES;
    let column = (across * SLOTS + local / LANES) * COLUMNS;
    let begin = weight_rows(tile, vec4<u32>(column) + vec4<u32>(0u, 1u, 2u, 3u) % COLUMNS) * p.k_blocks;
#for r ROWS
    sums_${r} = vec4<f32>(0.0);
#endfor
    add_parts(begin, lane, tile, local);
#if NORMED
    all_squares[local] = squares;
#endif
    for (var i = 0u; i < ROWS; i++) {
        var sums = sums_0;
#for r ROWS
        if i == ${r}u {
            sums = sums_${r};
        }
#endfor
#if NORMED
#else
        let exponents = bitcast<vec4<u32>>(sums) & vec4<u32>(INFINITY_BITS);
        if any(exponents == vec4<u32>(INFINITY_BITS)) {
            sums = sums_of_elements(begin, lane, row_of_x(tile, i));
        }
#endif
        // Sums take the place of what was laid out, because workgroup memory limits how many workgroups run at once.
        workgroupBarrier();
        highs[local] = bitcast<vec4<u32>>(sums);
        workgroupBarrier();
        // Eight lanes add every eighth sum, and the first of them what they have.
        if lane < 8u {
            var some = vec4<f32>(0.0);
            for (var j = 0u; j < LANES; j += 8u) {
                some += bitcast<vec4<f32>>(highs[local + j]);
            }
            highs[local] = bitcast<vec4<u32>>(some);
#if NORMED
            var part = 0.0;
            for (var j = lane; j < ${WORKGROUP}u; j += 8u) {
                part += all_squares[j];
            }
            lows[local] = vec4<u32>(bitcast<u32>(part));
#endif
        }
        workgroupBarrier();
        if lane == 0u {
            let row = row_of_result(tile, i);
            var sum = vec4<f32>(0.0);
            for (var j = 0u; j < 8u; j++) {
                sum += bitcast<vec4<f32>>(highs[local + j]);
            }
#if NORMED
            var all = 0.0;
            for (var j = 0u; j < 8u; j++) {
                all += bitcast<f32>(lows[local + j].x);
            }
            let mean = all / f32(p.k_blocks * LEN) + p.eps;
            sum *= 1.0 / sqrt(mean);
            let is_plain = is_ordinary(mean);
            // A loop that compilers do not unroll: four copies of the code would take more registers.
            var wrong = 0u;
            for (var j = 0u; j < 4u; j++) {
                let is_wrong = !is_plain || (bitcast<u32>(sum[j]) & INFINITY_BITS) == INFINITY_BITS;
                wrong |= select(0u, 1u << j, is_wrong);
            }
            while wrong != 0u {
                let j = firstTrailingBit(wrong);
                wrong &= wrong - 1u;
#if GATED
                is_up = j > 1u;
#endif
                sum[j] = exact_product(begin[j]);
            }
#endif
            let at = row * p.out_row + p.out_first + column;
#if GATED
            let all_finished = vec4<f32>(finished(sum.x), finished(sum.y), finished(sum.z), finished(sum.w));
            let y = op_${GATE}(all_finished, all_finished.zwzw);
            for (var j = 0u; j < COLUMNS; j++) {
                if is_written(tile, row, column + j) {
                    out[at + j] = y[j];
                }
            }
#else
            for (var j = 0u; j < COLUMNS; j++) {
                if is_written(tile, row, column + j) {
                    out[at + j] = result(finished(sum[j]), at + j);
                }
            }
#endif
        }
    }
}
