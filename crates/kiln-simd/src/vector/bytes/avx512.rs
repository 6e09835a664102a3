use std::arch::x86_64::*;

use super::avx2::{Avx2Bytes, four_halves, join};
use super::{Bytes, SIGNED};

/// One register, with or without the dot products of VNNI, and with or without the bit matrices of GFNI and the shifts of VBMI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bytes<const VNNI: bool, const GFNI: bool>;

/// Broadcasts an f32 from memory to every lane. In assembly, because the compiler would broadcast a value from a register by a
/// shuffle, and shuffles are the bottleneck of the products; a load costs nothing there.
///
/// # Safety
/// AVX-512 F is available.
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

/// The source of the `I`th 64 bytes of Q4_K and Q5_K, in 64-bit words: qword `s` comes from sub-block `s`, whose
/// nibbles share bytes with those of its neighbour.
const fn affine_words<const I: usize>() -> [i64; 8] {
    let mut words = [0; 8];
    let mut s = 0;
    while s < 8 {
        words[s] = (4 * (s / 2) + I) as i64;
        s += 1;
    }
    words
}

/// [`affine_words`] for Q6_K, in words of 32 bits.
const fn symmetric_words<const I: usize>() -> [i32; 16] {
    let mut words = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        words[lane] = (16 * (lane / 8) + 8 * (lane % 2) + 4 * (lane / 4 % 2) + I) as i32;
        lane += 1;
    }
    words
}

/// The position of the fifth and sixth bits, minus 4, of each of the `I`th 64 bytes of Q6_K, among the 64 bits of two
/// words: the `I`th and its neighbour. A 32-bit lane takes pairs of bits next to those of the lane before.
const fn pair_places<const I: usize>() -> [u8; 64] {
    let mut places = [0; 64];
    let mut byte = 0;
    while byte < 64 {
        let pair = 32 * (I % 2) + 8 * (byte % 4) + 2 * (byte / 4 % 4);
        places[byte] = ((pair + 64 - 4) % 64) as u8;
        byte += 1;
    }
    places
}

/// The low nibbles of every other 64 bits, the high nibbles of the others.
///
/// # Safety
/// AVX-512 F and BW are available, and GFNI if `GFNI`.
#[inline(always)]
unsafe fn nibbles<const GFNI: bool>(bytes: __m512i) -> __m512i {
    // A product with a bit matrix that keeps the lower four bits, or moves the upper four down.
    const KEEP: i64 = 0x0102_0408_0000_0000;
    const DOWN: i64 = 0x1020_4080_0000_0000;
    // SAFETY: the caller's contract.
    unsafe {
        if GFNI {
            let matrices = _mm512_setr_epi64(KEEP, DOWN, KEEP, DOWN, KEEP, DOWN, KEEP, DOWN);
            _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrices)
        } else {
            let down = _mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4));
            _mm512_and_si512(down, _mm512_set1_epi8(15))
        }
    }
}

/// `a | (b & mask)`, in one instruction.
///
/// # Safety
/// AVX-512 F and BW are available.
#[inline(always)]
unsafe fn with_bits(a: __m512i, b: __m512i, mask: i8) -> __m512i {
    // SAFETY: the caller's contract.
    unsafe { _mm512_ternarylogic_epi32::<0xf8>(a, b, _mm512_set1_epi8(mask)) }
}

/// The `I`th 64 bytes of a block.
///
/// # Safety
/// The conditions of [`Bytes::block`] hold, and the processor has GFNI and VBMI if `GFNI`.
#[inline(always)]
unsafe fn bytes<const GFNI: bool, const BITS: usize, const I: usize>(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: the caller's contract; loads are unaligned.
    unsafe {
        let (first, second) = (_mm512_loadu_si512(low.cast()), _mm512_loadu_si512(low.add(64).cast()));
        if BITS == 6 {
            let words = _mm512_loadu_si512(const { &symmetric_words::<I>() }.as_ptr().cast());
            let nibbles = nibbles::<GFNI>(_mm512_permutex2var_epi32(first, words, second));
            let pairs = _mm512_loadu_si512(high.cast());
            // Every 128-bit lane has the same four bytes for its four sub-blocks, and each uses its own bits.
            let pairs = if GFNI {
                let two = if I < 2 { _mm512_shuffle_epi32::<0x44>(pairs) } else { _mm512_shuffle_epi32::<0xee>(pairs) };
                let places = _mm512_loadu_si512(const { &pair_places::<I>() }.as_ptr().cast());
                _mm512_multishift_epi64_epi8(places, two)
            } else {
                let pairs = match I {
                    0 => _mm512_shuffle_epi32::<0x00>(pairs),
                    1 => _mm512_shuffle_epi32::<0x55>(pairs),
                    2 => _mm512_shuffle_epi32::<0xaa>(pairs),
                    _ => _mm512_shuffle_epi32::<0xff>(pairs),
                };
                _mm512_rolv_epi32(pairs, _mm512_set4_epi32(30, 0, 2, 4))
            };
            with_bits(nibbles, pairs, 0x30)
        } else {
            let words = _mm512_loadu_si512(const { &affine_words::<I>() }.as_ptr().cast());
            let nibbles = nibbles::<GFNI>(_mm512_permutex2var_epi64(first, words, second));
            if BITS == 5 {
                let fifth = _mm512_set1_epi64(high.add(8 * I).cast::<i64>().read_unaligned());
                let places = _mm512_setr_epi64(4, 3, 2, 1, 0, 63, 62, 61);
                with_bits(nibbles, _mm512_rolv_epi64(fifth, places), 0x10)
            } else {
                nibbles
            }
        }
    }
}

