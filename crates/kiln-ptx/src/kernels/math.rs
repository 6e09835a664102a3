//! The difficult functions, on one element: polynomials, divisions and scaling by powers of two, and no branches.
//!
//! The polynomials are those of the vectors of the CPU, fitted there, and so are the bounds: additions, multiplications,
//! divisions and roots round to nearest on every target, and multiply-add rounds once.
//!
//! The exponential of a large argument magnifies the rounding of the argument: where the argument is itself computed,
//! it is carried as a sum of two numbers. Where a result may be subnormal though its factors are not, the power of two
//! is applied last, so that it is rounded once.

use crate::{Target, Value};

pub(super) mod angle;
pub(super) mod power;

/// The operand type of the functions.
pub(super) type F32<'k> = Value<'k, f32>;

/// Added to a number below 2²², it leaves the nearest integer in the lower bits of the sum.
pub(super) const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has 12 bits, so that its product with an exponent is exact.
const LN_2: [f32; 2] = [0.693_115_23, 3.194_618_3e-5];
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// `a * b + c`, rounded once.
fn fma<'k>(a: F32<'k>, b: impl crate::Operand<f32>, c: impl crate::Operand<f32>) -> F32<'k> {
    a.builder.fma(a, b, c)
}

/// `c[0] + c[1] x + c[2] x² + ...`
fn polynomial<'k, const N: usize>(x: F32<'k>, coefficients: [f32; N]) -> F32<'k> {
    let last = fma(x, coefficients[N - 1], coefficients[N - 2]);
    coefficients[..N - 2].iter().rev().fold(last, |sum, &c| fma(sum, x, c))
}

/// The minimum of x and a constant; NaN stays.
fn at_most(x: F32<'_>, hi: f32) -> F32<'_> {
    x.builder.selp(hi, x, x.builder.gt(x, hi))
}

/// The maximum of x and a constant; NaN stays.
fn at_least(x: F32<'_>, lo: f32) -> F32<'_> {
    x.builder.selp(lo, x, x.builder.lt(x, lo))
}

/// IEEE 754-2019 `maximum`: NaN if either is NaN; -0 is less than +0.
pub(super) fn maximum<'k>(target: Target, a: F32<'k>, b: F32<'k>) -> F32<'k> {
    let k = a.builder;
    if target >= Target::Sm80 { k.max_nan(a, b) } else { k.selp(f32::NAN, k.max(a, b), k.nan(a, b)) }
}

/// IEEE 754-2019 `minimum`: NaN if either is NaN; -0 is less than +0.
pub(super) fn minimum<'k>(target: Target, a: F32<'k>, b: F32<'k>) -> F32<'k> {
    let k = a.builder;
    if target >= Target::Sm80 { k.min_nan(a, b) } else { k.selp(f32::NAN, k.min(a, b), k.nan(a, b)) }
}

/// x 2ⁿ for an integer n, added to the exponent: the result is normal. `shifted` is n + [`ROUNDER`].
fn shift_exponent<'k>(x: impl crate::Operand<f32>, shifted: F32<'k>) -> F32<'k> {
    let k = shifted.builder;
    k.bits_f32(k.bits_u32(x) + (k.bits_u32(shifted) << 23))
}

/// x 2ⁿ for an integral n in -252..=254, rounded once.
fn scale_pow2<'k>(x: impl crate::Operand<f32>, n: F32<'k>) -> F32<'k> {
    let k = n.builder;
    let power = |n: Value<'k, i32>| k.bits_f32((n + 127) << 23);
    let n = k.cvt_rni_s32(n);
    let half = n >> 1;
    k.mul(x, power(half)) * power(n - half)
}

/// An argument of the exponential function as `n ln 2 + r`.
struct Reduced<'k> {
    /// In ±(ln 2)/2.
    r: F32<'k>,
    /// Integral.
    n: F32<'k>,
    /// `n` + [`ROUNDER`].
    shifted: F32<'k>,
}

