//! The product of more than a few f32 rows with weights in blocks on tensor cores, by `mma.sync` of bytes: from `sm_80` on.
//!
//! `yᵢⱼ = Σₖ xᵢₖ Wⱼₖ`. [`RoundRows`] rounds x to 16 bits, as the contract of the product allows, and writes the bytes in the order
//! in which lanes take them. [`TiledQuantMatmul`] reads weights once for up to 64 rows of x: a block of threads has a tile of 128
//! rows of weights, 16 for each of eight warps, and goes along k in chunks of 256 elements, which come by `cp.async` several chunks
//! ahead. A product of bytes is of 16 rows of weights and of the upper and the lower bytes of four rows of x; of the elements
//! with a step in common it is exact. Steps, minima and units of x are applied to it in f32.
//!
//! Where there are fewer tiles than blocks that run at once, k is cut in parts, and [`JoinParts`] adds up what they give, in their
//! order.
//!
//! Sums that are not finite are computed again product by product: x that has no unit makes them NaN.

use kiln_ir::{QuantFormat, Result};

use super::Word;
use super::byte_weights::{Row, Step, Turn};
use super::parts::{JoinParts, Repair, Results, parts};
use super::rounding::{GROUP, Rounded, VECTOR};
use crate::builder::operands::{Groups, Sixteen};
use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::kernels::math::F32;
use crate::kernels::team::WARP;
use crate::{Argument, Builder, Fragment, Global, Kernel, Launch, Pointer, PtxKernel, Shared, Target, Value, Variable};

/// Warps of a block, which share its rows of weights. Measured on an H100 with 64 rows of x: half as many warps with
/// two byte products for each read of x, or twice as many with half of the rows of x, take as long.
const WARPS: u32 = 8;
const THREADS: u32 = WARPS * WARP;
/// Rows of weights per warp.
const TALL: u32 = 16;
/// Rows of weights per block.
const WEIGHTS: u32 = WARPS * TALL;
/// Rows of x in a byte product.
const ACROSS: u32 = 4;
/// Elements of a chunk; then groups with a common unit.
const CHUNK: u32 = 256;
const GROUPS: u32 = CHUNK / GROUP;
/// Bytes of a copy.
const PIECE: u32 = 16;
/// Groups whose bytes are adjacent, for loads of 16 bytes.
const PAIR: u32 = 2;
/// Bytes of four rows of x in a pair of groups: their integers, and for each row its units and the sums of its
/// integers.
const PLANE_BYTES: u32 = PAIR * 2 * ACROSS * GROUP;
const SCALE_BYTES: u32 = PAIR * 2 * 4 * ACROSS;
/// Pairs of groups of a chunk.
const PAIRS: u32 = GROUPS / PAIR;
/// Maximum rows and elements of a row, so that the bytes of a row and the end of the last block fit 32 bits.
const MOST: u64 = (1 << 30) - 1;
/// Maximum bytes of shared memory that the system reserves per block, counted for each stage.
const RESERVED: u32 = 1 << 10;
/// Threads of a block that rounds x.
const ROUNDING_THREADS: u32 = 128;

/// The tiles of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    format: QuantFormat,
    step: Step,
    target: Target,
    m: usize,
    depth: usize,
    n: usize,
    /// Rows of x per block: 8, 16, 32 or 64.
    rows: u32,
    /// Number of parts of k.
    parts: u32,
}

impl Tiling {
    /// Tiles for `m` rows of x of `depth` elements and `n` rows of weights, on a device of this many multiprocessors. `None` for targets
    /// and formats without such kernels.
    pub fn new(format: QuantFormat, [m, depth, n]: [usize; 3], target: Target, multiprocessors: u32) -> Option<Self> {
        Self::of_round(format, [m, depth], &[n], target, multiprocessors)?.pop()
    }

