//! The difficult functions, generic over [`Lanewise`] vectors: polynomials, divisions and scaling by powers of two, and no
//! branches. Every lane of every vector runs the same arithmetic, whatever its value or position.
//!
//! Errors are measured over every f32 (`cargo xtask exhaustive`). The polynomials are minimax fits, found with the
//! Remez algorithm in 40 digits. Their coefficients are rounded to f32 one after another; after each rounding the others
//! are fitted again.
//!
//! The exponential of a large argument magnifies the rounding of the argument: where the argument is itself computed,
//! it is carried as a sum of two numbers. Where a result may be subnormal though its factors are not, the power of two
//! is applied last, so that it is rounded once.

use crate::vector::{Lanewise, ROUNDER};

mod angle;
mod piecewise;
mod power;
mod whole;

pub(crate) use angle::{cos, sin};
pub(crate) use power::pow;
pub(crate) use whole::{ceil, floor, round, trunc};

/// ln 2 in two parts; the first has 12 bits, so that its product with an exponent is exact.
const LN_2: [f32; 2] = [0.693_115_23, 3.194_618_3e-5];

/// `c[0] + c[1] x + c[2] x² + ...`
#[inline(always)]
fn polynomial<V: Lanewise, const N: usize>(x: V, coefficients: [f32; N]) -> V {
    let mut sum = x.of(coefficients[N - 1]);
    for &c in coefficients[..N - 1].iter().rev() {
        sum = sum.mul_add(x, x.of(c));
    }
    sum
}

/// `min(max(x, lo), hi)` that preserves NaN; the bounds are constants and not zero.
#[inline(always)]
fn clamp<V: Lanewise>(x: V, lo: f32, hi: f32) -> V {
    x.of(lo).greater(x.of(hi).lesser(x))
}

/// An argument of the exponential function as `n ln 2 + r`.
struct Reduced<V> {
    /// In ±(ln 2)/2.
    r: V,
    /// Integral.
    n: V,
    /// `n` + [`ROUNDER`].
    shifted: V,
}

impl<V: Lanewise> Reduced<V> {
    /// Splits `x`, of magnitude at most 200.
    #[inline(always)]
    fn new(x: V) -> Self {
        let shifted = x.mul_add(x.of(std::f32::consts::LOG2_E), x.of(ROUNDER));
        let n = shifted - x.of(ROUNDER);
        // The first step is exact, the second rounds in the unit of r.
        let r = (-n).mul_add(x.of(LN_2[1]), (-n).mul_add(x.of(LN_2[0]), x));
        Self { r, n, shifted }
    }

    /// Splits `x + low`, where `low` is below a unit in the last place of `x`.
    #[inline(always)]
    fn of_sum(x: V, low: V) -> Self {
        let shifted = x.mul_add(x.of(std::f32::consts::LOG2_E), x.of(ROUNDER));
        let n = shifted - x.of(ROUNDER);
        let r = (-n).mul_add(x.of(LN_2[0]), x) + (-n).mul_add(x.of(LN_2[1]), low);
        Self { r, n, shifted }
    }

    /// `(eʳ - 1 - r) / r²`: the error of the fit relative to `eʳ` is at most 2^-27.8.
    #[inline(always)]
    fn quotient(&self) -> V {
        polynomial(self.r, [0.5, 0.166_664_88, 0.041_665_554, 0.008_372_283, 0.001_403_505_6])
    }

    /// `eʳ - 1`
    #[inline(always)]
    fn exp_m1(&self) -> V {
        (self.r * self.r).mul_add(self.quotient(), self.r)
    }

    /// `eʳ`: the exponential is this times `2ⁿ`.
    #[inline(always)]
    fn mantissa(&self) -> V {
        let one = self.r.of(1.0);
        if const { V::FUSED } {
            self.r.mul_add(self.r.mul_add(self.quotient(), one), one)
        } else {
            // Adding the factored form would round the product with r too.
            self.exp_m1() + one
        }
    }
}

