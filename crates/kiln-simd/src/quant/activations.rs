//! Rows of f32 rounded to 16-bit integers, with a unit for each block of the weights, in the order that the products read.
//!
//! The unit is `max |x| / 32639`, so that an integer is `256 high + low` with both parts signed bytes: two exact byte
//! products then replace one of 16 bits, and rounding moves an element by at most 2^-16 of the largest of its block.
//! With [`Precision::Int8`](kiln_ir::Precision::Int8) rows are rounded to bytes instead, with the unit `max |x| / 127` for each 32
//! neighbours, whatever the weights: one product of bytes, and an element moves by at most 2^-8 of the largest of its 32.
//!
//! A block that cannot be rounded like that (not finite, or so small that its unit would be inexact) gets the unit NaN,
//! which makes the products with it NaN; they are then computed again from the f32 elements.

use kiln_ir::QuantFormat;

use crate::vector::{PlainKernel, element, signed_sub_block};

/// Largest integer of an element: 127 * 256 + 127.
pub(super) const MOST: f32 = 32639.0;

/// Blocks whose largest magnitude is below this (2^-80) are not rounded, because their products would be subnormal.
const LEAST: f32 = f32::from_bits((127 - 80) << 23);

/// Adding this puts the nearest integer, ties to even, into the low bits of the representation.
const MAGIC: f32 = (3u32 << 22) as f32;

/// A cache line, the unit of the scratch memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

impl Line {
    pub(super) const ZERO: Self = Self([0; 64]);
}

/// Elements that are rounded together: a run, whose last elements are zeros where a row of x ends before.
pub(super) const RUN: usize = 256;

/// Largest integer of an element of a byte.
pub(super) const MOST_BYTE: f32 = 127.0;

/// The layout of a run of x for the weights of a format: its integers, then a line with eight units and eight sums.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    /// 16-bit words, with a unit for each 32.
    Words,
    /// The same, then sums of pairs.
    WordsAndSums,
    /// Planes of bytes with one unit, for Q4_K and Q5_K.
    Affine,
    /// Planes of bytes with one unit, for Q6_K, then sums of 16.
    Symmetric,
    /// Bytes with a unit for each 32.
    Bytes,
    /// The same, for Q4_K and Q5_K.
    AffineBytes,
    /// The same for Q6_K: a line with the unit of each lane, then sums of 16.
    SymmetricBytes,
}

impl Rounding {
    /// For a format, to 8 bits if `int8`.
    pub(super) const fn of(format: QuantFormat, int8: bool) -> Self {
        match Self::of_contract(format) {
            Self::Words if int8 => Self::Bytes,
            Self::Affine if int8 => Self::AffineBytes,
            Self::Symmetric if int8 => Self::SymmetricBytes,
            rounding => rounding,
        }
    }

    const fn of_contract(format: QuantFormat) -> Self {
        match format {
            QuantFormat::Q8_0
            | QuantFormat::Q4_0
            | QuantFormat::Q4_1
            | QuantFormat::Q5_0
            | QuantFormat::Q5_1
            | QuantFormat::Iq4Nl
            | QuantFormat::Mxfp4
            | QuantFormat::Q3K
            | QuantFormat::Iq4Xs => Self::Words,
            QuantFormat::Q2K => Self::WordsAndSums,
            QuantFormat::Q4K | QuantFormat::Q5K => Self::Affine,
            QuantFormat::Q6K => Self::Symmetric,
        }
    }

    /// Number of elements that share a unit.
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn len(self) -> usize {
        match self {
            Self::Affine | Self::Symmetric => RUN,
            _ => 32,
        }
    }

    /// The byte offset of the units of a run, after its integers.
    pub(super) const fn units(self) -> usize {
        match self {
            Self::Words | Self::WordsAndSums | Self::Affine | Self::Symmetric => 2 * RUN,
            Self::Bytes | Self::AffineBytes | Self::SymmetricBytes => RUN,
        }
    }

    /// The byte offset of the sums of groups of 32, each times its unit. They are negative for Q4_1 and Q5_1, which add their minima.
    pub(super) const fn sums(self) -> usize {
        self.units() + 32
    }

    /// The byte offset of the sums of smaller groups, in the line after: of pairs for Q2_K, in f32; for Q6_K of the 16 integers of
    /// each lane, times -32, as integers.
    pub(super) const fn small_sums(self) -> usize {
        self.units() + size_of::<Line>()
    }

