use std::arch::x86_64::*;

use super::{Bytes, MINIMA, Order};

/// Two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Bytes([__m256i; 2]);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller vouches for it, so AVX2 and F16C are there.
        unsafe { $e }
    };
}

/// The f32 of four f16 in memory. The intrinsics would do, but where only one of the four is used the compiler loads that
/// one into a register that holds something else, and waits for it.
///
/// # Safety
/// F16C is there; `p` is good for reading eight bytes.
#[inline]
#[target_feature(enable = "f16c")]
pub(super) unsafe fn four_halves(p: *const u8) -> __m128 {
    let four: __m128;
    // SAFETY: the instruction reads eight bytes, which the caller vouches for, and writes a register.
    unsafe {
        std::arch::asm!(
            "vcvtph2ps {four}, qword ptr [{p}]",
            four = out(xmm_reg) four,
            p = in(reg) p,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    four
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
    /// Scales and minima, once in every 64 bits.
    type Codes = [__m256i; 2];
    /// Eight codes of 16 bits each, in both halves.
    type SignedCodes = [__m256i; 2];
    type Scales = [__m256i; 2];
    type Halves = __m128;

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
    fn prefetch(p: *const u8) {
        call!(_mm_prefetch::<_MM_HINT_T0>(p.cast()));
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
    unsafe fn correct(planes: [&[i8; 64]; 2], offset: i16, correction: *mut u8) {
        for half in 0..2 {
            let plane = |i: usize| {
                // SAFETY: the array holds 64 bytes.
                unsafe {
                    let x = _mm256_loadu_si256(planes[i].as_ptr().add(32 * half).cast());
                    _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), x), _mm256_set1_epi16(-offset))
                }
            };
            let both = call!(_mm256_packs_epi32(plane(0), plane(1)));
            // SAFETY: the caller's contract; the store is unaligned.
            unsafe { _mm256_storeu_si256(correction.add(32 * half).cast(), both) }
        }
    }

    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: [__m256i; 2],
        sums: [__m256i; 2],
    ) -> [__m256i; 2] {
        std::array::from_fn(|half| {
            let plane = |i: usize| {
                // SAFETY: the caller's contract; the load is unaligned.
                unsafe {
                    let x = _mm256_loadu_si256(planes[i].add(32 * half).cast());
                    _mm256_madd_epi16(_mm256_maddubs_epi16(self.0[half], x), _mm256_set1_epi16(1))
                }
            };
            let mut both = call!(_mm256_packs_epi32(plane(0), plane(1)));
            if CORRECTED {
                // SAFETY: the caller's contract; the load is unaligned.
                both = unsafe { _mm256_add_epi16(both, _mm256_loadu_si256(correction.add(32 * half).cast())) };
            }
            call!(_mm256_add_epi32(sums[half], _mm256_madd_epi16(both, scale[half])))
        })
    }

    #[inline(always)]
    unsafe fn codes(scales: [u8; 8], minima: [u8; 8]) -> [__m256i; 2] {
        [scales, minima].map(|codes| call!(_mm256_set1_epi64x(i64::from_le_bytes(codes))))
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
        let order = |half: usize| call!(_mm256_loadu_si256(Order::<V>::AFFINE.as_ptr().add(32 * half).cast()));
        [0, 1].map(|half| call!(_mm256_shuffle_epi8(codes[0], order(half))))
    }
    #[inline(always)]
    fn signed_scales<const V: usize>(codes: [__m256i; 2]) -> [__m256i; 2] {
        let order = |half: usize| call!(_mm256_loadu_si256(Order::<V>::SIGNED.as_ptr().add(32 * half).cast()));
        [0, 1].map(|half| call!(_mm256_shuffle_epi8(codes[V / 2], order(half))))
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
    fn add_ints(sums: [__m256; 2], value: [__m256i; 2], factor: [__m256; 2]) -> [__m256; 2] {
        std::array::from_fn(|i| call!(_mm256_add_ps(sums[i], _mm256_mul_ps(_mm256_cvtepi32_ps(value[i]), factor[0]))))
    }
    #[inline(always)]
    fn add_two_ints(sums: [__m256; 2], a: [__m256i; 2], b: [__m256i; 2], factor: [__m256; 2]) -> [__m256; 2] {
        std::array::from_fn(|i| {
            call!({
                let value = _mm256_add_ps(_mm256_cvtepi32_ps(a[i]), _mm256_cvtepi32_ps(b[i]));
                _mm256_add_ps(sums[i], _mm256_mul_ps(value, factor[0]))
            })
        })
    }
    #[inline(always)]
    unsafe fn sub_minima(sums: [__m256; 2], codes: [__m256i; 2], x: *const f32, factor: [__m256; 2]) -> [__m256; 2] {
        std::array::from_fn(|half| {
            // SAFETY: the caller's contract; the loads are unaligned.
            unsafe {
                let order = _mm256_loadu_si256(MINIMA.as_ptr().add(32 * half).cast());
                let minima = _mm256_shuffle_epi8(codes[1], order);
                let products = _mm256_mul_ps(_mm256_cvtepi32_ps(minima), _mm256_loadu_ps(x.add(8 * half)));
                _mm256_sub_ps(sums[half], _mm256_mul_ps(products, factor[0]))
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
    unsafe fn halves(p: *const u8) -> __m128 {
        // SAFETY: the caller's contract; this set is chosen only where F16C is.
        unsafe { four_halves(p) }
    }
    #[inline(always)]
    fn factor<const I: usize>(halves: __m128, unit: f32) -> [__m256; 2] {
        call!({
            let scaled = _mm_mul_ps(halves, _mm_set1_ps(unit));
            let all = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(scaled), _mm256_set1_epi32(I as i32));
            [if I == 0 { _mm256_broadcastss_ps(scaled) } else { all }; 2]
        })
    }
    #[inline(always)]
    fn four(halves: __m128) -> [f32; 4] {
        // SAFETY: four f32 are four f32.
        unsafe { std::mem::transmute(halves) }
    }

    #[inline(always)]
    unsafe fn store<const AFFINE: bool>(self, offset: i32, steps: [(f32, f32); 4], out: [*mut f32; 4]) {
        for i in 0..4 {
            // SAFETY: the caller's contract; the store is unaligned.
            unsafe {
                let whole = self.0[i / 2];
                let mut quarter =
                    if i % 2 == 0 { _mm256_castsi256_si128(whole) } else { _mm256_extracti128_si256::<1>(whole) };
                for j in 0..2 {
                    let mut q = _mm256_cvtepu8_epi32(quarter);
                    quarter = _mm_unpackhi_epi64(quarter, quarter);
                    if offset != 0 {
                        q = _mm256_sub_epi32(q, _mm256_set1_epi32(offset));
                    }
                    let mut y = _mm256_mul_ps(_mm256_cvtepi32_ps(q), _mm256_set1_ps(steps[i].0));
                    if AFFINE {
                        y = _mm256_sub_ps(y, _mm256_set1_ps(steps[i].1));
                    }
                    _mm256_storeu_ps(out[i].add(8 * j), y);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn store_signed(p: *const u8, scale: f32, out: *mut f32) {
        for i in 0..4 {
            // SAFETY: the caller's contract; loads and stores are unaligned.
            unsafe {
                let q = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8 * i).cast()));
                _mm256_storeu_ps(out.add(8 * i), _mm256_mul_ps(_mm256_cvtepi32_ps(q), _mm256_set1_ps(scale)));
            }
        }
    }
}
