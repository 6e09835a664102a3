use std::ops::Range;

use kiln_ir::Data;
use kiln_ir::op::{AttentionExtents, Sight};

use super::more::More;
use super::{KEYS, QUERIES};
use crate::Isa;
use crate::array::from_fn;
use crate::cast::to_f32;
use crate::math;
use crate::matmul::turn_square;
use crate::tile::{ColumnMajor, Left, Product, ProductArgs, RowMajor, Target, max_rows, panels};
use crate::vector::{Kernel, Vector, routine};

/// Maximum number of terms of a score's running sum.
const TERMS: usize = 512;

/// The positions of the rows of the transposed queries.
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
    pub(super) more: More<'a>,
    pub(super) scale: f32,
    /// Position of the first row among the rows of the group.
    pub(super) first: usize,
    pub(super) n: usize,
    /// Whether keys and values are read from beyond the second-level cache.
    pub(super) far: bool,
    pub(super) q: &'a [f32],
    pub(super) k: Data<'a>,
    pub(super) v: Data<'a>,
    pub(super) out: &'a mut [f32],
    /// Scaled queries: `d` rows of [`QUERIES`], or, for few queries, rows of `d` padded to whole vectors.
    pub(super) queries: &'a mut [f32],
    /// Scores, then weights: a row of [`QUERIES`] for each of [`KEYS`], or, for few queries, the transpose.
    pub(super) scores: &'a mut [f32],
    /// Weighted sums of values: [`QUERIES`] rows of `dv`, padded to whole vectors.
    pub(super) sums: &'a mut [f32],
    /// Keys and values of a block as f32, if they are stored in another type.
    pub(super) wide: [&'a mut [f32]; 2],
    /// The last columns of the values, padded to two vectors.
    pub(super) values: &'a mut [f32],
    /// Three rows of [`QUERIES`]: running maxima, running sums of weights, and the factors of earlier sums.
    pub(super) state: &'a mut [f32],
}

/// A range of keys of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The keys of a block that its queries see.
pub(super) struct Seen {
    /// The range of each query, except for keys that a mask hides.
    pub(super) ranges: [Span; QUERIES],
    /// Whether a mask hides some of them.
    pub(super) holes: bool,
}

impl Seen {
    /// The common beginning of the ranges of `n` queries, if there is one and no mask hides keys.
    fn begin(&self, n: usize) -> Option<usize> {
        let begin = self.ranges[0].start;
        let together = !self.holes && self.ranges[..n].iter().all(|range| range.start == begin);
        together.then_some(begin)
    }

    /// The minimum end of the ranges of `n` queries.
    fn end(&self, n: usize) -> usize {
        self.ranges[..n].iter().map(|range| range.end).min().unwrap_or(0)
    }
}

