//! Quantised blocks of f32: the bytes that kiln-ir's quantiser gives.
//!
//! A block of 256 elements is fitted by a block of threads: sixteen lanes a sub-block, a trial each. Its integers meet in
//! shared memory, four to a word, and the words of the format are put together from these. Of Q8_0, which is rounded once, four lanes
//! have a block.

mod fit;
mod words;

use kiln_ir::quant::{Scales, Values};
use kiln_ir::{QuantFormat, Result};

use self::fit::{Grid, Range, SubBlock, TRIALS, Trial};
use super::{MOST, VECTOR, Word};
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::half::widen;
use crate::kernels::math::F32;
use crate::kernels::team::{self, WARP};
use crate::{Argument, Builder, F16, Global, Kernel, Launch, Pointer, PtxKernel, Shared};

/// Elements of a block of the formats that are fitted.
const LEN: u32 = 256;
/// Resident blocks per multiprocessor for fitting Q6_K. Measured on an H200: 5 % faster than with registers chosen by
/// the assembler, and than with five. Those for Q4_K and Q5_K would spill.
const FITTERS: u32 = 4;
/// Blocks of 32 elements that a block of threads fits, with sixteen lanes each.
const WHOLE: u32 = 8;
/// Threads of a block for Q8_0.
const ROUNDERS: u32 = 128;
/// Elements of each of them.
const SHARE: u32 = 8;
/// Elements and halves of a block of Q8_0.
const ROUNDED: [u32; 2] = [32, 17];
/// The f16 NaN: the unit of a block with values that are not finite.
const NOT_FINITE: u32 = 0x7e00;

/// The algorithm for blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One rounding.
    Rounded,
    /// Powers of two are tried.
    Power,
    /// A scale is fitted to a block of 32 elements.
    Scaled,
    /// A scale and an offset are fitted to a block of 32 elements.
    Shifted,
    /// Scales and minima are fitted to sub-blocks.
    Affine(AffineWords),
    /// Scales are fitted to sub-blocks.
    Symmetric(SymmetricWords),
}

/// The assembly of words of blocks with scales and minima.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AffineWords {
    Q2K,
    /// Q4_K, and with a fifth bit Q5_K.
    Q4K,
}

/// The assembly of words of blocks with scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SymmetricWords {
    Q3K,
    Q6K,
    Iq4Xs,
}

/// Quantises f32. Memory is written in whole words: it ends with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantize {
    format: QuantFormat,
}

impl Quantize {
    /// To this format.
    pub fn new(format: QuantFormat) -> Self {
        Self { format }
    }

    /// The launch for this many elements, whole blocks. Buffers: elements, blocks.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 blocks.
    pub fn launch(&self, elements: usize) -> Result<Launch> {
        let blocks = extent("blocks", elements / self.format.block_len(), MOST.min(MAX_GRID_X))?;
        let mut arguments = vec![Argument::Buffer(0), Argument::Buffer(1)];
        let of_group = match self.way() {
            Way::Rounded => ROUNDERS * SHARE / ROUNDED[0],
            Way::Power => ROUNDERS,
            Way::Scaled | Way::Shifted => WHOLE,
            Way::Affine(_) | Way::Symmetric(_) => 1,
        };
        if of_group > 1 {
            arguments.push(Argument::U32(blocks));
        }
        let grid = blocks.div_ceil(of_group);
        Ok(Launch { grid: [grid, 1, 1], arguments })
    }

    fn way(&self) -> Way {
        match self.format {
            QuantFormat::Q8_0 => Way::Rounded,
            QuantFormat::Mxfp4 => Way::Power,
            QuantFormat::Q4_0 | QuantFormat::Q5_0 | QuantFormat::Iq4Nl => Way::Scaled,
            QuantFormat::Q4_1 | QuantFormat::Q5_1 => Way::Shifted,
            QuantFormat::Q2K => Way::Affine(AffineWords::Q2K),
            QuantFormat::Q4K | QuantFormat::Q5K => Way::Affine(AffineWords::Q4K),
            QuantFormat::Q3K => Way::Symmetric(SymmetricWords::Q3K),
            QuantFormat::Q6K => Way::Symmetric(SymmetricWords::Q6K),
            QuantFormat::Iq4Xs => Way::Symmetric(SymmetricWords::Iq4Xs),
        }
    }

