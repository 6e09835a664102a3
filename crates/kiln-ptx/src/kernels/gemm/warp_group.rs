//! The matrix product on the tensor cores of Hopper: `C = f(alpha A B + beta C + bias)`, of f16, bf16, f32 in TF32 or f32 in
//! two parts in TF32, with sums in f32.
//!
//! A block has one warp group that brings tiles of A and B into a ring of stages in shared memory, by copies that run by
//! themselves, and one or two that multiply them, by instructions that run by themselves. Sums leave through shared memory,
//! by copies again, while the next tile begins. Blocks stay and take tile after tile, in an order in which those under way
//! at once share rows and columns, so that most reads come from the second-level cache. Two blocks of a cluster may take
//! tiles one below the other and each bring half of the B that both need; or the blocks of a cluster share one tile, each
//! adding a part of the products along k, for matrices of few tiles.

use kiln_core::op::{Matmul, MatmulExtents};
use kiln_core::{Error, Result};

use super::epilogue::{Elements, Epilogue, Finish, always, pack};
use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::kernels::math::F32;
use crate::operands::{Blocks, Groups, RegisterCount};
use crate::{
    Argument, Bf16, Builder, F16, Kernel, Launch, Panels, Pointer, PtxKernel, PtxType, Running, Shared, Target,
    TensorParameter, Value,
};

/// Bytes of a stage along k: a row of a panel.
const DEPTH_BYTES: u32 = 128;
/// Threads of a warp group.
const GROUP: u32 = 128;
/// Rows of C of a warp in a block of sums.
const WARP_ROWS: u32 = 16;
/// Registers of a thread of the warp group that copies, and of those that multiply, where there are two of those: as many
/// as 384 threads with 168 each have together.
const REGISTERS: [u32; 2] = [40, 232];
/// Tiles, or pairs of tiles, one below the other that blocks take side by side, so that those under way at once cover about
/// a square. 4 and 16 were no faster on an H200.
const BAND: u32 = 8;
/// Shared memory of a block on Hopper.
const SHARED: u32 = 227 << 10;
/// Extents at most: coordinates of copies are signed.
const MOST: u64 = (1 << 31) - 1;
/// Steps of a product of planes after which its sums are added to others, to nearest: tensor cores round every sum towards
/// zero, so that the error of a long chain grows with its length.
const CHAIN: u32 = 4;
/// Bytes that strides are multiples of.
const ALIGN: u32 = 16;
/// Passes over k of a product of numbers in two parts, the least first: upper by lower, lower by upper, upper by upper.
const PASSES: u32 = 3;

/// What the blocks of a cluster share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Cluster {
    Alone,
    /// B, each of them with rows of its own.
    Columns(u32),
    /// A tile, each of them with a part of k.
    Tile(u32),
}

/// How C is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpGroupTile {
    /// Warp groups that multiply.
    groups: u32,
    /// 64-row blocks of each of them.
    blocks: u32,
    columns: u32,
    stages: u32,
    cluster: Cluster,
}

impl WarpGroupTile {
    /// Of `groups` (1 or 2) warp groups with `blocks` times 64 rows each, `columns` (16, 32, 64, 128 or 256) and as many
    /// stages as shared memory holds, up to `stages`.
    ///
    /// # Errors
    /// [`Error::Parameter`] when registers or shared memory do not hold it.
    pub fn new(groups: u32, blocks: u32, columns: u32, stages: u32) -> Result<Self> {
        let tile = Self { groups, blocks, columns, stages, cluster: Cluster::Alone };
        let sound = matches!(groups, 1 | 2) && matches!(columns, 16 | 32 | 64 | 128 | 256);
        let rest = SHARED.saturating_sub(tile.staging_bytes() + 1024);
        let tile = Self { stages: stages.min(rest / (DEPTH_BYTES * (tile.rows() + columns))), ..tile };
        if !sound || blocks == 0 || blocks * columns > 256 || tile.stages < 2 {
            return Err(Error::Parameter {
                op: "matmul",
                reason: format!("{groups} warp groups of {blocks} blocks of 64 by {columns} in {stages} stages"),
            });
        }
        Ok(tile)
    }

    /// The tile that takes the least time for these extents and elements of this type on a device of so many
    /// multiprocessors, by a simple count: of waves of tiles, of steps, and in a step of cycles, for the products or for what
    /// they read through the second-level cache, whichever are more. On an H200 its choices were within 3 % of the best of a
    /// dozen tiles, for squares of 1024 to 8192 and for 16 to 128 rows of matrices of 4096 x 4096 and 4096 x 14336.
    pub fn for_extents(extents: MatmulExtents, input: PtxType, multiprocessors: u32) -> Self {
        Self::least(extents, depth_of(input), multiprocessors, |_| true)
    }

