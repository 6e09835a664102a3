//! The matrix product on the tensor cores of Hopper: `C = f(alpha A B + beta C + bias)`, of f16, bf16, f32 in TF32 or f32 in
//! two parts in TF32, with sums in f32.
//!
//! A block has one warp group that loads tiles of A and B into a ring of stages in shared memory with asynchronous copies,
//! and one or two that multiply them with asynchronous instructions. Asynchronous copies store the sums from shared memory
//! while the next tile begins. The kernel is persistent: a block takes tile after tile, in an order in which concurrent tiles
//! share rows and columns, so that most reads come from the second-level cache. Two blocks of a cluster may take tiles one
//! below the other and each load half of the B that both need; or the blocks of a cluster share one tile, each adding a part
//! of the products along k, for matrices of few tiles.

mod copies;
mod out;
mod tile;

use kiln_ir::op::{Matmul, MatmulExtents};
use kiln_ir::{Error, Result};

use self::copies::Copies;
use self::out::Out;
pub use self::tile::WarpGroupTile;
use self::tile::{Cluster, depth_of};
use super::epilogue::{Elements, Epilogue, Finish, always};
use super::order::Order;
use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::operands::{Groups, RegisterCount};
use crate::{Argument, Bf16, Builder, F16, Kernel, Launch, Panels, PtxKernel, PtxType, Running, Target, Value};

/// Bytes of a stage along k: a row of a panel.
const DEPTH_BYTES: u32 = 128;
/// Threads of a warp group.
const GROUP: u32 = 128;
/// Rows of C of a warp in a block of sums.
const WARP_ROWS: u32 = 16;
/// Registers of a thread of the copying warp group, and of the multiplying ones, if there are two of these: the total
/// of 384 threads with 168 each.
const REGISTERS: [u32; 2] = [40, 232];
/// Maximum extents, because coordinates of copies are signed.
const MOST: u64 = (1 << 31) - 1;
/// Steps of a product of planes after which its sums are added to others, rounding to nearest: tensor cores round every
/// sum towards zero, so the error of a long chain grows with its length. All products of these steps are in one chain,
/// so that data that are read twice come from the second-level cache the second time.
const CHAIN: u32 = 4;
/// Alignment of strides in bytes.
const ALIGN: u32 = 16;
/// Passes over the steps of a chain, for numbers in two parts, smallest products first: whether to use the lower parts
/// of A and B.
const PASSES: [[bool; 2]; 3] = [[false, true], [true, false], [false, false]];

/// The matrix product on warp groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpGroupGemm {
    operation: Matmul,
    input: PtxType,
    output: PtxType,
    tile: WarpGroupTile,
    epilogue: Epilogue,
    /// Whether the matrices are in two planes each.
    in_planes: bool,
}

impl WarpGroupGemm {
    /// A kernel from matrices of `input` to one of `output`, each [`PtxType::F16`], [`PtxType::Bf16`] or [`PtxType::F32`]. Of
    /// elements of f32 the upper 19 bits are multiplied, that is in TF32 and rounded towards zero. Tensor cores round their sums
    /// towards zero as well, so that the error grows with k: of normal numbers in f16 it was on an H200 6.5e-7 of the norm of
    /// an f32 C at k = 512, 4.9e-6 at 4096 and 1.9e-5 at 16 384, and twice that in TF32.
    ///
    /// # Errors
    /// [`Error::Parameter`] for other types; for inputs of f32 unless both are stored with k innermost, A as it is and B
    /// transposed; and for tiles whose parts are not whole copies and products.
    pub fn new(
        operation: Matmul,
        [input, output]: [PtxType; 2],
        tile: WarpGroupTile,
        epilogue: Epilogue,
    ) -> Result<Self> {
        let wrong = |reason| Err(Error::Parameter { op: "matmul", reason });
        let float = |ty| matches!(ty, PtxType::F16 | PtxType::Bf16 | PtxType::F32);
        if !float(input) || !float(output) {
            return wrong(format!("warp groups do not compute {output:?} from {input:?}"));
        }
        if input == PtxType::F32 && (operation.transpose_a || !operation.transpose_b || tile.columns < 64) {
            return wrong(format!(
                "TF32 needs A as it is, B transposed and tiles of at least 64 columns, not {operation:?} and {}",
                tile.columns
            ));
        }
        // Rows across k are copied in panels.
        let whole = |extent: u32, across: bool| !across || extent.is_multiple_of(depth_of(input));
        let parts_of_b = tile.columns / tile.sharing();
        if !whole(parts_of_b, !operation.transpose_b) || !parts_of_b.is_multiple_of(8) {
            return wrong(format!("a block cannot copy {parts_of_b} columns of B at once"));
        }
        if !(tile.blocks * tile.columns / 8).is_multiple_of(tile.parts()) {
            return wrong(format!("the tile cannot be divided into {} parts", tile.parts()));
        }
        Ok(Self { operation, input, output, tile, epilogue, in_planes: false })
    }

