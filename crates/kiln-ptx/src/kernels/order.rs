//! The order of elements as that of integers.

use super::math::F32;
use crate::Value;

/// An integer that is greater for greater elements, and greatest for NaN; -0 and +0 have the same. Never 0.
pub(super) fn key(x: F32<'_>) -> Value<'_, u32> {
    // The sum makes +0 of both zeros, and the order of integers is that of the elements once those below zero are
    // complemented.
    let k = x.builder;
    let ordered = x + 0.0;
    let sign = k.bits_u32(k.bits_s32(ordered) >> 31);
    k.selp(u32::MAX, k.bits_u32(ordered) ^ (sign | 1 << 31), k.nan(x, x))
}
