//! The product of a few f32 rows with weights in blocks on tensor cores, by `mma.sync`: from `sm_80` on.
//!
//! `yᵢⱼ = Σₖ xᵢₖ Wⱼₖ`. Weights are A, 16 rows of them, and rows of x columns of B. The integer of a weight times that of its scale
//! is exact in f16: 63 · 31 is below 2¹¹. So one multiply-add makes two weights of two integers that stand in the lower bits of
//! 1024. An element of x is two columns, what f16 takes of it and what f16 takes of the rest: 22 bits, after a block of x was
//! multiplied by the power of two that brings its greatest to 2⁹ and more. What is common to a block, the step of the scales, that
//! of the minima and the power of two, is applied to the sums of 256 products, and these are added up in f64.
//!
//! A lane of a quarter t has the two groups of 32 elements that share 32 bytes, so that it needs two scales of a row and no more;
//! which k of the instruction is which element is free, as long as A and B agree.
//!
//! A block of threads has 16 rows of weights, and its warps every so many blocks of them. Infinities and what overflows show in
//! the sums; these are then computed product by product.

use kiln_core::{QuantFormat, Result};

use super::{Group, Word, first_element, groups, share};
use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::kernels::half::widen;
use crate::kernels::math::F32;
use crate::kernels::team::{self, WARP};
use crate::{Argument, Builder, F16, Global, Kernel, Launch, Pointer, PtxKernel, Shared, Target, Value, Variable};

/// Warps of a block.
const WARPS: u32 = 8;
/// Rows of weights of a product.
const WEIGHTS: u32 = 16;
/// Elements of a block of weights.
const BLOCK: u32 = 256;
/// Words of integers that a lane has of a row of a block.
const WORDS: u32 = 8;
/// Extents at most: 32 bits count what the last block reaches over.
const MOST: u64 = (1 << 31) - 1;

/// 1024 and an integer below it, twice: numbers in 16 bits.
const LIFTED: u32 = 0x6400_6400;
/// -1024, 1, 1/16, -64 and 0, twice each.
const MINUS_LIFT: u32 = 0xe400_e400;
const ONE: u32 = 0x3c00_3c00;
const SIXTEENTH: u32 = 0x2c00_2c00;
const MINUS_SIXTEENTH_OF_LIFT: u32 = 0xd400_d400;

/// The product of f32 rows with the transpose of weights in blocks of Q4_K or Q5_K.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpQuantMatmul {
    five: bool,
    /// Rows of x at once: 1, 2 or 4.
    rows: u32,
}

/// So many words, four at once.
fn read<'k>(k: &'k Builder, from: Pointer<'k, Global, u32>, count: usize) -> Vec<Word<'k>> {
    (0..count).step_by(4).flat_map(|i| k.ld_v::<_, _, 4>(from.offset(i as i32))).collect()
}

/// What a lane has of a row of weights of a block: its head and the integers.
struct Packed<T> {
    head: Vec<T>,
    integers: Vec<T>,
}

