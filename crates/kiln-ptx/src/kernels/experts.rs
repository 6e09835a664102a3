//! Products of rows with the matrices of the experts that are chosen for them.
//!
//! A product is a row of the result. A tile has one product, or up to eight of one expert: [`GroupByExpert`] brings those together, so
//! that what is read of an expert serves several. Kernels take tiles as the second dimension of their grid.

use kiln_ir::Result;
use kiln_ir::op::{ExpertExtents, ExpertTiles};

use super::half::unpack;
use super::math::F32;
use super::team;
use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, PtxType, Value, Variable};

/// Maximum products of a tile.
const TALL: u32 = ExpertTiles::TALL as u32;
/// Maximum extents, so that rows of the weights of all experts and the end of the last block fit 32 bits.
const MOST: u64 = (1 << 30) - 1;
/// The expert of a tile without products, and a placeholder product in a partial tile.
const NONE: u32 = u32::MAX;

type Word<'k> = Value<'k, u32>;

/// The number of tiles as a dimension of a grid.
pub(super) fn down(tiles: ExpertTiles) -> Result<u32> {
    extent("tiles of products", tiles.count, MAX_GRID_YZ)
}

/// Kernel arguments after the kernel's own: products, rows of the weights of an expert, experts, and experts of a row
/// of x.
pub(super) fn words(e: &ExpertExtents) -> Result<[u32; 4]> {
    // Rows of the weights of all experts must fit too.
    extent("rows of weights of all experts", e.experts.saturating_mul(e.n), MOST)?;
    Ok([
        extent("products", e.products(), MOST)?,
        extent("rows of weights", e.n, MOST)?,
        extent("experts", e.experts, MOST)?,
        // 0 if there are no products.
        extent("experts of a row", e.used.max(1), MOST)?,
    ])
}

/// The tile of a block: buffers `chosen` and `slots`, and the arguments of [`words`].
#[derive(Clone, Copy)]
pub(super) struct Chosen<'k> {
    k: &'k Builder,
    slots: Pointer<'k, Global, u32>,
    /// Maximum products of the tile.
    rows: u32,
    pub(super) products: Word<'k>,
    pub(super) n: Word<'k>,
    experts: Word<'k>,
    used: Word<'k>,
    /// The expert of the tile.
    expert: Word<'k>,
}

impl<'k> Chosen<'k> {
    /// For tiles of this many products.
    pub(super) fn new(k: &'k Builder, rows: u32) -> Self {
        let [chosen, slots] = ["chosen", "slots"].map(|name| k.buffer::<u32>(name));
        let [products, n, experts, used] = ["products", "n", "experts", "used"].map(|name| k.parameter::<u32>(name));
        let expert = k.ld(chosen.index(k.ctaid_y()));
        Self { k, slots, rows, products, n, experts, used, expert }
    }

    /// Whether the tile has products.
    pub(super) fn is_there(&self) -> Value<'k, bool> {
        self.k.lt(self.expert, self.experts)
    }

    /// The first row of the weights of the expert.
    pub(super) fn first_row(&self) -> Word<'k> {
        self.expert * self.n
    }

    /// Product `i` of the tile; beyond the last if there are fewer.
    pub(super) fn product(&self, i: impl crate::Operand<u32>) -> Word<'k> {
        let k = self.k;
        match self.rows {
            1 => k.ctaid_y(),
            rows => k.ld(self.slots.index(k.mad(k.ctaid_y(), rows, i))),
        }
    }

    /// The row of x of a product; the last row for a missing one.
    pub(super) fn row(&self, product: Word<'k>) -> Word<'k> {
        self.k.min(product, self.products - 1) / self.used
    }
}

/// Brings products with the same expert together: for each tile its products in their order, and its expert.
///
/// A block of threads has the products of one expert. With b products of experts before e, its tiles begin at b / 8 + e: whatever the
/// numbers of products are, they end before those of the next expert begin, so that no block waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupByExpert;

impl GroupByExpert {
    /// Threads of a block.
    const BLOCK: u32 = 256;

    /// Words of the products of tiles.
    pub fn slots(tiles: ExpertTiles) -> usize {
        tiles.rows * tiles.count
    }

    /// The launch for these tiles. Buffers: indices, products of tiles, experts of tiles.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 products or experts, or 65 535 tiles.
    pub fn launch(&self, e: &ExpertExtents, tiles: ExpertTiles) -> Result<Launch> {
        let [products, _, experts, _] = words(e)?;
        let arguments = (0..3).map(Argument::Buffer).chain([products, experts, down(tiles)?].map(Argument::U32));
        Ok(Launch { grid: [experts, 1, 1], arguments: arguments.collect() })
    }

