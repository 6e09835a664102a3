//! Quantised blocks: of f32, to f32, and the product of a few rows with weights in blocks, at the speed of memory.
//!
//! A lane takes a share of a block: 8 elements of Q8_0, 32 of the others, as far as possible in loads of 16 bytes. Blocks of
//! most formats begin at multiples of two bytes: words of them are put together from halves. An integer becomes a number by
//! standing in the lower bits of 2²³; it is exact, and so is its product with a step.
//!
//! The products of a share with a step in common are added up first. Multiplied by it they are added to those of other
//! shares in f64, which rounds nothing that matters, even of numbers that are subnormal.
//!
//! From `sm_80` on, tensor cores multiply the integers: [`WarpQuantMatmul`].

mod byte_weights;
mod parts;
mod planes;
mod quantize;
mod rounding;
mod tiled;
mod warp;
mod warp_group;

use kiln_ir::op::{ExpertExtents, ExpertTiles};
use kiln_ir::quant::{DOUBLED, NORMAL, Values};
use kiln_ir::{QuantFormat, Result};

pub use parts::JoinParts;
pub use planes::{RepairRows, SplitBlocks, SplitRows, plane_bytes};
pub use quantize::Quantize;
pub use tiled::{RoundRows, TiledQuantMatmul, Tiling};
pub use warp::WarpQuantMatmul;
pub use warp_group::{HalfRows, WarpGroupQuantMatmul, WarpGroupTiling};

use super::experts::{self, Chosen};
use super::half::widen;
use super::math::F32;
use super::team::{self, WARP};
use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 128;
/// Rows of weights per warp.
const WEIGHTS: u32 = 2;
/// Elements of a vector.
const VECTOR: u32 = 4;
/// Maximum extents, so that the end of the last block fits 32 bits.
const MOST: u64 = (1 << 31) - 1;
/// 2²³: its lower bits plus a smaller integer represent 2²³ plus that integer.
const LIFTED: u32 = 0x4b00_0000;

type Word<'k> = Value<'k, u32>;

/// Elements of a share with a common step.
struct Group<'k> {
    /// The offset of each vector of elements from the first element of the share, and their integers, one byte each.
    vectors: Vec<(u32, Word<'k>)>,
    /// A number that is subtracted from each integer.
    bias: u32,
    step: F32<'k>,
    minimum: Option<F32<'k>>,
}

impl<'k> Group<'k> {
    /// The integers of a vector.
    fn integers(&self, k: &'k Builder, bytes: Word<'k>) -> [F32<'k>; VECTOR as usize] {
        let lifted = f32::from_bits(LIFTED) + self.bias as f32;
        [0, 1, 2, 3].map(|i: u32| k.bits_f32(k.prmt(bytes, LIFTED, 0x7650 | i)) - lifted)
    }

    /// The elements of a vector.
    fn elements(&self, k: &'k Builder, bytes: Word<'k>) -> [F32<'k>; VECTOR as usize] {
        self.integers(k, bytes).map(|integer| {
            let product = self.step * integer;
            self.minimum.map_or(product, |minimum| product - minimum)
        })
    }

    /// Adds the products of the group with as many elements of x to the sum; no partial sum may leave the range of f32.
    fn add(&self, k: &'k Builder, x: &[F32<'k>], sum: Value<'k, f64>) -> Value<'k, f64> {
        let integers = self.vectors.iter().flat_map(|&(_, bytes)| self.integers(k, bytes));
        let product = chain(k, x.iter().copied().zip(integers));
        let added = k.fma(k.cvt_f64(self.step), k.cvt_f64(product), sum);
        match (self.minimum, team::tree(x.to_vec(), |a, b| a + b)) {
            (Some(minimum), Some(total)) => k.fma(-k.cvt_f64(minimum), k.cvt_f64(total), added),
            _ => added,
        }
    }

    /// The same, product by product.
    fn add_exactly(
        &self,
        k: &'k Builder,
        x: impl Iterator<Item = Value<'k, f64>>,
        sum: Value<'k, f64>,
    ) -> Value<'k, f64> {
        let elements = self.vectors.iter().flat_map(|&(_, bytes)| self.elements(k, bytes));
        x.zip(elements).fold(sum, |sum, (x, element)| k.fma(x, k.cvt_f64(element), sum))
    }
}

