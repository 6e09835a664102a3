//! Products of bytes for tiles: a register of 32-bit lanes, one for each row of weights, and four bytes of a row of x in every
//! lane.
//!
//! Integers are exact, and a tile rounds its f32 sums in the same order with every width of registers, so that results have the
//! same bits on every instruction set that has these products.

mod avx2;
mod avx512;

pub(crate) use avx2::interleave;

use super::PlainKernel;
use crate::Isa;

/// Neighbours of a row that a tile multiplies at once: eight words of four bytes.
pub(crate) const PIECE: usize = 32;

/// A register of 32-bit lanes: integers, sums of products of bytes, or f32.
pub(crate) trait Words: Copy {
    /// Lanes of a register.
    const LANES: usize;
    /// The largest byte of the weights with which sums stay exact. Bytes of x are at most 127 in magnitude, or 128 with two planes.
    const MOST: u8;
    /// Planes of bytes of x with which products are faster than without words.
    const PLANES: usize;
    /// Rows of x in a large tile: their sums, eight registers of weights and what a sum needs fit the registers.
    const ROWS: usize;
    type Ints: Copy;
    type Floats: Copy;

    /// # Safety
    /// The instruction set is available; `p` is readable for a register.
    unsafe fn ints(p: *const u8) -> Self::Ints;
    /// # Safety
    /// The instruction set is available; `p` is readable for a register.
    unsafe fn floats(p: *const f32) -> Self::Floats;
    /// # Safety
    /// The instruction set is available; `p` is writable for a register.
    unsafe fn store(p: *mut f32, x: Self::Floats);
    /// Zero in every lane.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn zero() -> Self::Floats;
    /// # Safety
    /// The instruction set is available.
    unsafe fn no_ints() -> Self::Ints;
    /// The integer at `p` in every lane.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable.
    unsafe fn start(p: *const i32) -> Self::Ints;
    /// `start` plus the products of words `FROM .. FROM + N` of the weights, unsigned bytes, with the words at `x`, signed bytes.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for `FROM + N` words; bytes keep to [`Words::MOST`].
    unsafe fn dots<const FROM: usize, const N: usize>(
        weights: &[Self::Ints; 8],
        x: *const u8,
        start: Self::Ints,
    ) -> Self::Ints;
    /// The integers as f32.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn to_floats(x: Self::Ints) -> Self::Floats;
    /// `low + 256 high`
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn with_high(low: Self::Ints, high: Self::Ints) -> Self::Ints;
    /// `a + b`.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a - b`.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn sub(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b`.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The number at `p` in every lane.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable.
    unsafe fn same(p: *const f32) -> Self::Floats;
    /// `c - a * b`, rounded once.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn mul_sub(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
}

/// An algorithm on words that is compiled for every instruction set that has them.
pub(crate) trait WordKernel {
    /// The algorithm. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The instruction set of `W` is available.
    unsafe fn run<W: Words>(self);
}

/// The limits of an instruction set's products of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordLimits {
    /// [`Words::LANES`].
    pub(crate) lanes: usize,
    /// [`Words::MOST`].
    pub(crate) most: u8,
    /// [`Words::PLANES`].
    pub(crate) planes: usize,
    /// [`Words::ROWS`].
    pub(crate) rows: usize,
}

impl WordLimits {
    const fn of<W: Words>() -> Self {
        Self { lanes: W::LANES, most: W::MOST, planes: W::PLANES, rows: W::ROWS }
    }

    /// The limits of an available instruction set, if it has products of words.
    pub(crate) fn new(isa: Isa) -> Option<Self> {
        match isa {
            Isa::Avx512 if super::bytes::has_vnni() => Some(Self::of::<avx512::Avx512Words>()),
            Isa::Avx2 | Isa::Avx512 => Some(Self::of::<avx2::Avx2Words>()),
            _ => None,
        }
    }
}

/// Runs an algorithm on words with the instruction set for which [`WordLimits::new`] gave limits.
///
/// # Safety
/// [`Isa::is_available`] and [`WordLimits::new`] hold for `isa`.
pub(crate) unsafe fn dispatch_words<K: WordKernel>(isa: Isa, kernel: K) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn vnni<K: WordKernel>(kernel: K) {
        // SAFETY: this function is entered only if its features are available.
        unsafe { kernel.run::<avx512::Avx512Words>() }
    }
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn avx2<K: WordKernel>(kernel: K) {
        // SAFETY: as above.
        unsafe { kernel.run::<avx2::Avx2Words>() }
    }
    // SAFETY: the caller guarantees the set, which has AVX2 if it has limits; the guard checks the features of the first.
    unsafe { if isa == Isa::Avx512 && super::bytes::has_vnni() { vnni(kernel) } else { avx2(kernel) } }
}

/// Runs plain Rust, and [`interleave`], with AVX2, which every set with words includes: wider registers would not make it faster.
///
/// # Safety
/// [`Isa::Avx2`] is available.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
pub(crate) unsafe fn with_avx2<K: PlainKernel>(kernel: K) -> K::Output {
    kernel.run()
}
