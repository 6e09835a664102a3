//! Powers: `aᵇ = e^(b ln a)`, with the logarithm and its product carried as sums of two numbers, because the exponential magnifies
//! their errors a hundredfold.

use super::{F32, Reduced, at_least, at_most, fma, mantissa_exponent, polynomial, scale_pow2};

/// ln 2 as a sum.
const LN_2: [f32; 2] = [std::f32::consts::LN_2, -1.904_654_2e-9];

/// `ln a` as a sum, for a positive finite number.
fn ln(a: F32<'_>) -> (F32<'_>, F32<'_>) {
    let k = a.builder;
    let (m, n) = mantissa_exponent(a);
    // From √2 on uses the next octave, so that n ln 2 and the rest do not cancel.
    let high = k.gt(m, std::f32::consts::SQRT_2);
    let (m, n) = (k.selp(m * 0.5, m, high), k.selp(n + 1.0, n, high));
    // ln m = 2 atanh q for q = (m - 1) / (m + 1), which is q + low.
    let m_1 = m - 1.0;
    let r = k.rcp(m + 1.0);
    let q = r * m_1;
    let low = r * fma(q, -m_1, fma(q, -2.0, m_1));
    let square = q * q;
    let square_low = fma(q, low + low, fma(q, q, -square));
    let cube = square * q;
    let cube_low = fma(square, low, fma(square_low, q, fma(square, q, -cube)));
    let p = polynomial(square, [0.333_333_25, 0.200_014_83, 0.141_992_8, 0.129_333_5]);
    let rest = fma(p, cube, fma(p, cube_low, low));
    let twice = q + q;
    let sum = fma(n, LN_2[0], twice);
    // sum - n ln 2, then the rounding error of the smaller addend.
    let lost = twice - fma(n, -LN_2[0], sum);
    let lost = fma(n, LN_2[1], fma(rest, 2.0, lost));
    let high = sum + lost;
    (high, (sum - high) + lost)
}

/// `aᵇ`, with the special values of `pow` in C.
pub(in crate::kernels) fn pow<'k>(a: F32<'k>, b: F32<'k>) -> F32<'k> {
    let k = a.builder;
    let base = k.abs(a);
    let (high, low) = ln(base);
    let product = b * high;
    let product_low = fma(b, low, fma(b, high, -product));
    // e^-104 rounds to 0, e^89 to ∞; a clamped product may be infinite, and its correction NaN.
    let x = at_least(at_most(product, 89.0), -104.0);
    let power = Reduced::of_sum(x, k.selp(product_low, k.constant(0.0), k.eq(x, product)));
    let y = scale_pow2(power.mantissa(), power.n);
    // Bases without a finite logarithm, and 1, whose logarithm is 0 even if b is infinite.
    let (zero, infinity) = (k.constant(0.0f32), k.constant(f32::INFINITY));
    let positive = k.gt(b, 0.0);
    let y = k.selp(k.selp(zero, infinity, positive), y, k.eq(base, 0.0));
    let y = k.selp(k.selp(infinity, zero, positive), y, k.eq(base, f32::INFINITY));
    let y = k.selp(1.0, y, k.eq(base, 1.0));
    // An odd exponent keeps the sign of the base; a finite negative base has only integral powers.
    let whole = k.eq(k.cvt_rzi(b), b);
    let half = b * 0.5;
    let y = k.selp(k.copysign(a, y), y, k.and(whole, k.ne(k.cvt_rzi(half), half)));
    let fractional = k.and(k.not(whole), k.and(k.lt(a, 0.0), k.gt(a, f32::NEG_INFINITY)));
    // NaN propagates, except for the two rules that take precedence in C.
    let y = k.selp(f32::NAN, y, k.or(fractional, k.nan(a, b)));
    k.selp(1.0, y, k.or(k.eq(b, 0.0), k.eq(a, 1.0)))
}