    fn write(&self, k: &Builder) {
        let [index, slots, chosen] = ["index", "slots", "chosen"].map(|name| k.buffer::<u32>(name));
        let [count, experts, tiles] = ["products", "experts", "tiles"].map(|name| k.parameter::<u32>(name));
        let (expert, thread) = (k.ctaid_x(), k.tid_x());
        let each = (count + (Self::BLOCK - 1)) / Self::BLOCK;
        let begin = k.min(thread * each, count);
        let end = k.min(begin + each, count);
        // The number of products of lower experts, and of this one, in this thread and those before it.
        let found = [0u32; 2].map(|none| k.variable(none));
        k.for_(begin, end, 1u32, |i| {
            let other = k.ld(index.index(i));
            for (found, counts) in found.iter().zip([k.lt(other, expert), k.eq(other, expert)]) {
                found.set(found.get() + k.selp(1u32, 0u32, counts));
            }
        });
        let own = k.variable(found[1].get());
        let sums = [0; 2].map(|_| k.shared::<u32>(Self::BLOCK));
        let store = || sums.iter().zip(&found).for_each(|(sums, found)| k.st(sums.index(thread), found.get()));
        store();
        let mut step = 1u32;
        while step < Self::BLOCK {
            k.bar_sync(0u32);
            let is_after = k.ge(thread, step);
            let earlier = sums.map(|sums| k.ld_if(is_after, sums.index(thread - step), 0u32));
            found.iter().zip(earlier).for_each(|(found, earlier)| found.set(found.get() + earlier));
            k.bar_sync(0u32);
            store();
            step *= 2;
        }
        k.bar_sync(0u32);
        let [before, total] = sums.map(|sums| k.ld(sums.offset(Self::BLOCK as i32 - 1)));
        let first = before / TALL + expert;
        let is_last = k.eq(expert + 1u32, experts);
        let last = k.selp(tiles, (before + total) / TALL + expert + 1u32, is_last);
        let to = k.variable(first * TALL + found[1].get() - own.get());
        k.for_(begin, end, 1u32, |i| {
            k.if_(k.eq(k.ld(index.index(i)), expert), || {
                k.st(slots.index(to.get()), i);
                to.set(to.get() + 1u32);
            });
        });
        k.for_(first * TALL + total + thread, last * TALL, Self::BLOCK, |i| k.st(slots.index(i), NONE));
        let filled = first + (total + (TALL - 1)) / TALL;
        k.for_(first + thread, last, Self::BLOCK, |tile| {
            k.st(chosen.index(tile), k.selp(expert, NONE, k.lt(tile, filled)));
        });
    }
}

impl Kernel for GroupByExpert {
    fn name(&self) -> String {
        "group_by_expert".into()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [Self::BLOCK, 1, 1], |k| self.write(k))
    }
}

/// The product of tiles with weights of floats, `yᵢⱼ = Σₖ xᵢₖ Wₑⱼₖ`, all sums in f32.
///
/// A block of threads has four rows of the weights. Its warps take pieces of k in turns, a lane eight elements of each row, or one
/// where rows are no whole pieces, and what a lane reads of x serves all rows of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertGemm {
    weights: PtxType,
    /// Maximum products of a tile.
    rows: u32,
    /// Elements that a lane reads of a row at once.
    piece: u32,
}

impl ExpertGemm {
    /// Threads of a block.
    const BLOCK: u32 = 128;
    /// Rows of the weights of a block.
    const WEIGHTS: u32 = 4;
    /// Elements of a 16-bit row in a vector.
    const PIECE: u32 = 8;

    /// For weights in [`PtxType::F16`] or [`PtxType::Bf16`], else in f32, of rows of `k` elements.
    pub fn new(weights: PtxType, k: usize, tiles: ExpertTiles) -> Self {
        let piece = if k.is_multiple_of(Self::PIECE as usize) { Self::PIECE } else { 1 };
        let weights = if matches!(weights, PtxType::F16 | PtxType::Bf16) { weights } else { PtxType::F32 };
        Self { weights, rows: tiles.rows as u32, piece }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let of = |weights| {
            [(1, 1), (1, Self::PIECE), (TALL, 1), (TALL, Self::PIECE)].map(|(rows, piece)| Self {
                weights,
                rows,
                piece,
            })
        };
        [PtxType::F32, PtxType::F16, PtxType::Bf16].into_iter().flat_map(of).collect()
    }

