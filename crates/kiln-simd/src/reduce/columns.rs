//! Reductions along a dimension that is not the last: every column of a matrix on its own, a vector of columns at once.
//!
//! A column is cut into leaves of [`LEAF`] rows, each a running sum of four rows added in pairs, combined pairwise in a
//! binary tree as in [`tree`](super::tree). Columns do not meet, so the width of registers and the cut into parts change
//! no bit. Rows of a leaf are read side by side: a few streams that run on to the right, which prefetchers follow.
//!
//! Where there are few columns, several rows count as one ([`Columns::fold`]): a register then has something to do. How
//! many do is a matter of the extents alone.

use super::extreme::Extreme;
use super::tree::Term;
use crate::array::from_fn;
use crate::vector::Vector;

/// Rows that are summed in a register before they enter the tree.
const LEAF: usize = 16;
/// Vectors of columns in flight.
const SUMS: usize = 8;
/// Vectors of columns whose best value and position are kept at once.
const BESTS: usize = 4;

/// `rows` rows, `stride` elements apart; `columns` columns are reduced.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// The first element.
    pub x: *const f32,
    /// Rows.
    pub rows: usize,
    /// Distance of two rows.
    pub stride: usize,
    /// Columns.
    pub columns: usize,
}

/// Maximum number of columns of folded rows.
const FOLDED: usize = 128;

/// A matrix with few columns as one with more columns, and the remaining elements.
struct Folded {
    /// Rows that are joined to one, a power of two.
    rows: usize,
    /// The matrix of joined rows.
    wide: Columns,
    /// The elements after the last of them.
    rest: *const f32,
    /// Number of these elements: whole rows, less than one row of `wide`.
    left: usize,
}

impl Columns {
    /// Turns few columns into more, if the rows are contiguous: joins as many rows as fit, but leaves at least `least`
    /// wide rows.
    fn fold(self, least: usize) -> Option<Folded> {
        let most = (FOLDED / self.columns.max(1)).min(self.rows / least);
        if most < 2 || self.stride != self.columns {
            return None;
        }
        let rows = 1 << most.ilog2();
        let stride = rows * self.columns;
        let wide = Self { x: self.x, rows: self.rows / rows, stride, columns: stride };
        Some(Folded {
            rows,
            wide,
            rest: self.x.wrapping_add(wide.rows * stride),
            left: self.rows % rows * self.columns,
        })
    }
}

impl Folded {
    /// Adds the remaining elements to the results of the wide columns, then folds these, upper half onto lower half.
    ///
    /// # Safety
    /// The instruction set is available; `wide` holds a result for each wide column; `out` is writable for one for each
    /// original column.
    #[inline(always)]
    unsafe fn fold<V: Vector>(
        &self,
        wide: &mut [f32],
        out: *mut f32,
        pad: f32,
        of: impl Fn(V) -> V,
        combine: impl Fn(V, V) -> V,
    ) {
        let columns = self.wide.columns / self.rows;
        let p = wide.as_mut_ptr();
        // SAFETY: the caller's contract; partial vectors stay inside the halves.
        unsafe {
            for c in (0..self.left).step_by(V::LANES) {
                let n = V::LANES.min(self.left - c);
                let x = of(V::load_first_or(self.rest.add(c), n, pad));
                combine(load(p.add(c), n), x).store_first(p.add(c), n);
            }
            let mut half = self.wide.columns;
            while half > columns {
                half /= 2;
                for c in (0..half).step_by(V::LANES) {
                    let n = V::LANES.min(half - c);
                    combine(load(p.add(c), n), load(p.add(half + c), n)).store_first(p.add(c), n);
                }
            }
            std::ptr::copy_nonoverlapping(p, out, columns);
        }
    }
}

/// Loads `n` columns: a whole vector if `n` is at least its length.
///
/// # Safety
/// The instruction set is available; `p` is readable for `n` f32.
#[inline(always)]
unsafe fn load<V: Vector>(p: *const f32, n: usize) -> V {
    // SAFETY: the caller's contract.
    unsafe { if n >= V::LANES { V::load(p) } else { V::load_first(p, n) } }
}

/// Floats of scratch memory that [`sums`] needs for this many rows and columns.
pub(super) fn scratch_len(rows: usize, columns: usize) -> usize {
    let levels = (usize::BITS - rows.div_ceil(LEAF).leading_zeros()) as usize;
    levels * padded(columns.max(FOLDED))
}

/// Columns rounded up to whole vectors of every instruction set.
fn padded(columns: usize) -> usize {
    columns.next_multiple_of(crate::vector::MAX_LANES)
}