    /// The same for matrices in planes.
    pub fn for_planes(extents: MatmulExtents, multiprocessors: u32) -> Self {
        Self::least(extents, depth_of(PtxType::F32), multiprocessors, Self::adds_chains)
    }

    fn least(extents: MatmulExtents, depth: u32, multiprocessors: u32, serves: impl Fn(Self) -> bool) -> Self {
        let alone = |groups, columns, stages| Self { groups, blocks: 1, columns, stages, cluster: Cluster::Alone };
        let large = alone(2, 256, 4);
        let tiles = [large, alone(2, 128, 6), alone(1, 128, 8), alone(2, 64, 8), alone(1, 64, 12)];
        let all = tiles.into_iter().chain([alone(2, 64, 8).split(2)]);
        // Neither idle warp groups nor parts of k without a step.
        let fits = |tile: &Self| {
            let (rows, steps) = (extents.m.div_ceil(64).max(1), extents.k.div_ceil(depth as usize));
            serves(*tile) && rows >= (tile.rows() / 64) as usize && steps >= tile.parts() as usize
        };
        let best = all.filter(fits).min_by_key(|tile| tile.cycles(extents, depth, multiprocessors));
        let best = best.unwrap_or(alone(1, 64, 12));
        // Sharing what is read pays where many tiles follow one another.
        let many = 8 * u64::from(multiprocessors);
        if best == large && best.units(extents) > many { best.pairs() } else { best }
    }

    /// Whether registers hold the sums twice.
    fn adds_chains(self) -> bool {
        self.blocks * self.columns <= 128
    }

    /// Tiles, or tiles and those below them that share columns.
    fn units(self, extents: MatmulExtents) -> u64 {
        let along = |extent: usize, tile: u32| (extent as u64).div_ceil(tile.into());
        let tiles = along(extents.m, self.rows() * self.sharing()).saturating_mul(along(extents.n, self.columns));
        tiles.saturating_mul(extents.batch as u64)
    }

    /// About how long a product takes.
    fn cycles(self, extents: MatmulExtents, depth: u32, multiprocessors: u32) -> u64 {
        /// Bytes along k by rows and columns that a multiprocessor multiplies in a cycle.
        const PRODUCTS: u64 = 4096;
        /// Bytes that it reads in a cycle: of what there is, a little less.
        const BYTES: u64 = 63;
        /// What it takes the blocks of a cluster to add up.
        const ADDING: u64 = 2000;
        let [rows, columns, parts] = [self.rows(), self.columns, self.parts()].map(u64::from);
        let bytes = u64::from(DEPTH_BYTES);
        let step = (rows * columns * bytes / PRODUCTS).max((rows + columns) * bytes / BYTES);
        let steps = (extents.k as u64).div_ceil(u64::from(depth) * parts);
        let waves = self.units(extents).div_ceil((u64::from(multiprocessors) / u64::from(self.cluster())).max(1));
        // What the last wave writes, nothing hides.
        let last = rows * columns / 16 + if parts > 1 { ADDING } else { 0 };
        waves.saturating_mul(steps).saturating_mul(step).saturating_add(last)
    }

    /// Two blocks one below the other share their B.
    pub fn pairs(self) -> Self {
        Self { cluster: Cluster::Columns(2), ..self }
    }

    /// So many blocks share a tile, each with a part of k.
    pub fn split(self, blocks: u32) -> Self {
        Self { cluster: Cluster::Tile(blocks), ..self }
    }

    /// Rows of a tile.
    pub fn rows(self) -> u32 {
        64 * self.blocks * self.groups
    }

    /// Columns of a tile.
    pub fn columns(self) -> u32 {
        self.columns
    }

    /// Blocks of a cluster.
    pub fn cluster(self) -> u32 {
        match self.cluster {
            Cluster::Alone => 1,
            Cluster::Columns(blocks) | Cluster::Tile(blocks) => blocks,
        }
    }

    /// Blocks that share columns.
    fn sharing(self) -> u32 {
        if let Cluster::Columns(blocks) = self.cluster { blocks } else { 1 }
    }

    /// Parts that k is cut into.
    fn parts(self) -> u32 {
        if let Cluster::Tile(blocks) = self.cluster { blocks } else { 1 }
    }

    fn threads(self) -> u32 {
        GROUP * (1 + self.groups)
    }

    /// Whether the warp groups that multiply need registers of the one that copies. Where they do not, the assembler gives
    /// a thread too few for a kernel that moves any.
    fn moves_registers(self) -> bool {
        self.groups == 2 && self.blocks * self.columns > 128
    }