    /// Number of lines of a run.
    pub(super) const fn lines(self) -> usize {
        let after_units = match self {
            Self::Words | Self::Affine | Self::Bytes | Self::AffineBytes => 0,
            Self::Symmetric | Self::SymmetricBytes => 1,
            Self::WordsAndSums => 8,
        };
        self.small_sums() / size_of::<Line>() + after_units
    }
}

/// Rounds runs `first .. first + count` of rows of `k` elements.
///
/// # Safety
/// `lines` is writable for [`Rounding::lines`] of every run, and nothing else accesses those of these runs.
pub(super) struct Round<'a> {
    pub(super) rounding: Rounding,
    pub(super) x: &'a [f32],
    pub(super) k: usize,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) lines: *mut Line,
}

impl PlainKernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let of_row = self.k.div_ceil(RUN);
        for run in self.first..self.first + self.count {
            let (row, at) = (run / of_row, run % of_row * RUN);
            let x = &self.x[row * self.k + at..][..RUN.min(self.k - at)];
            // SAFETY: the contract of `Round`.
            unsafe {
                let to = self.lines.add(run * self.rounding.lines()).cast::<u8>();
                match self.rounding {
                    Rounding::Words => round_words::<false>(x, to),
                    Rounding::WordsAndSums => round_words::<true>(x, to),
                    Rounding::Affine => round_affine(x, to),
                    Rounding::Symmetric => round_symmetric(x, to),
                    Rounding::Bytes => round_bytes::<8>(x, to),
                    Rounding::AffineBytes => round_bytes::<4>(x, to),
                    Rounding::SymmetricBytes => round_bytes::<6>(x, to),
                }
            }
        }
    }
}

/// The integers of a block, at most `most` in magnitude, and their unit: zero for zeros, NaN for what cannot be rounded.
#[inline(always)]
pub(super) fn integers<const N: usize>(x: &[f32], most: f32) -> ([i32; N], f32) {
    let Some(x) = x.first_chunk::<N>() else { return ([0; N], f32::NAN) };
    let mut top = 0;
    for v in x {
        top = u32::max(top, v.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(top);
    if !(LEAST..f32::INFINITY).contains(&largest) {
        return ([0; N], if top == 0 { 0.0 } else { f32::NAN });
    }
    let inverse = most / largest;
    let mut q = [0; N];
    for (q, v) in q.iter_mut().zip(x) {
        *q = (v * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
    }
    (q, largest / most)
}

/// # Safety
/// `out` is writable for the lines of a run.
#[inline(always)]
unsafe fn round_words<const PAIRS: bool>(x: &[f32], out: *mut u8) {
    let rounding = const { if PAIRS { Rounding::WordsAndSums } else { Rounding::Words } };
    let (mut units, mut sums) = ([0.0f32; 8], [0.0f32; 8]);
    for piece in 0..RUN / 32 {
        let (q, unit) = match x.get(32 * piece..32 * (piece + 1)) {
            Some(x) => integers::<32>(x, MOST),
            None => ([0; 32], 0.0),
        };
        let mut words = [0i16; 32];
        for i in 0..32 {
            words[i] = q[i] as i16;
        }
        // SAFETY: the caller's contract.
        unsafe { out.add(64 * piece).cast::<[i16; 32]>().write_unaligned(words) };
        if PAIRS {
            let mut pairs = [0.0f32; 16];
            for i in 0..16 {
                pairs[i] = (q[2 * i] + q[2 * i + 1]) as f32;
            }
            // SAFETY: the caller's contract.
            unsafe { out.add(rounding.small_sums() + 64 * piece).cast::<[f32; 16]>().write_unaligned(pairs) };
        }
        (units[piece], sums[piece]) = (unit, -unit * q.iter().sum::<i32>() as f32);
    }
    // SAFETY: the caller's contract.
    unsafe { write_units(rounding, units, sums, out) };
}

/// # Safety
/// `out` is writable for the lines of a run.
#[inline(always)]
unsafe fn write_units(rounding: Rounding, units: [f32; 8], sums: [f32; 8], out: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        out.add(rounding.units()).cast::<[f32; 8]>().write_unaligned(units);
        out.add(rounding.sums()).cast::<[f32; 8]>().write_unaligned(sums);
    }
}

/// Writes high and low parts in the order of [`element`]; the low part is the low byte as a signed number.
///
/// # Safety
/// `block` is writable for 512 bytes.
#[inline(always)]
unsafe fn write_planes<const BITS: usize>(q: &[i32; 256], block: *mut u8) {
    let (mut low, mut high) = ([0i8; 256], [0i8; 256]);
    for i in 0..256 {
        low[i] = q[i] as i8;
        high[i] = ((q[i] - i32::from(low[i])) >> 8) as i8;
    }
    for (i, plane) in [high, low].iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let out = block.add(256 * i);
            if BITS == 6 { write_plane::<BITS, 4>(plane, out) } else { write_plane::<BITS, 8>(plane, out) }
        }
    }
}

