//! Rounding to integers. Every result has the sign of its operand, zeros included.

use crate::vector::Lanewise;

/// From here on every f32 is an integer.
const WHOLE: f32 = 8_388_608.0;

/// The integer nearest to `x`, ties to even.
#[inline(always)]
pub(crate) fn round<V: Lanewise>(x: V) -> V {
    let (a, whole) = (x.abs(), x.of(WHOLE));
    // The sum cannot represent a fraction. The comparison is false for NaN, which stays.
    V::select(a.lt(whole), (a + whole) - whole, a).or(x.and(x.of(-0.0)))
}

/// `x` without its fraction.
#[inline(always)]
pub(crate) fn trunc<V: Lanewise>(x: V) -> V {
    let a = x.abs();
    let nearest = round(a);
    (nearest - V::select(a.lt(nearest), x.of(1.0), x.of(0.0))).or(x.and(x.of(-0.0)))
}

/// The largest integer not above `x`.
#[inline(always)]
pub(crate) fn floor<V: Lanewise>(x: V) -> V {
    let nearest = round(x);
    nearest - V::select(x.lt(nearest), x.of(1.0), x.of(0.0))
}

/// The smallest integer not below `x`.
#[inline(always)]
pub(crate) fn ceil<V: Lanewise>(x: V) -> V {
    let nearest = round(x);
    (nearest + V::select(nearest.lt(x), x.of(1.0), x.of(0.0))).or(x.and(x.of(-0.0)))
}