/// `eˣ`
#[inline(always)]
pub(crate) fn exp<V: Lanewise>(x: V) -> V {
    // e^-104 rounds to 0, e^89 to ∞.
    let x = Reduced::new(clamp(x, -104.0, 89.0));
    x.mantissa().scale_pow2(x.n)
}

/// The logarithm of [`LIFTED`] to the base 2.
pub(crate) const LIFT: f32 = 64.0;
/// The factor 2^64 of [`lifted_exp`]. Written out, because `f32::exp2` guarantees no precision.
pub(crate) const LIFTED: f32 = 18_446_744_073_709_551_616.0;
/// 2^-64, which removes the factor.
pub(crate) const LOWERED: f32 = 1.0 / LIFTED;

/// `eˣ` times [`LIFTED`] for `x <= 0`, with a relative error below 1.3 u + 0.25 u |x|; NaN stays NaN.
///
/// For sums of exponentials, where an error that grows with `|x|` matters little: no result is subnormal, so that the
/// power of two is an integer added to the exponent, and the argument is reduced in one step. Below -105.4, including
/// -∞, the result is the value there, which rounds to 0 after removing the factor.
#[inline(always)]
pub(crate) fn lifted_exp<V: Lanewise>(x: V) -> V {
    let x = x.of(-105.4).greater(x);
    // x = (n + f) ln 2; the product whose fraction is f is not rounded.
    let shifted = x.mul_add(x.of(std::f32::consts::LOG2_E), x.of(ROUNDER + LIFT));
    let f = x.mul_add(x.of(std::f32::consts::LOG2_E), x.of(ROUNDER + LIFT) - shifted);
    // The minimax polynomial of 2^f on ±1/2; one of its coefficients is close to ln 2 but not equal to it.
    #[allow(clippy::approx_constant)]
    let coefficients = [1.0, 0.693_147_2, 0.240_226_46, 5.550_328_6e-2, 9.618_489e-3, 1.339_993_1e-3, 1.534_581_2e-4];
    polynomial(f, coefficients).shift_exponent(shifted)
}

/// `eˣ - 1` for `x <= 0`
#[inline(always)]
pub(crate) fn exp_m1_negative<V: Lanewise>(x: V) -> V {
    // e^-30 is below half a unit in the last place of 1.
    let reduced = Reduced::new(x.of(-30.0).greater(x));
    let one = x.of(1.0);
    let power = one.shift_exponent(reduced.shifted);
    // 2ⁿ - 1 is exact or the nearest number to -1. The sign of x restores that of -0.
    power.mul_add(reduced.exp_m1(), power - one).or(x.and(x.of(-0.0)))
}

/// `eˣ - 1`
#[inline(always)]
pub(crate) fn exp_m1<V: Lanewise>(x: V) -> V {
    // e^-30 is below half a unit in the last place of 1, e^89 is ∞.
    let reduced = Reduced::new(clamp(x, -30.0, 89.0));
    let one = x.of(1.0);
    // 2ⁿ - 1 is exact up to 2^24; from 2^25 on the 1 is below half a unit in the last place.
    let power = one.scale_pow2(x.of(25.0).lesser(reduced.n));
    let small = power.mul_add(reduced.exp_m1(), power - one);
    let large = reduced.mantissa().scale_pow2(reduced.n);
    // The sign of x restores that of -0.
    V::select(x.of(25.0).lt(reduced.n), large, small).or(x.and(x.of(-0.0)))
}

/// `ln(1 + f) + k ln 2` for f in -0.25..=0.5 and an integral k.
#[inline(always)]
fn ln_sum<V: Lanewise>(f: V, k: V) -> V {
    // ln(1 + f) = f - f²/2 + f³ p(f); the relative error of the fit is at most 2^-29.8.
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
    let tail = (f * f).mul_add(f.mul_add(p, f.of(-0.5)), k * f.of(LN_2[1]));
    k.mul_add(f.of(LN_2[0]), f + tail)
}

