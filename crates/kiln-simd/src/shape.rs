//! Operations that move elements: copies of strided memory.

use std::mem::MaybeUninit;

use kiln_ir::op::{AllReduce, BroadcastTo, Concat, Dim, Movement, Pad, Permute, Reshape, Slice, StridedCopy};
use kiln_ir::{DataMut, Operand, Result, TensorType};

use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};
use crate::transpose;

/// Bytes below which one thread is faster, as for transposes.
const PARALLEL: usize = 1 << 20;

/// Approximate bytes that a thread takes at once.
const SHARE: usize = 1 << 18;

/// Minimum extent from which a plane of f32 is transposed in squares of vectors.
const TURNED: usize = 4;

/// Rows, and units of each, that [`turn_tiles`] transposes at once: a cache line of two-byte units, and as many lines
/// as stay in a first-level cache if they map to few sets.
const TILE: (usize, usize) = (32, 8);

macro_rules! movements {
    ($($operation:ident),*) => {
        $(impl Execute for $operation {
            fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
                run(simd, self, inputs, &mut outputs[0])
            }
        })*
    };
}
movements!(AllReduce, BroadcastTo, Concat, Pad, Permute, Reshape, Slice);

/// Fills the output if operands do not cover all of it, and copies each operand to its position.
fn run(simd: &Simd, op: &impl Movement, inputs: &[Operand<'_>], out: &mut DataMut<'_>) -> Result<()> {
    if let Some(value) = op.fill() {
        out.fill(value);
    }
    let types: Vec<TensorType> = inputs.iter().map(Operand::ty).collect();
    let out = out.as_bytes();
    for (index, input) in inputs.iter().enumerate() {
        copy(simd, &op.copy(&types, index)?, input.data().as_bytes(), out);
    }
    Ok(())
}

/// Copies the units of a plan, which must stay inside the slices. Accesses are unaligned, because units of blocks may
/// be; that costs nothing for aligned units.
fn copy(simd: &Simd, plan: &StridedCopy, from: &[u8], out: &mut [u8]) {
    let [read, written] = plan.ends();
    let fits = read.checked_mul(plan.unit()).is_some_and(|bytes| bytes <= from.len())
        && written.checked_mul(plan.unit()).is_some_and(|bytes| bytes <= out.len());
    assert!(fits, "the plan of a copy leaves its operand");
    if plan.is_empty() {
        return;
    }
    if plan.unit() == 4
        && let Some([matrices, rows, columns]) = plan.as_transpose()
        && let (Ok(from), Ok(out)) = (bytemuck::try_cast_slice(from), bytemuck::try_cast_slice_mut(out))
    {
        return transpose::run(simd, matrices, (rows, columns), from, out);
    }
    let threads = if plan.len() * plan.unit() < PARALLEL { 1 } else { simd.threads() };
    let [first_read, first_written] = plan.first();
    // SAFETY: the first units are inside the slices, because the ends of the plan are and it copies something.
    let (from, out) =
        unsafe { (from.as_ptr().add(first_read * plan.unit()), out.as_mut_ptr().add(first_written * plan.unit())) };
    // SAFETY: every unit of the plan is inside the slices, as `ends` says, and none is written twice.
    unsafe {
        match plan.unit() {
            1 => parts(simd, plan, from, out, threads),
            2 => parts(simd, plan, from.cast::<u16>(), out.cast::<u16>(), threads),
            _ => parts(simd, plan, from.cast::<u32>(), out.cast::<u32>(), threads),
        }
    }
}

/// The two innermost dimensions of a copy, and the dimensions around them.
struct Planes<'a> {
    /// The outer dimensions, outermost first.
    outer: &'a [Dim],
    /// The dimension of a plane across its runs.
    rows: Dim,
    /// The innermost dimension.
    run: Dim,
}

