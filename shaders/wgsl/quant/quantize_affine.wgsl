// Writes f32 as blocks of Q4_K or Q5_K: `fit_affine` of kiln-ir.
//
// A workgroup makes two blocks: for each sub-block of 32 elements sixteen invocations, one a trial. A trial reads the whole
// sub-block from workgroup memory, so that its sums have the order of the reference.
#input x: array<vec4<f32>>
#output out: array<u32>
#param block_count: u32
#param total: u32
#param negative_zero: f32
#constant FORMAT = Q4_K, Q5_K
#include common
#include exact
#include fit

#if FORMAT == Q4_K
const LEVELS: f32 = 15.0;
const WORDS: u32 = 36u;
#else
const LEVELS: f32 = 31.0;
const WORDS: u32 = 44u;
#endif

var<workgroup> tile: array<vec4<f32>, 128>;
var<workgroup> tops: array<atomic<u32>, 2>;
// What each trial came to: the bits of its error, the scale and the minimum.
var<workgroup> errors: array<u32, 256>;
var<workgroup> scales: array<f32, 256>;
var<workgroup> minima: array<f32, 256>;
// What was chosen for each sub-block: scale and minimum, then their codes.
var<workgroup> chosen: array<vec2<f32>, 16>;
// The units of both kinds of codes of each block, as f16.
var<workgroup> unit_words: array<u32, 2>;

// The trial with the least error, the first of equals; TRIALS if none has one.
fn best_of(first: u32, count: u32) -> u32 {
    var best = INFINITY_BITS;
    var at = TRIALS;
    for (var i = 0u; i < count; i++) {
        let error = errors[first + i];
        if error < best {
            best = error;
            at = i;
        }
    }
    return at;
}

fn error_of(first: u32, rms: f32, shift: f32, factor: f32, s: f32, b: f32) -> f32 {
    var even = vec4<f32>(0.0);
    var odd = vec4<f32>(0.0);
    for (var i = 0u; i < 8u; i += 2u) {
        let x0 = tile[first + i];
        let x1 = tile[first + i + 1u];
        even += weighted_error(x0, rms + abs(x0), integers(x0, shift, factor, 0.0, LEVELS), s, b);
        odd += weighted_error(x1, rms + abs(x1), integers(x1, shift, factor, 0.0, LEVELS), s, b);
    }
    return total(even, odd);
}

// The integers of four elements with the codes of their sub-block.
fn coded(vector: u32, sub: u32, units: vec2<f32>) -> u32 {
    let codes = chosen[sub];
    return packed(integers(tile[vector], units.y * codes.y, inverse(units.x * codes.x), 0.0, LEVELS));
}

fn code_byte(block: u32, sub: u32, minimum: bool) -> u32 {
    let codes = chosen[8u * block + sub];
    return u32(select(codes.x, codes.y, minimum));
}

// Four codes of a kind, the lower sub-blocks' whole, with two bits of the upper ones' above.
fn code_word(block: u32, minimum: bool) -> u32 {
    var word = 0u;
    for (var i = 0u; i < 4u; i++) {
        word |= (code_byte(block, i, minimum) | ((code_byte(block, i + 4u, minimum) >> 4u) << 6u)) << (8u * i);
    }
    return word;
}

fn lower_codes(block: u32) -> u32 {
    var word = 0u;
    for (var i = 4u; i < 8u; i++) {
        let codes = (code_byte(block, i, false) & 15u) | ((code_byte(block, i, true) & 15u) << 4u);
        word |= codes << (8u * (i - 4u));
    }
    return word;
}

