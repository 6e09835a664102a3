//! Casts between f32 and 16-bit floats, on every target.

use super::math::F32;
use crate::{Bf16, Builder, F16, Global, Pointer, PtxType, Value};

type Word<'k> = Value<'k, u32>;

/// The f16 number with these 16 bits; the bits above are ignored.
pub(super) fn widen<'k>(k: &'k Builder, bits: Word<'k>) -> F32<'k> {
    let magnitude = (bits & 0x7fffu32) << 13;
    // The exponent grows by 112; subnormal numbers become normal.
    let scaled = k.bits_u32(k.bits_f32(magnitude) * f32::from_bits((112 + 127) << 23));
    let special = k.eq(bits & 0x7c00u32, 0x7c00u32);
    let magnitude = k.selp(magnitude | 0x7f80_0000u32, scaled, special);
    k.bits_f32(magnitude | (bits & 0x8000u32) << 16)
}

/// The bits of the nearest f16, ties to even; zeros above.
pub(super) fn narrow<'k>(k: &'k Builder, x: F32<'k>) -> Word<'k> {
    let bits = k.bits_u32(x);
    let magnitude = bits & 0x7fff_ffffu32;
    // Added to a number below 2⁻¹⁴, a half leaves the nearest multiple of 2⁻²⁴ in its lower bits.
    let lifted = k.bits_u32(k.bits_f32(magnitude) + 0.5f32);
    let subnormal = lifted - 0.5f32.to_bits();
    // The exponent shrinks by 112; adding half a unit minus one, plus one for odd numbers, carries exactly if that
    // rounds up.
    let odd = magnitude >> 13 & 1u32;
    let normal = (magnitude + 0xfffu32.wrapping_sub(112 << 23) + odd) >> 13;
    let finite = k.selp(subnormal, normal, k.lt(magnitude, (127 - 14) << 23));
    // From 65 520 on it is an infinity; bits beyond those of infinity are NaN.
    let beyond = k.selp(0x7e00u32, 0x7c00, k.gt(magnitude, f32::INFINITY.to_bits()));
    let rounded = k.selp(beyond, finite, k.ge(magnitude, 65_520f32.to_bits()));
    rounded | bits >> 16 & 0x8000u32
}

/// The bits of the nearest bf16, ties to even; zeros above.
pub(super) fn upper<'k>(k: &'k Builder, x: F32<'k>) -> Word<'k> {
    let bits = k.bits_u32(x);
    // Adding half a unit minus one, plus one for odd numbers, carries exactly if that rounds up.
    let rounded = (bits + 0x7fffu32 + (bits >> 16 & 1u32)) >> 16;
    k.selp(0x7fc0u32, rounded, k.gt(bits & 0x7fff_ffffu32, f32::INFINITY.to_bits()))
}

/// The two 16-bit numbers in a word, the lower half first.
pub(super) fn unpack<'k>(k: &'k Builder, ty: PtxType, word: Word<'k>) -> [F32<'k>; 2] {
    match ty {
        PtxType::F16 => k.halves::<F16>(word).map(|half| k.cvt_f32(half)),
        _ => [word << 16, word & 0xffff_0000u32].map(|bits| k.bits_f32(bits)),
    }
}

/// Two numbers as 16 bits each, the first in the lower half.
pub(super) fn pack<'k>(k: &'k Builder, ty: PtxType, [first, second]: [F32<'k>; 2]) -> Value<'k, u32> {
    match ty {
        PtxType::F16 => k.cvt_rn_x2::<F16>(second, first),
        _ => k.cvt_rn_x2::<Bf16>(second, first),
    }
}

/// Stores two adjacent elements of this type.
pub(super) fn store_pair<'k>(k: &'k Builder, ty: PtxType, at: Pointer<'k, Global, u32>, values: [F32<'k>; 2]) {
    match ty {
        PtxType::F32 => k.st_v(at, values.map(|value| k.bits_u32(value))),
        ty => k.st(at, pack(k, ty, values)),
    }
}
