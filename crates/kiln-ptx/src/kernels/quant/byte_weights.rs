//! Weights as the first operand of products of bytes, and the steps that belong to them.

use kiln_ir::QuantFormat;
use kiln_ir::quant::{DOUBLED, NORMAL};

use super::{LIFTED, Word};
use crate::kernels::math::F32;
use crate::{Builder, F16, Pointer, Shared, Value};

/// Exponents of MXFP4 from which on elements may be beyond f32; 255 is NaN. The products of such blocks are computed again one by one.
pub(super) const BEYOND_F32: u32 = 253;

/// The memory layouts of the blocks that these kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    /// Q4_K, and with a fifth bit Q5_K.
    Affine {
        five: bool,
    },
    Q6K,
    Q8_0,
    Small(Small),
    Iq4Xs,
    Mxfp4,
}

/// The numbers that integers represent, in units of their scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Codes {
    /// The integers less this number.
    Less(u8),
    /// Those of IQ4_NL.
    Normal,
}

impl Codes {
    /// The numbers of the lower nibbles of a word, and of the upper ones, a signed byte each. `fifths`: for either, what is added to
    /// the integers of [`Codes::Less`].
    fn numbers<'k>(self, k: &'k Builder, word: Word<'k>, fifths: Option<[Word<'k>; 2]>) -> [Word<'k>; 2] {
        let less = match self {
            Self::Less(less) => u32::from(less) * 0x0101_0101,
            Self::Normal => return looked_up(k, &NORMAL, word),
        };
        let lower = [word, word >> 4].map(|word| word & 0x0f0f_0f0fu32);
        let integers = [0, 1].map(|i: usize| fifths.map_or(lower[i], |bits| lower[i] | bits[i]));
        match less {
            0 => integers,
            // No byte borrows from the next.
            _ => integers.map(|integers| ((integers | 0x8080_8080u32) - less) ^ 0x8080_8080u32),
        }
    }
}

/// Blocks of 32 elements with a scale in f16 and the lower four bits of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Small {
    pub(super) bytes: u32,
    pub(super) codes: Codes,
    /// The offset of the number that is added to all elements, also in f16.
    pub(super) minimum: Option<u32>,
    /// The offset of the fifth bits of the integers, a word.
    pub(super) fifths: Option<u32>,
    /// The offset of the lower bits.
    pub(super) lower: u32,
}

impl Small {
    /// `None` for other formats.
    pub(super) fn of(format: QuantFormat) -> Option<Self> {
        let of = |codes, minimum, fifths, lower| {
            Some(Self { bytes: format.block_bytes() as u32, codes, minimum, fifths, lower })
        };
        match format {
            QuantFormat::Q4_0 => of(Codes::Less(8), None, None, 2),
            QuantFormat::Q4_1 => of(Codes::Less(0), Some(2), None, 4),
            QuantFormat::Q5_0 => of(Codes::Less(16), None, Some(2), 6),
            QuantFormat::Q5_1 => of(Codes::Less(0), Some(2), Some(4), 8),
            QuantFormat::Iq4Nl => of(Codes::Normal, None, None, 2),
            _ => None,
        }
    }
}

/// The fifth bits of the four integers of a word, given those of a block, and the number of the first integer.
pub(super) fn fifth_bits<'k>(bits: Word<'k>, first: Word<'k>) -> Word<'k> {
    // Bit j of four is moved to byte j.
    (((bits >> first & 0xfu32) * 0x0020_4081u32) & 0x0101_0101u32) << 4
}

/// The part of a row of weights that a warp processes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub(super) layout: Layout,
    pub(super) elements: u32,
    pub(super) bytes: u32,
    /// Adjacent elements with a common step.
    pub(super) group: u32,
    /// Adjacent elements that the lanes of a quad share, 16 or 32: this determines the order of elements of x. With 16, a lane's
    /// elements of a block of 32 are the nibbles of one word.
    pub(super) adjacent: u32,
    /// Whether elements have steps and minima.
    pub(super) has_minima: bool,
    /// Whether bytes are unsigned.
    pub(super) unsigned: bool,
    /// Whether a row may begin at any byte, or any multiple of two bytes, instead of sixteen.
    pub(super) is_split: bool,
}