/// The byte of a word that begins at bit `i`, as a signed integer.
fn signed_byte<'k>(k: &'k Builder, word: Word<'k>, i: impl crate::Operand<u32>) -> F32<'k> {
    k.cvt_rn_f32(k.bits_s32((word >> i) << 24) >> 24)
}

/// A block that begins at a multiple of two bytes: gives its words, aligned in memory or not.
struct Halves<'k> {
    k: &'k Builder,
    at: Pointer<'k, Global, u32>,
    /// Whether it begins in the middle of a word.
    middle: Value<'k, bool>,
}

impl<'k> Halves<'k> {
    /// The f16 number at the beginning of a word of the block; reads no more than that word of memory.
    fn number(&self, word: i32) -> F32<'k> {
        let bits = self.k.ld(self.at.offset(word));
        widen(self.k, self.k.selp(bits >> 16, bits, self.middle))
    }

    /// `count` words from an even byte of the block on.
    fn words(&self, from: Value<'k, u32>, even: bool, count: i32) -> Vec<Word<'k>> {
        let k = self.k;
        // Two bytes further if `from` is the middle of a word of the block.
        let split = if even { self.middle } else { k.not(self.middle) };
        let first = self.at.index(from);
        // Two halves of the block are one word of memory if both are in the middle.
        let first = if even { first } else { first.index(k.selp(1u32, 0, self.middle)) };
        let words: Vec<Word<'k>> = (0..count).map(|i| k.ld(first.offset(i))).collect();
        let last = k.ld_if(split, first.offset(count), 0u32);
        let next = words.iter().skip(1).copied().chain([last]);
        words.iter().zip(next).map(|(&word, next)| k.selp(word >> 16 | next << 16, word, split)).collect()
    }
}

/// The share of a lane in a block.
struct Share {
    /// Shares of a block.
    of_block: u32,
    /// Elements of a share.
    elements: u32,
}

fn share(format: QuantFormat) -> Share {
    match format {
        QuantFormat::Q8_0 => Share { of_block: 4, elements: 8 },
        QuantFormat::Q4_0
        | QuantFormat::Q4_1
        | QuantFormat::Q5_0
        | QuantFormat::Q5_1
        | QuantFormat::Iq4Nl
        | QuantFormat::Mxfp4 => Share { of_block: 1, elements: 32 },
        QuantFormat::Q2K
        | QuantFormat::Q3K
        | QuantFormat::Q4K
        | QuantFormat::Q5K
        | QuantFormat::Q6K
        | QuantFormat::Iq4Xs => Share { of_block: 8, elements: 32 },
    }
}

/// The first element of a share in its block.
fn first_element<'k>(format: QuantFormat, part: Word<'k>) -> Word<'k> {
    match format {
        QuantFormat::Q8_0 => part * 8u32,
        // A share is a block.
        QuantFormat::Q4_0
        | QuantFormat::Q4_1
        | QuantFormat::Q5_0
        | QuantFormat::Q5_1
        | QuantFormat::Iq4Nl
        | QuantFormat::Mxfp4 => part,
        // A quarter of the block in two shares; the other half of a share's elements is 32 elements further.
        QuantFormat::Q4K | QuantFormat::Q5K => (part >> 1) * 64u32 + (part & 1u32) * 16u32,
        // Half of the block in four shares, which have 8 elements of each of its quarters.
        QuantFormat::Q2K | QuantFormat::Q3K | QuantFormat::Q6K => (part >> 2) * 128u32 + (part & 3u32) * 8u32,
        // A sub-block.
        QuantFormat::Iq4Xs => part * 32u32,
    }
}

/// Two words, the first at `at`.
fn neighbours<'k>(k: &'k Builder, at: Pointer<'k, Global, u32>) -> [Word<'k>; 2] {
    [0, 1].map(|i| k.ld(at.offset(i)))
}