    /// The launch. Buffers: x, weights, result, experts of tiles, products of tiles.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 for an extent or for the rows of all experts, or 65 535 tiles.
    pub fn launch(&self, e: &ExpertExtents, tiles: ExpertTiles) -> Result<Launch> {
        let words = words(e)?;
        let k = extent("k", e.k, MOST)?;
        let across = extent("blocks", words[1].div_ceil(Self::WEIGHTS) as usize, MAX_GRID_X)?;
        let own = [0, 1, 2].map(Argument::Buffer).into_iter().chain([Argument::U32(k)]);
        let arguments = own.chain([3, 4].map(Argument::Buffer)).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [across, down(tiles)?, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let x = k.buffer::<f32>("x");
        let weights = k.buffer::<u32>("weights");
        let out = k.buffer::<f32>("out");
        let depth = k.parameter::<u32>("depth");
        let tile = Chosen::new(k, self.rows);
        // By itself the assembler allocates fewer registers, and spills for tiles of eight.
        k.resident_blocks(3);
        k.if_(tile.is_there(), || self.multiply(k, tile, depth, [x, out], weights));
    }

    fn multiply<'k>(
        &self,
        k: &'k Builder,
        tile: Chosen<'k>,
        depth: Word<'k>,
        [x, out]: [Pointer<'k, Global, f32>; 2],
        weights: Pointer<'k, Global, u32>,
    ) {
        let (thread, first) = (k.tid_x(), k.ctaid_x() * Self::WEIGHTS);
        let row_of_x = |i: u32| k.mul_wide(tile.row(tile.product(i)), depth);
        let rows_of_x: Vec<_> = (0..self.rows).map(|i| x.index_wide(row_of_x(i))).collect();
        // Missing rows are read as the last one, and not written. These are the offsets of rows in the weights, in
        // elements.
        let row = |j: u32| k.mul_wide(tile.first_row() + k.min(first + j, tile.n - 1), depth);
        let rows: Vec<_> = (0..Self::WEIGHTS).map(row).collect();
        let sums: Vec<Vec<Variable<'_, f32>>> =
            rows.iter().map(|_| rows_of_x.iter().map(|_| k.variable(0.0f32)).collect()).collect();
        k.for_(thread * self.piece, depth, Self::BLOCK * self.piece, |at| {
            let of_x: Vec<Vec<F32<'_>>> = rows_of_x.iter().map(|row| self.read_x(k, row.index(at))).collect();
            for (row, sums) in rows.iter().zip(&sums) {
                let elements = self.read(k, weights, *row + k.cvt_u64(at));
                for (x, sum) in of_x.iter().zip(sums) {
                    sum.set(x.iter().zip(&elements).fold(sum.get(), |sum, (&x, &w)| k.fma(x, w, sum)));
                }
            }
        });
        team::totals(k, Self::BLOCK, &sums, |at, sum| {
            let (j, product) = (first + at / self.rows, tile.product(at % self.rows));
            let there = k.and(k.lt(product, tile.products), k.lt(j, tile.n));
            k.st_if(there, out.index_wide(k.mad_wide(product, tile.n, k.cvt_u64(j))), sum);
        });
    }

    /// A piece of a row of x.
    fn read_x<'k>(&self, k: &'k Builder, at: Pointer<'k, Global, f32>) -> Vec<F32<'k>> {
        match self.piece {
            1 => vec![k.ld(at)],
            _ => [0, 4].map(|i: i32| k.ld_v::<_, _, 4>(at.offset(i))).concat(),
        }
    }

    /// A piece of a row of the weights.
    fn read<'k>(&self, k: &'k Builder, weights: Pointer<'k, Global, u32>, at: Value<'k, u64>) -> Vec<F32<'k>> {
        if self.weights == PtxType::F32 {
            return self.read_x(k, weights.cast::<f32>().index_wide(at));
        }
        let word = weights.index_wide(at >> 1);
        if self.piece == 1 {
            let [lower, upper] = unpack(k, self.weights, k.ld(word));
            return vec![k.selp(upper, lower, k.eq(k.split(at)[0] & 1u32, 1))];
        }
        k.ld_v::<_, _, 4>(word).into_iter().flat_map(|word| unpack(k, self.weights, word)).collect()
    }
}

impl Kernel for ExpertGemm {
    fn name(&self) -> String {
        format!("expert_gemm_{}_{}_{}", self.weights.word(), self.rows, self.piece)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [Self::BLOCK, 1, 1], |k| self.write(k))
    }
}