    /// Every warp has two places for 16 rows of a panel.
    fn staging_bytes(self) -> u32 {
        4 * self.groups * 2 * WARP_ROWS * 128
    }
}

/// Products of a stage along k.
fn depth_of(input: PtxType) -> u32 {
    DEPTH_BYTES / input.bytes()
}

/// The matrix product on warp groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpGroupGemm {
    operation: Matmul,
    input: PtxType,
    output: PtxType,
    tile: WarpGroupTile,
    epilogue: Epilogue,
    /// 1, or [`PASSES`] over planes.
    passes: u32,
}

impl WarpGroupGemm {
    /// Of matrices of `input` into one of `output`, each [`PtxType::F16`], [`PtxType::Bf16`] or [`PtxType::F32`]. Of elements
    /// of f32 the upper 19 bits are multiplied, that is in TF32 and rounded towards zero. Tensor cores round their sums
    /// towards zero as well, so that the error grows with k: of normal numbers in f16 it was on an H200 6.5e-7 of the norm of
    /// an f32 C at k = 512, 4.9e-6 at 4096 and 1.9e-5 at 16 384, and twice that in TF32.
    ///
    /// # Errors
    /// [`Error::Parameter`] for other types; for inputs of f32 that are not stored with k innermost both, A as it is and B
    /// transposed; and for tiles whose parts make no whole copies or products.
    pub fn new(
        operation: Matmul,
        [input, output]: [PtxType; 2],
        tile: WarpGroupTile,
        epilogue: Epilogue,
    ) -> Result<Self> {
        let wrong = |reason| Err(Error::Parameter { op: "matmul", reason });
        let float = |ty| matches!(ty, PtxType::F16 | PtxType::Bf16 | PtxType::F32);
        if !float(input) || !float(output) {
            return wrong(format!("{output:?} from {input:?} on warp groups"));
        }
        if input == PtxType::F32 && (operation.transpose_a || !operation.transpose_b || tile.columns < 64) {
            return wrong(format!("{operation:?} in TF32, {} columns at once", tile.columns));
        }
        // What lies across k is brought in panels.
        let whole = |extent: u32, across: bool| !across || extent.is_multiple_of(depth_of(input));
        let parts_of_b = tile.columns / tile.sharing();
        if !whole(parts_of_b, !operation.transpose_b) || !parts_of_b.is_multiple_of(8) {
            return wrong(format!("{parts_of_b} columns of B at once"));
        }
        if !(tile.blocks * tile.columns / 8).is_multiple_of(tile.parts()) {
            return wrong(format!("tiles in {} parts", tile.parts()));
        }
        Ok(Self { operation, input, output, tile, epilogue, passes: 1 })
    }

    /// Of matrices of f32 in two parts, as [`Tf32Planes`](super::Tf32Planes) writes them, into one of f32. Of the four
    /// products of parts the least is left out, below 2⁻²² of the magnitudes that are multiplied, and short chains are added
    /// to nearest: on an H200 the error was 3.4e-7 of the norm of C at k = 1001, where one chain had 2.4e-6. An infinite
    /// element makes NaN of what it is multiplied into.
    ///
    /// # Errors
    /// [`Error::Parameter`] for tiles of less than 64 columns or with more than 64 by 128 elements to a warp group, and as for
    /// [`WarpGroupGemm::new`].
    pub fn of_planes(tile: WarpGroupTile, epilogue: Epilogue) -> Result<Self> {
        if !tile.adds_chains() {
            let reason = format!("{} rows of {} columns in a warp group, in chains", 64 * tile.blocks, tile.columns);
            return Err(Error::Parameter { op: "matmul", reason });
        }
        let operation = Matmul { transpose_a: false, transpose_b: true };
        let one = Self::new(operation, [PtxType::F32; 2], tile, epilogue)?;
        Ok(Self { passes: PASSES, ..one })
    }

    /// Matrices that lie beside one another for each product.
    fn planes(&self) -> u32 {
        if self.passes == 1 { 1 } else { 2 }
    }

    /// A, or B: rows are along k where it is not stored with k innermost.
    fn across(&self) -> [bool; 2] {
        [self.operation.transpose_a, !self.operation.transpose_b]
    }

    /// Tiles of A and of what a block brings of B.
    fn panels(&self) -> [Panels; 2] {
        let extents = [self.tile.rows(), self.tile.columns / self.tile.sharing()];
        [0, 1].map(|i: usize| match self.across()[i] {
            true => Panels::new(self.input, depth_of(self.input), extents[i]),
            false => Panels::new(self.input, extents[i], depth_of(self.input)),
        })
    }

    /// What a warp stores at once.
    fn staging(&self) -> Panels {
        Panels::new(self.output, WARP_ROWS, 128 / self.output.bytes())
    }

