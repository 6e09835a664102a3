//! Weights as the first operand of products of f16: integers, which f16 holds exactly.
//!
//! `W = d · q − m`. In formats with blocks of 256 elements, q contains the scale of its group and d is the unit of the block. Integers
//! of Q6_K reach 4096, and have a second part where f16 does not hold them. In other formats d is the scale of 32 elements.

use kiln_ir::quant::NORMAL;
use kiln_ir::{QuantFormat, f16};

use super::super::byte_weights::{BEYOND_F32, Codes, Small, fifth_bits, looked_up_by_byte};
use super::Word;
use crate::kernels::half::pack;
use crate::kernels::math::F32;
use crate::{Builder, F16, Operand, Pointer, PtxType, Shared, Value};

/// Elements of a row that are multiplied at once.
pub(super) const CHUNK: u32 = 256;
/// Elements of a step of a product along k, and of a group of two steps.
pub(super) const STEP: u32 = 16;
pub(super) const GROUP: u32 = 32;
/// Groups of a chunk.
pub(super) const GROUPS: u32 = CHUNK / GROUP;
/// The upper byte of f16 from this number on, where a unit in the last place is 1, in every byte of a word, and a pair of them.
const LIFTED: u32 = 0x6464_6464;
const LIFTED_PAIR: u32 = 0x6400_6400;
const LIFT: f32 = 1024.0;
/// The bytes of a word whose elements are in a pair of f16.
const PAIRS: [[u32; 2]; 2] = [[0, 2], [1, 3]];
/// The nibbles of the lower bytes of the halves of a word.
const LOWER_NIBBLES: u32 = 0x000f_000f;
const UPPER_NIBBLES: u32 = 0x00f0_00f0;
/// The factor of minima, and the divisor of the sums of x that they are multiplied by: both keep within f16.
pub(super) const MINIMUM: f32 = 32.0;
/// The factor of the second part of x.
pub(super) const LOWER: f32 = 2048.0;

/// A format whose weights these kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Packing {
    /// Q4_K, and with a fifth bit Q5_K.
    Affine {
        five: bool,
    },
    Q6K,
    Q8_0,
    Small(Small),
    Mxfp4,
}

impl Packing {
    /// `None` for formats without such a kernel.
    pub(super) fn of(format: QuantFormat) -> Option<Self> {
        Some(match format {
            QuantFormat::Q4K => Self::Affine { five: false },
            QuantFormat::Q5K => Self::Affine { five: true },
            QuantFormat::Q6K => Self::Q6K,
            QuantFormat::Q8_0 => Self::Q8_0,
            QuantFormat::Q4_0 | QuantFormat::Q4_1 | QuantFormat::Q5_0 | QuantFormat::Q5_1 | QuantFormat::Iq4Nl => {
                Self::Small(Small::of(format)?)
            }
            QuantFormat::Mxfp4 => Self::Mxfp4,
            QuantFormat::Q2K | QuantFormat::Q3K | QuantFormat::Iq4Xs => return None,
        })
    }

    /// Bytes of a chunk of a row.
    pub(super) fn bytes(self) -> u32 {
        match self {
            Self::Affine { five: false } => 144,
            Self::Affine { five: true } => 176,
            Self::Q6K => 210,
            Self::Q8_0 => 272,
            Self::Small(small) => GROUPS * small.bytes,
            Self::Mxfp4 => 136,
        }
    }

    /// Bytes between the rows of a chunk in shared memory, a multiple of 16: lanes that read adjacent rows use different banks as far
    /// as possible.
    pub(super) fn pitch(self) -> u32 {
        match self {
            Self::Affine { five: false } => 160,
            Self::Affine { five: true } => 224,
            Self::Q6K => 240,
            Self::Q8_0 => 288,
            // Rows of 192 bytes would be in two banks.
            Self::Small(small) if small.bytes == 24 => 208,
            Self::Small(small) => GROUPS * small.bytes,
            Self::Mxfp4 => 144,
        }
    }

