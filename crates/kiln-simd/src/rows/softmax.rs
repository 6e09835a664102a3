//! Softmax and its logarithm.
//!
//! A row is cut into blocks that stay in the first cache. A block is read twice, for its greatest element and for the
//! exponentials relative to that, and written once; a second pass scales it from its own greatest element to that of the
//! row. So a long row crosses the outer caches twice instead of three times, and blocks do not wait for one another.

use kiln_ir::op::{LogSoftmax, Softmax};
use kiln_ir::{DataMut, Operand, Result};

use super::{LONG, for_rows};
use crate::array::from_fn;
use crate::math::{LIFT, LIFTED, LOWERED, lifted_exp};
use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Elements of a block: 8 KiB read and 8 KiB written.
const BLOCK: usize = 2048;
/// Steps of a running sum: equal terms are rounded in the same direction in each step.
const STEPS: usize = 16;
/// Running sums that are added as vectors before their lanes are added in f64.
const RUNS: usize = 4;
/// Blocks of a single long row that a thread takes at once.
const SHARE: usize = 8;

/// The maximum of `n` elements; NaN is ignored here and appears in the exponentials.
///
/// # Safety
/// The instruction set is available; `x` is readable for `n` f32.
#[inline(always)]
unsafe fn greatest<V: Vector>(x: *const f32, n: usize) -> f32 {
    // SAFETY: every access is inside of n.
    unsafe {
        let mut best = [V::splat(f32::NEG_INFINITY); 4];
        let mut i = 0;
        while i + 4 * V::LANES <= n {
            for (k, best) in best.iter_mut().enumerate() {
                *best = V::load(x.add(i + k * V::LANES)).greater(*best);
            }
            i += 4 * V::LANES;
        }
        while i < n {
            let v = if n - i >= V::LANES {
                V::load(x.add(i))
            } else {
                V::load_first_or(x.add(i), n - i, f32::NEG_INFINITY)
            };
            best[0] = v.greater(best[0]);
            i += V::LANES;
        }
        best[0].greater(best[1]).greater(best[2].greater(best[3])).across(V::greater)
    }
}

/// The sum of `exp(x - m) * 2^64` over `n` elements, which are also stored in `out` if `STORE`.
///
/// # Safety
/// The instruction set is available; `x` is readable and, if `STORE`, `out` writable for `n` f32.
#[inline(always)]
unsafe fn exponentials<V: Vector, const STORE: bool>(x: *const f32, out: *mut f32, n: usize, m: f32) -> f32 {
    let mut total = 0.0;
    let mut i = 0;
    // SAFETY: every access is inside of n.
    unsafe {
        let m = V::splat(m);
        while i < n {
            // The lanes are added in f64 after this many steps, so that narrow registers are as accurate as wide ones.
            let end = n.min(i + 2 * STEPS * RUNS * V::LANES);
            let mut runs = V::splat(0.0);
            while i + 2 * V::LANES <= end {
                let end = end.min(i + 2 * STEPS * V::LANES);
                let mut sums = [V::splat(0.0); 2];
                while i + 2 * V::LANES <= end {
                    for (k, sum) in sums.iter_mut().enumerate() {
                        let e = lifted_exp(V::load(x.add(i + k * V::LANES)) - m);
                        *sum = *sum + e;
                        if STORE {
                            e.store(out.add(i + k * V::LANES));
                        }
                    }
                    i += 2 * V::LANES;
                }
                runs = runs + (sums[0] + sums[1]);
            }
            while i < end {
                let left = V::LANES.min(end - i);
                // Padding with -∞, whose exponential is too small to matter.
                let v = if left == V::LANES {
                    V::load(x.add(i))
                } else {
                    V::load_first_or(x.add(i), left, f32::NEG_INFINITY)
                };
                let e = lifted_exp(v - m);
                runs = runs + e;
                if STORE {
                    e.store_first(out.add(i), left);
                }
                i += left;
            }
            total += f64::from(runs.across(|a, b| a + b));
        }
    }
    total as f32
}

/// Applies `f` to `n` elements.
///
/// # Safety
/// The instruction set is available; `x` is readable, `out` writable for `n` f32; they may be the same.
#[inline(always)]
unsafe fn map<V: Vector>(x: *const f32, out: *mut f32, n: usize, f: impl Fn(V) -> V) {
    // SAFETY: every access is inside of n.
    unsafe {
        let mut i = 0;
        while i + 4 * V::LANES <= n {
            let v: [V; 4] = from_fn(|k| f(V::load(x.add(i + k * V::LANES))));
            for (k, v) in v.into_iter().enumerate() {
                v.store(out.add(i + k * V::LANES));
            }
            i += 4 * V::LANES;
        }
        while i < n {
            let left = V::LANES.min(n - i);
            f(V::load_first(x.add(i), left)).store_first(out.add(i), left);
            i += V::LANES;
        }
    }
}

