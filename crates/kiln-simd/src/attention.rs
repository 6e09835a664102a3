//! Attention without its matrix of weights.
//!
//! Query rows that share keys, those of all heads of a group, are one list, cut into blocks. For a block, the keys are
//! walked in blocks too, with the running maximum, sum and mean of an online softmax. Scores are computed transposed, a
//! key a row and queries across the lanes: keys are broadcast from where they stand, the maximum and the sum over keys
//! need no horizontal steps, and the weights are a column-major matrix for the product with the values.

use kiln_core::op::{Attention, AttentionExtents};
use kiln_core::{DataMut, Operand, Result};

use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::tile::{ColumnMajor, RowMajor, Target, max_rows, multiply, panels};
use crate::vector::{Kernel, Vector, dispatch};

/// Queries of a block: lanes of a row of scores.
const QUERIES: usize = 64;

/// Keys of a block. With the queries, scores and values of a block they fit the second-level cache.
const KEYS: usize = 128;

/// Terms of a running sum of a score.
const TERMS: usize = 512;

/// Flops below which one thread is faster.
const PARALLEL: usize = 1_000_000;

impl Execute for Attention {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let e = self.extents(&inputs[0].shape(), &inputs[1].shape(), &inputs[2].shape())?;
        let (q, k, v) = (f32s(inputs, 0), f32s(inputs, 1), f32s(inputs, 2));
        let out = outputs[0].f32();
        if out.is_empty() || e.t == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let work = out.len().saturating_mul(e.t).saturating_mul(4);
        let threads = if work < PARALLEL { 1 } else { simd.threads() };
        let rows = e.group * e.s;
        let blocks = rows.div_ceil(QUERIES);
        let out = Shared::new(out.as_mut_ptr());
        threads::for_each(e.batch * e.kv_heads * blocks, threads, |part| {
            // The last blocks of a causal head see the most keys: they start first.
            let (head, first) = (part / blocks, (blocks - 1 - part % blocks) * QUERIES);
            let n = QUERIES.min(rows - first);
            let lanes = simd.isa().lanes();
            let depth = e.d.next_multiple_of(lanes);
            let lengths = [e.d * QUERIES, KEYS * QUERIES, QUERIES * depth, KEYS * 2 * lanes, 3 * QUERIES];
            scratch::slices(lengths, |[queries, scores, sums, values, state]| {
                let at = (head * rows + first) * e.d;
                let block = Block {
                    e,
                    causal: self.causal,
                    scale: self.scale(e.d),
                    first,
                    n,
                    q: &q[at..at + n * e.d],
                    k: &k[head * e.t * e.d..][..e.t * e.d],
                    v: &v[head * e.t * e.d..][..e.t * e.d],
                    // SAFETY: the rows of this block, which no other part writes.
                    out: unsafe { std::slice::from_raw_parts_mut(out.get().add(at), n * e.d) },
                    queries,
                    scores,
                    sums,
                    values,
                    state,
                };
                // SAFETY: a `Simd` exists only for an available instruction set.
                unsafe { dispatch(simd.isa(), block) };
            });
        });
        Ok(())
    }
}

/// A block of query rows against all keys that any of them sees.
struct Block<'a> {
    e: AttentionExtents,
    causal: bool,
    scale: f32,
    /// Position of the first row among the rows of the group.
    first: usize,
    n: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a mut [f32],
    /// Scaled queries, transposed: `d` rows of [`QUERIES`].
    queries: &'a mut [f32],
    /// Scores, then weights: a row of [`QUERIES`] for each of [`KEYS`].
    scores: &'a mut [f32],
    /// Weighted sums of values: [`QUERIES`] rows of `d`, padded to whole vectors.
    sums: &'a mut [f32],
    /// The last columns of the values, padded to two vectors.
    values: &'a mut [f32],
    /// Three rows of [`QUERIES`]: running maxima, running sums of weights, and the keys seen or the factors of the old sums.
    state: &'a mut [f32],
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        let Self { e, n, .. } = self;
        let d = e.d;
        let lanes = n.next_multiple_of(V::LANES);
        let depth = d.next_multiple_of(V::LANES);
        for c in 0..d {
            let row = &mut self.queries[c * QUERIES..][..lanes];
            row[n..].fill(0.0);
            for (r, q) in row[..n].iter_mut().enumerate() {
                *q = self.scale * self.q[r * d + c];
            }
        }
        let mut seen = [0usize; QUERIES];
        for (r, seen) in seen[..n].iter_mut().enumerate() {
            *seen = e.visible(self.causal, (self.first + r) % e.s);
        }
        self.state[..QUERIES].fill(f32::NEG_INFINITY);
        self.state[QUERIES..2 * QUERIES].fill(0.0);
        let end = seen[..n].iter().copied().max().unwrap_or(0);
        for start in (0..end).step_by(KEYS) {
            let keys = KEYS.min(end - start);
            let seen = seen.map(|s| s.saturating_sub(start).min(keys));
            // SAFETY: the scratch slices have the extents that their fields say, n and keys are within them.
            unsafe {
                self.score::<V>(start, keys, lanes);
                self.weigh::<V>(start > 0, keys, lanes, &seen[..n]);
                self.sum_values::<V>(start, keys, depth, &seen[..n]);
            }
        }
        for (r, out) in self.out.chunks_exact_mut(d).enumerate() {
            let total = self.state[QUERIES + r];
            for (out, sum) in out.iter_mut().zip(&self.sums[r * depth..]) {
                *out = sum / total;
            }
        }
    }
}

