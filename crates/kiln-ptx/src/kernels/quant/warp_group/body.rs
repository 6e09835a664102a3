//! The body of a product on warp groups: the work of each thread.

use super::super::parts::{Repair, Results};
use super::f16_weights::{self, CHUNK, GROUP, GROUPS, Minima, Row, STEP};
use super::{DEPTH, Shape, TALL, THREADS_OF_GROUP, Word};
use crate::kernels::matmul::{Order, always};
use crate::operands::{Blocks, RegisterCount};
use crate::{
    Builder, Consumer, Descriptor, F16, Global, Panels, Pipeline, Pointer, Producer, Shared, SharedCluster, Sums,
    TensorParameter, Value, Variable,
};

/// Steps of a group.
const STEPS: usize = (GROUP / STEP) as usize;
/// Groups of a stage of x.
const GROUPS_OF_STAGE: u32 = DEPTH / GROUP;

/// A ring of stages in shared memory.
#[derive(Clone, Copy)]
struct Ring<'k> {
    at: Pointer<'k, Shared, u32>,
    stage_bytes: u32,
    pipeline: Pipeline<'k>,
}

/// The side of a ring that empties it.
struct Reader<'k> {
    ring: Ring<'k>,
    consumer: Consumer<'k>,
    /// The barrier on which the blocks of a cluster report an empty stage, if they share the stage's data.
    empty: Option<Pointer<'k, SharedCluster, u64>>,
}

/// The operands of a group of elements: for each step, its parts in registers.
type Group<'k> = [Parts<'k>; STEPS];

