use kiln_ir::op::AttentionExtents;

use super::{KEYS, QUERIES};
use crate::Isa;
use crate::array::{Each, from_fn};
use crate::gemm::turn_square;
use crate::math;
use crate::tile::{ColumnMajor, Left, Product, ProductArgs, RowMajor, Target, max_rows, panels};
use crate::vector::{Kernel, Vector, routine};

/// Terms of a running sum of a score.
const TERMS: usize = 512;

/// Where the rows of the transposed queries stand.
static ROWS_OF_QUERIES: [usize; TERMS] = {
    let mut offsets = [0; TERMS];
    let mut c = 0;
    while c < TERMS {
        offsets[c] = c * QUERIES;
        c += 1;
    }
    offsets
};

/// A block of query rows against all keys that any of them sees.
pub(super) struct Block<'a> {
    pub(super) isa: Isa,
    pub(super) e: AttentionExtents,
    pub(super) causal: bool,
    pub(super) scale: f32,
    /// Position of the first row among the rows of the group.
    pub(super) first: usize,
    pub(super) n: usize,
    /// Whether keys and values come from beyond the second-level cache.
    pub(super) far: bool,
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) out: &'a mut [f32],
    /// Scaled queries: `d` rows of [`QUERIES`]; or, few of them, rows of `d` padded to whole vectors.
    pub(super) queries: &'a mut [f32],
    /// Scores, then weights: a row of [`QUERIES`] for each of [`KEYS`]; or, of few queries, the other way round.
    pub(super) scores: &'a mut [f32],
    /// Weighted sums of values: [`QUERIES`] rows of `d`, padded to whole vectors.
    pub(super) sums: &'a mut [f32],
    /// The last columns of the values, padded to two vectors.
    pub(super) values: &'a mut [f32],
    /// Three rows of [`QUERIES`]: running maxima, running sums of weights, and the factors of earlier sums.
    pub(super) state: &'a mut [f32],
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        let Self { e, n, .. } = self;
        let d = e.d;
        let lanes = n.next_multiple_of(V::LANES);
        let depth = d.next_multiple_of(V::LANES);
        // Queries across the lanes, or the elements of each.
        let few = n <= V::LANES / 2;
        if few {
            self.scale_queries(depth);
        } else {
            // SAFETY: the instruction set is there.
            unsafe { self.transpose_queries::<V>(lanes) };
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
            let seen = seen.each(|s| s.saturating_sub(start).min(keys));
            // SAFETY: the scratch slices have the extents that their fields say, n and keys are within them.
            unsafe {
                if few {
                    self.score_few::<V>(start, keys, depth);
                    self.weigh_few::<V>(keys, &seen[..n]);
                } else {
                    self.score::<V>(start, keys, lanes);
                    self.weigh::<V>(keys, lanes, &seen[..n]);
                }
                if start > 0 {
                    self.rescale(depth);
                }
                let weights = self.scores.as_ptr();
                if few {
                    let common = seen[..n].iter().copied().min().unwrap_or(0);
                    let done = self.sum_few::<V>(start, common, depth);
                    if done == d && seen[..n].iter().all(|&s| s == common) {
                        continue;
                    }
                    let a = |row: usize, key: usize| RowMajor::new(weights.wrapping_add(row * KEYS + key), KEYS);
                    self.sum_values::<V, _>(start, keys, depth, &seen[..n], done, a);
                } else {
                    let a = |row: usize, key: usize| ColumnMajor {
                        p: weights.wrapping_add(key * QUERIES + row),
                        stride: QUERIES,
                    };
                    self.sum_values::<V, _>(start, keys, depth, &seen[..n], 0, a);
                }
            }
        }
        for (r, out) in self.out.chunks_exact_mut(d).enumerate() {
            // At least 1, the weight of the greatest score, or NaN.
            let share = 1.0 / self.state[QUERIES + r];
            for (out, sum) in out.iter_mut().zip(&self.sums[r * depth..]) {
                *out = sum * share;
            }
        }
    }
}

