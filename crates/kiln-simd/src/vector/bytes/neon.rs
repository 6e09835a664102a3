use std::arch::aarch64::*;

use super::four::Piece;

/// One register. Every NEON multiplies signed bytes to words, and weights are below 128; the dot products of newer
/// processors are not needed to stay ahead of the memory.
#[derive(Clone, Copy)]
pub(super) struct NeonPiece(uint8x16_t);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller vouches for it, so NEON is there.
        unsafe { $e }
    };
}

/// The sums of four products; those of two fit a word.
#[inline(always)]
fn fours(bytes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    call!({
        let bytes = vreinterpretq_s8_u8(bytes);
        let first = vmull_s8(vget_low_s8(bytes), vget_low_s8(x));
        let second = vmull_high_s8(bytes, x);
        vpaddlq_s16(vpaddq_s16(first, second))
    })
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
    fn and(self, mask: u8) -> Self {
        Self(call!(vandq_u8(self.0, vdupq_n_u8(mask))))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(call!(vorrq_u8(self.0, b.0)))
    }
    #[inline(always)]
    fn shift<const BY: i32>(self) -> Self {
        // Negative counts shift right.
        Self(call!(vshlq_u8(self.0, vdupq_n_s8(BY as i8))))
    }
    #[inline(always)]
    fn widen(self) -> [int32x4_t; 4] {
        call!({
            let (low, high) = (vmovl_u8(vget_low_u8(self.0)), vmovl_high_u8(self.0));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_high_u16(low)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_high_u16(high)),
            ]
        })
    }

    #[inline(always)]
    unsafe fn zeros() -> int32x4_t {
        call!(vdupq_n_s32(0))
    }
    #[inline(always)]
    unsafe fn scale(code: i32) -> int32x4_t {
        call!(vcombine_s32(vdup_n_s32(code << 8), vdup_n_s32(code)))
    }
    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: int32x4_t,
        sums: int32x4_t,
    ) -> int32x4_t {
        // SAFETY: the caller's contract.
        unsafe {
            let [high, low] = planes.map(|plane| fours(self.0, vld1q_s8(plane.cast())));
            let mut eights = vpaddq_s32(high, low);
            if CORRECTED {
                eights = vpadalq_s16(eights, vreinterpretq_s16_u8(vld1q_u8(correction)));
            }
            vmlaq_s32(sums, eights, scale)
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
