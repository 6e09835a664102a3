use std::arch::aarch64::*;

use super::{MAX_LANES, Vector};

/// Four lanes with fused multiply-add and 32 registers.
#[derive(Clone, Copy)]
pub(crate) struct Neon(float32x4_t);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller guarantees it, so NEON is available.
        unsafe { $e }
    };
}
super::operators!(Neon: Add add vaddq_f32, Sub sub vsubq_f32, Mul mul vmulq_f32, Div div vdivq_f32;
    neg |x: Neon| Neon(call!(vnegq_f32(x.0))));

/// A bitwise operation on f32 lanes.
macro_rules! bitwise {
    ($function:ident, $a:expr, $b:expr) => {
        Self(call!(vreinterpretq_f32_u32($function(vreinterpretq_u32_f32($a.0), vreinterpretq_u32_f32($b.0)))))
    };
}

/// A window of four starting at `4 - n` has its first `n` entries set.
static FIRST: [u32; 8] = [u32::MAX, u32::MAX, u32::MAX, u32::MAX, 0, 0, 0, 0];

/// # Safety
/// `n <= 4`.
#[inline(always)]
unsafe fn first(n: usize) -> uint32x4_t {
    // SAFETY: the window is inside the array for n <= 4.
    unsafe { vld1q_u32(FIRST.as_ptr().add(4 - n)) }
}

