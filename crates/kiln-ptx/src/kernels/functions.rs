//! The element-wise functions, one for each row of the table in kiln-ir, under the same names.

use kiln_ir::op::ElementwiseKind;

use super::math::{self, F32, angle, maximum, minimum, power};
use crate::Target;

macro_rules! functions {
    ($target:ident; $($kind:ident($($x:ident),* $(; $($p:ident),*)?) = $value:expr;)*) => {
        /// Applies the function to operands and parameters, with instructions for a target.
        pub(super) fn apply<'k>(
            kind: ElementwiseKind,
            $target: Target,
            operands: &[F32<'k>],
            params: &[F32<'k>],
        ) -> F32<'k> {
            match kind {
                $(ElementwiseKind::$kind => {
                    let (&[$($x),*], &[$($($p),*)?]) = (operands, params) else {
                        unreachable!("chains check the number of operands and parameters")
                    };
                    $value
                })*
            }
        }
    };
}

functions! { target;
    Add(a, b) = a + b;
    Sub(a, b) = a - b;
    Mul(a, b) = a * b;
    Div(a, b) = a / b;
    Min(a, b) = minimum(target, a, b);
    Max(a, b) = maximum(target, a, b);
    Neg(x) = -x;
    Abs(x) = x.builder.abs(x);
    Sqrt(x) = x.builder.sqrt(x);
    Rsqrt(x) = x.builder.rcp(x.builder.sqrt(x));
    Recip(x) = x.builder.rcp(x);
    Exp(x) = math::exp(x);
    Ln(x) = math::ln(x);
    Scale(x; factor) = factor * x;
    Clip(x; lo, hi) = minimum(target, maximum(target, x, lo), hi);
    Fma(a, b, c) = a.builder.fma(a, b, c);
    Lerp(a, b; t) = math::lerp(a, b, t);
    // The comparison is false for NaN, and true for -0, which becomes +0.
    Relu(x) = x.builder.selp(0.0, x, x.builder.le(x, 0.0));
    LeakyRelu(x; slope) = x.builder.selp(x, slope * x, x.builder.gt(x, 0.0));
    Elu(x; alpha) = math::elu(x, alpha);
    Sigmoid(x) = math::sigmoid(x);
    Tanh(x) = math::tanh(x);
    Swish(x) = math::swish(x);
    Gelu(x) = math::gelu(x);
    GeluTanh(x) = math::gelu_tanh(x);
    HardSwish(x) = math::hard_swish(x);
    Mish(x) = math::mish(x);
    Softplus(x) = x.builder.selp(0.0, x, x.builder.le(x, 0.0)) + math::ln_1p(math::exp(-x.builder.abs(x)));
    Sin(x) = angle::sin(x);
    Cos(x) = angle::cos(x);
    Erf(x) = math::erf(x);
    Ln1p(x) = math::ln_1p_of_any(x);
    ExpM1(x) = math::exp_m1(x);
    Floor(x) = x.builder.cvt_rmi(x);
    Ceil(x) = x.builder.cvt_rpi(x);
    Round(x) = x.builder.cvt_rni(x);
    Trunc(x) = x.builder.cvt_rzi(x);
    Pow(a, b) = power::pow(a, b);
    Swiglu(gate, up) = math::swish(gate) * up;
    Geglu(gate, up) = math::gelu(gate) * up;
    GegluTanh(gate, up) = math::gelu_tanh(gate) * up;
}
