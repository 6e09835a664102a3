//! The transpose of matrices.

use std::mem::MaybeUninit;

use kiln_ir::op::Transpose;
use kiln_ir::{DataMut, Operand, Result};

use crate::Isa;
use crate::matmul::turn_square;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, LINE, MAX_LANES, Vector, before_line, dispatch};

/// Rows of the source that are read side by side: one line of each stays in the L1 cache until all of it is used.
const BLOCK: usize = 64;

/// Columns of the source that are transposed before the next ones: as many rows of the result, each on its own page in
/// a large matrix, whose translations stay in the TLB.
const STRIP: usize = 128;

/// [`BLOCK`] and [`STRIP`] for results with non-temporal stores, whose lines need not stay in the caches. This few rows
/// are as many streams as hardware prefetchers follow, in runs of half a page. On a machine with 1 MiB of L2, 2048 and
/// 4096 rows take 0.55 to 0.7 of the time of blocks of 64 rows.
const LONG: (usize, usize) = (32, 512);

/// Maximum length of the shorter side for which vectors are interleaved instead of transposed in squares.
const NARROW: usize = 4;

/// Elements below which one thread is faster.
const PARALLEL: usize = 256 * 1024;

/// Minimum rows of the source for which the result is written in aligned vectors: stores across cache lines cost a
/// third to two thirds of the rate on an AVX-512 Xeon, wherever the result is. For shorter rows the additional pieces
/// would cost more.
const ALIGNED: usize = 128;

/// Elements of a source that is read and written beyond the second-level cache.
const FAR: usize = 256 * 1024;

/// Minimum elements of a result for non-temporal stores, which do not read a line before writing it. If the stride of
/// its rows is a large power of two, lines would also be evicted from the second-level cache before they are complete.
/// On an AVX-512 Xeon, 4096 rows take 0.4 of the time, 2048 as long as with ordinary stores; on a machine with smaller
/// caches 2000 rows take 0.4 of it, 1000 as long.
const STREAM: usize = 3 << 20;

/// Maximum rows of the source for which the last, partial square matters much.
const FEW: usize = 64;

/// The instruction set that suits the extents: mostly empty squares of 16 lanes take as many instructions as full ones,
/// and if rows of the result are not a multiple of 16, most stores of 16 lanes cross cache lines. On an AVX-512 Xeon,
/// AVX2 was faster by 23 % for 3000 x 6, and by 2 to 20 % for squares of 33 to 500 rows, but not for up to 64 rows when
/// more than half a square is left. Beyond the second-level cache the memory limits the speed, and either may be
/// faster.
fn fitting(isa: Isa, rows: usize, columns: usize) -> Isa {
    let rest = rows % LINE;
    let straddles = rest > 0 && rows > FEW / 2 && (rest <= LINE / 2 || rows > FEW) && rows * columns < FAR;
    let halves = rows.min(columns) <= LINE / 2 || straddles;
    if halves { isa.halved() } else { isa }
}

impl Execute for Transpose {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (count, rows, columns) = self.extents(&inputs[0].shape())?;
        run(simd, count, (rows, columns), f32s(inputs, 0), outputs[0].f32());
        Ok(())
    }
}

/// Transposes a matrix if the slices have the length for its extents. Returns whether it did.
pub(crate) fn run_slices(simd: &Simd, x: &[f32], rows: usize, columns: usize, out: &mut [f32]) -> bool {
    let fit = !x.is_empty() && rows.checked_mul(columns) == Some(x.len()) && x.len() == out.len();
    if fit {
        run(simd, 1, (rows, columns), x, out);
    }
    fit
}