    /// Elements of a sub-block.
    fn sub_block(&self) -> u32 {
        self.format.layout().group as u32
    }

    fn threads(&self) -> u32 {
        match self.way() {
            Way::Rounded | Way::Power => ROUNDERS,
            Way::Scaled | Way::Shifted => WHOLE * TRIALS,
            Way::Affine(_) | Way::Symmetric(_) => LEN / self.sub_block() * TRIALS,
        }
    }
}

impl Kernel for Quantize {
    fn name(&self) -> String {
        format!("quantize_{}", self.format.name())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.threads(), 1, 1], |k| {
            let (x, out) = (k.buffer::<f32>("x"), k.buffer::<u32>("out"));
            if self.format == QuantFormat::Q6K {
                k.resident_blocks(FITTERS);
            }
            match self.way() {
                Way::Rounded => round(k, x, out),
                Way::Power => power(k, x, out),
                Way::Scaled | Way::Shifted => self.fit_whole(k, x, out),
                Way::Affine(words) => self.fit_affine(k, words, x, out),
                Way::Symmetric(words) => self.fit_symmetric(k, words, x, out),
            }
        })
    }
}

/// Packs four integers, in the lower bits of numbers, into the bytes of a word.
fn packed<'k>(k: &'k Builder, integers: [F32<'k>; VECTOR as usize]) -> Word<'k> {
    let [a, b, c, d] = integers.map(|integer| k.bits_u32(integer));
    k.prmt(k.prmt(a, b, 0x40), k.prmt(c, d, 0x40), 0x5410)
}

/// Blocks of Q8_0.
fn round<'k>(k: &'k Builder, x: Pointer<'k, Global, f32>, out: Pointer<'k, Global, u32>) {
    let blocks = k.parameter::<u32>("blocks");
    let [len, halves] = ROUNDED;
    let (lanes, of_group) = (len / SHARE, ROUNDERS * SHARE / len);
    let (thread, group) = (k.tid_x(), k.ctaid_x());
    let (block, part) = (thread / lanes, thread % lanes);
    let left = k.min(blocks - group * of_group, of_group);
    let there = k.lt(block, left);
    let x = x.index_wide(k.mul_wide(group, ROUNDERS * SHARE)).index(thread * SHARE);
    let vectors: Vec<[F32<'k>; 4]> =
        (0..SHARE / VECTOR).map(|i| k.ld_v_if(there, x.offset((i * VECTOR) as i32), 0.0)).collect();
    let top = fit::top_of_lanes(k, fit::top(k, vectors.concat()), lanes);
    let range = Range::new(k, top);
    let unit = k.selp(fit::unit_bits(range.largest / 127.0), 0, range.reached);
    let step = widen(k, unit);
    let integer = |x| {
        // A step of 0 gives NaN, which is clamped.
        let integer = fit::to_integer(fit::clamp(range.clean(x) / step, -127.0, 127.0));
        k.selp(integer, 0.0, range.reached)
    };

    // A block is not a whole number of words, but all of them together are.
    let staged = k.shared::<u32>(of_group * halves / 2);
    let at = staged.cast::<F16>().index(k.mad(block, halves, part * (SHARE / 2)));
    let [unit, _] = k.halves::<F16>(k.selp(unit, NOT_FINITE, range.finite));
    k.st_if(k.eq(part, 0), at, unit);
    for (i, vector) in (0..).zip(vectors) {
        for (j, half) in (0..).zip(k.halves::<F16>(packed(k, vector.map(integer)))) {
            k.st(at.offset(1 + 2 * i + j), half);
        }
    }
    k.bar_sync(0u32);
    let out = out.index_wide(k.mul_wide(group, of_group * halves / 2));
    let words = (left * halves + 1) >> 1;
    k.for_(thread, words, ROUNDERS, |i| k.st(out.index(i), k.ld(staged.index(i))));
}

/// Blocks of MXFP4, one per thread.
fn power<'k>(k: &'k Builder, x: Pointer<'k, Global, f32>, out: Pointer<'k, Global, u32>) {
    const BYTES: u32 = 17;
    // A block below 2^-96 becomes zeros; no larger exponent is written.
    const LEAST: u32 = (127 - 96) << 23;
    const MOST_EXPONENT: u32 = 252;
    let blocks = k.parameter::<u32>("blocks");
    let (thread, group) = (k.tid_x(), k.ctaid_x());
    let left = k.min(blocks - group * ROUNDERS, ROUNDERS);
    let there = k.lt(thread, left);
    let x = x.index_wide(k.mul_wide(group, ROUNDERS * 32)).index(thread * 32u32);
    let vectors: Vec<[F32<'k>; 4]> = (0..8).map(|i| k.ld_v_if(there, x.offset(4 * i), 0.0)).collect();
    let top = fit::top(k, vectors.concat());
    let finite = k.lt(top, f32::INFINITY.to_bits());
    let reached = k.and(finite, k.ge(top, LEAST));
    // Divided by the lower scale, the largest magnitude is between 8 and 16. The largest number of the grid is 12.
    let lower = k.selp((top >> 23) - 2u32, 127, reached);
    let inverse = k.bits_f32((k.constant(254u32) - lower) << 23);
    let elements: Vec<F32<'k>> = vectors
        .into_iter()
        .flatten()
        .map(|x| {
            let y = k.selp(x, 0.0, reached) * inverse * 2.0f32;
            k.selp(0.0, y, k.lt(k.abs(y), f32::from_bits((127 - 20) << 23)))
        })
        .collect();
    let error = |factor: f32| {
        fit::sum(elements.iter().map(|&y| {
            let y = y * factor;
            let off = y - fit::doubled(y);
            off * off
        }))
    };
    let is_coarse = k.and(k.lt(lower, MOST_EXPONENT), k.lt(error(0.5) * 4.0f32, error(1.0)));
    let is_coarse = k.and(reached, is_coarse);
    let factor = k.selp(0.5f32, 1.0, is_coarse);
    let words: Vec<Word<'k>> = elements
        .chunks(4)
        .map(|four| packed(k, [0, 1, 2, 3].map(|i| fit::to_integer(fit::place_of_doubled(four[i] * factor)))))
        .collect();
    let exponent = k.selp(lower + k.selp(1u32, 0, is_coarse), 0, reached);
    let exponent = k.selp(exponent, 255, finite);

    let exponents = k.shared::<u32>(ROUNDERS);
    let nibbles = k.shared::<u32>(4 * ROUNDERS);
    k.st(exponents.index(thread), exponent);
    for i in 0..4 {
        k.st(nibbles.index(thread * 4u32).offset(i as i32), words[i] | words[i + 4] << 4);
    }
    k.bar_sync(0u32);
    let out = out.index_wide(k.mul_wide(group, ROUNDERS * BYTES / 4));
    let of_group = (left * BYTES + 3u32) >> 2;
    k.for_(thread, of_group, ROUNDERS, |i| {
        let byte = |j: u32| {
            let number = i * 4u32 + j;
            let (block, place) = (number / BYTES, number % BYTES);
            // After the last block there are only zeros.
            let block = k.min(block, ROUNDERS - 1);
            let nibble = k.max(place, 1) - 1u32;
            let word = k.ld(nibbles.index(block * 4u32 + (nibble >> 2)));
            let byte = word >> ((nibble & 3u32) << 3) & 255u32;
            k.selp(k.ld(exponents.index(block)), byte, k.eq(place, 0)) << (8 * j)
        };
        k.st(out.index(i), byte(0) | byte(1) | byte(2) | byte(3));
    });
}

/// A block of 256 elements that a block of threads fits, with sixteen lanes per sub-block.
struct Fitting<'k> {
    k: &'k Builder,
    thread: Word<'k>,
    /// The sub-block and the trial of the lane.
    sub: Word<'k>,
    trial: Trial<'k>,
    /// Elements of a sub-block.
    len: u32,
    range: Range<'k>,
    lift: F32<'k>,
    /// The elements in the form for the search, with padding of a vector between sub-blocks, so that those of a warp
    /// are in different banks.
    elements: Pointer<'k, Shared, f32>,
    /// The integers, four to a word.
    integers: Pointer<'k, Shared, u32>,
}