/// Copies a plan in parts that depend only on the plan.
///
/// # Safety
/// From these first units on, all units of the plan are readable and writable, aligned or not.
unsafe fn parts<T: Copy + Send + Sync>(simd: &Simd, plan: &StridedCopy, from: *const T, out: *mut T, threads: usize) {
    const ONCE: Dim = Dim { extent: 1, from: 0, to: 0 };
    let planes = match plan.dims() {
        [] => Planes { outer: &[], rows: ONCE, run: Dim { extent: 1, from: 1, to: 1 } },
        // SAFETY: the caller's contract.
        [run] => return unsafe { line(*run, from, out, threads) },
        [outer @ .., rows, run] => Planes { outer, rows: *rows, run: *run },
    };
    // If the elements of a plane are adjacent along another dimension, that one becomes the other side of the plane.
    let beside = planes.outer.iter().position(|dim| dim.from == 1);
    let mut outer = planes.outer.to_vec();
    let mut rows = planes.rows;
    if let (Some(beside), true) = (beside, planes.run.from > 1 && rows.from != 1) {
        std::mem::swap(&mut outer[beside], &mut rows);
    }
    let plane = rows.extent * planes.run.extent;
    let planes_in_all: usize = outer.iter().map(|dim| dim.extent).product();
    // Rows of a plane in a part, or planes.
    let units = (SHARE / size_of::<T>()).max(1);
    let rows_each = (units / planes.run.extent.max(1)).max(1).min(rows.extent);
    let pieces = rows.extent.div_ceil(rows_each);
    let planes_each = if pieces > 1 { 1 } else { (units / plane).max(1) };
    let run = planes.run;
    let isa = simd.isa();
    let (from, out) = (Shared::new(from.cast_mut()), Shared::new(out));
    threads::for_each(planes_in_all.div_ceil(planes_each) * pieces, threads, |part| {
        let (group, piece) = (part / pieces, part % pieces);
        let (start, count) = (piece * rows_each, rows_each.min(rows.extent - piece * rows_each));
        for index in group * planes_each..planes_in_all.min((group + 1) * planes_each) {
            let (mut rest, mut read, mut write) = (index, start * rows.from, start * rows.to);
            for dim in outer.iter().rev() {
                let i = rest % dim.extent;
                rest /= dim.extent;
                (read, write) = (read + i * dim.from, write + i * dim.to);
            }
            // SAFETY: the caller's contract; parts write different units.
            unsafe {
                let (from, out) = (from.get().cast_const().add(read), out.get().add(write));
                let turns = rows.from == 1 && run.to == 1 && run.from > 1;
                let (words, written) = (from.cast::<f32>(), out.cast::<f32>());
                let are_words = size_of::<T>() == 4 && words.is_aligned() && written.is_aligned();
                if turns && are_words && count >= TURNED && run.extent >= TURNED {
                    transpose::turn(isa, (words, run.from), (written, rows.to), run.extent, count);
                } else if turns && count >= TILE.0 && run.extent >= TILE.1 {
                    turn_tiles(run, Dim { extent: count, ..rows }, from, out);
                } else {
                    rows_of(run, Dim { extent: count, ..rows }, from, out);
                }
            }
        }
    });
}

/// A copy of one dimension.
///
/// # Safety
/// The conditions of [`parts`] hold.
unsafe fn line<T: Copy + Send + Sync>(run: Dim, from: *const T, out: *mut T, threads: usize) {
    let each = (SHARE / size_of::<T>()).max(1);
    let (from, out) = (Shared::new(from.cast_mut()), Shared::new(out));
    threads::for_each(run.extent.div_ceil(each), threads, |part| {
        let start = part * each;
        let run = Dim { extent: each.min(run.extent - start), ..run };
        // SAFETY: the caller's contract; parts write different units.
        unsafe { line_of(run, from.get().cast_const().add(start * run.from), out.get().add(start * run.to)) };
    });
}

