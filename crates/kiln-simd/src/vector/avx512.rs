use std::arch::x86_64::*;

use super::Vector;

/// Sixteen lanes, mask registers, 32 vector registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

super::operators!(Avx512: Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps;
    neg |x: Avx512| x.xor(x.of(-0.0)));

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller vouches for it, so AVX-512 F, BW, DQ and VL are there.
        unsafe { $e }
    };
}

/// The first `n <= 16` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl Vector for Avx512 {
    const LANES: usize = 16;
    const FUSED: bool = true;
    const REGISTERS: usize = 32;
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(call!(_mm512_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's contract; lanes beyond n are not touched.
        Self(unsafe { _mm512_maskz_loadu_ps(first(n), p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller's contract; lanes beyond n are not touched.
        unsafe { _mm512_mask_storeu_ps(p, first(n), self.0) }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32) {
        // SAFETY: the caller's contract, alignment included.
        unsafe { _mm512_stream_ps(p, self.0) }
    }
    #[inline(always)]
    fn fence(self) {
        call!(_mm_sfence());
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Self(call!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(call!(_mm512_sqrt_ps(self.0)))
    }
    #[inline(always)]
    fn lesser(self, b: Self) -> Self {
        Self(call!(_mm512_min_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn greater(self, b: Self) -> Self {
        Self(call!(_mm512_max_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Self(call!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }
    #[inline(always)]
    fn scale_pow2(self, n: Self) -> Self {
        Self(call!(_mm512_scalef_ps(self.0, n.0)))
    }

    #[inline(always)]
    fn and(self, b: Self) -> Self {
        Self(call!(_mm512_and_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(call!(_mm512_or_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        Self(call!(_mm512_xor_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn lt(self, b: Self) -> __mmask16 {
        call!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn le(self, b: Self) -> __mmask16 {
        call!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn eq(self, b: Self) -> __mmask16 {
        call!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn is_nan(self) -> __mmask16 {
        call!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0))
    }
    #[inline(always)]
    fn select(mask: __mmask16, yes: Self, no: Self) -> Self {
        Self(call!(_mm512_mask_blend_ps(mask, no.0, yes.0)))
    }
    #[inline(always)]
    fn bits(mask: __mmask16) -> u32 {
        u32::from(mask)
    }
    #[inline(always)]
    fn either(a: __mmask16, b: __mmask16) -> __mmask16 {
        a | b
    }
}
