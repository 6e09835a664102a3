// The element-wise functions: `op_` and the name in the table of kiln-ir, operands first, then parameters.
#include math
#include angle
#include power

fn op_add(a: V, b: V) -> V { return a + b; }
fn op_sub(a: V, b: V) -> V { return a - b; }
fn op_mul(a: V, b: V) -> V { return a * b; }
fn op_div(a: V, b: V) -> V {
    // Where the reciprocal of the largest divisors is zero, an infinity divided by one of them would be NaN.
    let infinite = bitcast<V>(((bits(a) ^ bits(b)) & Bits(0x80000000u)) | Bits(0x7f800000u));
    return select(quotient(a, b), infinite, infinities(a) & !(infinities(b) | nans(b)));
}
// Of zeros the sign of the lesser is the union, that of the greater the intersection.
fn op_min(a: V, b: V) -> V {
    let y = select(select(b, a, a < b), bitcast<V>(bits(a) | bits(b)), zeros(a) & zeros(b));
    return keeping_nan(keeping_nan(y, a), b);
}
fn op_max(a: V, b: V) -> V {
    let y = select(select(b, a, a > b), bitcast<V>(bits(a) & bits(b)), zeros(a) & zeros(b));
    return keeping_nan(keeping_nan(y, a), b);
}
fn op_neg(x: V) -> V { return bitcast<V>(bits(x) ^ Bits(0x80000000u)); }
fn op_abs(x: V) -> V { return bitcast<V>(bits(x) & Bits(0x7fffffffu)); }
fn op_sqrt(x: V) -> V {
    let y = select(sqrt(x), x, zeros(x) | (infinities(x) & (x > V(0.0))));
    return select(y, nan_of(x), (x < V(0.0)) | nans(x));
}
fn op_rsqrt(x: V) -> V {
    let tiny = x < V(1.1754944e-38);
    let root = inverseSqrt(select(x, x * 16777216.0, tiny)) * select(V(1.0), V(4096.0), tiny);
    let y = select(select(root, V(0.0), infinities(x)), infinity_signed_as(x), zeros(x));
    return select(y, nan_of(x), (x < V(0.0)) | nans(x));
}
fn op_recip(x: V) -> V { return quotient(V(1.0), x); }
fn op_exp(x: V) -> V { return keeping_nan(exp_of(x), x); }
fn op_ln(x: V) -> V { return ln_of(x); }
fn op_scale(x: V, factor: f32) -> V { return factor * x; }
fn op_clip(x: V, lo: f32, hi: f32) -> V { return op_min(op_max(x, V(lo)), V(hi)); }
fn op_fma(a: V, b: V, c: V) -> V {
    // Where the device rounds twice, a product that overflows must not meet an infinity.
    return select(fma(a, b, c), c, infinities(c) & !infinities(a) & !infinities(b) & !nans(a) & !nans(b));
}
fn op_lerp(a: V, b: V, t: f32) -> V {
    // Where b - a overflows though both are finite, twice the half of it does not.
    let difference = b - a;
    let apart = infinities(difference);
    let half = b * 0.5 - a * 0.5;
    return select(a + t * difference, a + (t + t) * half, apart);
}
fn op_relu(x: V) -> V { return keeping_nan(select(V(0.0), x, x > V(0.0)), x); }
fn op_leaky_relu(x: V, slope: f32) -> V { return select(slope * x, x, x > V(0.0)); }
fn op_elu(x: V, alpha: f32) -> V {
    return keeping_nan(select(alpha * exp_m1_negative(min(x, V(0.0))), x, x > V(0.0)), x);
}
fn op_sigmoid(x: V) -> V { return sigmoid_of(x); }
fn op_tanh(x: V) -> V { return tanh_of(x); }
fn op_swish(x: V) -> V { return swish_of(x); }
fn op_gelu(x: V) -> V { return gelu_of(x); }
fn op_gelu_tanh(x: V) -> V { return gelu_tanh_of(x); }
fn op_hard_swish(x: V) -> V {
    // Limiting x first makes -0 of -infinity; multiplying by it last does not overflow.
    let limited = max(x, V(-3.0));
    return keeping_nan(limited * (min(limited + 3.0, V(6.0)) * 0.16666667), x);
}
fn op_mish(x: V) -> V { return mish_of(x); }
fn op_softplus(x: V) -> V { return keeping_nan(max(x, V(0.0)) + ln_1p_of(exp_of(-abs(x))), x); }
fn op_sin(x: V) -> V { return sine_of(x); }
fn op_cos(x: V) -> V { return cosine_of(x); }
fn op_erf(x: V) -> V { return erf_of(x); }
fn op_ln_1p(x: V) -> V { return ln_1p_whole(x); }
fn op_exp_m1(x: V) -> V { return exp_m1_whole(x); }
// Zeros have the sign of x, whatever the device gives.
fn op_floor(x: V) -> V { return keeping_nan(signed_as(abs(floor(x)), x), x); }
fn op_ceil(x: V) -> V { return keeping_nan(signed_as(abs(ceil(x)), x), x); }
fn op_round(x: V) -> V { return keeping_nan(signed_as(abs(round(x)), x), x); }
fn op_trunc(x: V) -> V { return keeping_nan(signed_as(abs(trunc(x)), x), x); }
fn op_pow(a: V, b: V) -> V { return power_of(a, b); }
fn op_swiglu(gate: V, up: V) -> V { return swish_of(gate) * up; }
fn op_geglu(gate: V, up: V) -> V { return gelu_of(gate) * up; }
fn op_geglu_tanh(gate: V, up: V) -> V { return gelu_tanh_of(gate) * up; }