impl Vector for Neon {
    const LANES: usize = 4;
    const FUSED: bool = true;
    const REGISTERS: usize = 32;
    type Mask = uint32x4_t;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(call!(vdupq_n_f32(x)))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract; the load needs the alignment of bytes only.
        Self(unsafe { vld1q_f32(p) })
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // Not through memory: a load that covers several stores waits until they have left the store buffer. SAFETY:
        // the caller gives n readable f32.
        Self(unsafe {
            let two = || vcombine_f32(vld1_f32(p), vdup_n_f32(0.0));
            match n {
                0 => vdupq_n_f32(0.0),
                1 => vld1q_lane_f32::<0>(p, vdupq_n_f32(0.0)),
                2 => two(),
                3 => vld1q_lane_f32::<2>(p.add(2), two()),
                _ => vld1q_f32(p),
            }
        })
    }
    #[inline(always)]
    unsafe fn load_within(p: *const f32, skip: usize, n: usize, fill: f32) -> Self {
        // SAFETY: the caller's contract, and `skip + n <= 4`.
        unsafe {
            let (lanes, zero) = (Self::load_first(p, n).0, vdupq_n_f32(0.0));
            let lanes = match skip {
                0 => lanes,
                1 => vextq_f32::<3>(zero, lanes),
                2 => vextq_f32::<2>(zero, lanes),
                _ => vextq_f32::<1>(zero, lanes),
            };
            let mask = vbicq_u32(first(skip + n), first(skip));
            Self(vbslq_f32(mask, lanes, vdupq_n_f32(fill)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract; the store needs the alignment of bytes only.
        unsafe { vst1q_f32(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller gives n writable f32.
        unsafe {
            match n {
                0 => {}
                1 => vst1q_lane_f32::<0>(p, self.0),
                2 => vst1_f32(p, vget_low_f32(self.0)),
                3 => {
                    vst1_f32(p, vget_low_f32(self.0));
                    vst1q_lane_f32::<2>(p.add(2), self.0);
                }
                _ => vst1q_f32(p, self.0),
            }
        }
    }

    #[inline(always)]
    fn transpose(square: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        let mut turned = square;
        call!({
            let [a, b, c, d] = [square[0].0, square[1].0, square[2].0, square[3].0];
            // Even and odd columns of two rows, then the two halves of those.
            let pair = |x| vreinterpretq_f64_f32(x);
            let (ab_even, ab_odd) = (pair(vtrn1q_f32(a, b)), pair(vtrn2q_f32(a, b)));
            let (cd_even, cd_odd) = (pair(vtrn1q_f32(c, d)), pair(vtrn2q_f32(c, d)));
            turned[0] = Self(vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even)));
            turned[1] = Self(vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)));
            turned[2] = Self(vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even)));
            turned[3] = Self(vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd)));
        });
        turned
    }
    #[inline(always)]
    fn unzip(a: Self, b: Self) -> (Self, Self) {
        call!((Self(vuzp1q_f32(a.0, b.0)), Self(vuzp2q_f32(a.0, b.0))))
    }
    #[inline(always)]
    fn zip(a: Self, b: Self) -> (Self, Self) {
        call!((Self(vzip1q_f32(a.0, b.0)), Self(vzip2q_f32(a.0, b.0))))
    }
    #[inline(always)]
    fn unzip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        // A load that takes every third element of memory just written, which is cheaper than tables.
        let memory = [a.0, b.0, c.0];
        call!({
            let float32x4x3_t(a, b, c) = vld3q_f32(memory.as_ptr().cast());
            [Self(a), Self(b), Self(c)]
        })
    }
    #[inline(always)]
    fn zip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        let mut memory = [a.0; 3];
        call!(vst3q_f32(memory.as_mut_ptr().cast(), float32x4x3_t(a.0, b.0, c.0)));
        let [a, b, c] = memory;
        [Self(a), Self(b), Self(c)]
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Self(call!(vfmaq_f32(c.0, self.0, b.0)))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(call!(vsqrtq_f32(self.0)))
    }
    #[inline(always)]
    fn lesser(self, b: Self) -> Self {
        Self::select(self.lt(b), self, b)
    }
    #[inline(always)]
    fn greater(self, b: Self) -> Self {
        Self::select(b.lt(self), self, b)
    }
    #[inline(always)]
    fn scale_pow2(self, n: Self) -> Self {
        // In f64 the product is exact and its exponent cannot overflow; the cast to f32 rounds once.
        call!({
            let bias = vaddq_s32(vcvtnq_s32_f32(n.0), vdupq_n_s32(1023));
            let lo = vreinterpretq_f64_s64(vshlq_n_s64::<52>(vmovl_s32(vget_low_s32(bias))));
            let hi = vreinterpretq_f64_s64(vshlq_n_s64::<52>(vmovl_high_s32(bias)));
            let lo = vmulq_f64(vcvt_f64_f32(vget_low_f32(self.0)), lo);
            let hi = vmulq_f64(vcvt_high_f64_f32(self.0), hi);
            Self(vcvt_high_f32_f64(vcvt_f32_f64(lo), hi))
        })
    }

    #[inline(always)]
    fn and(self, b: Self) -> Self {
        bitwise!(vandq_u32, self, b)
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        bitwise!(vorrq_u32, self, b)
    }
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        bitwise!(veorq_u32, self, b)
    }

    #[inline(always)]
    fn lt(self, b: Self) -> uint32x4_t {
        call!(vcltq_f32(self.0, b.0))
    }
    #[inline(always)]
    fn le(self, b: Self) -> uint32x4_t {
        call!(vcleq_f32(self.0, b.0))
    }
    #[inline(always)]
    fn eq(self, b: Self) -> uint32x4_t {
        call!(vceqq_f32(self.0, b.0))
    }
    #[inline(always)]
    fn is_nan(self) -> uint32x4_t {
        call!(vmvnq_u32(vceqq_f32(self.0, self.0)))
    }
    #[inline(always)]
    fn select(mask: uint32x4_t, yes: Self, no: Self) -> Self {
        Self(call!(vbslq_f32(mask, yes.0, no.0)))
    }
    #[inline(always)]
    fn bits(mask: uint32x4_t) -> u32 {
        const WEIGHTS: [u32; 4] = [1, 2, 4, 8];
        call!(vaddvq_u32(vandq_u32(mask, vld1q_u32(WEIGHTS.as_ptr()))))
    }
    #[inline(always)]
    fn either(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        call!(vorrq_u32(a, b))
    }
    #[inline(always)]
    fn both(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        call!(vandq_u32(a, b))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(call!(vabsq_f32(self.0)))
    }
    // The instructions have the NaN and zero rules of IEEE 754-2019 `maximum` and `minimum`.
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        Self(call!(vmaxq_f32(self.0, b.0)))
    }
    #[inline(always)]
    fn minimum(self, b: Self) -> Self {
        Self(call!(vminq_f32(self.0, b.0)))
    }
    #[inline(always)]
    fn upper(self, n: usize) -> Self {
        call!(match n {
            2 => Self(vextq_f32::<2>(self.0, self.0)),
            _ => Self(vextq_f32::<1>(self.0, self.0)),
        })
    }
    #[inline(always)]
    fn first(self) -> f32 {
        call!(vgetq_lane_f32::<0>(self.0))
    }
    #[inline(always)]
    fn shift_exponent(self, shifted: Self) -> Self {
        call!({
            let n = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted.0));
            Self(vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(self.0), n)))
        })
    }
    #[inline(always)]
    fn mantissa_exponent(self) -> (Self, Self) {
        let tiny = self.lt(self.of(f32::MIN_POSITIVE));
        let normal = Self::select(tiny, self * self.of(16_777_216.0), self);
        call!({
            // Relative to the bits of 0.75, the exponent field counts from there.
            let start = vdupq_n_s32(0x3f40_0000);
            let offset = vsubq_s32(vreinterpretq_s32_f32(normal.0), start);
            let m = vaddq_s32(vandq_s32(offset, vdupq_n_s32(0x007f_ffff)), start);
            let k = Self(vcvtq_f32_s32(vshrq_n_s32::<23>(offset)));
            let k = Self::select(tiny, k - self.of(24.0), k);
            super::with_logarithm_rules(self, Self(vreinterpretq_f32_s32(m)), k)
        })
    }
}