/// The sums of four products of each of four times 64 bytes with a plane, times `times`.
///
/// # Safety
/// AVX-512 F and BW are available; `x` is readable for 256 bytes.
#[inline(always)]
unsafe fn plane<const BITS: usize>(block: [__m512i; 4], x: *const u8, times: i16) -> __m512i {
    // SAFETY: the caller's contract; loads are unaligned.
    unsafe {
        let pairs = |i: usize| _mm512_maddubs_epi16(block[i], _mm512_loadu_si512(x.add(64 * i).cast()));
        let (first, second) = (_mm512_add_epi16(pairs(0), pairs(1)), _mm512_add_epi16(pairs(2), pairs(3)));
        let times = _mm512_set1_epi16(times);
        if BITS == 6 {
            // Eight products of 63 and 128 would exceed 16 bits.
            _mm512_add_epi32(_mm512_madd_epi16(first, times), _mm512_madd_epi16(second, times))
        } else {
            _mm512_madd_epi16(_mm512_add_epi16(first, second), times)
        }
    }
}

impl<const VNNI: bool, const GFNI: bool> Bytes for Avx512Bytes<VNNI, GFNI> {
    type Ints = __m512i;
    type Floats = __m512;
    type EightInts = __m256i;
    type Eight = __m256;
    type Halves = __m128;
    type Block = [__m512i; 4];
    type Wide = __m256i;

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a prefetch is only a hint; every processor with this set supports it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn block<const BITS: usize>(low: *const u8, high: *const u8) -> [__m512i; 4] {
        // SAFETY: the caller's contract.
        unsafe {
            [
                bytes::<GFNI, BITS, 0>(low, high),
                bytes::<GFNI, BITS, 1>(low, high),
                bytes::<GFNI, BITS, 2>(low, high),
                bytes::<GFNI, BITS, 3>(low, high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dots<const BITS: usize, const INT8: bool, const R: usize>(
        block: [__m512i; 4],
        x: [*const u8; R],
        mut sums: [__m512i; R],
    ) -> [__m512i; R] {
        for r in 0..R {
            // SAFETY: the caller's contract; loads are unaligned.
            unsafe {
                let low = x[r].add(256);
                sums[r] = if VNNI {
                    let mut high = _mm512_setzero_si512();
                    for i in 0..4 {
                        let of_x = _mm512_loadu_si512(x[r].add(64 * i).cast());
                        if INT8 {
                            sums[r] = _mm512_dpbusd_epi32(sums[r], block[i], of_x);
                        } else {
                            high = _mm512_dpbusd_epi32(high, block[i], of_x);
                            let of_x = _mm512_loadu_si512(low.add(64 * i).cast());
                            sums[r] = _mm512_dpbusd_epi32(sums[r], block[i], of_x);
                        }
                    }
                    if INT8 { sums[r] } else { _mm512_add_epi32(sums[r], _mm512_slli_epi32::<8>(high)) }
                } else if INT8 {
                    _mm512_add_epi32(sums[r], plane::<BITS>(block, x[r], 1))
                } else {
                    let (high, low) = (plane::<BITS>(block, x[r], 256), plane::<BITS>(block, low, 1));
                    _mm512_add_epi32(sums[r], _mm512_add_epi32(high, low))
                };
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn wide(p: *const u8) -> __m256i {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::wide(p) }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> __m256i {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::nibbles(p) }
    }
    #[inline(always)]
    unsafe fn with_bits(w: __m256i, bits: *const u8) -> __m256i {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::with_bits(w, bits) }
    }
    #[inline(always)]
    unsafe fn with_third(w: __m256i, third: __m256i) -> __m256i {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::with_third(w, third) }
    }
    #[inline(always)]
    unsafe fn masked(w: __m256i, right: usize, mask: u8) -> __m256i {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::masked(w, right, mask) }
    }
    #[inline(always)]
    unsafe fn shifted(w: __m256i, by: i8) -> __m256i {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::shifted(w, by) }
    }
    #[inline(always)]
    unsafe fn looked_up(w: __m256i, book: &[i8; 16]) -> __m256i {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::looked_up(w, book) }
    }
    #[inline(always)]
    unsafe fn dot(w: __m256i, x: *const u8) -> __m512i {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm512_madd_epi16(_mm512_cvtepi8_epi16(w), _mm512_loadu_si512(x.cast())) }
    }

