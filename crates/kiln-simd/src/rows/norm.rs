//! Layer and RMS normalisation.
//!
//! Sums over a row are taken in blocks of a few dozen steps a lane, and the blocks are added in f64. The mean of layer
//! normalisation is an estimate plus the mean of the differences from it, whose squares give the variance: the
//! differences are nearly exact, so the offset of a row does not enter the error. Where the estimate turns out to be
//! outside of the spread of the row, a second pass starts from the mean that the first has found.
//!
//! Long rows are summed in parts, whose sums are added in their order. Threads may take the parts of a few long rows: the
//! result is the same.

use kiln_ir::op::{LayerNorm, RmsNorm};
use kiln_ir::{DataMut, Operand, Result};

use super::{LONG, for_rows};
use crate::reduce::{factor_to_one, greatest_magnitude};
use crate::scratch::{self, Workspace};
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Number of independent vectors of sums.
const SUMS: usize = 4;
/// Steps of a running sum before it is added in f64.
const STEPS: usize = 32;
/// Steps of a running sum before it is added to one of few terms: each step rounds, and the bounds count the steps.
const FEW_STEPS: usize = 8;
/// Elements of a part of a long row: whole blocks on every instruction set.
const PART: usize = 32_768;
/// Rows up to which each checks its products with gamma by itself.
const FEW_ROWS: usize = 8;
/// A smaller mean square may have lost squares to underflow.
const VANISHING: f64 = 1.0 / (1u128 << 80) as f64;

/// (2^-20)² relative to a number.
const FEW_ULP_SQUARED: f64 = 1.0 / (1u64 << 40) as f64;

/// The sums over a row of `N` values that `f` computes for each element; the row is padded with `pad`.
///
/// # Safety
/// The instruction set is available; `x` is readable for `n` f32.
#[inline(always)]
unsafe fn sums<V: Vector, const N: usize>(
    x: *const f32,
    n: usize,
    pad: f32,
    f: impl Fn(V, [V; N]) -> [V; N],
) -> [f64; N] {
    if n <= PART {
        // SAFETY: the caller's contract.
        return unsafe { part_sums::<V, N>(x, n, pad, &f) };
    }
    let mut totals = [0.0; N];
    for from in (0..n).step_by(PART) {
        // SAFETY: the part is inside n.
        let part = unsafe { part_sums::<V, N>(x.add(from), PART.min(n - from), pad, &f) };
        for (total, part) in totals.iter_mut().zip(part) {
            *total += part;
        }
    }
    totals
}

/// [`sums`] over a part.
///
/// # Safety
/// The conditions of [`sums`] hold.
#[inline(always)]
unsafe fn part_sums<V: Vector, const N: usize>(
    x: *const f32,
    n: usize,
    pad: f32,
    f: &impl Fn(V, [V; N]) -> [V; N],
) -> [f64; N] {
    let block = STEPS * SUMS * V::LANES;
    let mut totals = [0.0; N];
    let mut at = 0;
    // SAFETY: every access is inside n.
    unsafe {
        while at < n {
            let end = n.min(at + block);
            let mut sums = [[V::splat(0.0); N]; SUMS];
            while at + SUMS * V::LANES <= end {
                let stop = end.min(at + FEW_STEPS * SUMS * V::LANES);
                let mut few = [[V::splat(0.0); N]; SUMS];
                while at + SUMS * V::LANES <= stop {
                    for (k, sum) in few.iter_mut().enumerate() {
                        *sum = f(V::load(x.add(at + k * V::LANES)), *sum);
                    }
                    at += SUMS * V::LANES;
                }
                // By index, because iterators over both dimensions would keep the sums of the loop above in memory.
                for s in 0..SUMS {
                    for k in 0..N {
                        sums[s][k] = sums[s][k] + few[s][k];
                    }
                }
            }
            while at < end {
                let left = V::LANES.min(end - at);
                let v = if left == V::LANES { V::load(x.add(at)) } else { V::load_first_or(x.add(at), left, pad) };
                sums[0] = f(v, sums[0]);
                at += left;
            }
            for (k, total) in totals.iter_mut().enumerate() {
                let sum = (sums[0][k] + sums[1][k]) + (sums[2][k] + sums[3][k]);
                *total += f64::from(sum.across(|a, b| a + b));
            }
        }
    }
    totals
}