/// Pointers to the keys and values of a head in f32, from the first key on; only those of the current block are valid.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) k: *const f32,
    pub(super) v: *const f32,
    /// Whether to add to the results of earlier blocks.
    pub(super) add: bool,
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        let Self { e, n, .. } = self;
        let lanes = n.next_multiple_of(V::LANES);
        let (depth, deep) = (e.d.next_multiple_of(V::LANES), e.dv.next_multiple_of(V::LANES));
        // Either queries across the lanes, or the elements of each query.
        let few = n <= V::LANES / 2;
        if few {
            self.scale_queries(depth);
        } else {
            // SAFETY: the instruction set is available.
            unsafe { self.transpose_queries::<V>(lanes) };
        }
        let sights: [_; QUERIES] = from_fn(|r| self.more.sight(&e, self.first + r.min(n - 1)));
        // Whether a query sees any key. With a mask that is decided where the mask is read.
        let mut sees: [bool; QUERIES] = from_fn(|r| sights[r].begin < sights[r].end && self.more.mask.is_none());
        self.state[..QUERIES].fill(f32::NEG_INFINITY);
        self.state[QUERIES..2 * QUERIES].fill(0.0);
        let seen = sights[..n].iter().filter(|sight| sight.begin < sight.end);
        let end = seen.clone().map(|sight| sight.end).max().unwrap_or(0);
        let begin = seen.map(|sight| sight.begin).min().unwrap_or(0) / KEYS * KEYS;
        for start in (begin..end).step_by(KEYS) {
            let keys = KEYS.min(end - start);
            let within = |key: usize| key.saturating_sub(start).min(keys);
            let of = |sight: &Sight| Span { start: within(sight.begin), end: within(sight.end) };
            let mut seen = Seen { ranges: from_fn(|r| of(&sights[r])), holes: false };
            let rows = self.rows(start, keys, start > begin);
            // SAFETY: the scratch slices have the extents that their fields state, and n and keys are within them.
            unsafe {
                if few {
                    self.score_few::<V>(rows, start, keys, depth);
                    self.adjust::<V>(start, &sights[..n], n * KEYS, &mut seen, &mut sees, |r, j| r * KEYS + j);
                    self.weigh_few::<V>(keys, &seen.ranges[..n]);
                } else {
                    self.score::<V>(rows, start, keys, lanes);
                    self.adjust::<V>(start, &sights[..n], keys * QUERIES, &mut seen, &mut sees, |r, j| j * QUERIES + r);
                    self.weigh::<V>(keys, lanes, &seen.ranges[..n]);
                }
                if rows.add {
                    self.rescale(deep);
                }
                let weights = self.scores.as_ptr();
                if few {
                    let a = |row: usize, key: usize| RowMajor::new(weights.wrapping_add(row * KEYS + key), KEYS);
                    let Some(first) = seen.begin(n) else {
                        self.sum_apart::<V, _>(rows, start, keys, deep, &sights[..n], &seen, a);
                        continue;
                    };
                    let common = seen.end(n).saturating_sub(first);
                    let done = self.sum_few::<V>(rows, start, first, common, deep);
                    if done == e.dv && seen.ranges[..n].iter().all(|range| range.end.saturating_sub(first) == common) {
                        continue;
                    }
                    self.sum_values::<V, _>(rows, start, first, keys, deep, &seen, done, a);
                } else {
                    let a = |row: usize, key: usize| ColumnMajor {
                        p: weights.wrapping_add(key * QUERIES + row),
                        stride: QUERIES,
                    };
                    match seen.begin(n) {
                        Some(first) => self.sum_values::<V, _>(rows, start, first, keys, deep, &seen, 0, a),
                        None => self.sum_apart::<V, _>(rows, start, keys, deep, &sights[..n], &seen, a),
                    }
                }
            }
        }
        for (r, out) in self.out.chunks_exact_mut(e.dv).enumerate() {
            if !sees[r] {
                out.fill(0.0);
                continue;
            }
            // At least 1, the weight of the greatest score, or NaN.
            let (greatest, total) = (self.state[r], self.state[QUERIES + r]);
            let share = match self.more.sink(&e, self.first + r) {
                Some(sink) => {
                    let of = greatest.max(sink);
                    // Relative to the greater one; if both are -∞, nothing is subtracted.
                    let base = if of == f32::NEG_INFINITY { 0.0 } else { of };
                    // SAFETY: the instruction set is available.
                    let exp = |x: f32| unsafe { math::exp(V::splat(x)) }.first();
                    let kept = exp(greatest - base);
                    kept / (total * kept + exp(sink - base))
                }
                None => 1.0 / total,
            };
            for (out, sum) in out.iter_mut().zip(&self.sums[r * deep..]) {
                *out = sum * share;
            }
        }
    }
}

