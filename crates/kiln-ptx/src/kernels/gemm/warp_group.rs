//! The matrix product of f16 and bf16 on the tensor cores of Hopper: `C = f(alpha A B + beta C + bias)`, sums in f32.
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
    Argument, Bf16, Builder, F16, Kernel, Launch, Panels, Pointer, PtxKernel, PtxType, Running, Shared, Sums, Target,
    TensorParameter, Value,
};

/// Products of a stage along k: a row of 128 bytes.
const DEPTH: u32 = 64;
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
/// Elements of 16 bits in 16 bytes, which strides are multiples of.
const ALIGN: usize = 8;

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
        let tile = Self { stages: stages.min(rest / (DEPTH * 2 * (tile.rows() + columns))), ..tile };
        if !sound || blocks == 0 || blocks * columns > 256 || tile.stages < 2 {
            return Err(Error::Parameter {
                op: "matmul",
                reason: format!("{groups} warp groups of {blocks} blocks of 64 by {columns} in {stages} stages"),
            });
        }
        Ok(tile)
    }

    /// The tile that takes the least time for these extents on a device of so many multiprocessors, by a simple count: of
    /// waves of tiles, of steps, and in a step of cycles, for the products or for what they read through the second-level
    /// cache, whichever are more. On an H200 its choices were within 3 % of the best of a dozen tiles, for squares of
    /// 1024 to 8192 and for 16 to 128 rows of matrices of 4096 x 4096 and 4096 x 14336.
    pub fn for_extents(extents: MatmulExtents, multiprocessors: u32) -> Self {
        let alone = |groups, columns, stages| Self { groups, blocks: 1, columns, stages, cluster: Cluster::Alone };
        let large = alone(2, 256, 4);
        let tiles = [large, alone(2, 128, 6), alone(1, 128, 8), alone(2, 64, 8), alone(1, 64, 12)];
        let all = tiles.into_iter().chain([alone(2, 64, 8).split(2)]);
        // Neither idle warp groups nor parts of k without a step.
        let fits = |tile: &Self| {
            let (rows, steps) = (extents.m.div_ceil(64).max(1), extents.k.div_ceil(DEPTH as usize));
            rows >= (tile.rows() / 64) as usize && steps >= tile.parts() as usize
        };
        let best =
            all.filter(fits).min_by_key(|tile| tile.cycles(extents, multiprocessors)).unwrap_or(alone(1, 64, 12));
        // Sharing what is read pays where many tiles follow one another.
        let many = 8 * u64::from(multiprocessors);
        if best == large && best.units(extents) > many { best.pairs() } else { best }
    }

    /// Tiles, or tiles and those below them that share columns.
    fn units(self, extents: MatmulExtents) -> u64 {
        let along = |extent: usize, tile: u32| (extent as u64).div_ceil(tile.into());
        let tiles = along(extents.m, self.rows() * self.sharing()).saturating_mul(along(extents.n, self.columns));
        tiles.saturating_mul(extents.batch as u64)
    }

    /// About how long a product takes.
    fn cycles(self, extents: MatmulExtents, multiprocessors: u32) -> u64 {
        /// Multiply-adds of a multiprocessor in a cycle.
        const PRODUCTS: u64 = 2048;
        /// Bytes that it reads in a cycle: of what there is, a little less.
        const BYTES: u64 = 63;
        /// What it takes the blocks of a cluster to add up.
        const ADDING: u64 = 2000;
        let [rows, columns, parts] = [self.rows(), self.columns, self.parts()].map(u64::from);
        let depth = u64::from(DEPTH);
        let products = rows * columns * depth / PRODUCTS;
        let step = products.max((rows + columns) * depth * 2 / BYTES);
        let steps = (extents.k as u64).div_ceil(depth * parts);
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

/// The matrix product on warp groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpGroupGemm {
    operation: Matmul,
    input: PtxType,
    output: PtxType,
    tile: WarpGroupTile,
    epilogue: Epilogue,
}

impl WarpGroupGemm {
    /// Of matrices of `input`, [`PtxType::F16`] or [`PtxType::Bf16`], into one of `output`, those or [`PtxType::F32`].
    ///
    /// # Errors
    /// [`Error::Parameter`] for other types.
    pub fn new(
        operation: Matmul,
        [input, output]: [PtxType; 2],
        tile: WarpGroupTile,
        epilogue: Epilogue,
    ) -> Result<Self> {
        let half = |ty| matches!(ty, PtxType::F16 | PtxType::Bf16);
        if !half(input) || !(half(output) || output == PtxType::F32) {
            return Err(Error::Parameter { op: "matmul", reason: format!("{output:?} from {input:?} on warp groups") });
        }
        // What lies across k is brought in panels.
        let whole = |extent: u32, across: bool| !across || extent.is_multiple_of(DEPTH);
        let parts_of_b = tile.columns / tile.sharing();
        if !whole(parts_of_b, !operation.transpose_b) || !parts_of_b.is_multiple_of(8) {
            return Err(Error::Parameter { op: "matmul", reason: format!("{parts_of_b} columns of B at once") });
        }
        if !(tile.blocks * tile.columns / 8).is_multiple_of(tile.parts()) {
            return Err(Error::Parameter { op: "matmul", reason: format!("tiles in {} parts", tile.parts()) });
        }
        Ok(Self { operation, input, output, tile, epilogue })
    }

    /// A, or B: rows are along k where it is not stored with k innermost.
    fn across(&self) -> [bool; 2] {
        [self.operation.transpose_a, !self.operation.transpose_b]
    }

