//! The product of a few f32 rows with weights in blocks on tensor cores, by `mma.sync` of bytes: from `sm_80` on.
//!
//! `yᵢⱼ = Σₖ xᵢₖ Wⱼₖ`. Weights are A, 16 rows of them, and rows of x columns of B. Each 32 elements of x are rounded to 16 bits
//! in units of their largest, as the contract of the product allows, and are two columns: the upper bytes and the lower ones.
//! Their products with the integers of a group of weights that have a step in common are exact, and so are the sums; steps,
//! minima and units are applied to these.
//!
//! There are eight columns for up to four rows of x. With fewer, the others are for other groups of the same weights: the column
//! of a group is zero where A has another one, so that products of two or four groups run into one another's registers, and
//! each lane of a quad finishes the sums of one.
//!
//! A block of threads has rows of weights one after the other, as many as a multiprocessor can keep; each of eight warps takes
//! every eighth step along k. What it reads comes by `cp.async`, several chunks of eight steps ahead, whole lines at a time, and
//! in shared memory it does not matter that blocks of Q6_K and Q8_0 begin at multiples of two bytes. x is rounded chunk by
//! chunk while weights are on their way, once where there is room for all of it.
//!
//! From `sm_90` on a launch may begin while the one in front of it runs: weights are on their way when that ends, and x, which it
//! may write, is read afterwards.
//!
//! Infinities and what overflows show in the sums, and x that has no units makes them NaN; these are then computed product by
//! product.

mod activations;

use kiln_ir::op::{ExpertExtents, ExpertTiles, Param, RmsNorm};
use kiln_ir::{QuantFormat, Result};

use super::byte_weights::{Row, Step, Turn};
use super::{ExactRow, Word};
use crate::builder::operands::{Groups, Sixteen};
use crate::kernel::{MAX_GRID_YZ, extent};
use crate::kernels::experts::{self, Chosen};
use crate::kernels::math::F32;
use crate::kernels::team::{self, WARP};
use crate::{Argument, Builder, Fragment, Global, Kernel, Launch, Pointer, PtxKernel, Shared, Target, Value, Variable};
use activations::{Activations, Reader};

/// Warps that share rows of weights, and steps of a chunk.
const STEPS: u32 = 8;
/// Rows of weights in a product.
const TALL: u32 = 16;
/// Rows of x in a product.
const ACROSS: u32 = 4;
/// Bytes of a copy.
const PIECE: u32 = 16;
/// Maximum bytes for sums of squares, and for the alignment of all parts.
const SQUARES_BYTES: u32 = 1 << 10;
/// Mean squares from here on are accurate in f32.
const LEAST_MEAN: f32 = 1e-30;
/// Maximum rows and elements of a row, so that the bytes of a row and the end of the last block fit 32 bits.
const MOST: u64 = (1 << 30) - 1;

/// The configuration of a kernel, and derived values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    format: QuantFormat,
    step: Step,
    /// Rows of x at once: 1, 2, 4 or 8.
    rows: u32,
    /// Copies the first weights while the preceding launch still runs.
    overlaps: bool,
    /// Adds another tensor to the result.
    adds: bool,
    /// Normalises the rows of x first; this is added to their mean squares.
    norm: Option<Param>,
    /// Groups of rows are tiles, each with products of one expert.
    by_expert: bool,
}

impl Shape {
    /// For this many rows of x, a power of two up to 8. Measured on an H200: overlapping launches are up to a tenth
    /// faster.
    fn new(format: QuantFormat, rows: u32, target: Target) -> Option<Self> {
        let step = Step::of(format)?;
        Some(Self { format, step, rows, overlaps: target >= Target::Sm90, adds: false, norm: None, by_expert: false })
    }

    /// Rows of x in the columns of a product.
    fn across(self) -> u32 {
        self.rows.min(ACROSS)
    }

    /// Groups of weights in the columns of a product.
    fn groups_at_once(self) -> u32 {
        ACROSS / self.across()
    }

    /// Number of sets of groups of a step.
    fn sets(self) -> u32 {
        self.step.groups() / self.groups_at_once()
    }

    /// Groups of 16 rows of weights. Measured on an H200: if unpacking bytes takes long, two independent blocks are
    /// faster than one, as long as rounding x twice costs little.
    fn teams(self) -> u32 {
        if self.rows == 1 && self.step.is_split { 1 } else { 2 }
    }