/// `ln x`
#[inline(always)]
pub(crate) fn ln<V: Lanewise>(x: V) -> V {
    let (m, k) = x.mantissa_exponent();
    ln_sum(m - x.of(1.0), k)
}

/// `ln(1 + x)` for x in 0..=1; NaN stays NaN.
#[inline(always)]
pub(crate) fn ln_1p<V: Lanewise>(x: V) -> V {
    // From 1/2 on it is ln 2 + ln((1 + x) / 2). Both arguments of the polynomial are exact.
    let (one, large) = (x.of(1.0), x.of(0.5).lt(x));
    ln_sum(V::select(large, (x - one) * x.of(0.5), x), V::select(large, one, x.of(0.0)))
}

/// `ln(1 + x)`
#[inline(always)]
pub(crate) fn ln_1p_of_any<V: Lanewise>(x: V) -> V {
    // With 1 + x near m 2ᵏ it is ln(1 + f) + k ln 2 for f = x 2^-k + (2^-k - 1), where the difference is exact or -1.
    let one = x.of(1.0);
    let (m, k) = (x + one).mantissa_exponent();
    // k is infinite for x of -1 and ∞; m is NaN below -1.
    let finite = clamp(k, -126.0, 128.0);
    let f = x.scale_pow2(-finite) + (one.scale_pow2(-finite) - one);
    let f = V::select(k.abs().lt(x.of(f32::INFINITY)), f, x.of(0.0));
    // Every result has the sign of x, -0 included.
    ln_sum(V::select(m.eq(m), f, m), k).or(x.and(x.of(-0.0)))
}

/// `erf x`
#[inline(always)]
pub(crate) fn erf<V: Lanewise>(x: V) -> V {
    // Both fits are by N. Juffa (2016): 1 - e^p(a) from 0.93 on, which is 1 from 4 on, and an odd polynomial below.
    let a = clamp(x.abs(), 1e-30, 4.0);
    let coefficients = [
        -0.128_717_51,
        -0.634_846_7,
        -0.106_777_88,
        0.024_254_622,
        -0.003_883_964_4,
        0.000_383_197_13,
        -1.728_534_7e-5,
    ];
    let large = x.of(1.0) - exp(polynomial(a, coefficients).mul_add(a, -a));
    let coefficients = [0.128_379_17, -0.376_125_34, 0.112_819_925, -0.026_768_135, 0.004_991_194, -0.000_596_761_7];
    let b = x.of(1.0).lesser(x.abs()).or(x.and(x.of(-0.0)));
    let small = b.mul_add(polynomial(b * b, coefficients), b);
    V::select(x.of(0.927_734_4).lt(a), large, small).or(x.and(x.of(-0.0)))
}

/// `tanh x`
#[inline(always)]
pub(crate) fn tanh<V: Lanewise>(x: V) -> V {
    if const { V::TABLES } {
        return piecewise::tanh(x);
    }
    let one = x.of(1.0);
    let a = x.abs();
    // 1 - 2 / (e^2a + 1), where 2a = n ln 2 + 2r; from 10 on it is 1. One step of reduction suffices, because n is
    // small.
    let t = x.of(10.0).lesser(a);
    let shifted = t.mul_add(x.of(2.0 * std::f32::consts::LOG2_E), x.of(ROUNDER));
    let r = (x.of(ROUNDER) - shifted).mul_add(x.of(0.5 * std::f32::consts::LN_2), t);
    // e^2r, the polynomial of `Reduced` in 2r.
    let power = polynomial(r, [1.0, 2.0, 2.0, 1.333_319, 0.666_648_86, 0.267_913_04, 0.089_824_356]);
    let large = one - x.of(2.0) / (power.shift_exponent(shifted) + one);
    // The difference cancels for small a, where an odd polynomial is used; its error relative to tanh a is at most
    // 2^-27.
    let square = a * a;
    let p = polynomial(square, [-0.333_332_75, 0.133_311_03, -0.053_704_895, 0.020_512_328, -0.005_553_775]);
    let small = (a * square).mul_add(p, a);
    V::select(x.of(0.65).le(a), large, small).or(x.and(x.of(-0.0)))
}