    /// The same of each of several matrices of `n` rows of weights, whose products with the same rows of x run at once.
    pub fn of_round(
        format: QuantFormat,
        [m, depth]: [usize; 2],
        n: &[usize],
        target: Target,
        multiprocessors: u32,
    ) -> Option<Vec<Self>> {
        let step = Step::of(format).filter(|_| target >= Target::Sm80)?;
        let of = |rows| Self { format, step, target, m, depth, n: 0, rows, parts: 1 };
        let wanted = m.clamp(8, 64).next_power_of_two() as u32;
        let tiling = [64, 32, 16, 8].map(of).into_iter().find(|tiling| {
            let stages = 2 * (tiling.shape(false).stage_bytes() + RESERVED);
            tiling.rows <= wanted && stages <= target.shared_bytes()
        })?;
        let blocks = |n: &usize| n.div_ceil(WEIGHTS as usize).saturating_mul(tiling.down());
        let at_once = (multiprocessors * tiling.shape(false).resident()) as usize;
        let parts = parts(n.iter().map(blocks), at_once, tiling.chunks());
        Some(n.iter().map(|&n| Self { n, parts, ..tiling }).collect())
    }

    fn shape(&self, adds: bool) -> Shape {
        let Self { format, step, target, rows, parts, .. } = *self;
        Shape {
            format,
            step,
            rows,
            overlaps: target >= Target::Sm90,
            shared_bytes: target.shared_bytes(),
            is_part: parts > 1,
            adds,
        }
    }

    /// Number of groups of rows of x.
    fn down(&self) -> usize {
        self.m.div_ceil(self.rows as usize)
    }

    /// Number of groups of four rows of x, including those that fill the last tile.
    fn fours(&self) -> usize {
        self.down() * (self.rows / ACROSS) as usize
    }

    fn chunks(&self) -> usize {
        self.depth.div_ceil(CHUNK as usize)
    }

    /// Bytes of rounded x, and of its units and sums; `None` where they are beyond a `usize`.
    pub fn rounded_bytes(&self) -> Option<[usize; 2]> {
        let pairs = self.fours().checked_mul(self.chunks() * PAIRS as usize)?;
        Some([pairs.checked_mul(PLANE_BYTES as usize)?, pairs.checked_mul(SCALE_BYTES as usize)?])
    }

    /// Bytes of the parts of the result, where there are several; `None` where they are beyond a `usize`.
    pub fn parts_bytes(&self) -> Option<usize> {
        let parts = if self.parts > 1 { self.parts as usize } else { 0 };
        self.m.checked_mul(self.n)?.checked_mul(4 * parts)
    }

    /// The kernel that rounds x, and its launch. Buffers: x, rounded x, units and sums.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 rows or elements of a row, or 65 535 times four rows.
    pub fn rounding(&self) -> Result<(RoundRows, Launch)> {
        let fours = extent("groups of four rows", self.fours(), MAX_GRID_YZ)?;
        // Each warp has a pair of groups.
        let across = extent("chunks", self.chunks() * (PAIRS / (ROUNDING_THREADS / WARP)) as usize, MAX_GRID_X)?;
        let words = [extent("rows", self.m, MOST)?, extent("elements of a row", self.depth, MOST)?];
        let arguments = (0..3).map(Argument::Buffer).chain(words.map(Argument::U32)).collect();
        Ok((RoundRows { adjacent: self.step.adjacent }, Launch { grid: [across, fours, 1], arguments }))
    }

    /// The product, and its launch. Buffers: rounded x, units and sums, weights, and the parts of the result if there are several,
    /// or else the result, x, and what is added to the result if anything is.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 rows or elements of a row, or 65 535 groups of rows of x.
    pub fn product(&self, adds: bool) -> Result<(TiledQuantMatmul, Launch)> {
        let kernel = TiledQuantMatmul { shape: self.shape(adds && self.parts == 1) };
        let (rows, weights) = (extent("rows", self.m, MOST)?, extent("rows of weights", self.n, MOST)?);
        let depth = extent("elements of a row", self.depth, MOST)?;
        let down = extent("groups of rows", self.down(), MAX_GRID_YZ)?;
        let per = (self.chunks() as u32).div_ceil(self.parts);
        let buffers = if self.parts > 1 { 4 } else { 5 + usize::from(adds) };
        let words = [rows, weights, depth, per].map(Argument::U32);
        let arguments = (0..buffers).map(Argument::Buffer).chain(words).collect();
        Ok((kernel, Launch { grid: [weights.div_ceil(WEIGHTS), down, self.parts], arguments }))
    }