    /// Rows of weights per block.
    fn weights(self) -> u32 {
        self.teams() * TALL
    }

    fn threads(self) -> u32 {
        self.teams() * STEPS * WARP
    }

    /// Elements of a chunk.
    fn chunk(self) -> u32 {
        STEPS * self.step.elements
    }

    /// Bytes of a row of a chunk of weights.
    fn chunk_bytes(self) -> u32 {
        STEPS * self.step.bytes
    }

    /// Number of copies for a row of a chunk.
    fn pieces(self) -> u32 {
        self.chunk_bytes() / PIECE + u32::from(self.step.is_split)
    }

    /// Distance between rows of a chunk: lanes that read adjacent rows use different banks.
    fn row_bytes(self) -> u32 {
        self.chunk_bytes() + if self.format == QuantFormat::Q8_0 { PIECE } else { 2 * PIECE }
    }

    fn stage_bytes(self) -> u32 {
        self.weights() * self.row_bytes()
    }

    /// Chunks of weights; all except one are in flight. Measured on an H200, for one row with Q8_0: with three chunks a
    /// multiprocessor has room for a third block, from the next launch, and overlapping launches are slower by a sixth.
    fn stages(self) -> u32 {
        match (self.format, self.rows) {
            (QuantFormat::Q6K, 1) if self.overlaps => 3,
            (QuantFormat::Q6K, _) | (QuantFormat::Q5K, 8) => 2,
            (QuantFormat::Q8_0, 1) if self.overlaps => 4,
            _ => 3,
        }
    }

    /// Chunks of x. For one row with Q6_K half as many leave room for the third chunk of weights.
    fn slots(self) -> u32 {
        match (self.format, self.rows) {
            (QuantFormat::Q6K, 1) => 4,
            _ => (8 / self.rows).max(2),
        }
    }

    /// Distance between planes of a chunk of x.
    fn pitch(self) -> u32 {
        self.chunk() + if self.rows == 1 { 64 } else { 32 }
    }

    fn slot_bytes(self) -> u32 {
        2 * self.rows * self.pitch()
    }

    /// Maximum bytes of shared memory: chunks of weights and of x, sums of warps, and with a norm sums of squares.
    fn shared_bytes(self) -> u32 {
        let of_x = self.slot_bytes() + 4 * Activations::slot_scales(self);
        let sums = 4 * self.threads() / WARP * TALL * self.rows;
        self.stages() * self.stage_bytes() + self.slots() * of_x + sums + SQUARES_BYTES
    }
}

/// The product of f32 rows with the transpose of weights in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpQuantMatmul {
    shape: Shape,
}

impl WarpQuantMatmul {
    /// For about this many rows of x. None for targets and formats that it is not for.
    /// `None`, too, where a block of threads has too little shared memory.
    pub fn new(format: QuantFormat, rows: usize, target: Target) -> Option<Self> {
        let rows = rows.clamp(1, 8).next_power_of_two() as u32;
        let shape = Shape::new(format, rows, target)?;
        (target >= Target::Sm80 && shape.shared_bytes() <= target.shared_bytes()).then_some(Self { shape })
    }

    /// The same, which adds a tensor like the result to it: buffer 3 of the launch.
    #[must_use]
    pub fn adding(self) -> Self {
        Self { shape: Shape { adds: true, ..self.shape } }
    }

    /// The same, of rows that are normalised first; gamma is buffer 3 of the launch. `None` for more rows than [`Self::NORMED_ROWS`].
    ///
    /// `y = (x γ) Wᵀ / √(mean x² + eps)`: rows are multiplied by gamma and rounded as others are, their squares are added up while
    /// they are, and sums are divided by the root.
    pub fn normed(self, norm: RmsNorm) -> Option<Self> {
        (self.shape.rows as usize <= Self::NORMED_ROWS)
            .then_some(Self { shape: Shape { norm: Some(norm.eps), adds: false, ..self.shape } })
    }

    /// Rows of x at most that a kernel normalises.
    pub const NORMED_ROWS: usize = 4;

