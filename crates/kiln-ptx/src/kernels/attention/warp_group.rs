//! Attention on the tensor cores of Hopper: FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608), of f16 or bf16.
//!
//! `softmax(scale Q Kᵀ) V`. A block has two or three warp groups with 64 queries each, and one whose first thread brings
//! queries, keys and values to shared memory, by copies that run by themselves. Scores are products of what lies there; the
//! weights that they become stay in registers, as the operand of the product with the values. A warp group begins the products
//! of the queries and the next keys, then those of its weights and the values before, and turns scores into weights while
//! the latter run. Three warp groups take turns in beginning products, so that one weighs while another multiplies.
//!
//! As in [`FlashAttention`](super::FlashAttention), the queries of all heads that share keys are rows of one matrix. Keys are
//! gone through from the last to the first, those that some row does not see whole first, with a mask; a warp group leaves out
//! the last ones where none of its own queries sees them, and multiprocessors multiply for the others meanwhile. Blocks stay and take
//! tile after tile, without a pause in between: the first scores of the next tile are products beside the last ones with values
//! of the tile before, whose results are stored behind them. Tiles with the most keys come first, of some heads at a time.
//!
//! Where positions of queries or numbers of keys are data, [`CausalSight`](super::CausalSight) counts first how many keys queries
//! see.

use kiln_ir::op::AttentionExtents;
use kiln_ir::{Error, Result};

use super::flash::{FlashAttention, MOST, Scores, mask, seen_of_rows, takes};
use super::softmax::{OnlineSoftmax, base_2};
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::half::{pack, store_pair};
use crate::kernels::math::F32;
use crate::kernels::team::tree;
use crate::operands::RegisterCount;
use crate::{
    Argument, Bf16, Builder, Consumer, Descriptor, F16, Global, Kernel, Launch, Panels, Pipeline, Pointer, Producer,
    PtxKernel, PtxType, Running, Shared, Sums, TensorParameter, Value, Variable,
};

/// Threads of a warp group.
const GROUP: u32 = 128;
/// Rows of a warp group, and of a warp.
const ROWS: u32 = Running::ROWS;
const WARP_ROWS: u32 = 16;
/// Columns of a panel.
const PANEL: u32 = 64;
/// Buffers for tiles of keys and of values in shared memory.
const STAGES: u32 = 2;
/// Bytes of keys and values that full attention processes at a time: a third of the second-level cache of an H200.
const CACHED: u64 = 16 << 20;
/// Marks the absence of a head.
const NONE: u32 = u32::MAX;

type Word<'k> = Value<'k, u32>;

/// Attention on warp groups, of any number of queries and of keys but none.
///
/// Numerics: as [`FlashAttention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpGroupAttention {
    input: PtxType,
    output: PtxType,
    /// Elements of a row.
    d: u32,
    causal: bool,
    /// Whether the number of keys that causal queries see is an operand.
    reads_sight: bool,
}

impl WarpGroupAttention {
    /// A kernel from queries, keys and values in `input` ([`PtxType::F16`] or [`PtxType::Bf16`]) to `output` (these or
    /// [`PtxType::F32`]), for rows of `d` elements: 64, 80, 96, 128 or 256.
    ///
    /// # Errors
    /// [`Error::Parameter`] for other types or rows.
    pub fn new([input, output]: [PtxType; 2], d: usize, causal: bool) -> Result<Self> {
        match FlashAttention::width(d) {
            Some(d) if takes([input, output]) => Ok(Self { input, output, d, causal, reads_sight: false }),
            _ => Err(Error::Parameter {
                op: "attention",
                reason: format!("warp groups do not compute {output:?} from {input:?} in rows of {d} elements"),
            }),
        }
    }

    /// The same for causal queries that see as many keys as [`CausalSight`](super::CausalSight) counts.
    #[must_use]
    pub fn with_sight(self) -> Self {
        Self { causal: true, reads_sight: true, ..self }
    }

    /// The blocks that [`CausalSight`](super::CausalSight) cuts the queries of a head of keys into.
    pub fn sight_blocks(&self, extents: &AttentionExtents) -> usize {
        let rows = extents.group.saturating_mul(extents.s);
        rows.div_ceil(self.rows() as usize).saturating_mul(self.groups() as usize)
    }