/// `1 / (1 + e⁻ˣ)`
#[inline(always)]
pub(crate) fn sigmoid<V: Lanewise>(x: V) -> V {
    // With eˣ = p 2ⁿ it is p / (p + 2^-n), and from 30 on it is 1. Both terms have a factor of 2^-24, so that 2^-n
    // stays in range down to the point where the quotient underflows, which it does gradually.
    let small = x.of(1.0 / 16_777_216.0);
    let reduced = Reduced::new(clamp(x, -104.0, 30.0));
    let p = reduced.exp_m1().mul_add(small, small);
    p / (p + small.shift_exponent(x.of(ROUNDER) - reduced.n))
}

/// `x / (1 + p 2^-n)` for `p` given as `p - 1`: x 2ⁿ / (p + 2ⁿ), the power applied last.
#[inline(always)]
fn weighted<V: Lanewise>(x: V, p_minus_1: V, n: V) -> V {
    let one = x.of(1.0);
    // If it matters, 1 + 2ⁿ is exact.
    (x / (p_minus_1 + (one + one.scale_pow2(n)))).scale_pow2(n)
}

/// `x / (1 + e⁻ˣ)`
#[inline(always)]
pub(crate) fn swish<V: Lanewise>(x: V) -> V {
    // Below -110 the result rounds to -0, also for -∞; from 30 on the weight is 1.
    let x = x.of(-110.0).greater(x);
    let power = Reduced::new(-x.of(30.0).lesser(x));
    weighted(x, power.exp_m1(), -power.n)
}

/// 2^-32, a factor of a divisor in [`gelu_tanh`].
const SMALL: f32 = 1.0 / 4_294_967_296.0;

/// `x / 2 * (1 + tanh(√(2/π) (x + 0.044715 x³)))`
#[inline(always)]
pub(crate) fn gelu_tanh<V: Lanewise>(x: V) -> V {
    // For a = |x| it is max(x, 0) - a / (1 + eᶻ) with z = √(8/π) (a + 0.044715 a³), as in `gelu`. Beyond 10.9 the
    // quotient rounds to 0. With w = 22.4 + a² it is eᶻ = 2^(a w / D). The divisor has a factor SMALL, so that it stays
    // in range if the quotient is subnormal; the last step removes the factor, and rounds once.
    const W: [f32; 2] = [1_465_638.0 / 65_536.0, -1.081_748e-6];
    const D: [f32; 2] = [2487.0 / 256.0, -7.527_22e-4];
    let small = x.of(SMALL);
    let a = x.limited(x.of(10.9));
    let first = x.of(W[0]);
    let w = a.mul_add(a, first);
    // first has few bits, so that first - w is exact.
    let w_low = a.fma(a, first - w) + x.of(W[1]);
    // a w = n D + r, where n is a multiple of 1 or, with a table of the powers between, of 1/16. D[0] has few bits too,
    // so that its product with n is exact, and that of a and w is not rounded.
    let rounder = x.of(if const { V::TABLES } { ROUNDER / 16.0 } else { ROUNDER });
    let shifted = (a * w).mul_add(x.of(1.0 / (D[0] + D[1])), rounder);
    let n = shifted - rounder;
    let r = (-n).mul_add(x.of(D[1]), a.fma(w, -(n * x.of(D[0]))));
    let r = a.mul_add(w_low, r);
    // SMALL 2ⁿ, and (2^(r / D) - 1) / r fitted with an error of at most 2^-27.9, or 2^-29, relative to 2^(r / D).
    let (power, q) = if const { V::TABLES } {
        let power = shifted.lookup(&piecewise::SIXTEENTHS).scale_pow2(n);
        (power, polynomial(r, [0.071_354_814, 0.002_545_835_2, 6.057_668_7e-5]))
    } else {
        let coefficients =
            [0.071_354_82, 0.002_545_755_1, 6.054_923e-5, 1.080_094_1e-6, 1.551_043_7e-8, 1.855_850_2e-10];
        (small.shift_exponent(shifted), polynomial(r, coefficients))
    };
    let quotient = a / power.mul_add(r * q, power + small);
    // -0 for a negative x, x itself otherwise, zeros and NaN included.
    (-quotient).mul_add(small, x.of(-0.0).greater(x))
}

