//! The matrix product of f32 without tensor cores, from `sm_80` on: `C = A B`.
//!
//! A block computes a tile of C, or the part of it that some of the products make: where there are few tiles, k is cut among
//! blocks, each writes a C of its own, and [`SplitSum`](super::SplitSum) adds these up afterwards, in their order. Tiles of A
//! and B come by copies that run by themselves into a ring of stages in shared memory, with k outside and padded, an element at
//! a time, because a copy of several would keep the order of memory; the lanes of a warp copy pieces of 8 along k of 4 rows,
//! which meets no bank twice. A thread adds the outer products of a few rows and columns, vectors of four that lie apart, so
//! that a warp reads few vectors and each of them once.
//!
//! Every product is added by one multiply-add, in the order of k; after every 1024 of them the sum so far goes to C, which bounds
//! the length of a chain, and the error of long products with it: roundings add up as the root of that length.

use kiln_ir::Result;
use kiln_ir::op::{Matmul, MatmulExtents};

use super::order::Order;
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::math::F32;
use crate::kernels::team::WARP;
use crate::operands::{Four, Groups};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Shared, Value, Variable};

/// Products in a chain. A multiple of the depth of every tile.
const CHAIN: u32 = 1024;
/// Padding elements after each row of a tile in shared memory.
const PAD: u32 = 4;
/// Elements of a vector in shared memory.
const VECTOR: u32 = 4;
/// Neighbours along k that adjacent lanes copy: 32 bytes, the unit of memory reads.
const PIECE: u32 = 8;
/// Maximum extents, so that the elements between a thread's first and last copy of a tile fit 32 bits.
const MOST: u64 = 1 << 24;

type Word<'k> = Value<'k, u32>;

/// A tile of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MultistageTile {
    /// Warps of a block along rows and along columns.
    warps: [u32; 2],
    /// Lanes of a warp along rows and along columns.
    lanes: [u32; 2],
    /// Rows and columns of a thread.
    thread: [u32; 2],
    /// Products of a stage.
    depth: u32,
    stages: u32,
    /// Blocks that a multiprocessor must be able to run at once.
    resident: u32,
}

impl MultistageTile {
    /// 128 by 128.
    const SQUARE: Self = Self::new([4, 2], [4, 8], 2);
    /// 64 by 128 and 32 by 128.
    const WIDE: [Self; 2] = [Self::new([2, 2], [4, 8], 2), Self::new([1, 2], [4, 8], 4)];
    /// Every tile.
    pub const ALL: [Self; 5] = {
        let [half, quarter] = Self::WIDE;
        [Self::SQUARE, half, quarter, half.turned(), quarter.turned()]
    };

    /// 64 elements of C per thread, which leaves four warps to each scheduler if there are enough blocks: with 128
    /// elements and two warps there are fewer instructions and products are slower, by 4 % on an H200.
    const fn new(warps: [u32; 2], lanes: [u32; 2], resident: u32) -> Self {
        Self { warps, lanes, thread: [8, 8], depth: 16, stages: 3, resident }
    }

    /// Approximate nanoseconds per stage on an H200: of a warp for each scheduler of a multiprocessor if there are
    /// several warps, and of the stage if there is one block.
    fn stage_time(self) -> [u64; 2] {
        let [height, width] = self.block();
        match height.min(width) {
            128 => [680, 1420],
            64 => [710, 850],
            _ => [880, 850],
        }
    }

    /// With rows and columns exchanged.
    const fn turned(self) -> Self {
        let [warps, lanes] = [[self.warps[1], self.warps[0]], [self.lanes[1], self.lanes[0]]];
        Self { warps, lanes, ..self }
    }

    /// Tiles of C.
    fn count(self, extents: MatmulExtents) -> u64 {
        let [height, width] = self.block().map(u64::from);
        let tiles = (extents.m as u64).div_ceil(height).saturating_mul((extents.n as u64).div_ceil(width));
        tiles.saturating_mul(extents.batch as u64)
    }