impl Step {
    /// `None` for formats without such a kernel.
    pub(super) fn of(format: QuantFormat) -> Option<Self> {
        Some(match format {
            QuantFormat::Q2K | QuantFormat::Q3K => return None,
            QuantFormat::Q4K | QuantFormat::Q5K => Self {
                layout: Layout::Affine { five: format == QuantFormat::Q5K },
                elements: 256,
                bytes: format.block_bytes() as u32,
                group: 32,
                adjacent: 32,
                has_minima: true,
                unsigned: true,
                is_split: false,
            },
            QuantFormat::Q6K => Self {
                layout: Layout::Q6K,
                elements: 256,
                bytes: 210,
                group: 16,
                adjacent: 16,
                has_minima: false,
                unsigned: false,
                is_split: true,
            },
            // Four blocks.
            QuantFormat::Q8_0 => Self {
                layout: Layout::Q8_0,
                elements: 128,
                bytes: 136,
                group: 32,
                adjacent: 32,
                has_minima: false,
                unsigned: false,
                is_split: true,
            },
            // Four blocks.
            QuantFormat::Q4_0 | QuantFormat::Q4_1 | QuantFormat::Q5_0 | QuantFormat::Q5_1 | QuantFormat::Iq4Nl => {
                let small = Small::of(format)?;
                Self {
                    layout: Layout::Small(small),
                    elements: 128,
                    bytes: 4 * small.bytes,
                    group: 32,
                    adjacent: 16,
                    has_minima: small.minimum.is_some(),
                    unsigned: false,
                    is_split: true,
                }
            }
            QuantFormat::Iq4Xs => Self {
                layout: Layout::Iq4Xs,
                elements: 256,
                bytes: 136,
                group: 32,
                adjacent: 16,
                has_minima: false,
                unsigned: false,
                is_split: true,
            },
            // Four blocks.
            QuantFormat::Mxfp4 => Self {
                layout: Layout::Mxfp4,
                elements: 128,
                bytes: 68,
                group: 32,
                adjacent: 16,
                has_minima: false,
                unsigned: false,
                is_split: true,
            },
        })
    }

    /// Bytes from the preceding multiple of sixteen to where a row may begin, at most.
    pub(super) fn reach(&self) -> u32 {
        match self.layout {
            Layout::Affine { .. } => 0,
            Layout::Q6K | Layout::Q8_0 | Layout::Small(_) | Layout::Iq4Xs => 14,
            Layout::Mxfp4 => 15,
        }
    }

    /// Groups of elements.
    pub(super) fn groups(&self) -> u32 {
        self.elements / self.group
    }
}

/// The group of each set of groups that belongs to this lane: its index in the set.
#[derive(Clone, Copy)]
pub(super) struct Turn<'k> {
    /// Groups of a set.
    pub(super) of: u32,
    pub(super) number: Word<'k>,
}

impl<'k> Turn<'k> {
    /// The byte of the group in a word that has one byte for each of four groups; `first` has that of the first of the
    /// set.
    fn byte(&self, k: &'k Builder, word: Word<'k>, first: u32) -> F32<'k> {
        let selector = 0x7650 | first;
        let lifted = match self.of {
            1 => k.prmt(word, LIFTED, selector),
            _ => k.prmt(word, LIFTED, self.number + selector),
        };
        k.bits_f32(lifted)
    }
}

/// The factor of a group's integer products, and the multiple of the sum of x that is subtracted.
pub(super) type Scale<'k> = (F32<'k>, Option<F32<'k>>);

/// A lane's part of a step of a row.
pub(super) struct Row<'k> {
    /// For each group the bytes of the operand.
    pub(super) groups: Vec<Vec<Word<'k>>>,
    /// For each set of groups, the scales of this lane.
    pub(super) scales: Vec<Scale<'k>>,
}

impl<'k> Row<'k> {
    /// Reads the row at this offset in bytes from `at`; `t` is the number of the lane in its quad.
    pub(super) fn read(
        k: &'k Builder,
        layout: Layout,
        at: Pointer<'k, Shared, u32>,
        bytes: Word<'k>,
        t: Word<'k>,
        turn: Turn<'k>,
    ) -> Self {
        match layout {
            Layout::Affine { five } => affine(k, five, at.byte_index(bytes), t, turn),
            Layout::Q6K => q6_k(k, at, bytes, t, turn),
            Layout::Q8_0 => q8_0(k, at, bytes, t, turn),
            Layout::Small(small) => self::small(k, small, at, bytes, t, turn),
            Layout::Iq4Xs => iq4_xs(k, at.byte_index(bytes), t, turn),
            Layout::Mxfp4 => mxfp4(k, at, bytes, t, turn),
        }
    }
}

