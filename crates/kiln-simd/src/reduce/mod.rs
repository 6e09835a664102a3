//! Reductions and the inner product: over a slice, over every row, or along another dimension.

mod columns;
mod extreme;
mod tree;

use std::ops::Range;

use kiln_ir::op::{Dot, Reduce, Reduction};
use kiln_ir::{DataMut, Operand, Result};

use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

use columns::Columns;
use extreme::{Extreme, Greatest, GreatestMagnitude, Least};
use tree::{Elements, Factors, Magnitudes, Products, ScaledSquares, Squares, Term};

/// Elements of all operands below which one thread is faster.
const PARALLEL: usize = 300_000;
/// Elements of many short reductions that a thread takes at once.
const SHARE: usize = 65_536;
/// Columns that are reduced together: their subtrees stay in the second-level cache.
const CHUNK: usize = 512;

/// Calls `part` with ranges of `size` of `n` elements on the threads, and `take` with the results in order: a bounded
/// number at a time, initialised with `empty`.
fn in_parts<R: Copy>(
    simd: &Simd,
    n: usize,
    size: usize,
    empty: R,
    part: impl Fn(Range<usize>) -> R + Sync,
    mut take: impl FnMut(&[R]),
) {
    const ROUND: usize = 128;
    // On the heap: results can be 256 bytes, and the calling thread may have a small stack.
    let mut results = vec![empty; n.div_ceil(size).min(ROUND)];
    for at in (0..n).step_by(ROUND * size) {
        let parts = (n - at).div_ceil(size).min(ROUND);
        let shared = Shared::new(results.as_mut_ptr());
        threads::for_each(parts, simd.threads(), |i| {
            let from = at + i * size;
            // SAFETY: every part writes its own result.
            unsafe { shared.get().add(i).write(part(from..n.min(from + size))) };
        });
        take(&results[..parts]);
    }
}

/// A reduction on one instruction set: of a slice, and of many columns at once.
trait Rule: Copy + Send + Sync {
    /// The type of its result.
    type Out: Copy + Default;

    /// The result for no elements. Kernels are not called for it: a masked load of no lane is legal at the address of
    /// an empty slice, but crashes in emulators that access the memory nevertheless.
    fn empty(self) -> Self::Out;

    /// The result for a non-empty slice, computed with threads.
    fn whole(self, simd: &Simd, x: &[f32]) -> Self::Out;

    /// The result for a slice inside a kernel, with the same bits as [`Rule::whole`].
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn row<V: Vector>(self, x: &[f32]) -> Self::Out;

    /// The result for each column.
    ///
    /// # Safety
    /// The instruction set is available; `m` describes readable memory; `out` is writable for `m.columns` results.
    unsafe fn columns<V: Vector>(self, m: Columns, scratch: &mut [f32], out: *mut Self::Out);
}

/// A reduction: a [`Rule`], or one with a final step.
trait Reducer: Copy {
    /// The type of the result.
    type Out;

    /// Reduces a whole non-empty slice.
    fn slice(self, simd: &Simd, x: &[f32]) -> Self::Out;

    /// Reduces the middle one of three extents.
    fn axis(self, simd: &Simd, x: &[f32], extents: (usize, usize, usize), out: &mut [Self::Out]);
}

impl<R: Rule> Reducer for R {
    type Out = R::Out;

    fn slice(self, simd: &Simd, x: &[f32]) -> R::Out {
        slice(simd, self, x)
    }

    fn axis(self, simd: &Simd, x: &[f32], extents: (usize, usize, usize), out: &mut [R::Out]) {
        reduce(simd, self, x, extents, out);
    }
}

/// The sum of terms.
#[derive(Clone, Copy)]
struct Total<T>(T);

impl<T: Term> Rule for Total<T> {
    type Out = f32;

    fn empty(self) -> f32 {
        T::EMPTY
    }
    fn whole(self, simd: &Simd, x: &[f32]) -> f32 {
        tree::total(simd, self.0, x, x)
    }
    #[inline(always)]
    unsafe fn row<V: Vector>(self, x: &[f32]) -> f32 {
        // SAFETY: pointer and length are those of the slice.
        unsafe { tree::sum::<V, T>(self.0, x.as_ptr(), x.as_ptr(), x.len()) }
    }
    #[inline(always)]
    unsafe fn columns<V: Vector>(self, m: Columns, scratch: &mut [f32], out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe {
            columns::sums::<V, T>(self.0, m, scratch, out);
            one_nan_each(out, m.columns);
        }
    }
}

