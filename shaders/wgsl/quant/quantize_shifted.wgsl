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

// Vectors of a block.
const VECTORS: u32 = 8u;
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
#include line_range
    var error = INFINITY_BITS;
    var fit = vec2<f32>(0.0);
    if hi > lo {
#include line_sums
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
            for (var i = 0u; i < VECTORS; i += 2u) {
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
