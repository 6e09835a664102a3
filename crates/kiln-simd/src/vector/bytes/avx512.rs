use std::arch::x86_64::*;

use super::Bytes;

/// One register, with the dot products of VNNI or without.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bytes<const VNNI: bool>(__m512i);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller vouches for it, so AVX-512 F, BW, DQ and VL are there, and
        // VNNI where the parameter says so.
        unsafe { $e }
    };
}

/// Every 64-bit lane of the first half by `a`, of the second by `b`.
#[inline(always)]
fn halves(a: i32, b: i32) -> __m512i {
    let (a, b) = (i64::from(a), i64::from(b));
    call!(_mm512_setr_epi64(a, a, a, a, b, b, b, b))
}

impl<const VNNI: bool> Bytes for Avx512Bytes<VNNI> {
    type Ints = __m512i;
    type Floats = __m512;
    type Codes = __m256i;
    type Scales = __m512i;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { _mm512_loadu_si512(p.cast()) })
    }
    #[inline(always)]
    unsafe fn load_twice(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    fn low_nibbles(self) -> Self {
        Self(call!(_mm512_and_si512(self.0, _mm512_set1_epi8(15))))
    }
    #[inline(always)]
    fn high_nibbles(self) -> Self {
        Self(call!(_mm512_and_si512(_mm512_srli_epi16::<4>(self.0), _mm512_set1_epi8(15))))
    }
    #[inline(always)]
    fn with_bits<const A: i32, const B: i32>(self, bits: Self, mask: u8) -> Self {
        let bits = if A == B && A == 0 {
            bits.0
        } else if A >= 0 && B >= 0 {
            call!(_mm512_sllv_epi64(bits.0, halves(A, B)))
        } else {
            call!(_mm512_srlv_epi64(bits.0, halves(-A, -B)))
        };
        // One instruction: a | (b & mask).
        Self(call!(_mm512_ternarylogic_epi32::<0xf8>(self.0, bits, _mm512_set1_epi8(mask as i8))))
    }

    #[inline(always)]
    unsafe fn ints() -> __m512i {
        call!(_mm512_setzero_si512())
    }
    #[inline(always)]
    unsafe fn floats() -> __m512 {
        call!(_mm512_setzero_ps())
    }

    #[inline(always)]
    unsafe fn correct(x: &[i8; 64], offset: i16, correction: *mut u8) {
        // SAFETY: the array holds 64 bytes; the caller gives as many for the correction.
        unsafe {
            let x = _mm512_loadu_si512(x.as_ptr().cast());
            let pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), x);
            let sums = if VNNI {
                _mm512_madd_epi16(pairs, _mm512_set1_epi16(-offset))
            } else {
                _mm512_mullo_epi16(pairs, _mm512_set1_epi16(-offset))
            };
            _mm512_storeu_si512(correction.cast(), sums);
        }
    }

    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        x: *const u8,
        correction: *const u8,
        scale: __m512i,
        sums: __m512i,
    ) -> __m512i {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let x = _mm512_loadu_si512(x.cast());
            let correction = if CORRECTED { _mm512_loadu_si512(correction.cast()) } else { _mm512_setzero_si512() };
            if VNNI {
                // The sum of four fits the low 16 bits of its lane; the scale has zero above its own.
                _mm512_dpwssd_epi32(sums, _mm512_dpbusd_epi32(correction, self.0, x), scale)
            } else {
                let mut pairs = _mm512_maddubs_epi16(self.0, x);
                if CORRECTED {
                    pairs = _mm512_add_epi16(pairs, correction);
                }
                _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, scale))
            }
        }
    }

    #[inline(always)]
    unsafe fn affine_codes(scales: [u8; 8], minima: [u8; 8]) -> (__m256i, __m256i) {
        let spread = |codes: [u8; 8]| {
            call!({
                let order = _mm_setr_epi8(0, 0, 2, 2, 1, 1, 3, 3, 4, 4, 6, 6, 5, 5, 7, 7);
                _mm256_cvtepu8_epi16(_mm_shuffle_epi8(_mm_cvtsi64_si128(i64::from_le_bytes(codes)), order))
            })
        };
        (spread(scales), spread(minima))
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> __m256i {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    fn scales<const V: usize>(codes: __m256i) -> __m512i {
        let words: [i16; 32] = std::array::from_fn(|word| (4 * V + word / 8) as i16);
        call!({
            let order = _mm512_loadu_si512(words.as_ptr().cast());
            let codes = _mm512_castsi256_si512(codes);
            if VNNI {
                _mm512_maskz_permutexvar_epi16(0x5555_5555, order, codes)
            } else {
                _mm512_permutexvar_epi16(order, codes)
            }
        })
    }

    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> __m512i {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let w = _mm512_cvtepi8_epi16(_mm256_loadu_si256(w.cast()));
            _mm512_madd_epi16(w, _mm512_loadu_si512(x.cast()))
        }
    }

    #[inline(always)]
    fn add_planes(sums: __m512, high: __m512i, low: __m512i, factor: f32) -> __m512 {
        Self::add_ints(sums, call!(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)), factor)
    }
    #[inline(always)]
    fn add_ints(sums: __m512, value: __m512i, factor: f32) -> __m512 {
        call!(_mm512_add_ps(sums, _mm512_mul_ps(_mm512_cvtepi32_ps(value), _mm512_set1_ps(factor))))
    }
    #[inline(always)]
    unsafe fn sub_codes(sums: __m512, codes: __m256i, x: *const f32, factor: f32) -> __m512 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe {
            let codes = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(codes));
            let products = _mm512_mul_ps(codes, _mm512_loadu_ps(x));
            _mm512_sub_ps(sums, _mm512_mul_ps(products, _mm512_set1_ps(factor)))
        }
    }
    #[inline(always)]
    fn total(sums: __m512) -> f32 {
        call!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps::<1>(sums));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    unsafe fn half(p: *const u8) -> f32 {
        // SAFETY: the caller gives two readable bytes; every set with AVX2 is chosen only where F16C is.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(p.cast::<u16>().read_unaligned())))) }
    }
}