    /// The launch for these extents on a device of so many multiprocessors. Buffers: A, B, C, and the bias if there is one;
    /// C is read only where the epilogue adds it.
    ///
    /// # Errors
    /// [`Error::Shape`] where a row is no multiple of 16 bytes, since copies take no others: the innermost extents of A, B
    /// and C are multiples of 8, or of 4 for f32; of planes k may be any. The same where an extent is 0, or where k has fewer
    /// steps of 128 bytes than the tile has parts. [`Error::Limit`](kiln_core::Error::Limit) beyond 2³¹ - 1 for an extent, 65 535 products or 2²⁷
    /// tiles.
    pub fn launch(&self, extents: MatmulExtents, [alpha, beta]: [f32; 2], multiprocessors: u32) -> Result<Launch> {
        let MatmulExtents { batch, shared_b, m, k, n } = extents;
        let [across_a, across_b] = self.across();
        // Planes are written with whole pieces.
        let k = if self.passes == 1 { k } else { super::planes::pitch(k) };
        let inner =
            [(if across_a { m } else { k }, self.input), (if across_b { n } else { k }, self.input), (n, self.output)];
        let steps = k.div_ceil(depth_of(self.input) as usize);
        let aligned = inner.iter().all(|(extent, ty)| extent.is_multiple_of((ALIGN / ty.bytes()) as usize));
        if !aligned || m == 0 || n == 0 || batch == 0 || steps < self.tile.parts().max(1) as usize {
            return Err(Error::Shape {
                op: "matmul",
                reason: format!("{}: no product of {m} x {k} and {k} x {n}", self.name()),
            });
        }
        let [rows, columns] = [("m", m), ("n", n)].map(|(what, asked)| extent(what, asked, MOST));
        let (rows, columns, _) = (rows?, columns?, extent("k", k, MOST / u64::from(PASSES))?);
        let batch = extent("products", batch, MAX_GRID_YZ)?;
        let tile = self.tile;
        let down = rows.div_ceil(tile.rows() * tile.sharing());
        let along = columns.div_ceil(tile.columns);
        let units = extent("tiles", tile.units(extents) as usize, MAX_GRID_X / 16)?;
        let clusters = if tile.parts() > 1 { units } else { units.min((multiprocessors / tile.cluster()).max(1)) };
        let [m, k, n, batch] = [m as u64, k as u64, n as u64, u64::from(batch)];
        let planes = u64::from(self.planes());
        // Rows of A and columns of B that are not there only reach what is not there of C.
        let [a, b] = self.panels();
        let a = if across_a { a } else { a.clipped(rows) };
        let b = if across_b { b } else { b.clipped(columns) };
        let bytes = a.bytes() + b.bytes() * tile.sharing();
        let tensor = |buffer: usize, panels: Panels, [rows, columns]: [u64; 2], batch| {
            Argument::Tensor(panels.tensor_map(buffer, [columns, rows, batch], [columns, rows * columns]))
        };
        let mut arguments = vec![
            tensor(0, a, if across_a { [k, m] } else { [m, k] }, planes * batch),
            tensor(1, b, if across_b { [k, n] } else { [n, k] }, planes * if shared_b { 1 } else { batch }),
        ];
        if self.stores_by_copies() {
            arguments.push(tensor(2, self.staging(), [m, n], batch));
        }
        if self.addresses_c() {
            arguments.push(Argument::Buffer(2));
        }
        if self.epilogue.has_bias() {
            arguments.push(Argument::Buffer(3));
        }
        let words = [rows, columns, steps as u32, down, along, units, u32::from(!shared_b), bytes];
        arguments.extend(words.map(Argument::U32));
        arguments.push(Argument::F32(alpha));
        if self.epilogue.reads_c() {
            arguments.push(Argument::F32(beta));
        }
        Ok(Launch { grid: [clusters * tile.cluster(), 1, 1], arguments })
    }

    /// Whether C is written by copies, which write whole panels.
    fn stores_by_copies(&self) -> bool {
        self.tile.parts() == 1 && self.tile.columns.is_multiple_of(self.staging().width())
    }

    /// Whether threads go to C themselves.
    fn addresses_c(&self) -> bool {
        self.epilogue.reads_c() || !self.stores_by_copies()
    }

