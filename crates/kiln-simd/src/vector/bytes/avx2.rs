use std::arch::x86_64::*;

use super::Bytes;

/// Two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Bytes([__m256i; 2]);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller vouches for it, so AVX2 and F16C are there.
        unsafe { $e }
    };
}

#[inline(always)]
fn shift<const BY: i32>(x: __m256i) -> __m256i {
    call!(if BY >= 0 {
        _mm256_sll_epi16(x, _mm_cvtsi32_si128(BY))
    } else {
        _mm256_srl_epi16(x, _mm_cvtsi32_si128(-BY))
    })
}

impl Bytes for Avx2Bytes {
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];
    /// Eight codes in each, twice.
    type Codes = [__m256i; 2];
    type Scales = [__m256i; 2];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the loads are unaligned.
        Self(unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] })
    }
    #[inline(always)]
    unsafe fn load_twice(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self([unsafe { _mm256_loadu_si256(p.cast()) }; 2])
    }
    #[inline(always)]
    fn low_nibbles(self) -> Self {
        Self(self.0.map(|x| call!(_mm256_and_si256(x, _mm256_set1_epi8(15)))))
    }
    #[inline(always)]
    fn high_nibbles(self) -> Self {
        Self(self.0.map(|x| call!(_mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi8(15)))))
    }
    #[inline(always)]
    fn with_bits<const A: i32, const B: i32>(self, bits: Self, mask: u8) -> Self {
        let bits = [shift::<A>(bits.0[0]), shift::<B>(bits.0[1])];
        Self(std::array::from_fn(|i| {
            call!(_mm256_or_si256(self.0[i], _mm256_and_si256(bits[i], _mm256_set1_epi8(mask as i8))))
        }))
    }

    #[inline(always)]
    unsafe fn ints() -> [__m256i; 2] {
        [call!(_mm256_setzero_si256()); 2]
    }
    #[inline(always)]
    unsafe fn floats() -> [__m256; 2] {
        [call!(_mm256_setzero_ps()); 2]
    }

    #[inline(always)]
    unsafe fn correct(x: &[i8; 64], offset: i16, correction: *mut u8) {
        for i in 0..2 {
            // SAFETY: the array holds 64 bytes; the caller gives as many for the correction.
            unsafe {
                let x = _mm256_loadu_si256(x.as_ptr().add(32 * i).cast());
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
                let sums = _mm256_mullo_epi16(pairs, _mm256_set1_epi16(-offset));
                _mm256_storeu_si256(correction.add(32 * i).cast(), sums);
            }
        }
    }

    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        x: *const u8,
        correction: *const u8,
        scale: [__m256i; 2],
        sums: [__m256i; 2],
    ) -> [__m256i; 2] {
        std::array::from_fn(|i| {
            // SAFETY: the caller's contract; the loads are unaligned.
            unsafe {
                let x = _mm256_loadu_si256(x.add(32 * i).cast());
                let mut pairs = _mm256_maddubs_epi16(self.0[i], x);
                if CORRECTED {
                    pairs = _mm256_add_epi16(pairs, _mm256_loadu_si256(correction.add(32 * i).cast()));
                }
                _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, scale[i]))
            }
        })
    }

    #[inline(always)]
    unsafe fn affine_codes(scales: [u8; 8], minima: [u8; 8]) -> ([__m256i; 2], [__m256i; 2]) {
        let spread = |codes: [u8; 8]| {
            call!({
                let order = _mm_setr_epi8(0, 0, 2, 2, 1, 1, 3, 3, 4, 4, 6, 6, 5, 5, 7, 7);
                let codes = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(_mm_cvtsi64_si128(i64::from_le_bytes(codes)), order));
                [_mm256_permute4x64_epi64::<0x44>(codes), _mm256_permute4x64_epi64::<0xee>(codes)]
            })
        };
        (spread(scales), spread(minima))
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [__m256i; 2] {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe {
            let codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast()));
            [_mm256_permute4x64_epi64::<0x44>(codes), _mm256_permute4x64_epi64::<0xee>(codes)]
        }
    }
    #[inline(always)]
    fn scales<const V: usize>(codes: [__m256i; 2]) -> [__m256i; 2] {
        std::array::from_fn(|i| {
            // Register i serves groups 4 V + 2 i (low half) and the next (high half).
            let order: [u8; 32] = std::array::from_fn(|b| (2 * ((4 * V + 2 * i + b / 16) % 8) + b % 2) as u8);
            call!(_mm256_shuffle_epi8(codes[V / 2], _mm256_loadu_si256(order.as_ptr().cast())))
        })
    }

    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> [__m256i; 2] {
        std::array::from_fn(|i| {
            // SAFETY: the caller's contract; the loads are unaligned.
            unsafe {
                let w = _mm256_cvtepi8_epi16(_mm_loadu_si128(w.add(16 * i).cast()));
                _mm256_madd_epi16(w, _mm256_loadu_si256(x.add(32 * i).cast()))
            }
        })
    }

    #[inline(always)]
    fn add_planes(sums: [__m256; 2], high: [__m256i; 2], low: [__m256i; 2], factor: f32) -> [__m256; 2] {
        let value = std::array::from_fn(|i| call!(_mm256_add_epi32(_mm256_slli_epi32::<8>(high[i]), low[i])));
        Self::add_ints(sums, value, factor)
    }
    #[inline(always)]
    fn add_ints(sums: [__m256; 2], value: [__m256i; 2], factor: f32) -> [__m256; 2] {
        std::array::from_fn(|i| {
            call!(_mm256_add_ps(sums[i], _mm256_mul_ps(_mm256_cvtepi32_ps(value[i]), _mm256_set1_ps(factor))))
        })
    }
    #[inline(always)]
    unsafe fn sub_codes(sums: [__m256; 2], codes: [__m256i; 2], x: *const f32, factor: f32) -> [__m256; 2] {
        std::array::from_fn(|i| {
            // SAFETY: the caller's contract; the loads are unaligned.
            unsafe {
                let codes = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(codes[i])));
                let products = _mm256_mul_ps(codes, _mm256_loadu_ps(x.add(8 * i)));
                _mm256_sub_ps(sums[i], _mm256_mul_ps(products, _mm256_set1_ps(factor)))
            }
        })
    }
    #[inline(always)]
    fn total(sums: [__m256; 2]) -> f32 {
        call!({
            let eight = _mm256_add_ps(sums[0], sums[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    unsafe fn half(p: *const u8) -> f32 {
        // SAFETY: the caller gives two readable bytes; this set is chosen only where F16C is.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(p.cast::<u16>().read_unaligned())))) }
    }
}
