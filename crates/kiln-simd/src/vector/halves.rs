//! 16-bit floats: as lanes of f32, and casts between slices of f16 and f32 with the machine's instructions.

use half::{bf16, f16};
use kiln_ir::{Data, DataMut};

use super::{MAX_LANES, Vector};
use crate::Isa;

/// Floats that become lanes of f32 as they are loaded.
pub(crate) trait Stored: Copy + Default {
    /// Loads a vector.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for a vector.
    unsafe fn load<V: Vector>(p: *const Self) -> V;

    /// Loads `n` elements, at most a vector; the other lanes are zeros.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for `n` elements.
    #[inline(always)]
    unsafe fn load_first<V: Vector>(p: *const Self, n: usize) -> V {
        let mut first = [Self::default(); MAX_LANES];
        // SAFETY: the caller's contract; the array holds a vector.
        unsafe {
            first.as_mut_ptr().copy_from_nonoverlapping(p, n);
            Self::load(first.as_ptr())
        }
    }
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const f32) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load(p) }
    }
    #[inline(always)]
    unsafe fn load_first<V: Vector>(p: *const f32, n: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load_first(p, n) }
    }
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const f16) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load_f16(p) }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const bf16) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load_bf16(p) }
    }
}

/// Casts f16 to f32, as many as both slices have.
///
/// # Safety
/// [`Isa::is_available`] holds for `isa`.
pub(crate) unsafe fn widen_halves(isa: Isa, from: &[f16], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;

        #[target_feature(enable = "avx2,f16c")]
        unsafe fn avx2(from: &[f16], to: &mut [f32]) -> usize {
            let n = from.len().min(to.len()) / 8 * 8;
            for i in (0..n).step_by(8) {
                // SAFETY: both slices have eight elements from i on; loads and stores are unaligned.
                unsafe {
                    let eight = _mm_loadu_si128(from.as_ptr().add(i).cast());
                    _mm256_storeu_ps(to.as_mut_ptr().add(i), _mm256_cvtph_ps(eight));
                }
            }
            n
        }
        #[target_feature(enable = "avx512f")]
        unsafe fn avx512(from: &[f16], to: &mut [f32]) -> usize {
            let n = from.len().min(to.len()) / 16 * 16;
            for i in (0..n).step_by(16) {
                // SAFETY: both slices have sixteen elements from i on; loads and stores are unaligned.
                unsafe {
                    let sixteen = _mm256_loadu_si256(from.as_ptr().add(i).cast());
                    _mm512_storeu_ps(to.as_mut_ptr().add(i), _mm512_cvtph_ps(sixteen));
                }
            }
            n
        }
        // SAFETY: the caller guarantees the set, which has F16C.
        let done = unsafe {
            match isa {
                Isa::Avx512 => avx512(from, to),
                Isa::Avx2 => avx2(from, to),
                _ => 0,
            }
        };
        kiln_ir::widen(Data::F16(&from[done..]), &mut to[done..]);
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        kiln_ir::widen(Data::F16(from), to);
    }
}

/// Rounds f32 to the nearest f16, as many as both slices have.
///
/// # Safety
/// [`Isa::is_available`] holds for `isa`.
pub(crate) unsafe fn narrow_to_halves(isa: Isa, from: &[f32], to: &mut [f16]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;

        #[target_feature(enable = "avx2,f16c")]
        unsafe fn avx2(from: &[f32], to: &mut [f16]) -> usize {
            let n = from.len().min(to.len()) / 8 * 8;
            for i in (0..n).step_by(8) {
                // SAFETY: both slices have eight elements from i on; loads and stores are unaligned.
                unsafe {
                    let eight = _mm256_loadu_ps(from.as_ptr().add(i));
                    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight);
                    _mm_storeu_si128(to.as_mut_ptr().add(i).cast(), halves);
                }
            }
            n
        }
        // SAFETY: the caller guarantees the set, which has F16C; AVX-512 is available only if AVX2 is.
        let done = if matches!(isa, Isa::Avx2 | Isa::Avx512) { unsafe { avx2(from, to) } } else { 0 };
        kiln_ir::narrow(&from[done..], DataMut::F16(&mut to[done..]));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        kiln_ir::narrow(from, DataMut::F16(to));
    }
}
