//! Attention on tensor cores: FlashAttention-2 (Dao 2023, arXiv 2307.08691), of f16 or bf16, on every device from `sm_80` on.
//!
//! `softmax(scale Q Kᵀ) V`. A block has some queries, a warp 16 or 32 of them, and takes the keys and values a tile at a
//! time. Scores stay in registers: a fragment of sums is, rounded to 16 bits, the operand of the product with the values.
//! Each row keeps its greatest score so far and the sum of its weights; when the greatest grows, both that sum and the
//! result so far are scaled. While a tile is worked on, the next is copied to the other half of shared memory.
//!
//! The queries of all heads that share keys count as rows of one matrix, which they are in memory. A tile of keys that some
//! row does not see whole is gone through with a mask, the others without. Where there are fewer tiles of queries than the
//! device has room for, keys are cut into parts, and [`FlashCombine`] adds up what their blocks leave.

use kiln_ir::op::AttentionExtents;
use kiln_ir::{Error, Result};

use super::combine::{AttentionPlan, FlashCombine};
use super::softmax::{OnlineSoftmax, base_2};
use super::tile::{FlashTile, STAGES};
use crate::builder::Fragment;
use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::kernels::half::{pack, store_pair};
use crate::kernels::math::F32;
use crate::kernels::team::WARP;
use crate::kernels::warp::{Present, RowCopies, multiply};
use crate::operands::Groups;
use crate::{
    Argument, BlockOrder, Builder, Global, Kernel, Launch, MatrixBlocks, Panels, Pointer, PtxKernel, PtxType, Value,
    Variable,
};

/// Supported row lengths in elements.
const WIDTHS: [u32; 5] = [64, 80, 96, 128, 256];
/// Maximum queries and keys, so that the end of a tile does not overflow.
pub(super) const MOST: u64 = (1 << 31) - 1024;
/// Approximate number of resident blocks per multiprocessor.
const RESIDENT: u32 = 2;
/// Minimum tiles of keys in a part: fewer take less time than combining parts.
const LEAST_TILES: u32 = 4;
/// Maximum number of parts.
const MOST_PARTS: u32 = 128;

type Word<'k> = Value<'k, u32>;
type Quad<'k> = Fragment<'k, u32, 4>;
/// The scores of a block of 16 queries that a thread holds: for every 8 keys two in each of its two rows.
pub(super) type Scores<'k> = Vec<[F32<'k>; 4]>;
/// 16-bit weights of both rows of a thread: for every 8 keys two adjacent ones.
type Weights<'k> = [Vec<Value<'k, u32>>; 2];

/// Attention on tensor cores, of any number of queries and keys.
///
/// Numerics, with u = 2⁻²⁴ and the magnitudes M = Σⱼ pⱼ |vⱼ| (1 + aⱼ + Σₖ pₖ aₖ) of the contract of attention (p the
/// weights, aⱼ = scale Σ |q kⱼ|): scores and sums are in f32, and tensor cores round them towards zero, 16 products at a
/// time, which is within 2u (d/16 + t/16 + 16) M. Weights are rounded to the type of the inputs before they are multiplied,
/// relative to 1 for the greatest score so far: within 2⁻⁸ Σ pⱼ |vⱼ| for bf16, within 2⁻¹¹ Σ pⱼ |vⱼ| + 2⁻⁴⁰ Σ |vⱼ| for f16,
/// which has no weights below 2⁻⁴⁰. The result is rounded once. A score that is NaN or +∞, and scores of -∞ alone, give NaN; no
/// keys at all give zeros. A value that is not finite makes NaN of every query of the same tile that does not see its key, or
/// whose weight for it rounds to 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlashAttention {
    input: PtxType,
    output: PtxType,
    width: u32,
    causal: bool,
    tile: FlashTile,
    /// Whether it writes partial results to be combined.
    parts: bool,
}

