//! Convolution of many channels by pixels: the product of a matrix with a row for each result and a column for each channel
//! and place in the kernel, and the kernels, packed with a column for each output channel.
//!
//! The matrix is not made. Rows of it are packed, a tile at a time, from a [`Frame`], where the pixels under neighbouring
//! results are neighbours: a vector of results is a load and a store for each column, or a few where rows of results end. No
//! column is useless, whatever the width of the picture. Results stand pixel by pixel, and are turned at the end.
//!
//! What it costs to pack rows is shared by the output channels, of which there must be many; what it costs to turn kernels by
//! the results, unless they are packed once for many pictures.

use kiln_core::op::ConvolveExtents;

use super::frame::{Frame, Region, fill};
use crate::gemm::{Gemm, Left, MatrixRef, Rows, Source, pack_all};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};
use crate::{Isa, scratch, transpose};

/// Elements of the frame of a block of rows: half a megabyte, which lies in the second-level cache beside the packed rows.
const BLOCK: usize = 128 * 1024;

/// Places in a kernel whose offsets are kept in a table.
const PLACES: usize = 128;

/// Output channels from which packed kernels are faster this way. On an AVX-512 Xeon with kernels of 3 x 3, 64 channels are
/// level, 96 ahead by 5 to 12 %, 128 and more by 10 to 60 %, most where pictures are small or the stride is not one.
const CHANNELS: usize = 96;

/// Input channels below which the rows of a kernel are short.
const INPUTS: usize = 16;

/// As many of both, and results of a channel, from which it pays to turn kernels for a single call: there by 3 to 20 % on one
/// thread and 7 to 15 % on two, while 196 results of 256 channels are level, and 49 of 512 lose 20 %.
const TURNED: (usize, usize) = (128, 400);

/// Whether packed kernels `[c_out, c_in, kh, kw]` go this way.
pub(super) fn suits_packed([c_out, c_in, kh, kw]: [usize; 4]) -> bool {
    c_out >= CHANNELS && c_in >= INPUTS && kh.saturating_mul(kw) > 1
}

/// Whether kernels that are not packed go this way. It does not depend on the number of threads, nor do results.
pub(super) fn suits(e: &ConvolveExtents) -> bool {
    let (channels, results) = TURNED;
    e.c_out.min(e.c_in) >= channels && e.kh * e.kw > 1 && e.batch * e.out_h * e.out_w >= results
}

/// Elements of the frame of a whole picture.
pub(super) fn frame_len(e: &ConvolveExtents, stride: (usize, usize)) -> u128 {
    let f = Frame::whole(e, stride);
    [f.row(), f.rows, e.c_in].iter().map(|&n| n as u128).product()
}

/// Convolves pictures with kernels that are not packed.
pub(super) fn run(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernels: &[f32],
    y: &mut [f32],
) {
    let terms = e.c_in * e.kh * e.kw;
    scratch::slices([terms * e.c_out.next_multiple_of(isa.lanes())], |[packed]| {
        let from = MatrixRef::new(kernels, terms, true);
        // SAFETY: a `Simd` exists only for an available instruction set; the slices have these extents.
        unsafe {
            pack_all(isa, threads, from, terms, e.c_out, packed.as_mut_ptr());
            run_packed(isa, threads, e, stride, x, Source::Packed(packed.as_ptr()), y);
        }
    });
}

/// Convolves pictures with kernels packed as the transpose of a matrix with a row for each output channel.
///
/// # Safety
/// The instruction set is there, the kernels are packed for it with the extents of `e`. The slices have its extents, none of
/// them zero.
pub(super) unsafe fn run_packed(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernels: Source,
    y: &mut [f32],
) {
    let (picture, plane) = (e.c_in * e.h * e.w, e.out_h * e.out_w);
    let whole = Frame::whole(e, stride);
    let under_row = e.c_in * whole.row();
    let blocks = e.out_h.div_ceil((BLOCK / under_row).max(1));
    for (x, y) in x.chunks_exact(picture).zip(y.chunks_exact_mut(e.c_out * plane)) {
        for block in 0..blocks {
            let rows = block * e.out_h / blocks..(block + 1) * e.out_h / blocks;
            let (first, m) = (rows.start * e.out_w, rows.len() * e.out_w);
            let frame = Frame::new(e, stride, &Region { rows, columns: 0..e.out_w });
            scratch::slices([e.c_in * frame.plane(), m * e.c_out], |[copy, results]| {
                fill(isa, threads, frame, e.c_in, x, copy);
                let pixels = Pixels::new(frame, e, copy);
                let (k, n) = (e.c_in * e.kh * e.kw, e.c_out);
                let (a, c) = (Left::Rows(&pixels, 0), results.as_mut_ptr());
                let to = Shared::new(y.as_mut_ptr());
                // SAFETY: the rows are those of the frame, B is the caller's, the slice holds the results.
                unsafe { Gemm { m, k, n, a, b: kernels, c, c_stride: n }.run(isa, threads) };
                let results = &results[..];
                threads::for_each(n.div_ceil(STRIP), threads, |strip| {
                    let channel = strip * STRIP;
                    let from = results[channel..].as_ptr();
                    let to = to.get().wrapping_add(channel * plane + first);
                    // SAFETY: a `Simd` exists only for an available instruction set; the results of these channels are read,
                    // and written to their planes by nobody else.
                    unsafe { transpose::turn(isa, (from, n), (to, plane), m, STRIP.min(n - channel)) };
                });
            });
        }
    }
}

