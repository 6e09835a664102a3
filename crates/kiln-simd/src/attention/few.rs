//! Attention of few queries: scores are inner products, keys across the lanes.

use super::block::Block;
use super::{KEYS, QUERIES};
use crate::math;
use crate::vector::{MAX_LANES, Vector};

impl Block<'_> {
    /// Scaled queries as rows, padded with zeros.
    #[inline(always)]
    pub(super) fn scale_queries(&mut self, depth: usize) {
        let d = self.e.d;
        for (to, from) in self.queries.chunks_exact_mut(depth).zip(self.q.chunks_exact(d)) {
            to[d..].fill(0.0);
            to.iter_mut().zip(from).for_each(|(to, from)| *to = self.scale * from);
        }
    }

    /// Scores of a block of keys, a row of [`KEYS`] for each query. A vector of keys is multiplied with a query at once,
    /// each key into a sum of its own; transposed, the sums add up to a vector of scores.
    ///
    /// # Safety
    /// As [`Block::score`]; `depth` is `d` padded to whole vectors.
    #[inline(always)]
    pub(super) unsafe fn score_few<V: Vector>(&mut self, start: usize, keys: usize, depth: usize) {
        // Accumulators are addressed by literals only, so that they are registers.
        macro_rules! lanes {
            ($i:ident => $body:expr) => { lanes!(@ $i, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
            (@ $i:ident, $body:expr, $($n:literal)*) => { $(if $n < V::LANES { const $i: usize = $n; $body; })* };
        }
        let d = self.e.d;
        for group in (0..keys).step_by(V::LANES) {
            let last = (keys - group).min(V::LANES) - 1;
            for query in 0..self.n {
                // SAFETY: keys start + group ..= start + group + last exist, rows of d; the scores have whole vectors.
                unsafe {
                    let k = self.k.as_ptr().add((start + group) * d);
                    let q = self.queries.as_ptr().add(query * depth);
                    let zero = V::splat(0.0);
                    let z = zero;
                    let mut sums: [V; MAX_LANES] = [z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z];
                    let mut c = 0;
                    // Lanes beyond the last key repeat it; nothing sees them.
                    let row = |lane: usize| lane.min(last);
                    if last + 1 == V::LANES {
                        while c + V::LANES <= d {
                            let q = V::load(q.add(c));
                            lanes!(I => sums[I] = V::load(k.add(I * d + c)).mul_add(q, sums[I]));
                            c += V::LANES;
                        }
                    } else {
                        while c + V::LANES <= d {
                            let q = V::load(q.add(c));
                            lanes!(I => sums[I] = V::load(k.add(row(I) * d + c)).mul_add(q, sums[I]));
                            c += V::LANES;
                        }
                    }
                    if c < d {
                        let q = V::load(q.add(c));
                        lanes!(I => sums[I] = V::load_first(k.add(row(I) * d + c), d - c).mul_add(q, sums[I]));
                    }
                    let turned = V::transpose(sums);
                    let mut pairs = [zero, zero, zero, zero];
                    lanes!(I => pairs[I % 4] = pairs[I % 4] + turned[I]);
                    let [a, b, c, d] = pairs;
                    ((a + b) + (c + d)).store(self.scores.as_mut_ptr().add(query * KEYS + group));
                }
            }
        }
    }

    /// One step of the online softmax, as [`Block::weigh`], a query at a time.
    ///
    /// # Safety
    /// As [`Block::score`].
    #[inline(always)]
    pub(super) unsafe fn weigh_few<V: Vector>(&mut self, keys: usize, seen: &[usize]) {
        for (query, &seen) in seen.iter().enumerate() {
            let scores = &mut self.scores[query * KEYS..][..KEYS];
            scores[seen..keys.next_multiple_of(V::LANES)].fill(f32::NEG_INFINITY);
            let old = self.state[query];
            // SAFETY: whole vectors of a row of scores; a value of `V` may be made.
            unsafe {
                let scores = scores.as_mut_ptr();
                // A NaN score does not count here; it becomes a NaN weight below.
                let mut maximum = V::splat(old);
                for j in (0..keys).step_by(V::LANES) {
                    maximum = V::load(scores.add(j)).greater(maximum);
                }
                let maximum = fold(maximum, |a, b| if a > b { a } else { b });
                // While all scores are -∞, differences from 0 give the weights 0 that differences from -∞ would not.
                let base = if maximum == f32::NEG_INFINITY { 0.0 } else { maximum };
                let mut sum = V::splat(0.0);
                for j in (0..keys).step_by(V::LANES) {
                    let weight = math::exp(V::load(scores.add(j)) - V::splat(base));
                    weight.store(scores.add(j));
                    sum = sum + weight;
                }
                let mut factor = [0.0; MAX_LANES];
                math::exp(V::splat(old - base)).store(factor.as_mut_ptr());
                let total = &mut self.state[QUERIES + query];
                *total = *total * factor[0] + fold(sum, |a, b| a + b);
                self.state[query] = maximum;
                self.state[2 * QUERIES + query] = factor[0];
            }
        }
    }
}

/// Combines the lanes, by halves.
#[inline(always)]
fn fold<V: Vector>(v: V, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; MAX_LANES];
    // SAFETY: no vector has more than MAX_LANES lanes.
    unsafe { v.store(lanes.as_mut_ptr()) };
    let mut half = V::LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}