    /// Tiles of A and of what a block brings of B.
    fn panels(&self) -> [Panels; 2] {
        let extents = [self.tile.rows(), self.tile.columns / self.tile.sharing()];
        [0, 1].map(|i: usize| match self.across()[i] {
            true => Panels::new(self.input, DEPTH, extents[i]),
            false => Panels::new(self.input, extents[i], DEPTH),
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
    /// and C are multiples of 8, or of 4 for a C of f32. The same where an extent is 0, or where k has fewer steps of 64 than
    /// the tile has parts. [`Error::Limit`](kiln_core::Error::Limit) beyond 2³¹ - 1 for an extent, 65 535 products or 2²⁷
    /// tiles.
    pub fn launch(&self, extents: MatmulExtents, [alpha, beta]: [f32; 2], multiprocessors: u32) -> Result<Launch> {
        let MatmulExtents { batch, shared_b, m, k, n } = extents;
        let [across_a, across_b] = self.across();
        let inner = [if across_a { m } else { k }, if across_b { n } else { k }];
        let align = if self.output == PtxType::F32 { ALIGN / 2 } else { ALIGN };
        let steps = k.div_ceil(DEPTH as usize);
        let aligned = inner.iter().all(|inner| inner.is_multiple_of(ALIGN)) && n.is_multiple_of(align);
        if !aligned || m == 0 || n == 0 || batch == 0 || steps < self.tile.parts().max(1) as usize {
            return Err(Error::Shape {
                op: "matmul",
                reason: format!("{}: no product of {m} x {k} and {k} x {n}", self.name()),
            });
        }
        let [rows, columns] = [("m", m), ("n", n)].map(|(what, asked)| extent(what, asked, MOST));
        let (rows, columns, _) = (rows?, columns?, extent("k", k, MOST)?);
        let batch = extent("products", batch, MAX_GRID_YZ)?;
        let tile = self.tile;
        let down = rows.div_ceil(tile.rows() * tile.sharing());
        let along = columns.div_ceil(tile.columns);
        let units = extent("tiles", tile.units(extents) as usize, MAX_GRID_X / 16)?;
        let clusters = if tile.parts() > 1 { units } else { units.min((multiprocessors / tile.cluster()).max(1)) };
        let [m, k, n, batch] = [m as u64, k as u64, n as u64, u64::from(batch)];
        // Rows of A and columns of B that are not there only reach what is not there of C.
        let [a, b] = self.panels();
        let a = if across_a { a } else { a.clipped(rows) };
        let b = if across_b { b } else { b.clipped(columns) };
        let bytes = a.bytes() + b.bytes() * tile.sharing();
        let tensor = |buffer: usize, panels: Panels, [rows, columns]: [u64; 2], batch| {
            Argument::Tensor(panels.tensor_map(buffer, [columns, rows, batch], [columns, rows * columns]))
        };
        let mut arguments = vec![
            tensor(0, a, if across_a { [k, m] } else { [m, k] }, batch),
            tensor(1, b, if across_b { [k, n] } else { [n, k] }, if shared_b { 1 } else { batch }),
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
        let [begin, end] = match tile.parts() {
            1 => [k.constant(0u32), steps],
            parts => [rank, rank + 1].map(|rank| steps * rank / parts),
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
                    copies.load(stage_of(stage), full, [row, column], step * DEPTH, batches);
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
            let block_bytes = 64 * DEPTH * 2;
            let from = [stages[0].byte_index(group * (tile.blocks * block_bytes)), stages[1]];
            let operands = [0, 1].map(|i: usize| k.descriptor(from[i], panels[i], self.across()[i]));
            let staging = staging.byte_index((warp - 4) * (2 * self.staging().panel_bytes()));
            k.for_(first_unit, units, clusters, |unit| {
                let sums = k.sums(tile.blocks, tile.columns).start();
                let last = k.variable(0u32);
                k.for_(begin, end, 1, |step| {
                    let stage = consumer.acquire(k);
                    let later = k.gt(step, begin);
                    let [a, b] = [0, 1].map(|i: usize| operands[i].byte_index(stage * bytes[i]));
                    sums.group(|| {
                        for kk in 0..DEPTH / Running::DEPTH {
                            let adds = if kk == 0 { later } else { always };
                            for block in 0..tile.blocks {
                                let operands = [a.bytes(block * block_bytes), b];
                                match self.input {
                                    PtxType::F16 => sums.multiply::<F16>(block, operands, kk, adds),
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
                    (Some(stores), _) => out.store(&sums, self.staging(), staging, stores, batch, lane),
                    (None, Some(c)) if tile.parts() == 1 => {
                        let values: Vec<_> = (0..tile.blocks).flat_map(|block| sums.values(block)).collect();
                        for (four, v) in (0u32..).zip(values.chunks_exact(4)) {
                            out.direct(c, k.constant(four), [v[0], v[1], v[2], v[3]]);
                        }
                    }
                    (None, Some(c)) => out.reduce(&sums, stages[0], [rank, thread - GROUP], c, &meet),
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
            "gemm_{}{}_{}_{}_{}x{}x{}x{DEPTH}_{}{cluster}{}",
            stored(transpose_a),
            stored(transpose_b),
            ty(self.input),
            ty(self.output),
            tile.groups,
            64 * tile.blocks,
            tile.columns,
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
        let columns = bytes / (DEPTH * 2);
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
        sums: &Sums<'k>,
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
            let values = sums.values(block);
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
        sums: &Sums<'k>,
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
        let values: Vec<_> = (0..tile.blocks).flat_map(|block| sums.values(block)).collect();
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