/// Transposes `count` matrices. The slices have the lengths that the extents require.
pub(crate) fn run(simd: &Simd, count: usize, (rows, columns): (usize, usize), from: &[f32], out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let (short, long) = (rows.min(columns), rows.max(columns));
    let threads = if out.len() < PARALLEL { 1 } else { simd.threads() };
    let stream = rows * columns >= STREAM;
    let out = Shared::new(out.as_mut_ptr());
    if short <= NARROW && simd.isa().lanes() > 1 {
        let piece = long.div_ceil(2 * threads).next_multiple_of(BLOCK).min(long);
        let pieces = long.div_ceil(piece);
        return threads::for_each(count * pieces, threads, |part| {
            let (matrix, i) = (part / pieces * rows * columns, part % pieces * piece);
            let apart = columns == short;
            let (read, write) = if apart { (i * short, i) } else { (i, i * short) };
            let n = piece.min(long - i);
            // SAFETY: matrix and piece are inside both slices, pieces of the result are disjoint, and the instruction
            // set is that of a `Simd`.
            unsafe {
                let from = from.as_ptr().add(matrix + read);
                let out = out.get().add(matrix + write);
                dispatch(simd.isa(), Narrow { from, out, long, short, n, apart, stream });
            }
        });
    }
    let isa = fitting(simd.isa(), rows, columns);
    // Other architectures have no non-temporal stores.
    let stream = cfg!(target_arch = "x86_64") && stream && rows.is_multiple_of(LINE) && isa.lanes() > 1;
    let parted = rows * columns >= FAR && !rows.is_multiple_of(LINE);
    let order = if stream { LONG } else { (BLOCK, STRIP) };
    // Columns of the source are rows of the result: divides these into whole blocks.
    let strip = columns.div_ceil(2 * threads).next_multiple_of(BLOCK).min(order.1).min(columns);
    let strips = columns.div_ceil(strip);
    threads::for_each(count * strips, threads, |part| {
        let (matrix, j) = (part / strips * rows * columns, part % strips * strip);
        let width = strip.min(columns - j);
        // SAFETY: matrix and strip are inside both slices, strips of the result are disjoint, and the instruction set
        // is that of a `Simd` or was checked.
        unsafe {
            let from = from.as_ptr().add(matrix + j);
            let out = out.get().add(matrix + j * rows);
            let block = order.0;
            if stream {
                dispatch(isa, Strip::<true> { from, columns, out, stride: rows, rows, width, block, parted });
            } else {
                dispatch(isa, Strip::<false> { from, columns, out, stride: rows, rows, width, block, parted });
            }
        }
    });
}

/// Transposes `rows` runs of `width` elements, `columns` apart, to `width` runs of `rows`, `stride` apart.
///
/// # Safety
/// The instruction set is available; the runs are readable and writable.
pub(crate) unsafe fn turn(
    isa: Isa,
    (from, columns): (*const f32, usize),
    (out, stride): (*mut f32, usize),
    rows: usize,
    width: usize,
) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, Strip::<false> { from, columns, out, stride, rows, width, block: BLOCK, parted: false }) };
}

/// Transposes `width` columns of a matrix to rows, with non-temporal stores of cache lines if `LINES` and the rows
/// begin at cache lines. Only whole lines are streamed: a partial one costs as much as reading and writing it, and on
/// an AVX-512 Xeon 1800 rows took three times as long in runs that begin or end inside a line.
///
/// # Safety
/// `rows` runs of `width` f32, `columns` apart, are readable; `width` runs of `rows` f32, `stride` apart, are writable.
struct Strip<const LINES: bool> {
    from: *const f32,
    columns: usize,
    out: *mut f32,
    stride: usize,
    rows: usize,
    width: usize,
    block: usize,
    /// Whether lines that two consecutive blocks complete together are far apart.
    parted: bool,
}

