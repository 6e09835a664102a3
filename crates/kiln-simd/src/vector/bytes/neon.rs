use std::arch::aarch64::*;

use super::four::Piece;
use crate::array::Each;

/// One register. Every NEON unit multiplies signed bytes to words, and weights are below 128; without the dot products
/// of newer processors it is still faster than the memory.
#[derive(Clone, Copy)]
pub(super) struct NeonPiece(uint8x16_t);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller guarantees it, so NEON is available.
        unsafe { $e }
    };
}

/// The sums of four products of weights with a plane.
///
/// # Safety
/// `x` is readable for 208 bytes.
#[inline(always)]
unsafe fn plane(weights: [NeonPiece; 4], x: *const u8) -> int32x4_t {
    // SAFETY: the caller's contract, and a value of the type exists.
    unsafe {
        let of = |i: usize| (vreinterpretq_s8_u8(weights[i].0), vld1q_s8(x.add(64 * i).cast()));
        let (w, x) = of(0);
        // Four products of 63 and 128 fit 16 bits.
        let mut first = vmull_s8(vget_low_s8(w), vget_low_s8(x));
        let mut second = vmull_high_s8(w, x);
        for i in 1..4 {
            let (w, x) = of(i);
            first = vmlal_s8(first, vget_low_s8(w), vget_low_s8(x));
            second = vmlal_high_s8(second, w, x);
        }
        vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second))
    }
}

impl Piece for NeonPiece {
    type Ints = int32x4_t;
    type Floats = float32x4_t;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { vld1q_u8(p) })
    }
    #[inline(always)]
    fn bits(self, by: i32, mask: u8) -> Self {
        // Negative counts shift right.
        Self(call!(vandq_u8(vshlq_u8(self.0, vdupq_n_s8(by as i8)), vdupq_n_u8(mask))))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(call!(vorrq_u8(self.0, b.0)))
    }
    #[inline(always)]
    fn interleave_32(a: Self, b: Self) -> [Self; 2] {
        call!({
            let (a, b) = (vreinterpretq_u32_u8(a.0), vreinterpretq_u32_u8(b.0));
            [vzip1q_u32(a, b), vzip2q_u32(a, b)].each(|x| Self(vreinterpretq_u8_u32(x)))
        })
    }
    #[inline(always)]
    fn interleave_64(a: Self, b: Self) -> [Self; 2] {
        call!({
            let (a, b) = (vreinterpretq_u64_u8(a.0), vreinterpretq_u64_u8(b.0));
            [vzip1q_u64(a, b), vzip2q_u64(a, b)].each(|x| Self(vreinterpretq_u8_u64(x)))
        })
    }

    #[inline(always)]
    unsafe fn dots<const INT8: bool>(weights: [Self; 4], x: *const u8) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe {
            let high = plane(weights, x);
            if INT8 { high } else { vaddq_s32(vshlq_n_s32::<8>(high), plane(weights, x.add(256))) }
        }
    }
    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe {
            let (w, x) = (vmovl_s8(vld1_s8(w.cast())), vreinterpretq_s16_u8(vld1q_u8(x)));
            vpaddq_s32(vmull_s16(vget_low_s16(w), vget_low_s16(x)), vmull_high_s16(w, x))
        }
    }

    #[inline(always)]
    unsafe fn byte_dot(w: *const u8, x: *const u8) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe {
            let (w, x) = (vld1q_s8(w.cast()), vld1q_s8(x.cast()));
            // Two products of 128 and 127 fit 16 bits.
            vpaddlq_s16(vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x))
        }
    }

    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe { vld1q_s32(p) }
    }
    #[inline(always)]
    fn add_ints(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        call!(vaddq_s32(a, b))
    }
    #[inline(always)]
    fn add_pairs(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        call!(vpaddq_s32(a, b))
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        call!(vdupq_n_f32(x))
    }
    #[inline(always)]
    unsafe fn load_floats(p: *const f32) -> float32x4_t {
        // SAFETY: the caller's contract.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store_floats(x: float32x4_t, p: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { vst1q_f32(p, x) }
    }
    #[inline(always)]
    fn to_floats(x: int32x4_t) -> float32x4_t {
        call!(vcvtq_f32_s32(x))
    }
    #[inline(always)]
    fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        call!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        call!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        call!(vmulq_f32(a, b))
    }
}