impl<'k> Fitting<'k> {
    /// Reads a block.
    fn new(k: &'k Builder, x: Pointer<'k, Global, f32>, len: u32) -> Self {
        let thread = k.tid_x();
        let (sub, trial) = (thread / TRIALS, thread % TRIALS);
        let each = len / TRIALS;
        let x = x.index_wide(k.mul_wide(k.ctaid_x(), LEN)).index(thread * each);
        let own: Vec<F32<'k>> = (0..each).map(|i| k.ld(x.offset(i as i32))).collect();
        let threads = LEN / each;
        let tops = k.shared::<u32>(threads / WARP);
        let top = fit::top_of_lanes(k, fit::top(k, own.iter().copied()), WARP);
        k.st_if(k.eq(thread & (WARP - 1), 0), tops.index(thread / WARP), top);
        k.bar_sync(0u32);
        let tops = (0..threads / WARP).map(|warp| k.ld(tops.offset(warp as i32))).collect();
        let range = Range::new(k, team::tree(tops, |a, b| k.max(a, b)).unwrap_or(top));
        Self::of(k, [thread, sub, trial], len, range, own)
    }

    /// Reads up to [`WHOLE`] blocks of 32 elements, each with its own range; `left` blocks remain.
    fn whole(k: &'k Builder, x: Pointer<'k, Global, f32>, left: Word<'k>) -> Self {
        let thread = k.tid_x();
        let (sub, trial) = (thread / TRIALS, thread % TRIALS);
        let x = x.index_wide(k.mul_wide(k.ctaid_x(), LEN)).index(thread * 2u32);
        let own: [F32<'k>; 2] = k.ld_v_if(k.lt(sub, left), x, 0.0);
        let range = Range::new(k, fit::top_of_lanes(k, fit::top(k, own), TRIALS));
        Self::of(k, [thread, sub, trial], LEN / WHOLE, range, own.to_vec())
    }

    /// Stores the elements in shared memory; `own` are this lane's.
    fn of(k: &'k Builder, [thread, sub, trial]: [Word<'k>; 3], len: u32, range: Range<'k>, own: Vec<F32<'k>>) -> Self {
        let each = len / TRIALS;
        let lift = range.lift();
        let elements = k.shared::<f32>(LEN / len * (len + VECTOR)).index(sub * (len + VECTOR));
        let at = elements.index(trial * each);
        for (i, x) in (0..).zip(own) {
            k.st(at.offset(i), fit::lifted(range.clean(x), lift));
        }
        k.bar_warp_sync(u32::MAX);
        let integers = k.shared::<u32>(LEN / VECTOR);
        Self { k, thread, sub, trial: Trial { number: trial }, len, range, lift, elements, integers }
    }