    /// A kernel from matrices in two parts of `input` to one of f32: of f32 as [`Tf32Planes`](super::Tf32Planes) writes them, or of
    /// bf16, upper parts and behind them lower ones. Of the four products of parts the least is left out, below 2⁻²² of the
    /// magnitudes that are multiplied, or 2⁻¹⁸ in bf16, and short chains are added to nearest: of products with k up to 1160 the
    /// error in f32 was on an H200 at most 6.1 units in the last place of the sum of magnitudes. An infinite element makes NaN
    /// of what it is multiplied into.
    ///
    /// # Errors
    /// [`Error::Parameter`] for other types, for tiles of less than 64 columns or with more than 64 by 128 elements to a warp group,
    /// and as for [`WarpGroupGemm::new`].
    pub fn of_planes(input: PtxType, tile: WarpGroupTile, epilogue: Epilogue) -> Result<Self> {
        if !tile.adds_chains() {
            let reason = format!(
                "a warp group adds chains of at least 64 columns and at most 64 by 128 elements, not of {} by {}",
                64 * tile.blocks,
                tile.columns
            );
            return Err(Error::Parameter { op: "matmul", reason });
        }
        if !matches!(input, PtxType::F32 | PtxType::Bf16) {
            return Err(Error::Parameter { op: "matmul", reason: format!("planes are F32 or Bf16, not {input:?}") });
        }
        let operation = Matmul { transpose_a: false, transpose_b: true };
        let one = Self::new(operation, [input, PtxType::F32], tile, epilogue)?;
        Ok(Self { in_planes: true, ..one })
    }

    /// The number of planes of each operand.
    fn planes(&self) -> u32 {
        if self.in_planes { 2 } else { 1 }
    }

    /// For A and B: whether rows are along k, which is so unless k is innermost.
    fn across(&self) -> [bool; 2] {
        [self.operation.transpose_a, !self.operation.transpose_b]
    }

    /// The tiles of A and of the block's share of B.
    fn panels(&self) -> [Panels; 2] {
        let extents = [self.tile.rows(), self.tile.columns / self.tile.sharing()];
        [0, 1].map(|i: usize| match self.across()[i] {
            true => Panels::new(self.input, depth_of(self.input), extents[i]),
            false => Panels::new(self.input, extents[i], depth_of(self.input)),
        })
    }

    /// The part that a warp stores at once.
    fn staging(&self) -> Panels {
        Panels::new(self.output, WARP_ROWS, 128 / self.output.bytes())
    }