/// The maximum of a block, and the sum of the lifted exponentials relative to it.
#[derive(Clone, Copy)]
struct Block {
    greatest: f32,
    sum: f32,
}

/// The first pass over one block.
///
/// # Safety
/// The conditions of [`exponentials`] hold.
#[inline(always)]
unsafe fn first_pass<V: Vector, const STORE: bool>(x: *const f32, out: *mut f32, n: usize) -> Block {
    // SAFETY: the caller's contract.
    unsafe {
        let greatest = greatest::<V>(x, n);
        // A block of -∞ (or of only NaN and -∞) has no maximum to subtract. Its sum is ignored unless it is NaN.
        let relative = if greatest == f32::NEG_INFINITY { 0.0 } else { greatest };
        Block { greatest, sum: exponentials::<V, STORE>(x, out, n, relative) }
    }
}

/// The maximum of a row, and the sum of the lifted exponentials relative to it.
fn join(blocks: impl Iterator<Item = Block> + Clone) -> (f32, f64) {
    let greatest = blocks.clone().fold(f32::NEG_INFINITY, |m, b| m.max(b.greatest));
    if greatest == f32::NEG_INFINITY {
        return (greatest, f64::NAN);
    }
    let sum = blocks.map(|b| f64::from(b.sum) * weight(b.greatest, greatest)).sum();
    (greatest, sum)
}

/// `exp(m - greatest)`: exactly 1 if they are equal, 0 for -∞, and NaN if both are +∞.
fn weight(m: f32, greatest: f32) -> f64 {
    if m == greatest && m.is_finite() { 1.0 } else { (f64::from(m) - f64::from(greatest)).exp() }
}

/// Rows of softmax, or of its logarithm.
///
/// # Safety
/// `x` is readable and `out` writable for `rows * columns` f32; if a row has more than one block, `blocks` is writable
/// for a pair for each.
struct Rows<const LOG: bool> {
    x: *const f32,
    out: *mut f32,
    blocks: *mut [f32; 2],
    rows: usize,
    columns: usize,
}

impl<const LOG: bool> Kernel for Rows<LOG> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let n = self.columns;
        for r in 0..self.rows {
            // SAFETY: the contract of `Rows`.
            let (x, out) = unsafe { (self.x.add(r * n), self.out.add(r * n)) };
            // SAFETY: as above; blocks are inside the row.
            unsafe {
                if n <= BLOCK {
                    let block = if LOG { first_pass::<V, false>(x, out, n) } else { first_pass::<V, true>(x, out, n) };
                    let sum = if block.greatest == f32::NEG_INFINITY { f32::NAN } else { block.sum };
                    second_pass::<V, LOG>(x, out, n, block.greatest, block.greatest, f64::from(sum));
                } else {
                    // Not in a closure, which would be compiled without the features of the instruction set.
                    let blocks = std::slice::from_raw_parts_mut(self.blocks, n.div_ceil(BLOCK));
                    for (b, block) in blocks.iter_mut().enumerate() {
                        *block = part::<V, LOG>(x, out, n, b);
                    }
                    let (greatest, sum) = join_pairs(blocks);
                    for (b, block) in blocks.iter().enumerate() {
                        let at = b * BLOCK;
                        let (x, out) = (x.add(at), out.add(at));
                        second_pass::<V, LOG>(x, out, BLOCK.min(n - at), block[0], greatest, sum);
                    }
                }
            }
        }
    }
}

/// The first pass over block `b` of a row of `n`, as a pair of floats.
///
/// # Safety
/// The conditions of [`Rows`] hold.
#[inline(always)]
unsafe fn part<V: Vector, const LOG: bool>(x: *const f32, out: *mut f32, n: usize, b: usize) -> [f32; 2] {
    let at = b * BLOCK;
    let len = BLOCK.min(n - at);
    // SAFETY: the caller's contract; the block is inside the row.
    let block = unsafe {
        if LOG {
            first_pass::<V, false>(x.add(at), out.add(at), len)
        } else {
            first_pass::<V, true>(x.add(at), out.add(at), len)
        }
    };
    [block.greatest, block.sum]
}

fn join_pairs(blocks: &[[f32; 2]]) -> (f32, f64) {
    join(blocks.iter().map(|&[greatest, sum]| Block { greatest, sum }))
}