/// The kind of normalisation, and its operands in addition to the rows.
#[derive(Clone, Copy)]
enum Norm<'a> {
    Layer {
        gamma: &'a [f32],
        beta: &'a [f32],
    },
    /// Without a range each row finds out whether its products with gamma are normal numbers.
    Rms {
        gamma: &'a [f32],
        range: Option<Magnitudes>,
    },
}

/// The least magnitude of numbers that are not zero, infinity without such a number; and the greatest magnitude.
#[derive(Clone, Copy)]
struct Magnitudes {
    least: f32,
    greatest: f32,
}

impl Magnitudes {
    fn of(simd: &Simd, x: &[f32]) -> Self {
        // SAFETY: a `Simd` exists only for an available instruction set.
        unsafe { dispatch(simd.isa(), FindMagnitudes(x)) }
    }

    /// Whether the products with a scale are normal numbers, or 0 for 0.
    #[inline(always)]
    fn are_normal_times(self, scale: f32) -> bool {
        self.least * scale >= f32::MIN_POSITIVE && self.greatest * scale <= f32::MAX
    }
}

/// [`Magnitudes`] of a slice.
struct FindMagnitudes<'a>(&'a [f32]);

impl Kernel for FindMagnitudes<'_> {
    type Output = Magnitudes;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> Magnitudes {
        let (p, n) = (self.0.as_ptr(), self.0.len());
        // SAFETY: every access is inside n; the caller's contract.
        unsafe {
            let (zero, none) = (V::splat(0.0), V::splat(f32::INFINITY));
            // Side by side, because each waits for the one before.
            let (mut least, mut greatest) = ([none; SUMS], [zero; SUMS]);
            let mut at = 0;
            while at + SUMS * V::LANES <= n {
                for k in 0..SUMS {
                    let x = V::load(p.add(at + k * V::LANES)).abs();
                    // In this order NaN is left out.
                    least[k] = V::select(x.eq(zero), none, x).lesser(least[k]);
                    greatest[k] = x.greater(greatest[k]);
                }
                at += SUMS * V::LANES;
            }
            while at < n {
                let left = V::LANES.min(n - at);
                let x = if left == V::LANES { V::load(p.add(at)) } else { V::load_first(p.add(at), left) }.abs();
                least[0] = V::select(x.eq(zero), none, x).lesser(least[0]);
                greatest[0] = x.greater(greatest[0]);
                at += left;
            }
            let (mut low, mut high) = (none, zero);
            for k in 0..SUMS {
                (low, high) = (low.lesser(least[k]), high.greater(greatest[k]));
            }
            Magnitudes { least: low.across(V::lesser), greatest: high.across(V::greater) }
        }
    }
}

/// The shift of a row's elements (first by `center`, then, after scaling, by `shift`), and their scale.
#[derive(Clone, Copy)]
struct Transform {
    center: f32,
    scale: f32,
    shift: f32,
}

/// Means over a row: of the differences from a center (0 for RMS normalisation), and of their squares.
#[derive(Clone, Copy)]
struct Moments {
    center: f32,
    difference: f64,
    square: f64,
}

impl Moments {
    #[inline(always)]
    fn new(center: f32, [differences, squares]: [f64; 2], n: usize) -> Self {
        // Avoids a slow division for RMS normalisation, whose differences are 0.
        let difference = if differences == 0.0 { 0.0 } else { differences / n as f64 };
        Self { center, difference, square: squares / n as f64 }
    }