/// Replaces any NaN by one NaN, because their signs differ between machines.
#[inline(always)]
fn one_nan(x: f32) -> f32 {
    if x.is_nan() { f32::NAN } else { x }
}

/// Applies [`one_nan`] to `n` results.
///
/// # Safety
/// `out` is readable and writable for `n` f32.
#[inline(always)]
unsafe fn one_nan_each(out: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(out, n) }.iter_mut().for_each(|x| *x = one_nan(*x));
}

/// The mean of `n` elements from their sum, in f64, because f32 may not represent n.
fn mean(sum: f32, n: usize) -> f32 {
    one_nan((f64::from(sum) / n as f64) as f32)
}

/// The sum, divided by the number of elements.
#[derive(Clone, Copy)]
struct Mean;

impl Reducer for Mean {
    type Out = f32;

    fn slice(self, simd: &Simd, x: &[f32]) -> f32 {
        mean(slice(simd, Total(Elements), x), x.len())
    }

    fn axis(self, simd: &Simd, x: &[f32], extents: (usize, usize, usize), out: &mut [f32]) {
        reduce(simd, Total(Elements), x, extents, out);
        out.iter_mut().for_each(|sum| *sum = mean(*sum, extents.1));
    }
}

/// A power of two that scales a positive finite number close to 1. It is a normal number, so a subnormal number stays
/// below 1.
#[inline(always)]
pub(crate) fn factor_to_one(x: f32) -> f32 {
    let exponent = ((x.to_bits() >> 23) as i32 - 127).clamp(-126, 126);
    f32::from_bits(((127 - exponent) as u32) << 23)
}

/// The maximum absolute value of a slice, inside a kernel; NaN if any is NaN.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
pub(crate) unsafe fn greatest_magnitude<V: Vector>(x: &[f32]) -> f32 {
    // SAFETY: the caller's contract.
    unsafe { extreme::best::<V, GreatestMagnitude>(x) }
}

/// The Euclidean norm from the sum of squares: its root if the sum is accurate; otherwise computed from the squares of
/// elements scaled by a factor that brings the largest magnitude close to 1.
#[inline(always)]
fn norm_l2(squares: f32, greatest: impl FnOnce() -> f32, scaled_squares: impl FnOnce(f32) -> f32) -> f32 {
    // Below this, squares that underflowed can matter.
    const VANISHING: f32 = 1.0 / (1u128 << 80) as f32;
    if (VANISHING..=f32::MAX).contains(&squares) {
        return squares.sqrt();
    }
    let greatest = greatest();
    if greatest == 0.0 || !greatest.is_finite() {
        return one_nan(greatest);
    }
    let factor = factor_to_one(greatest);
    (f64::from(scaled_squares(factor)).sqrt() / f64::from(factor)) as f32
}

/// The Euclidean norm.
#[derive(Clone, Copy)]
struct Euclidean;

impl Reducer for Euclidean {
    type Out = f32;

    fn slice(self, simd: &Simd, x: &[f32]) -> f32 {
        norm_l2(
            slice(simd, Total(Squares), x),
            || slice(simd, Best(GreatestMagnitude), x),
            |factor| slice(simd, Total(ScaledSquares(factor)), x),
        )
    }

