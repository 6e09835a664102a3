//! Operations that choose elements: gather, write_rows and top-k.

use kiln_ir::op::{Cast, Gather, Quantize, TopK, WriteRows};
use kiln_ir::{Buffer, DType, DataMut, Operand, Result, TensorType};

use std::cell::Cell;

use crate::cast::to_f32;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Elements below which one thread is faster.
const PARALLEL: usize = 300_000;
/// Elements that a thread takes at once.
const SHARE: usize = 65_536;
/// The same two numbers for top-k, which takes about a nanosecond per element, and the cost of one of its rows, in
/// elements.
const PARALLEL_TOP: usize = 40_000;
const SHARE_TOP: usize = 16_384;
const ROW: usize = 256;

impl Execute for Gather {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (table, indices) = (inputs[0].data(), inputs[1].data().u32());
        let &[rows, columns] = inputs[0].shape().dims() else { return Ok(()) };
        // Checked before anything is written.
        self.check(indices, rows)?;
        if indices.is_empty() || columns == 0 {
            return Ok(());
        }
        let threads = if indices.len() * columns < PARALLEL { 1 } else { simd.threads() };
        let group = (SHARE / columns).max(1);
        let (read, written) = (inputs[0].ty().bytes() / rows, outputs[0].bytes() / indices.len());
        let as_it_is = table.dtype() == outputs[0].dtype();
        let shared = Shared::new(outputs[0].as_bytes().as_mut_ptr());
        threads::for_each(indices.len().div_ceil(group), threads, |part| {
            let from = part * group;
            for (i, &index) in indices.iter().enumerate().skip(from).take(group) {
                let at = index as usize * read;
                // SAFETY: every index has its own row of the output, and no other part accesses it.
                let out = unsafe { shared.get().add(i * written) };
                if as_it_is {
                    let row = &table.as_bytes()[at..at + read];
                    // SAFETY: a row of the output is as long as one of the table.
                    unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), out, read) };
                } else {
                    // SAFETY: a table of another type gives f32, and `out` is the beginning of a row of these.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<f32>(), columns) };
                    // SAFETY: a `Simd` exists only for an available instruction set.
                    unsafe { to_f32(simd.isa(), table.part(at..at + read), out) };
                }
            }
        });
        Ok(())
    }
}

/// Casts or quantises rows of floats to a type.
fn stored(simd: &Simd, rows: &Operand<'_>, to: DType) -> Result<Buffer> {
    let mut stored = Buffer::zeros(&TensorType::of(to, rows.shape())?)?;
    match to {
        DType::Blocks(format) if rows.ty().dtype != DType::F32 => {
            let wide = self::stored(simd, rows, DType::F32)?;
            let wide = Operand::new(wide.as_data(), rows.shape())?;
            Quantize { format }.execute(simd, &[wide], &mut [stored.as_mut()])?;
        }
        DType::Blocks(format) => Quantize { format }.execute(simd, &[*rows], &mut [stored.as_mut()])?,
        _ => Cast { to }.execute(simd, &[*rows], &mut [stored.as_mut()])?,
    }
    Ok(stored)
}

impl Execute for WriteRows {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let [x, rows, positions] = inputs else { return Ok(()) };
        let e = self.extents(&x.shape(), &rows.shape(), &positions.shape())?;
        let positions = positions.data().u32();
        // Checked before anything is written.
        self.check(positions, e.n)?;
        let converted;
        let stored = if rows.data().dtype() == outputs[0].dtype() {
            rows.data()
        } else {
            converted = stored(simd, rows, outputs[0].dtype())?;
            converted.as_data()
        };
        let row = stored.bytes().checked_div(e.outer * e.s).unwrap_or(0);
        if row == 0 {
            return Ok(());
        }
        let out = outputs[0].as_bytes();
        for (at, from) in stored.as_bytes().chunks_exact(row).enumerate() {
            let (matrix, i) = (at / e.s, at % e.s);
            let position = positions[matrix / e.sharing * e.s + i];
            if position != Self::SKIPPED {
                let to = (matrix * e.n + position as usize) * row;
                out[to..to + row].copy_from_slice(from);
            }
        }
        Ok(())
    }
}

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
        let threads = if rows.saturating_mul(cost) < PARALLEL_TOP { 1 } else { simd.threads() };
        let group = (SHARE_TOP / cost).max(1);
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