/// Channels whose results a thread turns at a time.
const STRIP: usize = 32;

/// The pixels under results: a row for each result, a column for each channel and place in the kernel.
struct Pixels<'a> {
    frame: Frame,
    kernel: (usize, usize),
    /// Where the pixels under the first places in the kernel stand, for the first result: to find that takes divisions.
    offsets: [usize; PLACES],
    out_w: usize,
    /// The frame and a vector more.
    x: &'a [f32],
}

impl<'a> Pixels<'a> {
    fn new(frame: Frame, e: &ConvolveExtents, x: &'a [f32]) -> Self {
        let mut offsets = [0; PLACES];
        for (place, offset) in offsets.iter_mut().enumerate().take(e.kh * e.kw) {
            *offset = frame.offset(place / e.kw, place % e.kw);
        }
        Self { frame, kernel: (e.kh, e.kw), offsets, out_w: e.out_w, x }
    }

    #[inline(always)]
    fn offset(&self, place: usize) -> usize {
        match self.offsets.get(place) {
            Some(&offset) => offset,
            None => self.frame.offset(place / self.kernel.1, place % self.kernel.1),
        }
    }
}

impl Rows for Pixels<'_> {
    unsafe fn pack(&self, isa: Isa, i: usize, rows: usize, p: usize, k: usize, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { dispatch(isa, Pack { pixels: self, i, rows, p, k, out }) };
    }
}

/// As [`Rows::pack`].
struct Pack<'a> {
    pixels: &'a Pixels<'a>,
    i: usize,
    rows: usize,
    p: usize,
    k: usize,
    out: *mut f32,
}

/// Rows of the tallest tile of any instruction set, and a vector of them at a time.
const MOST_ROWS: usize = 16;

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { pixels, i, rows, .. } = self;
        // Neighbours in a row of results, a vector at most: where those of a tile begin in the frame and in a column.
        let (mut runs, mut count, mut r) = ([(0, 0); MOST_ROWS], 0, 0);
        while r < rows {
            let (row, column) = ((i + r) / pixels.out_w, (i + r) % pixels.out_w);
            runs[count] = (row * pixels.frame.columns + column, r);
            count += 1;
            r += (pixels.out_w - column).min(rows - r).min(V::LANES);
        }
        // SAFETY: the contract of `Rows::pack`.
        unsafe {
            match runs {
                [a, ..] if count == 1 => self.columns::<V>([a]),
                [a, b, ..] if count == 2 => self.columns::<V>([a, b]),
                _ => self.columns::<V>(&runs[..count]),
            }
        }
    }
}

impl Pack<'_> {
    /// Packs column after column. What a vector writes beyond its run, a later one writes again.
    ///
    /// # Safety
    /// As [`Rows::pack`], and the instruction set of `V` is there; the runs are those of the rows.
    #[inline(always)]
    unsafe fn columns<V: Vector>(&self, runs: impl AsRef<[(usize, usize)]>) {
        let Self { pixels, rows, p, k, .. } = *self;
        let (plane, places) = (pixels.frame.plane(), pixels.kernel.0 * pixels.kernel.1);
        let mut from = pixels.x.as_ptr().wrapping_add(p / places * plane);
        let (mut place, mut left, mut to) = (p % places, k, self.out);
        while left > 0 {
            let end = places.min(place + left);
            left -= end - place;
            for place in place..end {
                let from = from.wrapping_add(pixels.offset(place));
                for &(start, r) in runs.as_ref() {
                    // SAFETY: the caller's contract: a run begins in the frame and in the column, and a vector beyond the
                    // end of either may be accessed.
                    unsafe { V::load(from.add(start)).store(to.add(r)) };
                }
                to = to.wrapping_add(rows);
            }
            (from, place) = (from.wrapping_add(plane), 0);
        }
    }
}