    /// Elements of a row in shared memory: whole panels that the products support.
    fn width(&self) -> u32 {
        self.d.next_multiple_of(PANEL).next_power_of_two()
    }

    /// Warp groups that multiply.
    fn groups(&self) -> u32 {
        if self.width() == 64 { 3 } else { 2 }
    }

    /// Registers of a copying thread, and of the multiplying ones.
    fn registers(&self) -> [u32; 2] {
        if self.groups() == 3 { [32, 160] } else { [24, 240] }
    }

    /// Queries of a tile.
    fn rows(&self) -> u32 {
        ROWS * self.groups()
    }

    /// Keys at a time. Measured on an H200: more are faster, except for short causal attention, which then evaluates
    /// unnecessary masks.
    fn keys(&self) -> u32 {
        match self.width() {
            128 if !self.causal => 176,
            64 | 128 => 128,
            _ => 64,
        }
    }

    /// Maximum number of heads that are processed together, so that most of their keys and values come from the
    /// second-level cache, measured on an H200. Full attention: as many as fit there. Causal attention: more heads
    /// reduce the waiting of blocks at the end, so only two or four tiles of a head are in progress at once.
    fn together(&self, keys: u32, multiprocessors: u32) -> u32 {
        let of_head = 2 * u64::from(keys) * u64::from(self.d * self.input.bytes());
        match (self.causal, self.width()) {
            (false, _) => (CACHED / of_head) as u32,
            (true, 64) => multiprocessors / 2,
            (true, _) => multiprocessors / 4,
        }
    }

    /// This many rows in shared memory.
    fn panels(&self, rows: u32) -> Panels {
        Panels::new(self.input, rows, self.width())
    }

    fn threads(&self) -> u32 {
        GROUP * (1 + self.groups())
    }

    /// Tiles of queries of all heads.
    pub fn tiles(&self, extents: &AttentionExtents) -> usize {
        let rows = extents.group.saturating_mul(extents.s);
        extents.batch.saturating_mul(extents.kv_heads).saturating_mul(rows.div_ceil(self.rows() as usize))
    }

