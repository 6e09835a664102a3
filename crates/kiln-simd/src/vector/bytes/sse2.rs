use std::arch::x86_64::*;

use super::four::Piece;

/// One register. SSE2 multiplies words, not bytes, so both planes are combined into one of words.
#[derive(Clone, Copy)]
pub(super) struct Sse2Piece(__m128i);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: SSE2 is part of x86-64, and the operands are values.
        unsafe { $e }
    };
}

impl Piece for Sse2Piece {
    type Ints = __m128i;
    type Floats = __m128;
    const APART: bool = true;

    #[inline(always)]
    fn prefetch(p: *const u8) {
        call!(_mm_prefetch::<_MM_HINT_T0>(p.cast()));
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { _mm_loadu_si128(p.cast()) })
    }
    #[inline(always)]
    fn bits(self, by: i32, mask: u8) -> Self {
        Self(call!({
            let shifted = if by >= 0 {
                _mm_sll_epi16(self.0, _mm_cvtsi32_si128(by))
            } else {
                _mm_srl_epi16(self.0, _mm_cvtsi32_si128(-by))
            };
            _mm_and_si128(shifted, _mm_set1_epi8(mask as i8))
        }))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(call!(_mm_or_si128(self.0, b.0)))
    }
    #[inline(always)]
    fn interleave_32(a: Self, b: Self) -> [Self; 2] {
        call!([Self(_mm_unpacklo_epi32(a.0, b.0)), Self(_mm_unpackhi_epi32(a.0, b.0))])
    }
    #[inline(always)]
    fn interleave_64(a: Self, b: Self) -> [Self; 2] {
        call!([Self(_mm_unpacklo_epi64(a.0, b.0)), Self(_mm_unpackhi_epi64(a.0, b.0))])
    }

    #[inline(always)]
    unsafe fn dots<const INT8: bool>(weights: [Self; 4], x: *const u8) -> __m128i {
        // SAFETY: the caller's contract; loads are unaligned.
        unsafe {
            let zero = _mm_setzero_si128();
            let (mut first, mut second) = (zero, zero);
            for i in 0..4 {
                let load = |at: usize| _mm_loadu_si128(x.add(at + 64 * i).cast());
                let w = weights[i].0;
                // In a word the low part counts as unsigned: if it is negative, that is 256 too many.
                let (low, high) = if INT8 {
                    (load(0), _mm_cmpgt_epi8(zero, load(0)))
                } else {
                    (load(256), _mm_add_epi8(load(0), _mm_cmpgt_epi8(zero, load(256))))
                };
                let (x0, x1) = (_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high));
                first = _mm_add_epi32(first, _mm_madd_epi16(_mm_unpacklo_epi8(w, zero), x0));
                second = _mm_add_epi32(second, _mm_madd_epi16(_mm_unpackhi_epi8(w, zero), x1));
            }
            Self::add_pairs(first, second)
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
    unsafe fn byte_dot(w: *const u8, x: *const u8) -> __m128i {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let (w, x) = (_mm_loadu_si128(w.cast()), _mm_loadu_si128(x.cast()));
            // Each byte fills both halves of a word, and a shift keeps one with its sign.
            let low = |v: __m128i| _mm_srai_epi16::<8>(_mm_unpacklo_epi8(v, v));
            let high = |v: __m128i| _mm_srai_epi16::<8>(_mm_unpackhi_epi8(v, v));
            _mm_add_epi32(_mm_madd_epi16(low(w), low(x)), _mm_madd_epi16(high(w), high(x)))
        }
    }

    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> __m128i {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm_loadu_si128(p.cast()) }
    }
    #[inline(always)]
    fn add_ints(a: __m128i, b: __m128i) -> __m128i {
        call!(_mm_add_epi32(a, b))
    }
    #[inline(always)]
    fn add_pairs(a: __m128i, b: __m128i) -> __m128i {
        call!({
            let (a, b) = (_mm_castsi128_ps(a), _mm_castsi128_ps(b));
            let (even, odd) = (_mm_shuffle_ps::<0x88>(a, b), _mm_shuffle_ps::<0xdd>(a, b));
            _mm_add_epi32(_mm_castps_si128(even), _mm_castps_si128(odd))
        })
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