impl Block<'_> {
    /// Scaled queries, a lane each; the lanes beyond them are zeros.
    ///
    /// # Safety
    /// The instruction set of `V` is there.
    #[inline(always)]
    unsafe fn transpose_queries<V: Vector>(&mut self, lanes: usize) {
        let (n, d) = (self.n, self.e.d);
        for lane in (0..lanes).step_by(V::LANES) {
            for c in (0..d).step_by(V::LANES) {
                let (columns, rows) = ((n - lane).min(V::LANES), (d - c).min(V::LANES));
                // SAFETY: rows of queries that exist, and rows of the scratch, whole vectors wide.
                unsafe {
                    let from = self.q.as_ptr().add(lane * d + c);
                    let to = self.queries.as_mut_ptr().add(c * QUERIES + lane);
                    turn_square::<V>(from, d, columns, rows, to, QUERIES, V::LANES);
                    for row in 0..rows {
                        let p = to.add(row * QUERIES);
                        (V::splat(self.scale) * V::load(p)).store(p);
                    }
                }
            }
        }
    }

    /// A tile of two vectors or of one.
    ///
    /// # Safety
    /// As of [`multiply`](crate::tile::multiply), on the instruction set of this block.
    unsafe fn multiply<A: Left>(&self, two: bool, args: ProductArgs<A>) {
        let run = if two { routine::<Product<A, 2>>(self.isa) } else { routine::<Product<A, 1>>(self.isa) };
        // SAFETY: the caller's contract.
        unsafe { run(&args) }
    }

    /// Brings the sums of earlier blocks to the maximum of this one.
    #[inline(always)]
    fn rescale(&mut self, depth: usize) {
        for (r, &factor) in self.state[2 * QUERIES..][..self.n].iter().enumerate() {
            if factor != 1.0 {
                self.sums[r * depth..][..depth].iter_mut().for_each(|s| *s *= factor);
            }
        }
    }

    /// Scores of a block of keys.
    ///
    /// # Safety
    /// The instruction set of `V` is there; `start + keys <= t`, `keys <= KEYS`, and `lanes <= QUERIES` whole vectors.
    #[inline(always)]
    unsafe fn score<V: Vector>(&mut self, start: usize, keys: usize, lanes: usize) {
        let d = self.e.d;
        for from in (0..d).step_by(TERMS) {
            let offsets = &ROWS_OF_QUERIES[..TERMS.min(d - from)];
            for lane in (0..lanes).step_by(2 * V::LANES) {
                for (first, rows) in panels(keys, max_rows::<V>(2)) {
                    // SAFETY: rows of keys, columns of the transposed queries, and rows of scores that exist.
                    unsafe {
                        let a = RowMajor::new(self.k.as_ptr().add((start + first) * d + from), d);
                        let b = self.queries.as_ptr().add(from * QUERIES + lane);
                        let p = self.scores.as_mut_ptr().add(first * QUERIES + lane);
                        let target = Target { p, stride: QUERIES, add: from > 0 };
                        let two = lane + 2 * V::LANES <= lanes;
                        self.multiply(two, ProductArgs { rows, a, b, offsets, target });
                    }
                }
            }
        }
    }

    /// One step of the online softmax: scores become weights relative to the new maximum; what older weights are to be
    /// multiplied with for it is left in the last row of the state.
    ///
    /// # Safety
    /// As [`Block::score`].
    #[inline(always)]
    unsafe fn weigh<V: Vector>(&mut self, keys: usize, lanes: usize, seen: &[usize]) {
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
                    let weight = math::exp(V::load(p) - base);
                    weight.store(p);
                    sums[j % 4] = sums[j % 4] + weight;
                }
                let factor = math::exp(old - base);
                let total = V::load(totals.as_ptr().add(lane));
                let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
                total.mul_add(factor, sum).store(totals.as_mut_ptr().add(lane));
                maximum.store(maxima.as_mut_ptr().add(lane));
                factor.store(factors.as_mut_ptr().add(lane));
            }
        }
    }

    /// Adds the weighted values of a block of keys. In columns before `done` those of the keys that all queries see have
    /// been added.
    ///
    /// # Safety
    /// As [`Block::score`]; `depth` is `d` padded to whole vectors; `weights(row, key)` is the matrix of weights from there.
    #[inline(always)]
    unsafe fn sum_values<V: Vector, A: Left>(
        &mut self,
        start: usize,
        keys: usize,
        depth: usize,
        seen: &[usize],
        done: usize,
        weights: impl Fn(usize, usize) -> A,
    ) {
        let d = self.e.d;
        let width = 2 * V::LANES;
        let in_place: [usize; KEYS] = from_fn(|j| j * d);
        let padded: [usize; KEYS] = from_fn(|j| j * width);
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
            for (first, rows) in panels(self.n, max_rows::<V>(2)) {
                // All rows see the first `common` keys. What only some see is added row by row, so that a key that is
                // not seen has no influence even if it holds NaN.
                let panel = &seen[first..first + rows];
                let common = panel.iter().copied().min().unwrap_or(0);
                let extra = if panel.iter().all(|&s| s == common) { 0 } else { rows };
                for piece in usize::from(column < done)..=extra {
                    let (row, rows, from, to) = match piece {
                        0 => (first, rows, 0, common),
                        r => (first + r - 1, 1, common, seen[first + r - 1]),
                    };
                    // SAFETY: rows of weights and of sums, keys from .. to of this block.
                    unsafe {
                        let a = weights(row, from);
                        let p = self.sums.as_mut_ptr().add(row * depth + column);
                        let target = Target { p, stride: depth, add: start > 0 || piece > 0 };
                        let (b, offsets) = (b.add(offsets[from.min(KEYS - 1)]), &offsets[..to - from]);
                        self.multiply(two, ProductArgs { rows, a, b, offsets, target });
                    }
                }
            }
        }
    }
}
