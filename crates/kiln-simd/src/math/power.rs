//! Powers: `aᵇ = e^(b ln a)`, with the logarithm and its product carried as sums of two numbers, because the exponential magnifies
//! their errors a hundredfold.

use super::whole::round;
use super::{Reduced, clamp, polynomial};
use crate::vector::Lanewise;

/// ln 2 as a sum.
const LN_2: [f32; 2] = [std::f32::consts::LN_2, -1.904_654_2e-9];

/// `ln a` as a sum, for a positive number.
#[inline(always)]
fn ln<V: Lanewise>(a: V) -> (V, V) {
    let one = a.of(1.0);
    let (m, k) = a.mantissa_exponent();
    // From √2 on uses the next octave, so that k ln 2 and the rest do not cancel. Zero and ∞, whose k is infinite, are
    // handled later.
    let high = a.of(std::f32::consts::SQRT_2).lt(m);
    let (m, k) = (V::select(high, m * a.of(0.5), m), V::select(high, k + one, k));
    let k = clamp(k, -150.0, 150.0);
    // ln m = 2 atanh q for q = (m - 1) / (m + 1), which is q + low. The method and the fit are by N. Juffa (2016).
    let m_1 = m - one;
    let r = one / (m + one);
    let q = r * m_1;
    let low = r * q.fma(-m_1, q.fma(a.of(-2.0), m_1));
    let square = q * q;
    let square_low = q.fma(low + low, q.fma(q, -square));
    let cube = square * q;
    let cube_low = square.fma(low, square_low.fma(q, square.fma(q, -cube)));
    let p = polynomial(square, [0.333_333_25, 0.200_014_83, 0.141_992_8, 0.129_333_5]);
    let rest = p.mul_add(cube, p.mul_add(cube_low, low));
    let twice = q + q;
    let sum = k.fma(a.of(LN_2[0]), twice);
    // sum - k ln 2, then the rounding error of the smaller addend.
    let lost = twice - (-k).fma(a.of(LN_2[0]), sum);
    let lost = k.mul_add(a.of(LN_2[1]), a.of(2.0).mul_add(rest, lost));
    let high = sum + lost;
    (high, (sum - high) + lost)
}

/// `aᵇ`, with the special values of `pow` in C.
#[inline(always)]
pub(crate) fn pow<V: Lanewise>(a: V, b: V) -> V {
    let (zero, one, infinity) = (a.of(0.0), a.of(1.0), a.of(f32::INFINITY));
    let base = a.abs();
    let (high, low) = ln(base);
    let product = b * high;
    let product_low = b.mul_add(low, b.fma(high, -product));
    // e^-104 rounds to 0, e^89 to ∞; a clamped product may be infinite, and its correction NaN.
    let x = clamp(product, -104.0, 89.0);
    let power = Reduced::of_sum(x, V::select(x.eq(product), product_low, zero));
    let y = power.mantissa().scale_pow2(power.n);
    // Bases without a finite logarithm, and 1, whose logarithm is 0 even if b is infinite.
    let positive = zero.lt(b);
    let y = V::select(base.eq(zero), V::select(positive, zero, infinity), y);
    let y = V::select(base.eq(infinity), V::select(positive, infinity, zero), y);
    let y = V::select(base.eq(one), one, y);
    // An odd exponent keeps the sign of the base; a finite negative base has only integral powers.
    let whole = round(b).eq(b);
    let half = b * a.of(0.5);
    let sign = V::select(whole, V::select(round(half).eq(half), zero, a.and(a.of(-0.0))), zero);
    let undefined = V::select(whole, zero, V::select(a.lt(zero), V::select(base.lt(infinity), one, zero), zero));
    let y = V::select(undefined.eq(one), a.of(f32::NAN), y.or(sign));
    // NaN propagates, except for the two rules that take precedence in C.
    let y = V::select(a.eq(a), V::select(b.eq(b), y, b), a);
    V::select(b.eq(zero), one, V::select(a.eq(one), one, y))
}
