//! The matrix product on tensor cores of any device from `sm_80` on: `C = f(alpha A B + beta C + bias)`, of f16, bf16 or f32 in
//! TF32, with sums in f32.
//!
//! Each of the four warps of a block has a quarter of a tile of C. Asynchronous copies load tiles of A and B into a ring of
//! stages in shared memory; a warp reads its operands there by `ldmatrix`, transposed where a matrix is stored with k outside,
//! and multiplies by `mma.sync`. Tiles are taken in an order in which concurrent ones share rows and columns.

use kiln_ir::op::{Matmul, MatmulExtents};
use kiln_ir::{Error, Result};

use super::epilogue::{Elements, Epilogue, Finish};
use super::order::Order;
use crate::builder::Fragment;
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::team::WARP;
use crate::kernels::warp::multiply;
use crate::operands::{Groups, Sixteen};
use crate::{
    Argument, BlockOrder, Builder, Global, Kernel, Launch, MatrixBlocks, Panels, Pointer, PtxKernel, PtxType, Shared,
    Target, Value,
};

/// Bytes of a stage along k: a row of a panel.
const DEPTH_BYTES: u32 = 128;
/// Bytes of a copy, and copies of a row of a panel.
const PIECE: u32 = 16;
const PIECES: u32 = 8;
/// Warps of a block, two by two.
const WARPS: u32 = 4;
/// Stages of the ring.
const STAGES: u32 = 3;
/// Rows and columns of a block of `ldmatrix`.
const BLOCK: u32 = 16;
/// Maximum extents, so that the end of the last tile fits 32 bits.
const MOST: u64 = (1 << 31) - 1024;

type Word<'k> = Value<'k, u32>;

/// A tile of C, with as many rows as columns, for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpTile {
    side: u32,
}

impl WarpTile {
    /// 128 by 128: for matrices that fill a device with such tiles.
    pub const LARGE: Self = Self { side: 128 };
    /// 64 by 64.
    pub const SMALL: Self = Self { side: 64 };
    /// Every tile.
    pub const ALL: [Self; 2] = [Self::LARGE, Self::SMALL];

    /// The tile for these extents on a device of this many multiprocessors: the large one where there are enough of them.
    pub fn for_extents(extents: MatmulExtents, multiprocessors: u32) -> Self {
        let tiles = |extent: usize| extent.div_ceil(Self::LARGE.side as usize);
        let all = extents.batch.saturating_mul(tiles(extents.m)).saturating_mul(tiles(extents.n));
        if all >= multiprocessors as usize { Self::LARGE } else { Self::SMALL }
    }

    /// Rows, or columns, of a warp.
    fn of_warp(self) -> u32 {
        self.side / 2
    }
}

/// The matrix product on `mma.sync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpGemm {
    operation: Matmul,
    input: PtxType,
    output: PtxType,
    tile: WarpTile,
    epilogue: Epilogue,
    target: Target,
}

impl WarpGemm {
    /// A kernel from matrices of `input` to one of `output`, each [`PtxType::F16`], [`PtxType::Bf16`] or [`PtxType::F32`], for devices
    /// from `target` on. Of elements of f32 the upper 19 bits are multiplied, that is in TF32 and rounded towards zero. Tensor
    /// cores round every sum of 32 bytes of products towards zero, so that the error grows with k.
    ///
    /// # Errors
    /// [`Error::Parameter`] for other types, for targets before `sm_80`, and for inputs of f32 unless both are stored with k
    /// innermost: A as it is and B transposed.
    pub fn new(
        operation: Matmul,
        [input, output]: [PtxType; 2],
        tile: WarpTile,
        epilogue: Epilogue,
        target: Target,
    ) -> Result<Self> {
        let wrong = |reason| Err(Error::Parameter { op: "matmul", reason });
        let float = |ty| matches!(ty, PtxType::F16 | PtxType::Bf16 | PtxType::F32);
        if !float(input) || !float(output) || target < Target::Sm80 {
            return wrong(format!("warps of {target} do not compute {output:?} from {input:?}"));
        }
        if input == PtxType::F32 && (operation.transpose_a || !operation.transpose_b) {
            return wrong(format!("TF32 needs A as it is and B transposed, not {operation:?}"));
        }
        Ok(Self { operation, input, output, tile, epilogue, target })
    }