impl FlashAttention {
    /// A kernel from queries, keys and values in `input` ([`PtxType::F16`] or [`PtxType::Bf16`]) to `output` (these or
    /// [`PtxType::F32`]), for rows of `d` elements: 64, 80, 96, 128 or 256.
    ///
    /// # Errors
    /// [`Error::Parameter`] for other types or rows, and if registers or shared memory do not hold the tile.
    pub fn new([input, output]: [PtxType; 2], d: usize, causal: bool, tile: FlashTile) -> Result<Self> {
        let wrong = |reason| Err(Error::Parameter { op: "attention", reason });
        if !takes([input, output]) {
            return wrong(format!(
                "tensor cores do not compute {output:?} from {input:?}: use F16 or Bf16 inputs, and F16, Bf16 or F32 results"
            ));
        }
        let Some(width) = Self::width(d) else {
            return wrong(format!("rows on tensor cores must have 64, 80, 96, 128 or 256 elements, not {d}"));
        };
        if !tile.holds(width) {
            return wrong(format!("{tile:?} does not hold rows of {d} elements: use FlashTile::for_extents"));
        }
        Ok(Self { input, output, width, causal, tile, parts: false })
    }

    /// `d`, if there is a kernel for rows of this many elements.
    pub(super) fn width(d: usize) -> Option<u32> {
        WIDTHS.into_iter().find(|&width| width as usize == d)
    }

    /// The kernel that writes partial results for [`FlashCombine`].
    fn in_parts(self) -> Self {
        Self { parts: true, ..self }
    }

    /// The launch for these extents. Buffers: queries, keys, values, result.
    ///
    /// # Errors
    /// [`Error::Shape`] for another `d` than that of the kernel. [`Error::Parameter`] unless the scale is finite and above 0.
    /// [`Error::Limit`] beyond 2³¹ - 1024 queries that share keys, or keys, or 2³¹ - 1 tiles.
    pub fn launch(&self, extents: &AttentionExtents, scale: f32) -> Result<Launch> {
        self.launch_parts(extents, scale, 1)
    }

    /// The same with keys divided into about this many parts; buffer 3 holds the parts, if there are any.
    fn launch_parts(&self, extents: &AttentionExtents, scale: f32, parts: u32) -> Result<Launch> {
        let AttentionExtents { batch, kv_heads, group, s, t, d, .. } = *extents;
        if d != self.width as usize {
            return Err(Error::Shape {
                op: "attention",
                reason: format!("{} does not support rows of {d} elements", self.name()),
            });
        }
        let scale = base_2(scale)?;
        let rows = extent("queries", group.saturating_mul(s), MOST)?;
        let keys = extent("keys", t, MOST)?;
        let tiles = rows.div_ceil(self.tile.rows());
        let heads = batch.saturating_mul(kv_heads);
        let blocks = extent("tiles", heads.saturating_mul(tiles as usize), MAX_GRID_X)?;
        let words = [rows, s as u32, keys, tiles, part_keys(self.tile, keys, parts)].map(Argument::U32);
        let arguments = (0..4).map(Argument::Buffer).chain(words).chain([Argument::F32(scale)]).collect();
        Ok(Launch { grid: [blocks, extent("parts", parts as usize, MAX_GRID_YZ)?, 1], arguments })
    }

    fn panels(&self, rows: u32) -> Panels {
        self.tile.panels(rows, self.width)
    }