impl<'k> Packed<Variable<'k, u32>> {
    /// What it is now.
    fn now(&self, k: &'k Builder) -> Packed<Word<'k>> {
        let now = |words: &[Variable<'k, u32>]| words.iter().map(|&word| k.constant(word)).collect();
        Packed { head: now(&self.head), integers: now(&self.integers) }
    }
}

/// A row of weights of a block, as far as it is the same for all words of integers.
struct Row<'k> {
    packed: Packed<Word<'k>>,
    /// The fifth bits of the integers of all quarters.
    fifths: Vec<Word<'k>>,
    /// What the integers of each group are multiplied by, and what is added then.
    factors: [Word<'k>; 2],
    lifts: [Word<'k>; 2],
    /// The minima of both groups.
    minima: Word<'k>,
    /// What sums of products and of minima are multiplied by.
    steps: [F32<'k>; 2],
    t: Word<'k>,
}

impl<'k> Row<'k> {
    fn new(k: &'k Builder, packed: Packed<Word<'k>>, fifths: Vec<Word<'k>>, t: Word<'k>) -> Self {
        let fma = |a: Word<'k>, b: u32, c: u32| k.fma_x2::<F16>(a, k.constant::<u32>(b), k.constant::<u32>(c));
        let head = &packed.head;
        // The bytes of both groups. Those of the first four are whole, of the last four they have the upper two bits.
        let places = (t & 1u32) << 4;
        let [a, b, c] = [1, 2, 3].map(|i: usize| head[i] >> places);
        let direct = k.lt(t, 2);
        let scales = k.selp(a & 0x3f3fu32, c & 0x0f0fu32 | a >> 2 & 0x3030u32, direct);
        let minima = k.selp(b & 0x3f3fu32, c >> 4 & 0x0f0fu32 | b >> 2 & 0x3030u32, direct);
        let number = |bytes: Word<'k>, selector: u32| fma(k.prmt(bytes, LIFTED, selector), ONE, MINUS_LIFT);
        let [first, second] = [number(scales, 0x5050), number(scales, 0x5151)];
        // Integers of the second group stand 4 bits higher.
        let factors = [first, fma(second, SIXTEENTH, 0)];
        let lifts = [fma(first, MINUS_LIFT, 0), fma(second, MINUS_SIXTEENTH_OF_LIFT, 0)];
        let steps = [widen(k, head[0]), widen(k, head[0] >> 16)];
        Self { factors, lifts, minima: number(minima, 0x5150), steps, t, packed, fifths }
    }

    /// The weights of a word: two pairs of each group.
    fn pairs(&self, k: &'k Builder, word: usize) -> [[Word<'k>; 2]; 2] {
        let integers = self.packed.integers[word];
        // The two bits of every byte that are this quarter's, lowest.
        let fifths = self.fifths.get(word).map(|&bits| bits >> (self.t << 1));
        [0, 1].map(|group: usize| {
            [0, 1].map(|odd: usize| {
                let integers = integers >> (8 * odd as u32) & [0x000f_000fu32, 0x00f0_00f0][group];
                // Bit 4 of a number for the first group, for the second, whose integers stand higher, bit 8.
                let integers = fifths.map_or(integers, |bits| {
                    let bits = match (group, odd) {
                        (0, 0) => bits << 4,
                        (0, _) => bits >> 4,
                        (_, 0) => bits << 7,
                        _ => bits >> 1,
                    };
                    integers | bits & [0x0010_0010u32, 0x0100_0100][group]
                });
                k.fma_x2::<F16>(integers | LIFTED, self.factors[group], self.lifts[group])
            })
        })
    }
}

impl WarpQuantMatmul {
    /// For about so many rows of x. None for formats and targets that it is not for.
    pub fn new(format: QuantFormat, rows: usize, target: Target) -> Option<Self> {
        let five = match format {
            QuantFormat::Q4K => false,
            QuantFormat::Q5K => true,
            _ => return None,
        };
        let rows = if rows > 2 { 4 } else { rows.max(1) as u32 };
        (target >= Target::Sm80).then_some(Self { five, rows })
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        [false, true].into_iter().flat_map(|five| [1, 2, 4].map(|rows| Self { five, rows })).collect()
    }

    fn format(self) -> QuantFormat {
        if self.five { QuantFormat::Q5K } else { QuantFormat::Q4K }
    }

    /// The launch for `m` rows of x of `depth` elements, whole blocks, and `n` rows of weights. Buffers: x, weights, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_core::Error::Limit) beyond 2³¹ - 1 rows or elements of a row, or 65 535 groups of rows of x.
    pub fn launch(&self, m: usize, depth: usize, n: usize) -> Result<Launch> {
        let rows = extent("rows", m, MOST)?;
        let weights = extent("rows of weights", n, MOST)?;
        let blocks = extent("elements of a row", depth, MOST)? / BLOCK;
        let across = extent("blocks", weights.div_ceil(WEIGHTS) as usize, MAX_GRID_X)?;
        let down = extent("groups of rows", rows.div_ceil(self.rows) as usize, MAX_GRID_YZ)?;
        let words = [rows, weights, blocks].map(Argument::U32);
        let arguments = (0..3).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [across, down, 1], arguments })
    }

    /// Words of a block.
    fn block_words(self) -> u32 {
        self.format().block_bytes() as u32 / 4
    }

    /// Reads the share of a lane in a block, of the quarter `t`.
    fn load<'k>(&self, k: &'k Builder, packed: &Packed<Variable<'k, u32>>, at: Pointer<'k, Global, u32>, t: Word<'k>) {
        let integers = at.offset(if self.five { 12 } else { 4 }).index(t * WORDS);
        for (words, from) in [(&packed.head, at), (&packed.integers, integers)] {
            words.iter().zip(read(k, from, words.len())).for_each(|(word, read)| word.set(read));
        }
    }