    /// The launch for these extents on a device of this many multiprocessors. Buffers: A, B, C, and the bias if there is one;
    /// C is read only where the epilogue adds it.
    ///
    /// # Errors
    /// [`Error::Shape`] if a row is not a multiple of 16 bytes, because copies support no other rows: the innermost extents
    /// of A, B and C are multiples of 8, or of 4 for f32; for planes k is arbitrary. Also if an extent is 0, or if k has fewer
    /// steps of 128 bytes than the tile has parts. [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 for an extent, 65 535 products or 2²⁷
    /// tiles.
    pub fn launch(&self, extents: MatmulExtents, [alpha, beta]: [f32; 2], multiprocessors: u32) -> Result<Launch> {
        let MatmulExtents { batch, shared_a, shared_b, m, k, n } = extents;
        let [across_a, across_b] = self.across();
        // Planes of f32 are written in whole pieces.
        let k = if self.in_planes && self.input == PtxType::F32 { super::planes::pitch(k) } else { k };
        let inner =
            [(if across_a { m } else { k }, self.input), (if across_b { n } else { k }, self.input), (n, self.output)];
        let steps = k.div_ceil(depth_of(self.input) as usize);
        let aligned = inner.iter().all(|(extent, ty)| extent.is_multiple_of((ALIGN / ty.bytes()) as usize));
        if !aligned || m == 0 || n == 0 || batch == 0 || steps < self.tile.parts().max(1) as usize {
            return Err(Error::Shape {
                op: "matmul",
                reason: format!(
                    "{} cannot multiply {batch} times {m} x {k} by {k} x {n}: rows must be multiples of 16 bytes, no extent 0, and k at \
                     least {} steps of 128 bytes",
                    self.name(),
                    self.tile.parts().max(1)
                ),
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
        let planes = u64::from(self.planes());
        // Missing rows of A and columns of B only affect missing elements of C.
        let [a, b] = self.panels();
        let a = if across_a { a } else { a.clipped(rows) };
        let b = if across_b { b } else { b.clipped(columns) };
        let bytes = a.bytes() + b.bytes() * tile.sharing();
        let tensor = |buffer: usize, panels: Panels, [rows, columns]: [u64; 2], batch| {
            Argument::Tensor(panels.tensor_map(buffer, [columns, rows, batch], [columns, rows * columns]))
        };
        let mut arguments = vec![
            tensor(0, a, if across_a { [k, m] } else { [m, k] }, planes * if shared_a { 1 } else { batch }),
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
        let [batched_a, batched_b] = [shared_a, shared_b].map(|shared| u32::from(!shared));
        let words = [rows, columns, steps as u32, down, along, units, batched_a, batched_b, bytes];
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

    /// Whether threads access C directly.
    fn addresses_c(&self) -> bool {
        self.epilogue.reads_c() || !self.stores_by_copies()
    }

    fn write(&self, k: &Builder) {
        let tile = self.tile;
        let [a, b] = ["a", "b"].map(|name| k.tensor(name));
        let stores = self.stores_by_copies().then(|| k.tensor("out"));
        let c = self.addresses_c().then(|| k.buffer::<u32>("c"));
        let bias = self.epilogue.has_bias().then(|| k.buffer::<f32>("bias"));
        let [m, n, steps, down, along, units, batched_a, batched_b, stage_bytes] =
            ["m", "n", "steps", "down", "along", "units", "batched_a", "batched_b", "stage_bytes"]
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
                let batches = [batch * batched_a, batch * batched_b];
                let bring = |begin: Value<'_, u32>, end, batches| {
                    k.for_(begin, end, 1, |step| {
                        let (stage, full) = producer.acquire(k, stage_bytes);
                        let depth = step * depth_of(self.input);
                        copies.load(stage_of(stage), full, [row, column], depth, batches);
                        producer.advance(k);
                    });
                };
                if self.in_planes {
                    k.for_(begin, end, CHAIN, |first| {
                        for lower in PASSES {
                            let planes = [0, 1].map(|i: usize| batches[i] * 2u32 + u32::from(lower[i]));
                            bring(first, k.min(first + CHAIN, end), planes);
                        }
                    });
                } else {
                    bring(begin, end, batches);
                }
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
            // 64 rows of A have as many bytes in either layout.
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
                    // The products of the stage before are done: it may be refilled while these run.
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
                let values = if self.in_planes {
                    let totals: Vec<_> = (0..tile.blocks * tile.columns / 2).map(|_| k.variable(0.0f32)).collect();
                    k.for_(begin, end, CHAIN, |first| {
                        let sums = chain(k.constant(0u32), k.min(end - first, CHAIN) * PASSES.len() as u32);
                        totals.iter().zip(sums).for_each(|(total, sum)| total.set(k.add(*total, sum)));
                    });
                    totals.iter().map(|total| total.get()).collect()
                } else {
                    chain(begin, end)
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
            match (self.in_planes, self.input) {
                (false, PtxType::F32) => "tf32",
                (false, input) => input.word(),
                (true, PtxType::F32) => "3xtf32",
                (true, _) => "3xbf16",
            },
            self.output.word(),
            tile.groups,
            64 * tile.blocks,
            tile.columns,
            depth_of(self.input),
            tile.stages,
            self.epilogue.suffix()
        )
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.tile.threads(), 1, 1], |k| self.write(k))
    }
}