impl Block<'_> {
    /// The keys `start .. start + keys` and their values as f32: in place, or cast into the scratch.
    fn rows(&mut self, start: usize, keys: usize, add: bool) -> Rows {
        let [k, v] = [(self.k, self.e.d, 0), (self.v, self.e.dv, 1)].map(|(data, width, which)| match data {
            Data::F32(rows) => rows.as_ptr(),
            _ => {
                let bytes = data.bytes() / self.e.t;
                let wide = &mut self.wide[which][..keys * width];
                // SAFETY: the instruction set of this block is available.
                unsafe { to_f32(self.isa, data.part(start * bytes..(start + keys) * bytes), wide) };
                wide.as_ptr().wrapping_sub(start * width)
            }
        });
        Rows { k, v, add }
    }

    /// Scaled queries, one per lane; unused lanes are zero.
    ///
    /// # Safety
    /// The instruction set of `V` is available.
    #[inline(always)]
    unsafe fn transpose_queries<V: Vector>(&mut self, lanes: usize) {
        let (n, d) = (self.n, self.e.d);
        for lane in (0..lanes).step_by(V::LANES) {
            for c in (0..d).step_by(V::LANES) {
                let (columns, rows) = ((n - lane).min(V::LANES), (d - c).min(V::LANES));
                // SAFETY: rows of queries that exist, and rows of the scratch, which are whole vectors wide.
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

    /// Runs a tile of one vector, or of two if `two`.
    ///
    /// # Safety
    /// The conditions of [`multiply`](crate::tile::multiply) hold for the instruction set of this block.
    unsafe fn multiply<A: Left>(&self, two: bool, args: ProductArgs<A>) {
        let run = if two { routine::<Product<A, 2>>(self.isa) } else { routine::<Product<A, 1>>(self.isa) };
        // SAFETY: the caller's contract.
        unsafe { run(&args) }
    }

    /// Rescales the sums of earlier blocks to the maximum of this one.
    #[inline(always)]
    fn rescale(&mut self, deep: usize) {
        for (r, &factor) in self.state[2 * QUERIES..][..self.n].iter().enumerate() {
            if factor != 1.0 {
                self.sums[r * deep..][..deep].iter_mut().for_each(|s| *s *= factor);
            }
        }
    }

    /// Scores of a block of keys.
    ///
    /// # Safety
    /// The instruction set of `V` is available; `start + keys <= t`, `keys <= KEYS`, and `lanes <= QUERIES` whole
    /// vectors.
    #[inline(always)]
    unsafe fn score<V: Vector>(&mut self, rows: Rows, start: usize, keys: usize, lanes: usize) {
        let d = self.e.d;
        if d == 0 {
            self.scores[..keys * QUERIES].fill(0.0);
        }
        for from in (0..d).step_by(TERMS) {
            let offsets = &ROWS_OF_QUERIES[..TERMS.min(d - from)];
            for lane in (0..lanes).step_by(2 * V::LANES) {
                for (first, height) in panels(keys, max_rows::<V>(2)) {
                    // SAFETY: rows of keys, columns of the transposed queries, and rows of scores that exist.
                    unsafe {
                        let a = RowMajor::new(rows.k.wrapping_add((start + first) * d + from), d);
                        let b = self.queries.as_ptr().add(from * QUERIES + lane);
                        let p = self.scores.as_mut_ptr().add(first * QUERIES + lane);
                        let target = Target { p, stride: QUERIES, add: from > 0 };
                        let two = lane + 2 * V::LANES <= lanes;
                        self.multiply(two, ProductArgs { rows: height, a, b, offsets, target });
                    }
                }
            }
        }
    }

    /// One step of the online softmax: scores become weights relative to the new maximum. The last row of the state
    /// receives the factors of older weights.
    ///
    /// # Safety
    /// The conditions of [`Block::score`] hold.
    #[inline(always)]
    unsafe fn weigh<V: Vector>(&mut self, keys: usize, lanes: usize, seen: &[Span]) {
        let (maxima, rest) = self.state.split_at_mut(QUERIES);
        let (totals, factors) = rest.split_at_mut(QUERIES);
        let all_seen = seen.iter().all(|range| *range == Span { start: 0, end: keys });
        // Lanes beyond the queries see no key.
        let of = |r: usize| seen.get(r).map_or((0.0, 0.0), |range| (range.start as f32, range.end as f32));
        let begins: [f32; QUERIES] = from_fn(|r| of(r).0);
        let ends: [f32; QUERIES] = from_fn(|r| of(r).1);
        for lane in (0..lanes).step_by(V::LANES) {
            // SAFETY: `lanes` whole vectors of every row of scores and state.
            unsafe {
                let scores = self.scores.as_mut_ptr().add(lane);
                let lowest = V::splat(f32::NEG_INFINITY);
                if !all_seen {
                    let (begins, ends) = (V::load(begins.as_ptr().add(lane)), V::load(ends.as_ptr().add(lane)));
                    for j in 0..keys {
                        let (p, key) = (scores.add(j * QUERIES), V::splat(j as f32));
                        V::select(V::both(begins.le(key), key.lt(ends)), V::load(p), lowest).store(p);
                    }
                }
                let old = V::load(maxima.as_ptr().add(lane));
                // A NaN score is ignored here; it becomes a NaN weight below.
                let mut maximum = [old, lowest, lowest, lowest];
                for j in 0..keys {
                    maximum[j % 4] = V::load(scores.add(j * QUERIES)).greater(maximum[j % 4]);
                }
                let maximum = maximum[0].greater(maximum[1]).greater(maximum[2].greater(maximum[3]));
                // If all scores are -∞, subtracting 0 gives the weights 0, and subtracting -∞ would give NaN.
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

    /// Adds the weighted values of a block of keys. Each query sees the keys from `first` to the end of its range. In
    /// columns before `done` the keys that all queries see are added already.
    ///
    /// # Safety
    /// The conditions of [`Block::score`] hold; `deep` is `dv` padded to whole vectors; `weights(row, key)` is the
    /// matrix of weights beginning there.
    #[inline(always)]
    unsafe fn sum_values<V: Vector, A: Left>(
        &mut self,
        rows: Rows,
        start: usize,
        first: usize,
        keys: usize,
        deep: usize,
        seen: &Seen,
        done: usize,
        weights: impl Fn(usize, usize) -> A,
    ) {
        let from_first: [usize; QUERIES] = from_fn(|r| seen.ranges[r].end.saturating_sub(first));
        // SAFETY: the contract of this function.
        unsafe {
            self.by_columns::<V>(rows, start + first, keys - first, deep, |this, column, two, (b, offsets)| {
                for (row, height) in panels(this.n, max_rows::<V>(2)) {
                    // All rows see the first `common` keys. Keys that only some rows see are added row by row, so that
                    // an invisible key has no effect even if its value is NaN.
                    let panel = &from_first[row..row + height];
                    let common = panel.iter().copied().min().unwrap_or(0);
                    let extra = if panel.iter().all(|&s| s == common) { 0 } else { height };
                    for piece in usize::from(column < done)..=extra {
                        let (row, rows_at_once, range) = match piece {
                            0 => (row, height, 0..common),
                            r => (row + r - 1, 1, common..from_first[row + r - 1]),
                        };
                        let a = weights(row, first + range.start);
                        let p = this.sums.as_mut_ptr().add(row * deep + column);
                        let target = Target { p, stride: deep, add: rows.add || piece > 0 };
                        let (b, offsets) = (b.add(offsets[range.start.min(KEYS - 1)]), &offsets[..range.len()]);
                        this.multiply(two, ProductArgs { rows: rows_at_once, a, b, offsets, target });
                    }
                }
            });
        }
    }

    /// Adds the weighted values of a block of keys if queries see different keys.
    ///
    /// # Safety
    /// The conditions of [`Block::sum_values`] hold.
    #[inline(always)]
    unsafe fn sum_apart<V: Vector, A: Left>(
        &mut self,
        rows: Rows,
        start: usize,
        keys: usize,
        deep: usize,
        sights: &[Sight],
        seen: &Seen,
        weights: impl Fn(usize, usize) -> A,
    ) {
        let dv = self.e.dv;
        // SAFETY: rows start .. start + keys of the values.
        let values = unsafe { std::slice::from_raw_parts(rows.v.wrapping_add(start * dv), keys * dv) };
        // The weight of an invisible key is zero, which leaves sums unchanged if its value is finite.
        let finite = values.iter().fold(true, |finite, x| finite & x.is_finite());
        // SAFETY: the contract of this function.
        unsafe {
            self.by_columns::<V>(rows, start, keys, deep, |this, column, two, (b, offsets)| {
                let add = |this: &mut Self, row: usize, height: usize, range: Range<usize>, add: bool| {
                    let p = this.sums.as_mut_ptr().add(row * deep + column);
                    let (b, offsets) = (b.add(offsets[range.start.min(KEYS - 1)]), &offsets[..range.len()]);
                    let (a, target) = (weights(row, range.start), Target { p, stride: deep, add });
                    this.multiply(two, ProductArgs { rows: height, a, b, offsets, target });
                };
                for (row, height) in panels(this.n, max_rows::<V>(2)) {
                    let panel = &seen.ranges[row..row + height];
                    let there = panel.iter().filter(|range| range.start < range.end);
                    let begin = there.clone().map(|range| range.start).min().unwrap_or(0);
                    let end = there.map(|range| range.end).max().unwrap_or(0);
                    if finite {
                        add(this, row, height, begin..end, rows.add);
                        continue;
                    }
                    if !rows.add {
                        add(this, row, height, 0..0, false);
                    }
                    for r in row..row + height {
                        let (more, e, row) = (this.more, this.e, this.first + r);
                        let sees = |j: usize| more.shows(&e, row, &sights[r], start + j);
                        let mut j = begin;
                        while j < end {
                            let to = (j..end).find(|&j| !sees(j)).unwrap_or(end);
                            let next = (to..end).find(|&j| sees(j)).unwrap_or(end);
                            if j < to {
                                add(this, r, 1, j..to, true);
                            }
                            j = next;
                        }
                    }
                }
            });
        }
    }

    /// Calls `sum` for every two vectors of columns of the values `start .. start + keys`, with the first column,
    /// whether there are two vectors, the pointer to the first value, and the stride between the rows.
    ///
    /// # Safety
    /// The conditions of [`Block::sum_values`] hold.
    #[inline(always)]
    unsafe fn by_columns<V: Vector>(
        &mut self,
        rows: Rows,
        start: usize,
        keys: usize,
        deep: usize,
        mut sum: impl FnMut(&mut Self, usize, bool, (*const f32, &[usize; KEYS])),
    ) {
        let dv = self.e.dv;
        let width = 2 * V::LANES;
        let in_place: [usize; KEYS] = from_fn(|j| j * dv);
        let padded: [usize; KEYS] = from_fn(|j| j * width);
        for column in (0..deep).step_by(width) {
            let left = dv - column;
            let two = left > V::LANES;
            let whole = left >= width || left == V::LANES;
            // SAFETY: rows start .. start + keys of the values, which are rows of dv; the scratch holds KEYS rows of width.
            let b = unsafe {
                let values = rows.v.wrapping_add(start * dv + column);
                if whole {
                    (values, &in_place)
                } else {
                    for j in 0..keys {
                        let (from, to) = (values.add(j * dv), self.values.as_mut_ptr().add(j * width));
                        V::load_first(from, left.min(V::LANES)).store(to);
                        V::load_first(from.add(left.min(V::LANES)), left.saturating_sub(V::LANES))
                            .store(to.add(V::LANES));
                    }
                    (self.values.as_ptr(), &padded)
                }
            };
            sum(self, column, two, b);
        }
    }
}