/// The integers of 32 elements, of four words of nibbles and a word of fifth bits.
fn nibble_words<'k>(nibbles: &[Word<'k>], fifths: Option<Word<'k>>) -> Vec<(u32, Word<'k>)> {
    let word = |half: u32, i: u32| {
        let low = nibbles[i as usize] >> (4 * half) & 0x0f0f_0f0fu32;
        let bits = |bits: Word<'k>| (((bits >> (16 * half + 4 * i) & 15u32) * 0x0020_4081u32) & 0x0101_0101u32) << 4;
        (16 * half + 4 * i, fifths.map_or(low, |fifths| low | bits(fifths)))
    };
    (0..2).flat_map(|half| (0..4).map(move |i| (half, i))).map(|(half, i)| word(half, i)).collect()
}

/// Looks up four indices below 16 in a code book: the numbers plus 128, one byte each.
fn looked_up<'k>(k: &'k Builder, book: &[i8; 16], places: Word<'k>) -> Word<'k> {
    let word = |i: usize| {
        let bytes: [u8; 4] = std::array::from_fn(|j| book[4 * i + j] as u8 ^ 0x80);
        k.constant(u32::from_le_bytes(bytes))
    };
    // Three bits select a byte, and four such selectors are 16 bits; the fourth bit chooses between two words.
    let pairs = (places | places >> 4) & 0x00ff_00ffu32;
    let selector = (pairs | pairs >> 8) & 0x7777u32;
    let [lower, upper] = [0, 2].map(|i| k.prmt(word(i), word(i + 1), selector));
    let is_upper = (places >> 3 & 0x0101_0101u32) * 0xffu32;
    upper & is_upper | lower & (is_upper ^ u32::MAX)
}