    fn write(&self, k: &Builder) {
        let tile = self.tile;
        let [a, b] = ["a", "b"].map(|name| k.tensor(name));
        let stores = self.stores_by_copies().then(|| k.tensor("out"));
        let c = self.addresses_c().then(|| k.buffer::<u32>("c"));
        let bias = self.epilogue.has_bias().then(|| k.buffer::<f32>("bias"));
        let [m, n, steps, down, along, units, batched_b, stage_bytes] =
            ["m", "n", "steps", "down", "along", "units", "batched_b", "stage_bytes"]
                .map(|name| k.parameter::<u32>(name));
        let alpha = k.parameter::<f32>("alpha");
        let beta = self.epilogue.reads_c().then(|| k.parameter::<f32>("beta"));
        k.cluster(tile.cluster());

        let panels = self.panels();
        let sharing = tile.sharing();
        let bytes = [panels[0].bytes(), panels[1].bytes() * sharing];
        let stages = bytes.map(|bytes| k.shared_bytes(tile.stages * bytes, Panels::ALIGN));
        let staging = k.shared_bytes(tile.staging_bytes(), Panels::ALIGN);
        let pipeline = k.pipeline(tile.stages);
        let stage_of = |stage: Value<'_, u32>| [0, 1].map(|i: usize| stages[i].byte_index(stage * bytes[i]));

        let thread = k.tid_x();
        let warp = k.shfl_idx(thread >> 5, 0, 31, u32::MAX);
        let rank = if tile.cluster() > 1 { k.cluster_ctarank() } else { k.constant(0u32) };
        k.if_(k.eq(thread, 0), || {
            pipeline.initialise(k, 4 * tile.groups * sharing);
            [Some(a), Some(b), stores].into_iter().flatten().for_each(|map| k.prefetch_tensormap::<u32>(map));
        });
        let meet = || match tile.cluster() {
            1 => k.bar_sync(0u32),
            _ => {
                k.barrier_cluster_arrive::<u32>();
                k.barrier_cluster_wait::<u32>();
            }
        };
        meet();

        let clusters = k.nctaid_x() / tile.cluster();
        let first_unit = k.ctaid_x() / tile.cluster();
        let order = Order { along, down };
        // The steps of this block.
        let all_steps = if self.passes == 1 { steps } else { steps * self.passes };
        let [begin, end] = match tile.parts() {
            1 => [k.constant(0u32), all_steps],
            parts => [rank, rank + 1].map(|rank| all_steps * rank / parts),
        };
        let place = |unit| {
            let [batch, down, along] = order.place(k, unit);
            let down = if sharing > 1 { down * sharing + rank } else { down };
            [batch, down * tile.rows(), along * tile.columns]
        };
        let produce = || {
            let copies = Copies { k, panels, across: self.across(), maps: [a, b], sharing, rank };
            let producer = pipeline.producer(k);
            k.for_(first_unit, units, clusters, |unit| {
                let [batch, row, column] = place(unit);
                let batches = [batch, batch * batched_b];
                k.for_(begin, end, 1, |step| {
                    let (stage, full) = producer.acquire(k, stage_bytes);
                    let (step, batches) = match self.passes {
                        1 => (step, batches),
                        _ => pass(k, step, steps, batches),
                    };
                    let depth = step * depth_of(self.input);
                    copies.load(stage_of(stage), full, [row, column], depth, batches);
                    producer.advance(k);
                });
            });
        };
        let consume = || {
            let lane = thread & 31;
            let group = (warp >> 2) - 1;
            let consumer = pipeline.consumer(k);
            let empty = (sharing > 1).then(|| pipeline.empty_of_block(lane & (sharing - 1)));
            let release = |stage, p| {
                k.if_(k.and(k.lt(lane, sharing), p), || match empty {
                    None => consumer.release(k, stage),
                    Some(empty) => consumer.release_of_block(k, empty, stage),
                });
            };
            let always = always(k, lane);
            // 64 rows of A are as many bytes whichever way it is stored.
            let block_bytes = 64 * DEPTH_BYTES;
            let from = [stages[0].byte_index(group * (tile.blocks * block_bytes)), stages[1]];
            let operands = [0, 1].map(|i: usize| k.descriptor(from[i], panels[i], self.across()[i]));
            let staging = staging.byte_index((warp - 4) * (2 * self.staging().panel_bytes()));
            // Sums of the products of some steps.
            let chain = |begin: Value<'_, u32>, end| {
                let sums = k.sums(tile.blocks, tile.columns).start();
                let last = k.variable(0u32);
                k.for_(begin, end, 1, |step| {
                    let stage = consumer.acquire(k);
                    let later = k.gt(step, begin);
                    let [a, b] = [0, 1].map(|i: usize| operands[i].byte_index(stage * bytes[i]));
                    sums.group(|| {
                        for kk in 0..DEPTH_BYTES / Running::DEPTH_BYTES {
                            let adds = if kk == 0 { later } else { always };
                            for block in 0..tile.blocks {
                                let operands = [a.bytes(block * block_bytes), b];
                                match self.input {
                                    PtxType::F16 => sums.multiply::<F16>(block, operands, kk, adds),
                                    PtxType::F32 => sums.multiply_tf32(block, operands, kk, adds),
                                    _ => sums.multiply::<Bf16>(block, operands, kk, adds),
                                }
                            }
                        }
                    });
                    // The products of the stage before are done: it may be filled again while these run.
                    sums.wait(1);
                    release(last.get(), later);
                    last.set(stage);
                    consumer.advance(k);
                });
                let sums = sums.finish();
                release(last.get(), always);
                (0..tile.blocks).flat_map(|block| sums.values(block)).collect::<Vec<_>>()
            };
            k.for_(first_unit, units, clusters, |unit| {
                let values = match self.passes {
                    1 => chain(begin, end),
                    _ => {
                        let totals: Vec<_> = (0..tile.blocks * tile.columns / 2).map(|_| k.variable(0.0f32)).collect();
                        k.for_(begin, end, CHAIN, |first| {
                            let sums = chain(first, k.min(first + CHAIN, end));
                            totals.iter().zip(sums).for_each(|(total, sum)| total.set(k.add(*total, sum)));
                        });
                        totals.iter().map(|total| total.get()).collect()
                    }
                };
                let [batch, row, column] = place(unit);
                let elements = c.map(|c| {
                    let element = k.cvt_u64(batch) * k.mul_wide(m, n);
                    let at = c.index_wide(k.shr(element, u32::from(self.output != PtxType::F32)));
                    Elements { at, ty: self.output, columns: n }
                });
                let (epilogue, output) = (self.epilogue, self.output);
                let c = beta.zip(elements);
                let finish = Finish { epilogue, output, target: Target::Sm90a, alpha, c, bias };
                let row = row + group * (64 * tile.blocks) + (warp & 3) * WARP_ROWS;
                let mine = [row + (lane >> 2), column + ((lane & 3) << 1)];
                let out = Out { k, tile, finish, extents: [m, n], first: [row, column], mine };
                match (stores, elements) {
                    (Some(stores), _) => out.store(&values, self.staging(), staging, stores, batch, lane),
                    (None, Some(c)) if tile.parts() == 1 => {
                        for (four, v) in (0u32..).zip(values.chunks_exact(4)) {
                            out.direct(c, k.constant(four), [v[0], v[1], v[2], v[3]]);
                        }
                    }
                    (None, Some(c)) => out.reduce(&values, stages[0], [rank, thread - GROUP], c, &meet),
                    (None, None) => unreachable!("C has an address where no copies store it"),
                }
            });
            if stores.is_some() {
                k.cp_async_bulk_wait_group_read::<u32>(Groups(0));
            }
        };
        k.if_else(
            k.lt(warp, 4),
            || {
                if tile.moves_registers() {
                    k.setmaxnreg_dec::<u32>(RegisterCount(REGISTERS[0]));
                }
                k.if_(k.eq(thread, 0), produce);
                if tile.parts() > 1 {
                    meet();
                }
            },
            || {
                if tile.moves_registers() {
                    k.setmaxnreg_inc::<u32>(RegisterCount(REGISTERS[1]));
                }
                consume();
            },
        );
        if tile.cluster() > 1 {
            // No block ends while another reads its shared memory or arrives at its barriers.
            meet();
        }
    }
}

