// Writes f32 as blocks of 256 elements with scales and minima of sub-blocks: `fit_affine` of kiln-ir.
//
// A workgroup makes sixteen sub-blocks, which are one or two blocks: for each sixteen invocations, one a trial. A trial reads the whole
// sub-block from workgroup memory, so that its sums have the order of the reference.
#input x: array<vec4<f32>>
#output out: array<u32>
#param block_count: u32
#param total: u32
#param negative_zero: f32
#constant FORMAT = Q2_K, Q4_K, Q5_K
#include common
#include exact
#include fit

#if FORMAT == Q2_K
const LEVELS: f32 = 3.0;
const WORDS: u32 = 21u;
const UNIT_WORD: u32 = 20u;
const SUBS: u32 = 16u;
const MOST_CODE: f32 = 15.0;
#else
#if FORMAT == Q4_K
const LEVELS: f32 = 15.0;
const WORDS: u32 = 36u;
#else
const LEVELS: f32 = 31.0;
const WORDS: u32 = 44u;
#endif
const UNIT_WORD: u32 = 0u;
const SUBS: u32 = 8u;
const MOST_CODE: f32 = 63.0;
#endif
// Blocks of a workgroup, and vectors of a sub-block.
const BLOCKS: u32 = 16u / SUBS;
const VECTORS: u32 = 64u / SUBS;

var<workgroup> tile: array<vec4<f32>, 128>;
var<workgroup> tops: array<atomic<u32>, 2>;
// The result of each trial: the bits of its error, the scale and the minimum.
var<workgroup> errors: array<u32, 256>;
var<workgroup> scales: array<f32, 256>;
var<workgroup> minima: array<f32, 256>;
// The choice for each sub-block: scale and minimum, then their codes.
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
    for (var i = 0u; i < VECTORS; i += 2u) {
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
    let codes = chosen[SUBS * block + sub];
    return u32(select(codes.x, codes.y, minimum));
}

#if FORMAT == Q2_K
#include write_q2_k
#else
#include write_q4_k
#endif

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
    let first_block = BLOCKS * number;
    if local < 2u {
        atomicStore(&tops[local], 0u);
    }
    workgroupBarrier();
    let loads = local < 64u * BLOCKS && first_block + local / 64u < p.block_count;
    var loaded = vec4<f32>(0.0);
    if loads {
        loaded = x[first_block * 64u + local];
        atomicMax(&tops[local / 64u], top_of(loaded));
    }
    workgroupBarrier();
    if local < 64u * BLOCKS {
        tile[local] = lifted(loaded, lift_of(atomicLoad(&tops[local / 64u])));
    }
    workgroupBarrier();

    // The scale and the minimum that each of sixteen steps leads to, by least squares.
    let block = local / (16u * SUBS);
    let sub = local / 16u;
    let trial = local % 16u;
    let first = VECTORS * sub;
    let top = atomicLoad(&tops[block]);
    let lift = lift_of(top);
    var lo = 0.0;
#include line_range
    var error = INFINITY_BITS;
    var scale = 0.0;
    var minimum = 0.0;
    if hi > lo {
#include line_sums
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
    for (var i = 0u; i < SUBS; i++) {
        largest = max(largest, chosen[SUBS * block + i]);
    }
    let lowering = lowering_of(lift);
    var bits = vec2<u32>(0u);
    if largest.x > 0.0 {
        bits.x = unit_bits(exact_quotient(largest.x, MOST_CODE), lowering);
    }
    if largest.y > 0.0 {
        bits.y = unit_bits(exact_quotient(largest.y, MOST_CODE), lowering);
    }
    let unit_word = bits.x | (bits.y << 16u);
    let units = unpack2x16float(unit_word) * lift;
    let scale_code = round(clamp(times(chosen[sub].x, inverse(units.x)), 0.0, MOST_CODE));
    let minimum_code = round(clamp(times(chosen[sub].y, inverse(units.y)), 0.0, MOST_CODE));
    error = INFINITY_BITS;
    scale = clamp(scale_code + neighbour(trial / 3u), 0.0, MOST_CODE);
    minimum = clamp(minimum_code + neighbour(trial % 3u), 0.0, MOST_CODE);
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
    if local % (16u * SUBS) == 0u {
        unit_words[block] = unit_word;
    }
    workgroupBarrier();

    // A workgroup writes whole words, as blocks of all these formats are.
    if local < BLOCKS * WORDS {
        let written = local / WORDS;
        let i = local % WORDS;
        var word = 0u;
        if atomicLoad(&tops[written]) < INFINITY_BITS {
            word = word_of(written, i);
        } else if i == UNIT_WORD {
            word = NOT_FINITE;
        }
        if first_block + written < p.block_count {
            out[first_block * WORDS + local] = word;
        }
    }
}