    fn write<'k>(&self, k: &'k Builder) {
        let (tile, row_bytes) = (self.tile, 2 * self.width);
        let [q, keys, values, out] = ["q", "k", "v", "out"].map(|name| k.buffer::<u32>(name));
        let [rows, s, t, tiles, part_keys] =
            ["rows", "s", "t", "tiles", "part_keys"].map(|name| k.parameter::<u32>(name));
        let scale = k.parameter::<f32>("scale");
        let (thread, block) = (k.tid_x(), k.ctaid_x());
        let (lane, warp) = (thread & (WARP - 1), thread >> WARP.ilog2());
        let head = block / tiles;
        // The last causal queries see the most keys, so they begin first.
        let number = block % tiles;
        let number = if self.causal { tiles - 1 - number } else { number };
        let first = number * tile.rows();
        let of_row = |at: Pointer<'k, Global, u32>, row: Value<'k, u64>| at.index_wide(row * u64::from(row_bytes / 4));
        let q = of_row(q, k.mad_wide(head, rows, k.cvt_u64(first)));
        let [keys, values] = [keys, values].map(|at| of_row(at, k.mul_wide(head, t)));

        // The minimum and maximum number of keys that rows of the tile see.
        let last = k.min(first + tile.rows(), rows) - 1;
        let [least, most] = if self.causal { seen_of_rows(k, [first, last, s, t]) } else { [t, t] };
        let part = k.ctaid_y();
        let (begin, end) = if self.parts {
            let begin = part * part_keys;
            (begin, k.min(begin + part_keys, most))
        } else {
            (k.constant(0u32), most)
        };
        let whole = k.max(k.min(least, end) & !(tile.keys() - 1), begin);

        let [q_panels, panels] = [tile.rows(), tile.keys()].map(|rows| self.panels(rows));
        let q_at = k.shared_bytes(q_panels.bytes(), Panels::ALIGN);
        let [k_at, v_at] = [0, 1].map(|_: u32| k.shared_bytes(STAGES * panels.bytes(), Panels::ALIGN));
        let q_copies = RowCopies::new(thread, tile.threads(), tile.rows(), row_bytes, q_panels);
        q_copies.begin(q_at, q, &q_copies.present(rows - first));
        let copies = RowCopies::new(thread, tile.threads(), tile.keys(), row_bytes, panels);
        let bring = |key: Word<'k>, stage: Word<'k>| {
            let present: Present<'k> = copies.present(end - key);
            let words = k.mul_wide(key, row_bytes / 4);
            for (to, from) in [(k_at, keys), (v_at, values)] {
                copies.begin(to.byte_index(stage), from.index_wide(words), &present);
            }
        };
        bring(begin, k.constant(0u32));
        k.cp_async_commit_group::<u32>();

        let warp_at = q_at.byte_index(warp * (tile.warp_rows() * q_panels.row_bytes()));
        let q_blocks = q_panels.blocks(k, warp_at, lane, BlockOrder::Down);
        let k_blocks = panels.blocks(k, k_at, lane, BlockOrder::Across);
        let v_blocks = panels.blocks(k, v_at, lane, BlockOrder::Down);
        let kept = tile.keeps_queries(self.width).then(|| {
            k.cp_async_wait_group::<u32>(Groups(0));
            k.bar_sync(0u32);
            (0..self.width / 16).map(|step| read_queries(k, q_blocks, tile.blocks(), step)).collect::<Vec<_>>()
        });

        // The rows of the thread, two in each block, and its first column. They are recomputed where they are needed,
        // because registers are scarce in between.
        let place = || {
            let thread = k.tid_x();
            let row = first + (thread >> WARP.ilog2()) * tile.warp_rows() + ((thread & (WARP - 1)) >> 2);
            let rows: Vec<Word<'k>> = (0..2 * tile.blocks()).map(|i| row + 8 * i).collect();
            (rows, (thread & 3) * 2u32)
        };
        let state = State::new(k, tile.blocks(), self.width);
        let stage = k.variable(0u32);
        let turn = |key: Word<'k>, masked: bool| {
            // The copies have completed for all threads, and all have finished with the previous tile.
            k.cp_async_wait_group::<u32>(Groups(0));
            k.bar_sync(0u32);
            let (now, other) = (stage.get(), k.xor(stage, panels.bytes()));
            let next = key + tile.keys();
            k.if_(k.lt(next, end), || {
                bring(next, other);
                k.cp_async_commit_group::<u32>();
            });
            stage.set(other);
            let queries = |step: u32| match &kept {
                Some(kept) => kept[step as usize].clone(),
                None => read_queries(k, q_blocks, tile.blocks(), step),
            };
            let mut scores = self.scores(k, queries, k_blocks.byte_index(now));
            if masked {
                let (rows, column) = place();
                let seen = |row: Word<'k>| if self.causal { (t - s) + row % s + 1 } else { t };
                let limits =
                    rows.iter().map(|&row| k.bits_s32(k.min(seen(row), end) - column - key)).collect::<Vec<_>>();
                mask(k, &mut scores, &limits);
            }
            let weights = state.weigh(k, &scores, scale, self.input);
            self.add(k, &state, &weights, v_blocks.byte_index(now));
        };
        k.for_(begin, whole, tile.keys(), |key| turn(key, false));
        k.for_(whole, end, tile.keys(), |key| turn(key, true));
        k.cp_async_wait_group::<u32>(Groups(0));

        let (rows_of_thread, column) = place();
        for (i, (&row, softmax)) in rows_of_thread.iter().zip(&state.rows).enumerate() {
            let total = softmax.total(k);
            let there = k.lt(row, rows);
            let row = k.mad_wide(head, rows, k.cvt_u64(row));
            let pairs = state.pairs(i);
            if self.parts {
                let all = k.cvt_u64(k.nctaid_x() / tiles) * k.cvt_u64(rows);
                let row = k.cvt_u64(part) * all + row;
                let at: Pointer<'k, Global, f32> = out.cast();
                let sums = at.index_wide(row * u64::from(self.width)).index(column);
                let weights = at.index_wide(k.cvt_u64(k.nctaid_y()) * all * u64::from(self.width) + row * 2u64);
                k.if_(there, || {
                    (0..).zip(&pairs).for_each(|(j, &pair)| k.st_v(sums.offset(8 * j), pair));
                    k.if_(k.eq(column, 0), || k.st_v(weights, [softmax.greatest(), total]));
                });
                continue;
            }
            let share = k.selp(0.0, k.rcp(total), k.eq(t, 0));
            let words = row * u64::from(self.width * self.output.bytes() / 4);
            let at = out.index_wide(words).index(column >> u32::from(is_half(self.output)));
            k.if_(there, || {
                for (j, pair) in (0..).zip(pairs) {
                    store_pair(
                        k,
                        self.output,
                        at.bytes(j * 8 * self.output.bytes() as i32),
                        pair.map(|sum| sum * share),
                    );
                }
            });
        }
    }

    /// The products of the queries of a warp and the keys of a tile: for each block of 16 queries, 8 keys at a time.
    fn scores<'k>(
        &self,
        k: &'k Builder,
        queries: impl Fn(u32) -> Vec<Quad<'k>>,
        keys: MatrixBlocks<'k>,
    ) -> Vec<Scores<'k>> {
        let columns = self.tile.keys() / 8;
        let zero = k.constant(0.0f32);
        let sums: Vec<Vec<Fragment<'k, f32, 4>>> =
            (0..self.tile.blocks()).map(|_| (0..columns).map(|_| k.fragment()).collect()).collect();
        for step in 0..self.width / 16 {
            let queries = queries(step);
            for pair in 0..columns / 2 {
                let key: Quad<'k> = k.fragment();
                k.ldmatrix_x4::<u32>(key, keys.at(pair, step));
                for (sums, &query) in sums.iter().zip(&queries) {
                    for half in [0, 1] {
                        let (sum, key) = (sums[2 * pair as usize + half], key.part::<2>(2 * half));
                        match step {
                            0 => multiply(k, self.input, sum, query, key, [zero; 4]),
                            _ => multiply(k, self.input, sum, query, key, sum),
                        }
                    }
                }
            }
        }
        let values = |sum: &Fragment<'k, f32, 4>| [0, 1, 2, 3].map(|i| sum.get(i));
        sums.iter().map(|sums| sums.iter().map(values).collect()).collect()
    }

    /// Adds the product of weights and the values of a tile.
    fn add<'k>(&self, k: &'k Builder, state: &State<'k>, weights: &[Weights<'k>], values: MatrixBlocks<'k>) {
        for step in 0..self.tile.keys() / 16 {
            // The registers of 8 columns of sums, and of the next 8, form an operand of 16 columns.
            let eights = |[upper, lower]: &Weights<'k>| {
                let [left, right] = [2 * step as usize, 2 * step as usize + 1];
                [upper[left], lower[left], upper[right], lower[right]]
            };
            let weights: Vec<[Word<'k>; 4]> = weights.iter().map(eights).collect();
            for pair in 0..self.width / 16 {
                let value: Quad<'k> = k.fragment();
                k.ldmatrix_x4_trans::<u32>(value, values.at(step, pair));
                for (sums, &weights) in state.sums.iter().zip(&weights) {
                    for half in [0, 1] {
                        let sum = sums[2 * pair as usize + half];
                        multiply(k, self.input, sum, weights, value.part::<2>(2 * half), sum);
                    }
                }
            }
        }
    }
}

