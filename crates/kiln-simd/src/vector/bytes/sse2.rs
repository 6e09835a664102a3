use std::arch::x86_64::*;

use super::four::Piece;

/// One register. SSE2 multiplies words, not bytes: planes are widened for every product.
#[derive(Clone, Copy)]
pub(super) struct Sse2Piece(__m128i);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: SSE2 is part of x86-64, and the operands are values.
        unsafe { $e }
    };
}

/// The sums of four products of a byte with a signed byte.
#[inline(always)]
fn fours(bytes: __m128i, x: __m128i) -> __m128i {
    call!({
        let (zero, sign) = (_mm_setzero_si128(), _mm_cmpgt_epi8(_mm_setzero_si128(), x));
        let first = _mm_madd_epi16(_mm_unpacklo_epi8(bytes, zero), _mm_unpacklo_epi8(x, sign));
        let second = _mm_madd_epi16(_mm_unpackhi_epi8(bytes, zero), _mm_unpackhi_epi8(x, sign));
        // Pairs fit 16 bits: packed, a product with ones adds them up.
        _mm_madd_epi16(_mm_packs_epi32(first, second), _mm_set1_epi16(1))
    })
}

impl Piece for Sse2Piece {
    type Ints = __m128i;
    type Floats = __m128;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { _mm_loadu_si128(p.cast()) })
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        call!(_mm_prefetch::<_MM_HINT_T0>(p.cast()));
    }
    #[inline(always)]
    fn and(self, mask: u8) -> Self {
        Self(call!(_mm_and_si128(self.0, _mm_set1_epi8(mask as i8))))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(call!(_mm_or_si128(self.0, b.0)))
    }
    #[inline(always)]
    fn shift<const BY: i32>(self) -> Self {
        Self(call!(if BY >= 0 {
            _mm_sll_epi16(self.0, _mm_cvtsi32_si128(BY))
        } else {
            _mm_srl_epi16(self.0, _mm_cvtsi32_si128(-BY))
        }))
    }
    #[inline(always)]
    fn widen(self) -> [__m128i; 4] {
        call!({
            let zero = _mm_setzero_si128();
            let (low, high) = (_mm_unpacklo_epi8(self.0, zero), _mm_unpackhi_epi8(self.0, zero));
            [
                _mm_unpacklo_epi16(low, zero),
                _mm_unpackhi_epi16(low, zero),
                _mm_unpacklo_epi16(high, zero),
                _mm_unpackhi_epi16(high, zero),
            ]
        })
    }

    #[inline(always)]
    unsafe fn zeros() -> __m128i {
        call!(_mm_setzero_si128())
    }
    /// As words, four of each: a code fits a signed byte.
    #[inline(always)]
    unsafe fn scale(code: i32) -> __m128i {
        call!({
            let code = _mm_set1_epi16(code as i16);
            _mm_unpacklo_epi64(_mm_slli_epi16::<8>(code), code)
        })
    }
    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: __m128i,
        sums: __m128i,
    ) -> __m128i {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let [high, low] = planes.map(|plane| fours(self.0, _mm_loadu_si128(plane.cast())));
            let mut both = _mm_packs_epi32(high, low);
            if CORRECTED {
                both = _mm_add_epi16(both, _mm_loadu_si128(correction.cast()));
            }
            _mm_add_epi32(sums, _mm_madd_epi16(both, scale))
        }
    }
    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> __m128i {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let w = _mm_loadl_epi64(w.cast());
            let w = _mm_unpacklo_epi8(w, _mm_cmpgt_epi8(_mm_setzero_si128(), w));
            _mm_madd_epi16(w, _mm_loadu_si128(x.cast()))
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m128 {
        call!(_mm_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load_floats(p: *const f32) -> __m128 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_floats(x: __m128, p: *mut f32) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { _mm_storeu_ps(p, x) }
    }
    #[inline(always)]
    fn to_floats(x: __m128i) -> __m128 {
        call!(_mm_cvtepi32_ps(x))
    }
    #[inline(always)]
    fn add(a: __m128, b: __m128) -> __m128 {
        call!(_mm_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(a: __m128, b: __m128) -> __m128 {
        call!(_mm_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(a: __m128, b: __m128) -> __m128 {
        call!(_mm_mul_ps(a, b))
    }
}