    /// Approximate nanoseconds of a product with k divided into this many parts.
    fn time(self, extents: MatmulExtents, parts: usize, multiprocessors: u32) -> u64 {
        /// The time before the first stage and after the last.
        const START: u64 = 3000;
        /// The time of another launch, and the bytes per nanosecond that it reads and writes.
        const ADDING: u64 = 2500;
        const BYTES: u64 = 5000;
        let [several, alone] = self.stage_time();
        let blocks = self.count(extents).saturating_mul(parts as u64).div_ceil(multiprocessors.max(1).into());
        let warps = blocks.saturating_mul((self.threads() / WARP).into());
        let stage = (warps.saturating_mul(several) / 4).max(alone);
        let stages = (self.share(extents.k, parts) / self.depth as usize) as u64;
        let adding = match parts {
            1 => 0,
            _ => {
                let elements = (extents.batch as u64).saturating_mul(extents.m as u64).saturating_mul(extents.n as u64);
                ADDING + elements.saturating_mul(4 * (parts as u64 + 1)) / BYTES
            }
        };
        stages.saturating_mul(stage).saturating_add(START + adding)
    }

    /// Products of a part, in whole stages.
    fn share(self, k: usize, parts: usize) -> usize {
        k.div_ceil(parts).max(1).next_multiple_of(self.depth as usize)
    }

    /// Rows and columns of a block.
    fn block(self) -> [u32; 2] {
        [0, 1].map(|side: usize| self.warps[side] * self.lanes[side] * self.thread[side])
    }

    const fn threads(self) -> u32 {
        self.warps[0] * self.warps[1] * WARP
    }

    /// Elements of a row of the tile of A or B in shared memory.
    fn pitch(self, side: usize) -> u32 {
        self.block()[side] + PAD
    }

    /// Elements of a stage before the tile of A, or before that of B.
    fn before(self, side: usize) -> u32 {
        if side == 0 { 0 } else { self.depth * self.pitch(0) }
    }

    /// Elements of a stage.
    fn stage(self) -> u32 {
        self.depth * (self.pitch(0) + self.pitch(1))
    }
}

/// The matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MultistageGemm {
    operation: Matmul,
    tile: MultistageTile,
}

impl MultistageGemm {
    /// With this tile. The operation says which operands are stored transposed.
    pub fn new(operation: Matmul, tile: MultistageTile) -> Self {
        Self { operation, tile }
    }

    /// The tile, and in how many parts to cut k, that take the least time for these extents on a device of this many
    /// multiprocessors, by a count of waves of tiles and of stages. Its figures are those of an H200.
    pub fn for_extents(operation: Matmul, extents: MatmulExtents, multiprocessors: u32) -> (Self, usize) {
        /// Maximum number of parts.
        const PARTS: usize = 32;
        /// Minimum products of a part.
        const LEAST: usize = 64;
        /// Minimum tiles per multiprocessor from which dividing k balances nothing.
        const MANY: u64 = 4;
        let mut best = (u64::MAX, MultistageTile::SQUARE, 1);
        for tile in MultistageTile::ALL {
            let most = if tile.count(extents) > MANY * u64::from(multiprocessors) { 1 } else { PARTS };
            for parts in 1..=most.min(extents.k / LEAST).max(1) {
                let time = tile.time(extents, parts, multiprocessors);
                if time < best.0 {
                    best = (time, tile, parts);
                }
            }
        }
        let (_, tile, parts) = best;
        // Parts are whole stages, so the last ones may be empty.
        let share = tile.share(extents.k, parts);
        (Self::new(operation, tile), extents.k.div_ceil(share).max(1))
    }

    /// The launch for these extents with k in this many parts. Buffers: A, B, and for each part all C, one behind the other.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2²⁴ for an extent or 2³¹ - 1 tiles.
    pub fn launch(&self, extents: MatmulExtents, parts: usize) -> Result<Launch> {
        let MatmulExtents { batch, shared_a, shared_b, m, k, n } = extents;
        let [rows, depth, columns] = [("m", m), ("k", k), ("n", n)].map(|(what, asked)| extent(what, asked, MOST));
        let (rows, depth, columns) = (rows?, depth?, columns?);
        let [height, width] = self.tile.block();
        let (down, along) = (rows.div_ceil(height), columns.div_ceil(width));
        let tiles = (down as usize * along as usize).saturating_mul(batch).saturating_mul(parts);
        let grid = [extent("tiles", tiles, MAX_GRID_X)?, 1, 1];
        let share = self.tile.share(k, parts) as u32;
        let [batched_a, batched_b] = [shared_a, shared_b].map(|shared| u32::from(!shared));
        let words = [rows, columns, depth, down, along, batch as u32, batched_a, batched_b, share].map(Argument::U32);
        Ok(Launch { grid, arguments: (0..3).map(Argument::Buffer).chain(words).collect() })
    }