/// The second pass over a block whose exponentials are relative to `own`.
///
/// # Safety
/// The conditions of [`Rows`] hold.
#[inline(always)]
unsafe fn second_pass<V: Vector, const LOG: bool>(
    x: *const f32,
    out: *mut f32,
    n: usize,
    own: f32,
    greatest: f32,
    sum: f64,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if LOG {
            let log = sum.ln() - f64::from(LIFT) * std::f64::consts::LN_2;
            let (m, log) = (V::splat(greatest), V::splat(log as f32));
            map::<V>(x, out, n, |x| (x - m) - log);
        } else {
            let factor = (weight(own, greatest) / sum * f64::from(LIFTED)) as f32;
            let (factor, lower) = (V::splat(factor), V::splat(LOWERED));
            if own == greatest {
                let factor = factor * lower;
                map::<V>(out, out, n, |e| e * factor);
            } else {
                // The product of a small weight and the lift could underflow although their product with the element
                // does not.
                map::<V>(out, out, n, |e| e * factor * lower);
            }
        }
    }
}

/// Blocks `from..to` of one long row: the first pass when `total` is `None`, else the second.
///
/// # Safety
/// The conditions of [`Rows`] hold for one row; `blocks` has a pair for every block, and no other thread accesses those
/// of this range.
struct Stretch<const LOG: bool> {
    row: Rows<LOG>,
    from: usize,
    to: usize,
    blocks: *mut [f32; 2],
    total: Option<(f32, f64)>,
}

impl<const LOG: bool> Kernel for Stretch<LOG> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Rows { x, out, columns: n, .. } = self.row;
        for b in self.from..self.to {
            // SAFETY: the contract of `Stretch`.
            unsafe {
                let block = self.blocks.add(b);
                match self.total {
                    None => *block = part::<V, LOG>(x, out, n, b),
                    Some((greatest, sum)) => {
                        let at = b * BLOCK;
                        second_pass::<V, LOG>(x.add(at), out.add(at), BLOCK.min(n - at), (*block)[0], greatest, sum);
                    }
                }
            }
        }
    }
}

fn execute<const LOG: bool>(simd: &Simd, x: &[f32], columns: usize, out: &mut [f32]) {
    if x.is_empty() {
        return;
    }
    let rows = x.len() / columns;
    let shared = Shared::new(out.as_mut_ptr());
    if columns < LONG || simd.threads() == 1 || rows >= 2 * simd.threads() {
        for_rows(simd, rows, columns, |from, rows| {
            // SAFETY: every part has its own rows of input and output.
            let (x, out) = unsafe { (x.as_ptr().add(from * columns), shared.get().add(from * columns)) };
            let run = |blocks: &mut [[f32; 2]]| {
                let rows = Rows::<LOG> { x, out, blocks: blocks.as_mut_ptr(), rows, columns };
                // SAFETY: as above; a `Simd` exists only for an available instruction set.
                unsafe { dispatch(simd.isa(), rows) };
            };
            if columns <= BLOCK {
                run(&mut []);
            } else {
                scratch::with(2 * columns.div_ceil(BLOCK), |pairs| run(bytemuck::cast_slice_mut(pairs)));
            }
        });
        return;
    }
    // A few long rows: threads share the blocks of each row, with the same results.
    for (r, x) in x.chunks_exact(columns).enumerate() {
        let count = columns.div_ceil(BLOCK);
        scratch::with(2 * count, |blocks| {
            let blocks: &mut [[f32; 2]] = bytemuck::cast_slice_mut(blocks);
            let pairs = Shared::new(blocks.as_mut_ptr());
            let pass = |total: Option<(f32, f64)>| {
                threads::for_each(count.div_ceil(SHARE), simd.threads(), |i| {
                    let (from, to) = (i * SHARE, count.min((i + 1) * SHARE));
                    // SAFETY: the row is inside the output.
                    let out = unsafe { shared.get().add(r * columns) };
                    let row = Rows::<LOG> { x: x.as_ptr(), out, blocks: pairs.get(), rows: 1, columns };
                    // SAFETY: every part has its own blocks; a `Simd` exists only for an available instruction set.
                    unsafe { dispatch(simd.isa(), Stretch { row, from, to, blocks: pairs.get(), total }) };
                });
            };
            pass(None);
            let total = join_pairs(blocks);
            pass(Some(total));
        });
    }
}

impl Execute for Softmax {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        execute::<false>(simd, f32s(inputs, 0), inputs[0].shape().columns(), outputs[0].f32());
        Ok(())
    }
}

impl Execute for LogSoftmax {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        execute::<true>(simd, f32s(inputs, 0), inputs[0].shape().columns(), outputs[0].f32());
        Ok(())
    }
}