/// The groups of share `part` of the block with this number, among blocks that begin at `at`.
fn groups<'k>(
    k: &'k Builder,
    format: QuantFormat,
    at: Pointer<'k, Global, u32>,
    block: Value<'k, u64>,
    part: Word<'k>,
) -> Vec<Group<'k>> {
    let halves = |bytes: u64| {
        let first = block * bytes;
        let middle = k.ne(k.cvt_u32(first) & 2u32, 0);
        Halves { k, at: at.index_wide(first >> 2), middle }
    };
    match format {
        QuantFormat::Q8_0 => {
            let block = halves(34);
            let unit = block.number(0);
            // After the unit, in the middle of a word.
            let words = block.words(part * 2u32, false, 2);
            // Inverting the sign bit adds 128 to each byte.
            let vectors = (0..).step_by(4).zip(words.into_iter().map(|word| word ^ 0x8080_8080u32)).collect();
            vec![Group { vectors, bias: 128, step: unit, minimum: None }]
        }
        QuantFormat::Q4_0 | QuantFormat::Q5_0 | QuantFormat::Iq4Nl => {
            let five = format == QuantFormat::Q5_0;
            let block = halves(format.block_bytes() as u64);
            let zero = k.constant(0u32);
            let fifths = five.then(|| block.words(zero, false, 1)[0]);
            let nibbles = block.words(if five { zero + 1u32 } else { zero }, false, 4);
            let places = nibble_words(&nibbles, fifths);
            let (vectors, bias) = match format.layout().values {
                Values::Book(book) => {
                    (places.into_iter().map(|(at, word)| (at, looked_up(k, book, word))).collect(), 128)
                }
                _ => (places, 1 << (format.layout().bits - 1)),
            };
            vec![Group { vectors, bias, step: block.number(0), minimum: None }]
        }
        QuantFormat::Mxfp4 => {
            // Five words contain a block that begins at any byte of the first.
            let first = block * 17u64;
            let at = at.index_wide(first >> 2);
            let byte = k.cvt_u32(first) & 3u32;
            let words: Vec<Word<'k>> = (0..5).map(|i| k.ld(at.offset(i))).collect();
            let selector = byte * 0x1111u32 + (0x3210 + 0x1111);
            let nibbles: Vec<Word<'k>> = words.windows(2).map(|pair| k.prmt(pair[0], pair[1], selector)).collect();
            let e = words[0] >> (byte << 3) & 255u32;
            // The two smallest are subnormal numbers.
            let bits = k.selp(k.constant(0x0020_0000u32) << e, (e - 1u32) << 23, k.lt(e, 2));
            let step = k.bits_f32(k.selp(0x7fc0_0000u32, bits, k.eq(e, 255)));
            let places = nibble_words(&nibbles, None);
            let vectors = places.into_iter().map(|(at, word)| (at, looked_up(k, &DOUBLED, word))).collect();
            vec![Group { vectors, bias: 128, step, minimum: None }]
        }
        QuantFormat::Q4_1 | QuantFormat::Q5_1 => {
            let five = format == QuantFormat::Q5_1;
            let at = at.index_wide(block * (format.block_bytes() / 4) as u64);
            let words: Vec<Word<'k>> = (0..if five { 6 } else { 5 }).map(|i| k.ld(at.offset(i))).collect();
            let vectors = nibble_words(&words[words.len() - 4..], five.then_some(words[1]));
            // An added number is a negative minimum.
            let minimum = -widen(k, words[0] >> 16);
            vec![Group { vectors, bias: 0, step: widen(k, words[0]), minimum: Some(minimum) }]
        }
        QuantFormat::Q2K => {
            let at = at.index_wide(block * 21u64);
            let (half, eighth) = (part >> 2, part & 3u32);
            let bytes = neighbours(k, at.offset(4).index(half * 8u32 + eighth * 2u32));
            let codes = neighbours(k, at.index(half * 2u32));
            let units = k.ld(at.offset(20));
            let [unit, unit_of_minima] = [units, units >> 16].map(|bits| widen(k, bits));
            let second = (eighth >> 1) << 3;
            (0..4u32)
                .map(|row| {
                    let vectors =
                        (0..2u32).map(|i| (32 * row + 4 * i, bytes[i as usize] >> (2 * row) & 0x0303_0303u32));
                    // A four-bit scale and a four-bit minimum for each 16 elements of a row.
                    let code = codes[row as usize / 2] >> (second + 16 * (row % 2));
                    let step = unit * k.cvt_rn_f32(code & 15u32);
                    let minimum = unit_of_minima * k.cvt_rn_f32(code >> 4 & 15u32);
                    Group { vectors: vectors.collect(), bias: 0, step, minimum: Some(minimum) }
                })
                .collect()
        }
        QuantFormat::Q3K => {
            let block = halves(110);
            let (half, eighth) = (part >> 2, part & 3u32);
            let third = block.words(eighth * 2u32, true, 2);
            let bytes = block.words(half * 8u32 + eighth * 2u32 + 8u32, true, 2);
            let codes = block.words(k.constant(24u32), true, 3);
            let unit = block.number(27);
            let second = (eighth >> 1) << 3;
            (0..4u32)
                .map(|row| {
                    let vectors = (0..2u32).map(|i| {
                        let low = bytes[i as usize] >> (2 * row) & 0x0303_0303u32;
                        let bits = third[i as usize] >> ((half << 2) + row) & 0x0101_0101u32;
                        (32 * row + 4 * i, low | bits << 2)
                    });
                    // Four bits of a code are in a nibble for each half of the block, two more in a quarter of a byte.
                    let place = second + 16 * (row % 2);
                    let low = codes[row as usize / 2] >> (place + (half << 2)) & 15u32;
                    let high = codes[2] >> (place + (half << 2) + 2 * (row / 2)) & 3u32;
                    let code = k.cvt_rn_f32(low | high << 4) - 32.0f32;
                    Group { vectors: vectors.collect(), bias: 4, step: unit * code, minimum: None }
                })
                .collect()
        }
        QuantFormat::Iq4Xs => {
            let at = at.index_wide(block * 34u64);
            let [head, low] = neighbours(k, at);
            let [a, b] = neighbours(k, at.offset(2).index(part * 4u32));
            let [c, d] = neighbours(k, at.offset(4).index(part * 4u32));
            let code = low >> (part << 2) & 15u32 | (head >> ((part << 1) + 16u32) & 3u32) << 4;
            let places = nibble_words(&[a, b, c, d], None);
            let vectors = places.into_iter().map(|(at, word)| (at, looked_up(k, &NORMAL, word))).collect();
            let step = widen(k, head) * (k.cvt_rn_f32(code) - 32.0f32);
            vec![Group { vectors, bias: 128, step, minimum: None }]
        }
        QuantFormat::Q4K | QuantFormat::Q5K => {
            let five = format == QuantFormat::Q5K;
            let at = at.index_wide(block * if five { 44u64 } else { 36 });
            let [units, a, b, c] = k.ld_v::<_, _, 4>(at);
            let low = k.ld_v::<_, _, 4>(at.offset(if five { 12 } else { 4 }).index(part * 4u32));
            let high =
                if five { k.ld_v::<_, _, 4>(at.offset(4).index((part & 1u32) * 4u32)).to_vec() } else { Vec::new() };
            let (unit, unit_of_minima) = (widen(k, units), widen(k, units >> 16));
            let quarter = part >> 1;
            [0u32, 1]
                .map(|upper| {
                    let number = quarter * 2u32 + upper;
                    // Scales and minima 0 to 3 are bytes of `a` and `b`; for 4 to 7 these contain the upper two bits,
                    // and `c` the others.
                    let places = (number & 3u32) << 3;
                    let [a, b, c] = [a, b, c].map(|word| word >> places);
                    let direct = k.lt(number, 4);
                    let scale = k.selp(a & 63u32, c & 15u32 | a >> 2 & 0x30u32, direct);
                    let minimum = k.selp(b & 63u32, c >> 4 & 15u32 | b >> 2 & 0x30u32, direct);
                    let vectors = low.iter().enumerate().map(|(i, &word)| {
                        let nibbles = word >> (4 * upper) & 0x0f0f_0f0fu32;
                        let integers = match high.get(i) {
                            Some(&bits) => nibbles | (bits >> number & 0x0101_0101u32) << 4,
                            None => nibbles,
                        };
                        (32 * upper + 4 * i as u32, integers)
                    });
                    Group {
                        vectors: vectors.collect(),
                        bias: 0,
                        step: unit * k.cvt_rn_f32(scale),
                        minimum: Some(unit_of_minima * k.cvt_rn_f32(minimum)),
                    }
                })
                .into()
        }
        QuantFormat::Q6K => {
            let block = halves(210);
            let (upper_half, eighth) = (part >> 2, part & 3u32);
            let low = [0u32, 8].map(|words| block.words(upper_half * 16u32 + eighth * 2u32 + words, true, 2));
            let high = block.words(upper_half * 8u32 + eighth * 2u32 + 32u32, true, 2);
            let scales = block.words(upper_half * 2u32 + 48u32, true, 2);
            let unit = block.number(52);
            // Two scales per quarter, each for 16 elements.
            let second = (eighth >> 1) << 3;
            (0..4u32)
                .map(|quarter| {
                    let vectors = (0..2u32).map(|i| {
                        let nibbles = low[quarter as usize % 2][i as usize] >> (4 * (quarter / 2)) & 0x0f0f_0f0fu32;
                        let bits = high[i as usize] >> (2 * quarter) & 0x0303_0303u32;
                        (32 * quarter + 4 * i, nibbles | bits << 4)
                    });
                    let scale = signed_byte(k, scales[quarter as usize / 2], second + 16 * (quarter % 2));
                    Group { vectors: vectors.collect(), bias: 32, step: unit * scale, minimum: None }
                })
                .collect()
        }
    }
}