    #[inline(always)]
    unsafe fn dots_of_run<const INT8: bool>(q: &[__m256i; 8], x: *const u8) -> __m256i {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is. Loads are unaligned.
        unsafe {
            if INT8 && VNNI {
                let mut sums = [_mm256_setzero_si256(); 8];
                for i in 0..8 {
                    let x = _mm256_loadu_si256(x.add(32 * i).cast());
                    let (w, x) = (_mm256_abs_epi8(q[i]), _mm256_sign_epi8(x, q[i]));
                    sums[i] = _mm256_dpbusd_epi32(sums[i], w, x);
                }
                Avx2Bytes::totals(sums)
            } else if INT8 {
                Avx2Bytes::dots_of_run::<INT8>(q, x)
            } else {
                let mut sums = [_mm512_setzero_si512(); 8];
                for i in 0..8 {
                    sums[i] = Self::dot(q[i], x.add(64 * i));
                }
                let [a, b, c, d, e, f, g, h] = sums;
                join(four_totals([a, b, c, d]), four_totals([e, f, g, h]))
            }
        }
    }

    #[inline(always)]
    unsafe fn no_ints() -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> __m512i {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn pair(first: f32, second: f32) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(first), _mm512_set1_ps(second)) }
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> __m128 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if F16C is.
        unsafe { four_halves(p) }
    }
    #[inline(always)]
    unsafe fn factor<const I: usize>(halves: __m128, unit: f32) -> __m512 {
        // SAFETY: the caller's contract; the type has the layout of four f32.
        unsafe {
            let scaled: [f32; 4] = std::mem::transmute(_mm_mul_ps(halves, _mm_set1_ps(unit)));
            broadcast(&scaled[I])
        }
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> __m512 {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let codes = _mm_shuffle_epi8(_mm_loadu_si128(p.cast()), _mm_loadu_si128(SIGNED.as_ptr().cast()));
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn add(sums: __m512, value: __m512i, steps: __m512) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_add_ps(sums, _mm512_mul_ps(steps, _mm512_cvtepi32_ps(value))) }
    }
    #[inline(always)]
    unsafe fn sub(sums: __m512, x: *const f32, steps: __m512) -> __m512 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm512_sub_ps(sums, _mm512_mul_ps(steps, _mm512_loadu_ps(x))) }
    }
    #[inline(always)]
    unsafe fn total(sums: __m512) -> f32 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps::<1>(sums));
            Avx2Bytes::total_eight(eight)
        }
    }

    #[inline(always)]
    unsafe fn fold(sums: __m512i) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe {
            let order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
            halves_added(_mm512_permutexvar_epi32(order, sums))
        }
    }
    #[inline(always)]
    unsafe fn zero_eight() -> __m256 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::zero_eight() }
    }
    #[inline(always)]
    unsafe fn load_eight(p: *const f32) -> __m256 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::load_eight(p) }
    }
    #[inline(always)]
    unsafe fn eight_halves<const STRIDE: usize>(p: *const u8) -> __m256 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::eight_halves::<STRIDE>(p) }
    }
    #[inline(always)]
    unsafe fn eight_scales<const I: usize>(codes: [u8; 8], halves: __m128) -> __m256 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::eight_scales::<I>(codes, halves) }
    }
    #[inline(always)]
    unsafe fn add_eight(sums: __m256, value: __m256i, scales: __m256, units: *const f32) -> __m256 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::add_eight(sums, value, scales, units) }
    }
    #[inline(always)]
    unsafe fn sub_eight(sums: __m256, minima: __m256, x: *const f32) -> __m256 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::sub_eight(sums, minima, x) }
    }
    #[inline(always)]
    unsafe fn total_eight(sums: __m256) -> f32 {
        // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
        unsafe { Avx2Bytes::total_eight(sums) }
    }
}

/// Sums of four lanes each of four times 16, in both halves of the result: the totals are those of both.
///
/// # Safety
/// AVX-512 F is available.
#[inline(always)]
unsafe fn four_totals([a, b, c, d]: [__m512i; 4]) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        halves_added(_mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd)))
    }
}

/// The lower half plus the upper half.
///
/// # Safety
/// AVX-512 F is available.
#[inline(always)]
unsafe fn halves_added(sums: __m512i) -> __m256i {
    // SAFETY: the caller's contract; AVX-512 sets are available only if AVX2 is.
    unsafe { _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64::<1>(sums)) }
}