impl<'k> Reduced<'k> {
    /// Splits `x`, of magnitude at most 200.
    fn new(x: F32<'k>) -> Self {
        let shifted = fma(x, LOG2_E, ROUNDER);
        let n = shifted - ROUNDER;
        // The first step is exact, the second rounds in the unit of r.
        let r = fma(n, -LN_2[1], fma(n, -LN_2[0], x));
        Self { r, n, shifted }
    }

    /// Splits `x + low`, where `low` is below a unit in the last place of `x`.
    fn of_sum(x: F32<'k>, low: F32<'k>) -> Self {
        let shifted = fma(x, LOG2_E, ROUNDER);
        let n = shifted - ROUNDER;
        let r = fma(n, -LN_2[0], x) + fma(n, -LN_2[1], low);
        Self { r, n, shifted }
    }

    /// `(eʳ - 1 - r) / r²`
    fn quotient(&self) -> F32<'k> {
        polynomial(self.r, [0.5, 0.166_664_88, 0.041_665_554, 0.008_372_283, 0.001_403_505_6])
    }

    /// `eʳ - 1`
    fn exp_m1(&self) -> F32<'k> {
        fma(self.r * self.r, self.quotient(), self.r)
    }

    /// `eʳ`: the exponential is this times `2ⁿ`.
    fn mantissa(&self) -> F32<'k> {
        fma(self.r, fma(self.r, self.quotient(), 1.0), 1.0)
    }
}