/// Q4_K and Q5_K. Integers of the upper groups are in the upper bits of their bytes, so their step is correspondingly
/// smaller.
fn affine<'k>(k: &'k Builder, five: bool, at: Pointer<'k, Shared, u32>, t: Word<'k>, turn: Turn<'k>) -> Row<'k> {
    let [units, a, b, c] = k.ld_v::<_, _, 4>(at);
    let of_lane = at.byte_index(t * 8u32);
    let fifths = five.then(|| k.ld_v::<_, _, 2>(of_lane.bytes(16)));
    let first = if five { 48 } else { 16 };
    let mut groups = Vec::new();
    for quarter in 0..4u32 {
        let words = k.ld_v::<_, _, 2>(of_lane.bytes(first + 32 * quarter as i32));
        let lower = |i: usize| {
            let integers = words[i] & 0x0f0f_0f0fu32;
            fifths.map_or(integers, |bits| {
                let bits = if quarter < 2 { bits[i] << (4 - 2 * quarter) } else { bits[i] >> (2 * quarter - 4) };
                integers | bits & 0x1010_1010u32
            })
        };
        let upper = |i: usize| {
            fifths.map_or(words[i] & 0xf0f0_f0f0u32, |bits| {
                words[i] >> 1 & 0x7878_7878u32 | bits[i] << (6 - 2 * quarter) & 0x8080_8080u32
            })
        };
        groups.push(vec![lower(0), lower(1)]);
        groups.push(vec![upper(0), upper(1)]);
    }
    // Scales and minima of the first four groups are bytes; for the last four these bytes contain the upper two bits.
    let scales = [a & 0x3f3f_3f3fu32, c & 0x0f0f_0f0fu32 | a >> 2 & 0x3030_3030u32];
    let minima = [b & 0x3f3f_3f3fu32, c >> 4 & 0x0f0f_0f0fu32 | b >> 2 & 0x3030_3030u32];
    let [unit, unit_of_minima] = k.halves::<F16>(units).map(|unit| k.cvt_f32(unit));
    let lift = f32::from_bits(LIFTED);
    let less = if five { 1.0 / 8.0 } else { 1.0 / 16.0 };
    let of_upper = unit * less;
    let of_turn = if turn.of == 1 { unit } else { k.selp(of_upper, unit, k.ne(turn.number & 1u32, 0)) };
    let scale = |set: u32| {
        let number = set * turn.of;
        let (half, place) = (number as usize / 4, number % 4);
        let unit = if turn.of == 1 && set % 2 == 1 { of_upper } else { of_turn };
        let step = unit * (turn.byte(k, scales[half], place) - lift);
        (step, Some(unit_of_minima * (turn.byte(k, minima[half], place) - lift)))
    };
    Row { groups, scales: (0..8 / turn.of).map(scale).collect() }
}

/// Words of unaligned bytes.
struct Unaligned<'k> {
    k: &'k Builder,
    /// The word that contains the first byte.
    at: Pointer<'k, Shared, u32>,
    selector: Word<'k>,
}

impl<'k> Unaligned<'k> {
    /// Beginning at this offset in bytes from `at`, a multiple of two.
    fn new(k: &'k Builder, at: Pointer<'k, Shared, u32>, bytes: Word<'k>) -> Self {
        let selector = k.selp(0x5432u32, 0x3210u32, k.ne(bytes & 2u32, 0));
        Self { k, at: at.byte_index(bytes & !3u32), selector }
    }

    /// Beginning at any byte.
    fn odd(k: &'k Builder, at: Pointer<'k, Shared, u32>, bytes: Word<'k>) -> Self {
        let selector = k.mad(bytes & 3u32, 0x1111u32, 0x3210u32);
        Self { k, at: at.byte_index(bytes & !3u32), selector }
    }

    /// `count` consecutive words, this many bytes further.
    fn words(&self, bytes: u32, count: u32) -> Vec<Word<'k>> {
        let at = self.at.bytes(bytes as i32);
        let words: Vec<Word<'k>> = (0..=count).map(|i| self.k.ld(at.offset(i as i32))).collect();
        words.windows(2).map(|pair| self.k.prmt(pair[0], pair[1], self.selector)).collect()
    }
}