/// Elements of weights, the same divided for the second part of x if its products are added to the same sums, and what f16
/// does not hold of them.
struct Parts<'k> {
    first: [Variable<'k, u32>; 4],
    lower: Option<[Variable<'k, u32>; 4]>,
    rest: Option<[Variable<'k, u32>; 4]>,
}

/// The kernel while it is written.
pub(super) struct Body<'k> {
    k: &'k Builder,
    shape: Shape,
    /// Rounded x, weights, and the sums of groups.
    x: TensorParameter<'k>,
    weights: TensorParameter<'k>,
    sums: Option<TensorParameter<'k>>,
    units: Pointer<'k, Global, f32>,
    out: Pointer<'k, Global, f32>,
    /// Set if the whole result is written.
    repair: Option<Repair<'k>>,
    addend: Option<Pointer<'k, Global, f32>>,
    /// Rows of the result, rows of weights, elements of a row.
    extents: [Word<'k>; 3],
    order: Order<'k>,
    /// Number of tiles times parts, and chunks of a part.
    tiles: Word<'k>,
    per: Word<'k>,
    /// Bytes that a block copies of a panel of x.
    panel_bytes: Word<'k>,
    thread: Word<'k>,
    warp: Word<'k>,
    lane: Word<'k>,
    /// The number of the block in its cluster.
    rank: Word<'k>,
    rings: [Option<Ring<'k>>; 3],
}

/// A tile and a part of k: the first row of x and of weights of this block, the number of the part, and its chunks.
#[derive(Clone, Copy)]
struct Place<'k> {
    row: Word<'k>,
    of_weights: Word<'k>,
    part: Word<'k>,
    chunks: [Word<'k>; 2],
}

impl<'k> Body<'k> {
    pub(super) fn new(k: &'k Builder, shape: Shape) -> Self {
        let x = k.tensor("x_halves");
        let units = k.buffer::<f32>("units");
        let weights = k.tensor("blocks");
        let out = k.buffer::<f32>("out");
        let exact = (!shape.is_part).then(|| (k.buffer::<f32>("x"), k.buffer::<u32>("weights")));
        let addend = shape.adds.then(|| k.buffer::<f32>("addend"));
        let sums = shape.packing.has_minima().then(|| k.tensor("sums"));
        let [m, n, depth, down, along, tiles, per, panel_bytes] =
            ["m", "n", "depth", "down", "along", "tiles", "per", "panel_bytes"].map(|name| k.parameter::<u32>(name));
        k.cluster(shape.sharing);
        let thread = k.tid_x();
        let [of_chunks, of_x] = shape.stages();
        let ring = |stages: u32, bytes: u32| {
            let at = || k.shared_bytes(stages * bytes, Panels::ALIGN);
            (bytes > 0).then(|| Ring { at: at(), stage_bytes: bytes, pipeline: k.pipeline(stages) })
        };
        let [of_weights, of_sums, in_x] = shape.stage_bytes();
        Self {
            k,
            shape,
            x,
            weights,
            sums,
            units,
            out,
            repair: exact.map(|(x, weights)| Repair { k, format: shape.format, x, weights, depth }),
            addend,
            extents: [m, n, depth],
            order: Order { along, down },
            tiles,
            per,
            panel_bytes,
            thread,
            warp: k.shfl_idx(thread >> 5, 0, 31, u32::MAX),
            lane: thread & 31,
            rank: if shape.sharing > 1 { k.cluster_ctarank() } else { k.constant(0u32) },
            rings: [ring(of_chunks, of_weights), ring(of_chunks, of_sums), ring(of_x, in_x)],
        }
    }

    /// Waits for all threads of the cluster.
    fn meet(&self) {
        let k = self.k;
        if self.shape.sharing == 1 {
            return k.bar_sync(0u32);
        }
        k.barrier_cluster_arrive::<u32>();
        k.barrier_cluster_wait::<u32>();
    }

    pub(super) fn write(&self) {
        let k = self.k;
        let sharing = self.shape.sharing;
        k.resident_blocks(1);
        k.griddepcontrol_launch_dependents::<u32>();
        k.if_(k.eq(self.thread, 0), || {
            for (ring, blocks) in self.rings.iter().zip([1, sharing, sharing]) {
                if let Some(ring) = ring {
                    ring.pipeline.initialise(k, 4 * self.shape.groups() * blocks);
                }
            }
            [Some(self.x), Some(self.weights), self.sums]
                .into_iter()
                .flatten()
                .for_each(|map| k.prefetch_tensormap::<u32>(map));
        });
        self.meet();
        let [copying, multiplying] = self.shape.registers();
        let first = self.shape.groups() * THREADS_OF_GROUP;
        k.if_else(
            k.ge(self.warp, first / 32),
            || {
                k.setmaxnreg_dec::<u32>(RegisterCount(copying));
                k.if_(k.eq(self.thread, first), || self.copy_weights());
                k.if_(k.eq(self.thread, first + 32), || self.copy_rows());
            },
            || {
                k.setmaxnreg_inc::<u32>(RegisterCount(multiplying));
                self.multiply();
            },
        );
        if sharing > 1 {
            // No block ends while another accesses its shared memory or arrives at its barriers.
            self.meet();
        }
    }

    /// Runs `body` for each tile of the block.
    fn tiles(&self, body: impl FnOnce(Place<'k>)) {
        let k = self.k;
        let Shape { columns, sharing, .. } = self.shape;
        k.for_(k.ctaid_x() / sharing, self.tiles, k.nctaid_x() / sharing, |tile| {
            let [part, down, along] = self.order.place(k, tile);
            let all = self.extents[2] / CHUNK;
            let first = k.min(part * self.per, all);
            body(Place {
                row: down * columns,
                of_weights: (along * sharing + self.rank) * self.shape.weights(),
                part,
                chunks: [first, k.min(first + self.per, all)],
            });
        });
    }

    fn copy_weights(&self) {
        let k = self.k;
        let [Some(ring), ..] = self.rings else { return };
        let producer = ring.pipeline.producer(k);
        self.tiles(|place| {
            let [begin, end] = place.chunks;
            k.for_(begin, end, 1u32, |chunk| {
                let (stage, full) = producer.acquire(k, ring.stage_bytes);
                let bytes = chunk * self.shape.packing.bytes();
                let column = (bytes >> 4) << 3;
                let from = self.weights.at([column, place.of_weights, k.constant(0u32)]);
                k.cp_async_bulk_tensor_load::<u32>(ring.at.byte_index(stage * ring.stage_bytes), from, full);
                producer.advance(k);
            });
        });
    }

    fn copy_rows(&self) {
        let k = self.k;
        let [_, sums, Some(ring)] = self.rings else { return };
        k.griddepcontrol_wait::<u32>();
        let producer = ring.pipeline.producer(k);
        let of_sums = sums.zip(self.sums).map(|(ring, map)| (ring, map, ring.pipeline.producer(k)));
        let planes = self.shape.planes();
        let panel_bytes = self.shape.whole_panel().bytes();
        self.tiles(|place| {
            let [begin, end] = place.chunks;
            k.for_(begin, end, 1u32, |chunk| {
                for quarter in 0..CHUNK / DEPTH {
                    let (to, full) = self.acquire(ring, &producer, planes);
                    for plane in 0..planes {
                        let to = to.bytes((plane * panel_bytes) as i32);
                        let column = k.mad(chunk, CHUNK, quarter * DEPTH);
                        self.bring(self.x, to, full, [column, place.row, k.constant(plane)]);
                    }
                    producer.advance(k);
                }
                // The products of minima come last.
                if let Some((ring, map, producer)) = &of_sums {
                    let (to, full) = self.acquire(*ring, producer, 1);
                    // A panel has the sums of four chunks.
                    self.bring(*map, to, full, [(chunk >> 2) * DEPTH, place.row, k.constant(0u32)]);
                    producer.advance(k);
                }
            });
        });
    }

    /// The next stage, to copy this many panels to.
    fn acquire(
        &self,
        ring: Ring<'k>,
        producer: &Producer<'k>,
        panels: u32,
    ) -> (Pointer<'k, Shared, u32>, Pointer<'k, Shared, u64>) {
        let (stage, full) = producer.acquire(self.k, self.panel_bytes * (panels * self.shape.sharing));
        (ring.at.byte_index(stage * ring.stage_bytes), full)
    }

    /// Copies a panel, or the part of it that this block copies for all of the cluster.
    fn bring(
        &self,
        map: TensorParameter<'k>,
        to: Pointer<'k, Shared, u32>,
        full: Pointer<'k, Shared, u64>,
        [column, row, plane]: [Word<'k>; 3],
    ) {
        let (k, sharing) = (self.k, self.shape.sharing);
        if sharing == 1 {
            return k.cp_async_bulk_tensor_load::<u32>(to, map.at([column, row, plane]), full);
        }
        let rows = self.shape.columns / sharing;
        let to = to.byte_index(self.rank * self.shape.panel().bytes());
        let from = map.at([column, row + self.rank * rows, plane]);
        k.cp_async_bulk_tensor_multicast::<u32>(to, from, full, Blocks((1 << sharing) - 1));
    }

    fn reader(&self, ring: Ring<'k>, sharing: u32) -> Reader<'k> {
        let k = self.k;
        let empty = (sharing > 1).then(|| ring.pipeline.empty_of_block(self.lane & (sharing - 1)));
        Reader { ring, consumer: ring.pipeline.consumer(k), empty }
    }

    /// Says to the blocks that copy to a stage that this warp has read it.
    fn release(&self, reader: &Reader<'k>, stage: Word<'k>) {
        let k = self.k;
        let blocks = if reader.empty.is_some() { self.shape.sharing } else { 1 };
        k.if_(k.lt(self.lane, blocks), || match reader.empty {
            None => reader.consumer.release(k, stage),
            Some(empty) => reader.consumer.release_of_block(k, empty, stage),
        });
    }

    fn multiply(&self) {
        let k = self.k;
        let shape = self.shape;
        let sharing = shape.sharing;
        let [Some(weights), sums, Some(x)] = self.rings else { return };
        // Preceding launches have written units and what is added.
        k.griddepcontrol_wait::<u32>();
        let group = self.warp >> 2;
        let (g, t) = (self.lane >> 2, self.lane & 3u32);
        let in_tile = k.mad(group, TALL, k.mad(self.warp & 3u32, 16u32, g));
        let (of_weights, of_x) = (self.reader(weights, 1), self.reader(x, sharing));
        let of_sums = sums.map(|ring| (self.reader(ring, sharing), k.descriptor(ring.at, shape.whole_panel(), false)));
        let operand = k.descriptor(x.at, shape.whole_panel(), false);
        let totals: Vec<Variable<'k, f32>> = (0..shape.columns / 2).map(|_| k.variable(0.0f32)).collect();
        self.tiles(|place| {
            totals.iter().for_each(|total| total.set(0.0f32));
            let [begin, end] = place.chunks;
            k.for_(begin, end, 1u32, |chunk| {
                let stage = of_weights.consumer.acquire(k);
                let at = weights.at.byte_index(k.mad(stage, weights.stage_bytes, in_tile * shape.packing.pitch()));
                let offset = shape.packing.offset(chunk);
                let rows = [0, 8].map(|below: u32| {
                    let at = at.bytes((below * shape.packing.pitch()) as i32);
                    Row::new(k, shape.packing, at, offset, t)
                });
                let sums = self.chunk(&rows, operand, &of_x, &totals);
                let minima = of_sums.as_ref().map(|_| rows.each_ref().map(Row::minima));
                // The warp has read the weights.
                k.bar_warp_sync(u32::MAX);
                self.release(&of_weights, stage);
                of_weights.consumer.advance(k);
                if let (Some((reader, operand)), Some(minima)) = (&of_sums, minima) {
                    self.subtract(&minima, reader, *operand, chunk, sums, &totals);
                }
            });
            self.store(place, [in_tile, t], &totals);
        });
    }

    /// The operands of a group.
    fn group(&self, rows: &[Row<'k>; 2], group: u32) -> Group<'k> {
        let k = self.k;
        let [upper, lower] = rows.each_ref().map(|row| row.group(group));
        [0, 1].map(|step: usize| {
            let [a, b] = [&upper[step], &lower[step]];
            let ordered = |a: [Word<'k>; 2], b: [Word<'k>; 2]| [a[0], b[0], a[1], b[1]];
            let first = ordered(a.first, b.first);
            let variables = |words: [Word<'k>; 4]| words.map(|word| k.variable(word));
            let rounds = self.shape.rounds;
            Parts {
                first: variables(first),
                lower: self.shape.divides().then(|| variables(first.map(|word| f16_weights::lower(k, word)))),
                rest: a.rest.zip(b.rest).filter(|_| !rounds).map(|(a, b)| variables(ordered(a, b))),
            }
        })
    }

    /// Adds the products of a chunk to the totals. Returns the registers of its sums.
    fn chunk(
        &self,
        rows: &[Row<'k>; 2],
        operand: Descriptor<'k>,
        x: &Reader<'k>,
        totals: &[Variable<'k, f32>],
    ) -> Sums<'k> {
        let k = self.k;
        let shape = self.shape;
        let (chain, plane) = (shape.packing.chain() / GROUP, shape.whole_panel().bytes());
        let adds = always(k, self.lane);
        let never = k.not(adds);
        let units: Vec<_> =
            (0..GROUPS / chain).map(|group| rows.each_ref().map(|row| row.unit(group * chain))).collect();
        let batch = shape.batch();
        let groups = |first: u32| (first..first + batch).map(|group| self.group(rows, group)).collect::<Vec<_>>();
        let mut next = groups(0);
        // The stages of the chunk, and how many of them have been read.
        let mut stages = Vec::new();
        let mut free = 0;
        let chains = if chain == 1 { batch } else { 1 };
        // Of the second part of x: sums of its own, by the same instruction or by another, or those of the first part.
        let wide = shape.is_wide();
        let apart = !shape.rounds && !shape.divides() && !wide;
        let blocks = if apart { 2 * chains } else { chains };
        let mut running = k.sums(blocks, if wide { 2 * shape.columns } else { shape.columns }).start();
        for first in (0..GROUPS).step_by(batch as usize) {
            let end = first + batch;
            while stages.len() < (end.div_ceil(GROUPS_OF_STAGE)) as usize {
                stages.push(x.consumer.acquire(k));
                x.consumer.advance(k);
            }
            running.group(|| {
                for (group, parts) in (first..).zip(&next) {
                    let b = operand.byte_index(stages[(group / GROUPS_OF_STAGE) as usize] * x.ring.stage_bytes);
                    let block = if chain == 1 { group - first } else { 0 };
                    for (step, parts) in (0..).zip(parts) {
                        let in_panel = group % GROUPS_OF_STAGE * STEPS as u32 + step;
                        let adds_first = if group % chain == 0 && step == 0 { never } else { adds };
                        let second = b.bytes(plane);
                        running.multiply_registers::<F16>(block, parts.first, b, in_panel, adds_first);
                        if apart {
                            running.multiply_registers::<F16>(
                                block + chains,
                                parts.first,
                                second,
                                in_panel,
                                adds_first,
                            );
                        }
                        if let Some(lower) = parts.lower {
                            running.multiply_registers::<F16>(block, lower, second, in_panel, adds);
                        }
                        if let Some(rest) = parts.rest {
                            running.multiply_registers::<F16>(block, rest, b, in_panel, adds);
                        }
                    }
                }
            });
            let mut release = |groups: u32| {
                let read = (groups / GROUPS_OF_STAGE) as usize;
                stages[free..read].iter().for_each(|&stage| self.release(x, stage));
                free = read;
            };
            // The products before these are done.
            running.wait(1);
            release(first);
            // Weights are decoded during the products.
            if end < GROUPS {
                next = groups(end);
            }
            if end.is_multiple_of(chain) {
                let sums = running.finish();
                release(end);
                for group in first / chain..end / chain {
                    let block = if chain == 1 { group - first } else { 0 };
                    let mut values = sums.values(block);
                    let lower = if apart { sums.values(block + chains) } else { values.split_off(totals.len()) };
                    for (i, value) in values.into_iter().enumerate() {
                        let unit = units[group as usize][i / 2 % 2];
                        let value = lower.get(i).map_or(value, |&lower| k.fma(lower, 1.0 / f16_weights::LOWER, value));
                        totals[i].set(k.fma(unit, value, totals[i]));
                    }
                }
                running = sums.start();
            }
        }
        running.finish()
    }

    /// Subtracts the products of minima.
    fn subtract(
        &self,
        minima: &[Minima<'k>; 2],
        reader: &Reader<'k>,
        operand: Descriptor<'k>,
        chunk: Word<'k>,
        sums: Sums<'k>,
        totals: &[Variable<'k, f32>],
    ) {
        let k = self.k;
        let never = k.not(always(k, self.lane));
        let [first, second] = minima.each_ref().map(|of_row| of_row.pair);
        // The second parts of sums are multiplied by `LOWER`. Integers remain exact when they are divided by it; other minima
        // are multiplied apart.
        let operands = if self.shape.packing.has_integer_minima() {
            vec![([first, second, f16_weights::lower(k, first), f16_weights::lower(k, second)], 1.0)]
        } else {
            let zero = k.constant(0u32);
            vec![([first, second, zero, zero], 1.0), ([zero, zero, first, second], 1.0 / f16_weights::LOWER)]
        };
        // Wide sums are of both parts of x.
        let mut sums = if self.shape.is_wide() { k.sums(1, self.shape.columns) } else { sums };
        let stage = reader.consumer.acquire(k);
        // The chunk's quarter of the panel.
        let operand = operand.byte_index(k.mad(stage, reader.ring.stage_bytes, (chunk & 3u32) * 32u32));
        for (a, factor) in operands {
            let a = a.map(|word| k.variable(word));
            sums.during(|sums| sums.group(|| sums.multiply_registers::<F16>(0, a, operand, 0, never)));
            let units = minima.each_ref().map(|of_row| of_row.unit * -factor);
            for (i, value) in sums.values(0).into_iter().enumerate() {
                totals[i].set(k.fma(units[i / 2 % 2], value, totals[i]));
            }
        }
        self.release(reader, stage);
        reader.consumer.advance(k);
    }

    /// The row and the column of the sum of this number, counted in pairs of adjacent rows of x, of a row of weights and of the one
    /// eight below it, and whether they exist.
    fn element(
        &self,
        place: Place<'k>,
        [in_tile, t]: [Word<'k>; 2],
        number: Word<'k>,
    ) -> ([Word<'k>; 2], Value<'k, bool>) {
        let k = self.k;
        let [m, n, _] = self.extents;
        let [eight, below, right] = [number >> 2, number >> 1 & 1u32, number & 1u32];
        let i = place.row + k.mad(eight, 8u32, k.mad(t, 2u32, right));
        let j = place.of_weights + k.mad(below, 8u32, in_tile);
        ([i, j], k.and(k.lt(i, m), k.lt(j, n)))
    }

    /// Writes the sums of a tile.
    fn store(&self, place: Place<'k>, in_tile: [Word<'k>; 2], totals: &[Variable<'k, f32>]) {
        let k = self.k;
        let [m, n, _] = self.extents;
        let out = match self.shape.is_part {
            true => self.out.index_wide(k.mul_wide(place.part * m, n)),
            false => self.out,
        };
        let results = Results { k, out, columns: n, repair: self.repair, addend: self.addend };
        results.store(
            totals.len() as u32,
            |number| self.element(place, in_tile, number),
            |number, row, is_there| totals[number as usize].get() * k.ld_if(is_there, self.units.index(row), 0.0f32),
        );
    }
}