impl<const LINES: bool> Kernel for Strip<LINES> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { from, columns, out, stride, rows, width, block, parted } = self;
        let head = if rows < ALIGNED { 0 } else { before_line(out) };
        let stream = LINES && before_line(out.wrapping_add(head)) == 0;
        // Other rows of whole lines need no prefetching.
        let ask = parted || stream;
        // Uninitialised: filling it would take a tenth of the time of a small matrix.
        let mut lines = MaybeUninit::<[[f32; LINE]; MAX_LANES]>::uninit();
        let lines = lines.as_mut_ptr().cast::<f32>();
        let mut i1 = 0;
        while i1 < rows {
            let i0 = i1;
            i1 = rows.min(if i0 == 0 { head } else { i0 } + block);
            for j in (0..width).step_by(V::LANES) {
                let j = whole::<V>(j, 0, width);
                let high = V::LANES.min(width - j);
                let mut i = i0;
                // Most squares, without the tests below, which take as long as squares of four lanes.
                while const { V::LANES == 4 } && !ask && high == V::LANES && i >= head && i + V::LANES <= i1 {
                    // SAFETY: the contract of `Strip`.
                    unsafe {
                        let (from, out) = (from.add(i * columns + j), out.add(j * stride + i));
                        turn_square::<V>(from, columns, V::LANES, V::LANES, out, stride, V::LANES);
                    }
                    i += V::LANES;
                }
                while i < i1 {
                    i = if i < head { whole::<V>(i, 0, head) } else { whole::<V>(i, i0.max(head), i1) };
                    let line = stream && high == V::LANES && i >= head && i1 - i >= LINE;
                    let wide = if line { LINE } else { V::LANES.min(if i < head { head } else { i1 } - i) };
                    // SAFETY: the contract of `Strip`.
                    unsafe {
                        let (from, out) = (from.add(i * columns + j), out.add(j * stride + i));
                        if ask {
                            for r in 0..V::LANES {
                                V::prefetch_far(from.wrapping_add((block + r) * columns));
                                if parted {
                                    V::prefetch_far(out.wrapping_add(r * stride + block));
                                }
                            }
                        }
                        if line {
                            stream_lines::<V>(from, columns, out, stride, lines);
                        } else {
                            turn_square::<V>(from, columns, wide, high, out, stride, wide);
                        }
                    }
                    i += wide;
                }
            }
        }
        if stream {
            // SAFETY: the instruction set is available.
            unsafe { V::splat(0.0) }.fence();
        }
    }
}

/// Transposes [`LINE`] rows of a vector, `columns` apart, to a line of each of as many rows of the result.
///
/// # Safety
/// These are accessible, the rows of the result begin at cache lines, `lines` is writable for a line of each.
#[inline(always)]
unsafe fn stream_lines<V: Vector>(from: *const f32, columns: usize, out: *mut f32, stride: usize, lines: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        if const { V::LANES == LINE } {
            let turned = V::load_columns(from, columns);
            for (r, row) in turned.into_iter().enumerate().take(V::LANES) {
                row.stream(out.add(r * stride));
            }
            return;
        }
        for k in (0..LINE).step_by(V::LANES) {
            let turned = V::load_columns(from.add(k * columns), columns);
            for (r, row) in turned.into_iter().enumerate().take(V::LANES) {
                row.store(lines.add(r * LINE + k));
            }
        }
        for r in 0..V::LANES {
            for k in (0..LINE).step_by(V::LANES) {
                V::load(lines.add(r * LINE + k)).stream(out.add(r * stride + k));
            }
        }
    }
}

/// The beginning of a vector from `i` that ends by `end`: earlier if necessary, but not before `start`. Transposing
/// elements twice costs less than a partial vector, which four-lane instruction sets access element by element.
#[inline(always)]
fn whole<V: Vector>(i: usize, start: usize, end: usize) -> usize {
    if const { V::LANES == 4 } && end - i < V::LANES { end.saturating_sub(V::LANES).max(start) } else { i }
}

/// Whether a vector at `p` is inside one cache line, as streaming requires.
#[inline(always)]
fn is_aligned<V: Vector>(p: *const f32) -> bool {
    (p as usize).is_multiple_of(size_of::<f32>() * V::LANES)
}

/// Transposes `n` rows of up to four elements to runs, or the reverse.
///
/// # Safety
/// One side is accessible for `n * short` f32; the other for `short` runs of `n`, `long` apart. `apart` says that the
/// runs are the result.
struct Narrow {
    from: *const f32,
    out: *mut f32,
    long: usize,
    short: usize,
    n: usize,
    apart: bool,
    stream: bool,
}