    fn write<'k>(&self, k: &'k Builder) {
        // Two blocks: so that what one waits for does not stop the other.
        k.resident_blocks(2);
        let x = k.buffer::<f32>("x");
        let weights = k.buffer::<u32>("weights");
        let out = k.buffer::<f32>("out");
        let [m, n, blocks] = ["m", "n", "blocks"].map(|name| k.parameter::<u32>(name));
        let thread = k.tid_x();
        let (warp, lane) = (thread >> WARP.ilog2(), thread & (WARP - 1));
        let (g, t) = (lane >> 2, lane & 3u32);
        // Rows that are not there are read as the last one, and not written.
        let row_of_weights = |i: u32| k.min(k.ctaid_x() * WEIGHTS + g + 8 * i, n - 1);
        let rows_of_weights =
            [0, 1].map(|i| weights.index_wide(k.mul_wide(row_of_weights(i), blocks) * u64::from(self.block_words())));
        let depth = blocks * BLOCK;
        let row_of_x = |i: u32| k.min(k.ctaid_y() * self.rows + i, m - 1);
        let rows_of_x: Vec<_> = (0..self.rows).map(|i| x.index_wide(k.mul_wide(row_of_x(i), depth))).collect();
        let columns = Columns::new(k, self.rows, warp, lane);

        let sums: Vec<_> = (0..2).map(|_| k.variable(0.0f64)).collect();
        let words = |count: u32| (0..count).map(|_| k.variable(0u32)).collect();
        let packed = [0, 1].map(|_| Packed { head: words(4), integers: words(WORDS) });
        let load = |block: Word<'k>| {
            for (packed, &row) in packed.iter().zip(&rows_of_weights) {
                self.load(k, packed, row.index(block * self.block_words()), t);
            }
        };
        k.if_(k.lt(warp, blocks), || load(warp));
        k.for_(warp, blocks, WARPS, |block| {
            let from: Vec<_> = rows_of_x.iter().map(|row| row.index(block * BLOCK)).collect();
            // The next block is on its way while this one is multiplied.
            let rows = [0, 1].map(|i: usize| {
                let fifths = rows_of_weights[i].index(block * self.block_words()).offset(4);
                let fifths = read(k, fifths, if self.five { WORDS as usize } else { 0 });
                Row::new(k, packed[i].now(k), fifths, t)
            });
            let next = block + WARPS;
            k.if_(k.lt(next, blocks), || load(next));
            columns.fill(&from);
            k.bar_warp_sync(u32::MAX);
            let [products, minima] = columns.multiply(&rows);
            let power = columns.power();
            // Nobody fills the columns again before all have read them.
            k.bar_warp_sync(u32::MAX);
            for (i, sum) in sums.iter().enumerate() {
                let [step, of_minima] = rows[i].steps;
                let product = step * (products[2 * i] + products[2 * i + 1]);
                let minimum = of_minima * (minima[2 * i] + minima[2 * i + 1]);
                sum.set(k.fma(k.cvt_f64(product - minimum), power, sum.get()));
            }
        });

        // From the warps to one thread for each result.
        let results = WEIGHTS * self.rows;
        let found = k.shared::<f64>(WARPS * results);
        k.if_(k.lt(t, self.rows), || {
            let at = found.index(k.mad(warp, results, k.mad(g, self.rows, t)));
            sums.iter().zip(0..).for_each(|(&sum, i)| k.st(at.offset(i * 8 * self.rows as i32), sum));
        });
        k.bar_sync(0u32);
        k.if_(k.lt(thread, results), || {
            let (i, j) = (thread & (self.rows - 1), k.ctaid_x() * WEIGHTS + (thread >> self.rows.ilog2()));
            let i = k.ctaid_y() * self.rows + i;
            k.if_(k.and(k.lt(i, m), k.lt(j, n)), || {
                let of_warp = |warp: u32| k.ld(found.index(thread).offset((warp * results) as i32));
                let Some(sum) = team::tree((0..WARPS).map(of_warp).collect(), |a, b| a + b) else { return };
                let result = k.variable(k.cvt_rn_f32(sum));
                let finite = k.lt(k.abs(result), f32::INFINITY);
                k.if_(k.not(finite), || {
                    let x = x.index_wide(k.mul_wide(i, depth));
                    result.set(k.cvt_rn_f32(self.exactly(k, x, weights, k.mul_wide(j, blocks), blocks)));
                });
                k.st(out.index_wide(k.mad_wide(i, n, k.cvt_u64(j))), result);
            });
        });
    }

    /// The sum of the products one by one, of a row of x with the blocks from one on.
    fn exactly<'k>(
        &self,
        k: &'k Builder,
        x: Pointer<'k, Global, f32>,
        weights: Pointer<'k, Global, u32>,
        first: Value<'k, u64>,
        blocks: Word<'k>,
    ) -> Value<'k, f64> {
        let of_block = share(self.format()).of_block;
        let sum = k.variable(0.0f64);
        k.for_(0u32, blocks * of_block, 1u32, |at| {
            let (block, part) = (at / of_block, at % of_block);
            let x = x.index(k.mad(block, BLOCK, first_element(self.format(), part)));
            for group in groups(k, self.format(), weights, first + k.cvt_u64(block), part) {
                let read = |&(offset, _): &(u32, Word<'k>)| k.ld_v::<_, _, 4>(x.offset(offset as i32));
                let x: Vec<F32<'k>> = group.vectors.iter().flat_map(read).collect();
                sum.set(Group::add_exactly(&group, k, &x, sum.get()));
            }
        });
        sum.get()
    }
}