impl Kernel for WarpGroupGemm {
    fn name(&self) -> String {
        let stored = |transposed: bool| if transposed { 't' } else { 'n' };
        let ty = |ty| match ty {
            PtxType::F16 => "f16",
            PtxType::Bf16 => "bf16",
            _ => "f32",
        };
        let Matmul { transpose_a, transpose_b } = self.operation;
        let tile = self.tile;
        let cluster = match tile.cluster {
            Cluster::Alone => String::new(),
            Cluster::Columns(blocks) => format!("_pairs{blocks}"),
            Cluster::Tile(blocks) => format!("_split{blocks}"),
        };
        format!(
            "gemm_{}{}_{}_{}_{}x{}x{}x{}_{}{cluster}{}",
            stored(transpose_a),
            stored(transpose_b),
            match (self.passes, self.input) {
                (1, PtxType::F32) => "tf32",
                (1, input) => ty(input),
                _ => "3xtf32",
            },
            ty(self.output),
            tile.groups,
            64 * tile.blocks,
            tile.columns,
            depth_of(self.input),
            tile.stages,
            self.epilogue.suffix()
        )
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(&self.name(), [self.tile.threads(), 1, 1], |k| self.write(k))
    }
}

/// The order of tiles: bands of [`BAND`] tiles one below the other, each gone through column by column.
struct Order<'k> {
    along: Value<'k, u32>,
    down: Value<'k, u32>,
}