    /// The kernel that adds up several parts of the result, and its launch. Buffers: parts, result, x, weights, and what is
    /// added to the result if anything is.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 elements of the result or of a row.
    pub fn joining(&self, adds: bool) -> Result<Option<(JoinParts, Launch)>> {
        if self.parts == 1 {
            return Ok(None);
        }
        JoinParts::new(self.format, self.parts, adds).launched([self.m, self.depth, self.n]).map(Some)
    }
}

/// Rounds rows of x to 16 bits, 32 elements in units of their largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoundRows {
    /// Adjacent elements that the lanes of a quad share, 16 or 32: this determines the order of elements of x.
    adjacent: u32,
}

impl RoundRows {
    /// Every kernel.
    pub fn all() -> [Self; 2] {
        [16, 32].map(|adjacent| Self { adjacent })
    }

    /// A warp processes a pair of groups of four rows. Lane `4 (2 i + b) + t` of a product has byte b of row i, the
    /// lower byte for b = 1: eight of each group from 8 t on, or, if the quad shares 16, four of each half of it from
    /// 4 t on.
    fn write(&self, k: &Builder) {
        let x = k.buffer::<f32>("x");
        let planes = k.buffer::<u32>("planes");
        let scales = k.buffer::<f32>("scales");
        let [m, depth] = ["m", "depth"].map(|name| k.parameter::<u32>(name));
        let thread = k.tid_x();
        let lane = thread & (WARP - 1);
        let pair = k.mad(k.ctaid_x(), ROUNDING_THREADS / WARP, thread >> WARP.ilog2());
        let (t, in_four, in_pair) = (lane & 3u32, lane >> 2 & 3u32, lane >> 4);
        let four = k.ctaid_y();
        let row = k.min(k.mad(four, ACROSS, in_four), m - 1);
        let [first, second] =
            if self.adjacent == GROUP { [t * 8u32, t * 8u32 + 4u32] } else { [t * 4u32, t * 4u32 + 16u32] };
        let element = k.mad(pair, PAIR, in_pair) * GROUP;
        let there = k.lt(element, depth);
        let of_group = x.index_wide(k.mad_wide(row, depth, k.cvt_u64(element)));
        let vectors: Vec<[F32<'_>; VECTOR as usize]> =
            [first, second].map(|at| k.ld_v_if::<_, _, 4>(there, of_group.index(at), 0.0f32)).to_vec();
        let Some(rounded) = Rounded::new(k, &vectors, &[1, 2]) else { return };
        let pairs = (k.nctaid_x() * (ROUNDING_THREADS / WARP)) * four + pair;
        let to = planes.index_wide(k.mul_wide(pairs, PLANE_BYTES / 4));
        let to = to.index(in_four * 32u32 + t * 4u32 + in_pair * 2u32);
        for (words, to) in [(rounded.upper(), to), (rounded.lower(), to.offset(16))] {
            if let [first, second] = words[..] {
                k.st_v(to, [first, second]);
            }
        }
        let sum = rounded.sum();
        let to = scales.index_wide(k.mul_wide(pairs, SCALE_BYTES / 4)).index(in_four * 4u32 + in_pair * 2u32);
        k.if_(k.eq(t, 0), || k.st_v(to, [rounded.unit, sum]));
    }
}

impl Kernel for RoundRows {
    fn name(&self) -> String {
        format!("round_rows_{}", self.adjacent)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [ROUNDING_THREADS, 1, 1], |k| self.write(k))
    }
}

/// The configuration of a kernel, and derived values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    format: QuantFormat,
    step: Step,
    rows: u32,
    /// Copies the first weights while the preceding launch still runs.
    overlaps: bool,
    /// Bytes of shared memory per block.
    shared_bytes: u32,
    /// Writes a part of the result.
    is_part: bool,
    adds: bool,
}

impl Shape {
    /// Number of groups of four rows of x.
    fn fours(self) -> u32 {
        self.rows / ACROSS
    }

