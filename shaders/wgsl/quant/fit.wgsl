// The search for scales of kiln-ir's quantiser, step for step: the bytes must be the same.
//
// A block is 64 vectors in workgroup memory; sums run over eight lanes, the even vectors of a sub-block and the odd ones.

const NOT_FINITE: u32 = 0x7e00u;
// More than any format holds, and half of the smallest step that a format has.
const MOST: f32 = 1073741824.0;
const LEAST: f32 = 2.9802322387695312e-8;
const TRIALS: u32 = 16u;

fn total(even: vec4<f32>, odd: vec4<f32>) -> f32 {
    let four = even + odd;
    return (four.x + four.z) + (four.y + four.w);
}

// Magnitudes as integers order as they do as numbers, and NaN is above infinity.
fn top_of(x: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// The factor of the elements of a block, so that the search neither overflows nor underflows: a power of two that takes
// the largest magnitude to 2^29..2^30. Zero for a block that is not finite or below all steps.
fn lift_of(top: u32) -> f32 {
    let largest = min(top, bitcast<u32>(MOST));
    if top >= INFINITY_BITS || largest < bitcast<u32>(LEAST) {
        return 0.0;
    }
    return bitcast<f32>((283u << 23u) - (largest & 0x7f800000u));
}

// Takes back a lift.
fn lowering_of(lift: f32) -> f32 {
    return bitcast<f32>((254u << 23u) - bitcast<u32>(lift));
}

// Elements times the lift; those below 1 are beyond the reach of the search and are zero.
fn lifted(x: vec4<f32>, lift: f32) -> vec4<f32> {
    if lift == 0.0 {
        return vec4<f32>(0.0);
    }
    let y = clamp(x, vec4<f32>(-MOST), vec4<f32>(MOST)) * lift;
    return select(y, vec4<f32>(0.0), abs(y) < vec4<f32>(1.0));
}

// 1 / step, or 0 for a step that is 0.
fn inverse(step: f32) -> f32 {
    if step == 0.0 {
        return 0.0;
    }
    return exact_quotient(1.0, step);
}

fn integers(x: vec4<f32>, shift: f32, factor: f32, lo: f32, hi: f32) -> vec4<f32> {
    return round(clamp(times_each(x + shift, vec4<f32>(factor)), vec4<f32>(lo), vec4<f32>(hi)));
}

// w (x - (s q + b))^2
fn weighted_error(x: vec4<f32>, w: vec4<f32>, q: vec4<f32>, s: f32, b: f32) -> vec4<f32> {
    let off = x - (times_each(vec4<f32>(s), q) + b);
    return times_each(w, times_each(off, off));
}

// The offset of a code that a trial looks at: 0, -1 and 1.
fn neighbour(trial: u32) -> f32 {
    return select(select(0.0, -1.0, trial == 1u), 1.0, trial == 2u);
}

// Four integers as the bytes of a word.
fn packed(q: vec4<f32>) -> u32 {
    let bytes = (bitcast<vec4<u32>>(vec4<i32>(q)) & vec4<u32>(255u)) << vec4<u32>(0u, 8u, 16u, 24u);
    return (bytes.x | bytes.y) | (bytes.z | bytes.w);
}