impl<'k> Order<'k> {
    /// The product and the tile of a number.
    fn place(&self, k: &'k Builder, unit: Value<'k, u32>) -> [Value<'k, u32>; 3] {
        let tiles = self.down * self.along;
        let (batch, tile) = (unit / tiles, unit % tiles);
        let band = self.along * BAND;
        let (number, rest) = (tile / band, tile % band);
        let first = number * BAND;
        let height = k.min(BAND, self.down - first);
        [batch, first + rest % height, rest / height]
    }
}

/// The step in a pass of a step of all passes, and the planes of A and B that it multiplies.
fn pass<'k>(
    k: &'k Builder,
    step: Value<'k, u32>,
    steps: Value<'k, u32>,
    [a, b]: [Value<'k, u32>; 2],
) -> (Value<'k, u32>, [Value<'k, u32>; 2]) {
    let number = step / steps;
    let lower = |pass: u32| k.selp(1u32, 0u32, k.eq(number, pass));
    (step % steps, [a * 2 + lower(1), b * 2 + lower(0)])
}

/// How the thread that copies fills stages.
struct Copies<'k> {
    k: &'k Builder,
    panels: [Panels; 2],
    across: [bool; 2],
    maps: [TensorParameter<'k>; 2],
    /// Blocks that share what they bring of B, and which of them this is.
    sharing: u32,
    rank: Value<'k, u32>,
}