impl Block<'_> {
    /// Scores of a block of keys.
    ///
    /// # Safety
    /// The instruction set of `V` is there; `start + keys <= t`, `keys <= KEYS`, and `lanes <= QUERIES` whole vectors.
    #[inline(always)]
    unsafe fn score<V: Vector>(&mut self, start: usize, keys: usize, lanes: usize) {
        let d = self.e.d;
        let offsets: [usize; TERMS] = std::array::from_fn(|c| c * QUERIES);
        for from in (0..d).step_by(TERMS) {
            let offsets = &offsets[..TERMS.min(d - from)];
            for lane in (0..lanes).step_by(2 * V::LANES) {
                for (first, rows) in panels(keys, max_rows::<V>()) {
                    // SAFETY: rows of keys, columns of the transposed queries, and rows of scores that exist.
                    unsafe {
                        let a = RowMajor::new(self.k.as_ptr().add((start + first) * d + from), d);
                        let b = self.queries.as_ptr().add(from * QUERIES + lane);
                        let p = self.scores.as_mut_ptr().add(first * QUERIES + lane);
                        let target = Target { p, stride: QUERIES, add: from > 0 };
                        if lane + 2 * V::LANES <= lanes {
                            multiply::<V, _, true>(rows, a, b, offsets, target);
                        } else {
                            multiply::<V, _, false>(rows, a, b, offsets, target);
                        }
                    }
                }
            }
        }
        if d == 0 {
            self.scores[..keys * QUERIES].fill(0.0);
        }
    }

    /// One step of the online softmax: scores become weights relative to the new maximum, older sums are rescaled to it.
    ///
    /// # Safety
    /// As [`Block::score`].
    #[inline(always)]
    unsafe fn weigh<V: Vector>(&mut self, older: bool, keys: usize, lanes: usize, seen: &[usize]) {
        let (maxima, rest) = self.state.split_at_mut(QUERIES);
        let (totals, factors) = rest.split_at_mut(QUERIES);
        let all_seen = seen.iter().all(|&s| s == keys);
        for (r, factor) in factors.iter_mut().enumerate().take(lanes) {
            *factor = seen.get(r).copied().unwrap_or(0) as f32;
        }
        for lane in (0..lanes).step_by(V::LANES) {
            // SAFETY: `lanes` whole vectors of every row of scores and state.
            unsafe {
                let scores = self.scores.as_mut_ptr().add(lane);
                let lowest = V::splat(f32::NEG_INFINITY);
                if !all_seen {
                    let seen = V::load(factors.as_ptr().add(lane));
                    for j in 0..keys {
                        let p = scores.add(j * QUERIES);
                        V::select(V::splat(j as f32).lt(seen), V::load(p), lowest).store(p);
                    }
                }
                let old = V::load(maxima.as_ptr().add(lane));
                // A NaN score does not count here; it becomes a NaN weight below.
                let mut maximum = [old, lowest, lowest, lowest];
                for j in 0..keys {
                    maximum[j % 4] = V::load(scores.add(j * QUERIES)).greater(maximum[j % 4]);
                }
                let maximum = maximum[0].greater(maximum[1]).greater(maximum[2].greater(maximum[3]));
                // While all scores are -∞, differences from 0 give the weights 0 that differences from -∞ would not.
                let base = V::select(maximum.eq(lowest), V::splat(0.0), maximum);
                let mut sums = [V::splat(0.0); 4];
                for j in 0..keys {
                    let p = scores.add(j * QUERIES);
                    let weight = exp_of_nonpositive(V::load(p) - base);
                    weight.store(p);
                    sums[j % 4] = sums[j % 4] + weight;
                }
                let factor = exp_of_nonpositive(old - base);
                let total = V::load(totals.as_ptr().add(lane));
                let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
                total.mul_add(factor, sum).store(totals.as_mut_ptr().add(lane));
                maximum.store(maxima.as_mut_ptr().add(lane));
                factor.store(factors.as_mut_ptr().add(lane));
            }
        }
        if older {
            let depth = self.e.d.next_multiple_of(V::LANES);
            for (r, &factor) in factors[..self.n].iter().enumerate() {
                if factor != 1.0 {
                    self.sums[r * depth..][..depth].iter_mut().for_each(|s| *s *= factor);
                }
            }
        }
    }

    /// Adds the weighted values of a block of keys.
    ///
    /// # Safety
    /// As [`Block::score`]; `depth` is `d` padded to whole vectors.
    #[inline(always)]
    unsafe fn sum_values<V: Vector>(&mut self, start: usize, keys: usize, depth: usize, seen: &[usize]) {
        let d = self.e.d;
        let width = 2 * V::LANES;
        let in_place: [usize; KEYS] = std::array::from_fn(|j| j * d);
        let padded: [usize; KEYS] = std::array::from_fn(|j| j * width);
        for column in (0..depth).step_by(width) {
            let left = d - column;
            let two = left > V::LANES;
            let whole = left >= width || left == V::LANES;
            // SAFETY: rows start .. start + keys of the values, which are rows of d; the scratch holds KEYS rows of width.
            let (b, offsets) = unsafe {
                let values = self.v.as_ptr().add(start * d + column);
                if whole {
                    (values, &in_place)
                } else {
                    for j in 0..keys {
                        let (from, to) = (values.add(j * d), self.values.as_mut_ptr().add(j * width));
                        V::load_first(from, left.min(V::LANES)).store(to);
                        V::load_first(from.add(left.min(V::LANES)), left.saturating_sub(V::LANES))
                            .store(to.add(V::LANES));
                    }
                    (self.values.as_ptr(), &padded)
                }
            };
            for (first, rows) in panels(self.n, max_rows::<V>()) {
                // All rows see the first `common` keys. What only some see is added row by row, so that a key that is
                // not seen has no influence even if it holds NaN.
                let panel = &seen[first..first + rows];
                let common = panel.iter().copied().min().unwrap_or(0);
                let extra = if panel.iter().all(|&s| s == common) { 0 } else { rows };
                for piece in 0..=extra {
                    let (row, rows, from, to) = match piece {
                        0 => (first, rows, 0, common),
                        r => (first + r - 1, 1, common, seen[first + r - 1]),
                    };
                    // SAFETY: rows of weights and of sums, keys from .. to of this block.
                    unsafe {
                        let a = ColumnMajor { p: self.scores.as_ptr().add(from * QUERIES + row), stride: QUERIES };
                        let p = self.sums.as_mut_ptr().add(row * depth + column);
                        let target = Target { p, stride: depth, add: start > 0 || piece > 0 };
                        let (b, offsets) = (b.add(offsets[from.min(KEYS - 1)]), &offsets[..to - from]);
                        if two {
                            multiply::<V, _, true>(rows, a, b, offsets, target);
                        } else {
                            multiply::<V, _, false>(rows, a, b, offsets, target);
                        }
                    }
                }
            }
        }
    }
}

