use std::arch::x86_64::*;

use super::Words;

/// A register, with products of bytes that add in pairs of 16 bits.
#[derive(Clone, Copy)]
pub(super) struct Avx2Words;

/// Four words of a row and of the fourth row after it: each byte, or the number at that index of the book, plus `offset`.
///
/// # Safety
/// AVX2 is available; both rows are readable for 16 bytes.
#[inline(always)]
unsafe fn two_rows(row: *const u8, stride: usize, book: Option<&[i8; 16]>, offset: u8) -> __m256i {
    // SAFETY: the caller's contract; loads are unaligned.
    unsafe {
        let low = _mm256_castsi128_si256(_mm_loadu_si128(row.cast()));
        let mut bytes = _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(row.add(4 * stride).cast()));
        if let Some(book) = book {
            let book = _mm256_broadcastsi128_si256(_mm_loadu_si128(book.as_ptr().cast()));
            bytes = _mm256_shuffle_epi8(book, bytes);
        }
        _mm256_add_epi8(bytes, _mm256_set1_epi8(offset as i8))
    }
}

/// Writes the eight words of each of eight rows, `stride` bytes apart, as eight registers, `step` bytes apart, with a lane for each
/// row: each byte, or the number at that index of the book, plus `offset`.
///
/// # Safety
/// AVX2 is available; every row is readable for 32 bytes, every register writable.
#[inline(always)]
pub(crate) unsafe fn interleave(
    rows: *const u8,
    stride: usize,
    book: Option<&[i8; 16]>,
    offset: u8,
    out: *mut u8,
    step: usize,
) {
    // SAFETY: the caller's contract; loads and stores are unaligned.
    unsafe {
        // The last round of a transpose moves halves of registers, which loads do as well.
        for at in 0..2 {
            let rows = rows.add(16 * at);
            let a = two_rows(rows, stride, book, offset);
            let b = two_rows(rows.add(stride), stride, book, offset);
            let c = two_rows(rows.add(2 * stride), stride, book, offset);
            let d = two_rows(rows.add(3 * stride), stride, book, offset);
            let (ab, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            let words = [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ];
            for (i, word) in words.into_iter().enumerate() {
                _mm256_storeu_si256(out.add((4 * at + i) * step).cast(), word);
            }
        }
    }
}

impl Words for Avx2Words {
    const LANES: usize = 8;
    // Four products are added in 16 bits: 4 * 63 * 127 < 2^15.
    const MOST: u8 = 63;
    const PLANES: usize = 1;
    const ROWS: usize = 4;
    type Ints = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn ints(p: *const u8) -> __m256i {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> __m256 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m256) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { _mm256_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn no_ints() -> __m256i {
        // SAFETY: the caller's contract.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn start(p: *const i32) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe { _mm256_set1_epi32(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn dots<const FROM: usize, const N: usize>(weights: &[__m256i; 8], x: *const u8, start: __m256i) -> __m256i {
        const { assert!(N.is_multiple_of(2)) };
        let mut sum = start;
        for i in (FROM..FROM + N).step_by(2) {
            // SAFETY: the caller's contract. Both sums of products fit 16 bits.
            unsafe {
                let words = x.cast::<i32>().add(i);
                let first = _mm256_maddubs_epi16(weights[i], _mm256_set1_epi32(words.read_unaligned()));
                let second = _mm256_maddubs_epi16(weights[i + 1], _mm256_set1_epi32(words.add(1).read_unaligned()));
                let pairs = _mm256_add_epi16(first, second);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn to_floats(x: __m256i) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn with_high(low: __m256i, high: __m256i) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe { _mm256_add_epi32(low, _mm256_slli_epi32::<8>(high)) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller's contract; every processor with AVX2 that kiln takes has FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn same(p: *const f32) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_set1_ps(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn mul_sub(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller's contract; as above.
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
}
