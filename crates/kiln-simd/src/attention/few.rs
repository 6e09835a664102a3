//! Attention of few queries: scores are inner products, keys across the lanes; values are read in whole rows.
//!
//! Little is computed with a key before the next one is needed, so that keys and values should stream. Blocks of them
//! alternate, though, which no prefetcher of the hardware foresees: while a block of one is read, the rows of the other
//! that come next are asked for.

use super::block::{Block, Rows, Span};
use super::{KEYS, QUERIES};
use crate::math;
use crate::vector::{MAX_LANES, Vector};

/// Total elements of keys from which keys and values are beyond the second-level cache.
pub(super) const FAR: usize = 256 * 1024;

/// Maximum number of accumulators of a tile of weighted values.
const SUMS: usize = 16;

/// Expands a block of code for every literal below a bound, so that its accumulators stay in registers.
macro_rules! each {
    ($i:ident < $bound:expr => $body:expr) => { each!(@ $i, $bound, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    (@ $i:ident, $bound:expr, $body:expr, $($n:literal)*) => {
        $(if const { $n < $bound } { const $i: usize = $n; $body; })*
    };
}

/// Vectors of values that are summed at once for this many queries: enough accumulators to hide the latency of an
/// addition, or as many as fit the registers.
pub(super) const fn columns<V: Vector>(queries: usize) -> usize {
    match (queries, V::REGISTERS >= 32) {
        (1, _) | (2, true) => 8,
        (2, false) | (3 | 4, true) => 4,
        _ => 0,
    }
}

impl Block<'_> {
    /// Scaled queries as rows, padded with zeros.
    #[inline(always)]
    pub(super) fn scale_queries(&mut self, depth: usize) {
        let d = self.e.d;
        if d == 0 {
            return;
        }
        for (to, from) in self.queries.chunks_exact_mut(depth).zip(self.q.chunks_exact(d)) {
            to[d..].fill(0.0);
            to.iter_mut().zip(from).for_each(|(to, from)| *to = self.scale * from);
        }
    }

    /// Scores of a block of keys, a row of [`KEYS`] for each query. A vector of keys is multiplied with a query at
    /// once, each key with its own sum; the transposed sums add up to a vector of scores.
    ///
    /// # Safety
    /// The conditions of [`Block::score`] hold; `depth` is `d` padded to whole vectors.
    #[inline(always)]
    pub(super) unsafe fn score_few<V: Vector>(&mut self, rows: Rows, start: usize, keys: usize, depth: usize) {
        let (d, dv) = (self.e.d, self.e.dv);
        for group in (0..keys).step_by(V::LANES) {
            let last = (keys - group).min(V::LANES) - 1;
            for query in 0..self.n {
                // SAFETY: keys start + group ..= start + group + last exist, rows of d; the scores have whole vectors.
                unsafe {
                    let k = rows.k.wrapping_add((start + group) * d);
                    let v = rows.v.wrapping_add((start + group) * dv);
                    let q = self.queries.as_ptr().add(query * depth);
                    let ask = self.far && query == 0;
                    let zero = V::splat(0.0);
                    let z = zero;
                    let mut sums: [V; MAX_LANES] = [z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z];
                    let mut c = 0;
                    // Lanes beyond the last key repeat it; no query sees them.
                    let row = |lane: usize| lane.min(last);
                    if last + 1 == V::LANES {
                        while c + V::LANES <= d {
                            let q = V::load(q.add(c));
                            if ask {
                                each!(I < V::LANES => V::prefetch_far(v.wrapping_add(I * dv + c)));
                            }
                            each!(I < V::LANES => sums[I] = V::load(k.add(I * d + c)).mul_add(q, sums[I]));
                            c += V::LANES;
                        }
                    } else {
                        while c + V::LANES <= d {
                            let q = V::load(q.add(c));
                            each!(I < V::LANES => sums[I] = V::load(k.add(row(I) * d + c)).mul_add(q, sums[I]));
                            c += V::LANES;
                        }
                    }
                    if c < d {
                        let q = V::load(q.add(c));
                        each!(I < V::LANES => sums[I] = V::load_first(k.add(row(I) * d + c), d - c).mul_add(q, sums[I]));
                    }
                    V::sums(sums).store(self.scores.as_mut_ptr().add(query * KEYS + group));
                }
            }
        }
    }

    /// One step of the online softmax like [`Block::weigh`], one query at a time.
    ///
    /// # Safety
    /// The conditions of [`Block::score`] hold.
    #[inline(always)]
    pub(super) unsafe fn weigh_few<V: Vector>(&mut self, keys: usize, seen: &[Span]) {
        for (query, seen) in seen.iter().enumerate() {
            let scores = &mut self.scores[query * KEYS..][..KEYS];
            scores[..seen.start].fill(f32::NEG_INFINITY);
            scores[seen.end..keys.next_multiple_of(V::LANES)].fill(f32::NEG_INFINITY);
            let old = self.state[query];
            // SAFETY: whole vectors of a row of scores; the instruction set of `V` is available.
            unsafe {
                let scores = scores.as_mut_ptr();
                // A NaN score is ignored here; it becomes a NaN weight below.
                let mut maximum = V::splat(old);
                for j in (0..keys).step_by(V::LANES) {
                    maximum = V::load(scores.add(j)).greater(maximum);
                }
                let maximum = maximum.across(V::greater);
                // If all scores are -∞, subtracting 0 gives the weights 0, and subtracting -∞ would give NaN.
                let base = if maximum == f32::NEG_INFINITY { 0.0 } else { maximum };
                let mut sum = V::splat(0.0);
                for j in (0..keys).step_by(V::LANES) {
                    let weight = math::exp(V::load(scores.add(j)) - V::splat(base));
                    weight.store(scores.add(j));
                    sum = sum + weight;
                }
                let factor = math::exp(V::splat(old - base)).first();
                let total = &mut self.state[QUERIES + query];
                *total = *total * factor + sum.across(|a, b| a + b);
                self.state[query] = maximum;
                self.state[2 * QUERIES + query] = factor;
            }
        }
    }

    /// Adds the weighted values of `keys` keys of a block, beginning with `first`, in columns `0 ..` while there are
    /// enough columns for a tile. Returns the end of these columns.
    ///
    /// # Safety
    /// The conditions of [`Block::score`] hold; `deep` is `dv` padded to whole vectors, and every query sees these keys.
    #[inline(always)]
    pub(super) unsafe fn sum_few<V: Vector>(
        &mut self,
        rows: Rows,
        start: usize,
        first: usize,
        keys: usize,
        deep: usize,
    ) -> usize {
        let (d, lanes) = (self.e.dv, V::LANES);
        let range = (start, first, keys);
        let widest = columns::<V>(self.n);
        let mut column = 0;
        for width in [8, 4] {
            while width <= widest && column + width * lanes <= d {
                // SAFETY: the contract of this function; the columns are inside of the rows.
                unsafe {
                    match (self.n, width) {
                        (1, 8) => self.tile::<V, 1, 8, 1>(rows, range, deep, column),
                        (1, _) => self.tile::<V, 1, 4, 2>(rows, range, deep, column),
                        (2, 8) => self.tile::<V, 2, 8, 1>(rows, range, deep, column),
                        (2, _) => self.tile::<V, 2, 4, 1>(rows, range, deep, column),
                        (3, _) => self.tile::<V, 3, 4, 1>(rows, range, deep, column),
                        _ => self.tile::<V, 4, 4, 1>(rows, range, deep, column),
                    }
                }
                column += width * lanes;
            }
        }
        column
    }

    /// `C` vectors of the weighted values for `R` queries; for one query, `AT_ONCE` keys per step, each with its own
    /// accumulators.
    ///
    /// # Safety
    /// The conditions of [`Block::sum_few`] hold; the columns are inside of the rows.
    #[inline(always)]
    unsafe fn tile<V: Vector, const R: usize, const C: usize, const AT_ONCE: usize>(
        &mut self,
        rows: Rows,
        (start, first, keys): (usize, usize, usize),
        deep: usize,
        column: usize,
    ) {
        // Only these combinations fit the registers; see `columns`.
        if const { R * C * AT_ONCE > SUMS || R > 1 && AT_ONCE > 1 || C > columns::<V>(R) } {
            return;
        }
        let (d, dv) = (self.e.d, self.e.dv);
        // SAFETY: rows of values and of weights that exist, and rows of the sums.
        unsafe {
            let z = V::splat(0.0);
            let mut sums = [z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z];
            let mut v = rows.v.wrapping_add((start + first) * dv + column);
            let mut next = rows.k.wrapping_add((start + KEYS) * d + column);
            let mut weights = self.scores.as_ptr().wrapping_add(first);
            macro_rules! step {
                ($at_once:expr) => {
                    if self.far {
                        each!(I < $at_once * C => V::prefetch_far(next.wrapping_add(I / C * d + I % C * V::LANES)));
                    }
                    let mut w = [z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z];
                    // Distance of the weights: between keys for one query, between queries for one key.
                    let apart = if const { $at_once > 1 } { 1 } else { KEYS };
                    each!(I < R * $at_once => w[I] = V::splat(*weights.add(I * apart)));
                    let mut x = [z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z];
                    each!(I < C * $at_once => x[I] = V::load(v.add(I / C * dv + I % C * V::LANES)));
                    each!(I < R * C * $at_once => {
                        sums[I] = w[I / C].mul_add(x[if const { $at_once > 1 } { I } else { I % C }], sums[I]);
                    });
                    v = v.wrapping_add($at_once * dv);
                    next = next.wrapping_add($at_once * d);
                    weights = weights.wrapping_add($at_once);
                };
            }
            for _ in 0..keys / AT_ONCE {
                step!(AT_ONCE);
            }
            for _ in 0..keys % AT_ONCE {
                step!(1);
            }
            if const { AT_ONCE > 1 } {
                each!(I < C => sums[I] = sums[I] + sums[(C + I) % SUMS]);
            }
            each!(I < R * C => {
                let p = self.sums.as_mut_ptr().add(I / C * deep + column + I % C * V::LANES);
                if rows.add { V::load(p) + sums[I] } else { sums[I] }.store(p);
            });
        }
    }
}