/// Reads blocks of a format as f32. Memory is read in whole words: it ends with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dequantize {
    format: QuantFormat,
}

impl Dequantize {
    /// A kernel for this format.
    pub fn new(format: QuantFormat) -> Self {
        Self { format }
    }

    /// The launch for this many elements, whole blocks. Buffers: blocks, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 shares of 8 or 32 elements.
    pub fn launch(&self, elements: usize) -> Result<Launch> {
        let n = extent("shares of blocks", elements / share(self.format).elements as usize, MOST)?;
        let arguments = vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(n)];
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let (blocks, out) = (k.buffer::<u32>("blocks"), k.buffer::<f32>("out"));
        let n = k.parameter::<u32>("n");
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, n), || {
            let Share { of_block, .. } = share(self.format);
            let (block, part) = (k.cvt_u64(at / of_block), at % of_block);
            let first = first_element(self.format, part);
            let out = out.index_wide(block * self.format.block_len() as u64).index(first);
            for group in groups(k, self.format, blocks, block, part) {
                for &(offset, bytes) in &group.vectors {
                    k.st_v(out.offset(offset as i32), group.elements(k, bytes));
                }
            }
        });
    }
}

impl Kernel for Dequantize {
    fn name(&self) -> String {
        format!("dequantize_{}", self.format.name())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

/// The product of f32 rows with the transpose of weights in blocks: `yᵢⱼ = Σₖ xᵢₖ Wⱼₖ`. A warp takes a few rows of both, so
/// that what it reads of x serves several rows of weights, and weights that are unpacked several rows of x.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuantMatmul {
    format: QuantFormat,
    /// Rows of x per warp.
    rows: u32,
    /// Maximum products of a tile, if tiles have the products of one expert each. A warp computes all of them, some at
    /// a time.
    tile: Option<u32>,
}

impl QuantMatmul {
    /// A kernel for this format and about this many rows of x.
    pub fn new(format: QuantFormat, rows: usize) -> Self {
        // Two times two rows are faster than four at once, which need too many registers.
        let rows = if rows > 1 { 2 } else { 1 };
        Self { format, rows, tile: None }
    }

