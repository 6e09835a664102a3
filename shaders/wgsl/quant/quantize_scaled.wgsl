// Writes f32 as blocks of 32 elements with one scale: `fit_scaled` of kiln-ir. Sixteen invocations have a block, a trial each.
// A trial reads the whole block from workgroup memory, so that its sums have the order of the reference.
#input x: array<vec4<f32>>
#output out: array<u32>
#param block_count: u32
#param words: u32
#param total: u32
#param negative_zero: f32
#constant FORMAT = Q4_0, Q5_0, IQ4_NL
#include common
#include exact
#include fit
#include grid

// Halves of words of units and of fifth bits.
const UNITS: u32 = 1u;
#if FORMAT == Q5_0
const FIFTHS: u32 = 2u;
#else
const FIFTHS: u32 = 0u;
#endif
#include whole_blocks

var<workgroup> scales: array<f32, 256>;

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
    lay_out(16u * number, local);
    let block = local / 16u;
    let trial = local % 16u;
    let first = 8u * block;
    let lift = lift_of(atomicLoad(&tops[block]));

    // The scale that each of sixteen steps leads to, by least squares.
    var extreme = 0.0;
    var even = vec4<f32>(0.0);
    var odd = vec4<f32>(0.0);
    for (var i = 0u; i < 8u; i += 2u) {
        let x0 = tile[first + i];
        let x1 = tile[first + i + 1u];
        extreme = extreme_of(extreme_of(extreme, x0), x1);
        even += times_each(x0, x0);
        odd += times_each(x1, x1);
    }
    let rms = exact_root(total(even, odd) * 0.03125);
    var error = INFINITY_BITS;
    var scale = 0.0;
    if extreme != 0.0 {
        let factor = factor_of(trial, extreme);
        var xq_even = vec4<f32>(0.0);
        var xq_odd = vec4<f32>(0.0);
        var qq_even = vec4<f32>(0.0);
        var qq_odd = vec4<f32>(0.0);
        for (var i = 0u; i < 8u; i += 2u) {
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
        even = vec4<f32>(0.0);
        odd = vec4<f32>(0.0);
        for (var i = 0u; i < 8u; i += 2u) {
            let x0 = tile[first + i];
            let x1 = tile[first + i + 1u];
            even += weighted_error(x0, rms + abs(x0), on_grid(x0, factor), scale, 0.0);
            odd += weighted_error(x1, rms + abs(x1), on_grid(x1, factor), scale, 0.0);
        }
        error = bitcast<u32>(total(even, odd));
    }
    errors[local] = error;
    scales[local] = scale;
    workgroupBarrier();
    let best = best_of(16u * block);
    scale = select(0.0, scales[16u * block + best % TRIALS], best < TRIALS);
    let unit = unit_bits(abs(scale), lowering_of(lift)) | select(0u, 0x8000u, scale < 0.0);
    if trial < 8u {
        let factor = inverse(unpack2x16float(unit).x * lift);
        integer_words[first + trial] = integers_of(on_grid(tile[first + trial], factor));
    }
    write_out(number, local, unit);
}
