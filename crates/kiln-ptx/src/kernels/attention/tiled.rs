//! Attention of f32 in tiles, for many queries.
//!
//! `softmax(scale Q Kᵀ) V`. A block has 64 queries that share keys. It brings some keys and values at a time into shared memory, where
//! each thread computes the scores of four queries with every sixteenth key, and then four sums of weighted values. The maximum so far
//! is subtracted from the scores, and the sums are scaled when it grows (Milakov and Gimelshein 2018; Dao et al. 2022). If there are
//! fewer tiles than a device has room for, keys are divided into parts, whose results [`FlashCombine`] adds.

use kiln_ir::Result;
use kiln_ir::op::AttentionExtents;

use super::combine::{AttentionPlan, FlashCombine};
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::math::{self, F32, maximum};
use crate::kernels::team;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, PtxType, Shared, Target, Value, Variable};

/// Threads that share the keys of a query, and the columns of its result.
const ACROSS: u32 = 16;
/// Queries of a thread.
const QUERIES: u32 = 4;
/// Queries of a block.
const ROWS: u32 = 64;
/// Threads of a block.
const BLOCK: u32 = ROWS / QUERIES * ACROSS;
/// Elements of a vector, and padding elements of rows in shared memory, so that adjacent rows are in different banks.
const VECTOR: u32 = 4;
/// Supported lengths of rows: shorter rows are padded with zeros.
const WIDTHS: [u32; 2] = [64, 128];
/// Minimum queries that share keys: of fewer, most of a tile would be empty.
const LEAST_QUERIES: usize = 32;
/// Maximum queries, keys and blocks.
const MOST: u64 = 1 << 31;

/// Attention in tiles, of rows of up to this many elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TiledAttention {
    causal: bool,
    width: u32,
    /// Whether it writes partial results to be combined.
    parts: bool,
    target: Target,
}

type Word<'k> = Value<'k, u32>;

impl TiledAttention {
    /// The launches for these extents on a device with this many multiprocessors; `None` for rows that are too long or are no
    /// whole vectors, and for few queries.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ queries or keys.
    pub fn plan(
        extents: &AttentionExtents,
        causal: bool,
        scale: f32,
        target: Target,
        multiprocessors: u32,
    ) -> Result<Option<AttentionPlan<Self>>> {
        let AttentionExtents { batch, kv_heads, group, s, t, d, dv } = *extents;
        let width = WIDTHS.into_iter().find(|&width| d <= width as usize);
        let queries = group.saturating_mul(s);
        let Some(width) = width.filter(|_| d == dv && d > 0 && d.is_multiple_of(VECTOR as usize)) else {
            return Ok(None);
        };
        if queries < LEAST_QUERIES {
            return Ok(None);
        }
        let heads = batch.saturating_mul(kv_heads);
        let tiles = queries.div_ceil(ROWS as usize);
        let blocks = extent("tiles of queries", heads.saturating_mul(tiles), MAX_GRID_X)?;
        let all = heads.saturating_mul(queries);
        let kernel = Self { causal, width, parts: false, target };
        // Two blocks of every multiprocessor are busy.
        let wanted = (2 * multiprocessors).checked_div(blocks).unwrap_or(0) as usize;
        let keys = kernel.keys() as usize;
        let part = t.div_ceil(wanted.max(1)).next_multiple_of(keys);
        let parts = t.div_ceil(part.max(1)) as u32;
        let kernel = Self { parts: parts > 1, ..kernel };
        let words = [
            extent("queries", queries, MOST)?,
            extent("queries", s, MOST)?,
            extent("keys", t, MOST)?,
            d as u32,
            tiles as u32,
            extent("queries", all, MOST)?,
            extent("keys", part, MOST)?,
        ];
        let scalars = words.map(Argument::U32).into_iter().chain([Argument::F32(scale)]);
        let arguments = (0..4).map(Argument::Buffer).chain(scalars).collect();
        let attention = (kernel, Launch { grid: [blocks, parts.max(1), 1], arguments });
        if !kernel.parts {
            return Ok(Some(AttentionPlan { attention, combine: None }));
        }
        let combine = FlashCombine::new(PtxType::F32, d as u32);
        // Scores are scaled already.
        let adding = combine.launch(all, parts, 1.0)?;
        let scratch = FlashCombine::scratch_bytes(all, d as u32, parts)?;
        Ok(Some(AttentionPlan { attention, combine: Some((combine, adding, scratch)) }))
    }

