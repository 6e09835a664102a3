//! Rows of f32 rounded to 16-bit integers, a unit a block of the weights, in the order that the products read.
//!
//! The unit is `max |x| / 32639`, so that an integer is `256 high + low` with both parts signed bytes: two exact byte
//! products then stand for one of 16 bits, and rounding moves an element by at most 2^-16 of the largest of its block.
//! A block that cannot be rounded like that (not finite, or so small that its unit would be inexact) gets the unit NaN,
//! which makes the products with it NaN; they are then computed again from the f32 elements.

use kiln_core::QuantFormat;

use crate::vector::{AFFINE_ORDER, ByteKernel, Bytes};

/// Largest integer of an element: 127 * 256 + 127.
const MOST: f32 = 32639.0;

/// Blocks whose largest magnitude is below this are not rounded (2^-80): their products would be subnormal.
const LEAST: f32 = f32::from_bits((127 - 80) << 23);

/// A cache line, the unit of the scratch memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

impl Line {
    pub(super) const ZERO: Self = Self([0; 64]);
}

/// Where the parts of a rounded block of 256 stand, in bytes: planes of high and of low parts; then the sums of 16 for
/// the affine formats, or the corrections for Q6_K.
pub(super) const LOW: usize = 256;
pub(super) const SUMS: usize = 512;
pub(super) const CORRECTIONS: usize = 512;

/// Lines of a rounded block.
pub(super) const fn lines(format: QuantFormat) -> usize {
    match format {
        QuantFormat::Q8_0 => 1,
        QuantFormat::Q4K | QuantFormat::Q5K => 9,
        QuantFormat::Q6K => 12,
    }
}

/// Rounds whole blocks.
///
/// # Safety
/// `blocks` is good for writing [`lines`] and `units` for writing one f32 for every block of `x`.
pub(super) struct Round<'a> {
    pub(super) format: QuantFormat,
    pub(super) x: &'a [f32],
    pub(super) blocks: *mut Line,
    pub(super) units: *mut f32,
}

impl ByteKernel for Round<'_> {
    #[inline(always)]
    unsafe fn run<B: Bytes>(self) {
        let lines = lines(self.format);
        for (i, x) in self.x.chunks_exact(self.format.block_len()).enumerate() {
            // SAFETY: the contract of `Round`.
            unsafe {
                let block = self.blocks.add(i * lines).cast::<u8>();
                *self.units.add(i) = match self.format {
                    QuantFormat::Q8_0 => round_words(x, block),
                    QuantFormat::Q4K | QuantFormat::Q5K => round_affine(x, block),
                    QuantFormat::Q6K => round_symmetric::<B>(x, block),
                };
            }
        }
    }
}

/// Integers of a block, and their unit.
#[inline(always)]
fn integers<const N: usize>(x: &[f32]) -> ([i32; N], f32) {
    let Some(x) = x.first_chunk::<N>() else { return ([0; N], f32::NAN) };
    let mut top = 0;
    for v in x {
        top = u32::max(top, v.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(top);
    if !(LEAST..f32::INFINITY).contains(&largest) {
        return ([0; N], if top == 0 { 0.0 } else { f32::NAN });
    }
    // Adding this leaves the nearest integer, ties to even, in the low bits of the representation.
    const MAGIC: f32 = (3u32 << 22) as f32;
    let inverse = MOST / largest;
    let mut q = [0; N];
    for (q, v) in q.iter_mut().zip(x) {
        *q = (v * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
    }
    (q, largest / MOST)
}

/// # Safety
/// `block` is good for writing 64 bytes.
#[inline(always)]
unsafe fn round_words(x: &[f32], block: *mut u8) -> f32 {
    let (q, unit) = integers::<32>(x);
    // SAFETY: the caller's contract.
    unsafe { block.cast::<[i16; 32]>().write_unaligned(q.map(|q| q as i16)) };
    unit
}

/// High and low parts; the low one is the low byte as a signed number.
#[inline(always)]
fn planes<const N: usize>(q: &[i32; N], order: impl Fn(usize) -> usize) -> ([i8; N], [i8; N]) {
    let (mut high, mut low) = ([0; N], [0; N]);
    for half in 0..N / 32 {
        let from = 32 * order(half);
        for l in 0..32 {
            let q = q[from + l];
            low[32 * half + l] = q as i8;
            high[32 * half + l] = ((q - i32::from(q as i8)) >> 8) as i8;
        }
    }
    (high, low)
}

/// # Safety
/// `block` is good for writing nine lines.
#[inline(always)]
unsafe fn round_affine(x: &[f32], block: *mut u8) -> f32 {
    let (q, unit) = integers::<256>(x);
    let (high, low) = planes(&q, |half| AFFINE_ORDER[half]);
    let mut sums = [0.0f32; 16];
    for (group, sum) in sums.iter_mut().enumerate() {
        *sum = q[16 * group..16 * group + 16].iter().sum::<i32>() as f32;
    }
    // SAFETY: the caller's contract.
    unsafe {
        block.cast::<[i8; 256]>().write(high);
        block.add(LOW).cast::<[i8; 256]>().write(low);
        block.add(SUMS).cast::<[f32; 16]>().write_unaligned(sums);
    }
    unit
}

/// # Safety
/// `block` is good for writing twelve lines, and the instruction set of `B` is there.
#[inline(always)]
unsafe fn round_symmetric<B: Bytes>(x: &[f32], block: *mut u8) -> f32 {
    let (q, unit) = integers::<256>(x);
    let (high, low) = planes(&q, |half| half);
    // SAFETY: the caller's contract.
    unsafe {
        block.cast::<[i8; 256]>().write(high);
        block.add(LOW).cast::<[i8; 256]>().write(low);
        for (v, (high, low)) in high.as_chunks::<64>().0.iter().zip(low.as_chunks::<64>().0).enumerate() {
            B::correct([high, low], 32, block.add(CORRECTIONS + 64 * v));
        }
    }
    unit
}