/// The minimum and maximum number of keys that rows of a causal tile see, given its first and last row, s and t.
pub(super) fn seen_of_rows<'k>(k: &'k Builder, [first, last, s, t]: [Word<'k>; 4]) -> [Word<'k>; 2] {
    // A tile may have rows of several heads: the end of one and the beginning of another.
    let one_head = k.eq(first / s, last / s);
    let [least, most] = [k.selp(first % s, 0u32, one_head), k.selp(last % s, s - 1, one_head)];
    [least, most].map(|query| (t - s) + query + 1)
}

/// Whether tensor cores support attention from the first type to the second.
pub(super) fn takes([input, output]: [PtxType; 2]) -> bool {
    is_half(input) && (output == PtxType::F32 || is_half(output))
}

pub(super) fn is_half(ty: PtxType) -> bool {
    matches!(ty, PtxType::F16 | PtxType::Bf16)
}

/// The queries of a warp, 16 elements of each, beginning at this element.
fn read_queries<'k>(k: &'k Builder, from: MatrixBlocks<'k>, blocks: u32, step: u32) -> Vec<Quad<'k>> {
    let read = |block| {
        let query = k.fragment();
        k.ldmatrix_x4::<u32>(query, from.at(block, step));
        query
    };
    (0..blocks).map(read).collect()
}

