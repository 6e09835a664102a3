use std::arch::x86_64::*;

use super::Words;

/// A register with the dot products of VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512Words;

impl Words for Avx512Words {
    const LANES: usize = 16;
    const MOST: u8 = 255;
    const PLANES: usize = 2;
    const ROWS: usize = 16;
    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn ints(p: *const u8) -> __m512i {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn floats(p: *const f32) -> __m512 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn no_ints() -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn start(p: *const i32) -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { _mm512_set1_epi32(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn dots<const FROM: usize, const N: usize>(weights: &[__m512i; 8], x: *const u8, start: __m512i) -> __m512i {
        let mut sum = start;
        for i in FROM..FROM + N {
            // SAFETY: the caller's contract.
            unsafe {
                let word = _mm512_set1_epi32(x.cast::<i32>().add(i).read_unaligned());
                sum = _mm512_dpbusd_epi32(sum, weights[i], word);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn to_floats(x: __m512i) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn with_high(low: __m512i, high: __m512i) -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { _mm512_add_epi32(low, _mm512_slli_epi32::<8>(high)) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn same(p: *const f32) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_set1_ps(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn mul_sub(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller's contract.
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
}
