// Writes f32 as blocks of 256 elements with scales of sub-blocks: `fit_symmetric` of kiln-ir.
//
// A workgroup makes two blocks, which may share a word, one after the other: for each sub-block sixteen invocations, one a
// trial. A trial reads the whole sub-block from workgroup memory, so that its sums have the order of the
// reference.
#input x: array<vec4<f32>>
#output out: array<u32>
#param block_count: u32
#param words: u32
#param total: u32
#param negative_zero: f32
#constant FORMAT = Q3_K, Q6_K, IQ4_XS
#include common
#include exact
#include fit
#include grid

// Vectors of a sub-block, and words of two blocks.
const VECTORS: u32 = 64u / SUBS;
const PAIR: u32 = 2u * WORDS - u32(ENDS_IN_HALF);

var<workgroup> tile: array<vec4<f32>, 64>;
var<workgroup> top: atomic<u32>;
// The result of each trial: the bits of its error and the scale.
var<workgroup> errors: array<u32, 256>;
var<workgroup> scales: array<f32, 256>;
// The choice for each sub-block: the scale, then its code.
var<workgroup> chosen: array<f32, 16>;
var<workgroup> block_words: array<u32, 2u * WORDS>;

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
    for (var i = 0u; i < VECTORS; i += 2u) {
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

#if FORMAT == Q3_K
#include write_q3_k
#endif
#if FORMAT == Q6_K
#include write_q6_k
#endif
#if FORMAT == IQ4_XS
#include write_iq4_xs
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
    // Invocations beyond the last sub-block repeat it.
    let sub = min(local / 16u, SUBS - 1u);
    let decides = local % 16u == 0u && local < 16u * SUBS;
    let trial = local % 16u;
    let first = VECTORS * sub;
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
        for (var i = 0u; i < VECTORS; i += 2u) {
            let x0 = tile[first + i];
            let x1 = tile[first + i + 1u];
            extreme = extreme_of(extreme_of(extreme, x0), x1);
            even += times_each(x0, x0);
            odd += times_each(x1, x1);
        }
        let rms = exact_root(total(even, odd) * (0.25 / f32(VECTORS)));
        var error = INFINITY_BITS;
        var scale = 0.0;
        if extreme != 0.0 {
            let factor = factor_of(trial, extreme);
            var xq_even = vec4<f32>(0.0);
            var xq_odd = vec4<f32>(0.0);
            var qq_even = vec4<f32>(0.0);
            var qq_odd = vec4<f32>(0.0);
            for (var i = 0u; i < VECTORS; i += 2u) {
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
        if decides {
            let best = best_of(local, TRIALS);
            chosen[sub] = select(0.0, scales[local + best % TRIALS], best < TRIALS);
        }
        workgroupBarrier();

        // Codes in units of the largest, which takes the least code, and the neighbours of the codes.
        extreme = 0.0;
        for (var i = 0u; i < SUBS; i += 4u) {
            extreme = extreme_of(extreme, vec4<f32>(chosen[i], chosen[i + 1u], chosen[i + 2u], chosen[i + 3u]));
        }
        let sign = select(0u, 0x8000u, extreme > 0.0);
        let unit_word = unit_bits(abs(extreme) * (-1.0 / LEAST_CODE), lowering_of(lift)) | sign;
        let unit = unpack2x16float(unit_word).x * lift;
        let code = round(clamp(times(chosen[sub], inverse(unit)), LEAST_CODE, -LEAST_CODE - 1.0));
        error = INFINITY_BITS;
        scale = clamp(code + neighbour(trial), LEAST_CODE, -LEAST_CODE - 1.0);
        if trial < 3u {
            let step = unit * scale;
            error = bitcast<u32>(error_of(first, rms, inverse(step), step));
        }
        workgroupBarrier();
        errors[local] = error;
        scales[local] = scale;
        workgroupBarrier();
        if decides {
            chosen[sub] = scales[local + best_of(local, 3u) % TRIALS];
        }
        workgroupBarrier();
        if local < WORDS {
            var word = 0u;
            if block_top < INFINITY_BITS {
                word = word_of(local, unit_word, unit);
            } else if local == UNIT_WORD {
                word = NOT_FINITE;
            }
            block_words[side * WORDS + local] = word;
        }
    }
    workgroupBarrier();
    // The second block may begin in the middle of a word.
    if local < PAIR && number * PAIR + local < p.words {
        var word = block_words[local];
        if ENDS_IN_HALF && local >= WORDS - 1u {
            let before = select(block_words[local] >> 16u, block_words[local] & 0xffffu, local == WORDS - 1u);
            word = before | (block_words[min(local + 1u, 2u * WORDS - 1u)] << 16u);
        }
        out[number * PAIR + local] = word;
    }
}