    /// The launch for these extents on a device with this number of multiprocessors. Buffers: queries, keys, values, result, and what
    /// [`CausalSight`](super::CausalSight) counted where that is read.
    ///
    /// # Errors
    /// [`Error::Shape`] when `d` is not what the kernel is for, or an extent is 0. [`Error::Parameter`] unless the scale is
    /// finite and above 0. [`Error::Limit`] beyond 2³¹ - 1024 queries that share keys, or keys, or 2²⁷ tiles.
    pub fn launch(&self, extents: &AttentionExtents, scale: f32, multiprocessors: u32) -> Result<Launch> {
        let AttentionExtents { batch, kv_heads, group, s, t, d, .. } = *extents;
        let heads = batch.saturating_mul(kv_heads);
        if d != self.d as usize || [heads, group, s, t].contains(&0) {
            return Err(Error::Shape {
                op: "attention",
                reason: format!("{} does not support {extents:?}", self.name()),
            });
        }
        let scale = base_2(scale)?;
        let rows = extent("queries", group.saturating_mul(s), MOST)?;
        let keys = extent("keys", t, MOST)?;
        let units = extent("tiles", self.tiles(extents), MAX_GRID_X / 16)?;
        let heads = heads as u32;
        let together = self.together(keys, multiprocessors).clamp(1, heads);
        let tensor = |buffer: usize, of_tile: u32, rows: u32| {
            let [d, rows] = [self.d, rows].map(u64::from);
            let extents = [d, rows, heads.into()];
            Argument::Tensor(self.panels(of_tile).tensor_map(buffer, extents, [d, d * rows]))
        };
        let tensors = [tensor(0, ROWS, rows), tensor(1, self.keys(), keys), tensor(2, self.keys(), keys)];
        let words = [rows, s as u32, keys, rows.div_ceil(self.rows()), heads, together, units].map(Argument::U32);
        let sight = self.reads_sight.then_some([Argument::Buffer(4), Argument::U32(kv_heads as u32)]);
        let rest = [Argument::Buffer(3)].into_iter().chain(words).chain([Argument::F32(scale)]);
        let rest = rest.chain(sight.into_iter().flatten());
        let arguments = tensors.into_iter().chain(rest).collect();
        Ok(Launch { grid: [units.min(multiprocessors.max(1)), 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let maps = ["q", "k", "v"].map(|name| k.tensor(name));
        let out = k.buffer::<u32>("out");
        let [rows, s, t, tiles, heads, together, units] =
            ["rows", "s", "t", "tiles", "heads", "together", "units"].map(|name| k.parameter::<u32>(name));
        let scale = k.parameter::<f32>("scale");
        let sight = self.reads_sight.then(|| {
            let bounds = k.buffer::<u32>("sight");
            let kv_heads = k.parameter::<u32>("kv_heads");
            let counts = bounds.index_wide(k.mul_wide(heads / kv_heads, tiles * self.groups()) * 2u64);
            Sight { counts, bounds, kv_heads }
        });
        let problem = Problem { rows, s, t, tiles, heads, together, units, sight };

        // Queries, keys and values.
        let panels = [ROWS, self.keys(), self.keys()].map(|rows| self.panels(rows));
        // Every warp group has its own stage of queries, which it releases when it has finished with them.
        let stages = [self.groups(), STAGES, STAGES];
        let at = [0, 1, 2].map(|i: usize| k.shared_bytes(stages[i] * panels[i].bytes(), Panels::ALIGN));
        let pipelines = stages.map(|stages| k.pipeline(stages));
        let rings = [0, 1, 2].map(|i: usize| Ring { panels: panels[i], at: at[i], pipeline: pipelines[i] });
        let thread = k.tid_x();
        let warp = k.shfl_idx(thread >> 5, 0, 31, u32::MAX);
        k.if_(k.eq(thread, 0), || {
            let releases = [4, 4 * self.groups(), 4 * self.groups()];
            pipelines.iter().zip(releases).for_each(|(pipeline, releases)| pipeline.initialise(k, releases));
            maps.into_iter().for_each(|map| k.prefetch_tensormap::<u32>(map));
        });
        k.bar_sync(0u32);
        let [of_producer, of_consumers] = self.registers().map(RegisterCount);
        k.if_else(
            k.lt(warp, 4),
            || {
                k.setmaxnreg_dec::<u32>(of_producer);
                k.if_(k.eq(thread, 0), || self.produce(k, &problem, &rings, maps));
            },
            || {
                k.setmaxnreg_inc::<u32>(of_consumers);
                self.consume(k, &problem, &rings, (out, scale), [thread, warp]);
            },
        );
    }

    /// Runs `body` for every tile of the block.
    fn each_tile<'k>(&self, k: &'k Builder, problem: &Problem<'k>, body: impl FnOnce(Tile<'k>)) {
        // Alternates the direction: the block with the longest of some tiles gets the shortest of the next.
        let place = k.variable(k.ctaid_x());
        k.for_(0u32, problem.units, k.nctaid_x(), |first| {
            let unit = first + place.get();
            place.set(k.nctaid_x() - 1u32 - place.get());
            k.if_(k.lt(unit, problem.units), || body(self.tile(k, problem, unit)));
        });
    }

    fn tile<'k>(&self, k: &'k Builder, problem: &Problem<'k>, unit: Word<'k>) -> Tile<'k> {
        let Problem { rows, tiles, heads, together, .. } = *problem;
        let of_heads = together * tiles;
        let first_head = unit / of_heads * together;
        let here = k.min(together, heads - first_head);
        let number = unit % of_heads;
        let head = first_head + number % here;
        let number = number / here;
        // The last causal queries see the most keys.
        let number = if self.causal { tiles - 1 - number } else { number };
        let first = number * self.rows();
        // For causal attention the partial tile is the first: its missing rows would see few keys.
        let first = if self.causal { first - (tiles * self.rows() - rows) } else { first };
        let [last, whole] = self.seen(k, problem, head, first, self.groups());
        Tile { head, first, last, whole }
    }

    /// For the rows of `groups` warp groups from this one on: the number of the last tile of keys that some row sees,
    /// and how many tiles before that one every row sees whole. Rows before the first count as the first.
    fn seen<'k>(
        &self,
        k: &'k Builder,
        problem: &Problem<'k>,
        head: Word<'k>,
        first: Word<'k>,
        groups: u32,
    ) -> [Word<'k>; 2] {
        let Problem { s, t, .. } = *problem;
        let [least, most] = if let Some(sight) = problem.sight {
            let blocks = problem.tiles * self.groups();
            let block = (first + blocks * ROWS - problem.rows) / ROWS;
            let first = k.mad_wide(head / sight.kv_heads, blocks, k.cvt_u64(block));
            let first = sight.bounds.index_wide(first * 2u64);
            let bounds = (0..groups).map(|group| k.ld_v::<_, _, 2>(first.offset(2 * group as i32)));
            let both = tree(bounds.collect(), |[a, b], [c, d]| [k.min(a, c), k.max(b, d)]).unwrap_or([t, t]);
            [both[0], k.max(both[1], 1u32)]
        } else if self.causal {
            let [first, last] =
                [first, first + (groups * ROWS - 1)].map(|row| k.selp(0u32, row, k.lt(k.bits_s32(row), 0)));
            seen_of_rows(k, [first, last, s, t])
        } else {
            [t, t]
        };
        let last = (most - 1) / self.keys();
        [last, k.min(least / self.keys(), last)]
    }

    /// Copies the tiles of queries, keys and values in the order of their use.
    fn produce<'k>(
        &self,
        k: &'k Builder,
        problem: &Problem<'k>,
        rings: &[Ring<'k>; 3],
        maps: [TensorParameter<'k>; 3],
    ) {
        let producers: [Producer<'k>; 3] = rings.each_ref().map(|ring| ring.pipeline.producer(k));
        let bring = |i: usize, head: Word<'k>, row: Word<'k>| {
            let (ring, producer) = (&rings[i], &producers[i]);
            let (stage, full) = producer.acquire(k, ring.panels.bytes());
            let to = ring.at.byte_index(stage * ring.panels.bytes());
            for panel in 0..ring.panels.count() {
                let to = to.bytes((panel * ring.panels.panel_bytes()) as i32);
                let from = maps[i].at([k.constant(panel * PANEL), row, head]);
                k.cp_async_bulk_tensor_load::<u32>(to, from, full);
            }
            producer.advance(k);
        };
        let [queries, keys, values] = [0, 1, 2];
        let before = k.variable(NONE);
        self.each_tile(k, problem, |Tile { head, first, last, .. }| {
            let key = |number: Word<'k>| number * self.keys();
            bring(keys, head, key(last));
            k.if_(k.ne(before, NONE), || bring(values, before.get(), k.constant(0u32)));
            for group in 0..self.groups() {
                bring(queries, head, first + group * ROWS);
            }
            k.for_(0u32, last, 1u32, |i| {
                let number = last - i;
                bring(keys, head, key(number - 1));
                bring(values, head, key(number));
            });
            before.set(head);
        });
        bring(values, before.get(), k.constant(0u32));
    }

    fn consume<'k>(
        &self,
        k: &'k Builder,
        problem: &Problem<'k>,
        rings: &[Ring<'k>; 3],
        (out, scale): (Pointer<'k, Global, u32>, F32<'k>),
        [thread, warp]: [Word<'k>; 2],
    ) {
        let (lane, group) = (thread & 31, (warp >> 2) - 1);
        // Two warp groups alternate by themselves, three do not: measured on an H200.
        let turns = (self.groups() > 2).then(|| Turns { k, group, groups: self.groups() });
        turns.iter().for_each(Turns::begin);
        let input = |ring: Ring<'k>| Input { k, ring, lane, consumer: ring.pipeline.consumer(k) };
        let [queries, keys, values] = [input(rings[0].of_stage(group)), input(rings[1]), input(rings[2])];
        let [never, always] = [k.ne(0u32, 0u32), k.eq(0u32, 0u32)];
        let q = queries.operand(k.constant(0u32), false);
        let row_in_tile = group * ROWS + (warp & 3) * WARP_ROWS + (lane >> 2);
        let column = (lane & 3) * 2u32;
        let softmax = [0, 1].map(|_| OnlineSoftmax::new(k));
        let weights: Vec<Variable<'k, u32>> = (0..self.keys() / 4).map(|_| k.variable(0u32)).collect();
        let mut sums = k.sums(1, self.width());
        // The head and the row of the current tile.
        let of_tile = [0, 1].map(|_| k.variable(NONE));

        // Starts the products of the queries and keys.
        let begin_scores = |stage: Word<'k>| {
            let scores = k.sums(1, self.keys()).start();
            let keys = keys.operand(stage, false);
            scores.group(|| {
                for step in 0..self.d / 16 {
                    let adds = if step == 0 { never } else { always };
                    match self.input {
                        PtxType::F16 => scores.multiply::<F16>(0, [q, keys], step, adds),
                        _ => scores.multiply::<Bf16>(0, [q, keys], step, adds),
                    }
                }
            });
            scores
        };
        // Starts adding the products of the weights and values.
        let begin_adding = |adding: &Running<'k>, stage: Word<'k>| {
            let values = values.operand(stage, true);
            adding.group(|| {
                for (step, weights) in (0..).zip(weights.as_chunks::<4>().0) {
                    match self.input {
                        PtxType::F16 => adding.multiply_registers::<F16>(0, *weights, values, step, always),
                        _ => adding.multiply_registers::<Bf16>(0, *weights, values, step, always),
                    }
                }
            });
        };
        // Releases a tile of keys after its products, and the queries after their last products.
        let release_scores = |stage: Word<'k>, number: Word<'k>| {
            keys.release(stage);
            k.if_(k.eq(number, 0), || queries.release(k.constant(0u32)));
        };
        // The weights of the scores of a tile of keys, and the factors of earlier sums.
        let weigh = |scores: Sums<'k>, [head, row]: [Word<'k>; 2], number: Word<'k>, masked: bool| {
            let mut scores: [Scores<'k>; 1] = [scores.values(0).as_chunks::<4>().0.to_vec()];
            if masked {
                let seen = |row: Word<'k>| match (problem.sight, self.causal) {
                    (Some(sight), _) => sight.of_row(k, problem, head, row),
                    (None, true) => (problem.t - problem.s) + row % problem.s + 1,
                    (None, false) => problem.t,
                };
                let before = number * self.keys() + column;
                mask(k, &mut scores, &[0, 8].map(|i| k.bits_s32(seen(row + i) - before)));
            }
            let [scores] = scores;
            let of_row = |i: usize| {
                let scores: Vec<F32<'k>> = scores.iter().flat_map(|four| [four[2 * i], four[2 * i + 1]]).collect();
                softmax[i].weigh(k, &scores, scale, self.input)
            };
            let [(upper, kept), (lower, kept_lower)] = [0, 1].map(of_row);
            ([upper, lower], [kept, kept_lower])
        };
        // The registers of 8 columns of scores, and of the next 8, form an operand of 16 columns.
        let keep = |[upper, lower]: [Vec<F32<'k>>; 2]| {
            let pairs = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
            let packed = pairs.flat_map(|(&upper, &lower)| [upper, lower]).map(|pair| pack(k, self.input, pair));
            weights.iter().zip(packed).for_each(|(to, pair)| to.set(pair));
        };
        // Stores the results of the finished tile, given the totals of its weights.
        let store_sums = |sums: &Sums<'k>, totals: [F32<'k>; 2]| {
            let [head, row] = of_tile.map(Variable::get);
            let sums = sums.values(0);
            for (i, total) in totals.into_iter().enumerate() {
                let (row, share) = (row + 8 * i as u32, k.rcp(total));
                // Counts may be zero: a query that sees no key has no weights, and its result is zero.
                let share = if self.reads_sight { k.selp(0.0, share, k.eq(total, 0.0)) } else { share };
                let words =
                    k.mad_wide(head, problem.rows, k.cvt_u64(row)) * u64::from(self.d * self.output.bytes() / 4);
                let at = out.index_wide(words).index(column >> (self.output != PtxType::F32) as u32);
                k.if_(k.lt(row, problem.rows), || {
                    for (j, four) in (0..self.d / 8).zip(sums.as_chunks::<4>().0) {
                        let pair = [four[2 * i] * share, four[2 * i + 1] * share];
                        store_pair(k, self.output, at.bytes((8 * j * self.output.bytes()) as i32), pair);
                    }
                });
            }
        };
        let totals = || softmax.each_ref().map(|softmax| softmax.total(k));

        self.each_tile(k, problem, |Tile { head, first, last: last_of_tile, whole }| {
            let row = first + row_in_tile;
            // In causal attention a warp group omits the last keys if its own rows see none of them. It omits at most
            // one tile: beyond two, others would wait for the stage of the values that it has not multiplied yet.
            let (last, whole, leaves_out) = if self.causal {
                let [last, whole] = self.seen(k, problem, head, first + group * ROWS, 1);
                let last = k.max(last + 1, last_of_tile) - 1;
                (last, k.min(whole, last), Some(k.lt(last, last_of_tile)))
            } else {
                (last_of_tile, whole, None)
            };
            if let Some(leaves_out) = leaves_out {
                k.if_(leaves_out, || {
                    keys.release(keys.acquire());
                    turns.iter().for_each(Turns::take);
                    turns.iter().for_each(Turns::pass);
                });
            }
            let of_keys = keys.acquire();
            queries.acquire();
            k.if_else(
                k.eq(of_tile[0], NONE),
                || {
                    let scores = begin_scores(of_keys).finish();
                    release_scores(of_keys, last);
                    keep(weigh(scores, [head, row], last, true).0);
                },
                || {
                    turns.iter().for_each(Turns::take);
                    let scores = begin_scores(of_keys);
                    let of_values = values.acquire();
                    let (weights, totals) = sums.during(|adding| {
                        begin_adding(adding, of_values);
                        turns.iter().for_each(Turns::pass);
                        let scores = scores.finish_before(1);
                        release_scores(of_keys, last);
                        let totals = totals();
                        softmax.iter().for_each(OnlineSoftmax::clear);
                        (weigh(scores, [head, row], last, true).0, totals)
                    });
                    values.release(of_values);
                    keep(weights);
                    store_sums(&sums, totals);
                },
            );
            of_tile.iter().zip([head, row]).for_each(|(to, value)| to.set(value));
            sums.clear();
            if let Some(leaves_out) = leaves_out {
                k.if_(leaves_out, || values.release(values.acquire()));
            }
            let mut turn = |number: Word<'k>, masked: bool| {
                let of_keys = keys.acquire();
                turns.iter().for_each(Turns::take);
                let scores = begin_scores(of_keys);
                let of_values = values.acquire();
                let (weights, kept) = sums.during(|adding| {
                    begin_adding(adding, of_values);
                    turns.iter().for_each(Turns::pass);
                    let scores = scores.finish_before(1);
                    release_scores(of_keys, number);
                    weigh(scores, [head, row], number, masked)
                });
                values.release(of_values);
                sums.scale(0, kept);
                keep(weights);
            };
            k.for_(whole, last, 1u32, |i| turn(last - 1 + whole - i, true));
            k.for_(0u32, whole, 1u32, |i| turn(whole - 1 - i, false));
        });
        let of_values = values.acquire();
        sums.during(|adding| begin_adding(adding, of_values));
        store_sums(&sums, totals());
        turns.iter().for_each(Turns::end);
    }
}