/// Rows of x of a block, as a warp multiplies them: columns of numbers in f16, two for each row.
struct Columns<'k> {
    k: &'k Builder,
    rows: u32,
    lane: Word<'k>,
    /// For each word of integers, column and quarter, the 8 elements that belong to the word.
    pieces: Pointer<'k, Shared, u32>,
    /// For each column and quarter, the sums of both groups.
    sums: Pointer<'k, Shared, u32>,
    /// What each row is to be multiplied by in the end.
    powers: Pointer<'k, Shared, f64>,
}

/// Words of a piece.
const PIECE: u32 = 4;
/// Quarters of a block.
const QUARTERS: u32 = 4;
/// Numbers up to 2¹⁰ are what a row is brought to: the exponent as it is stored of what it is then multiplied by is less by this
/// than that of its greatest.
const LOWER: u32 = 9;

impl<'k> Columns<'k> {
    fn new(k: &'k Builder, rows: u32, warp: Word<'k>, lane: Word<'k>) -> Self {
        let columns = 2 * rows;
        let array = |words: u32| k.shared::<u32>(WARPS * words).index(warp * words);
        let pieces = array(WORDS * columns * QUARTERS * PIECE);
        let sums = array(columns * QUARTERS);
        let powers = k.shared::<f64>(WARPS * rows).index(warp * rows);
        Self { k, rows, lane, pieces, sums, powers }
    }

    /// Words of the pieces that belong to a word of integers.
    fn pitch(&self) -> u32 {
        2 * self.rows * QUARTERS * PIECE
    }