    /// A kernel for this format and tiles of products, each with the weights of one expert.
    pub fn by_expert(format: QuantFormat, tiles: ExpertTiles) -> Self {
        Self { tile: Some(tiles.rows as u32), ..Self::new(format, tiles.rows) }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let of = |format| {
            let tile = |rows| Self::by_expert(format, ExpertTiles { rows, count: 1 });
            [Self::new(format, 1), Self::new(format, 2), tile(1), tile(8)]
        };
        QuantFormat::ALL.into_iter().flat_map(of).collect()
    }

    /// The launch for `m` rows of x of `depth` elements, whole blocks, and `n` rows of weights. Buffers: x, weights, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 rows, shares of a row or groups of rows, or 65 535 groups of
    /// rows of x.
    pub fn launch(&self, m: usize, depth: usize, n: usize) -> Result<Launch> {
        let rows = extent("rows", m, MOST)?;
        let weights = extent("rows of weights", n, MOST)?;
        let shares = extent("shares of blocks", depth / share(self.format).elements as usize, MOST)?;
        let warps = weights.div_ceil(WEIGHTS);
        let across = extent("blocks", warps.div_ceil(BLOCK / WARP) as usize, MAX_GRID_X)?;
        let down = extent("groups of rows", rows.div_ceil(self.rows) as usize, MAX_GRID_YZ)?;
        let words = [rows, weights, shares].map(Argument::U32);
        let arguments = (0..3).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [across, down, 1], arguments })
    }

    /// The launch for tiles of products with the weights of experts. Buffers: x, weights, result, experts of tiles, products of tiles.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 products, shares of a row or rows of all experts, or 65 535 tiles.
    pub fn launch_by_expert(&self, e: &ExpertExtents, tiles: ExpertTiles) -> Result<Launch> {
        let words = experts::words(e)?;
        let shares = extent("shares of blocks", e.k / share(self.format).elements as usize, MOST)?;
        let warps = words[1].div_ceil(WEIGHTS);
        let across = extent("blocks", warps.div_ceil(BLOCK / WARP) as usize, MAX_GRID_X)?;
        let own = [0, 1, 2].map(Argument::Buffer).into_iter().chain([Argument::U32(shares)]);
        let arguments = own.chain([3, 4].map(Argument::Buffer)).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [across, experts::down(tiles)?, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let x = k.buffer::<f32>("x");
        let blocks = k.buffer::<u32>("weights");
        let out = k.buffer::<f32>("out");
        let Some(rows) = self.tile else {
            let [m, n, shares] = ["m", "n", "shares"].map(|name| k.parameter::<u32>(name));
            let rows: Vec<Word<'_>> = (0..self.rows).map(|i| k.ctaid_y() * self.rows + i).collect();
            let of_x = rows.iter().map(|&row| k.min(row, m - 1)).collect();
            return self.multiply(k, [x, out], blocks, shares, Rows { of_result: rows, of_x, m, n, first: None });
        };
        let shares = k.parameter::<u32>("shares");
        let tile = Chosen::new(k, rows);
        // As for products with floats: by itself the assembler allocates too few registers.
        k.resident_blocks(2);
        k.if_(tile.is_there(), || {
            k.for_(0u32, rows, self.rows, |first| {
                let products: Vec<Word<'_>> = (0..self.rows).map(|i| tile.product(first + i)).collect();
                let of_x = products.iter().map(|&product| tile.row(product)).collect();
                // The products of a tile come first: if one is missing, so are those after it.
                k.if_(k.lt(products[0], tile.products), || {
                    let (m, n, first) = (tile.products, tile.n, Some(tile.first_row()));
                    self.multiply(k, [x, out], blocks, shares, Rows { of_result: products, of_x, m, n, first });
                });
            });
        });
    }

    /// Adds the products of the rows of x that a warp processes at once.
    fn multiply<'k>(
        &self,
        k: &'k Builder,
        [x, out]: [Pointer<'k, Global, f32>; 2],
        blocks: Pointer<'k, Global, u32>,
        shares: Word<'k>,
        Rows { of_result: rows, of_x, m, n, first: first_weight }: Rows<'k>,
    ) {
        let [warp, lane] = team::place(k, BLOCK, WARP);
        let Share { of_block, elements } = share(self.format);
        let of_row = shares / of_block;
        let depth = shares * elements;
        // Missing rows are read as the last one, and not written.
        let weights: Vec<Word<'_>> = (0..WEIGHTS).map(|j| warp * WEIGHTS + j).collect();
        let x: Vec<_> = of_x.iter().map(|&row| x.index_wide(k.mul_wide(row, depth))).collect();
        let row_of_weights = |&row: &Word<'k>| {
            let row = k.min(row, n - 1);
            k.mul_wide(first_weight.map_or(row, |first| first + row), of_row)
        };
        let first: Vec<_> = weights.iter().map(row_of_weights).collect();
        let sums: Vec<Vec<_>> = weights.iter().map(|_| rows.iter().map(|_| k.variable(0.0f64)).collect()).collect();

        let add = |exactly: bool| {
            k.for_(lane, shares, WARP, |at| {
                let (block, part) = (at / of_block, at % of_block);
                let element = k.mad(block, self.format.block_len() as u32, first_element(self.format, part));
                let x: Vec<_> = x.iter().map(|row| row.index(element)).collect();
                // The elements of x read for the first row of weights serve the others.
                let mut read: Vec<Vec<Vec<[F32<'k>; 4]>>> = Vec::new();
                for (row, sums) in first.iter().zip(&sums) {
                    let groups = groups(k, self.format, blocks, *row + k.cvt_u64(block), part);
                    if read.is_empty() {
                        let vectors = |group: &Group<'k>| -> Vec<Vec<[F32<'k>; 4]>> {
                            let of_row = |x: &Pointer<'k, Global, f32>| {
                                group.vectors.iter().map(|&(offset, _)| k.ld_v(x.offset(offset as i32))).collect()
                            };
                            x.iter().map(of_row).collect()
                        };
                        read = groups.iter().map(vectors).collect();
                    }
                    for (group, read) in groups.iter().zip(&read) {
                        for (sum, x) in sums.iter().zip(read) {
                            let x: Vec<F32<'k>> = x.iter().flatten().copied().collect();
                            sum.set(if exactly {
                                group.add_exactly(k, x.iter().map(|&x| k.cvt_f64(x)), sum.get())
                            } else {
                                group.add(k, &x, sum.get())
                            });
                        }
                    }
                }
            });
            // Every lane gets the sums.
            for sum in sums.iter().flatten() {
                sum.set(team::combine(k, WARP, lane, sum.get(), |a, b| a + b));
            }
        };
        add(false);
        // For infinities and overflows the products are computed one by one, which gives the results of IEEE 754.
        let finite = sums.iter().flatten().map(|sum| k.lt(k.abs(k.cvt_rn_f32(sum.get())), f32::INFINITY));
        if let Some(finite) = team::tree(finite.collect(), |a, b| k.and(a, b)) {
            k.if_(k.not(finite), || {
                sums.iter().flatten().for_each(|sum| sum.set(0.0));
                add(true);
            });
        }
        for (&j, sums) in weights.iter().zip(&sums) {
            for (&i, sum) in rows.iter().zip(sums) {
                let write = k.and(k.eq(lane, 0), k.and(k.lt(i, m), k.lt(j, n)));
                k.st_if(write, out.index_wide(k.mad_wide(i, n, k.cvt_u64(j))), k.cvt_rn_f32(sum.get()));
            }
        }
    }
}