/// `eˣ` for x up to 0, -∞ and NaN; what is below the normal range may be 0.
#[inline(always)]
fn exp_of_nonpositive<V: Vector>(x: V) -> V {
    // NaN passes: `greater` gives its second operand.
    let x = x.of(-120.0).greater(x);
    let n = (x * x.of(std::f32::consts::LOG2_E)).round();
    // The first part of ln 2 has so few bits that its products with n are exact.
    let r = n.mul_add(x.of(-0.693_359_4), x);
    let r = n.mul_add(x.of(2.121_944_4e-4), r);
    let mut p = x.of(1.0 / 720.0);
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, x.of(c));
    }
    p.scale_pow2(n)
}

impl Simd {
    /// Scaled dot-product attention: queries `[heads, s, d]` or `[batch, heads, s, d]`, keys and values
    /// `[kv_heads, t, d]` or `[batch, kv_heads, t, d]`. The result has the extents of the queries.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when a slice does not have its extents, [`kiln_core::Error::Shape`] when they do not fit
    /// one another, `heads` is not a multiple of `kv_heads`, or causal queries outnumber the keys.
    pub fn attention(
        &self,
        op: Attention,
        q: &[f32],
        q_dims: &[usize],
        k: &[f32],
        v: &[f32],
        kv_dims: &[usize],
    ) -> Result<Vec<f32>> {
        self.f32_vec(op, &[Operand::f32(q, q_dims)?, Operand::f32(k, kv_dims)?, Operand::f32(v, kv_dims)?])
    }

    /// [`Simd::attention`] into `out`.
    ///
    /// # Errors
    /// As [`Simd::attention`].
    pub fn attention_into(
        &self,
        op: Attention,
        q: &[f32],
        q_dims: &[usize],
        k: &[f32],
        v: &[f32],
        kv_dims: &[usize],
        out: &mut [f32],
    ) -> Result<()> {
        let inputs = [Operand::f32(q, q_dims)?, Operand::f32(k, kv_dims)?, Operand::f32(v, kv_dims)?];
        self.f32_into(op, &inputs, out)
    }
}