fn word_of(block: u32, i: u32) -> u32 {
    if i == 0u {
        return unit_words[block];
    }
    if i == 1u || i == 2u {
        return code_word(block, i == 2u);
    }
    if i == 3u {
        return lower_codes(block);
    }
    let units = unpack2x16float(unit_words[block]) * lift_of(atomicLoad(&tops[block]));
#if FORMAT == Q5_K
    if i < 12u {
        var word = 0u;
        for (var sub = 0u; sub < 8u; sub++) {
            let q = coded(64u * block + 8u * sub + i - 4u, 8u * block + sub, units);
            word |= ((q >> 4u) & 0x01010101u) << sub;
        }
        return word;
    }
    let j = i - 12u;
#else
    let j = i - 4u;
#endif
    // A pair of sub-blocks, and four elements in each.
    let pair = j / 8u;
    let vector = 64u * block + 16u * pair + j % 8u;
    let low = coded(vector, 8u * block + 2u * pair, units) & 0x0f0f0f0fu;
    let high = coded(vector + 8u, 8u * block + 2u * pair + 1u, units) & 0x0f0f0f0fu;
    return low | (high << 4u);
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
    let first_block = 2u * number;
    if local < 2u {
        atomicStore(&tops[local], 0u);
    }
    workgroupBarrier();
    let loads = local < 128u && first_block + local / 64u < p.block_count;
    var loaded = vec4<f32>(0.0);
    if loads {
        loaded = x[first_block * 64u + local];
        atomicMax(&tops[local / 64u], top_of(loaded));
    }
    workgroupBarrier();
    if local < 128u {
        tile[local] = lifted(loaded, lift_of(atomicLoad(&tops[local / 64u])));
    }
    workgroupBarrier();

    // The scale and the minimum that each of sixteen steps leads to, by least squares.
    let block = local / 128u;
    let sub = local / 16u;
    let trial = local % 16u;
    let first = 8u * sub;
    let top = atomicLoad(&tops[block]);
    let lift = lift_of(top);
    var lo = 0.0;
    var hi = -3.4028234663852886e38;
    var even = vec4<f32>(0.0);
    var odd = vec4<f32>(0.0);
    for (var i = 0u; i < 8u; i += 2u) {
        let x0 = tile[first + i];
        let x1 = tile[first + i + 1u];
        let least = min(x0, x1);
        let most = max(x0, x1);
        lo = min(lo, min(min(least.x, least.y), min(least.z, least.w)));
        hi = max(hi, max(max(most.x, most.y), max(most.z, most.w)));
        even += times_each(x0, x0);
        odd += times_each(x1, x1);
    }
    let rms = exact_root(total(even, odd) * 0.03125);
    var error = INFINITY_BITS;
    var scale = 0.0;
    var minimum = 0.0;
    if hi > lo {
        var w_even = vec4<f32>(0.0);
        var w_odd = vec4<f32>(0.0);
        var x_even = vec4<f32>(0.0);
        var x_odd = vec4<f32>(0.0);
        var q_even = vec4<f32>(0.0);
        var q_odd = vec4<f32>(0.0);
        var qq_even = vec4<f32>(0.0);
        var qq_odd = vec4<f32>(0.0);
        var xq_even = vec4<f32>(0.0);
        var xq_odd = vec4<f32>(0.0);
        let factor = exact_quotient(LEVELS + (f32(trial) - 8.0) * 0.125, hi - lo);
        for (var i = 0u; i < 8u; i += 2u) {
            let x0 = tile[first + i];
            let w0 = rms + abs(x0);
            let wx0 = times_each(w0, x0);
            let q0 = integers(x0, -lo, factor, 0.0, LEVELS);
            let wq0 = times_each(w0, q0);
            w_even += w0;
            x_even += wx0;
            q_even += wq0;
            qq_even += times_each(wq0, q0);
            xq_even += times_each(wx0, q0);
            let x1 = tile[first + i + 1u];
            let w1 = rms + abs(x1);
            let wx1 = times_each(w1, x1);
            let q1 = integers(x1, -lo, factor, 0.0, LEVELS);
            let wq1 = times_each(w1, q1);
            w_odd += w1;
            x_odd += wx1;
            q_odd += wq1;
            qq_odd += times_each(wq1, q1);
            xq_odd += times_each(wx1, q1);
        }
        let sum_w = total(w_even, w_odd);
        let sum_x = total(x_even, x_odd);
        let sum_q = total(q_even, q_odd);
        let sum_qq = total(qq_even, qq_odd);
        let sum_xq = total(xq_even, xq_odd);
        let determinant = times(sum_w, sum_qq) - times(sum_q, sum_q);
        var s = 0.0;
        var b = 1.0;
        if determinant > times(1e-4, times(sum_w, sum_qq)) {
            s = exact_quotient(times(sum_w, sum_xq) - times(sum_x, sum_q), determinant);
            b = exact_quotient(times(sum_qq, sum_x) - times(sum_q, sum_xq), determinant);
        }
        if b > 0.0 {
            b = 0.0;
            s = 0.0;
            if sum_qq > 0.0 {
                s = exact_quotient(sum_xq, sum_qq);
            }
        }
        if s >= 0.0 {
            error = bitcast<u32>(error_of(first, rms, -lo, factor, s, b));
            scale = s;
            minimum = -b;
        }
    }
    errors[local] = error;
    scales[local] = scale;
    minima[local] = minimum;
    workgroupBarrier();
    if trial == 0u {
        let best = best_of(local, TRIALS);
        var fit = vec2<f32>(0.0, -lo);
        if best < TRIALS {
            fit = vec2<f32>(scales[local + best], minima[local + best]);
        }
        chosen[sub] = fit;
    }
    workgroupBarrier();

    // Codes of both in units of the largest, and the neighbours of the codes.
    var largest = vec2<f32>(0.0);
    for (var i = 0u; i < 8u; i++) {
        largest = max(largest, chosen[8u * block + i]);
    }
    let lowering = lowering_of(lift);
    var bits = vec2<u32>(0u);
    if largest.x > 0.0 {
        bits.x = unit_bits(exact_quotient(largest.x, 63.0), lowering);
    }
    if largest.y > 0.0 {
        bits.y = unit_bits(exact_quotient(largest.y, 63.0), lowering);
    }
    let unit_word = bits.x | (bits.y << 16u);
    let units = unpack2x16float(unit_word) * lift;
    let scale_code = round(clamp(times(chosen[sub].x, inverse(units.x)), 0.0, 63.0));
    let minimum_code = round(clamp(times(chosen[sub].y, inverse(units.y)), 0.0, 63.0));
    error = INFINITY_BITS;
    scale = clamp(scale_code + neighbour(trial / 3u), 0.0, 63.0);
    minimum = clamp(minimum_code + neighbour(trial % 3u), 0.0, 63.0);
    if trial < 9u {
        let step = units.x * scale;
        let offset = units.y * minimum;
        error = bitcast<u32>(error_of(first, rms, offset, inverse(step), step, -offset));
    }
    workgroupBarrier();
    errors[local] = error;
    scales[local] = scale;
    minima[local] = minimum;
    workgroupBarrier();
    if trial == 0u {
        let best = local + best_of(local, 9u) % TRIALS;
        chosen[sub] = vec2<f32>(scales[best], minima[best]);
    }
    if local % 128u == 0u {
        unit_words[block] = unit_word;
    }
    workgroupBarrier();

    // A workgroup writes whole words, as both formats are.
    if local < 2u * WORDS {
        let written = local / WORDS;
        let i = local % WORDS;
        var word = 0u;
        if atomicLoad(&tops[written]) < INFINITY_BITS {
            word = word_of(written, i);
        } else if i == 0u {
            word = NOT_FINITE;
        }
        if first_block + written < p.block_count {
            out[first_block * WORDS + local] = word;
        }
    }
}