/// The rows that a warp multiplies.
struct Rows<'k> {
    of_result: Vec<Word<'k>>,
    of_x: Vec<Word<'k>>,
    /// Rows of the result, and of the weights.
    m: Word<'k>,
    n: Word<'k>,
    /// The first row of the weights, if others precede it.
    first: Option<Word<'k>>,
}

/// A row of x of `depth` elements that is multiplied product by product, times gamma if there is one.
#[derive(Clone, Copy)]
struct ExactRow<'k> {
    x: Pointer<'k, Global, f32>,
    gamma: Option<Pointer<'k, Global, f32>>,
    depth: Word<'k>,
}

impl<'k> ExactRow<'k> {
    /// Four elements.
    fn elements(&self, k: &'k Builder, at: Word<'k>) -> [Value<'k, f64>; VECTOR as usize] {
        let x = k.ld_v::<_, _, 4>(self.x.index(at)).map(|x| k.cvt_f64(x));
        match self.gamma.map(|gamma| k.ld_v::<_, _, 4>(gamma.index(at))) {
            Some(gamma) => std::array::from_fn(|i| x[i] * k.cvt_f64(gamma[i])),
            None => x,
        }
    }

    /// The sum of the products with a row of weights in blocks.
    fn product(
        &self,
        k: &'k Builder,
        format: QuantFormat,
        weights: Pointer<'k, Global, u32>,
        row: Word<'k>,
    ) -> Value<'k, f64> {
        let of_block = share(format).of_block;
        let blocks = self.depth / format.block_len() as u32;
        let first = k.mul_wide(row, blocks);
        let sum = k.variable(0.0f64);
        k.for_(0u32, blocks * of_block, 1u32, |at| {
            let (block, part) = (at / of_block, at % of_block);
            let begin = k.mad(block, format.block_len() as u32, first_element(format, part));
            for group in groups(k, format, weights, first + k.cvt_u64(block), part) {
                let read = |&(offset, _): &(u32, Word<'k>)| self.elements(k, begin + offset);
                sum.set(group.add_exactly(k, group.vectors.iter().flat_map(read), sum.get()));
            }
        });
        sum.get()
    }