    /// A center from which the moments have to be computed again.
    #[inline(always)]
    fn better_center(self) -> Option<f32> {
        let next = (f64::from(self.center) + self.difference) as f32;
        // Less than half of the mean square is due to the center, so the difference below is accurate.
        let fine = 2.0 * self.difference * self.difference <= self.square || next == self.center || next.is_nan();
        (!fine).then_some(next)
    }

    /// The transform of a row, and whether it is reliable: the row is certainly not constant, its squares have
    /// neither overflowed nor underflowed, nor do the products of its scale and gamma.
    #[inline(always)]
    fn transform(self, norm: Norm<'_>, eps: f64) -> (Transform, bool) {
        let holds = |square: f64| (VANISHING..f64::INFINITY).contains(&square);
        if let Norm::Rms { range, .. } = norm {
            let square = self.square + eps;
            let scale = (1.0 / square.sqrt()) as f32;
            return (
                Transform { center: 0.0, scale, shift: 0.0 },
                holds(square) && range.is_none_or(|range| range.are_normal_times(scale)),
            );
        }
        let variance = self.square - self.difference * self.difference;
        // Not `max`, which would turn NaN into 0.
        let square = if variance < 0.0 { 0.0 } else { variance } + eps;
        let scale = 1.0 / square.sqrt();
        let shift = (-self.difference * scale) as f32;
        // A spread of a few units in the last place of the mean may really be zero.
        let spread = self.square > f64::from(self.center) * f64::from(self.center) * FEW_ULP_SQUARED;
        let right = spread && holds(square);
        (Transform { center: self.center, scale: scale as f32, shift }, right)
    }
}

/// Maximum passes to compute the moments of a row.
const PASSES: usize = 3;