    fn write<'k>(&self, k: &'k Builder) {
        let tile = self.tile;
        k.resident_blocks(tile.resident);
        let [a, b, c] = ["a", "b", "c"].map(|name| k.buffer::<f32>(name));
        let [m, n, depth] = ["m", "n", "k"].map(|name| k.parameter::<u32>(name));
        let [down, along, products, batched_a, batched_b, share] =
            ["down", "along", "products", "batched_a", "batched_b", "share"].map(|name| k.parameter::<u32>(name));
        let [number, row, column] = Order { along, down }.place(k, k.ctaid_x());
        let (part, product) = (number / products, number % products);
        let begin = part * share;
        let end = k.min(depth, begin + share);
        let first = [row * tile.block()[0], column * tile.block()[1]];
        let stages = k.shared::<f32>(tile.stages * tile.stage());
        let stage_bytes = 4 * tile.stage();

        let of = |at: Pointer<'k, Global, f32>, matrix, extent, first, across| Stored {
            at: at.index_wide(k.cvt_u64(matrix) * k.mul_wide(extent, depth)),
            extents: [depth, extent],
            first,
            across,
        };
        let stored = [
            of(a, product * batched_a, m, first[0], self.operation.transpose_a),
            of(b, product * batched_b, n, first[1], !self.operation.transpose_b),
        ];
        let sides = [0, 1].map(|side: usize| Side::new(k, tile, side, &stored[side], stages));
        let bring = |step: Word<'k>, stage: Word<'k>| sides.each_ref().map(|side| side.bringing(step, stage, end));
        for stage in 0..tile.stages - 1 {
            for bringing in bring(begin + stage * tile.depth, k.constant(stage * stage_bytes)) {
                bringing.copy(0, 1);
            }
            // Commits a group for every stage, even a missing one, so that the count identifies completed ones.
            k.cp_async_commit_group::<u32>();
        }

        let (lane, warp) = (k.tid_x() & (WARP - 1), k.tid_x() / WARP);
        // Vertically adjacent lanes are one apart, and pairs of lanes are side by side: so lanes two apart read one
        // vector of A, adjacent ones one of B, and shared memory serves a warp in half the time.
        let beside = lane >> 1 & (tile.lanes[1] - 1);
        let below = (lane & 1) + (lane >> (1 + tile.lanes[1].ilog2()) << 1);
        let of_warp = |side: usize| tile.lanes[side] * tile.thread[side];
        let mine =
            [warp / tile.warps[1] * of_warp(0) + below * VECTOR, warp % tile.warps[1] * of_warp(1) + beside * VECTOR];
        let from = [0, 1].map(|side: usize| stages.offset(tile.before(side) as i32).index(mine[side]));
        let fragment = |from: Pointer<'k, Shared, f32>, side: usize, kk: u32| -> Vec<F32<'k>> {
            let step = tile.lanes[side] * VECTOR;
            let vector = |v: u32| k.ld_v::<_, _, 4>(from.offset((kk * tile.pitch(side) + v * step) as i32));
            (0..tile.thread[side] / VECTOR).flat_map(vector).collect()
        };

        let [stage, free] = [0, tile.stages - 1].map(|stage| k.variable(stage * stage_bytes));
        let next = |stage: Word<'_>| k.selp(0u32, stage + stage_bytes, k.eq(stage, (tile.stages - 1) * stage_bytes));
        let adds = k.variable(0u32);
        // Without products one iteration writes zeros.
        k.for_(begin, k.max(end, begin + 1), CHAIN, |chain| {
            let sums: Vec<_> = (0..tile.thread[0] * tile.thread[1]).map(|_| k.variable(0.0f32)).collect();
            k.for_(chain, k.min(end, chain + CHAIN), tile.depth, |step| {
                // The stage has arrived for all threads, and all have finished with the one before.
                k.cp_async_wait_group::<u32>(Groups(tile.stages - 2));
                k.bar_sync(0u32);
                let bringing = bring(step + (tile.stages - 1) * tile.depth, free.get());
                let from = from.map(|from| from.byte_index(stage));
                let fragments = |kk| [0, 1].map(|side: usize| fragment(from[side], side, kk));
                let mut added: Vec<F32<'_>> = sums.iter().map(|sum| sum.get()).collect();
                let mut now = fragments(0);
                for kk in 0..tile.depth {
                    let ahead = if kk + 1 < tile.depth { fragments(kk + 1) } else { Default::default() };
                    // A few at a time: with many at once the reads of this stage would wait for them.
                    bringing.iter().for_each(|bringing| bringing.copy(kk, tile.depth));
                    let [below, beside] = now;
                    for (j, &column) in beside.iter().enumerate() {
                        for i in 0..below.len() {
                            // Alternates the direction, so that one of the factors is that of the product before.
                            let i = if j % 2 == 0 { i } else { below.len() - 1 - i };
                            let sum = &mut added[i * beside.len() + j];
                            *sum = k.fma(below[i], column, *sum);
                        }
                    }
                    now = ahead;
                }
                k.cp_async_commit_group::<u32>();
                sums.iter().zip(added).for_each(|(sum, added)| sum.set(added));
                stage.set(next(stage.get()));
                free.set(next(free.get()));
            });
            let c = c.index_wide(k.cvt_u64(number) * k.mul_wide(m, n));
            self.add(k, c, [m, n], [first[0] + mine[0], first[1] + mine[1]], &sums, k.ne(adds, 0));
            adds.set(1u32);
        });
        k.cp_async_wait_group::<u32>(Groups(0));
    }

    /// `C = sums`, or `C += sums`, for the elements of a thread. `first` are their first row and column.
    fn add<'k>(
        &self,
        k: &'k Builder,
        c: Pointer<'k, Global, f32>,
        [m, n]: [Word<'k>; 2],
        first: [Word<'k>; 2],
        sums: &[Variable<'k, f32>],
        adds: Value<'k, bool>,
    ) {
        let tile = self.tile;
        let place = |side: usize, i: u32| i / VECTOR * tile.lanes[side] * VECTOR + i % VECTOR;
        let columns = tile.thread[1] as usize;
        let rows = || (0..).zip(sums.chunks(columns)).map(|(i, sums)| (first[0] + place(0, i), sums));
        let row_of = |row: Word<'k>| c.index_wide(k.mad_wide(row, n, k.cvt_u64(first[1])));
        // Whether rows of C are whole vectors.
        let whole = k.eq(n & (VECTOR - 1), 0);
        k.if_else(
            whole,
            || {
                for (row, sums) in rows() {
                    let at = row_of(row);
                    for (v, sums) in (0..).zip(sums.chunks(VECTOR as usize)) {
                        let place = place(1, v * VECTOR);
                        let there = k.and(k.lt(row, m), k.lt(first[1] + place, n));
                        let at = at.offset(place as i32);
                        let old: [_; 4] = k.ld_v_if(k.and(there, adds), at, 0.0);
                        k.st_v_if(there, at, std::array::from_fn::<_, 4, _>(|e| k.add(sums[e], old[e])));
                    }
                }
            },
            || {
                for (row, sums) in rows() {
                    let at = row_of(row);
                    for (j, &sum) in (0..).zip(sums) {
                        let there = k.and(k.lt(row, m), k.lt(first[1] + place(1, j), n));
                        let at = at.offset(place(1, j) as i32);
                        let old = k.ld_if(k.and(there, adds), at, 0.0);
                        k.st_if(there, at, k.add(sum, old));
                    }
                }
            },
        );
    }
}

/// A or B in its stored layout.
struct Stored<'k> {
    at: Pointer<'k, Global, f32>,
    /// k, and rows of A or columns of B.
    extents: [Word<'k>; 2],
    /// The first row or column of the tile.
    first: Word<'k>,
    /// Whether k is the outer dimension.
    across: bool,
}

/// A or B, for a thread that copies some elements of each of its tiles.
struct Side<'k> {
    k: &'k Builder,
    /// The base of element offsets at k = 0: the matrix, or the first row or column of the tile.
    at: Pointer<'k, Global, f32>,
    /// Elements between adjacent k.
    stride: Value<'k, u32>,
    elements: Vec<Element<'k>>,
    /// The k of elements in the tile: a part per thread, and a common constant.
    depths: Vec<(Option<Word<'k>>, u32)>,
    /// The destination of the first of these in the first stage.
    to: Pointer<'k, Shared, f32>,
}

/// An element of every tile that a thread copies.
struct Element<'k> {
    /// Its offset: a part per thread, and a common constant.
    from: (Word<'k>, u32),
    /// Index of its k in the side's depths.
    depth: usize,
    /// Distance of its destination from the first.
    to: u32,
}

impl<'k> Side<'k> {
    fn new(
        k: &'k Builder,
        tile: MultistageTile,
        side: usize,
        stored: &Stored<'k>,
        stages: Pointer<'k, Shared, f32>,
    ) -> Self {
        let &Stored { at, extents: [depth, extent], first, across } = stored;
        let tiles = stages.offset(tile.before(side) as i32);
        let (length, threads, pitch, thread) = (tile.block()[side], tile.threads(), tile.pitch(side), k.tid_x());
        // Missing rows or columns are replaced by others, whose results are not stored. Lanes get different ones if
        // possible, because lanes that read one element are served in turn.
        let (mut elements, mut depths) = (Vec::new(), Vec::new());
        let place = if across {
            let (place, kk) = (thread & (length - 1), thread / length);
            // If there are more threads than positions, they copy further k at once.
            let at_once = (threads / length).max(1);
            let own = (at_once > 1).then_some(kk);
            for step in (0..tile.depth).step_by(at_once as usize) {
                depths.push((own, step));
                for beside in (0..length).step_by(threads.min(length) as usize) {
                    let outside = (first + place + beside) % extent;
                    let from = k.mad(own.map_or(k.constant(step), |kk| kk + step), extent, outside);
                    let depth = depths.len() - 1;
                    elements.push(Element { from: (from, 0), depth, to: step * pitch + beside });
                }
            }
            if at_once > 1 { k.mad(kk, pitch, place) } else { place }
        } else {
            let (place, kk) = (thread / PIECE, thread & (PIECE - 1));
            let at_once = threads / PIECE;
            let last = extent - 1 - first;
            depths.extend((0..tile.depth).step_by(PIECE as usize).map(|step| (Some(kk), step)));
            for below in (0..length).step_by(at_once as usize) {
                let from = k.mad(k.min(place + below, last), depth, kk);
                for (depth, step) in (0..tile.depth).step_by(PIECE as usize).enumerate() {
                    elements.push(Element { from: (from, step), depth, to: step * pitch + below });
                }
            }
            k.mad(kk, pitch, place)
        };
        let (at, stride) =
            if across { (at, extent) } else { (at.index_wide(k.mul_wide(first, depth)), k.constant(1u32)) };
        Self { k, at, stride, elements, depths, to: tiles.index(place) }
    }

    /// The copies of the tile at a step along k to a stage, this many bytes after the first; zeros from `end` on.
    fn bringing(&self, step: Word<'k>, stage: Word<'k>, end: Word<'k>) -> Bringing<'_, 'k> {
        let k = self.k;
        let at = self.at.index_wide(k.mul_wide(step, self.stride));
        let present = |&(own, same): &(Option<Word<'k>>, u32)| {
            let depth = step + own.map_or(k.constant(same), |own| own + same);
            k.selp(4u32, 0, k.lt(depth, end))
        };
        let present = self.depths.iter().map(present).collect();
        Bringing { side: self, at, to: self.to.byte_index(stage), present }
    }
}

/// The copies of a tile.
struct Bringing<'s, 'k> {
    side: &'s Side<'k>,
    at: Pointer<'k, Global, f32>,
    to: Pointer<'k, Shared, f32>,
    /// For each depth of the side the number of bytes to copy: 4 or 0.
    present: Vec<Word<'k>>,
}

impl Bringing<'_, '_> {
    /// Starts the copies of iteration `turn` of `turns`.
    fn copy(&self, turn: u32, turns: u32) {
        let elements = &self.side.elements;
        let at = |turn: u32| elements.len() * turn as usize / turns as usize;
        for element in &elements[at(turn)..at(turn + 1)] {
            let from = self.at.index(element.from.0).offset(element.from.1 as i32);
            let to = self.to.offset(element.to as i32);
            self.side.k.cp_async_word(to, from, Four(()), self.present[element.depth]);
        }
    }
}

impl Kernel for MultistageGemm {
    fn name(&self) -> String {
        let stored = |transposed: bool| if transposed { 't' } else { 'n' };
        let Matmul { transpose_a, transpose_b } = self.operation;
        let ([height, width], MultistageTile { depth, stages, .. }) = (self.tile.block(), self.tile);
        format!("gemm_{}{}_stages_{height}x{width}x{depth}x{stages}", stored(transpose_a), stored(transpose_b))
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.tile.threads(), 1, 1], |k| self.write(k))
    }
}
