//! The greatest elements of rows, and their indices.

use std::cell::Cell;

use kiln_ir::op::TopK;
use kiln_ir::{DataMut, Operand, Result};

use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Elements below which one thread is faster. An element takes about a nanosecond.
const PARALLEL: usize = 40_000;
/// Elements that a thread takes at once.
const SHARE: usize = 16_384;
/// The cost of a row, in elements.
const ROW: usize = 256;

/// Maps an element to a key whose order is the required one: greatest first, equal elements by index.
fn key(x: f32, index: usize) -> u64 {
    // +0 for both zeros, one NaN above +∞; then the order of floats is that of integers once negative ones are
    // inverted.
    let bits = if x.is_nan() { 0x7fff_ffff } else { (x + 0.0).to_bits() };
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!(index as u32))
}

/// The index in a key.
fn index_of(key: u64) -> usize {
    !(key as u32) as usize
}

thread_local! {
    static CANDIDATES: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// The greatest elements of the rows of a matrix.
///
/// # Safety
/// `values` and `indices` are writable for `k` elements for each row.
struct Greatest<'a> {
    x: &'a [f32],
    columns: usize,
    k: usize,
    values: *mut f32,
    indices: *mut u32,
}

impl Kernel for Greatest<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let k = self.k;
        let mut candidates = CANDIDATES.take();
        for (r, row) in self.x.chunks_exact(self.columns).enumerate() {
            candidates.clear();
            // SAFETY: the caller's contract.
            unsafe { choose::<V>(row, k, &mut candidates) };
            for (i, &key) in candidates.iter().enumerate() {
                let at = index_of(key);
                // SAFETY: the contract of `Greatest`; there are k candidates.
                unsafe {
                    self.values.add(r * k + i).write(row[at]);
                    self.indices.add(r * k + i).write(at as u32);
                }
            }
        }
        CANDIDATES.set(candidates);
    }
}

/// Fills `candidates` with the keys of the `k` greatest elements of a row, in order.
///
/// Elements that do not exceed the k-th best so far are skipped a vector at a time; the others are collected, and
/// reduced to k whenever there are twice as many.
///
/// # Safety
/// The instruction set is available; `1 <= k <= row.len()`.
#[inline(always)]
unsafe fn choose<V: Vector>(row: &[f32], k: usize, candidates: &mut Vec<u64>) {
    let enough = (2 * k).max(k + 64);
    candidates.reserve(enough + V::LANES);
    candidates.extend(row[..k].iter().enumerate().map(|(i, &x)| key(x, i)));
    let cut = |candidates: &mut Vec<u64>| {
        candidates.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        candidates.truncate(k);
        row[index_of(candidates[k - 1])]
    };
    let mut least = cut(candidates);
    let mut i = k;
    // Nothing exceeds a k-th best that is NaN, because the earlier of equal elements wins.
    while i < row.len() && !least.is_nan() {
        let n = V::LANES.min(row.len() - i);
        // SAFETY: the access is inside the row.
        let (v, least_lanes) = unsafe {
            let p = row.as_ptr().add(i);
            (if n == V::LANES { V::load(p) } else { V::load_first_or(p, n, f32::NEG_INFINITY) }, V::splat(least))
        };
        // Greater, or NaN.
        let mut bits = V::bits(V::either(least_lanes.lt(v), v.is_nan()));
        while bits != 0 {
            let at = i + bits.trailing_zeros() as usize;
            candidates.push(key(row[at], at));
            bits &= bits - 1;
        }
        if candidates.len() >= enough {
            least = cut(candidates);
        }
        i += V::LANES;
    }
    if candidates.len() > k {
        cut(candidates);
    }
    candidates.sort_unstable_by(|a, b| b.cmp(a));
}

impl Execute for TopK {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let x = f32s(inputs, 0);
        let columns = inputs[0].shape().columns();
        let [values, indices] = outputs else { return Ok(()) };
        if self.k == 0 || x.is_empty() {
            return Ok(());
        }
        let k = self.k;
        let rows = x.len() / columns;
        let (values, indices) = (Shared::new(values.f32().as_mut_ptr()), Shared::new(indices.u32().as_mut_ptr()));
        // A row costs about as much as another 256 elements, because its candidates are sorted.
        let cost = columns + ROW;
        let threads = if rows.saturating_mul(cost) < PARALLEL { 1 } else { simd.threads() };
        let group = (SHARE / cost).max(1);
        threads::for_each(rows.div_ceil(group), threads, |part| {
            let (from, to) = (part * group, rows.min((part + 1) * group));
            // SAFETY: every part writes the results of its own rows.
            let (values, indices) = unsafe { (values.get().add(from * k), indices.get().add(from * k)) };
            let rows = Greatest { x: &x[from * columns..to * columns], columns, k, values, indices };
            // SAFETY: as above; a `Simd` exists only for an available instruction set; k is at most a row.
            unsafe { dispatch(simd.isa(), rows) };
        });
        Ok(())
    }
}
