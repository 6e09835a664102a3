use std::arch::x86_64::*;

use super::portable::PortableBytes;
use super::{AFFINE_ORDER, Bytes};

/// Four registers. SSE2 multiplies words, not bytes, and has no shuffle of bytes: planes are widened for every product,
/// and codes are spread by scalar code.
#[derive(Clone, Copy)]
pub(crate) struct Sse2Bytes([__m128i; 4]);

// SAFETY of the blocks below that give no other reason: the intrinsics need SSE2, which every x86-64 has.
macro_rules! call {
    ($e:expr) => {
        // SAFETY: SSE2 is part of x86-64, and the operands are values.
        unsafe { $e }
    };
}

#[inline(always)]
fn shift<const BY: i32>(x: __m128i) -> __m128i {
    call!(if BY >= 0 { _mm_sll_epi16(x, _mm_cvtsi32_si128(BY)) } else { _mm_srl_epi16(x, _mm_cvtsi32_si128(-BY)) })
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

/// Four words of a code times 256, four of the code; it fits a signed byte.
#[inline(always)]
fn spread(code: i32) -> __m128i {
    call!({
        let code = _mm_set1_epi16(code as i16);
        _mm_unpacklo_epi64(_mm_slli_epi16::<8>(code), code)
    })
}

impl Bytes for Sse2Bytes {
    type Ints = [__m128i; 4];
    type Floats = [__m128; 4];
    type Codes = ([u8; 8], [u8; 8]);
    type SignedCodes = [i8; 16];
    type Scales = [__m128i; 4];
    type Halves = [f32; 4];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the loads are unaligned.
        Self([0, 16, 32, 48].map(|at| unsafe { _mm_loadu_si128(p.add(at).cast()) }))
    }
    #[inline(always)]
    unsafe fn load_twice(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the loads are unaligned.
        Self([0, 16, 0, 16].map(|at| unsafe { _mm_loadu_si128(p.add(at).cast()) }))
    }
    #[inline(always)]
    fn low_nibbles(self) -> Self {
        Self(self.0.map(|x| call!(_mm_and_si128(x, _mm_set1_epi8(15)))))
    }
    #[inline(always)]
    fn high_nibbles(self) -> Self {
        Self(self.0.map(|x| call!(_mm_and_si128(_mm_srli_epi16::<4>(x), _mm_set1_epi8(15)))))
    }
    #[inline(always)]
    fn with_bits<const A: i32, const B: i32>(self, bits: Self, mask: u8) -> Self {
        Self(std::array::from_fn(|i| {
            let bits = if i < 2 { shift::<A>(bits.0[i]) } else { shift::<B>(bits.0[i]) };
            call!(_mm_or_si128(self.0[i], _mm_and_si128(bits, _mm_set1_epi8(mask as i8))))
        }))
    }

    #[inline(always)]
    unsafe fn ints() -> [__m128i; 4] {
        [call!(_mm_setzero_si128()); 4]
    }
    #[inline(always)]
    unsafe fn floats() -> [__m128; 4] {
        [call!(_mm_setzero_ps()); 4]
    }

    #[inline(always)]
    unsafe fn correct(planes: [&[i8; 64]; 2], offset: i16, correction: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::correct(planes, offset, correction) }
    }

    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: [__m128i; 4],
        sums: [__m128i; 4],
    ) -> [__m128i; 4] {
        std::array::from_fn(|i| {
            // SAFETY: the caller's contract; the loads are unaligned.
            unsafe {
                let plane = |p: usize| fours(self.0[i], _mm_loadu_si128(planes[p].add(16 * i).cast()));
                let mut both = _mm_packs_epi32(plane(0), plane(1));
                if CORRECTED {
                    both = _mm_add_epi16(both, _mm_loadu_si128(correction.add(16 * i).cast()));
                }
                _mm_add_epi32(sums[i], _mm_madd_epi16(both, scale[i]))
            }
        })
    }

    #[inline(always)]
    unsafe fn codes(scales: [u8; 8], minima: [u8; 8]) -> Self::Codes {
        (scales, minima)
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [i8; 16] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[i8; 16]>().read() }
    }
    #[inline(always)]
    fn scales<const V: usize>(codes: Self::Codes) -> [__m128i; 4] {
        let [a, b] = [0, 1].map(|half| spread(i32::from(codes.0[AFFINE_ORDER[2 * V + half]])));
        [a, a, b, b]
    }
    #[inline(always)]
    fn signed_scales<const V: usize>(codes: [i8; 16]) -> [__m128i; 4] {
        [0, 1, 2, 3].map(|i| spread(i32::from(codes[4 * V + i])))
    }

    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> [__m128i; 4] {
        std::array::from_fn(|i| {
            // SAFETY: the caller's contract; the loads are unaligned.
            unsafe {
                let w = _mm_loadl_epi64(w.add(8 * i).cast());
                let w = _mm_unpacklo_epi8(w, _mm_cmpgt_epi8(_mm_setzero_si128(), w));
                _mm_madd_epi16(w, _mm_loadu_si128(x.add(16 * i).cast()))
            }
        })
    }

    #[inline(always)]
    fn add_ints(sums: [__m128; 4], value: [__m128i; 4], factor: [__m128; 4]) -> [__m128; 4] {
        std::array::from_fn(|i| call!(_mm_add_ps(sums[i], _mm_mul_ps(_mm_cvtepi32_ps(value[i]), factor[i]))))
    }
    #[inline(always)]
    fn add_two_ints(sums: [__m128; 4], a: [__m128i; 4], b: [__m128i; 4], factor: [__m128; 4]) -> [__m128; 4] {
        std::array::from_fn(|i| {
            call!({
                let value = _mm_add_ps(_mm_cvtepi32_ps(a[i]), _mm_cvtepi32_ps(b[i]));
                _mm_add_ps(sums[i], _mm_mul_ps(value, factor[i]))
            })
        })
    }
    #[inline(always)]
    unsafe fn sub_minima(sums: [__m128; 4], codes: Self::Codes, x: *const f32, factor: [__m128; 4]) -> [__m128; 4] {
        std::array::from_fn(|i| {
            // SAFETY: the caller's contract; the load is unaligned.
            unsafe {
                let (a, b) = (f32::from(codes.1[2 * i]), f32::from(codes.1[2 * i + 1]));
                let products = _mm_mul_ps(_mm_setr_ps(a, a, b, b), _mm_loadu_ps(x.add(4 * i)));
                _mm_sub_ps(sums[i], _mm_mul_ps(products, factor[i]))
            }
        })
    }
    #[inline(always)]
    fn total(sums: [__m128; 4]) -> f32 {
        call!({
            let four = _mm_add_ps(_mm_add_ps(sums[0], sums[2]), _mm_add_ps(sums[1], sums[3]));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::halves(p) }
    }
    #[inline(always)]
    fn factor<const I: usize>(halves: [f32; 4], unit: f32) -> [__m128; 4] {
        [call!(_mm_set1_ps(halves[I] * unit)); 4]
    }
    #[inline(always)]
    fn four(halves: [f32; 4]) -> [f32; 4] {
        halves
    }

    #[inline(always)]
    unsafe fn store<const AFFINE: bool>(self, offset: i32, steps: [(f32, f32); 4], out: [*mut f32; 4]) {
        let zero = call!(_mm_setzero_si128());
        for i in 0..4 {
            let (low, high) = call!((_mm_unpacklo_epi8(self.0[i], zero), _mm_unpackhi_epi8(self.0[i], zero)));
            for (j, words) in [low, low, high, high].into_iter().enumerate() {
                // SAFETY: the caller's contract; the store is unaligned.
                unsafe {
                    let q = if j % 2 == 0 { _mm_unpacklo_epi16(words, zero) } else { _mm_unpackhi_epi16(words, zero) };
                    let q = _mm_sub_epi32(q, _mm_set1_epi32(offset));
                    let mut y = _mm_mul_ps(_mm_cvtepi32_ps(q), _mm_set1_ps(steps[i].0));
                    if AFFINE {
                        y = _mm_sub_ps(y, _mm_set1_ps(steps[i].1));
                    }
                    _mm_storeu_ps(out[i].add(4 * j), y);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn store_signed(p: *const u8, scale: f32, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::store_signed(p, scale, out) }
    }
}