impl Norm<'_> {
    /// The center of the differences in the first pass. The mean of the first elements is within a fraction of the
    /// spread for most rows, and the mean difference from it shows whether it is. If not, that mean gives a center that
    /// is correct except for its rounding.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for `n` f32.
    #[inline(always)]
    unsafe fn first_center<V: Vector>(self, x: *const f32, n: usize) -> f32 {
        if let Self::Rms { .. } = self {
            return 0.0;
        }
        let few = n.min(V::LANES);
        // SAFETY: the caller's contract.
        unsafe { V::load_first(x, few).across(|a, b| a + b) / few as f32 }
    }

    /// The sums of the differences of elements from a center, if they are needed, and of their squares.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for `n` f32.
    #[inline(always)]
    unsafe fn sums<V: Vector>(self, x: *const f32, n: usize, center: f32) -> [f64; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            if let Self::Rms { .. } = self {
                let [squares] = sums::<V, 1>(x, n, 0.0, |x, [q]| [x.mul_add(x, q)]);
                return [0.0, squares];
            }
            let c = V::splat(center);
            sums::<V, 2>(x, n, center, |x, [s, q]| {
                let d = x - c;
                [s + d, d.mul_add(d, q)]
            })
        }
    }

    /// The moments of a row.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for `n` f32.
    #[inline(always)]
    unsafe fn measure<V: Vector>(self, x: *const f32, n: usize) -> Moments {
        // SAFETY: the caller's contract.
        unsafe {
            let mut center = self.first_center::<V>(x, n);
            let mut pass = 1;
            loop {
                let moments = Moments::new(center, self.sums::<V>(x, n, center), n);
                match moments.better_center() {
                    Some(next) if pass < PASSES => center = next,
                    _ => return moments,
                }
                pass += 1;
            }
        }
    }

    /// Applies the transform to a row. Returns `false` where the range of gamma is not known and its products with the scale are not
    /// all normal numbers, or 0 for 0.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable and `out` writable for `n` f32, the length of the operands.
    #[inline(always)]
    unsafe fn apply<V: Vector>(self, x: *const f32, out: *mut f32, n: usize, t: Transform) -> bool {
        // SAFETY: the caller's contract.
        unsafe {
            let (center, scale, shift) = (V::splat(t.center), V::splat(t.scale), V::splat(t.shift));
            match self {
                Self::Layer { gamma, beta } => {
                    let (gamma, beta) = (gamma.as_ptr(), beta.as_ptr());
                    let value = |x: V, gamma: V, beta: V| (x - center).mul_add(scale, shift).mul_add(gamma, beta);
                    let mut i = 0;
                    while i + V::LANES <= n {
                        value(V::load(x.add(i)), V::load(gamma.add(i)), V::load(beta.add(i))).store(out.add(i));
                        i += V::LANES;
                    }
                    let left = n - i;
                    if left > 0 {
                        let first = |p: *const f32| V::load_first(p.add(i), left);
                        value(first(x), first(gamma), first(beta)).store_first(out.add(i), left);
                    }
                }
                Self::Rms { gamma, range: None } => return checked_products::<V>(x, gamma, out, n, t.scale),
                Self::Rms { gamma, range: Some(_) } => {
                    let gamma = gamma.as_ptr();
                    // Multiplies the factors first: if the element were scaled first, a small one would be rounded
                    // twice.
                    let value = |x: V, gamma: V| x * (scale * gamma);
                    let mut i = 0;
                    while i + V::LANES <= n {
                        value(V::load(x.add(i)), V::load(gamma.add(i))).store(out.add(i));
                        i += V::LANES;
                    }
                    let left = n - i;
                    if left > 0 {
                        let first = |p: *const f32| V::load_first(p.add(i), left);
                        value(first(x), first(gamma)).store_first(out.add(i), left);
                    }
                }
            }
            true
        }
    }

    /// A row that may be constant, or whose squares, or the factors of whose elements, overflow or underflow: scaled by a power of
    /// two, which is exact.
    ///
    /// # Safety
    /// The conditions of [`Norm::apply`] hold.
    #[inline(always)]
    unsafe fn extreme_row<V: Vector>(self, x: *const f32, out: *mut f32, n: usize, eps: f64, t: Transform) {
        // SAFETY: the caller's contract.
        unsafe {
            let row = std::slice::from_raw_parts(x, n);
            let greatest = greatest_magnitude::<V>(row);
            if !greatest.is_finite() {
                self.apply::<V>(x, out, n, t);
                return;
            }
            if matches!(self, Self::Layer { .. }) && row.iter().all(|&v| v == row[0]) {
                // Otherwise rounding would decide the sign of a variance of 0.
                let t = Transform { center: row[0], scale: (1.0 / eps.sqrt()) as f32, shift: 0.0 };
                self.apply::<V>(x, out, n, t);
                return;
            }
            let factor = if greatest == 0.0 { 1.0 } else { factor_to_one(greatest) };
            // Not in a closure, which would be compiled without the features of the instruction set.
            let mut memory = Workspace::take(n);
            let scaled = std::slice::from_raw_parts_mut(memory.as_mut_ptr(), n);
            scaled.iter_mut().zip(row).for_each(|(s, v)| *s = v * factor);
            let eps = eps * f64::from(factor) * f64::from(factor);
            let moments = self.measure::<V>(scaled.as_ptr(), n);
            let Self::Rms { gamma, .. } = self else {
                self.apply::<V>(scaled.as_ptr(), out, n, moments.transform(self, eps).0);
                return;
            };
            // An element that scaling made subnormal has lost digits, which gamma may amplify.
            let scale = f64::from(factor) / (moments.square + eps).sqrt();
            for (i, (&v, &gamma)) in row.iter().zip(gamma).enumerate() {
                out.add(i).write((f64::from(v) * scale * f64::from(gamma)) as f32);
            }
        }
    }
}