/// Writes a plane in the order of [`element`], which keeps `N` neighbours together.
///
/// # Safety
/// `out` is writable for 256 bytes.
#[inline(always)]
unsafe fn write_plane<const BITS: usize, const N: usize>(plane: &[i8; 256], out: *mut u8) {
    let (runs, _) = plane.as_chunks::<N>();
    for run in 0..256 / N {
        // SAFETY: the caller's contract.
        unsafe { out.cast::<[i8; N]>().add(run).write(runs[element(BITS, N * run) / N]) };
    }
}

/// Sums of 16 elements each.
#[inline(always)]
fn sums(q: &[i32; 256]) -> [i32; 16] {
    let mut sums = [0; 16];
    for (sum, q) in sums.iter_mut().zip(q.as_chunks::<16>().0) {
        *sum = q.iter().sum();
    }
    sums
}

/// # Safety
/// `out` is writable for the lines of a run.
#[inline(always)]
unsafe fn round_affine(x: &[f32], out: *mut u8) {
    let (q, unit) = integers::<RUN>(x, MOST);
    let (halves, mut of_groups) = (sums(&q), [0.0f32; 8]);
    for i in 0..8 {
        of_groups[i] = unit * (halves[2 * i] + halves[2 * i + 1]) as f32;
    }
    // SAFETY: the caller's contract.
    unsafe {
        write_planes::<4>(&q, out);
        write_units(Rounding::Affine, [unit; 8], of_groups, out);
    }
}

/// # Safety
/// `out` is writable for the lines of a run.
#[inline(always)]
unsafe fn round_symmetric(x: &[f32], out: *mut u8) {
    let (q, unit) = integers::<RUN>(x, MOST);
    let corrections = corrections(sums(&q));
    // SAFETY: the caller's contract.
    unsafe {
        write_planes::<6>(&q, out);
        write_units(Rounding::Symmetric, [unit; 8], [0.0; 8], out);
        out.add(Rounding::Symmetric.small_sums()).cast::<[i32; 16]>().write_unaligned(corrections);
    }
}

/// The initial sums of the lanes of Q6_K, because 32 is subtracted from each of its integers.
#[inline(always)]
fn corrections(sums: [i32; 16]) -> [i32; 16] {
    let mut corrections = [0; 16];
    for (lane, correction) in corrections.iter_mut().enumerate() {
        *correction = -32 * sums[signed_sub_block(lane)];
    }
    corrections
}

/// Rounds to bytes: in the order of [`element`] for blocks of integers of 4 or 6 bits, in that of the elements for 8.
///
/// # Safety
/// `out` is writable for the lines of a run.
#[inline(always)]
unsafe fn round_bytes<const BITS: usize>(x: &[f32], out: *mut u8) {
    let (mut q, mut units) = ([0i32; RUN], [0.0f32; 8]);
    for (piece, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let (integers, unit) = integers::<32>(x, MOST_BYTE);
        q[32 * piece..][..32].copy_from_slice(&integers);
        units[piece] = unit;
    }
    let mut plane = [0i8; RUN];
    for i in 0..RUN {
        plane[i] = q[i] as i8;
    }
    let halves = sums(&q);
    // SAFETY: the caller's contract.
    unsafe {
        match BITS {
            4 => write_plane::<BITS, 8>(&plane, out),
            6 => write_plane::<BITS, 4>(&plane, out),
            _ => out.cast::<[i8; RUN]>().write(plane),
        }
        if BITS == 6 {
            let rounding = Rounding::SymmetricBytes;
            let mut of_lanes = [0.0f32; 16];
            for (lane, of_lane) in of_lanes.iter_mut().enumerate() {
                *of_lane = units[signed_sub_block(lane) / 2];
            }
            out.add(rounding.units()).cast::<[f32; 16]>().write_unaligned(of_lanes);
            out.add(rounding.small_sums()).cast::<[i32; 16]>().write_unaligned(corrections(halves));
        } else {
            let mut of_groups = [0.0f32; 8];
            for i in 0..8 {
                let sum = units[i] * (halves[2 * i] + halves[2 * i + 1]) as f32;
                of_groups[i] = if BITS == 4 { sum } else { -sum };
            }
            let rounding = if BITS == 4 { Rounding::AffineBytes } else { Rounding::Bytes };
            write_units(rounding, units, of_groups, out);
        }
    }
}