/// The sum of the terms of each column.
///
/// # Safety
/// The instruction set is available; `m` describes readable memory; `scratch` holds [`scratch_len`] floats; `out` is
/// writable for `m.columns` f32.
#[inline(always)]
pub(super) unsafe fn sums<V: Vector, T: Term>(t: T, m: Columns, scratch: &mut [f32], out: *mut f32) {
    // SAFETY: the caller's contract. The scratch memory is for at least as many columns and levels as the folded matrix
    // has.
    unsafe {
        let folded = m.fold(4);
        let mut wide = [0.0; FOLDED];
        // A single call, because it is inlined.
        let (m, sums) = folded.as_ref().map_or((m, out), |folded| (folded.wide, wide.as_mut_ptr()));
        wide_sums::<V, T>(t, m, scratch, sums);
        if let Some(folded) = folded {
            folded.fold::<V>(&mut wide, out, T::PAD, |x| t.term(x, x), T::combine);
        }
    }
}

/// [`sums`] for the given layout of columns.
///
/// # Safety
/// The conditions of [`sums`] hold.
#[inline(always)]
unsafe fn wide_sums<V: Vector, T: Term>(t: T, m: Columns, scratch: &mut [f32], out: *mut f32) {
    let leaves = m.rows.div_ceil(LEAF);
    let stack = scratch.as_mut_ptr();
    let pitch = padded(m.columns);
    // SAFETY: the caller's contract; a level of the stack is `pitch` floats, which are whole vectors.
    unsafe {
        for leaf in 0..leaves {
            // This many subtrees to the left are complete after this leaf.
            let merges = leaf.trailing_ones() as usize;
            let rows = LEAF.min(m.rows - leaf * LEAF);
            let x = m.x.add(leaf * LEAF * m.stride);
            let mut c = 0;
            // Narrow vectors process half as many at a time, which is as fast there and half the code.
            let width = if V::LANES < 8 { SUMS / 2 } else { SUMS } * V::LANES;
            while c + width <= m.columns {
                if const { V::LANES < 8 } {
                    leaf_sums::<V, T, { SUMS / 2 }>(t, x.add(c), rows, m.stride, V::LANES, merges, stack.add(c), pitch);
                } else {
                    leaf_sums::<V, T, SUMS>(t, x.add(c), rows, m.stride, V::LANES, merges, stack.add(c), pitch);
                }
                c += width;
            }
            while c < m.columns {
                let n = V::LANES.min(m.columns - c);
                leaf_sums::<V, T, 1>(t, x.add(c), rows, m.stride, n, merges, stack.add(c), pitch);
                c += V::LANES;
            }
        }
        for c in (0..m.columns).step_by(V::LANES) {
            let mut sum: Option<V> = None;
            for level in 0..usize::BITS as usize {
                if leaves >> level & 1 == 1 {
                    let subtree = V::load(stack.add(level * pitch + c));
                    sum = Some(sum.map_or(subtree, |sum| T::combine(subtree, sum)));
                }
            }
            sum.unwrap_or(V::splat(T::EMPTY)).store_first(out.add(c), V::LANES.min(m.columns - c));
        }
    }
}

/// The sums of one leaf for `N` vectors of columns, merged with `merges` complete subtrees and pushed onto the stack.
///
/// # Safety
/// The instruction set is available; rows of `N` vectors (of `n` columns if `N` is 1) are readable; the stack has
/// `merges + 1` levels of `pitch` floats.
#[inline(always)]
unsafe fn leaf_sums<V: Vector, T: Term, const N: usize>(
    t: T,
    x: *const f32,
    rows: usize,
    stride: usize,
    n: usize,
    merges: usize,
    stack: *mut f32,
    pitch: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [V::splat(T::EMPTY); N];
        let term = |row: usize, k: usize| {
            let x = load::<V>(x.add(row * stride + k * V::LANES), n);
            t.term(x, x)
        };
        let mut r = 0;
        while r + 4 <= rows {
            for (k, sum) in sums.iter_mut().enumerate() {
                let (a, b) = (T::combine(term(r, k), term(r + 1, k)), T::combine(term(r + 2, k), term(r + 3, k)));
                *sum = T::combine(*sum, T::combine(a, b));
            }
            r += 4;
        }
        if r < rows {
            let mut rest: [V; N] = from_fn(|k| term(r, k));
            for r in r + 1..rows {
                for k in 0..N {
                    rest[k] = T::combine(rest[k], term(r, k));
                }
            }
            for k in 0..N {
                sums[k] = T::combine(sums[k], rest[k]);
            }
        }
        for level in 0..merges {
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = T::combine(V::load(stack.add(level * pitch + k * V::LANES)), *sum);
            }
        }
        for (k, sum) in sums.into_iter().enumerate() {
            sum.store(stack.add(merges * pitch + k * V::LANES));
        }
    }
}