/// The parameters of a launch.
struct Problem<'k> {
    rows: Word<'k>,
    s: Word<'k>,
    t: Word<'k>,
    /// Tiles of queries of a head, heads, and heads that are processed together; tiles of all heads.
    tiles: Word<'k>,
    heads: Word<'k>,
    together: Word<'k>,
    units: Word<'k>,
    sight: Option<Sight<'k>>,
}

/// The number of keys that queries see, as computed by another kernel.
#[derive(Clone, Copy)]
struct Sight<'k> {
    /// For each query of each sequence.
    counts: Pointer<'k, Global, u32>,
    /// The minimum and maximum of every 64 rows.
    bounds: Pointer<'k, Global, u32>,
    /// Key heads of a sequence.
    kv_heads: Word<'k>,
}

impl<'k> Sight<'k> {
    /// The count of a row, or of the nearest row if it is before the first or after the last.
    fn of_row(&self, k: &'k Builder, problem: &Problem<'k>, head: Word<'k>, row: Word<'k>) -> Word<'k> {
        let there = k.lt(row, problem.rows);
        let query = k.selp(row % problem.s, 0u32, there);
        k.ld(self.counts.index_wide(k.mad_wide(head / self.kv_heads, problem.s, k.cvt_u64(query))))
    }
}