    fn axis(self, simd: &Simd, x: &[f32], extents: (usize, usize, usize), out: &mut [f32]) {
        reduce(simd, Total(Squares), x, extents, out);
        let (_, along, inner) = extents;
        if along == 0 {
            return;
        }
        let threads = if x.len() < PARALLEL { 1 } else { simd.threads() };
        let alone = simd.with_threads(1);
        let (n, norms) = (out.len(), Shared::new(out.as_mut_ptr()));
        threads::for_each(n.div_ceil(CHUNK), threads, |part| {
            for i in part * CHUNK..n.min((part + 1) * CHUNK) {
                // SAFETY: every part has its own results.
                let norm = unsafe { &mut *norms.get().add(i) };
                let elements = |reduce: &dyn Fn(&[f32]) -> f32| {
                    if inner == 1 {
                        return reduce(&x[i * along..][..along]);
                    }
                    let column = x.iter().skip(i / inner * along * inner + i % inner).step_by(inner);
                    scratch::with(along, |row| {
                        row.iter_mut().zip(column).for_each(|(to, from)| *to = *from);
                        reduce(row)
                    })
                };
                *norm = norm_l2(
                    *norm,
                    || elements(&|x| slice(&alone, Best(GreatestMagnitude), x)),
                    |factor| elements(&|x| slice(&alone, Total(ScaledSquares(factor)), x)),
                );
            }
        });
    }
}

/// The best value.
#[derive(Clone, Copy)]
struct Best<E>(E);

impl<E: Extreme> Rule for Best<E> {
    type Out = f32;

    fn empty(self) -> f32 {
        E::WORST
    }
    fn whole(self, simd: &Simd, x: &[f32]) -> f32 {
        extreme::extreme(simd, self.0, x)
    }
    #[inline(always)]
    unsafe fn row<V: Vector>(self, x: &[f32]) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { extreme::best::<V, E>(x) }
    }
    #[inline(always)]
    unsafe fn columns<V: Vector>(self, m: Columns, _: &mut [f32], out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe {
            columns::bests::<V, E>(m, out);
            one_nan_each(out, m.columns);
        }
    }
}

/// The position of the best value.
#[derive(Clone, Copy)]
struct Position<E>(E);

impl<E: Extreme> Rule for Position<E> {
    type Out = u32;

    /// The shape rule refuses it.
    fn empty(self) -> u32 {
        0
    }
    fn whole(self, simd: &Simd, x: &[f32]) -> u32 {
        extreme::position(simd, self.0, x) as u32
    }
    #[inline(always)]
    unsafe fn row<V: Vector>(self, x: &[f32]) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { extreme::place::<V, E>(x).at as u32 }
    }
    #[inline(always)]
    unsafe fn columns<V: Vector>(self, m: Columns, scratch: &mut [f32], out: *mut u32) {
        // SAFETY: the caller's contract; the scratch memory holds a float for every column.
        unsafe { columns::places::<V, E>(m, scratch.as_mut_ptr(), out) }
    }
}

/// Rows of a matrix, each reduced to one result.
///
/// # Safety
/// `out` is writable for one result for each of the rows.
struct Rows<'a, R: Rule> {
    rule: R,
    x: &'a [f32],
    row: usize,
    rows: usize,
    out: *mut R::Out,
}

impl<R: Rule> Kernel for Rows<'_, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for r in 0..self.rows {
            // SAFETY: the contract of `Rows`.
            unsafe { self.out.add(r).write(self.rule.row::<V>(&self.x[r * self.row..][..self.row])) };
        }
    }
}

/// Columns of a matrix, each reduced to one result.
///
/// # Safety
/// The conditions of [`Rule::columns`] hold.
struct Block<'a, R: Rule>(R, Columns, &'a mut [f32], *mut R::Out);

impl<R: Rule> Kernel for Block<'_, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the contract of `Block`.
        unsafe { self.0.columns::<V>(self.1, self.2, self.3) }
    }
}

/// Reduces a whole slice that is not empty.
fn slice<R: Rule>(simd: &Simd, rule: R, x: &[f32]) -> R::Out {
    if threads::THERE {
        return rule.whole(simd, x);
    }
    // Uses the existing kernel for rows.
    let mut out = R::Out::default();
    // SAFETY: a `Simd` exists only for an available instruction set; there is one result for the one row.
    unsafe { dispatch(simd.isa(), Rows { rule, x, row: x.len(), rows: 1, out: &mut out }) };
    out
}