/// Sets the scores of keys that a row does not see to -∞; `seen` counts the visible columns from the first of the
/// thread on.
pub(super) fn mask<'k>(k: &'k Builder, scores: &mut [Scores<'k>], seen: &[Value<'k, i32>]) {
    for (scores, left) in scores.iter_mut().zip(seen.chunks_exact(2)) {
        for (eight, scores) in (0..).zip(scores) {
            for (i, score) in scores.iter_mut().enumerate() {
                let seen = k.gt(left[i / 2], 8 * eight + i as i32 % 2);
                *score = k.selp(*score, f32::NEG_INFINITY, seen);
            }
        }
    }
}

/// The state of a thread between tiles.
struct State<'k> {
    rows: Vec<OnlineSoftmax<'k>>,
    /// For each block of 16 rows, 8 columns at a time.
    sums: Vec<Vec<[Variable<'k, f32>; 4]>>,
}

impl<'k> State<'k> {
    fn new(k: &'k Builder, blocks: u32, width: u32) -> Self {
        let eight = |_| [0; 4].map(|_| k.variable(0.0f32));
        Self {
            rows: (0..2 * blocks).map(|_| OnlineSoftmax::new(k)).collect(),
            sums: (0..blocks).map(|_| (0..width / 8).map(eight).collect()).collect(),
        }
    }

    /// Turns scores into weights relative to the greatest score so far, and rescales earlier sums to it.
    fn weigh(&self, k: &'k Builder, scores: &[Scores<'k>], scale: F32<'k>, ty: PtxType) -> Vec<Weights<'k>> {
        let of_block = |(block, scores): (usize, &Scores<'k>)| {
            [0, 1].map(|half: usize| {
                let pairs = scores.iter().map(|eight| [eight[2 * half], eight[2 * half + 1]]);
                self.weigh_row(k, block, half, pairs.collect(), scale, ty)
            })
        };
        scores.iter().enumerate().map(of_block).collect()
    }

