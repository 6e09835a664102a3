//! Layer and RMS normalisation.
//!
//! Sums over a row are taken in blocks of a few dozen steps a lane, and the blocks are added in f64. The mean of layer
//! normalisation is an estimate plus the mean of the differences from it, whose squares give the variance: the
//! differences are nearly exact, so the offset of a row does not enter the error. Where the estimate turns out to be
//! outside of the spread of the row, a second pass starts from the mean that the first has found.

use kiln_core::op::{LayerNorm, RmsNorm};
use kiln_core::{DataMut, Operand, Result};

use super::for_rows;
use crate::reduce::{factor_to_one, greatest_magnitude};
use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::Shared;
use crate::vector::{Kernel, Vector, dispatch};

/// Vectors whose sums are in flight.
const SUMS: usize = 4;
/// Steps of a running sum before it is added in f64.
const STEPS: usize = 32;
/// A mean square below this may have lost squares that vanished.
const VANISHING: f64 = 1.0 / (1u128 << 80) as f64;

/// Of a number, (2^-20)^2.
const FEW_ULP_SQUARED: f64 = 1.0 / (1u64 << 40) as f64;

/// The sums over a row of `N` values that `f` gives for each element; beyond the end stands `pad`.
///
/// # Safety
/// The instruction set is there; `x` is good for reading `n` f32.
#[inline(always)]
unsafe fn sums<V: Vector, const N: usize>(
    x: *const f32,
    n: usize,
    pad: f32,
    f: impl Fn(V, [V; N]) -> [V; N],
) -> [f64; N] {
    let block = STEPS * SUMS * V::LANES;
    let mut totals = [0.0; N];
    let mut at = 0;
    // SAFETY: every access is inside of n.
    unsafe {
        while at < n {
            let end = n.min(at + block);
            let mut sums = [[V::splat(0.0); N]; SUMS];
            while at + SUMS * V::LANES <= end {
                for (k, sum) in sums.iter_mut().enumerate() {
                    *sum = f(V::load(x.add(at + k * V::LANES)), *sum);
                }
                at += SUMS * V::LANES;
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

/// Which normalisation, and its operands beside the rows.
#[derive(Clone, Copy)]
enum Norm<'a> {
    Layer { gamma: &'a [f32], beta: &'a [f32] },
    Rms { gamma: &'a [f32] },
}

/// What is subtracted from the elements of a row (first as it is, then scaled) and what they are multiplied by.
#[derive(Clone, Copy)]
struct Transform {
    center: f32,
    scale: f32,
    shift: f32,
}

impl Norm<'_> {
    /// The transform of a row, the mean square that it rests on, and whether the row is surely not constant.
    ///
    /// # Safety
    /// The instruction set is there; `x` is good for reading `n` f32.
    #[inline(always)]
    unsafe fn measure<V: Vector>(self, x: *const f32, n: usize, eps: f64) -> (Transform, f64, bool) {
        let count = n as f64;
        // SAFETY: the caller's contract.
        unsafe {
            if let Self::Rms { .. } = self {
                let [squares] = sums::<V, 1>(x, n, 0.0, |x, [q]| [x.mul_add(x, q)]);
                let square = squares / count + eps;
                return (Transform { center: 0.0, scale: (1.0 / square.sqrt()) as f32, shift: 0.0 }, square, true);
            }
            // The mean of the first elements is within a fraction of the spread for most rows, and the differences from it
            // tell. Where it is not, their mean gives a center that is right but for its rounding.
            let few = n.min(V::LANES);
            let mut center = V::load_first(x, few).across(|a, b| a + b) / few as f32;
            let (mut squares, mut correction) = (0.0, 0.0);
            for _ in 0..3 {
                let c = V::splat(center);
                let [differences, s] = sums::<V, 2>(x, n, center, |x, [s, q]| {
                    let d = x - c;
                    [s + d, d.mul_add(d, q)]
                });
                (squares, correction) = (s / count, differences / count);
                let next = (f64::from(center) + correction) as f32;
                // Less than half of the mean square is due to the center: the difference below keeps its digits.
                if 2.0 * correction * correction <= squares || next == center || next.is_nan() {
                    break;
                }
                center = next;
            }
            let variance = squares - correction * correction;
            // Not `max`, which would turn NaN into 0.
            let square = if variance < 0.0 { 0.0 } else { variance } + eps;
            let scale = 1.0 / square.sqrt();
            // A spread of a few units in the last place of the mean may be none at all.
            let spread = squares > f64::from(center) * f64::from(center) * FEW_ULP_SQUARED;
            (Transform { center, scale: scale as f32, shift: (-correction * scale) as f32 }, square, spread)
        }
    }

    /// Applies the transform to a row.
    ///
    /// # Safety
    /// The instruction set is there; `x` is good for reading, `out` for writing `n` f32, the length of the operands.
    #[inline(always)]
    unsafe fn apply<V: Vector>(self, x: *const f32, out: *mut f32, n: usize, t: Transform) {
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
                Self::Rms { gamma } => {
                    let gamma = gamma.as_ptr();
                    // The factor first: were the element scaled first, a small one would be rounded twice.
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
        }
    }

    /// A row that may be constant, or whose squares overflow or vanish: scaled by a power of two, which changes no digit.
    ///
    /// # Safety
    /// As [`Norm::apply`].
    #[inline(always)]
    unsafe fn extreme_row<V: Vector>(self, x: *const f32, out: *mut f32, n: usize, eps: f64, t: Transform) {
        // SAFETY: the caller's contract.
        unsafe {
            let row = std::slice::from_raw_parts(x, n);
            let greatest = greatest_magnitude::<V>(row);
            if !greatest.is_finite() || greatest == 0.0 {
                return self.apply::<V>(x, out, n, t);
            }
            if matches!(self, Self::Layer { .. }) && row.iter().all(|&v| v == row[0]) {
                // Without this, rounding would decide what a variance of 0 is.
                let t = Transform { center: row[0], scale: (1.0 / eps.sqrt()) as f32, shift: 0.0 };
                return self.apply::<V>(x, out, n, t);
            }
            let factor = factor_to_one(greatest);
            scratch::with(n, |scaled| {
                scaled.iter_mut().zip(row).for_each(|(s, v)| *s = v * factor);
                let eps = eps * f64::from(factor) * f64::from(factor);
                let (t, ..) = self.measure::<V>(scaled.as_ptr(), n, eps);
                self.apply::<V>(scaled.as_ptr(), out, n, t);
            });
        }
    }
}

/// Rows to be normalised.
///
/// # Safety
/// `x` is good for reading, `out` for writing `rows * columns` f32; the operands are as long as a row.
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
                let (transform, square, spread) = self.norm.measure::<V>(x, n, self.eps);
                if spread && (VANISHING..f64::INFINITY).contains(&square) {
                    self.norm.apply::<V>(x, out, n, transform);
                } else {
                    self.norm.extreme_row::<V>(x, out, n, self.eps, transform);
                }
            }
        }
    }
}

fn execute(simd: &Simd, norm: Norm<'_>, eps: f32, x: &[f32], columns: usize, out: &mut [f32]) {
    if x.is_empty() {
        return;
    }
    let shared = Shared::new(out.as_mut_ptr());
    for_rows(simd, x.len() / columns, columns, |from, rows| {
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
        let norm = Norm::Rms { gamma: f32s(inputs, 1) };
        execute(simd, norm, self.eps.get(), f32s(inputs, 0), inputs[0].shape().columns(), outputs[0].f32());
        Ok(())
    }
}