/// The best value of each column: NaN if the column contains one.
///
/// # Safety
/// The instruction set is available; `m` describes readable memory; `out` is writable for `m.columns` f32.
#[inline(always)]
pub(super) unsafe fn bests<V: Vector, E: Extreme>(m: Columns, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        let folded = m.fold(4);
        let mut wide = [0.0; FOLDED];
        let (m, bests) = folded.as_ref().map_or((m, out), |folded| (folded.wide, wide.as_mut_ptr()));
        wide_bests::<V, E>(m, bests);
        if let Some(folded) = folded {
            folded.fold::<V>(&mut wide, out, E::WORST, E::of, E::exact);
        }
    }
}

/// [`bests`] for the given layout of columns.
///
/// # Safety
/// The conditions of [`bests`] hold.
#[inline(always)]
unsafe fn wide_bests<V: Vector, E: Extreme>(m: Columns, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut numbers = {
            let worst = V::splat(E::WORST);
            worst.eq(worst)
        };
        let every = V::bits(numbers);
        for exact in [false, true] {
            for c in (0..m.columns).step_by(V::LANES) {
                V::splat(E::WORST).store_first(out.add(c), V::LANES.min(m.columns - c));
            }
            let mut r = 0;
            while r < m.rows {
                let rows = LEAF.min(m.rows - r);
                let x = m.x.add(r * m.stride);
                let mut c = 0;
                while c < m.columns {
                    let (p, o) = (x.add(c), out.add(c));
                    let wide = !exact && c + BESTS * V::LANES <= m.columns;
                    let n = V::LANES.min(m.columns - c);
                    numbers = match (exact, wide) {
                        (false, true) => leaf_bests::<V, E, BESTS, false>(p, rows, m.stride, n, numbers, o),
                        (false, false) => leaf_bests::<V, E, 1, false>(p, rows, m.stride, n, numbers, o),
                        (true, _) => leaf_bests::<V, E, 1, true>(p, rows, m.stride, n, numbers, o),
                    };
                    c += if wide { BESTS * V::LANES } else { V::LANES };
                }
                r += rows;
            }
            // NaN is rare: if a column has one, all are computed again with the slower formula that propagates it.
            if V::bits(numbers) == every {
                return;
            }
        }
    }
}

/// Updates the best values of `N` vectors of columns with the rows of one leaf. Unless `EXACT`, NaN is only detected.
///
/// # Safety
/// The instruction set is available; rows of `N` vectors (of `n` columns if `N` is 1) are readable, and `out` writable.
#[inline(always)]
unsafe fn leaf_bests<V: Vector, E: Extreme, const N: usize, const EXACT: bool>(
    x: *const f32,
    rows: usize,
    stride: usize,
    n: usize,
    mut numbers: V::Mask,
    out: *mut f32,
) -> V::Mask {
    // SAFETY: the caller's contract.
    unsafe {
        let mut best: [V; N] = from_fn(|k| load(out.add(k * V::LANES), n));
        for r in 0..rows {
            let row = x.add(r * stride);
            for (k, best) in best.iter_mut().enumerate() {
                let x = E::of(load::<V>(row.add(k * V::LANES), n));
                if const { EXACT } {
                    *best = E::exact(*best, x);
                } else {
                    // min and max of ±0 depend on operand order, so combine the sign bits of both.
                    let (a, b) = (E::pick(x, *best), E::pick(*best, x));
                    *best =
                        if matches!(E::BEST_ZERO, Some(zero) if zero.is_sign_negative()) { a.or(b) } else { a.and(b) };
                    numbers = V::and_numbers(numbers, x, x);
                }
            }
        }
        for (k, best) in best.into_iter().enumerate() {
            best.store_first(out.add(k * V::LANES), n);
        }
        numbers
    }
}