/// `x / 2 * (1 + erf(x / √2))`
#[inline(always)]
pub(crate) fn gelu<V: Lanewise>(x: V) -> V {
    // With the upper tail q(a) = erfc(a / √2) / 2 it is max(x, 0) - a q(a), a = |x|: the difference does not cancel
    // below 0 and at most halves x above. Beyond 14.5 the tail rounds to 0.
    let a = x.limited(x.of(14.5));
    let half = a * x.of(-0.5);
    let square = a * half;
    let power = Reduced::of_sum(square, a.fma(half, -square));
    let tail = if const { V::TABLES } { piecewise::upper_tail(a, &power) } else { upper_tail(a, square, &power) };
    // -0 for a negative x, x itself otherwise, zeros and NaN included.
    x.of(-0.0).greater(x) - tail.scale_pow2(power.n)
}

/// `a q(a)` without the power of two of `power`, the exponential of `square` = -a²/2.
#[inline(always)]
fn upper_tail<V: Lanewise>(a: V, square: V, power: &Reduced<V>) -> V {
    // q(a) = e^(-a²/2) r(a), where 1 / r is nearly linear: r = n / ((2 + c a) n - a d) with polynomials n and d, with
    // an error of at most 2^-26.4. Because n occurs in both terms, its rounding has little effect, and a d is a small
    // part. Both are evaluated in a and -a²/2, so that few roundings accumulate.
    let pair = |low: f32, high: f32| a.mul_add(a.of(high), a.of(low));
    let n = square.mul_add(a.of(0.034_304_615), pair(-0.761_995_26, -0.169_119_3));
    let n = square.mul_add(n, pair(1.037_952, 0.910_692_6));
    let minus_d = square.mul_add(pair(0.295_835_05, 0.034_273_665), pair(-0.945_398, -0.545_886_93));
    let denominator = a.fma(a.of(2.506_600_1).fma(n, minus_d), n + n);
    a.fma(power.exp_m1(), a) * n / denominator
}

/// `x tanh(ln(1 + eˣ))`
#[inline(always)]
pub(crate) fn mish<V: Lanewise>(x: V) -> V {
    // With e⁻ˣ = p 2ⁿ and w = 2^-n it is x w (w + 2p) / (w (w + 2p) + 2p²). Below -110 the result rounds to -0; from 20
    // on the weight is 1.
    let x = x.of(-110.0).greater(x);
    let power = Reduced::new(-x.of(20.0).lesser(x));
    let n = -power.n;
    let p = power.mantissa();
    let w = x.of(1.0).scale_pow2(n);
    let sum = (p + p) + w;
    let denominator = w.mul_add(sum, (p + p) * p);
    (x * (sum / denominator)).scale_pow2(n)
}

/// `x min(max(x + 3, 0), 6) / 6`
#[inline(always)]
pub(crate) fn hard_swish<V: Lanewise>(x: V) -> V {
    // Limiting x first turns -∞ into -0; multiplying by it last does not overflow, and 6 (1/6) rounds to 1.
    let x = x.of(-3.0).greater(x);
    x * (x.of(6.0).lesser(x + x.of(3.0)) * x.of(1.0 / 6.0))
}

/// `a + t (b - a)`
#[inline(always)]
pub(crate) fn lerp<V: Lanewise>(a: V, b: V, t: V) -> V {
    // If b - a overflows though both are finite, computing with halves does not.
    let difference = b - a;
    let apart = difference.abs().eq(a.of(f32::INFINITY));
    let half = a.of(0.5);
    let difference = V::select(apart, b * half - a * half, difference);
    V::select(apart, t + t, t).fma(difference, a)
}