/// `eˣ`
pub(super) fn exp(x: F32<'_>) -> F32<'_> {
    // e^-104 rounds to 0, e^89 to ∞.
    let x = Reduced::new(at_least(at_most(x, 89.0), -104.0));
    scale_pow2(x.mantissa(), x.n)
}

/// The factor of [`exp_lifted`], as a power of two.
const LIFT: u32 = 32;

/// `2³² eˣ` for `x <= 0`, normal unless `eˣ` rounds to 0; the result for NaN is unspecified. It takes half the
/// instructions of [`exp`].
pub(super) fn exp_lifted(x: F32<'_>) -> F32<'_> {
    let k = x.builder;
    // e^-104 rounds to 0.
    let reduced = Reduced::new(at_least(x, -104.0));
    let power = (k.bits_u32(reduced.shifted) << 23) + (LIFT << 23);
    k.bits_f32(k.bits_u32(reduced.mantissa()) + power)
}

/// A sum of [`exp_lifted`] without the lift.
pub(super) fn lowered(sum: F32<'_>) -> F32<'_> {
    sum * (-f64::from(LIFT)).exp2() as f32
}

/// `eˣ - 1` for `x <= 0`
fn exp_m1_negative(x: F32<'_>) -> F32<'_> {
    // e^-30 is below half a unit in the last place of 1.
    let reduced = Reduced::new(at_least(x, -30.0));
    let power = shift_exponent(1.0, reduced.shifted);
    // 2ⁿ - 1 is exact or the nearest number to -1. The sign of x restores that of -0.
    x.builder.copysign(x, fma(power, reduced.exp_m1(), power - 1.0))
}

/// `x if x > 0, else alpha * (eˣ - 1)`
pub(super) fn elu<'k>(x: F32<'k>, alpha: F32<'k>) -> F32<'k> {
    x.builder.selp(x, alpha * exp_m1_negative(at_most(x, 0.0)), x.builder.gt(x, 0.0))
}

/// `ln(1 + f) + n ln 2` for f in -0.25..=0.5 and an integral n.
fn ln_sum<'k>(f: F32<'k>, n: F32<'k>) -> F32<'k> {
    // ln(1 + f) = f - f²/2 + f³ p(f)
    let p = polynomial(
        f,
        [
            0.333_333_4,
            -0.250_001_67,
            0.199_995_65,
            -0.166_551_47,
            0.142_770_65,
            -0.127_316_6,
            0.116_980_396,
            -0.090_881_57,
            0.037_373_032,
        ],
    );
    let tail = fma(f * f, fma(f, p, -0.5), n * LN_2[1]);
    fma(n, LN_2[0], f + tail)
}

/// `ln(1 + x)` for x in 0..=1; NaN stays NaN.
pub(super) fn ln_1p(x: F32<'_>) -> F32<'_> {
    let k = x.builder;
    // From 1/2 on it is ln 2 + ln((1 + x) / 2). Both arguments of the polynomial are exact.
    let large = k.gt(x, 0.5);
    ln_sum(k.selp((x - 1.0) * 0.5, x, large), k.selp(1.0, k.constant(0.0), large))
}

/// `x` as `m 2ⁿ` with m in 0.75..1.5, for a positive finite number.
fn mantissa_exponent(x: F32<'_>) -> (F32<'_>, F32<'_>) {
    let k = x.builder;
    // Subnormal numbers are lifted into the normal range.
    let tiny = k.lt(x, f32::MIN_POSITIVE);
    let bits = k.bits_s32(k.selp(x * 16_777_216.0, x, tiny));
    let exponent = (bits - 0x3f40_0000) >> 23;
    let n = k.cvt_rn_f32(exponent) - k.selp(24.0, k.constant(0.0), tiny);
    (k.bits_f32(bits - (exponent << 23)), n)
}

/// `eˣ - 1`
pub(super) fn exp_m1(x: F32<'_>) -> F32<'_> {
    let k = x.builder;
    // e^-30 is below half a unit in the last place of 1, e^89 is ∞.
    let reduced = Reduced::new(at_least(at_most(x, 89.0), -30.0));
    // 2ⁿ - 1 is exact up to 2^24; from 2^25 on the 1 is below half a unit in the last place.
    let power = scale_pow2(1.0, at_most(reduced.n, 25.0));
    let small = fma(power, reduced.exp_m1(), power - 1.0);
    let large = scale_pow2(reduced.mantissa(), reduced.n);
    k.copysign(x, k.selp(large, small, k.gt(reduced.n, 25.0)))
}

/// `ln(1 + x)`
pub(super) fn ln_1p_of_any(x: F32<'_>) -> F32<'_> {
    let k = x.builder;
    // With 1 + x near m 2ⁿ it is ln(1 + f) + n ln 2 for f = x 2^-n + (2^-n - 1), where the difference is exact or -1.
    let (_, n) = mantissa_exponent(x + 1.0);
    let f = scale_pow2(x, -n) + (scale_pow2(1.0, -n) - 1.0);
    let y = k.copysign(x, ln_sum(f, n));
    let y = k.selp(x, y, k.eq(x, f32::INFINITY));
    let y = k.selp(f32::NEG_INFINITY, y, k.eq(x, -1.0));
    k.selp(f32::NAN, y, k.or(k.lt(x, -1.0), k.nan(x, x)))
}

/// `erf x`
pub(super) fn erf(x: F32<'_>) -> F32<'_> {
    let k = x.builder;
    // 1 - e^p(a) from 0.93 on, which is 1 from 4 on, and an odd polynomial below.
    let a = at_most(k.abs(x), 4.0);
    let coefficients = [
        -0.128_717_51,
        -0.634_846_7,
        -0.106_777_88,
        0.024_254_622,
        -0.003_883_964_4,
        0.000_383_197_13,
        -1.728_534_7e-5,
    ];
    let large = 1.0 - exp(fma(polynomial(a, coefficients), a, -a));
    let coefficients = [0.128_379_17, -0.376_125_34, 0.112_819_925, -0.026_768_135, 0.004_991_194, -0.000_596_761_7];
    let small = fma(polynomial(a * a, coefficients), a, a);
    k.copysign(x, k.selp(large, small, k.gt(a, 0.927_734_4)))
}

/// `ln x`
pub(super) fn ln(x: F32<'_>) -> F32<'_> {
    let k = x.builder;
    let (m, n) = mantissa_exponent(x);
    let y = ln_sum(m - 1.0, n);
    let y = k.selp(x, y, k.eq(x, f32::INFINITY));
    let y = k.selp(f32::NEG_INFINITY, y, k.eq(x, 0.0));
    k.selp(f32::NAN, y, k.or(k.lt(x, 0.0), k.nan(x, x)))
}

/// `tanh x`
pub(super) fn tanh(x: F32<'_>) -> F32<'_> {
    let k = x.builder;
    let a = k.abs(x);
    // 1 - 2 / (e^2a + 1), where 2a = n ln 2 + 2r; from 10 on it is 1. One step of reduction suffices, because n is
    // small.
    let t = at_most(a, 10.0);
    let shifted = fma(t, 2.0 * LOG2_E, ROUNDER);
    let r = fma(ROUNDER - shifted, 0.5 * std::f32::consts::LN_2, t);
    // e^2r, the polynomial of `Reduced` in 2r.
    let power = polynomial(r, [1.0, 2.0, 2.0, 1.333_319, 0.666_648_86, 0.267_913_04, 0.089_824_356]);
    let large = 1.0 - 2.0 / (shift_exponent(power, shifted) + 1.0);
    // The difference cancels for small a, where an odd polynomial is used.
    let square = a * a;
    let p = polynomial(square, [-0.333_332_75, 0.133_311_03, -0.053_704_895, 0.020_512_328, -0.005_553_775]);
    let small = fma(a * square, p, a);
    k.copysign(x, k.selp(large, small, k.ge(a, 0.65)))
}

/// `1 / (1 + e⁻ˣ)`
pub(super) fn sigmoid(x: F32<'_>) -> F32<'_> {
    // With eˣ = p 2ⁿ it is p / (p + 2^-n), and from 30 on it is 1. Both terms have a factor of 2^-24, so that 2^-n
    // stays in range down to the point where the quotient underflows, which it does gradually.
    const SMALL: f32 = 1.0 / 16_777_216.0;
    let reduced = Reduced::new(at_least(at_most(x, 30.0), -104.0));
    let p = fma(reduced.exp_m1(), SMALL, SMALL);
    p / (p + shift_exponent(SMALL, ROUNDER - reduced.n))
}

/// `x / (1 + p 2^-n)` for `p` given as `p - 1`: x 2ⁿ / (p + 2ⁿ), the power applied last.
fn weighted<'k>(x: F32<'k>, p_minus_1: F32<'k>, n: F32<'k>) -> F32<'k> {
    // If it matters, 1 + 2ⁿ is exact.
    scale_pow2(x / (p_minus_1 + (1.0 + scale_pow2(1.0, n))), n)
}

/// `x / (1 + e⁻ˣ)`
pub(super) fn swish(x: F32<'_>) -> F32<'_> {
    // Below -110 the result rounds to -0, also for -∞; from 30 on the weight is 1.
    let x = at_least(x, -110.0);
    let power = Reduced::new(-at_most(x, 30.0));
    weighted(x, power.exp_m1(), -power.n)
}

/// `x / 2 * (1 + tanh(√(2/π) (x + 0.044715 x³)))`, which is `x / (1 + e⁻ᶻ)` with `z = √(8/π) (x + 0.044715 x³)`.
pub(super) fn gelu_tanh(x: F32<'_>) -> F32<'_> {
    // e⁻ᶻ is 2^(-y) for y = z / ln 2. Its coefficients have two parts each; the first part of the linear one has few
    // bits.
    const LINEAR: [f32; 2] = [2.296_875, 0.005_333_198];
    const CUBIC: [f32; 2] = [0.102_943_24, -2.016_198_5e-9];
    // Below -10.9 the result rounds to -0; from 6 on the weight is 1.
    let x = at_least(x, -10.9);
    let t = at_most(x, 6.0);
    // y = t s, both as sums of two numbers.
    let square = t * t;
    let square_low = fma(t, t, -square);
    let s = fma(square, CUBIC[0], LINEAR[0]);
    // The linear coefficient minus s is exact, because s is larger and has fewer bits below the point.
    let s_low = fma(square, CUBIC[0], LINEAR[0] - s) + LINEAR[1];
    let s_low = fma(square_low, CUBIC[0], fma(square, CUBIC[1], s_low));
    let y = t * s;
    let y_low = fma(t, s_low, fma(t, s, -y));
    // -y = -n + f, 2ᶠ - 1 is f q.
    let n = (y + ROUNDER) - ROUNDER;
    let f = (n - y) - y_low;
    let q =
        polynomial(f, [0.693_147_24, 0.240_226_94, 0.055_502_597, 0.009_612_299, 0.001_342_369_8, 0.000_171_484_28]);
    weighted(x, f * q, n)
}

/// `x / 2 * (1 + erf(x / √2))`
pub(super) fn gelu(x: F32<'_>) -> F32<'_> {
    let k = x.builder;
    // With the upper tail q(a) = erfc(a / √2) / 2 it is max(x, 0) - a q(a), a = |x|: the difference does not cancel
    // below 0 and at most halves x above. Beyond 14.5 the tail rounds to 0.
    let a = at_most(k.abs(x), 14.5);
    let half = a * -0.5;
    let square = a * half;
    let power = Reduced::of_sum(square, fma(a, half, -square));
    // -0 for a negative x, x itself otherwise, zeros and NaN included.
    let positive = k.selp(-0.0, x, k.lt(x, 0.0));
    positive - scale_pow2(upper_tail(a, square, &power), power.n)
}

/// `a q(a)` without the power of two of `power`, the exponential of `square` = -a²/2.
fn upper_tail<'k>(a: F32<'k>, square: F32<'k>, power: &Reduced<'k>) -> F32<'k> {
    // q(a) = e^(-a²/2) r(a), where 1 / r is nearly linear: r = n / ((2 + c a) n - a d) with polynomials n and d.
    // Because n occurs in both terms, its rounding has little effect, and a d is a small part. Both are evaluated in a
    // and -a²/2, so that few roundings accumulate.
    let pair = |low: f32, high: f32| fma(a, high, low);
    let n = fma(square, 0.034_304_615, pair(-0.761_995_26, -0.169_119_3));
    let n = fma(square, n, pair(1.037_952, 0.910_692_6));
    let minus_d = fma(square, pair(0.295_835_05, 0.034_273_665), pair(-0.945_398, -0.545_886_93));
    let denominator = fma(a, fma(n, 2.506_600_1, minus_d), n + n);
    fma(a, power.exp_m1(), a) * n / denominator
}

/// `x tanh(ln(1 + eˣ))`
pub(super) fn mish(x: F32<'_>) -> F32<'_> {
    // With e⁻ˣ = p 2ⁿ and w = 2^-n it is x w (w + 2p) / (w (w + 2p) + 2p²). Below -110 the result rounds to -0; from 20
    // on the weight is 1.
    let x = at_least(x, -110.0);
    let power = Reduced::new(-at_most(x, 20.0));
    let n = -power.n;
    let p = power.mantissa();
    let w = scale_pow2(1.0, n);
    let sum = (p + p) + w;
    let denominator = fma(w, sum, (p + p) * p);
    scale_pow2(x * (sum / denominator), n)
}

/// `x min(max(x + 3, 0), 6) / 6`
pub(super) fn hard_swish(x: F32<'_>) -> F32<'_> {
    // Limiting x first turns -∞ into -0; multiplying by it last does not overflow, and 6 (1/6) rounds to 1.
    let x = at_least(x, -3.0);
    x * (at_most(x + 3.0, 6.0) * (1.0 / 6.0))
}

/// `a + t (b - a)`
pub(super) fn lerp<'k>(a: F32<'k>, b: F32<'k>, t: F32<'k>) -> F32<'k> {
    let k = a.builder;
    // If b - a overflows though both are finite, computing with halves does not.
    let difference = b - a;
    let apart = k.eq(k.abs(difference), f32::INFINITY);
    let difference = k.selp(b * 0.5 - a * 0.5, difference, apart);
    fma(k.selp(t + t, t, apart), difference, a)
}