    /// Bytes of a row of a chunk of weights.
    fn chunk_bytes(self) -> u32 {
        CHUNK / self.step.elements * self.step.bytes
    }

    /// Copies for a row of a chunk.
    fn pieces(self) -> u32 {
        (self.chunk_bytes() + self.step.reach()).div_ceil(PIECE)
    }

    /// Distance between rows of a chunk: lanes that read adjacent rows use different banks.
    fn pitch(self) -> u32 {
        let padding = if self.format == QuantFormat::Q5K { 3 } else { 1 };
        (self.pieces() + padding) * PIECE
    }

    /// Bytes of a stage of weights, and the offsets of the bytes of x and of their units in a stage.
    fn planes_begin(self) -> u32 {
        WEIGHTS * self.pitch()
    }

    fn scales_begin(self) -> u32 {
        self.planes_begin() + self.fours() * PAIRS * PLANE_BYTES
    }

    fn stage_bytes(self) -> u32 {
        self.scales_begin() + self.fours() * PAIRS * SCALE_BYTES
    }

    /// Resident blocks per multiprocessor.
    fn resident(self) -> u32 {
        (self.shared_bytes / (2 * (self.stage_bytes() + RESERVED))).clamp(1, 2)
    }

    /// Number of chunks that fit; all except one are in flight.
    fn stages(self) -> u32 {
        (self.shared_bytes / (self.resident() * (self.stage_bytes() + RESERVED))).clamp(2, 4)
    }
}

/// The product of rounded rows of x with the transpose of weights in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TiledQuantMatmul {
    shape: Shape,
}

impl TiledQuantMatmul {
    /// Kernels for this target: every number of rows of one format, the most of the others, whole products and parts, and one that adds.
    pub fn some(target: Target) -> Vec<Self> {
        let of = |(format, rows, multiprocessors): (QuantFormat, usize, u32)| {
            // With zero multiprocessors there are no parts.
            let tiling = Tiling::new(format, [rows, 4 * CHUNK as usize, 1], target, multiprocessors)?;
            Some(Self { shape: tiling.shape(rows == 8) })
        };
        use QuantFormat::{Iq4Nl, Iq4Xs, Mxfp4, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        let whole = [8, 16, 32, 64]
            .map(|rows| (Q4K, rows, 0))
            .into_iter()
            .chain([Q5K, Q6K, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Iq4Nl, Iq4Xs, Mxfp4].map(|format| (format, 64, 0)));
        let parts = [(Q4K, 64), (Q5K, 16), (Q6K, 32), (Q8_0, 64)].map(|(format, rows)| (format, rows, 4));
        let mut some: Vec<Self> = whole.chain(parts).filter_map(of).collect();
        // With little shared memory per block, more rows are several tiles.
        some.sort_by_key(Kernel::name);
        some.dedup();
        some
    }

    fn write(&self, k: &Builder) {
        k.resident_blocks(self.shape.resident());
        Body::new(k, self.shape).write();
    }
}

impl Kernel for TiledQuantMatmul {
    fn name(&self) -> String {
        let Shape { format, rows, overlaps, is_part, adds, .. } = self.shape;
        let parts = [(overlaps, "_overlapping"), (is_part, "_part"), (adds, "_adding")];
        let parts: String = parts.into_iter().filter(|(is, _)| *is).map(|(_, part)| part).collect();
        format!("tiled_quant_matmul_{}_{rows}{parts}", format.name())
    }

    fn reads_early(&self, _: Target) -> Option<Vec<usize>> {
        const WEIGHTS: usize = 2;
        self.shape.overlaps.then(|| vec![WEIGHTS])
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [THREADS, 1, 1], |k| self.write(k))
    }
}