    /// Copies begin at multiples of 16 bytes: the offset of a chunk from there, the same for all rows. `None` if it is always 0.
    pub(super) fn offset<'k>(self, chunk: Word<'k>) -> Option<Word<'k>> {
        (!self.bytes().is_multiple_of(16)).then(|| (chunk * self.bytes()) & 15u32)
    }

    /// Elements with a common `d`, whose products are added in a chain.
    pub(super) fn chain(self) -> u32 {
        match self {
            Self::Affine { .. } | Self::Q6K => CHUNK,
            Self::Q8_0 | Self::Small(_) | Self::Mxfp4 => GROUP,
        }
    }

    pub(super) fn has_minima(self) -> bool {
        match self {
            Self::Affine { .. } => true,
            Self::Small(small) => small.minimum.is_some(),
            Self::Q6K | Self::Q8_0 | Self::Mxfp4 => false,
        }
    }

    /// Whether minima are integers in units of the block.
    pub(super) fn has_integer_minima(self) -> bool {
        matches!(self, Self::Affine { .. })
    }

    /// Adjacent elements that the lanes of a quad share, 16 or 32: this determines the order of elements of x. With 16, a lane's
    /// elements of a block of 32 are the nibbles of one word.
    pub(super) fn adjacent(self) -> u32 {
        match self {
            Self::Q6K | Self::Small(_) | Self::Mxfp4 => STEP,
            Self::Affine { .. } | Self::Q8_0 => GROUP,
        }
    }
}

/// The four elements of a lane in a step of a row, in two words, and the second parts of those that have any. The first word has the
/// first and the third element, because they are in the two halves of a word of bytes.
pub(super) struct Elements<'k> {
    pub(super) first: [Word<'k>; 2],
    pub(super) rest: Option<[Word<'k>; 2]>,
}

/// A lane's part of a chunk of a row of weights in shared memory.
pub(super) struct Row<'k> {
    k: &'k Builder,
    packing: Packing,
    /// The first byte of the row's chunk, and what the lane reads from, without the last two bits of their addresses.
    at: Pointer<'k, Shared, u32>,
    of_lane: Pointer<'k, Shared, u32>,
    /// Selects a word that begins with the second half of one, if the chunk may begin there.
    unaligned: Option<Word<'k>>,
    /// Bytes from the beginning of a word to that of the chunk.
    in_word: Word<'k>,
    /// The number of the lane in its quad.
    t: Word<'k>,
    /// Scales of groups, a byte each.
    scales: Vec<Word<'k>>,
}

/// `count` words from this byte on; `unaligned` selects a word from two if the byte may be the third of a word.
fn words<'k>(
    k: &'k Builder,
    at: Pointer<'k, Shared, u32>,
    unaligned: Option<Word<'k>>,
    byte: u32,
    count: u32,
) -> Vec<Word<'k>> {
    let off = byte % 4;
    let at = at.bytes((byte - off) as i32);
    let selector = match off {
        0 => unaligned,
        _ => Some(k.constant(0x3210 + 0x1111 * off)),
    };
    let words: Vec<Word<'k>> = (0..count + u32::from(selector.is_some())).map(|i| k.ld(at.offset(i as i32))).collect();
    match selector {
        None => words,
        Some(selector) => words.windows(2).map(|pair| k.prmt(pair[0], pair[1], selector)).collect(),
    }
}

/// Two equal numbers of f16.
fn pair(x: f32) -> u32 {
    u32::from(f16::from_f32(x).to_bits()) * 0x1_0001
}

/// `a b + c`, of pairs of f16. Constants take a register: the instruction has no others.
fn fma<'k>(k: &'k Builder, a: Word<'k>, b: impl Operand<u32>, c: impl Operand<u32>) -> Word<'k> {
    k.fma_x2::<F16>(a, k.constant(b), k.constant(c))
}

/// A pair of two bytes of a word plus [`LIFT`].
fn lifted<'k>(k: &'k Builder, word: Word<'k>, bytes: [u32; 2]) -> Word<'k> {
    k.prmt(word, LIFTED, 0x4040 | bytes[0] | bytes[1] << 8)
}

/// The bytes of a word less a bias, in two pairs.
fn integers<'k>(k: &'k Builder, word: Word<'k>, bias: f32) -> [Word<'k>; 2] {
    PAIRS.map(|bytes| fma(k, lifted(k, word, bytes), pair(1.0), pair(-LIFT - bias)))
}

