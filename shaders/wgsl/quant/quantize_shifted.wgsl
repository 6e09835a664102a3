// Writes f32 as blocks of 32 elements with one scale and one offset: `fit_shifted` of kiln-ir. Sixteen invocations have a
// block, a trial each. A trial reads the whole block from workgroup memory, so that its sums have the order of the reference.
#input x: array<vec4<f32>>
#output out: array<u32>
#param block_count: u32
#param words: u32
#param total: u32
#param negative_zero: f32
#constant FORMAT = Q4_1, Q5_1
#include common
#include exact
#include fit

// Halves of words of units and of fifth bits.
const UNITS: u32 = 2u;
#if FORMAT == Q5_1
const LEVELS: f32 = 31.0;
const FIFTHS: u32 = 2u;
#else
const LEVELS: f32 = 15.0;
const FIFTHS: u32 = 0u;
#endif
#include whole_blocks

var<workgroup> fits: array<vec2<f32>, 256>;

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

    // The scale and the minimum that each of sixteen steps leads to, by least squares.
    var lo = 3.4028234663852886e38;
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
    var fit = vec2<f32>(0.0);
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
        var b = 0.0;
        if determinant > times(1e-4, times(sum_w, sum_qq)) {
            s = exact_quotient(times(sum_w, sum_xq) - times(sum_x, sum_q), determinant);
            b = exact_quotient(times(sum_qq, sum_x) - times(sum_q, sum_xq), determinant);
        } else if sum_qq > 0.0 {
            s = exact_quotient(sum_xq, sum_qq);
        }
        if s >= 0.0 {
            even = vec4<f32>(0.0);
            odd = vec4<f32>(0.0);
            for (var i = 0u; i < 8u; i += 2u) {
                let x0 = tile[first + i];
                let x1 = tile[first + i + 1u];
                even += weighted_error(x0, rms + abs(x0), integers(x0, -lo, factor, 0.0, LEVELS), s, b);
                odd += weighted_error(x1, rms + abs(x1), integers(x1, -lo, factor, 0.0, LEVELS), s, b);
            }
            error = bitcast<u32>(total(even, odd));
            fit = vec2<f32>(s, -b);
        }
    }
    errors[local] = error;
    fits[local] = fit;
    workgroupBarrier();
    let best = best_of(16u * block);
    if best < TRIALS {
        fit = fits[16u * block + best];
    } else if hi <= lo && lo > 0.0 {
        fit = vec2<f32>(exact_quotient(lo, LEVELS), 0.0);
    } else {
        fit = vec2<f32>(0.0, -lo);
    }
    let lowering = lowering_of(lift);
    let offset_bits = unit_bits(abs(fit.y), lowering) | select(0u, 0x8000u, fit.y > 0.0);
    let units = unit_bits(fit.x, lowering) | (offset_bits << 16u);
    if trial < 8u {
        let steps = unpack2x16float(units) * lift;
        integer_words[first + trial] = packed(integers(tile[first + trial], -steps.y, inverse(steps.x), 0.0, LEVELS));
    }
    write_out(number, local, units);
}
