//! The only module with intrinsics: a [`Vector`] of f32 lanes for each instruction set, and the dispatch to code compiled
//! for it.
//!
//! Algorithms are written once, generic over [`Vector`], as a [`Kernel`]. [`dispatch`] enters them through one
//! function an instruction set that carries the `target_feature` attribute; everything below is `#[inline(always)]`,
//! so the whole kernel is compiled with those features.
//!
//! A value of a vector type proves that its instruction set is available: making one is unsafe, computing with it
//! is not.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bytes;
mod halves;
mod isa;
mod lanewise;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(target_arch = "x86_64")]
mod sse2;
#[cfg(target_arch = "x86_64")]
mod words;

pub(crate) use bytes::{ByteKernel, Bytes, dispatch_bytes, element, signed_sub_block};
pub(crate) use halves::{Stored, narrow_to_halves, widen_halves};
pub(crate) use isa::by_isa;
pub(crate) use lanewise::{Lanewise, Pair};
pub(crate) use plain::{PlainKernel, dispatch_plain};
#[cfg(target_arch = "x86_64")]
pub(crate) use words::{PIECE, WordKernel, WordLimits, Words, dispatch_words, interleave, with_avx2};

use crate::array::Each;
use half::{bf16, f16};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// `LANES` f32 numbers and the operations of one instruction set on them.
///
/// All operations are lane by lane and IEEE 754 round-to-nearest unless stated otherwise.
pub(crate) trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self> + 'static
{
    /// Lanes of a register.
    const LANES: usize;
    /// Whether [`Vector::mul_add`] rounds once.
    const FUSED: bool;
    /// Vector registers of the instruction set.
    const REGISTERS: usize;
    /// Whether long formulas run on two vectors side by side.
    const PAIRS: bool = Self::REGISTERS >= 32;
    /// Whether [`Vector::load_first`] costs no more than [`Vector::load`], so that a hot loop may use it.
    const MASKED: bool = false;
    /// Whether [`Vector::lookup`] is one instruction, so that formulas may use tables of coefficients, and
    /// [`Vector::scale_pow2`] rounds a fractional `n` down.
    const TABLES: bool = false;
    /// A truth value for each lane.
    type Mask: Copy;

    /// # Safety
    /// The instruction set is available.
    unsafe fn splat(x: f32) -> Self;
    /// # Safety
    /// The instruction set is available; `p` is readable for `LANES` f32, with any alignment.
    unsafe fn load(p: *const f32) -> Self;
    /// The first `n <= LANES` lanes from memory, zeros beyond. Memory beyond them is not accessed.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for `n` f32.
    unsafe fn load_first(p: *const f32, n: usize) -> Self;
    /// Loads f16, cast to f32.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for `LANES` elements.
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        let mut wide = [0.0f32; MAX_LANES];
        // SAFETY: the caller's contract; the array holds a vector.
        unsafe {
            for (i, wide) in wide.iter_mut().enumerate().take(Self::LANES) {
                *wide = kiln_ir::quant::half(p.add(i).read_unaligned().to_bits().to_le_bytes());
            }
            Self::load(wide.as_ptr())
        }
    }
    /// Loads bf16, cast to f32.
    ///
    /// # Safety
    /// As for [`Vector::load_f16`].
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        let mut wide = [0.0f32; MAX_LANES];
        // SAFETY: the caller's contract; the array holds a vector.
        unsafe {
            for (i, wide) in wide.iter_mut().enumerate().take(Self::LANES) {
                *wide = f32::from_bits(u32::from(p.add(i).read_unaligned().to_bits()) << 16);
            }
            Self::load(wide.as_ptr())
        }
    }
    /// The first `n <= LANES` lanes from memory, `fill` beyond. Memory beyond them is not accessed.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for `n` f32.
    #[inline(always)]
    unsafe fn load_first_or(p: *const f32, n: usize, fill: f32) -> Self {
        let mut lanes = [fill; MAX_LANES];
        // SAFETY: the caller gives n readable f32, and no vector has more lanes than the array.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }
    /// Lanes `skip .. skip + n` from memory at `p`, `fill` elsewhere; `skip + n <= LANES`. No other memory is accessed.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for `n` f32.
    #[inline(always)]
    unsafe fn load_within(p: *const f32, skip: usize, n: usize, fill: f32) -> Self {
        let mut lanes = [fill; MAX_LANES];
        // SAFETY: the caller gives n readable f32, and no vector has more lanes than the array.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr().add(skip), n);
            Self::load(lanes.as_ptr())
        }
    }
    /// # Safety
    /// `p` is writable for `LANES` f32, with any alignment.
    unsafe fn store(self, p: *mut f32);
    /// Writes the first `n <= LANES` lanes. Memory beyond them is not accessed.
    ///
    /// # Safety
    /// `p` is writable for `n` f32.
    unsafe fn store_first(self, p: *mut f32, n: usize);
    /// A non-temporal store if the instruction set has one. Call [`Vector::fence`] before other threads read it.
    ///
    /// # Safety
    /// `p` is writable for `LANES` f32 and aligned to them.
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32) {
        // SAFETY: the caller's contract covers an ordinary store.
        unsafe { self.store(p) }
    }
    /// Orders earlier [`Vector::stream`] writes before later accesses.
    #[inline(always)]
    fn fence(self) {}

    /// Prefetches the cache line at `p`, to be accessed soon. Any address is allowed.
    #[inline(always)]
    fn prefetch(_p: *const f32) {}

    /// Prefetches the cache line at `p` into the L2 cache, to be read later. Any address is allowed.
    #[inline(always)]
    fn prefetch_far(_p: *const f32) {}

    /// Transposes the square of the first `LANES` vectors: lane `j` of vector `i` becomes lane `i` of vector `j`.
    #[inline(always)]
    fn transpose(square: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        let mut lanes = [0.0f32; MAX_LANES * MAX_LANES];
        let mut turned = square;
        // SAFETY: the instruction set is available because the operands exist; every access is inside the array.
        unsafe {
            for i in 0..Self::LANES {
                square[i].store(lanes.as_mut_ptr().add(i * Self::LANES));
            }
            for (j, vector) in turned.iter_mut().enumerate().take(Self::LANES) {
                let mut row = [0.0f32; MAX_LANES];
                for i in 0..Self::LANES {
                    row[i] = lanes[i * Self::LANES + j];
                }
                *vector = Self::load(row.as_ptr());
            }
        }
        turned
    }

    /// Lane `i` is the sum of the lanes of vector `i`, for the first `LANES`. The order of summation depends on the
    /// instruction set.
    #[inline(always)]
    fn sums(square: [Self; MAX_LANES]) -> Self {
        let turned = Self::transpose(square);
        let z = turned[0].of(0.0);
        let mut sums = [z, z, z, z];
        macro_rules! add {
            ($($i:literal)*) => { $(if const { $i < Self::LANES } { sums[$i % 4] = sums[$i % 4] + turned[$i] })* };
        }
        add!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        (sums[0] + sums[1]) + (sums[2] + sums[3])
    }

    /// The columns of a square of `LANES` rows, `stride` apart, as the first `LANES` vectors.
    ///
    /// # Safety
    /// The instruction set is available; `LANES` rows of as many f32 are readable.
    #[inline(always)]
    unsafe fn load_columns(p: *const f32, stride: usize) -> [Self; MAX_LANES] {
        // SAFETY: the caller's contract.
        unsafe {
            let first = Self::load(p);
            let mut square = [first; MAX_LANES];
            for (i, row) in square.iter_mut().enumerate().take(Self::LANES) {
                *row = Self::load(p.add(i * stride));
            }
            Self::transpose(square)
        }
    }

    /// [`Vector::load_columns`] if only the first `n` rows exist; the others are zeros.
    ///
    /// # Safety
    /// The instruction set is available; `n <= LANES`, and `n` rows of `LANES` f32 are readable.
    #[inline(always)]
    unsafe fn load_columns_first(p: *const f32, stride: usize, n: usize) -> [Self; MAX_LANES] {
        // SAFETY: the caller's contract.
        unsafe {
            let z = Self::splat(0.0);
            let mut square = [z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z];
            macro_rules! rows {
                ($($i:literal)*) => { $(if const { $i < Self::LANES } && $i < n { square[$i] = Self::load(p.add($i * stride)) })* };
            }
            rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            Self::transpose(square)
        }
    }

    /// The elements at even and at odd positions of `a` followed by `b`.
    #[inline(always)]
    fn unzip(a: Self, b: Self) -> (Self, Self) {
        let mut lanes = [0.0f32; 2 * MAX_LANES];
        let mut halves = [[0.0f32; MAX_LANES]; 2];
        // SAFETY: the instruction set is available because the operands exist; every access is inside the arrays.
        unsafe {
            a.store(lanes.as_mut_ptr());
            b.store(lanes.as_mut_ptr().add(Self::LANES));
            (0..2 * Self::LANES).for_each(|i| halves[i % 2][i / 2] = lanes[i]);
            (Self::load(halves[0].as_ptr()), Self::load(halves[1].as_ptr()))
        }
    }

    /// Interleaves the elements of `a` and `b` in two vectors: the inverse of [`Vector::unzip`].
    #[inline(always)]
    fn zip(a: Self, b: Self) -> (Self, Self) {
        let mut lanes = [0.0f32; 2 * MAX_LANES];
        let mut halves = [[0.0f32; MAX_LANES]; 2];
        // SAFETY: as above.
        unsafe {
            a.store(halves[0].as_mut_ptr());
            b.store(halves[1].as_mut_ptr());
            (0..2 * Self::LANES).for_each(|i| lanes[i] = halves[i % 2][i / 2]);
            (Self::load(lanes.as_ptr()), Self::load(lanes.as_ptr().add(Self::LANES)))
        }
    }

    /// The elements of three consecutive vectors at positions 0, 3, 6 and so on, those at 1, 4, 7, and those at 2, 5,
    /// 8.
    #[inline(always)]
    fn unzip3(x: [Self; 3]) -> [Self; 3] {
        let from = [x[0].lanes(), x[1].lanes(), x[2].lanes()];
        let mut to = [[0.0; MAX_LANES]; 3];
        for t in 0..3 * Self::LANES {
            to[t % 3][t / 3] = from[t / Self::LANES][t % Self::LANES];
        }
        to.each(|lanes| Self::from_lanes(lanes, x[0]))
    }

    /// The inverse of [`Vector::unzip3`].
    #[inline(always)]
    fn zip3(x: [Self; 3]) -> [Self; 3] {
        let from = [x[0].lanes(), x[1].lanes(), x[2].lanes()];
        let mut to = [[0.0; MAX_LANES]; 3];
        for t in 0..3 * Self::LANES {
            to[t / Self::LANES][t % Self::LANES] = from[t % 3][t / 3];
        }
        to.each(|lanes| Self::from_lanes(lanes, x[0]))
    }

    /// A constant, given an existing value.
    #[inline(always)]
    fn of(self, x: f32) -> Self {
        // SAFETY: `self` exists, so the instruction set is available.
        unsafe { Self::splat(x) }
    }

    /// `self * b + c`, rounded once if [`Vector::FUSED`], twice otherwise.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// `1 / √self`, with an error of less than 1.5 units in the last place and the special values of that formula.
    #[inline(always)]
    fn reciprocal_sqrt(self) -> Self {
        self.of(1.0) / self.sqrt()
    }
    /// `a / b` of four vectors, with the same bits as the operator.
    #[inline(always)]
    fn quotients(a: [Self; 4], b: [Self; 4]) -> [Self; 4] {
        [a[0] / b[0], a[1] / b[1], a[2] / b[2], a[3] / b[3]]
    }
    /// Square roots of four vectors, with the same bits as [`Vector::sqrt`].
    #[inline(always)]
    fn square_roots(x: [Self; 4]) -> [Self; 4] {
        [x[0].sqrt(), x[1].sqrt(), x[2].sqrt(), x[3].sqrt()]
    }
    /// `self < b ? self : b`: `b` if either is NaN or both are zeros.
    fn lesser(self, b: Self) -> Self;
    /// `self > b ? self : b`: `b` if either is NaN or both are zeros.
    fn greater(self, b: Self) -> Self;
    /// `self * 2^n` for integral `n` of magnitude at most 250, rounded once: overflow gives infinity, underflow is
    /// gradual. `self * 2^(n/2)` must not leave the normal range, unless `self` is a zero, infinity or NaN.
    fn scale_pow2(self, n: Self) -> Self;

    /// Bitwise and.
    fn and(self, b: Self) -> Self;
    /// Bitwise or.
    fn or(self, b: Self) -> Self;
    /// Bitwise exclusive or.
    fn xor(self, b: Self) -> Self;

    /// `self < b`; false if either is NaN.
    fn lt(self, b: Self) -> Self::Mask;
    /// `self <= b`; false if either is NaN.
    fn le(self, b: Self) -> Self::Mask;
    /// `self == b`; false if either is NaN.
    fn eq(self, b: Self) -> Self::Mask;
    /// Whether the lane is NaN.
    fn is_nan(self) -> Self::Mask;
    /// Lane by lane `mask ? yes : no`.
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;
    /// The mask as bits, lane 0 lowest.
    fn bits(mask: Self::Mask) -> u32;
    /// Lane by lane or.
    fn either(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Lane by lane and.
    fn both(a: Self::Mask, b: Self::Mask) -> Self::Mask;

    /// Whether `mask` holds and neither `self` nor `b` is NaN.
    #[inline(always)]
    fn and_numbers(mask: Self::Mask, a: Self, b: Self) -> Self::Mask {
        Self::both(mask, Self::both(a.eq(a), b.eq(b)))
    }

    /// Lanes `n..2n` moved to `0..n`, for a power of two `n < LANES`; the other lanes are unspecified.
    #[inline(always)]
    fn upper(self, n: usize) -> Self {
        let mut lanes = [0.0f32; 2 * MAX_LANES];
        // SAFETY: the array holds two vectors of any instruction set, and n is less than the lanes of one.
        unsafe {
            self.store(lanes.as_mut_ptr());
            Self::load(lanes.as_ptr().add(n))
        }
    }

    /// Lane 0.
    #[inline(always)]
    fn first(self) -> f32 {
        let mut lanes = [0.0f32; MAX_LANES];
        // SAFETY: the array holds a vector of any instruction set.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes[0]
    }

    /// All lanes combined: the upper half with the lower, until one is left.
    #[inline(always)]
    fn across(self, combine: impl Fn(Self, Self) -> Self) -> f32 {
        let (mut v, mut n) = (self, Self::LANES);
        while n > 1 {
            n /= 2;
            v = combine(v, v.upper(n));
        }
        v.first()
    }

    /// Absolute value; clears the sign of NaN too.
    #[inline(always)]
    fn abs(self) -> Self {
        self.and(self.of(f32::from_bits(0x7fff_ffff)))
    }

    /// `min(|self|, limit)` for a positive limit; an unspecified number if `self` is NaN.
    #[inline(always)]
    fn limited(self, limit: Self) -> Self {
        limit.lesser(self.abs())
    }

    /// The quarter of an octave of a lane from 1 to 16, in the lowest four bits of a lane, for use in
    /// [`Vector::lookup`] only: the last two bits of the exponent and the first two of the significand, so 12 to 15
    /// below 2, then 0 to 11.
    #[inline(always)]
    fn quarter_of_octave(self) -> Self {
        let mut lanes = self.lanes();
        for lane in &mut lanes[..Self::LANES] {
            *lane = f32::from_bits(lane.to_bits() >> 21);
        }
        Self::from_lanes(lanes, self)
    }
    /// Looks up a table; the lowest four bits of each lane are the index.
    #[inline(always)]
    fn lookup(self, table: &[f32; 16]) -> Self {
        let mut lanes = self.lanes();
        for lane in &mut lanes[..Self::LANES] {
            *lane = table[(lane.to_bits() & 15) as usize];
        }
        Self::from_lanes(lanes, self)
    }

    /// IEEE 754-2019 `maximum`: NaN if either is NaN, +0 above -0.
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        // The two orders differ only for zeros and NaN, for which each gives its second operand. The sign is set if
        // both have it; every other bit is set if either has it, so that NaN stays NaN.
        let (first, second) = (self.greater(b), b.greater(self));
        first.or(second).and(first.and(second).or(self.of(f32::from_bits(0x7fff_ffff))))
    }

    /// IEEE 754-2019 `minimum`: NaN if either is NaN, -0 below +0.
    #[inline(always)]
    fn minimum(self, b: Self) -> Self {
        // As in `maximum`, except that here the sign is set if either has it.
        self.lesser(b).or(b.lesser(self))
    }

    /// `self * b + c`, rounded once or nearly so (through f64) on every instruction set.
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        if const { Self::FUSED } {
            return self.mul_add(b, c);
        }
        // The product is exact in f64; rounding the sum twice costs at most 2^-29 units in the last place.
        let (x, y, mut z) = (self.lanes(), b.lanes(), c.lanes());
        for i in 0..Self::LANES {
            z[i] = (f64::from(x[i]) * f64::from(y[i]) + f64::from(z[i])) as f32;
        }
        Self::from_lanes(z, self)
    }

    /// `self * 2^n`, where `shifted` is `n` + [`ROUNDER`]. Operand and result are normal numbers.
    #[inline(always)]
    fn shift_exponent(self, shifted: Self) -> Self {
        self.scale_pow2(shifted - self.of(ROUNDER))
    }

    /// `(m, k)` with `self` = `m * 2^k` exactly, `m` in 0.75..1.5 and `k` integral, subnormal numbers included.
    ///
    /// Includes the special values of the logarithm: zeros give `k` = -∞, ∞ gives `k` = ∞ (`m` is finite for both), and
    /// `m` is NaN if `self` is negative or NaN.
    #[inline(always)]
    fn mantissa_exponent(self) -> (Self, Self) {
        let tiny = self.lt(self.of(f32::MIN_POSITIVE));
        let normal = Self::select(tiny, self * self.of(16_777_216.0), self);
        let mut m = normal.lanes();
        let mut k = [0.0; MAX_LANES];
        for i in 0..Self::LANES {
            // Relative to the bits of 0.75, the exponent field counts from there.
            let offset = (m[i].to_bits() as i32).wrapping_sub(0x3f40_0000);
            m[i] = f32::from_bits(((offset & 0x007f_ffff) + 0x3f40_0000) as u32);
            k[i] = (offset >> 23) as f32;
        }
        let (m, k) = (Self::from_lanes(m, self), Self::from_lanes(k, self));
        let k = Self::select(tiny, k - self.of(24.0), k);
        with_logarithm_rules(self, m, k)
    }

    /// The lanes as an array, padded with zeros.
    #[inline(always)]
    fn lanes(self) -> [f32; 16] {
        let mut lanes = [0.0; 16];
        // SAFETY: no vector has more than 16 lanes.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes
    }

    /// The vector of the first lanes of an array, given an existing value.
    #[inline(always)]
    fn from_lanes(lanes: [f32; 16], _witness: Self) -> Self {
        // SAFETY: no vector has more than 16 lanes, and the witness shows that the instruction set is available.
        unsafe { Self::load(lanes.as_ptr()) }
    }
}