/// [`LIFT`] plus what these bits of the halves of a word are, and the same of the bytes above them.
fn lifted_bits<'k>(word: Word<'k>, bits: u32) -> [Word<'k>; 2] {
    [word, word >> 8].map(|word| word & bits | LIFTED_PAIR)
}

/// The lower nibbles of the bytes of a word less a bias, and the upper ones.
fn nibbles<'k>(k: &'k Builder, word: Word<'k>, bias: f32) -> [[Word<'k>; 2]; 2] {
    let upper = 1.0 / 16.0;
    [
        lifted_bits(word, LOWER_NIBBLES).map(|lifted| fma(k, lifted, pair(1.0), pair(-LIFT - bias))),
        lifted_bits(word, UPPER_NIBBLES).map(|lifted| fma(k, lifted, pair(upper), pair(-LIFT * upper - bias))),
    ]
}

/// The numbers of [`NORMAL`] at the lower nibbles of the bytes of a word, and at the upper ones.
fn normal<'k>(k: &'k Builder, word: Word<'k>) -> [[Word<'k>; 2]; 2] {
    const BIAS: u8 = 128;
    let biased = NORMAL.map(|number| number as u8 ^ BIAS);
    // Of elements 0, 16, 2, 18, and of 1, 17, 3, 19.
    let numbers = looked_up_by_byte(k, biased, k.prmt(word, word, 0x3120u32));
    let [[a, c], [b, d]] = numbers.map(|numbers| {
        lifted_bits(numbers, 0x00ff_00ff).map(|lifted| fma(k, lifted, pair(1.0), pair(-LIFT - f32::from(BIAS))))
    });
    [[a, b], [c, d]]
}

/// The numbers of MXFP4 at the lower nibbles of the bytes of a word, and at the upper ones. Sign, two bits of an exponent and one of a
/// mantissa, in the places of those of an f16, are 2⁻¹⁴ times the number.
fn small_floats<'k>(k: &'k Builder, word: Word<'k>) -> [[Word<'k>; 2]; 2] {
    let moved = |by: i32| if by < 0 { word >> by.unsigned_abs() } else { word << by as u32 };
    [[0, 8], [4, 12]].map(|nibbles| {
        nibbles.map(|bit: i32| {
            let sign = if bit == 12 { word } else { moved(12 - bit) };
            let bits = sign & 0x8000_8000u32 | moved(9 - bit) & 0x0e00_0e00u32;
            fma(k, bits, pair(16_384.0), pair(-0.0))
        })
    })
}

impl<'k> Row<'k> {
    /// The row whose copy begins at `at`, and its chunk at this offset from there; `t` is the number of the lane in its quad.
    pub(super) fn new(
        k: &'k Builder,
        packing: Packing,
        at: Pointer<'k, Shared, u32>,
        offset: Option<Word<'k>>,
        t: Word<'k>,
    ) -> Self {
        let mut scales = Vec::new();
        let at = offset.map_or(at, |offset| at.byte_index(offset & !3u32));
        let in_word = offset.map_or_else(|| k.constant(0u32), |offset| offset & 3u32);
        let unaligned = offset.filter(|_| !packing.bytes().is_multiple_of(4));
        let unaligned = unaligned.map(|_| k.selp(0x5432u32, 0x3210u32, k.ne(in_word, 0)));
        match packing {
            Packing::Affine { .. } => {
                let [a, c] = [1, 3].map(|word| k.ld(at.offset(word)));
                // The bytes of the first four groups contain the upper two bits of the last four.
                scales = vec![a & 0x3f3f_3f3fu32, c & 0x0f0f_0f0fu32 | a >> 2 & 0x3030_3030u32];
            }
            // Inverting the sign bit adds 128 to each byte.
            Packing::Q6K => {
                let words = words(k, at, unaligned, 192, 4);
                scales = words.into_iter().map(|word| word ^ 0x8080_8080u32).collect();
            }
            Packing::Q8_0 | Packing::Small(_) | Packing::Mxfp4 => {}
        }
        let bytes = match packing {
            Packing::Affine { .. } | Packing::Q8_0 => t * 8u32,
            // The lower half of a small block's elements is in the lower nibbles of its bytes.
            Packing::Q6K | Packing::Small(_) | Packing::Mxfp4 => t * 4u32,
        };
        let of_lane = at.byte_index(bytes);
        Self { k, packing, at, of_lane, unaligned, in_word, t, scales }
    }