/// The kernel while it is written.
struct Body<'k> {
    k: &'k Builder,
    shape: Shape,
    planes: Pointer<'k, Global, u32>,
    scales: Pointer<'k, Global, u32>,
    weights: Pointer<'k, Global, u32>,
    out: Pointer<'k, Global, f32>,
    /// Set if the whole result is written.
    repair: Option<Repair<'k>>,
    addend: Option<Pointer<'k, Global, f32>>,
    /// Rows of the result, rows of weights, elements of a row.
    extents: [Word<'k>; 3],
    /// Bytes of a row of weights.
    row_bytes: Word<'k>,
    /// The first chunk of the part, and its number of chunks.
    chunks: [Word<'k>; 2],
    stages: Pointer<'k, Shared, u32>,
    thread: Word<'k>,
    warp: Word<'k>,
    lane: Word<'k>,
    /// For each four rows of x, the sums with rows g and g + 8 of the weights.
    sums: Vec<[Variable<'k, f32>; 2]>,
}

impl<'k> Body<'k> {
    fn new(k: &'k Builder, shape: Shape) -> Self {
        let [planes, scales, weights] = ["planes", "scales", "weights"].map(|name| k.buffer::<u32>(name));
        let out = k.buffer::<f32>("out");
        let x = (!shape.is_part).then(|| k.buffer::<f32>("x"));
        let addend = shape.adds.then(|| k.buffer::<f32>("addend"));
        let [m, n, depth, per] = ["m", "n", "depth", "per"].map(|name| k.parameter::<u32>(name));
        let thread = k.tid_x();
        let all = (depth + (CHUNK - 1)) / CHUNK;
        let first = k.min(k.ctaid_z() * per, all);
        Self {
            k,
            shape,
            planes,
            scales,
            weights,
            out,
            repair: x.map(|x| Repair { k, format: shape.format, x, weights, depth }),
            addend,
            extents: [m, n, depth],
            row_bytes: depth / shape.format.block_len() as u32 * shape.format.block_bytes() as u32,
            chunks: [first, k.min(per, all - first)],
            stages: k.shared::<u32>(shape.stages() * shape.stage_bytes() / 4),
            thread,
            warp: thread >> WARP.ilog2(),
            lane: thread & (WARP - 1),
            sums: (0..shape.fours()).map(|_| [0.0; 2].map(|zero| k.variable(zero))).collect(),
        }
    }

    /// A row of the tile as a row of all weights; a missing one is read as the last, and not written.
    fn row(&self, row: Word<'k>) -> Word<'k> {
        let k = self.k;
        k.min(k.mad(k.ctaid_x(), WEIGHTS, row), self.extents[1] - 1)
    }

    /// The offset of a chunk of a row of weights from the preceding multiple of sixteen bytes.
    fn split(&self, row: Word<'k>, chunk: Word<'k>) -> Word<'k> {
        self.k.mad(row, self.row_bytes, chunk * self.shape.chunk_bytes()) & (PIECE - 1)
    }

    /// Starts copying the weights of a chunk to a stage, at this offset from the first.
    fn copy_weights(&self, chunk: Word<'k>, stage: Word<'k>) {
        let k = self.k;
        let shape = self.shape;
        let lanes = shape.pieces().next_power_of_two();
        let at_once = THREADS / lanes;
        let (piece, first) = (self.thread & (lanes - 1), self.thread >> lanes.ilog2());
        let before = chunk * shape.chunk_bytes();
        k.if_(k.lt(piece, shape.pieces()), || {
            let of_lane = piece * PIECE;
            for turn in 0..WEIGHTS / at_once {
                let in_tile = first + turn * at_once;
                let row = self.row(in_tile);
                let from = k.mad_wide(row, self.row_bytes, k.cvt_u64(before + of_lane)) & !u64::from(PIECE - 1);
                let to = self.stages.byte_index(stage + k.mad(in_tile, shape.pitch(), of_lane));
                let present = if shape.step.is_split {
                    // Bytes beyond the row are not read, and become zero.
                    let left = self.row_bytes - before + self.split(row, chunk);
                    k.bits_u32(k.max(k.min(k.bits_s32(left - of_lane), PIECE as i32), 0))
                } else {
                    k.constant(PIECE)
                };
                k.cp_async(to, self.weights.index_wide(from >> 2), Sixteen(()), present);
            }
        });
    }

    /// Starts copying the rounded rows of x of a chunk.
    fn copy_rows(&self, chunk: Word<'k>, stage: Word<'k>) {
        let k = self.k;
        let shape = self.shape;
        let pairs = (self.extents[2] + (CHUNK - 1)) / CHUNK * PAIRS;
        for (from, bytes, begin) in
            [(self.planes, PLANE_BYTES, shape.planes_begin()), (self.scales, SCALE_BYTES, shape.scales_begin())]
        {
            let pieces = PAIRS * bytes / PIECE;
            let (piece, first) = (self.thread & (pieces - 1), self.thread >> pieces.ilog2());
            let at_once = THREADS / pieces;
            let copy = |turn: u32| {
                let in_tile = first + turn * at_once;
                let four = k.mad(k.ctaid_y(), shape.fours(), in_tile);
                let pair = k.mad(four, pairs, chunk * PAIRS);
                let from = from.index_wide(k.mul_wide(pair, bytes / 4)).index(piece * (PIECE / 4));
                let to = k.mad(in_tile, PAIRS * bytes, piece * PIECE) + begin;
                k.cp_async(self.stages.byte_index(stage + to), from, Sixteen(()), PIECE);
            };
            for turn in 0..shape.fours().div_ceil(at_once) {
                match shape.fours() < at_once {
                    true => k.if_(k.lt(first, shape.fours()), || copy(turn)),
                    false => copy(turn),
                }
            }
        }
    }

    fn write(&self) {
        let k = self.k;
        let shape = self.shape;
        let [first, count] = self.chunks;
        let ahead = shape.stages() - 1;
        if shape.overlaps {
            k.griddepcontrol_launch_dependents::<u32>();
        }
        let is_there = |turn: u32| k.lt(k.constant(turn), count);
        for turn in 0..ahead {
            k.if_(is_there(turn), || self.copy_weights(first + turn, k.constant(turn * shape.stage_bytes())));
        }
        if shape.overlaps {
            k.griddepcontrol_wait::<u32>();
        }
        for turn in 0..ahead {
            k.if_(is_there(turn), || self.copy_rows(first + turn, k.constant(turn * shape.stage_bytes())));
            k.cp_async_commit_group::<u32>();
        }
        let next = |stage: &Variable<'k, u32>| {
            let after = stage.get() + shape.stage_bytes();
            stage.set(k.selp(0u32, after, k.eq(after, shape.stages() * shape.stage_bytes())));
        };
        let here = k.variable(0u32);
        let free = k.variable(ahead * shape.stage_bytes());
        k.for_(0u32, count, 1u32, |turn| {
            k.cp_async_wait_group::<u32>(Groups(ahead - 1));
            // The chunk has arrived, and no thread reads the one before it.
            k.bar_sync(0u32);
            let later = turn + ahead;
            k.if_(k.lt(later, count), || {
                self.copy_weights(first + later, free.get());
                self.copy_rows(first + later, free.get());
            });
            k.cp_async_commit_group::<u32>();
            self.multiply(first + turn, here.get());
            next(&here);
            next(&free);
        });
        self.finish();
    }

    /// Adds the products of a chunk.
    fn multiply(&self, chunk: Word<'k>, stage: Word<'k>) {
        let k = self.k;
        let shape = self.shape;
        let step = shape.step;
        let (g, t) = (self.lane >> 2, self.lane & 3u32);
        let turn = Turn { of: 1, number: k.constant(0) };
        let planes = self.stages.byte_index(stage + self.lane * 16u32);
        let scales: Pointer<'k, Shared, f32> = self.stages.byte_index(stage + t * 16u32).cast();
        let pairs = step.elements / (PAIR * GROUP);
        for number in 0..CHUNK / step.elements {
            let rows = [0, TALL / 2].map(|below: u32| {
                let in_tile = k.mad(self.warp, TALL, g) + below;
                let bytes = stage + k.mad(in_tile, shape.pitch(), number * step.bytes);
                let split = step.is_split.then(|| self.split(self.row(in_tile), chunk));
                let bytes = split.map_or(bytes, |split| bytes + split);
                Row::read(k, step.layout, self.stages, bytes, t, turn)
            });
            for pair in 0..pairs {
                for (four, sums) in (0..).zip(&self.sums) {
                    let at = four * PAIRS + number * pairs + pair;
                    let [a, b, c, d] = k.ld_v(planes.bytes((shape.planes_begin() + at * PLANE_BYTES) as i32));
                    let scales = k.ld_v(scales.bytes((shape.scales_begin() + at * SCALE_BYTES) as i32));
                    let [unit, total, of_second, total_of_second] = scales;
                    let groups = [([a, b], unit, total), ([c, d], of_second, total_of_second)];
                    for (group, (x, unit, total)) in (PAIR * pair..).zip(groups) {
                        for (sum, product) in sums.iter().zip(self.products(&rows, group, x, total)) {
                            sum.set(k.fma(unit, product, *sum));
                        }
                    }
                }
            }
        }
    }

    /// The products of 32 elements of two rows of weights with those of a row of x, whose sum is `total`.
    fn products(&self, rows: &[Row<'k>; 2], group: u32, x: [Word<'k>; 2], total: F32<'k>) -> [F32<'k>; 2] {
        let k = self.k;
        let step = self.shape.step;
        let zeros = [0; 4].map(|zero| k.constant::<i32>(zero));
        let d: Fragment<'k, i32, 4> = k.fragment();
        let whole = |d: Fragment<'k, i32, 4>, row: usize| {
            // Combines both bytes of x.
            k.cvt_rn_f32(k.mad(d.get(2 * row), 256, d.get(2 * row + 1)))
        };
        if step.group == GROUP {
            let [upper, lower] = rows.each_ref().map(|row| &row.groups[group as usize]);
            let a = [upper[0], lower[0], upper[1], lower[1]];
            match step.unsigned {
                true => k.mma_m16n8k32::<u32>(d, a, x, zeros),
                false => k.mma_m16n8k32::<i32>(d, a, x, zeros),
            }
            return [0, 1].map(|i| {
                let (scale, minimum) = rows[i].scales[group as usize];
                let product = whole(d, i);
                match minimum {
                    Some(minimum) => k.fma(scale, product, -(minimum * total)),
                    None => scale * product,
                }
            });
        }
        let halves = [0, 1].map(|half: usize| {
            let set = 2 * group as usize + half;
            let [upper, lower] = rows.each_ref().map(|row| row.groups[set][0]);
            let d: Fragment<'k, i32, 4> = k.fragment();
            match step.unsigned {
                true => k.mma_bytes_m16n8k16::<u32>(d, [upper, lower], [x[half]], zeros),
                false => k.mma_bytes_m16n8k16::<i32>(d, [upper, lower], [x[half]], zeros),
            }
            [0, 1].map(|i| (whole(d, i), rows[i].scales[set].0))
        });
        [0, 1].map(|i| {
            let [(first, scale), (second, of_second)] = [halves[0][i], halves[1][i]];
            k.fma(of_second, second, scale * first)
        })
    }

    /// The row and column of the sum of a row of x, given the number of its group of four, with one of two rows of
    /// weights, and whether they exist.
    fn place(&self, four: Word<'k>, half: Word<'k>) -> ([Word<'k>; 2], Value<'k, bool>) {
        let k = self.k;
        let [m, n, _] = self.extents;
        let i = k.mad(k.ctaid_y(), self.shape.rows, k.mad(four, ACROSS, self.lane & 3u32));
        let in_tile = k.mad(half, TALL / 2, k.mad(self.warp, TALL, self.lane >> 2));
        let j = k.mad(k.ctaid_x(), WEIGHTS, in_tile);
        ([i, j], k.and(k.lt(i, m), k.lt(j, n)))
    }

    fn finish(&self) {
        let k = self.k;
        let [m, n, _] = self.extents;
        let out = match self.shape.is_part {
            true => self.out.index_wide(k.mul_wide(k.ctaid_z() * m, n)),
            false => self.out,
        };
        let results = Results { k, out, columns: n, repair: self.repair, addend: self.addend };
        results.store(
            2 * self.shape.fours(),
            |number| self.place(number >> 1, number & 1u32),
            |number, _, _| self.sums[number as usize / 2][number as usize % 2].get(),
        );
    }
}