/// The f16 number at this offset in bytes from `at`.
fn half<'k>(k: &'k Builder, at: Pointer<'k, Shared, u32>, bytes: Word<'k>, further: u32) -> F32<'k> {
    let half: Value<'k, F16> = k.ld(at.byte_index(bytes).bytes(further as i32).cast());
    k.cvt_f32(half)
}

/// Q6_K. Integers minus 32 are in the upper six bits of their bytes.
fn q6_k<'k>(k: &'k Builder, at: Pointer<'k, Shared, u32>, bytes: Word<'k>, t: Word<'k>, turn: Turn<'k>) -> Row<'k> {
    let of_lane = Unaligned::new(k, at, bytes + t * 4u32);
    let word = |bytes: u32| of_lane.words(bytes, 1)[0];
    let mut groups = Vec::new();
    for part in 0..2u32 {
        let low: Vec<_> = (0..4).map(|i| word(64 * part + 16 * i)).collect();
        // Inverting the upper bit of each subtracts 32 from the integer.
        let high: Vec<_> = (0..2).map(|i| word(128 + 32 * part + 16 * i) ^ 0xaaaa_aaaau32).collect();
        for quarter in 0..4u32 {
            for side in 0..2u32 {
                let nibbles = low[(2 * (quarter % 2) + side) as usize];
                let nibbles = if quarter < 2 { nibbles << 2 } else { nibbles >> 2 };
                let bits = high[side as usize] << (6 - 2 * quarter);
                groups.push(vec![nibbles & 0x3c3c_3c3cu32 | bits & 0xc0c0_c0c0u32]);
            }
        }
    }
    let unit = half(k, at, bytes, 208) * 0.25f32;
    // Inverting the sign bit adds 128 to each byte.
    let scales: Vec<_> =
        Unaligned::new(k, at, bytes).words(192, 4).into_iter().map(|word| word ^ 0x8080_8080u32).collect();
    let scale = |set: u32| {
        let number = set * turn.of;
        let scale = turn.byte(k, scales[number as usize / 4], number % 4) - (f32::from_bits(LIFTED) + 128.0);
        (unit * scale, None)
    };
    Row { groups, scales: (0..16 / turn.of).map(scale).collect() }
}

/// Four blocks of Q8_0.
fn q8_0<'k>(k: &'k Builder, at: Pointer<'k, Shared, u32>, bytes: Word<'k>, t: Word<'k>, turn: Turn<'k>) -> Row<'k> {
    const BLOCK: u32 = 34;
    // The integers of every second block begin two bytes further in a word.
    let of_lane = [2, BLOCK + 2].map(|first: u32| Unaligned::new(k, at, bytes + t * 8u32 + first));
    let groups = (0..4u32).map(|block| of_lane[block as usize % 2].words(block / 2 * 2 * BLOCK, 2));
    let groups = groups.collect();
    let of_turn = if turn.of == 1 { bytes } else { bytes + turn.number * BLOCK };
    let scale = |set: u32| (half(k, at, of_turn, set * turn.of * BLOCK), None);
    Row { groups, scales: (0..4 / turn.of).map(scale).collect() }
}

/// Four small blocks.
fn small<'k>(
    k: &'k Builder,
    small: Small,
    at: Pointer<'k, Shared, u32>,
    bytes: Word<'k>,
    t: Word<'k>,
    turn: Turn<'k>,
) -> Row<'k> {
    let block = small.bytes;
    // Every second block may begin two bytes further in a word.
    let from = |first: Word<'k>| [0, block].map(|further: u32| Unaligned::new(k, at, first + further));
    let of_lane = from(bytes + t * 4u32 + small.lower);
    let of_fifths = small.fifths.map(|fifths| from(bytes + fifths));
    let group = |number: u32| {
        let (second, pair) = (number as usize % 2, number / 2 * 2 * block);
        let word = of_lane[second].words(pair, 1)[0];
        let fifths = of_fifths.as_ref().map(|fifths| {
            let bits = fifths[second].words(pair, 1)[0];
            [0, 16].map(|half: u32| fifth_bits(bits, t * 4u32 + half))
        });
        small.codes.numbers(k, word, fifths).to_vec()
    };
    let groups = (0..4).map(group).collect();
    let of_turn = if turn.of == 1 { bytes } else { bytes + turn.number * block };
    let scale = |set: u32| {
        let first = set * turn.of * block;
        (half(k, at, of_turn, first), small.minimum.map(|minimum| -half(k, at, of_turn, first + minimum)))
    };
    Row { groups, scales: (0..4 / turn.of).map(scale).collect() }
}