/// Reduces the middle one of three extents.
fn reduce<R: Rule>(simd: &Simd, rule: R, x: &[f32], extents: (usize, usize, usize), out: &mut [R::Out]) {
    let (outer, along, inner) = extents;
    if out.is_empty() {
        return;
    }
    if along == 0 {
        out.fill(rule.empty());
        return;
    }
    if inner == 1 && (outer == 1 || along >= PARALLEL) {
        for (o, out) in out.iter_mut().enumerate() {
            *out = slice(simd, rule, &x[o * along..][..along]);
        }
        return;
    }
    let threads = if x.len() < PARALLEL { 1 } else { simd.threads() };
    let shared = Shared::new(out.as_mut_ptr());
    if inner == 1 {
        let group = (SHARE / along).max(1);
        threads::for_each(outer.div_ceil(group), threads, |part| {
            let (from, to) = (part * group, outer.min((part + 1) * group));
            // SAFETY: every part writes the results of its own rows.
            let out = unsafe { shared.get().add(from) };
            let rows = Rows { rule, x: &x[from * along..to * along], row: along, rows: to - from, out };
            // SAFETY: a `Simd` exists only for an available instruction set; as above.
            unsafe { dispatch(simd.isa(), rows) };
        });
        return;
    }
    let chunks = inner.div_ceil(CHUNK);
    let units = outer * chunks;
    let group = (SHARE / (along * inner.min(CHUNK))).max(1);
    threads::for_each(units.div_ceil(group), threads, |part| {
        scratch::with(columns::scratch_len(along, CHUNK).max(CHUNK), |scratch| {
            for unit in part * group..units.min((part + 1) * group) {
                let (o, c) = (unit / chunks, unit % chunks * CHUNK);
                let columns = CHUNK.min(inner - c);
                let x = x[o * along * inner + c..].as_ptr();
                let m = Columns { x, rows: along, stride: inner, columns };
                // SAFETY: every unit writes the results of its own columns.
                let out = unsafe { shared.get().add(o * inner + c) };
                // SAFETY: as above; the matrix is inside the data.
                unsafe { dispatch(simd.isa(), Block(rule, m, &mut *scratch, out)) };
            }
        });
    });
}

/// Dispatches each reduction to its implementation. A row is a reduction and its [`Reducer`].
macro_rules! reducers {
    (values { $($value:ident = $reducer:expr;)* } indices { $($index:ident = $position:expr;)* }) => {
        impl Execute for Reduce {
            fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
                let x = f32s(inputs, 0);
                let extents = self.extents(&inputs[0].shape())?;
                let out = &mut outputs[0];
                match self.reduction {
                    $(Reduction::$value => Reducer::axis($reducer, simd, x, extents, out.f32()),)*
                    $(Reduction::$index => Reducer::axis($position, simd, x, extents, out.u32()),)*
                }
                Ok(())
            }
        }

        /// Reduces a whole non-empty slice to a value, if the reduction gives one. A slice always has a valid shape, so
        /// nothing is checked, which makes short slices faster.
        pub(crate) fn whole(simd: &Simd, reduction: Reduction, x: &[f32]) -> Option<f32> {
            match reduction {
                $(Reduction::$value => Some(Reducer::slice($reducer, simd, x)),)*
                $(Reduction::$index)|* => None,
            }
        }

        /// Reduces a whole slice to an index, if the reduction gives one and there are elements whose indices fit a
        /// u32.
        pub(crate) fn whole_index(simd: &Simd, reduction: Reduction, x: &[f32]) -> Option<u32> {
            if x.is_empty() || u32::try_from(x.len()).is_err() {
                return None;
            }
            match reduction {
                $(Reduction::$value)|* => None,
                $(Reduction::$index => Some(Reducer::slice($position, simd, x)),)*
            }
        }
    };
}

reducers! {
    values {
        Sum = Total(Elements);
        Mean = Mean;
        Max = Best(Greatest);
        Min = Best(Least);
        Prod = Total(Factors);
        NormL1 = Total(Magnitudes);
        NormL2 = Euclidean;
        NormLinf = Best(GreatestMagnitude);
    }
    indices {
        ArgMax = Position(Greatest);
        ArgMin = Position(Least);
    }
}

impl Execute for Dot {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (a, b) = (f32s(inputs, 0), f32s(inputs, 1));
        outputs[0].f32()[0] = if a.is_empty() { 0.0 } else { dot(simd, a, b) };
        Ok(())
    }
}

/// The inner product of non-empty slices of equal length.
pub(crate) fn dot(simd: &Simd, a: &[f32], b: &[f32]) -> f32 {
    tree::total(simd, Products, a, b)
}