impl Kernel for Narrow {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.short {
                1 => self.weave::<V, 1>(),
                2 => self.weave::<V, 2>(),
                3 => self.weave::<V, 3>(),
                _ => self.weave::<V, 4>(),
            }
        }
    }
}

impl Narrow {
    /// # Safety
    /// The conditions of [`Kernel::run`] hold; `short` is `C`.
    #[inline(always)]
    unsafe fn weave<V: Vector, const C: usize>(self) {
        let step = if self.apart { 1 } else { C };
        // Rows until the result is aligned; it may never be.
        let head = (0..V::LANES).find(|h| is_aligned::<V>(self.out.wrapping_add(h * step)));
        let stream = self.stream && head.is_some() && (!self.apart || self.long.is_multiple_of(V::LANES));
        let mut i = head.unwrap_or(0).min(self.n);
        // SAFETY: the caller's contract.
        unsafe {
            if i > 0 {
                self.vectors::<V, C>(0, i, false);
            }
            while i + V::LANES <= self.n {
                self.vectors::<V, C>(i, V::LANES, stream);
                i += V::LANES;
            }
            if i < self.n {
                self.vectors::<V, C>(i, self.n - i, false);
            }
            if stream {
                V::splat(0.0).fence();
            }
        }
    }

    /// Rows `i .. i + n`, at most as many as a vector has lanes.
    ///
    /// # Safety
    /// The conditions of [`Narrow::weave`] hold; these rows exist; `stream` only for a whole vector of them at aligned
    /// addresses.
    #[inline(always)]
    unsafe fn vectors<V: Vector, const C: usize>(&self, i: usize, n: usize, stream: bool) {
        // Vector c of the contiguous rows, with the number of its elements that exist; and run c.
        let row = |c: usize| (i * C + c * V::LANES, (n * C).saturating_sub(c * V::LANES).min(V::LANES));
        let run = |c: usize| (c * self.long + i, n);
        // SAFETY: the caller's contract.
        unsafe {
            let mut x = [V::splat(0.0); C];
            for (c, x) in x.iter_mut().enumerate() {
                let (at, some) = if self.apart { row(c) } else { run(c) };
                let p = self.from.wrapping_add(at);
                *x = if n == V::LANES { V::load(p) } else { V::load_first(p, some) };
            }
            let y = if self.apart { unweave(x) } else { interweave(x) };
            for (c, y) in y.into_iter().enumerate() {
                let (at, some) = if self.apart { run(c) } else { row(c) };
                let p = self.out.wrapping_add(at);
                match (stream, n == V::LANES) {
                    (true, _) => y.stream(p),
                    (_, true) => y.store(p),
                    _ => y.store_first(p, some),
                }
            }
        }
    }
}

/// Splits vectors of rows of `C` elements into `C` vectors, one for each element.
#[inline(always)]
fn unweave<V: Vector, const C: usize>(x: [V; C]) -> [V; C] {
    let mut y = x;
    match C {
        2 => (y[0], y[1]) = V::unzip(x[0], x[1]),
        3 => [y[0], y[1], y[2]] = V::unzip3([x[0], x[1], x[2]]),
        4 => {
            let (low, high) = (V::unzip(x[0], x[1]), V::unzip(x[2], x[3]));
            (y[0], y[2]) = V::unzip(low.0, high.0);
            (y[1], y[3]) = V::unzip(low.1, high.1);
        }
        _ => {}
    }
    y
}

/// Undoes [`unweave`].
#[inline(always)]
fn interweave<V: Vector, const C: usize>(x: [V; C]) -> [V; C] {
    let mut y = x;
    match C {
        2 => (y[0], y[1]) = V::zip(x[0], x[1]),
        3 => [y[0], y[1], y[2]] = V::zip3([x[0], x[1], x[2]]),
        4 => {
            let (even, odd) = (V::zip(x[0], x[2]), V::zip(x[1], x[3]));
            (y[0], y[1]) = V::zip(even.0, odd.0);
            (y[2], y[3]) = V::zip(even.1, odd.1);
        }
        _ => {}
    }
    y
}
