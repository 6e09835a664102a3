//! The product of many f32 rows with weights in blocks as a product of matrices in bf16: what goes into it, and what it leaves.
//!
//! `x = hi + lo`, each nearest in bf16, is within 2⁻¹⁷ of a number, which is less than the rounding to 16 bits that the contract of
//! the product allows. So are weights, which are decoded first. [`WarpGroupGemm`](super::super::matmul::WarpGroupGemm) multiplies
//! the planes of parts. What it cannot is done product by product afterwards: rows of x with numbers that are not finite, or with
//! nothing but numbers so small that their lower parts leave the range of bf16, and sums that are not finite.

use kiln_ir::{QuantFormat, Result};

use super::{BLOCK, ExactRow, MOST, Share, VECTOR, first_element, groups, share};
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::half::pack;
use crate::kernels::math::F32;
use crate::kernels::team::{self, WARP};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, PtxType, Value};

/// Threads of a block that splits a row.
const TEAM: u32 = 256;
/// Minimum of a row's largest magnitude; otherwise the row is multiplied element by element, because its lower parts
/// may underflow in bf16. It leaves 2⁶⁶ for smaller elements and for larger weights.
const LEAST: f32 = f32::from_bits((127 - 60) << 23);
/// Upper limit of a row's largest magnitude; otherwise the row is multiplied element by element, because products with
/// weights may overflow.
const MOST_OF_A_ROW: f32 = f32::from_bits((127 + 90) << 23);

/// Bytes of both planes of this many elements; none where that is beyond a `usize`.
pub fn plane_bytes(elements: usize) -> Option<usize> {
    elements.checked_mul(4)
}

/// Whether every number of a format is so far from the limits of bf16 that its lower part is a normal bf16 number: true
/// for formats with f16 scales.
fn splits(format: QuantFormat) -> bool {
    format.layout().unit().is_some()
}

/// Four numbers in two parts, each the nearest bf16: two words of upper and two of lower ones. Infinities and NaN have
/// a lower part that is NaN.
fn parts<'k>(k: &'k Builder, x: [F32<'k>; 4]) -> [[Value<'k, u32>; 2]; 2] {
    let upper = [[x[0], x[1]], [x[2], x[3]]].map(|pair| pack(k, PtxType::Bf16, pair));
    let lower = [0, 1].map(|i: usize| {
        let [first, second] = [k.bits_f32(upper[i] << 16), k.bits_f32(upper[i] & 0xffff_0000u32)];
        pack(k, PtxType::Bf16, [x[2 * i] - first, x[2 * i + 1] - second])
    });
    [upper, lower]
}

/// The position of a word in shared memory: four padding words after every 32 put the accesses of a warp into different
/// banks.
fn padded<'k>(word: Value<'k, u32>) -> Value<'k, u32> {
    word + ((word >> 5) << 2)
}

/// Writes the planes of f32 rows, upper parts and behind them lower ones, and for each row whether it is to be multiplied element by
/// element: a word that is 1 then and 0 else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitRows;

impl SplitRows {
    /// The launch for `rows` rows of `depth` elements, a multiple of four. Buffers: x, planes, words.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 rows or elements of a row.
    pub fn launch(&self, rows: usize, depth: usize) -> Result<Launch> {
        let (rows, depth) = (extent("rows", rows, MAX_GRID_X)?, extent("elements of a row", depth, MOST)?);
        let arguments = (0..3).map(Argument::Buffer).chain([rows, depth].map(Argument::U32)).collect();
        Ok(Launch { grid: [rows, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let x = k.buffer::<f32>("x");
        let [planes, words] = ["planes", "words"].map(|name| k.buffer::<u32>(name));
        let [rows, depth] = ["rows", "depth"].map(|name| k.parameter::<u32>(name));
        let (row, thread) = (k.ctaid_x(), k.tid_x());
        let first = k.mul_wide(row, depth);
        let x = x.index_wide(first);
        let upper = planes.index_wide(first >> 1);
        let lower = upper.index_wide(k.mul_wide(rows, depth) >> 1);
        let largest = k.variable(0.0f32);
        let finite = k.variable(1u32);
        k.for_(thread * VECTOR, depth, TEAM * VECTOR, |at| {
            let vector = k.ld_v::<_, _, 4>(x.index(at));
            let [hi, lo] = parts(k, vector);
            k.st_v(upper.index(at >> 1), hi);
            k.st_v(lower.index(at >> 1), lo);
            for x in vector {
                largest.set(k.max(largest.get(), k.abs(x)));
                k.if_(k.not(k.lt(k.abs(x), MOST_OF_A_ROW)), || finite.set(0u32));
            }
        });
        // A largest magnitude of infinity means that there are infinities or NaN.
        let found = k.selp(largest.get(), f32::INFINITY, k.ne(finite.get(), 0u32));
        let largest = team::combine(k, TEAM, thread, found, |a, b| k.max(a, b));
        let is_zero = k.eq(largest, 0.0f32);
        let serves = k.or(is_zero, k.and(k.le(LEAST, largest), k.lt(largest, MOST_OF_A_ROW)));
        k.st_if(k.eq(thread, 0), words.index(row), k.selp(0u32, 1u32, serves));
    }
}

impl Kernel for SplitRows {
    fn name(&self) -> String {
        "split_rows".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [TEAM, 1, 1], |k| self.write(k))
    }
}

/// Writes the planes of the elements of blocks, upper parts and behind them lower ones, or upper parts alone: the numbers in bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitBlocks {
    format: QuantFormat,
    has_lower: bool,
}

impl SplitBlocks {
    /// A kernel for this format; `None` if its numbers may be too small for lower parts.
    pub fn new(format: QuantFormat) -> Option<Self> {
        splits(format).then_some(Self { format, has_lower: true })
    }