    /// Every kernel for devices from `target` on.
    pub fn all(target: Target) -> Vec<Self> {
        let of = |width| {
            [false, true]
                .into_iter()
                .flat_map(move |causal| [false, true].map(|parts| Self { causal, width, parts, target }))
        };
        WIDTHS.into_iter().flat_map(of).collect()
    }

    /// Keys at a time.
    fn keys(&self) -> u32 {
        if self.width > 64 { 32 } else { 64 }
    }

    /// Elements of a row of queries and keys in shared memory.
    fn pitch(&self) -> u32 {
        self.width + VECTOR
    }

    /// Elements of a row of weights in shared memory.
    fn weights_pitch(&self) -> u32 {
        self.keys() + VECTOR
    }

    fn write(&self, k: &Builder) {
        let [q, keys, values, out] = ["q", "k", "v", "out"].map(|name| k.buffer::<f32>(name));
        let [rows, s, t, d, tiles, all, part] =
            ["rows", "s", "t", "d", "tiles", "all", "part_keys"].map(|name| k.parameter::<u32>(name));
        let scale = k.parameter::<f32>("scale");
        let (head, number) = (k.ctaid_x() / tiles, k.ctaid_x() % tiles);
        // Causal tiles at the end have the most keys, so they begin first.
        let tile = if self.causal { tiles - 1u32 - number } else { number };
        let first = tile * ROWS;
        let thread = k.tid_x();
        let (across, down) = (thread & (ACROSS - 1), thread >> ACROSS.ilog2());
        let mine = down * QUERIES;
        let shared_q = k.shared::<f32>(ROWS * self.pitch());
        let shared_k = k.shared::<f32>((self.keys() * self.pitch()).max(ROWS * self.weights_pitch()));
        let shared_v = k.shared::<f32>(self.keys() * self.width);
        // Weights are written when the keys have been read.
        let weights = shared_k;

        let before = k.mul_wide(head, rows) + k.cvt_u64(first);
        self.bring(k, q.index_wide(before * k.cvt_u64(d)), [rows - first, d], shared_q, [ROWS, self.pitch()]);
        let before = k.mul_wide(head, t) * k.cvt_u64(d);
        let [keys, values] = [keys, values].map(|at| at.index_wide(before));

        let row = |i: u32| first + mine + i;
        let seen: Vec<Word<'_>> = (0..QUERIES)
            .map(|i| k.selp(if self.causal { t - s + row(i) % s + 1u32 } else { t }, 0, k.lt(row(i), rows)))
            .collect();
        // Keys that some query of the tile sees, and keys that all of them see.
        let (some, every) = if self.causal {
            let last = k.min(first + (ROWS - 1), rows - 1u32);
            let one_head = k.eq(first / s, last / s);
            let some = k.selp(t - s + last % s + 1u32, t, one_head);
            (some, t - s + k.selp(first % s, 0, one_head) + 1u32)
        } else {
            (t, t)
        };
        let begin = if self.parts { k.ctaid_y() * part } else { k.constant(0u32) };
        let end = if self.parts { k.min(begin + part, some) } else { some };

        let greatest: Vec<Variable<'_, f32>> = seen.iter().map(|_| k.variable(f32::NEG_INFINITY)).collect();
        let totals: Vec<Variable<'_, f32>> = seen.iter().map(|_| k.variable(0.0f32)).collect();
        let columns = (self.width / ACROSS) as usize;
        let sums: Vec<Vec<Variable<'_, f32>>> =
            seen.iter().map(|_| (0..columns).map(|_| k.variable(0.0f32)).collect()).collect();
        k.for_(begin, end, self.keys(), |j| {
            // All have finished with the keys and values before.
            k.bar_sync(0u32);
            let at = k.mul_wide(j, d);
            self.bring(k, keys.index_wide(at), [t - j, d], shared_k, [self.keys(), self.pitch()]);
            self.bring(k, values.index_wide(at), [t - j, d], shared_v, [self.keys(), self.width]);
            k.bar_sync(0u32);
            let scores = self.scores(k, shared_q.index(mine * self.pitch()), shared_k.index(across * self.pitch()));
            // All have read the keys.
            k.bar_sync(0u32);
            for (i, scores) in scores.iter().enumerate() {
                let score = |(e, &score): (usize, &F32<'_>)| {
                    let key = j + across + e as u32 * ACROSS;
                    k.selp(score * scale, f32::NEG_INFINITY, k.lt(key, seen[i]))
                };
                let scores: Vec<F32<'_>> = scores.iter().enumerate().map(score).collect();
                let Some(found) = team::tree(scores.clone(), |a, b| maximum(self.target, a, b)) else { return };
                let found = team::butterfly(found, ACROSS, |a, b| maximum(self.target, a, b));
                let before = greatest[i].get();
                let now = maximum(self.target, before, found);
                // If all scores are -∞, nothing is subtracted: the weights are 0, and so is their sum.
                let base = k.selp(0.0, now, k.eq(now, f32::NEG_INFINITY));
                let kept = math::exp(before - base);
                greatest[i].set(now);
                sums[i].iter().for_each(|sum| sum.set(sum.get() * kept));
                let at = weights.index((mine + i as u32) * self.weights_pitch() + across);
                let mut total = totals[i].get() * kept;
                for (e, score) in scores.into_iter().enumerate() {
                    let weight = math::exp(score - base);
                    total = total + weight;
                    k.st(at.offset((e as u32 * ACROSS) as i32), weight);
                }
                totals[i].set(total);
            }
            k.bar_sync(0u32);
            let weights = weights.index(mine * self.weights_pitch());
            let values = shared_v.index(across * VECTOR);
            k.if_else(
                k.le(j + self.keys(), every),
                || self.add(k, weights, values, &sums, None),
                || self.add(k, weights, values, &sums, Some((j, &seen))),
            );
        });

        let column = across * VECTOR;
        for (i, (sums, &seen)) in sums.iter().zip(&seen).enumerate() {
            let total = team::butterfly(totals[i].get(), ACROSS, |a, b| a + b);
            let there = k.lt(row(i as u32), rows);
            let number = k.mul_wide(head, rows) + k.cvt_u64(row(i as u32));
            let number = if self.parts { k.mul_wide(k.ctaid_y(), all) + number } else { number };
            let at = out.index_wide(number * k.cvt_u64(d)).index(column);
            for (c, sums) in (0..).zip(sums.chunks(VECTOR as usize)) {
                let place = c * ACROSS * VECTOR;
                let result = |e: usize| {
                    let sum = sums[e].get();
                    if self.parts { sum } else { k.selp(0.0, sum / total, k.eq(seen, 0)) }
                };
                let there = k.and(there, k.lt(column + place, d));
                k.st_v_if(there, at.offset(place as i32), std::array::from_fn::<_, 4, _>(result));
            }
            if self.parts {
                // After the sums of all parts the reference scores and totals of the weights.
                let sums = k.mul_wide(k.nctaid_y(), all) * k.cvt_u64(d);
                let at = out.index_wide(sums + number * 2u64);
                k.if_(k.and(there, k.eq(across, 0)), || k.st_v(at, [greatest[i].get(), total]));
            }
        }
    }