/// A tile of queries that share keys.
struct Tile<'k> {
    head: Word<'k>,
    /// The first row.
    first: Word<'k>,
    /// The number of the last tile of keys that some row sees.
    last: Word<'k>,
    /// The number of tiles before that one that every row sees whole.
    whole: Word<'k>,
}

/// A ring of tiles in shared memory.
#[derive(Clone, Copy)]
struct Ring<'k> {
    panels: Panels,
    at: Pointer<'k, Shared, u32>,
    pipeline: Pipeline<'k>,
}

/// The tiles as a warp consumes them.
struct Input<'k> {
    k: &'k Builder,
    ring: Ring<'k>,
    lane: Word<'k>,
    consumer: Consumer<'k>,
}

impl<'k> Ring<'k> {
    /// A ring of one stage of this ring.
    fn of_stage(self, stage: Word<'k>) -> Self {
        let at = self.at.byte_index(stage * self.panels.bytes());
        Self { at, pipeline: self.pipeline.of_stage(stage), ..self }
    }
}

impl<'k> Input<'k> {
    /// Waits for the next tile, and returns its stage.
    fn acquire(&self) -> Word<'k> {
        let stage = self.consumer.acquire(self.k);
        self.consumer.advance(self.k);
        stage
    }

    /// Releases a tile after use by the warp.
    fn release(&self, stage: Word<'k>) {
        self.k.if_(self.k.eq(self.lane, 0), || self.consumer.release(self.k, stage));
    }

    fn operand(&self, stage: Word<'k>, across: bool) -> Descriptor<'k> {
        let first = self.k.descriptor(self.ring.at, self.ring.panels, across);
        first.byte_index(stage * self.ring.panels.bytes())
    }
}