    /// `1 / √(Σ x² / depth + eps)`.
    fn inverse_rms(&self, k: &'k Builder, eps: f32) -> Value<'k, f64> {
        let plain = Self { gamma: None, ..*self };
        let squares = k.variable(0.0f64);
        k.for_(0u32, self.depth, VECTOR, |at| {
            for x in plain.elements(k, at) {
                squares.set(k.fma(x, x, squares.get()));
            }
        });
        let mean = squares.get() * k.rcp(k.cvt_rn_f64(self.depth));
        k.rcp(k.sqrt(mean + f64::from(eps)))
    }
}

/// The sum of products, in two chains.
fn chain<'k>(k: &'k Builder, pairs: impl Iterator<Item = (F32<'k>, F32<'k>)>) -> F32<'k> {
    let mut sums: [Option<F32<'k>>; 2] = [None; 2];
    for (at, (a, b)) in pairs.enumerate() {
        let sum = &mut sums[at % 2];
        *sum = Some(sum.map_or_else(|| a * b, |sum| k.fma(a, b, sum)));
    }
    let [first, second] = sums.map(|sum| sum.unwrap_or_else(|| k.constant(0.0)));
    first + second
}

impl Kernel for QuantMatmul {
    fn name(&self) -> String {
        let experts = self.tile.map_or_else(String::new, |rows| format!("_by_expert_{rows}"));
        format!("quant_matmul_{}_{}{experts}", self.format.name(), self.rows)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