/// The products `x (scale gamma)` of a row. Returns whether all `scale gamma` are normal numbers, or 0 where gamma is: a wrong product
/// has to be replaced otherwise.
///
/// # Safety
/// The instruction set is available; `x` is readable and `out` writable for `n` f32, the length of gamma.
#[inline(always)]
unsafe fn checked_products<V: Vector>(x: *const f32, gamma: &[f32], out: *mut f32, n: usize, scale: f32) -> bool {
    // SAFETY: every access is inside n; the caller's contract.
    unsafe {
        let (p, factor) = (gamma.as_ptr(), V::splat(scale));
        // Side by side, because each waits for the one before.
        let (mut least, mut greatest) = ([V::splat(f32::INFINITY); SUMS], [V::splat(0.0); SUMS]);
        let mut i = 0;
        while i + SUMS * V::LANES <= n {
            for k in 0..SUMS {
                let at = i + k * V::LANES;
                let product = factor * V::load(p.add(at));
                (V::load(x.add(at)) * product).store(out.add(at));
                // In this order NaN is left out.
                least[k] = product.abs().lesser(least[k]);
                greatest[k] = product.abs().greater(greatest[k]);
            }
            i += SUMS * V::LANES;
        }
        while i < n {
            let left = V::LANES.min(n - i);
            let product = factor * V::load_first_or(p.add(i), left, 1.0);
            (V::load_first(x.add(i), left) * product).store_first(out.add(i), left);
            least[0] = product.abs().lesser(least[0]);
            greatest[0] = product.abs().greater(greatest[0]);
            i += left;
        }
        let (mut low, mut high) = (least[0], greatest[0]);
        for k in 1..SUMS {
            (low, high) = (low.lesser(least[k]), high.greater(greatest[k]));
        }
        let are_normal = low.across(V::lesser) >= f32::MIN_POSITIVE && high.across(V::greater) <= f32::MAX;
        // Zeros and NaN are exceptions, which another pass finds.
        are_normal || FindMagnitudes(gamma).run::<V>().are_normal_times(scale)
    }
}

/// Rows to be normalised.
///
/// # Safety
/// `x` is readable and `out` writable for `rows * columns` f32; the operands are as long as a row.
struct Rows<'a> {
    norm: Norm<'a>,
    eps: f64,
    x: *const f32,
    out: *mut f32,
    rows: usize,
    columns: usize,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let n = self.columns;
        for r in 0..self.rows {
            // SAFETY: the contract of `Rows`.
            unsafe {
                let (x, out) = (self.x.add(r * n), self.out.add(r * n));
                let (transform, right) = self.norm.measure::<V>(x, n).transform(self.norm, self.eps);
                if !(right && self.norm.apply::<V>(x, out, n, transform)) {
                    self.norm.extreme_row::<V>(x, out, n, self.eps, transform);
                }
            }
        }
    }
}

/// [`Norm::first_center`] of a row.
struct FirstCenter<'a>(Norm<'a>, &'a [f32]);

impl Kernel for FirstCenter<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: pointer and length are those of the slice.
        unsafe { self.0.first_center::<V>(self.1.as_ptr(), self.1.len()) }
    }
}

/// [`Norm::sums`] of a part of a row, for a center.
struct PartSums<'a>(Norm<'a>, &'a [f32], f32);

impl Kernel for PartSums<'_> {
    type Output = [f64; 2];

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> [f64; 2] {
        // SAFETY: pointer and length are those of the slice.
        unsafe { self.0.sums::<V>(self.1.as_ptr(), self.1.len(), self.2) }
    }
}

/// [`Norm::apply`] to a part of a row, with its part of the operands.
///
/// # Safety
/// The pointer is writable for as many f32 as the slice has.
struct Apply<'a>(Norm<'a>, &'a [f32], *mut f32, Transform);

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the contract of `Apply`.
        unsafe { self.0.apply::<V>(self.1.as_ptr(), self.2, self.1.len(), self.3) };
    }
}