/// 1.5 * 2^23: adding it to a number of magnitude below 2^22 rounds that to an integer, which is then in the low bits
/// of the sum; subtracting it again gives the integer.
pub(crate) const ROUNDER: f32 = 12_582_912.0;

/// Applies the special values of [`Vector::mantissa_exponent`] to `m` and `k` from the bits of a number.
#[inline(always)]
fn with_logarithm_rules<V: Vector>(x: V, m: V, k: V) -> (V, V) {
    let zero = x.of(0.0);
    let m = V::select(zero.le(x), m, x.of(f32::NAN));
    let k = V::select(x.eq(zero), x.of(f32::NEG_INFINITY), k);
    (m, V::select(x.eq(x.of(f32::INFINITY)), x, k))
}

/// Maximum lanes of a [`Vector`].
pub(crate) const MAX_LANES: usize = 16;

/// An algorithm that is compiled for every instruction set.
pub(crate) trait Kernel: Sized {
    /// The type of the result.
    type Output;

    /// The algorithm. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The instruction set of `V` is available.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

/// An algorithm that is called through a pointer, often and on little data, so that the instruction set is looked up
/// once.
pub(crate) trait Routine: Sized {
    /// The type of its arguments.
    type Args;

    /// The algorithm. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The instruction set of `V` is available, and the implementation's conditions on its arguments hold.
    unsafe fn run<V: Vector>(args: &Self::Args);
}

/// Elements of a cache line.
pub(crate) const LINE: usize = 16;

/// Elements before the first one that begins a cache line.
#[inline(always)]
pub(crate) fn before_line(p: *const f32) -> usize {
    (p as usize / size_of::<f32>()).wrapping_neg() % LINE
}

/// Elements before the first whole vector that is aligned to its size; 0 for registers so narrow that every allocator
/// aligns them.
///
/// A vector that crosses cache lines takes two accesses, which halves the rate of reads from the first two caches.
#[inline(always)]
pub(crate) fn unaligned<V: Vector>(x: *const f32) -> usize {
    if V::LANES < 8 { 0 } else { (x as usize / size_of::<f32>()).wrapping_neg() % V::LANES }
}

/// The constants of a [`Vector`] as values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registers {
    /// [`Vector::LANES`].
    pub(crate) lanes: usize,
    /// [`Vector::REGISTERS`].
    pub(crate) count: usize,
    /// [`Vector::FUSED`].
    pub(crate) fused: bool,
    /// [`Vector::MASKED`].
    pub(crate) masked: bool,
}