impl<'k> Copies<'k> {
    /// Brings the tiles of A and B that begin at a row, at a column and at a k, of these products.
    fn load(
        &self,
        stages: [Pointer<'k, Shared, u32>; 2],
        full: Pointer<'k, Shared, u64>,
        [row, column]: [Value<'k, u32>; 2],
        depth: Value<'k, u32>,
        batches: [Value<'k, u32>; 2],
    ) {
        let [to_a, to_b] = stages;
        self.bring(0, to_a, full, row, depth, batches[0]);
        if self.sharing == 1 {
            return self.bring(1, to_b, full, column, depth, batches[1]);
        }
        let bytes = self.panels[1].bytes();
        let columns = bytes / DEPTH_BYTES;
        self.bring(1, to_b.byte_index(self.rank * bytes), full, column + self.rank * columns, depth, batches[1]);
    }

    fn bring(
        &self,
        operand: usize,
        to: Pointer<'k, Shared, u32>,
        full: Pointer<'k, Shared, u64>,
        outside: Value<'k, u32>,
        depth: Value<'k, u32>,
        batch: Value<'k, u32>,
    ) {
        let (k, panels) = (self.k, self.panels[operand]);
        for panel in 0..panels.count() {
            let to = to.bytes((panel * panels.panel_bytes()) as i32);
            let along = panel * panels.width();
            let coordinates = match self.across[operand] {
                true => [outside + along, depth, batch],
                false => [depth + along, outside, batch],
            };
            let from = self.maps[operand].at(coordinates);
            if operand == 1 && self.sharing > 1 {
                k.cp_async_bulk_tensor_multicast::<u32>(to, from, full, Blocks((1 << self.sharing) - 1));
            } else {
                k.cp_async_bulk_tensor_load::<u32>(to, from, full);
            }
        }
    }
}

/// How a thread that multiplies writes its part of a tile.
struct Out<'k> {
    k: &'k Builder,
    tile: WarpGroupTile,
    finish: Finish<'k>,
    /// m and n.
    extents: [Value<'k, u32>; 2],
    /// The rows of the warp and the columns of the tile begin here.
    first: [Value<'k, u32>; 2],
    /// Row and column of the first value of the thread.
    mine: [Value<'k, u32>; 2],
}

impl<'k> Out<'k> {
    /// Finishes the values of 8 columns of a block: two beside one another in each of two rows.
    fn finish(&self, sums: [F32<'k>; 4], row: Value<'k, u32>, column: Value<'k, u32>) -> [[F32<'k>; 2]; 2] {
        let k = self.k;
        let [m, n] = self.extents;
        let there = k.lt(column, n);
        let bias = self.finish.bias(there, column);
        [0, 1].map(|i: usize| {
            let row = row + i as u32 * (WARP_ROWS / 2);
            let there = k.and(there, k.lt(row, m));
            self.finish.apply(there, [row, column], bias, [sums[2 * i], sums[2 * i + 1]])
        })
    }

    /// By copies, a panel at a time.
    fn store(
        &self,
        values: &[F32<'k>],
        panels: Panels,
        staging: Pointer<'k, Shared, u32>,
        stores: TensorParameter<'k>,
        batch: Value<'k, u32>,
        lane: Value<'k, u32>,
    ) {
        let (k, tile) = (self.k, self.tile);
        let half = panels.width() == 64;
        // Where this lane writes in a panel: rows of 8 columns for `stmatrix`, or pairs.
        let places: Vec<_> = (0..4u32)
            .map(|i| match half {
                true => panels.piece(k, staging, lane & 15, (lane >> 4) + 2 * i),
                false => {
                    let pair = lane & 3;
                    panels.piece(k, staging, lane >> 2, (pair >> 1) + 2 * i).byte_index((pair & 1) << 3)
                }
            })
            .collect();
        let chunks = tile.columns / panels.width();
        // With an even number of panels to a tile, the two places are taken in turns.
        let pending = 1 - (tile.blocks * chunks) % 2;
        for block in 0..tile.blocks {
            let values = &values[(block * tile.columns / 2) as usize..];
            for chunk in 0..chunks {
                let place = (block * chunks + chunk) % 2 * panels.panel_bytes();
                k.if_(k.eq(lane, 0), || k.cp_async_bulk_wait_group_read::<u32>(Groups(pending)));
                k.bar_warp_sync(u32::MAX);
                let first = chunk * panels.width();
                let finished: Vec<_> = (0..panels.width() / 8)
                    .map(|j| {
                        let at = ((first / 8 + j) * 4) as usize;
                        let sums = [values[at], values[at + 1], values[at + 2], values[at + 3]];
                        self.finish(sums, self.mine[0] + block * 64, self.mine[1] + (first + 8 * j))
                    })
                    .collect();
                for (i, &to) in places.iter().enumerate() {
                    let to = to.bytes(place as i32);
                    if half {
                        let eights = [finished[2 * i], finished[2 * i + 1]].as_flattened().to_vec();
                        let packed: Vec<_> = eights.iter().map(|&pair| pack(k, self.finish.output, pair)).collect();
                        k.stmatrix_x4::<u32>(to, k.gather([packed[0], packed[1], packed[2], packed[3]]));
                    } else {
                        let [upper, lower] = finished[i];
                        k.st_v(to.cast::<f32>(), upper);
                        k.st_v(to.cast::<f32>().bytes((WARP_ROWS / 2 * 128) as i32), lower);
                    }
                }
                k.fence_proxy_async::<u32>();
                k.bar_warp_sync(u32::MAX);
                k.if_(k.eq(lane, 0), || {
                    let to = stores.at([self.first[1] + first, self.first[0] + block * 64, batch]);
                    k.cp_async_bulk_tensor_store::<u32>(to, staging.bytes(place as i32));
                    k.cp_async_bulk_commit_group::<u32>();
                });
            }
        }
    }

    /// By the threads themselves; values in fours, beginning with the one of this number.
    fn direct(&self, c: Elements<'k>, four: Value<'k, u32>, sums: [F32<'k>; 4]) {
        let k = self.k;
        let [m, n] = self.extents;
        let eights = self.tile.columns / 8;
        let column = self.mine[1] + ((four & (eights - 1)) << 3);
        let row = self.mine[0] + ((four >> eights.ilog2()) << 6);
        let values = self.finish(sums, row, column);
        for (i, values) in (0..).zip(values) {
            let row = row + i * (WARP_ROWS / 2);
            c.store(k.and(k.lt(column, n), k.lt(row, m)), row, column, values);
        }
    }

    /// Adds what the blocks of the cluster have of the tile, each of them a part of it, and stores that.
    fn reduce(
        &self,
        values: &[F32<'k>],
        scratch: Pointer<'k, Shared, u32>,
        [rank, thread]: [Value<'k, u32>; 2],
        c: Elements<'k>,
        meet: &dyn Fn(),
    ) {
        let (k, tile) = (self.k, self.tile);
        let threads = GROUP * tile.groups;
        let scratch = scratch.cast::<f32>().byte_index(thread << 4);
        // The other warp group may still multiply what is there.
        k.bar_sync_some(1u32, threads);
        for (four, values) in (0..).zip(values.chunks_exact(4)) {
            let to = scratch.bytes(four * threads as i32 * 16);
            k.st_v(to, [values[0], values[1], values[2], values[3]]);
        }
        meet();
        let share = values.len() as u32 / 4 / tile.parts();
        let first = rank * share;
        let parts: Vec<_> =
            (0..tile.parts()).map(|part| scratch.of_block(part).byte_index(first * (threads * 16))).collect();
        for four in 0..share {
            let parts = parts.iter().map(|part| k.ld_v::<_, _, 4>(part.bytes((four * threads * 16) as i32)));
            let sums = parts.reduce(|a, b| [0, 1, 2, 3].map(|i: usize| a[i] + b[i]));
            self.direct(c, first + four, sums.expect("a tile has parts"));
        }
    }
}