/// The position of the first NaN of each column, or of the first best value. There is at least one row.
///
/// # Safety
/// The instruction set is available; `m` describes readable memory; `best` is writable for `m.columns` f32 and for
/// [`FOLDED`], `at` for `m.columns` u32.
#[inline(always)]
pub(super) unsafe fn places<V: Vector, E: Extreme>(m: Columns, best: *mut f32, at: *mut u32) {
    // SAFETY: the caller's contract; candidates and the remaining elements are inside the wide columns and the matrix.
    unsafe {
        let folded = m.fold(64);
        let mut wide = [0; FOLDED];
        let (candidates, places) = folded.as_ref().map_or((m, at), |folded| (folded.wide, wide.as_mut_ptr()));
        let mut numbers = wide_places::<V, E>(candidates, best, places);
        if let Some(folded) = folded {
            let better = |a: f32, b: f32| V::bits(E::beats(V::splat(a), V::splat(b))) & 1 == 1;
            for c in 0..m.columns {
                // The original row of a candidate: joined rows alternate.
                let row = |g: usize| wide[g * m.columns + c] * folded.rows as u32 + g as u32;
                let mut champion = (*best.add(c), row(0));
                for g in 1..folded.rows {
                    let candidate = (*best.add(g * m.columns + c), row(g));
                    let equal = !better(champion.0, candidate.0) && candidate.1 < champion.1;
                    if better(candidate.0, champion.0) || equal {
                        champion = candidate;
                    }
                }
                for r in folded.wide.rows * folded.rows..m.rows {
                    let x = *m.x.add(r * m.stride + c);
                    numbers &= !x.is_nan();
                    if better(x, champion.0) {
                        champion = (x, r as u32);
                    }
                }
                at.add(c).write(champion.1);
            }
        }
        if !numbers {
            for c in 0..m.columns {
                let first = (0..m.rows).find(|r| (*m.x.add(r * m.stride + c)).is_nan());
                if let Some(first) = first {
                    at.add(c).write(first as u32);
                }
            }
        }
    }
}

/// The position of the first best value of each column in the given layout, and whether no element is NaN.
///
/// # Safety
/// The instruction set is available; `m` describes readable memory; `best` and `at` are writable for `m.columns` f32
/// and u32.
#[inline(always)]
unsafe fn wide_places<V: Vector, E: Extreme>(m: Columns, best: *mut f32, at: *mut u32) -> bool {
    // SAFETY: the caller's contract. Positions are kept in float registers as bits, which blends do not change.
    unsafe {
        let mut numbers = {
            let worst = V::splat(E::WORST);
            worst.eq(worst)
        };
        let every = V::bits(numbers);
        for c in 0..m.columns {
            best.add(c).write(E::WORST);
            at.add(c).write(0);
        }
        let mut r = 0;
        while r < m.rows {
            let rows = LEAF.min(m.rows - r);
            let x = m.x.add(r * m.stride);
            let mut c = 0;
            while c < m.columns {
                let (p, b, a) = (x.add(c), best.add(c), at.add(c).cast::<f32>());
                let n = V::LANES.min(m.columns - c);
                if c + BESTS * V::LANES <= m.columns {
                    numbers = leaf_places::<V, E, BESTS>(p, r, rows, m.stride, n, numbers, b, a);
                    c += BESTS * V::LANES;
                } else {
                    numbers = leaf_places::<V, E, 1>(p, r, rows, m.stride, n, numbers, b, a);
                    c += V::LANES;
                }
            }
            r += rows;
        }
        V::bits(numbers) == every
    }
}

/// Updates the best values and positions of `N` vectors of columns with rows `first..first + rows`; NaN is only
/// detected.
///
/// # Safety
/// The instruction set is available; rows of `N` vectors (of `n` columns if `N` is 1) are readable, `best` and `at`
/// writable.
#[inline(always)]
unsafe fn leaf_places<V: Vector, E: Extreme, const N: usize>(
    x: *const f32,
    first: usize,
    rows: usize,
    stride: usize,
    n: usize,
    mut numbers: V::Mask,
    best: *mut f32,
    at: *mut f32,
) -> V::Mask {
    // SAFETY: the caller's contract.
    unsafe {
        let mut bests: [V; N] = from_fn(|k| load(best.add(k * V::LANES), n));
        let mut places: [V; N] = from_fn(|k| load(at.add(k * V::LANES), n));
        for r in 0..rows {
            let row = x.add(r * stride);
            let here = V::splat(f32::from_bits((first + r) as u32));
            for k in 0..N {
                let x = load::<V>(row.add(k * V::LANES), n);
                let better = E::beats(x, bests[k]);
                bests[k] = V::select(better, x, bests[k]);
                places[k] = V::select(better, here, places[k]);
                numbers = V::and_numbers(numbers, x, x);
            }
        }
        for k in 0..N {
            bests[k].store_first(best.add(k * V::LANES), n);
            places[k].store_first(at.add(k * V::LANES), n);
        }
        numbers
    }
}