impl Registers {
    const fn of<V: Vector>() -> Self {
        Self { lanes: V::LANES, count: V::REGISTERS, fused: V::FUSED, masked: V::MASKED }
    }
}

macro_rules! instruction_sets {
    ($($(#[doc = $doc:literal])* $(#[cfg($cfg:meta)])? $isa:ident $name:literal $vector:path,
        $(features $features:literal,)? if $available:expr;)*) => {
        /// An instruction set of the CPU.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Isa {
            $($(#[doc = $doc])* $isa,)*
        }

        impl Isa {
            /// Every instruction set that kiln knows, slowest first.
            pub const ALL: &[Self] = &[$(Self::$isa),*];

            /// The name that `KILN_ISA` takes.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$isa => $name,)* }
            }

            /// Whether this machine has it.
            pub fn is_available(self) -> bool {
                match self { $(Self::$isa => { $(#[cfg($cfg)])? { $available } $(#[cfg(not($cfg))] { false })? })* }
            }

            /// Vector lanes of a register.
            pub const fn lanes(self) -> usize {
                self.registers().lanes
            }

            /// The properties of its registers.
            pub(crate) const fn registers(self) -> Registers {
                match self {
                    $($(#[cfg($cfg)])? Self::$isa => Registers::of::<$vector>(),)*
                    // The sets of other builds are never available.
                    #[allow(unreachable_patterns)]
                    _ => Self::BASELINE.registers(),
                }
            }
        }

        /// The entry to code compiled for each instruction set. Methods rather than functions, because the compiler
        /// puts a method into the codegen unit of its `Self`, so that kernels of different modules are compiled in
        /// parallel.
        #[allow(non_snake_case)]
        trait EnterKernel: Kernel {
            $(
                $(#[cfg($cfg)])?
                $(#[target_feature(enable = $features)])?
                // The baseline sets would be inlined into every caller, which then has their stack frame even if it
                // enters another set.
                #[inline(never)]
                unsafe fn $isa(self) -> Self::Output {
                    // SAFETY: this method is entered only if its features are available.
                    unsafe { self.run::<$vector>() }
                }
            )*
        }
        impl<K: Kernel> EnterKernel for K {}

        /// Runs a kernel on an instruction set.
        ///
        /// # Safety
        /// [`Isa::is_available`] holds for `isa`.
        pub(crate) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
            match isa {
                // SAFETY: the caller has checked that the instruction set is available.
                $($(#[cfg($cfg)])? Isa::$isa => unsafe { kernel.$isa() },)*
                // SAFETY: the sets of other builds are never available.
                #[allow(unreachable_patterns)]
                _ => unsafe { std::hint::unreachable_unchecked() },
            }
        }

        /// [`EnterKernel`] for routines.
        #[allow(non_snake_case)]
        trait EnterRoutine: Routine {
            $(
                $(#[cfg($cfg)])?
                $(#[target_feature(enable = $features)])?
                unsafe fn $isa(args: &Self::Args) {
                    // SAFETY: this method is entered only if its features are available, and under the routine's
                    // conditions.
                    unsafe { Self::run::<$vector>(args) }
                }
            )*
        }
        impl<R: Routine> EnterRoutine for R {}

        /// The function that runs a routine on an instruction set. Calling it is safe only if [`Isa::is_available`]
        /// holds for `isa`, and under the routine's conditions.
        pub(crate) const fn routine<R: Routine>(isa: Isa) -> unsafe fn(&R::Args) {
            match isa {
                $($(#[cfg($cfg)])? Isa::$isa => <R as EnterRoutine>::$isa,)*
                #[allow(unreachable_patterns)]
                _ => routine::<R>(Isa::BASELINE),
            }
        }
    };
}

/// Whether the machine has all of these features.
#[cfg(target_arch = "x86_64")]
macro_rules! all {
    ($($feature:tt)*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
}

instruction_sets! {
    /// Plain Rust, one lane. WebAssembly builds with vectors require them, so they omit this set.
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    Scalar "scalar" scalar::Scalar, if true;
    /// The baseline of x86-64: 4 lanes, no fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Sse2 "sse2" sse2::Sse2, features "sse2", if true;
    /// AVX2 with FMA: 8 lanes.
    #[cfg(target_arch = "x86_64")]
    Avx2 "avx2" avx2::Avx2, features "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt", if all!("avx2" "fma" "f16c" "bmi1" "bmi2" "lzcnt" "popcnt");
    /// AVX-512 F, BW, DQ and VL: 16 lanes and masks.
    #[cfg(target_arch = "x86_64")]
    Avx512 "avx512" avx512::Avx512,
        features "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt",
        if all!("avx512f" "avx512bw" "avx512dq" "avx512vl" "avx2" "fma" "f16c" "bmi1" "bmi2" "lzcnt" "popcnt");
    /// The vectors of 64-bit ARM: 4 lanes with fused multiply-add.
    #[cfg(target_arch = "aarch64")]
    Neon "neon" neon::Neon, features "neon", if true;
    /// The vectors of WebAssembly: 4 lanes, available if the program is built with `-C target-feature=+simd128`.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128", not(target_feature = "relaxed-simd")))]
    Simd128 "simd128" simd128::Simd128, if true;
    /// The same with fused multiply-add, replacing it if the program is built with `-C target-feature=+relaxed-simd`.
    /// Available if the engine's relaxed form is fused, as it is on processors that have one.
    #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
    RelaxedSimd "relaxed-simd" simd128::Simd128, if simd128::fuses();
}

/// Implements the operators of a vector type by functions `fn(raw, raw) -> raw`.
macro_rules! operators {
    ($vector:ident: $($trait:ident $method:ident $function:path),*; neg $neg:expr) => {
        $(impl std::ops::$trait for $vector {
            type Output = Self;
            #[inline(always)]
            #[allow(unused_unsafe)] // the intrinsics of WebAssembly are safe functions
            fn $method(self, b: Self) -> Self {
                // SAFETY: the operands exist, so the instruction set is available.
                Self(unsafe { $function(self.0, b.0) })
            }
        })*
        impl std::ops::Neg for $vector {
            type Output = Self;
            #[inline(always)]
            fn neg(self) -> Self {
                $neg(self)
            }
        }
    };
}
pub(crate) use operators;