/// A long row, whose parts the threads share.
fn long_row(simd: &Simd, norm: Norm<'_>, eps: f64, x: &[f32], out: &mut [f32]) {
    let n = x.len();
    let parts = n.div_ceil(PART);
    let range = |part: usize| part * PART..n.min((part + 1) * PART);
    let sums = |center: f32| {
        // Two f64 per part.
        scratch::with(4 * parts, |memory| {
            let found: &mut [[f64; 2]] = bytemuck::cast_slice_mut(memory);
            let shared = Shared::new(found.as_mut_ptr());
            threads::for_each(parts, simd.threads(), |part| {
                // SAFETY: every part writes its own sums; a `Simd` exists only for an available instruction set.
                unsafe { *shared.get().add(part) = dispatch(simd.isa(), PartSums(norm, &x[range(part)], center)) };
            });
            found.iter().fold([0.0; 2], |[a, b], &[s, q]| [a + s, b + q])
        })
    };
    // SAFETY: as above.
    let mut center = unsafe { dispatch(simd.isa(), FirstCenter(norm, x)) };
    let mut moments = Moments::new(center, sums(center), n);
    for _ in 1..PASSES {
        let Some(next) = moments.better_center() else { break };
        center = next;
        moments = Moments::new(center, sums(center), n);
    }
    let (transform, right) = moments.transform(norm, eps);
    let shared = Shared::new(out.as_mut_ptr());
    if !right {
        let row = Rows { norm, eps, x: x.as_ptr(), out: shared.get(), rows: 1, columns: n };
        // SAFETY: input and output are those of one row; a `Simd` exists only for an available instruction set.
        unsafe { dispatch(simd.isa(), row) };
        return;
    }
    threads::for_each(parts, simd.threads(), |part| {
        let range = range(part);
        let norm = match norm {
            Norm::Layer { gamma, beta } => Norm::Layer { gamma: &gamma[range.clone()], beta: &beta[range.clone()] },
            Norm::Rms { gamma, range: magnitudes } => Norm::Rms { gamma: &gamma[range.clone()], range: magnitudes },
        };
        // SAFETY: every part writes its own elements; a `Simd` exists only for an available instruction set.
        unsafe {
            let out = shared.get().add(range.start);
            dispatch(simd.isa(), Apply(norm, &x[range], out, transform));
        }
    });
}

fn execute(simd: &Simd, norm: Norm<'_>, eps: f32, x: &[f32], columns: usize, out: &mut [f32]) {
    if x.is_empty() {
        return;
    }
    let rows = x.len() / columns;
    if columns >= LONG && simd.threads() > 1 && rows < 2 * simd.threads() {
        for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
            long_row(simd, norm, f64::from(eps), x, out);
        }
        return;
    }
    let shared = Shared::new(out.as_mut_ptr());
    for_rows(simd, rows, columns, |from, rows| {
        // SAFETY: every part has its own rows of input and output.
        let (x, out) = unsafe { (x.as_ptr().add(from * columns), shared.get().add(from * columns)) };
        let rows = Rows { norm, eps: f64::from(eps), x, out, rows, columns };
        // SAFETY: as above; a `Simd` exists only for an available instruction set.
        unsafe { dispatch(simd.isa(), rows) };
    });
}

impl Execute for LayerNorm {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let norm = Norm::Layer { gamma: f32s(inputs, 1), beta: f32s(inputs, 2) };
        execute(simd, norm, self.eps.get(), f32s(inputs, 0), inputs[0].shape().columns(), outputs[0].f32());
        Ok(())
    }
}

impl Execute for RmsNorm {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let gamma = f32s(inputs, 1);
        let (x, columns) = (f32s(inputs, 0), inputs[0].shape().columns());
        // Reading gamma once more is a quarter of the time of one row, and nothing beside many. Parts of a long row have one range.
        let range = (x.len() > FEW_ROWS * columns || columns >= LONG).then(|| Magnitudes::of(simd, gamma));
        execute(simd, Norm::Rms { gamma, range }, self.eps.get(), x, columns, outputs[0].f32());
        Ok(())
    }
}
