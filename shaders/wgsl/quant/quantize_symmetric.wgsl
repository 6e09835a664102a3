// Writes f32 as blocks of Q6_K: `fit_symmetric` of kiln-ir.
//
// A workgroup makes two blocks, which share a word, one after the other: for each sub-block of 16 elements sixteen
// invocations, one a trial. A trial reads the whole sub-block from workgroup memory, so that its sums have the order of the
// reference.
#input x: array<vec4<f32>>
#output out: array<u32>
#param block_count: u32
#param words: u32
#param total: u32
#param negative_zero: f32
#constant FORMAT = Q6_K
#include common
#include exact
#include fit
#include grid

// Words of two blocks, and the words of one, the last half full.
const PAIR: u32 = 105u;
const WORDS: u32 = 53u;

var<workgroup> tile: array<vec4<f32>, 64>;
var<workgroup> top: atomic<u32>;
// What each trial came to: the bits of its error and the scale.
var<workgroup> errors: array<u32, 256>;
var<workgroup> scales: array<f32, 256>;
// What was chosen for each sub-block: the scale, then its code.
var<workgroup> chosen: array<f32, 16>;
var<workgroup> block_words: array<u32, 106>;

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

fn error_of(first: u32, rms: f32, factor: f32, s: f32) -> f32 {
    var even = vec4<f32>(0.0);
    var odd = vec4<f32>(0.0);
    for (var i = 0u; i < 4u; i += 2u) {
        let x0 = tile[first + i];
        let x1 = tile[first + i + 1u];
        even += weighted_error(x0, rms + abs(x0), on_grid(x0, factor), s, 0.0);
        odd += weighted_error(x1, rms + abs(x1), on_grid(x1, factor), s, 0.0);
    }
    return total(even, odd);
}

// The integers of four elements of sub-block `sub`, plus 32.
fn coded(vector: u32, sub: u32, unit: f32) -> u32 {
    return integers_of(on_grid(tile[vector], inverse(unit * chosen[sub])));
}

// Word `i` of a block; the unit is the last half word.
fn word_of(i: u32, unit_word: u32, unit: f32) -> u32 {
    if i < 32u {
        // Low nibbles: row `row` of a half, and the row after the next above it.
        let row = (i / 8u) % 2u;
        let vector = 32u * (i / 16u) + 8u * row + i % 8u;
        let low = coded(vector, vector / 4u, unit) & 0x0f0f0f0fu;
        let high = coded(vector + 16u, vector / 4u + 4u, unit) & 0x0f0f0f0fu;
        return low | (high << 4u);
    }
    if i < 48u {
        // Two high bits of each of the four rows of a half.
        var word = 0u;
        for (var row = 0u; row < 4u; row++) {
            let vector = 32u * ((i - 32u) / 8u) + 8u * row + i % 8u;
            word |= ((coded(vector, vector / 4u, unit) >> 4u) & 0x03030303u) << (2u * row);
        }
        return word;
    }
    if i < 52u {
        var word = 0u;
        for (var j = 0u; j < 4u; j++) {
            word |= (bitcast<u32>(i32(chosen[4u * (i - 48u) + j])) & 255u) << (8u * j);
        }
        return word;
    }
    return unit_word;
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
    let sub = local / 16u;
    let trial = local % 16u;
    let first = 4u * sub;
    for (var side = 0u; side < 2u; side++) {
        let block = 2u * number + side;
        workgroupBarrier();
        if local == 0u {
            atomicStore(&top, 0u);
        }
        workgroupBarrier();
        var loaded = vec4<f32>(0.0);
        if local < 64u && block < p.block_count {
            loaded = x[block * 64u + local];
            atomicMax(&top, top_of(loaded));
        }
        workgroupBarrier();
        let block_top = atomicLoad(&top);
        let lift = lift_of(block_top);
        if local < 64u {
            tile[local] = lifted(loaded, lift);
        }
        workgroupBarrier();

        // The scale that each of sixteen steps leads to, by least squares.
        var extreme = 0.0;
        var even = vec4<f32>(0.0);
        var odd = vec4<f32>(0.0);
        for (var i = 0u; i < 4u; i += 2u) {
            let x0 = tile[first + i];
            let x1 = tile[first + i + 1u];
            extreme = extreme_of(extreme_of(extreme, x0), x1);
            even += times_each(x0, x0);
            odd += times_each(x1, x1);
        }
        let rms = exact_root(total(even, odd) * 0.0625);
        var error = INFINITY_BITS;
        var scale = 0.0;
        if extreme != 0.0 {
            let factor = factor_of(trial, extreme);
            var xq_even = vec4<f32>(0.0);
            var xq_odd = vec4<f32>(0.0);
            var qq_even = vec4<f32>(0.0);
            var qq_odd = vec4<f32>(0.0);
            for (var i = 0u; i < 4u; i += 2u) {
                let x0 = tile[first + i];
                let w0 = rms + abs(x0);
                let q0 = on_grid(x0, factor);
                xq_even += times_each(times_each(w0, x0), q0);
                qq_even += times_each(times_each(w0, q0), q0);
                let x1 = tile[first + i + 1u];
                let w1 = rms + abs(x1);
                let q1 = on_grid(x1, factor);
                xq_odd += times_each(times_each(w1, x1), q1);
                qq_odd += times_each(times_each(w1, q1), q1);
            }
            scale = exact_quotient(total(xq_even, xq_odd), total(qq_even, qq_odd));
            error = bitcast<u32>(error_of(first, rms, factor, scale));
        }
        errors[local] = error;
        scales[local] = scale;
        workgroupBarrier();
        if trial == 0u {
            let best = best_of(local, TRIALS);
            chosen[sub] = select(0.0, scales[local + best % TRIALS], best < TRIALS);
        }
        workgroupBarrier();

        // Codes in units of the largest, which takes the code -128, and the neighbours of the codes.
        extreme = 0.0;
        for (var i = 0u; i < 16u; i += 4u) {
            extreme = extreme_of(extreme, vec4<f32>(chosen[i], chosen[i + 1u], chosen[i + 2u], chosen[i + 3u]));
        }
        let sign = select(0u, 0x8000u, extreme > 0.0);
        let unit_word = unit_bits(abs(extreme) * 0.0078125, lowering_of(lift)) | sign;
        let unit = unpack2x16float(unit_word).x * lift;
        let code = round(clamp(times(chosen[sub], inverse(unit)), -128.0, 127.0));
        error = INFINITY_BITS;
        scale = clamp(code + neighbour(trial), -128.0, 127.0);
        if trial < 3u {
            let step = unit * scale;
            error = bitcast<u32>(error_of(first, rms, inverse(step), step));
        }
        workgroupBarrier();
        errors[local] = error;
        scales[local] = scale;
        workgroupBarrier();
        if trial == 0u {
            chosen[sub] = scales[local + best_of(local, 3u) % TRIALS];
        }
        workgroupBarrier();
        if local < WORDS {
            var word = 0u;
            if block_top < INFINITY_BITS {
                word = word_of(local, unit_word, unit);
            } else if local == WORDS - 1u {
                word = NOT_FINITE;
            }
            block_words[side * WORDS + local] = word;
        }
    }
    workgroupBarrier();
    // The second block begins in the middle of a word.
    if local < PAIR && number * PAIR + local < p.words {
        var word = block_words[local];
        if local >= WORDS - 1u {
            let before = select(block_words[local] >> 16u, block_words[local] & 0xffffu, local == WORDS - 1u);
            word = before | (block_words[local + 1u] << 16u);
        }
        out[number * PAIR + local] = word;
    }
}