    /// The formats that there are kernels for.
    pub const FORMATS: &'static [QuantFormat] = &[
        QuantFormat::Q4K,
        QuantFormat::Q5K,
        QuantFormat::Q6K,
        QuantFormat::Q8_0,
        QuantFormat::Q4_0,
        QuantFormat::Q4_1,
        QuantFormat::Q5_0,
        QuantFormat::Q5_1,
        QuantFormat::Iq4Nl,
        QuantFormat::Iq4Xs,
        QuantFormat::Mxfp4,
    ];

    /// For tiles of products with the weights of an expert each. Which weights these are is known when the launch in front has ended,
    /// so none are brought before.
    pub fn by_expert(format: QuantFormat, tiles: ExpertTiles, target: Target) -> Option<Self> {
        let Self { shape } = Self::new(format, tiles.rows, target)?;
        Some(Self { shape: Shape { overlaps: false, by_expert: true, ..shape } })
    }

    /// Every kernel for this target that adds nothing, and some that do.
    pub fn all(target: Target) -> Vec<Self> {
        let of = |format| [1, 2, 4, 8].into_iter().filter_map(move |rows| Self::new(format, rows, target));
        let all: Vec<Self> = QuantFormat::ALL.into_iter().flat_map(of).collect();
        let adding = all.iter().step_by(5).map(|kernel| kernel.adding());
        let one_and_most = all.iter().filter(|kernel| [1, Self::NORMED_ROWS].contains(&(kernel.shape.rows as usize)));
        let normed = one_and_most.filter_map(|kernel| kernel.normed(RmsNorm::new(1e-5)));
        let tiles = |rows| ExpertTiles { rows, count: 1 };
        let of_experts =
            |format| [1, 8].into_iter().filter_map(move |rows| Self::by_expert(format, tiles(rows), target));
        all.iter()
            .copied()
            .chain(adding)
            .chain(normed)
            .chain(QuantFormat::ALL.into_iter().flat_map(of_experts))
            .collect()
    }

    /// The launch for `m` rows of x of `depth` elements, whole blocks, and `n` rows of weights, on a device of this many
    /// multiprocessors. Buffers: x, weights, result, and what is added, or gamma, where there is such.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 rows or elements of a row, or 65 535 groups of rows of x.
    pub fn launch(&self, m: usize, depth: usize, n: usize, multiprocessors: u32) -> Result<Launch> {
        let rows = extent("rows", m, MOST)?;
        let weights = extent("rows of weights", n, MOST)?;
        let depth = extent("elements of a row", depth, MOST)?;
        let down = extent("groups of rows", rows.div_ceil(self.shape.rows) as usize, MAX_GRID_YZ)?;
        let across = weights.div_ceil(self.shape.weights());
        let across = self.blocks_at_once(multiprocessors).map_or(across, |most| across.min(most));
        let words = [rows, weights, depth].map(Argument::U32);
        let buffers = if self.shape.adds || self.shape.norm.is_some() { 4 } else { 3 };
        let arguments = (0..buffers).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [across, down, 1], arguments })
    }

    /// The launch for tiles of products with the weights of experts. Buffers: x, weights, result, experts of tiles, products of tiles.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 products, elements of a row or rows of all experts, or 65 535 tiles.
    pub fn launch_by_expert(&self, e: &ExpertExtents, tiles: ExpertTiles, multiprocessors: u32) -> Result<Launch> {
        let words = experts::words(e)?;
        let depth = extent("elements of a row", e.k, MOST)?;
        let across = words[1].div_ceil(self.shape.weights());
        let across = self.blocks_at_once(multiprocessors).map_or(across, |most| across.min(most));
        let own = [0, 1, 2].map(Argument::Buffer).into_iter().chain([Argument::U32(depth)]);
        let arguments = own.chain([3, 4].map(Argument::Buffer)).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [across, experts::down(tiles)?, 1], arguments })
    }

    fn blocks_of_a_multiprocessor(&self) -> u32 {
        2 / self.shape.teams()
    }

    fn write(&self, k: &Builder) {
        k.resident_blocks(self.blocks_of_a_multiprocessor());
        let body = Body::new(k, self.shape);
        match body.tile {
            Some(tile) => k.if_(tile.is_there(), || body.write()),
            None => body.write(),
        }
    }
}

