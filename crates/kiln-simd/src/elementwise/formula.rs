//! The vector formulas, one for each row of the table in kiln-ir, under the same names.

use crate::math;
use crate::vector::Lanewise;

macro_rules! formulas {
    ($($name:ident($($x:ident),*) = $value:expr;)*) => {
        $(#[inline(always)] pub(super) fn $name<V: Lanewise>($($x: V),*) -> V { $value })*
    };
}

formulas! {
    add(a, b) = a + b;
    sub(a, b) = a - b;
    mul(a, b) = a * b;
    div(a, b) = a / b;
    min(a, b) = a.minimum(b);
    max(a, b) = a.maximum(b);
    neg(x) = x.xor(x.of(-0.0));
    abs(x) = x.abs();
    sqrt(x) = x.sqrt();
    rsqrt(x) = x.reciprocal_sqrt();
    recip(x) = x.of(1.0) / x;
    exp(x) = math::exp(x);
    ln(x) = math::ln(x);
    scale(x, factor) = factor * x;
    clip(x, lo, hi) = x.maximum(lo).minimum(hi);
    fma(a, b, c) = a.fma(b, c);
    lerp(a, b, t) = math::lerp(a, b, t);
    // The comparison preserves NaN and -0; adding +0 turns -0 into +0.
    relu(x) = x.of(0.0).greater(x) + x.of(0.0);
    leaky_relu(x, slope) = V::select(x.of(0.0).lt(x), x, slope * x);
    elu(x, alpha) = V::select(x.of(0.0).lt(x), x, alpha * math::exp_m1_negative(x.of(0.0).lesser(x)));
    sigmoid(x) = math::sigmoid(x);
    tanh(x) = math::tanh(x);
    swish(x) = math::swish(x);
    gelu(x) = math::gelu(x);
    gelu_tanh(x) = math::gelu_tanh(x);
    hard_swish(x) = math::hard_swish(x);
    mish(x) = math::mish(x);
    softplus(x) = x.of(0.0).greater(x) + math::ln_1p(math::exp(-x.abs()));
    sin(x) = math::sin(x);
    cos(x) = math::cos(x);
    erf(x) = math::erf(x);
    ln_1p(x) = math::ln_1p_of_any(x);
    exp_m1(x) = math::exp_m1(x);
    floor(x) = math::floor(x);
    ceil(x) = math::ceil(x);
    round(x) = math::round(x);
    trunc(x) = math::trunc(x);
    pow(a, b) = math::pow(a, b);
    swiglu(gate, up) = math::swish(gate) * up;
    geglu(gate, up) = math::gelu(gate) * up;
    geglu_tanh(gate, up) = math::gelu_tanh(gate) * up;
}