    fn sub_block(&self) -> SubBlock<'k> {
        let vectors = (0..self.len / VECTOR).map(|i| self.k.ld_v::<_, _, 4>(self.elements.offset((i * VECTOR) as i32)));
        SubBlock::new(vectors.flatten().collect())
    }

    /// Writes the integers of `integer`, which returns them in the lower bits, and synchronizes the threads.
    fn write_integers(&self, integer: impl Fn(F32<'k>) -> F32<'k>) {
        let (k, of_sub) = (self.k, self.len / VECTOR);
        k.if_(k.lt(self.trial.number, of_sub), || {
            let x = k.ld_v::<_, _, 4>(self.elements.index(self.trial.number * VECTOR));
            let at = self.integers.index(k.mad(self.sub, of_sub, self.trial.number));
            k.st(at, packed(k, x.map(integer)));
        });
        k.bar_sync(0u32);
    }

    /// The unit that is written for `largest`, which is `ends` units, and the number that it encodes.
    fn unit(&self, largest: F32<'k>, ends: f32) -> [Word<'k>; 2] {
        let bits = fit::unit_bits(largest / ends / self.lift);
        [bits, self.k.selp(bits, NOT_FINITE, self.range.finite)]
    }
}

impl Quantize {
    /// Blocks of 32 elements with one scale, or with a scale and an offset.
    fn fit_whole<'k>(&self, k: &'k Builder, x: Pointer<'k, Global, f32>, out: Pointer<'k, Global, u32>) {
        let layout = self.format.layout();
        let blocks = k.parameter::<u32>("blocks");
        let group = k.ctaid_x();
        let left = k.min(blocks - group * WHOLE, WHOLE);
        let block = Fitting::whole(k, x, left);
        let elements = block.sub_block();
        // The unit, and the one for values that are not finite.
        let units = if self.way() == Way::Shifted {
            let levels = ((1u32 << layout.bits) - 1) as f32;
            let [scale, minimum] = elements.affine(&block.trial, levels, true);
            let [[bits, unit], [of_offset, _]] = [scale, k.abs(minimum)].map(|value| block.unit(value, 1.0));
            let offset = of_offset | k.selp(0x8000u32, k.constant(0), k.gt(minimum, 0.0));
            let [step, shift] = [bits, offset].map(|bits| widen(k, bits) * block.lift);
            let step = fit::inverse(step);
            block.write_integers(|x| fit::to_integer(fit::clamp((x - shift) * step, 0.0, levels)));
            unit | k.selp(offset, 0, block.range.finite) << 16
        } else {
            let grid = Grid::of(self.format);
            let scale = elements.symmetric(&block.trial, grid);
            let [bits, unit] = block.unit(k.abs(scale), 1.0);
            let sign = k.selp(0x8000u32, k.constant(0), k.lt(scale, 0.0));
            let step = fit::inverse(widen(k, bits | sign) * block.lift);
            block.write_integers(|x| grid.integer(x * step));
            k.selp(unit | sign, unit, block.range.finite)
        };
        let of_blocks = [(); 2].map(|()| k.shared::<u32>(WHOLE));
        let is_first = k.eq(block.trial.number, 0);
        k.st_if(is_first, of_blocks[0].index(block.sub), units);
        let mask = k.selp(u32::MAX, k.constant(0), block.range.finite);
        k.st_if(is_first, of_blocks[1].index(block.sub), mask);
        k.bar_sync(0u32);

        // Unsigned integers are stored directly; signed ones minus their minimum, which inverts a bit.
        let integers = |at: Word<'k>, i: u32| {
            let word = k.ld(block.integers.index(at).offset(i as i32));
            match (layout.values, layout.bits) {
                (Values::Symmetric, 4) => word & 0x0f0f_0f0fu32 ^ 0x0808_0808u32,
                (Values::Symmetric, _) => word & 0x1f1f_1f1fu32 ^ 0x1010_1010u32,
                (Values::Affine | Values::Book(_), _) => word,
            }
        };
        let of_units = if layout.minimum().is_some() { 2u32 } else { 1 };
        let of_fifths = if layout.bits == 5 { 2u32 } else { 0 };
        let halves = of_units + of_fifths + 8;
        let half = |number: Word<'k>| {
            let (block, i) = (number / halves, number % halves);
            let first = block * 8u32;
            let j = k.max(i, of_units + of_fifths) - (of_units + of_fifths);
            let at = first + (j >> 1);
            let nibbles = integers(at, 0) & 0x0f0f_0f0fu32 | (integers(at, 4) & 0x0f0f_0f0fu32) << 4;
            let mut half = nibbles >> ((j & 1u32) << 4);
            if of_fifths > 0 {
                let at = first + (k.max(k.min(i, of_units + 1), of_units) - of_units) * 4u32;
                let four =
                    |j: u32| (((integers(at, j) >> 4 & 0x0101_0101u32) * 0x0102_0408u32) >> 24 & 15u32) << (4 * j);
                let bits = (0..4).map(four).reduce(|a, b| a | b).unwrap_or(half);
                half = k.selp(bits, half, k.lt(i, of_units + of_fifths));
            }
            let unit = k.ld(of_blocks[0].index(block)) >> (k.min(i, 1) << 4);
            k.selp(unit, half & k.ld(of_blocks[1].index(block)), k.lt(i, of_units)) & 0xffffu32
        };
        let words = (left * halves + 1u32) >> 1;
        k.if_(k.lt(block.thread, words), || {
            let first = block.thread * 2u32;
            // After the last block there is at most the unit of a block of zeros.
            let second = k.min(first + 1u32, WHOLE * halves - 1);
            let out = out.index_wide(k.mul_wide(group, WHOLE * halves / 2)).index(block.thread);
            k.st(out, half(first) | half(second) << 16);
        });
    }

    /// The minimum and maximum code of a scale.
    fn codes(&self) -> [f32; 2] {
        match self.format.layout().scales {
            Scales::Codes { range, .. } => range.map(|code| code as f32),
            Scales::Whole { .. } | Scales::Power { .. } => [1.0; 2],
        }
    }

    /// Blocks of 256 elements with scales and minima of sub-blocks.
    fn fit_affine<'k>(
        &self,
        k: &'k Builder,
        words: AffineWords,
        x: Pointer<'k, Global, f32>,
        out: Pointer<'k, Global, u32>,
    ) {
        let levels = ((1u32 << self.format.layout().bits) - 1) as f32;
        let [_, most] = self.codes();
        let block = Fitting::new(k, x, self.sub_block());
        let elements = block.sub_block();
        let fit = elements.affine(&block.trial, levels, false);

        let subs = LEN / block.len;
        let fits = [(); 2].map(|()| k.shared::<f32>(subs));
        let is_first = k.eq(block.trial.number, 0);
        (0..2).for_each(|i| k.st_if(is_first, fits[i].index(block.sub), fit[i]));
        k.bar_sync(0u32);
        let largest = fits.map(|fits| {
            let fits = (0..subs).map(|sub| k.ld(fits.offset(sub as i32))).collect();
            k.max(team::tree(fits, |a, b| k.max(a, b)).unwrap_or(fit[0]), 0.0)
        });
        let units = largest.map(|largest| block.unit(largest, most));
        let steps = units.map(|[bits, _]| widen(k, bits) * block.lift);
        let codes = elements.affine_codes(&block.trial, [levels, most], fit, steps);

        let of_subs = [(); 2].map(|()| k.shared::<u32>(subs));
        (0..2).for_each(|i| {
            k.st_if(is_first, of_subs[i].index(block.sub), k.bits_u32(fit::to_integer(codes[i])) & 63u32)
        });
        let (step, offset) = (fit::inverse(steps[0] * codes[0]), steps[1] * codes[1]);
        block.write_integers(|x| fit::to_integer(fit::clamp((x + offset) * step, 0.0, levels)));

        let [[_, unit], [unit_of_minima, _]] = units;
        // There is one unit for values that are not finite.
        let units = unit | unit_of_minima << 16;
        let (word, words) = match words {
            AffineWords::Q2K => self.q2_k(&block, units, of_subs),
            AffineWords::Q4K => self.q4_k(&block, units, of_subs),
        };
        k.st_if(k.lt(block.thread, words), out.index_wide(k.mul_wide(k.ctaid_x(), words)).index(block.thread), word);
    }

    /// Blocks of 256 elements with scales of sub-blocks.
    fn fit_symmetric<'k>(
        &self,
        k: &'k Builder,
        words: SymmetricWords,
        x: Pointer<'k, Global, f32>,
        out: Pointer<'k, Global, u32>,
    ) {
        let block = Fitting::new(k, x, self.sub_block());
        let elements = block.sub_block();
        let grid = Grid::of(self.format);
        let fit = elements.symmetric(&block.trial, grid);

        let subs = LEN / block.len;
        let fits = k.shared::<f32>(subs);
        let is_first = k.eq(block.trial.number, 0);
        k.st_if(is_first, fits.index(block.sub), fit);
        k.bar_sync(0u32);
        let fits: Vec<F32<'k>> = (0..subs).map(|sub| k.ld(fits.offset(sub as i32))).collect();
        // The largest scale gets the minimum code.
        let range = self.codes();
        let extreme = fit::extreme(&fits);
        let sign = k.selp(0x8000u32, k.constant(0), k.gt(extreme, 0.0));
        let [bits, unit] = block.unit(k.abs(extreme), -range[0]);
        let step = widen(k, bits | sign) * block.lift;
        let code = elements.symmetric_code(&block.trial, grid, range, fit, step);

        let of_subs = k.shared::<u32>(subs);
        k.st_if(is_first, of_subs.index(block.sub), k.bits_u32(fit::to_integer(code)) & 255u32);
        let step = fit::inverse(step * code);
        block.write_integers(|x| grid.integer(x * step));

        match words {
            SymmetricWords::Q3K => self.q3_k(&block, unit | sign, of_subs, out),
            SymmetricWords::Q6K => self.q6_k(&block, unit | sign, of_subs, out),
            SymmetricWords::Iq4Xs => self.iq4_xs(&block, unit | sign, of_subs, out),
        }
    }
}