    /// `count` words from this byte of the lane's part on.
    fn words(&self, byte: u32, count: u32) -> Vec<Word<'k>> {
        words(self.k, self.of_lane, self.unaligned, byte, count)
    }

    /// The lane's elements of the two steps of a group.
    pub(super) fn group(&self, group: u32) -> [Elements<'k>; 2] {
        let k = self.k;
        let word = |byte: u32| self.words(byte, 1)[0];
        let whole = |pairs: [[Word<'k>; 2]; 2]| pairs.map(|first| Elements { first, rest: None });
        match self.packing {
            Packing::Affine { five } => self.affine(group, five),
            Packing::Q6K => [0, 1].map(|side| self.q6_k(group, side)),
            Packing::Q8_0 => {
                let words = self.words(34 * group + 2, 2);
                whole([0, 1].map(|i: usize| integers(k, words[i] ^ 0x8080_8080u32, 128.0)))
            }
            Packing::Small(Small { bytes, codes, fifths, lower, .. }) => {
                let block = group * bytes;
                let word = word(block + lower);
                let less = match codes {
                    Codes::Less(less) => f32::from(less),
                    Codes::Normal => return whole(normal(k, word)),
                };
                let Some(fifths) = fifths else { return whole(nibbles(k, word, less)) };
                let fifths = words(k, self.at, None, block + fifths, 1)[0];
                whole([0, 1].map(|half: u32| {
                    let lower = if half == 0 { word } else { word >> 4 } & 0x0f0f_0f0fu32;
                    integers(k, lower | fifth_bits(fifths, self.t * 4u32 + 16 * half), less)
                }))
            }
            Packing::Mxfp4 => whole(small_floats(k, word(17 * group + 1))),
        }
    }

    /// Integers times the scale of their group. Those of every second group are in the upper bits of their bytes.
    fn affine(&self, group: u32, five: bool) -> [Elements<'k>; 2] {
        let k = self.k;
        let (quarter, is_upper) = (group / 2, group % 2 == 1);
        let words = k.ld_v::<_, _, 2>(self.of_lane.bytes(if five { 48 } else { 16 } + 32 * quarter as i32));
        let fifths = five.then(|| k.ld_v::<_, _, 2>(self.of_lane.bytes(16)));
        let bytes = |i: usize| match (is_upper, fifths) {
            (false, None) => words[i] & 0x0f0f_0f0fu32,
            (true, None) => words[i] & 0xf0f0_f0f0u32,
            (false, Some(bits)) => {
                let bits = if quarter < 2 { bits[i] << (4 - 2 * quarter) } else { bits[i] >> (2 * quarter - 4) };
                words[i] & 0x0f0f_0f0fu32 | bits & 0x1010_1010u32
            }
            (true, Some(bits)) => words[i] >> 1 & 0x7878_7878u32 | bits[i] << (6 - 2 * quarter) & 0x8080_8080u32,
        };
        let less = match (is_upper, five) {
            (false, _) => 1.0,
            (true, false) => 1.0 / 16.0,
            (true, true) => 1.0 / 8.0,
        };
        let (word, byte) = (self.scales[group as usize / 4], group % 4);
        let scale = fma(k, lifted(k, word, [byte; 2]), pair(less), pair(-LIFT * less));
        // Exact, since every product is: (1024 + q) s - 1024 s.
        let below = fma(k, scale, pair(-LIFT), pair(-0.0));
        [0, 1].map(|i| {
            // `lifted_bits` is slower here: 2090 instead of 2252 GB/s of 16 rows on an H200.
            let bytes = bytes(i);
            let first = PAIRS.map(|pair| fma(k, lifted(k, bytes, pair), scale, below));
            Elements { first, rest: None }
        })
    }

    /// Integers times the scale of their 16, and what f16 does not hold of the products.
    fn q6_k(&self, group: u32, side: u32) -> Elements<'k> {
        let k = self.k;
        let (part, quarter) = (group / 4, group % 4);
        let [low, high] = [64 * part + 16 * (2 * (quarter % 2) + side), 128 + 32 * part + 16 * side]
            .map(|byte| self.words(byte, 1)[0]);
        let nibbles = if quarter < 2 { low } else { low >> 4 } & 0x0f0f_0f0fu32;
        let bits = if quarter < 3 { high << (4 - 2 * quarter) } else { high >> 2 } & 0x3030_3030u32;
        let number = 8 * part + 2 * quarter + side;
        let (word, byte) = (self.scales[number as usize / 4], number % 4);
        let scale = fma(k, lifted(k, word, [byte; 2]), pair(1.0), pair(-LIFT - 128.0));
        let integers = integers(k, nibbles | bits, 32.0);
        let first = integers.map(|integer| fma(k, integer, scale, pair(-0.0)));
        let rest = [0, 1].map(|i: usize| fma(k, integers[i], scale, first[i] ^ 0x8000_8000u32));
        Elements { first, rest: Some(rest) }
    }

    /// The factor of the sums of a chain: of the chunk, or of this group.
    pub(super) fn unit(&self, group: u32) -> F32<'k> {
        let k = self.k;
        let half = |byte: u32| {
            let half: Value<'k, F16> = k.ld(self.at.byte_index(self.in_word).bytes(byte as i32).cast());
            k.cvt_f32(half)
        };
        match self.packing {
            Packing::Affine { .. } => half(0),
            Packing::Q6K => half(208),
            Packing::Q8_0 => half(34 * group),
            Packing::Small(small) => half(group * small.bytes),
            Packing::Mxfp4 => {
                let place = 17 * group;
                let word: Word<'k> = k.ld(self.at.bytes((place & !3) as i32));
                let e = word >> (8 * (place % 4)) & 0xffu32;
                // A power of two: 2^(e - 127), subnormal for 0.
                let bits = k.max(e << 23, 0x0040_0000u32);
                k.bits_f32(k.selp(0x7fc0_0000u32, bits, k.ge(e, BEYOND_F32)))
            }
        }
    }

    /// The minima of the chunk as an operand, and the factor of its products: what is subtracted from the sums.
    pub(super) fn minima(&self) -> Minima<'k> {
        let k = self.k;
        let half = |at: Pointer<'k, Shared, u32>| {
            let half: Value<'k, F16> = k.ld(at.cast());
            k.cvt_f32(half)
        };
        if let Packing::Small(Small { bytes, minimum: Some(minimum), .. }) = self.packing {
            let first = self.at.byte_index(self.t * (2 * bytes)).bytes(minimum as i32);
            let pair = pack(k, PtxType::F16, [half(first), half(first.bytes(bytes as i32))]);
            return Minima { pair, unit: k.constant(-MINIMUM) };
        }
        let [b, c] = [2, 3].map(|word| k.ld(self.at.offset(word)));
        let lasts = c >> 4 & 0x0f0f_0f0fu32 | b >> 2 & 0x3030_3030u32;
        let word = k.selp(lasts, b & 0x3f3f_3f3fu32, k.ge(self.t, 2));
        let selector = (self.t & 1u32) * 0x0202u32 + 0x4140u32;
        let integers = fma(k, k.prmt(word, LIFTED, selector), pair(MINIMUM), pair(-LIFT * MINIMUM));
        Minima { pair: integers, unit: half(self.at.bytes(2)) }
    }
}

/// The minima of two of the eight groups of a row of a chunk, those from twice the number of the lane in its quad on.
pub(super) struct Minima<'k> {
    /// Multiplied by the sums of the groups divided by [`MINIMUM`].
    pub(super) pair: Word<'k>,
    pub(super) unit: F32<'k>,
}

/// Divides a pair by [`LOWER`].
pub(super) fn lower<'k>(k: &'k Builder, pair_of_elements: Word<'k>) -> Word<'k> {
    fma(k, pair_of_elements, pair(1.0 / LOWER), pair(-0.0))
}