    /// For A and B: whether rows are along k, which is so unless k is innermost.
    fn across(&self) -> [bool; 2] {
        [self.operation.transpose_a, !self.operation.transpose_b]
    }

    /// Products of a stage along k.
    fn depth(&self) -> u32 {
        DEPTH_BYTES / self.input.bytes()
    }

    /// The tile of A or of B.
    fn panels(&self, across: bool) -> Panels {
        let [rows, columns] = if across { [self.depth(), self.tile.side] } else { [self.tile.side, self.depth()] };
        Panels::new(self.input, rows, columns)
    }

    /// The launch for these extents. Buffers: A, B, C, and the bias if there is one; C is read only where the epilogue adds it.
    ///
    /// # Errors
    /// [`Error::Shape`] if a row of A or B is not a multiple of 16 bytes, or n is odd.
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1024 for an extent, or 2³¹ - 1 tiles.
    pub fn launch(&self, extents: MatmulExtents, [alpha, beta]: [f32; 2]) -> Result<Launch> {
        let MatmulExtents { batch, shared_a, shared_b, m, k, n } = extents;
        let [across_a, across_b] = self.across();
        let whole = |extent: usize| extent.is_multiple_of((PIECE / self.input.bytes()) as usize);
        if !whole(if across_a { m } else { k }) || !whole(if across_b { n } else { k }) || !n.is_multiple_of(2) {
            let reason = format!(
                "{} cannot multiply {m} x {k} by {k} x {n}: rows must be multiples of 16 bytes, and n even",
                self.name()
            );
            return Err(Error::Shape { op: "matmul", reason });
        }
        let [rows, depth, columns] = [("m", m), ("k", k), ("n", n)].map(|(what, asked)| extent(what, asked, MOST));
        let (rows, depth, columns) = (rows?, depth?, columns?);
        let [down, along] = [rows, columns].map(|extent| extent.div_ceil(self.tile.side));
        let tiles = batch.saturating_mul(down as usize).saturating_mul(along as usize);
        let [batched_a, batched_b] = [shared_a, shared_b].map(|shared| u32::from(!shared));
        let words = [rows, depth, columns, down, along, batched_a, batched_b].map(Argument::U32);
        let buffers = if self.epilogue.has_bias() { 4 } else { 3 };
        let mut arguments: Vec<_> = (0..buffers).map(Argument::Buffer).chain(words).collect();
        arguments.push(Argument::F32(alpha));
        if self.epilogue.reads_c() {
            arguments.push(Argument::F32(beta));
        }
        Ok(Launch { grid: [extent("tiles", tiles, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write<'k>(&self, k: &'k Builder) {
        let tile = self.tile;
        let [a, b, c] = ["a", "b", "c"].map(|name| k.buffer::<u32>(name));
        let bias = self.epilogue.has_bias().then(|| k.buffer::<f32>("bias"));
        let [m, depth, n, down, along, batched_a, batched_b] =
            ["m", "k", "n", "down", "along", "batched_a", "batched_b"].map(|name| k.parameter::<u32>(name));
        let alpha = k.parameter::<f32>("alpha");
        let beta = self.epilogue.reads_c().then(|| k.parameter::<f32>("beta"));
        let thread = k.tid_x();
        let (lane, warp) = (thread & (WARP - 1), thread >> WARP.ilog2());
        let [batch, row, column] = Order { along, down }.place(k, k.ctaid_x());
        let first = [row * tile.side, column * tile.side];
        // The first row and column of the warp.
        let mine = [(warp >> 1) * tile.of_warp(), (warp & 1) * tile.of_warp()];

        let sides: Vec<Side<'k>> = [(a, m, batch * batched_a), (b, n, batch * batched_b)]
            .into_iter()
            .enumerate()
            .map(|(i, (at, outside, matrix))| {
                let (across, panels) = (self.across()[i], self.panels(self.across()[i]));
                let before = (k.cvt_u64(matrix) * k.mul_wide(outside, depth)) >> self.element_shift();
                let at = at.index_wide(before);
                let stages = k.shared_bytes(STAGES * panels.bytes(), Panels::ALIGN);
                let extents = if across { [depth, outside] } else { [outside, depth] };
                let blocks = self.blocks(k, i, stages, mine[i], lane);
                Side { k, input: self.input, panels, across, at, extents, first: first[i], stages, blocks }
            })
            .collect();
        let bring = |step: Word<'k>, stage: Word<'k>| {
            k.if_(k.lt(step, depth), || sides.iter().for_each(|side| side.bring(thread, step, stage)));
            // Commits a group for every stage, even an empty one, so that the count identifies completed ones.
            k.cp_async_commit_group::<u32>();
        };
        for stage in 0..STAGES - 1 {
            bring(k.constant(stage * self.depth()), k.constant(stage));
        }
        let eights = tile.of_warp() / 8;
        let sums: Vec<Vec<_>> = (0..tile.of_warp() / BLOCK)
            .map(|_| (0..eights).map(|_| [0; 4].map(|_| k.variable(0.0f32))).collect())
            .collect();
        let [stage, free] = [0, STAGES - 1].map(|stage| k.variable(stage));
        let next = |stage: Word<'k>| k.selp(0u32, stage + 1, k.eq(stage, STAGES - 1));
        k.for_(0u32, depth, self.depth(), |step| {
            // The stage has arrived for all threads, and all have finished with the one before.
            k.cp_async_wait_group::<u32>(Groups(STAGES - 2));
            k.bar_sync(0u32);
            bring(step + (STAGES - 1) * self.depth(), free.get());
            let blocks: Vec<MatrixBlocks<'k>> =
                sides.iter().map(|side| side.blocks.byte_index(stage.get() * side.panels.bytes())).collect();
            for along in 0..DEPTH_BYTES / (2 * PIECE) {
                let read = |i: usize| -> Vec<Fragment<'k, u32, 4>> {
                    (0..tile.of_warp() / BLOCK).map(|outside| sides[i].read(blocks[i], outside, along)).collect()
                };
                let (rows, columns) = (read(0), read(1));
                for (sums, &row) in sums.iter().zip(&rows) {
                    for (eight, &sum) in sums.iter().enumerate() {
                        let column = columns[eight / 2].part::<2>(2 * (eight % 2));
                        multiply(k, self.input, sum, row, column, sum);
                    }
                }
            }
            stage.set(next(stage.get()));
            free.set(next(free.get()));
        });
        k.cp_async_wait_group::<u32>(Groups(0));

        let element = k.cvt_u64(batch) * k.mul_wide(m, n);
        let at = c.index_wide(k.shr(element, u32::from(self.output != PtxType::F32)));
        let c = Elements { at, ty: self.output, columns: n };
        let (epilogue, output, target) = (self.epilogue, self.output, self.target);
        let finish = Finish { epilogue, output, target, alpha, c: beta.map(|beta| (beta, c)), bias };
        let row = first[0] + mine[0] + (lane >> 2);
        let column = first[1] + mine[1] + (lane & 3) * 2u32;
        for (below, sums) in (0..).zip(&sums) {
            for (beside, sums) in (0..).zip(sums) {
                let column = column + 8 * beside;
                let there = k.lt(column, n);
                let bias = finish.bias(there, column);
                for half in [0, 1] {
                    let row = row + (BLOCK * below + 8 * half);
                    let there = k.and(there, k.lt(row, m));
                    let sums = [0, 1].map(|i| sums[2 * half as usize + i].get());
                    c.store(there, row, column, finish.apply(there, [row, column], bias, sums));
                }
            }
        }
    }

    /// The shift from elements to words.
    fn element_shift(&self) -> u32 {
        u32::from(self.input != PtxType::F32)
    }

    /// The address at which a lane reads its warp's part in the first stage.
    fn blocks<'k>(
        &self,
        k: &'k Builder,
        operand: usize,
        stages: Pointer<'k, Shared, u32>,
        mine: Word<'k>,
        lane: Word<'k>,
    ) -> MatrixBlocks<'k> {
        let across = self.across()[operand];
        let panels = self.panels(across);
        // A is held with its rows first, B with k first; a matrix stored in the other order is read transposed.
        let order = if across == (operand == 0) { BlockOrder::Across } else { BlockOrder::Down };
        if !across {
            return panels.blocks(k, stages.byte_index(mine * panels.row_bytes()), lane, order);
        }
        let panel = stages.byte_index(mine / panels.width() * panels.panel_bytes());
        panels.blocks(k, panel, lane, order).beside(mine % panels.width() / BLOCK)
    }
}

/// An operand: its location in global and in shared memory.
struct Side<'k> {
    k: &'k Builder,
    input: PtxType,
    panels: Panels,
    /// Whether rows are along k.
    across: bool,
    at: Pointer<'k, Global, u32>,
    /// Rows, and elements of a row.
    extents: [Word<'k>; 2],
    /// The first row of A, or column of B, of the tile.
    first: Word<'k>,
    stages: Pointer<'k, Shared, u32>,
    /// The warp's blocks in the first stage.
    blocks: MatrixBlocks<'k>,
}

impl<'k> Side<'k> {
    /// Starts copying the tile at a step along k to a stage, with zeros for missing elements.
    fn bring(&self, thread: Word<'k>, step: Word<'k>, stage: Word<'k>) {
        let k = self.k;
        let [rows, columns] = self.extents;
        let [first_row, first_column] = if self.across { [step, self.first] } else { [self.first, step] };
        let (row, piece) = (thread >> PIECES.ilog2(), thread & (PIECES - 1));
        let to = self.panels.piece(k, self.stages.byte_index(stage * self.panels.bytes()), row, piece);
        let in_piece = PIECE / self.input.bytes();
        let at_once = WARPS * WARP / PIECES;
        let left = rows - (first_row + row);
        let left = k.bits_s32(left);
        let mut from = {
            let column = k.cvt_u64(first_column + piece * in_piece);
            let element = k.mad_wide(first_row + row, columns, column);
            self.at.index_wide(element >> u32::from(self.input != PtxType::F32))
        };
        let beside = k.bits_s32(columns - (first_column + piece * in_piece));
        let in_columns: Vec<_> =
            (0..self.panels.count()).map(|panel| k.gt(beside, (panel * self.panels.width()) as i32)).collect();
        let words_on = k.mul_wide(columns, at_once * self.input.bytes() / 4);
        for turn in 0..self.panels.panel_bytes() / self.panels.row_bytes() / at_once {
            let in_rows = k.gt(left, (turn * at_once) as i32);
            for (panel, &in_columns) in (0..).zip(&in_columns) {
                let present = k.selp(PIECE, 0u32, k.and(in_rows, in_columns));
                let places = turn * at_once * self.panels.row_bytes() + panel * self.panels.panel_bytes();
                let from = from.bytes((panel * DEPTH_BYTES) as i32);
                k.cp_async(to.bytes(places as i32), from, Sixteen(()), present);
            }
            from = from.index_wide(words_on);
        }
    }

    /// The operand of 16 rows of A, or of 16 columns of B, at this offset from the first of the warp, 32 bytes along k.
    fn read(&self, blocks: MatrixBlocks<'k>, outside: u32, along: u32) -> Fragment<'k, u32, 4> {
        let fragment = self.k.fragment();
        match self.across {
            true => self.k.ldmatrix_x4_trans::<u32>(fragment, blocks.at(along, outside)),
            false => self.k.ldmatrix_x4::<u32>(fragment, blocks.at(outside, along)),
        }
        fragment
    }
}

impl Kernel for WarpGemm {
    fn name(&self) -> String {
        let stored = |transposed: bool| if transposed { 't' } else { 'n' };
        let input = if self.input == PtxType::F32 { "tf32" } else { self.input.word() };
        let Matmul { transpose_a, transpose_b } = self.operation;
        let (side, depth) = (self.tile.side, self.depth());
        format!(
            "gemm_{}{}_{}_{}_warps_{side}x{side}x{depth}{}",
            stored(transpose_a),
            stored(transpose_b),
            input,
            self.output.word(),
            self.epilogue.suffix()
        )
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [WARPS * WARP, 1, 1], |k| self.write(k))
    }
}