/// IQ4_XS.
fn iq4_xs<'k>(k: &'k Builder, at: Pointer<'k, Shared, u32>, t: Word<'k>, turn: Turn<'k>) -> Row<'k> {
    let of_lane = at.byte_index(t * 4u32).bytes(8);
    let groups = (0..8).map(|group| looked_up(k, &NORMAL, k.ld(of_lane.bytes(16 * group))).to_vec()).collect();
    let [first, lower] = [0, 1].map(|word| k.ld(at.offset(word)));
    let unit = k.cvt_f32(k.halves::<F16>(first)[0]);
    // Scales plus 32, a byte each: four bits are in one place, two in another.
    let (even, odd) = (lower & 0x0f0f_0f0fu32, lower >> 4 & 0x0f0f_0f0fu32);
    let scales = [(0x5140u32, 16), (0x7362, 24)].map(|(selector, bit): (u32, u32)| {
        let upper = first >> bit & 0xffu32;
        let upper = upper & 3u32 | (upper & 0x0cu32) << 6 | (upper & 0x30u32) << 12 | (upper & 0xc0u32) << 18;
        k.prmt(even, odd, selector) | upper << 4
    });
    let scale = |set: u32| {
        let number = set * turn.of;
        let scale = turn.byte(k, scales[number as usize / 4], number % 4) - (f32::from_bits(LIFTED) + 32.0);
        (unit * scale, None)
    };
    Row { groups, scales: (0..8 / turn.of).map(scale).collect() }
}

/// Four blocks of MXFP4.
fn mxfp4<'k>(k: &'k Builder, at: Pointer<'k, Shared, u32>, bytes: Word<'k>, t: Word<'k>, turn: Turn<'k>) -> Row<'k> {
    const BLOCK: u32 = 17;
    let group = |block: u32| {
        let of_lane = Unaligned::odd(k, at, bytes + t * 4u32 + (1 + BLOCK * block));
        looked_up(k, &DOUBLED, of_lane.words(0, 1)[0]).to_vec()
    };
    let groups = (0..4).map(group).collect();
    let of_turn = if turn.of == 1 { bytes } else { bytes + turn.number * BLOCK };
    let scale = |set: u32| {
        let place = of_turn + set * turn.of * BLOCK;
        let word: Word<'k> = k.ld(at.byte_index(place & !3u32));
        let e = word >> ((place & 3u32) << 3) & 0xffu32;
        // A power of two: 2^(e - 128), subnormal for 0 and 1.
        let normal = (e - 1u32) << 23;
        let small = k.shl(0x0020_0000u32, e);
        let bits = k.selp(small, normal, k.lt(e, 2));
        (k.bits_f32(k.selp(0x7fc0_0000u32, bits, k.ge(e, BEYOND_F32))), None)
    };
    Row { groups, scales: (0..4 / turn.of).map(scale).collect() }
}

/// The numbers of a book at the lower nibbles of a word, and at the upper ones, one in each byte.
fn looked_up<'k>(k: &'k Builder, book: &[i8; 16], word: Word<'k>) -> [Word<'k>; 2] {
    let [first, last] = looked_up_by_byte(k, book.map(|number| number as u8), word);
    [0x6420u32, 0x7531].map(|selector| k.prmt(first, last, selector))
}

/// The bytes of a book at the lower and the upper nibble of the first byte of a word, then of the second; and of the other two.
pub(super) fn looked_up_by_byte<'k>(k: &'k Builder, book: [u8; 16], word: Word<'k>) -> [Word<'k>; 2] {
    let table = |from: usize| k.constant(u32::from_le_bytes(std::array::from_fn(|i| book[from + i])));
    let tables = [0, 4, 8, 12].map(table);
    // Each nibble as a digit of a selector, which takes three bits of an index: with the fourth it would repeat a sign.
    let selectors = word & 0x7777_7777u32;
    let raised = word << 4;
    [(selectors, 0xd9c8u32), (selectors >> 16, 0xfbea)].map(|(selector, signs)| {
        let [first, second] = [0, 2].map(|i: usize| k.prmt(tables[i], tables[i + 1], selector));
        // The fourth bit of each index, repeated through a byte.
        let seconds = k.prmt(raised, word, signs);
        first & !seconds | second & seconds
    })
}