/// The kernel while it is written.
struct Body<'k> {
    k: &'k Builder,
    shape: Shape,
    x: Pointer<'k, Global, f32>,
    weights: Pointer<'k, Global, u32>,
    out: Pointer<'k, Global, f32>,
    addend: Option<Pointer<'k, Global, f32>>,
    gamma: Option<Pointer<'k, Global, f32>>,
    tile: Option<Chosen<'k>>,
    /// Rows of the result, rows of weights, elements of a row.
    extents: [Word<'k>; 3],
    /// Bytes of a row of weights.
    row_bytes: Word<'k>,
    chunks: Word<'k>,
    /// Number of groups, each with the rows of a block.
    groups: Word<'k>,
    stages: Pointer<'k, Shared, u32>,
    activations: Activations<'k>,
    warp: Word<'k>,
    lane: Word<'k>,
    /// The lane's position in the registers of products: g and t.
    place: [Word<'k>; 2],
    turn: Turn<'k>,
    /// For each four rows of x, the sums with rows g and g + 8 of the weights.
    sums: Vec<[Variable<'k, f32>; 2]>,
}

/// The position of a chunk in the weights and in shared memory.
struct Cursor<'k> {
    group: Variable<'k, u32>,
    chunk: Variable<'k, u32>,
    /// Offset from the first stage in bytes.
    stage: Variable<'k, u32>,
}

impl<'k> Body<'k> {
    fn new(k: &'k Builder, shape: Shape) -> Self {
        let x = k.buffer::<f32>("x");
        let weights = k.buffer::<u32>("weights");
        let out = k.buffer::<f32>("out");
        let addend = shape.adds.then(|| k.buffer::<f32>("addend"));
        let gamma = shape.norm.map(|_| k.buffer::<f32>("gamma"));
        let (tile, extents) = match shape.by_expert {
            false => (None, ["m", "n", "depth"].map(|name| k.parameter::<u32>(name))),
            true => {
                let depth = k.parameter::<u32>("depth");
                let tile = Chosen::new(k, shape.rows);
                (Some(tile), [tile.products, tile.n, depth])
            }
        };
        let [m, n, depth] = extents;
        let thread = k.tid_x();
        let (warp, lane) = (thread >> WARP.ilog2(), thread & (WARP - 1));
        let place = [lane >> 2, lane & 3u32];
        let row_bytes = depth / shape.format.block_len() as u32 * shape.format.block_bytes() as u32;
        // One chunk even if k is 0: its sums are zeros.
        let chunks = k.max((depth + (shape.chunk() - 1)) / shape.chunk(), 1);
        let groups = (n + (shape.weights() - 1)) / shape.weights();
        let stages = k.shared::<u32>(shape.stages() * shape.stage_bytes() / 4);
        let activations = Activations::new(k, shape, (x, gamma), [k.ctaid_y() * shape.rows, m, depth], tile);
        let turn = Turn { of: shape.groups_at_once(), number: place[1] >> shape.across().ilog2() };
        let sums = (0..shape.rows.div_ceil(ACROSS)).map(|_| [0.0; 2].map(|zero| k.variable(zero))).collect();
        Self {
            k,
            shape,
            x,
            weights,
            out,
            addend,
            gamma,
            tile,
            extents,
            row_bytes,
            chunks,
            groups,
            stages,
            activations,
            warp,
            lane,
            place,
            turn,
            sums,
        }
    }

    fn cursor(&self) -> Cursor<'k> {
        let k = self.k;
        Cursor { group: k.variable(k.ctaid_x()), chunk: k.variable(0u32), stage: k.variable(0u32) }
    }

    /// Advances to the next chunk. Returns whether that belongs to other rows.
    fn advance(&self, cursor: &Cursor<'k>) -> Value<'k, bool> {
        let k = self.k;
        let next = cursor.chunk.get() + 1u32;
        let ends = k.eq(next, self.chunks);
        cursor.chunk.set(k.selp(0u32, next, ends));
        let group = cursor.group.get();
        cursor.group.set(k.selp(group + k.nctaid_x(), group, ends));
        let stage = cursor.stage.get() + self.shape.stage_bytes();
        let last = k.eq(stage, self.shape.stages() * self.shape.stage_bytes());
        cursor.stage.set(k.selp(0u32, stage, last));
        ends
    }

    /// The offset of a row of the weights in its 16-byte piece.
    fn split(&self, row: Word<'k>) -> Word<'k> {
        (row * self.row_bytes) & (PIECE - 1)
    }

    /// A row of a group; a missing one is read as the last, and not written.
    fn row(&self, group: Word<'k>, row: Word<'k>) -> Word<'k> {
        self.of_all(self.k.min(self.k.mad(group, self.shape.weights(), row), self.extents[1] - 1))
    }

    /// A row of the weights among those of all experts.
    fn of_all(&self, row: Word<'k>) -> Word<'k> {
        self.tile.map_or(row, |tile| tile.first_row() + row)
    }

    /// Starts copying a chunk, if there is one.
    fn copy(&self, cursor: &Cursor<'k>) {
        let k = self.k;
        let shape = self.shape;
        let rows = shape.weights() / (shape.threads() / WARP);
        let (group, chunk, stage) = (cursor.group.get(), cursor.chunk.get(), cursor.stage.get());
        k.if_(k.lt(group, self.groups), || {
            let before = chunk * shape.chunk_bytes();
            let of_lane = self.lane * PIECE;
            for i in 0..rows {
                let in_group = self.warp * rows + i;
                let row = self.row(group, in_group);
                let first = k.mad_wide(row, self.row_bytes, k.cvt_u64(before + of_lane)) & !u64::from(PIECE - 1);
                let from = self.weights.index_wide(first >> 2);
                let to = self.stages.byte_index(stage + k.mad(in_group, shape.row_bytes(), of_lane));
                let left = self.row_bytes + self.split(row) - before;
                let copies = |present: &dyn Fn(u32) -> Word<'k>| {
                    for turn in 0..shape.pieces().div_ceil(WARP) {
                        let bytes = turn * WARP * PIECE;
                        let (to, from, present) = (to.bytes(bytes as i32), from.bytes(bytes as i32), present(bytes));
                        let copy = || k.cp_async(to, from, Sixteen(()), present);
                        match shape.pieces() - turn * WARP {
                            rest if rest < WARP => k.if_(k.lt(self.lane, rest), copy),
                            _ => copy(),
                        }
                    }
                };
                // Copies with a variable number of bytes take five additional instructions.
                let all = k.ge(left, shape.pieces() * PIECE);
                k.if_else(
                    all,
                    || copies(&|_| k.constant(PIECE)),
                    || {
                        let left = k.bits_s32(left - of_lane);
                        copies(&|bytes| k.bits_u32(k.max(k.min(left - bytes as i32, PIECE as i32), 0)));
                    },
                );
            }
        });
        k.cp_async_commit_group::<u32>();
    }

    fn write(&self) {
        let k = self.k;
        let shape = self.shape;
        let depth = self.extents[2];
        let [here, ahead] = [self.cursor(), self.cursor()];
        if shape.overlaps {
            k.griddepcontrol_launch_dependents::<u32>();
        }
        for _ in 1..shape.stages() {
            self.copy(&ahead);
            self.advance(&ahead);
        }
        if shape.overlaps {
            k.griddepcontrol_wait::<u32>();
        }
        let turn = k.variable(0u32);
        // Chunks of x are kept if all of them fit.
        let always = k.gt(self.chunks, shape.slots());
        let is_wanted = |turn: Word<'k>| k.or(always, k.lt(turn, self.chunks));
        let slot = |turn: Word<'k>, chunk: Word<'k>| k.selp(turn & (shape.slots() - 1), chunk, always);
        let behind = |chunk: Word<'k>| {
            let next = chunk + 1u32;
            k.selp(0u32, next, k.eq(next, self.chunks))
        };
        let [zero, one] = [0u32, 1].map(|number| k.constant(number));
        self.activations.load(zero, k.le(zero, 0));
        self.activations.store(zero, k.le(zero, 0));
        self.activations.load(behind(zero), is_wanted(one));
        let step = self.warp & (STEPS - 1);
        let reader = self.activations.reader(self.place, step);
        let steps = (depth + (shape.step.elements - 1)) / shape.step.elements;
        k.while_(
            || k.lt(here.group, self.groups),
            || {
                k.cp_async_wait_group::<u32>(Groups(shape.stages() - 2));
                // The chunk has arrived, and no thread reads the one before it.
                k.bar_sync(0u32);
                self.copy(&ahead);
                self.advance(&ahead);
                let (number, chunk, group) = (turn.get(), here.chunk.get(), here.group.get());
                // The next chunk of x, and the loads of the one after it.
                let next = behind(chunk);
                k.if_(is_wanted(number + 1u32), || {
                    self.activations.store(slot(number + 1u32, next), k.lt(number + 1u32, self.chunks));
                });
                self.activations.load(behind(next), is_wanted(number + 2u32));
                k.if_(k.lt(k.mad(chunk, STEPS, step), steps), || {
                    self.multiply(&here, step, &self.activations.of_slot(&reader, slot(number, chunk)));
                });
                let ends = self.advance(&here);
                k.if_(ends, || self.finish(group));
                turn.set(number + 1u32);
            },
        );
    }

    /// Adds the products of a step.
    fn multiply(&self, cursor: &Cursor<'k>, step: Word<'k>, reader: &Reader<'k>) {
        let k = self.k;
        let shape = self.shape;
        let [g, t] = self.place;
        let group = cursor.group.get();
        let first = (self.warp / STEPS) * TALL + g;
        let rows = [0, TALL / 2].map(|below: u32| {
            let row = first + below;
            let bytes = cursor.stage.get() + k.mad(row, shape.row_bytes(), step * shape.step.bytes);
            let bytes = if shape.step.is_split { bytes + self.split(self.row(group, row)) } else { bytes };
            Row::read(k, shape.step.layout, self.stages, bytes, t, self.turn)
        });
        let zero = k.constant(0u32);
        // The groups of a set whose columns this lane has.
        let own: Vec<Value<'k, bool>> = match shape.groups_at_once() {
            1 => Vec::new(),
            groups => (0..groups).map(|number| k.eq(g >> (1 + shape.across().ilog2()), number)).collect(),
        };
        for set in 0..shape.sets() {
            for (four, sums) in (0..).zip(&self.sums) {
                let columns = self.activations.bytes(reader, set, four);
                let mut products = [0; 4].map(|zero| k.constant::<i32>(zero));
                for number in 0..shape.groups_at_once() {
                    let a = rows.each_ref().map(|row| &row.groups[(set * shape.groups_at_once() + number) as usize]);
                    let only =
                        |&bytes: &Word<'k>| own.get(number as usize).map_or(bytes, |&own| k.selp(bytes, zero, own));
                    let b: Vec<_> = columns.iter().map(only).collect();
                    products = self.products(a, &b, products);
                }
                let (unit, total) = self.activations.scale(reader, set, four);
                for (i, (row, sum)) in rows.iter().zip(sums).enumerate() {
                    let (scale, minimum) = row.scales[set as usize];
                    // Combines both bytes of x.
                    let product = k.cvt_rn_f32(k.mad(products[2 * i], 256, products[2 * i + 1]));
                    let product = match (minimum, total) {
                        (Some(minimum), Some(total)) => k.fma(scale, product, -(minimum * total)),
                        _ => scale * product,
                    };
                    sum.set(k.fma(unit, product, *sum));
                }
            }
        }
    }

    /// `a b + c` of a group.
    fn products(
        &self,
        [upper, lower]: [&Vec<Word<'k>>; 2],
        b: &[Word<'k>],
        c: [Value<'k, i32>; 4],
    ) -> [Value<'k, i32>; 4] {
        let k = self.k;
        let d: Fragment<'k, i32, 4> = k.fragment();
        match (b, self.shape.step.unsigned) {
            (&[first], true) => k.mma_bytes_m16n8k16::<u32>(d, [upper[0], lower[0]], [first], c),
            (&[first], false) => k.mma_bytes_m16n8k16::<i32>(d, [upper[0], lower[0]], [first], c),
            (b, unsigned) => {
                let (a, b) = ([upper[0], lower[0], upper[1], lower[1]], [b[0], b[1]]);
                match unsigned {
                    true => k.mma_m16n8k32::<u32>(d, a, b, c),
                    false => k.mma_m16n8k32::<i32>(d, a, b, c),
                }
            }
        }
        [0, 1, 2, 3].map(|i| d.get(i))
    }

    /// A sum with a row of x, divided by the root of the mean square for normalised rows; and whether it is valid:
    /// finite, with a mean square that neither exceeds the range of f32 nor has lost digits.
    fn normal(&self, sum: F32<'k>, row: Word<'k>) -> (F32<'k>, Value<'k, bool>) {
        let k = self.k;
        let finite = k.lt(k.abs(sum), f32::INFINITY);
        let Some(eps) = self.shape.norm else { return (sum, finite) };
        let mean = k.div(self.activations.squares(row), k.cvt_rn_f32(self.extents[2])) + eps.get();
        let ordinary = k.and(k.ge(mean, LEAST_MEAN), k.lt(mean, f32::INFINITY));
        (sum * k.rcp(k.sqrt(mean)), k.and(finite, ordinary))
    }

    /// Sums the results of a group of rows over the warps, one thread for each.
    fn finish(&self, group: Word<'k>) {
        let k = self.k;
        let shape = self.shape;
        let [g, t] = self.place;
        let [m, n, depth] = self.extents;
        let of_warp = TALL * shape.rows;
        let found = k.shared::<f32>(shape.threads() / WARP * of_warp);
        let own = found.index(k.mad(self.warp, of_warp, k.mad(g, shape.rows, t & (shape.across() - 1))));
        for (four, sums) in (0..).zip(&self.sums) {
            for (half, sum) in (0..).zip(sums) {
                let mut total = sum.get();
                let mut mask = shape.across();
                while mask < ACROSS {
                    total = total + k.shfl_bfly(total, mask, WARP - 1, u32::MAX);
                    mask *= 2;
                }
                let to = own.offset((half * TALL / 2 * shape.rows + four * ACROSS) as i32);
                k.st_if(k.lt(t, shape.across()), to, total);
                sum.set(0.0f32);
            }
        }
        self.activations.share_squares();
        k.bar_sync(0u32);
        let thread = k.tid_x();
        k.if_(k.lt(thread, shape.weights() * shape.rows), || {
            let (row, i) = (thread >> shape.rows.ilog2(), thread & (shape.rows - 1));
            let (i, of_x) = match self.tile {
                Some(tile) => {
                    let product = tile.product(i);
                    (product, tile.row(product))
                }
                None => [k.ctaid_y() * shape.rows + i; 2].into(),
            };
            let j = k.mad(group, shape.weights(), row);
            k.if_(k.and(k.lt(i, m), k.lt(j, n)), || {
                let (team, place) = (thread / of_warp, thread & (of_warp - 1));
                let first = found.index(k.mad(team, STEPS * of_warp, place));
                let of_step = |step: u32| k.ld(first.offset((step * of_warp) as i32));
                let Some(sum) = team::tree((0..STEPS).map(of_step).collect(), |a, b| a + b) else { return };
                let (sum, is_sound) = self.normal(sum, thread & (shape.rows - 1));
                let result = k.variable(sum);
                k.if_(k.not(is_sound), || {
                    let x = self.x.index_wide(k.mul_wide(of_x, depth));
                    let row = ExactRow { x, gamma: self.gamma, depth };
                    let exact = row.product(k, shape.format, self.weights, self.of_all(j));
                    let exact = shape.norm.map_or(exact, |eps| exact * row.inverse_rms(k, eps.get()));
                    result.set(k.cvt_rn_f32(exact));
                });
                let at = k.mad_wide(i, n, k.cvt_u64(j));
                let result = self.addend.map_or(result.get(), |addend| result.get() + k.ld(addend.index_wide(at)));
                k.st(self.out.index_wide(at), result);
            });
        });
    }
}

impl Kernel for WarpQuantMatmul {
    fn name(&self) -> String {
        let Shape { format, rows, overlaps, adds, norm, by_expert, .. } = self.shape;
        let parts =
            [(overlaps, "_overlapping"), (adds, "_adding"), (norm.is_some(), "_normed"), (by_expert, "_by_expert")];
        let parts: String = parts.into_iter().filter(|(is, _)| *is).map(|(_, part)| part).collect();
        format!("warp_quant_matmul_{}_{rows}{parts}", format.name())
    }

    fn reads_early(&self, _: Target) -> Option<Vec<usize>> {
        const WEIGHTS: usize = 1;
        self.shape.overlaps.then(|| vec![WEIGHTS])
    }

    fn blocks_at_once(&self, multiprocessors: u32) -> Option<u32> {
        Some(multiprocessors.max(1) * self.blocks_of_a_multiprocessor())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.shape.threads(), 1, 1], |k| self.write(k))
    }
}