/// Rows with the units of one dimension each.
///
/// # Safety
/// The conditions of [`parts`] hold.
unsafe fn rows_of<T: Copy>(run: Dim, rows: Dim, from: *const T, out: *mut T) {
    /// Rows with so few units that a call of `memcpy` takes longer than the copy: 3 of 8 columns take 0.11 of the time.
    ///
    /// # Safety
    /// The conditions of [`rows_of`] hold for runs of N units.
    unsafe fn short<T: Copy, const N: usize>(rows: Dim, from: *const T, out: *mut T) {
        for row in 0..rows.extent {
            // SAFETY: the contract of `rows_of` for runs of N units.
            unsafe {
                let run = from.add(row * rows.from).cast::<[T; N]>().read_unaligned();
                out.add(row * rows.to).cast::<[T; N]>().write_unaligned(run);
            }
        }
    }
    // SAFETY: the caller's contract.
    unsafe {
        match run {
            Dim { extent: 2, from: 1, to: 1 } => short::<T, 2>(rows, from, out),
            Dim { extent: 3, from: 1, to: 1 } => short::<T, 3>(rows, from, out),
            Dim { extent: 4, from: 1, to: 1 } => short::<T, 4>(rows, from, out),
            Dim { extent: 5, from: 1, to: 1 } => short::<T, 5>(rows, from, out),
            Dim { extent: 6, from: 1, to: 1 } => short::<T, 6>(rows, from, out),
            Dim { extent: 7, from: 1, to: 1 } => short::<T, 7>(rows, from, out),
            Dim { extent: 8, from: 1, to: 1 } => short::<T, 8>(rows, from, out),
            _ => (0..rows.extent).for_each(|row| line_of(run, from.add(row * rows.from), out.add(row * rows.to))),
        }
    }
}

/// Rows that are adjacent in the source, each unit in another line: copied in tiles, so that whole lines are read and
/// pieces of rows are written. On an AMD EPYC with AVX2, f16 in 1024 rows of 1024 take 0.22 of the time of row after
/// row.
///
/// # Safety
/// The conditions of [`parts`] hold; `rows.from` and `run.to` are 1, and there is at least one tile.
unsafe fn turn_tiles<T: Copy>(run: Dim, rows: Dim, from: *const T, out: *mut T) {
    let (high, wide) = TILE;
    let mut tile = [MaybeUninit::<[T; TILE.1]>::uninit(); TILE.0];
    // The last tile of either side is moved back to end with it, so some units are copied twice.
    for row in (0..rows.extent).step_by(high).map(|row| row.min(rows.extent - high)) {
        for i in (0..run.extent).step_by(wide).map(|i| i.min(run.extent - wide)) {
            // SAFETY: the caller's contract: the tile is inside the plane. All of `tile` is written before it is read.
            unsafe {
                for c in 0..wide {
                    let line = from.add((i + c) * run.from + row);
                    for (r, to) in tile.iter_mut().enumerate() {
                        to.as_mut_ptr().cast::<T>().add(c).write(line.add(r).read_unaligned());
                    }
                }
                for (r, piece) in tile.iter().enumerate() {
                    out.add((row + r) * rows.to + i).cast::<[T; TILE.1]>().write_unaligned(piece.assume_init());
                }
            }
        }
    }
}

/// The units of one dimension.
///
/// # Safety
/// The conditions of [`parts`] hold.
#[inline]
unsafe fn line_of<T: Copy>(run: Dim, from: *const T, out: *mut T) {
    // SAFETY: the caller's contract.
    unsafe {
        match run {
            Dim { extent, from: 1, to: 1 } => {
                std::ptr::copy_nonoverlapping(from.cast::<u8>(), out.cast::<u8>(), extent * size_of::<T>());
            }
            Dim { extent, from: 0, to: 1 } => {
                let value = from.read_unaligned();
                (0..extent).for_each(|i| out.add(i).write_unaligned(value));
            }
            Dim { extent, from: step, to: 1 } => {
                (0..extent).for_each(|i| out.add(i).write_unaligned(from.add(i * step).read_unaligned()));
            }
            Dim { extent, from: step, to } => {
                (0..extent).for_each(|i| out.add(i * to).write_unaligned(from.add(i * step).read_unaligned()));
            }
        }
    }
}
