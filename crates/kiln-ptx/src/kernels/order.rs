//! The order of elements as that of integers.

use super::math::F32;
use crate::Value;

/// An integer with the order of the elements, greatest for NaN, equal for -0 and +0. Never 0.
pub(super) fn key(x: F32<'_>) -> Value<'_, u32> {
    // The sum turns both zeros into +0, and integers have the order of the elements once negative ones are
    // complemented.
    let k = x.builder;
    let ordered = x + 0.0;
    let sign = k.bits_u32(k.bits_s32(ordered) >> 31);
    k.selp(u32::MAX, k.bits_u32(ordered) ^ (sign | 1 << 31), k.nan(x, x))
}