    /// A kernel for this format, without lower parts.
    pub fn rounding(format: QuantFormat) -> Self {
        Self { format, has_lower: false }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let split = QuantFormat::ALL.into_iter().filter_map(Self::new);
        split.chain(QuantFormat::ALL.map(Self::rounding)).collect()
    }

    /// The launch for this many elements, whole blocks. Buffers: blocks, planes.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 shares of 8 or 32 elements.
    pub fn launch(&self, elements: usize) -> Result<Launch> {
        let n = extent("shares of blocks", elements / share(self.format).elements as usize, MOST)?;
        let arguments = vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(n)];
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [blocks, planes] = ["blocks", "planes"].map(|name| k.buffer::<u32>(name));
        let n = k.parameter::<u32>("n");
        let Share { of_block, elements } = share(self.format);
        let (thread, first) = (k.tid_x(), k.ctaid_x() * BLOCK);
        let (warp, lane) = (thread >> WARP.ilog2(), thread & (WARP - 1));
        // The elements of a warp's lanes are contiguous in a plane, but those that the lanes write at once are not:
        // they are reordered in shared memory.
        let words = WARP * elements / 2;
        let stride = words + words / 8;
        let planes_of_warp = if self.has_lower { 2 } else { 1 };
        let staged = k.shared::<u32>(BLOCK / WARP * planes_of_warp * stride).index(warp * (planes_of_warp * stride));
        let first_share = first + warp * WARP;
        let at = first_share + lane;
        k.if_(k.lt(at, n), || {
            let (block, part) = (lane / of_block, lane % of_block);
            let own = k.mad(block, self.format.block_len() as u32, first_element(self.format, part)) >> 1;
            for group in groups(k, self.format, blocks, k.cvt_u64(at / of_block), part) {
                for &(offset, bytes) in &group.vectors {
                    let [hi, lo] = parts(k, group.elements(k, bytes));
                    let to = staged.index(padded(own + offset / 2));
                    k.st_v(to, hi);
                    if self.has_lower {
                        k.st_v(to.offset(stride as i32), lo);
                    }
                }
            }
        });
        k.bar_sync(0u32);
        k.if_(k.lt(first_share, n), || {
            let left = (n - first_share) * (elements / 2);
            let upper = planes.index_wide(k.mul_wide(first_share, elements / 2));
            let lower = upper.index_wide(k.mul_wide(n, elements / 2));
            for turn in 0..words / (WARP * VECTOR) {
                let word = (lane + turn * WARP) * VECTOR;
                let from = staged.index(padded(word));
                k.if_(k.lt(word, left), || {
                    k.st_v(upper.index(word), k.ld_v::<_, _, 4>(from));
                    if self.has_lower {
                        k.st_v(lower.index(word), k.ld_v::<_, _, 4>(from.offset(stride as i32)));
                    }
                });
            }
        });
    }
}

impl Kernel for SplitBlocks {
    fn name(&self) -> String {
        format!("{}_blocks_{}", if self.has_lower { "split" } else { "round" }, self.format.name())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

/// Computes product by product what the product of planes leaves: elements that are not finite, and rows of x that a word marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RepairRows {
    format: QuantFormat,
}

impl RepairRows {
    /// A kernel for weights in this format.
    pub fn new(format: QuantFormat) -> Self {
        Self { format }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        QuantFormat::ALL.into_iter().filter(|&format| splits(format)).map(Self::new).collect()
    }

    /// The launch for `m` rows of x of `depth` elements, whole blocks, and `n` rows of weights, a multiple of four. Buffers: x,
    /// weights, words, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 for an extent, or as many groups of four elements of the result.
    pub fn launch(&self, m: usize, depth: usize, n: usize) -> Result<Launch> {
        let vectors = extent("elements", (n / VECTOR as usize).saturating_mul(m), MOST)?;
        let words = [vectors, extent("rows of weights", n, MOST)?, extent("elements of a row", depth, MOST)?];
        let arguments = (0..4).map(Argument::Buffer).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [vectors.div_ceil(BLOCK), 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let x: Pointer<'_, Global, f32> = k.buffer("x");
        let [weights, words] = ["weights", "words"].map(|name| k.buffer::<u32>(name));
        let out = k.buffer::<f32>("out");
        let [vectors, n, depth] = ["vectors", "n", "depth"].map(|name| k.parameter::<u32>(name));
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, vectors), || {
            let of_row = n / VECTOR;
            let (row, first) = (at / of_row, at % of_row * VECTOR);
            let out = out.index_wide(k.mul_wide(at, VECTOR));
            let found = k.ld_v::<_, _, 4>(out);
            let all = k.ne(k.ld(words.index(row)), 0u32);
            for (i, found) in (0..VECTOR).zip(found) {
                let is_finite = k.lt(k.abs(found), f32::INFINITY);
                k.if_(k.or(all, k.not(is_finite)), || {
                    let x = x.index_wide(k.mul_wide(row, depth));
                    let row = ExactRow { x, gamma: None, depth };
                    let exact = row.product(k, self.format, weights, first + i);
                    k.st(out.offset(i as i32), k.cvt_rn_f32(exact));
                });
            }
        });
    }
}

impl Kernel for RepairRows {
    fn name(&self) -> String {
        format!("repair_rows_{}", self.format.name())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