    /// Brings a block of each row.
    fn fill(&self, rows: &[Pointer<'k, Global, f32>]) {
        let k = self.k;
        let (word, t) = (self.lane >> 2, self.lane & 3u32);
        let first = k.mad(t, 2 * WARP, word * 4u32);
        let read = |x: &Pointer<'k, Global, f32>| {
            let x = x.index(first);
            [k.ld_v::<_, _, 4>(x), k.ld_v::<_, _, 4>(x.offset(WARP as i32))]
        };
        let read: Vec<_> = rows.iter().map(read).collect();
        for (row, groups) in (0..).zip(read) {
            let greatest = groups.iter().flatten().map(|&x| k.abs(x)).collect();
            let Some(greatest) = team::tree(greatest, |a, b| k.max(a, b)) else { return };
            let greatest = team::butterfly(greatest, WARP, |a, b| k.max(a, b));
            let exponent = k.max(k.bits_u32(greatest) >> 23, LOWER + 1);
            let up = k.bits_f32((254 + LOWER - exponent) << 23);
            let down = k.bits_f32((exponent - LOWER) << 23);
            let scaled = groups.map(|group| group.map(|x| x * up));
            // As the pairs of the integers stand: the first and the third of four, then the others.
            let pairs = |of: [[F32<'k>; 4]; 2]| {
                of.map(|x| [[x[0], x[2]], [x[1], x[3]]]).concat().into_iter().collect::<Vec<_>>()
            };
            let pack = |pairs: &[[F32<'k>; 2]]| -> Vec<Word<'k>> {
                pairs.iter().map(|&[lower, upper]| k.cvt_rn_x2::<F16>(upper, lower)).collect()
            };
            let rest = |pairs: &[[F32<'k>; 2]], packed: &[Word<'k>]| -> Vec<[F32<'k>; 2]> {
                let rest = |(&[lower, upper], &packed): (&[F32<'k>; 2], &Word<'k>)| {
                    let [from_lower, from_upper] = k.halves::<F16>(packed).map(|half| k.cvt_f32(half));
                    [lower - from_lower, upper - from_upper]
                };
                pairs.iter().zip(packed).map(rest).collect()
            };
            let exact = pairs(scaled);
            let upper = pack(&exact);
            let lower = pack(&rest(&exact, &upper));
            let add = |a: F32<'k>, b: F32<'k>| a + b;
            let of_group = scaled.map(|group| {
                let sum = (group[0] + group[1]) + (group[2] + group[3]);
                // Of the lanes of the same quarter.
                [4u32, 8, 16].into_iter().fold(sum, |sum, mask| add(sum, k.shfl_bfly(sum, mask, WARP - 1, u32::MAX)))
            });
            let sums_upper = pack(&[of_group]);
            let sums_lower = pack(&rest(&[of_group], &sums_upper));
            for (column, packed, sums) in [(2 * row, upper, sums_upper), (2 * row + 1, lower, sums_lower)] {
                let piece = [packed[0], packed[1], packed[2], packed[3]];
                let at = self.pieces.index(k.mad(word, self.pitch(), t * PIECE));
                k.st_v(at.offset((column * QUARTERS * PIECE) as i32), piece);
                let at = self.sums.index(t).offset((column * QUARTERS) as i32);
                k.st_if(k.eq(word, 0), at, sums[0]);
            }
            k.st_if(k.eq(self.lane, 0), self.powers.offset(row as i32), k.cvt_f64(down));
        }
    }

    /// What the sums of the row of x of this lane are to be multiplied by.
    fn power(&self) -> Value<'k, f64> {
        self.k.ld(self.powers.index(self.lane & (self.rows - 1)))
    }

    /// The sums of products and those of minima, of two rows of weights and each with both columns of a row of x.
    fn multiply(&self, rows: &[Row<'k>; 2]) -> [Vec<F32<'k>>; 2] {
        let k = self.k;
        let (column, t) = (self.lane >> 2 & (2 * self.rows - 1), self.lane & 3u32);
        let zeros = || [0.0f32; 4].map(|zero| k.variable(zero));
        let multiply = |sums: &[Variable<'k, f32>; 4], a: [Word<'k>; 4], b: [Word<'k>; 2]| {
            k.mma_m16n8k16::<F16>(*sums, a, b, *sums);
        };
        // One chain for each group.
        let sums = [zeros(), zeros()];
        let pieces = self.pieces.index(k.mad(column, QUARTERS * PIECE, t * PIECE));
        for word in 0..WORDS {
            let b: [Word<'k>; 4] = k.ld_v(pieces.offset((word * self.pitch()) as i32));
            let [upper, lower] = rows.each_ref().map(|row| row.pairs(k, word as usize));
            for group in [0, 1] {
                let a = [upper[group][0], lower[group][0], upper[group][1], lower[group][1]];
                multiply(&sums[group], a, [b[2 * group], b[2 * group + 1]]);
            }
        }
        let minima = zeros();
        let zero = k.constant(0u32);
        let b = k.ld(self.sums.index(k.mad(column, QUARTERS, t)));
        multiply(&minima, [rows[0].minima, rows[1].minima, zero, zero], [b, zero]);
        let products = sums[0].iter().zip(&sums[1]).map(|(a, b)| a.get() + b.get()).collect();
        [products, minima.iter().map(|sum| sum.get()).collect()]
    }
}

impl Kernel for WarpQuantMatmul {
    fn name(&self) -> String {
        format!("warp_quant_matmul_{}_{}", self.format().name(), self.rows)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [WARPS * WARP, 1, 1], |k| self.write(k))
    }
}