    /// Copies `count` rows to shared memory, `pitch` elements apart, as zeros what is outside of `there` rows and columns.
    fn bring<'k>(
        &self,
        k: &'k Builder,
        from: Pointer<'k, Global, f32>,
        there: [Word<'k>; 2],
        to: Pointer<'k, Shared, f32>,
        [count, pitch]: [u32; 2],
    ) {
        let across = self.width / VECTOR;
        for step in 0..count * across / BLOCK {
            let number = k.tid_x() + step * BLOCK;
            let (row, column) = (number / across, number % across * VECTOR);
            let inside = k.and(k.lt(row, there[0]), k.lt(column, there[1]));
            let vector: [F32<'k>; 4] = k.ld_v_if(inside, from.index_wide(k.mul_wide(row, there[1])).index(column), 0.0);
            k.st_v(to.index(row * pitch + column), vector);
        }
    }

    /// The scores of the queries of a thread, in rows from `queries` on, with every sixteenth key from `keys` on.
    fn scores<'k>(
        &self,
        k: &'k Builder,
        queries: Pointer<'k, Shared, f32>,
        keys: Pointer<'k, Shared, f32>,
    ) -> Vec<Vec<F32<'k>>> {
        /// Elements of an iteration.
        const AT_ONCE: u32 = 16;
        let of_thread = (self.keys() / ACROSS) as usize;
        let scores: Vec<Vec<Variable<'k, f32>>> =
            (0..QUERIES).map(|_| (0..of_thread).map(|_| k.variable(0.0f32)).collect()).collect();
        k.for_(0u32, self.width, AT_ONCE, |element| {
            let (queries, keys) = (queries.index(element), keys.index(element));
            let mut added: Vec<Vec<F32<'k>>> =
                scores.iter().map(|scores| scores.iter().map(|score| score.get()).collect()).collect();
            for step in (0..AT_ONCE).step_by(VECTOR as usize) {
                let vector = |at: Pointer<'k, Shared, f32>, row: u32| -> [F32<'k>; 4] {
                    k.ld_v(at.offset((row * self.pitch() + step) as i32))
                };
                let queries: Vec<_> = (0..QUERIES).map(|i| vector(queries, i)).collect();
                let keys: Vec<_> = (0..of_thread as u32).map(|e| vector(keys, e * ACROSS)).collect();
                for (added, query) in added.iter_mut().zip(&queries) {
                    for (added, key) in added.iter_mut().zip(&keys) {
                        for (&a, &b) in query.iter().zip(key) {
                            *added = k.fma(a, b, *added);
                        }
                    }
                }
            }
            for (scores, added) in scores.iter().zip(added) {
                scores.iter().zip(added).for_each(|(score, added)| score.set(added));
            }
        });
        scores.iter().map(|scores| scores.iter().map(|score| score.get()).collect()).collect()
    }

    /// Adds the weighted values to the sums. A key that a query does not see is left out if the first key and the numbers of seen
    /// keys are given: its weight is 0, and times a value that is not finite that would not be 0.
    fn add<'k>(
        &self,
        k: &'k Builder,
        weights: Pointer<'k, Shared, f32>,
        values: Pointer<'k, Shared, f32>,
        sums: &[Vec<Variable<'k, f32>>],
        partly: Option<(Word<'k>, &[Word<'k>])>,
    ) {
        k.for_(0u32, self.keys(), VECTOR, |key| {
            let of_key: Vec<[F32<'k>; 4]> =
                (0..QUERIES).map(|i| k.ld_v(weights.offset((i * self.weights_pitch()) as i32).index(key))).collect();
            let values = values.index(key * self.width);
            let mut added: Vec<Vec<F32<'k>>> =
                sums.iter().map(|sums| sums.iter().map(|sum| sum.get()).collect()).collect();
            for e in 0..VECTOR {
                let chunk =
                    |c: u32| -> [F32<'k>; 4] { k.ld_v(values.offset((e * self.width + c * ACROSS * VECTOR) as i32)) };
                let values: Vec<F32<'k>> = (0..self.width / (ACROSS * VECTOR)).flat_map(chunk).collect();
                for (i, added) in added.iter_mut().enumerate() {
                    let seen = partly.map(|(first, seen)| k.lt(first + key + e, seen[i]));
                    for (added, &value) in added.iter_mut().zip(&values) {
                        let now = k.fma(of_key[i][e as usize], value, *added);
                        *added = seen.map_or(now, |seen| k.selp(now, *added, seen));
                    }
                }
            }
            for (sums, added) in sums.iter().zip(added) {
                sums.iter().zip(added).for_each(|(sum, added)| sum.set(added));
            }
        });
    }
}

impl Kernel for TiledAttention {
    fn name(&self) -> String {
        let (causal, parts) = (if self.causal { "_causal" } else { "" }, if self.parts { "_parts" } else { "" });
        format!("attention{causal}_tiles{}{parts}", self.width)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