/// The order in which warp groups start products: in turns.
struct Turns<'k> {
    k: &'k Builder,
    /// The index of this warp group, and their number.
    group: Word<'k>,
    groups: u32,
}

impl<'k> Turns<'k> {
    /// Threads that meet at a barrier: those that wait for their turn, and those that pass it on.
    const MEET: u32 = 2 * GROUP;

    /// Gives the first warp group its first turn.
    fn begin(&self) {
        let k = self.k;
        k.if_(k.eq(self.group, self.groups - 1), || k.bar_arrive(1u32, Self::MEET));
    }

    fn take(&self) {
        self.k.bar_sync_some(self.group + 1, Self::MEET);
    }

    fn pass(&self) {
        let k = self.k;
        let next = k.selp(0u32, self.group + 1, k.eq(self.group, self.groups - 1));
        k.bar_arrive(next + 1, Self::MEET);
    }

    /// Waits for the last turn passed on.
    fn end(&self) {
        let k = self.k;
        k.if_(k.eq(self.group, 0), || k.bar_sync_some(1u32, Self::MEET));
    }
}

impl Kernel for WarpGroupAttention {
    fn name(&self) -> String {
        let causal = match (self.causal, self.reads_sight) {
            (_, true) => "_sight",
            (true, false) => "_causal",
            (false, false) => "",
        };
        let [input, output] = [self.input, self.output].map(PtxType::word);
        let (groups, keys, d) = (self.groups(), self.keys(), self.d);
        format!("flash_attention{causal}_{input}_{output}_groups_{groups}x{ROWS}x{keys}_{d}")
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.threads(), 1, 1], |k| self.write(k))
    }
}
