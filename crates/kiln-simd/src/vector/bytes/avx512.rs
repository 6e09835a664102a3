use std::arch::x86_64::*;

use super::avx2::four_halves;
use super::{Bytes, MINIMA, Order};

/// One register, with the dot products of VNNI and the bit matrices of GFNI or without.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bytes<const VNNI: bool>(__m512i);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller vouches for it, so AVX-512 F, BW, DQ and VL are there, and
        // VNNI and GFNI where the parameter says so.
        unsafe { $e }
    };
}

/// `sums + a₀ b₀ + a₁ b₁` for pairs of words. The intrinsic would do, but the compiler splits chains of it into products
/// and sums to shorten a latency that does not matter here.
///
/// # Safety
/// AVX-512 F and VNNI are there.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_products(mut sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the instruction reads and writes registers only.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sums}, {a}, {b}",
            sums = inout(zmm_reg) sums,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// 64 bits from memory in every lane. Spelled out, because the compiler would rather take a value that it still has in a
/// register to all lanes by a shuffle, and shuffles are what the products are short of; a load costs nothing there.
///
/// # Safety
/// AVX-512 F is there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast_bytes(bytes: &[u8; 8]) -> __m512i {
    let all: __m512i;
    // SAFETY: the instruction reads the eight bytes and writes a register.
    unsafe {
        std::arch::asm!(
            "vpbroadcastq {all}, qword ptr [{p}]",
            all = out(zmm_reg) all,
            p = in(reg) bytes.as_ptr(),
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    all
}

/// As [`broadcast_bytes`], for an f32.
///
/// # Safety
/// AVX-512 F is there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast(value: &f32) -> __m512 {
    let all: __m512;
    // SAFETY: the instruction reads the value and writes a register.
    unsafe {
        std::arch::asm!(
            "vbroadcastss {all}, dword ptr [{p}]",
            all = out(zmm_reg) all,
            p = in(reg) std::ptr::from_ref(value),
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    all
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
    /// Scales and minima, once in every 64 bits.
    type Codes = [__m512i; 2];
    /// Eight codes of 16 bits each, once in every 128 bits.
    type SignedCodes = [__m512i; 2];
    type Scales = __m512i;
    type Halves = __m128;

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
    fn prefetch(p: *const u8) {
        call!(_mm_prefetch::<_MM_HINT_T0>(p.cast()));
    }
    #[inline(always)]
    fn low_nibbles(self) -> Self {
        Self(call!(_mm512_and_si512(self.0, _mm512_set1_epi8(15))))
    }
    #[inline(always)]
    fn high_nibbles(self) -> Self {
        // A product with a matrix of bits that takes the upper four down: one instruction instead of two.
        const DOWN: i64 = 0x1020_4080_0000_0000;
        Self(call!(if VNNI {
            _mm512_gf2p8affine_epi64_epi8::<0>(self.0, _mm512_set1_epi64(DOWN))
        } else {
            _mm512_and_si512(_mm512_srli_epi16::<4>(self.0), _mm512_set1_epi8(15))
        }))
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
    unsafe fn correct(planes: [&[i8; 64]; 2], offset: i16, correction: *mut u8) {
        let plane = |i: usize| {
            // SAFETY: the array holds 64 bytes.
            unsafe {
                let pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), _mm512_loadu_si512(planes[i].as_ptr().cast()));
                _mm512_madd_epi16(pairs, _mm512_set1_epi16(-offset))
            }
        };
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { _mm512_storeu_si512(correction.cast(), _mm512_packs_epi32(plane(0), plane(1))) }
    }

    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: __m512i,
        sums: __m512i,
    ) -> __m512i {
        let plane = |i: usize| {
            // SAFETY: the caller's contract; the load is unaligned.
            unsafe {
                let x = _mm512_loadu_si512(planes[i].cast());
                if VNNI {
                    _mm512_dpbusd_epi32(_mm512_setzero_si512(), self.0, x)
                } else {
                    _mm512_madd_epi16(_mm512_maddubs_epi16(self.0, x), _mm512_set1_epi16(1))
                }
            }
        };
        let (high, low) = (plane(0), plane(1));
        // SAFETY: a value of this type exists; the caller's contract for the correction.
        unsafe {
            let mut both = _mm512_packs_epi32(high, low);
            if CORRECTED {
                both = _mm512_add_epi16(both, _mm512_loadu_si512(correction.cast()));
            }
            if VNNI { add_products(sums, both, scale) } else { _mm512_add_epi32(sums, _mm512_madd_epi16(both, scale)) }
        }
    }

    #[inline(always)]
    unsafe fn codes(scales: [u8; 8], minima: [u8; 8]) -> [__m512i; 2] {
        call!([broadcast_bytes(&scales), broadcast_bytes(&minima)])
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe {
            let codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast()));
            let low = _mm512_broadcast_i32x4(_mm256_castsi256_si128(codes));
            [low, _mm512_broadcast_i32x4(_mm256_extracti128_si256::<1>(codes))]
        }
    }
    #[inline(always)]
    fn scales<const V: usize>(codes: [__m512i; 2]) -> __m512i {
        call!(_mm512_shuffle_epi8(codes[0], _mm512_loadu_si512(Order::<V>::AFFINE.as_ptr().cast())))
    }
    #[inline(always)]
    fn signed_scales<const V: usize>(codes: [__m512i; 2]) -> __m512i {
        call!(_mm512_shuffle_epi8(codes[V / 2], _mm512_loadu_si512(Order::<V>::SIGNED.as_ptr().cast())))
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
    fn add_ints(sums: __m512, value: __m512i, factor: __m512) -> __m512 {
        call!(_mm512_add_ps(sums, _mm512_mul_ps(_mm512_cvtepi32_ps(value), factor)))
    }
    #[inline(always)]
    fn add_two_ints(sums: __m512, a: __m512i, b: __m512i, factor: __m512) -> __m512 {
        call!({
            let value = _mm512_add_ps(_mm512_cvtepi32_ps(a), _mm512_cvtepi32_ps(b));
            _mm512_add_ps(sums, _mm512_mul_ps(value, factor))
        })
    }
    #[inline(always)]
    unsafe fn sub_minima(sums: __m512, codes: [__m512i; 2], x: *const f32, factor: __m512) -> __m512 {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let minima = _mm512_cvtepi32_ps(_mm512_shuffle_epi8(codes[1], _mm512_loadu_si512(MINIMA.as_ptr().cast())));
            let products = _mm512_mul_ps(minima, _mm512_loadu_ps(x));
            _mm512_sub_ps(sums, _mm512_mul_ps(products, factor))
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
    unsafe fn halves(p: *const u8) -> __m128 {
        // SAFETY: the caller's contract; every set with AVX-512 is chosen only where F16C is.
        unsafe { four_halves(p) }
    }
    #[inline(always)]
    fn factor<const I: usize>(halves: __m128, unit: f32) -> __m512 {
        let scaled = Self::four(call!(_mm_mul_ps(halves, _mm_set1_ps(unit))));
        call!(broadcast(&scaled[I]))
    }
    #[inline(always)]
    fn four(halves: __m128) -> [f32; 4] {
        // SAFETY: four f32 are four f32.
        unsafe { std::mem::transmute(halves) }
    }

    #[inline(always)]
    unsafe fn store<const AFFINE: bool>(self, offset: i32, steps: [(f32, f32); 4], out: [*mut f32; 4]) {
        let quarters = call!([
            _mm512_castsi512_si128(self.0),
            _mm512_extracti32x4_epi32::<1>(self.0),
            _mm512_extracti32x4_epi32::<2>(self.0),
            _mm512_extracti32x4_epi32::<3>(self.0),
        ]);
        for i in 0..4 {
            // SAFETY: the caller's contract; the store is unaligned.
            unsafe {
                let mut q = _mm512_cvtepu8_epi32(quarters[i]);
                if offset != 0 {
                    q = _mm512_sub_epi32(q, _mm512_set1_epi32(offset));
                }
                let mut y = _mm512_mul_ps(_mm512_cvtepi32_ps(q), _mm512_set1_ps(steps[i].0));
                if AFFINE {
                    y = _mm512_sub_ps(y, _mm512_set1_ps(steps[i].1));
                }
                _mm512_storeu_ps(out[i], y);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_signed(p: *const u8, scale: f32, out: *mut f32) {
        for i in 0..2 {
            // SAFETY: the caller's contract; loads and stores are unaligned.
            unsafe {
                let q = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(16 * i).cast()));
                _mm512_storeu_ps(out.add(16 * i), _mm512_mul_ps(_mm512_cvtepi32_ps(q), _mm512_set1_ps(scale)));
            }
        }
    }
}