    fn weigh_row(
        &self,
        k: &'k Builder,
        block: usize,
        half: usize,
        scores: Vec<[F32<'k>; 2]>,
        scale: F32<'k>,
        ty: PtxType,
    ) -> Vec<Word<'k>> {
        let values: Vec<F32<'k>> = scores.into_iter().flatten().collect();
        let (weights, kept) = self.rows[2 * block + half].weigh(k, &values, scale, ty);
        for sum in self.sums[block].iter().flat_map(|eight| &eight[2 * half..][..2]) {
            sum.set(k.mul(*sum, kept));
        }
        weights.chunks_exact(2).map(|pair| pack(k, ty, [pair[0], pair[1]])).collect()
    }

    /// The sums of a row of the thread: two of every 8 columns.
    fn pairs(&self, row: usize) -> Vec<[F32<'k>; 2]> {
        let half = 2 * (row % 2);
        self.sums[row / 2].iter().map(|eight| [eight[half].get(), eight[half + 1].get()]).collect()
    }
}

impl Kernel for FlashAttention {
    fn name(&self) -> String {
        let output = if self.parts { "parts" } else { self.output.word() };
        let causal = if self.causal { "_causal" } else { "" };
        let (rows, keys) = (self.tile.warp_rows(), self.tile.keys());
        let warps = self.tile.rows() / rows;
        format!("flash_attention{causal}_{}_{output}_{warps}x{rows}x{keys}_{}", self.input.word(), self.width)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.tile.threads(), 1, 1], |k| self.write(k))
    }
}

/// Keys of a part, in whole tiles, if all keys are divided into this many parts.
fn part_keys(tile: FlashTile, keys: u32, parts: u32) -> u32 {
    keys.div_ceil(parts).next_multiple_of(tile.keys())
}

/// The launches for these extents on a device of this many multiprocessors: one, or two where keys are cut into parts.
///
/// # Errors
/// The errors of [`FlashAttention::new`] and [`FlashAttention::launch`].
pub fn plan(
    types: [PtxType; 2],
    extents: &AttentionExtents,
    causal: bool,
    scale: f32,
    multiprocessors: u32,
) -> Result<AttentionPlan<FlashAttention>> {
    let rows = extents.group.saturating_mul(extents.s);
    let Some(width) = FlashAttention::width(extents.d) else {
        let reason = format!("rows on tensor cores must have 64, 80, 96, 128 or 256 elements, not {}", extents.d);
        return Err(Error::Parameter { op: "attention", reason });
    };
    let tile = FlashTile::for_extents(rows, width);
    let kernel = FlashAttention::new(types, extents.d, causal, tile)?;
    let launch = kernel.launch(extents, scale)?;
    let keys = extents.t as u32;
    // As many parts as fill the device, and none without keys.
    let room = (multiprocessors * RESIDENT).checked_div(launch.grid[0]).unwrap_or(1);
    let parts = room.min(keys / (LEAST_TILES * tile.keys())).min(MOST_PARTS);
    if parts < 2 {
        return Ok(AttentionPlan { attention: (kernel, launch), combine: None });
    }
    let parts = keys.div_ceil(part_keys(tile, keys, parts));
    let all = extents.batch.saturating_mul(extents.kv_heads).saturating_mul(rows);
    let combine = FlashCombine::new(types[1], width);
    let scratch = FlashCombine::scratch_bytes(all, width, parts)?;
    let kernel = kernel.in_parts();
    let launch = kernel.launch_parts(extents, scale, parts)?;
    Ok(AttentionPlan {
        attention: (kernel, launch),
        combine: Some((combine, combine.launch(all, parts, scale)?, scratch)),
    })
}
