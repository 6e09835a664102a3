//! Resizing of images.
//!
//! Which pixels a row or a column of the result reads, and with which weights, is computed once for each of both dimensions. Rows are
//! interpolated across and then down where the image grows, so that a row of it is taken apart once for all that read it, and first down
//! and then across where it shrinks.

use std::ops::Range;

use kiln_ir::op::{Resize2d, ResizeExtents, ResizeMode, Sampling};
use kiln_ir::{DataMut, Operand, Result, zeros};

use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{PlainKernel, dispatch_plain};

/// Elements of the image and the result below which one thread is faster.
const PARALLEL: usize = 200_000;

/// Elements of the result of one part of the work, and rows of one at least: the first of them are interpolated from two rows that
/// nothing else in the part may read.
const PART: usize = 32 * 1024;
const LEAST_ROWS: usize = 8;

/// Columns that are brought together before they are weighted.
const COLUMNS: usize = 64;

/// The pixels that the results along a dimension read: two for each, which are one and the same where the other has no weight. Then
/// both have the weight 1/2.
struct Axis {
    first: Vec<usize>,
    second: Vec<usize>,
    near: Vec<f32>,
    next: Vec<f32>,
    /// Whether every result is the pixel of its number.
    same: bool,
}

impl Axis {
    fn new(sampling: &Sampling, mode: ResizeMode) -> Result<Self> {
        let n = sampling.results;
        let mut axis =
            Self { first: zeros(n)?, second: zeros(n)?, near: zeros(n)?, next: zeros(n)?, same: n == sampling.pixels };
        for (j, (pixel, rest)) in sampling.taps().enumerate() {
            let between = mode == ResizeMode::Bilinear && rest > 0;
            let weight = |part: usize| (part as f64 / sampling.over as f64) as f32;
            (axis.near[j], axis.next[j]) =
                if between { (weight(sampling.over - rest), weight(rest)) } else { (0.5, 0.5) };
            (axis.first[j], axis.second[j]) = (pixel, pixel + usize::from(between));
            axis.same &= pixel == j && !between;
        }
        Ok(axis)
    }

    /// The pixels of a row that the results are, without a weight.
    #[inline(always)]
    fn pick(&self, row: &[f32], out: &mut [f32]) {
        if self.same {
            out.copy_from_slice(row);
            return;
        }
        assert!(row.len() > self.first.last().copied().unwrap_or(0));
        for (out, &first) in out.iter_mut().zip(&self.first) {
            // SAFETY: the pixels never decrease, and the last one is within the row.
            *out = unsafe { *row.get_unchecked(first) };
        }
    }

    /// A row interpolated across.
    #[inline(always)]
    fn interpolate(&self, row: &[f32], out: &mut [f32]) {
        if self.same {
            out.copy_from_slice(row);
            return;
        }
        assert!(row.len() > self.second.last().copied().unwrap_or(0));
        let pixels = self.first.chunks(COLUMNS).zip(self.second.chunks(COLUMNS));
        let weights = self.near.chunks(COLUMNS).zip(self.next.chunks(COLUMNS));
        for ((out, (first, second)), (near, next)) in out.chunks_mut(COLUMNS).zip(pixels).zip(weights) {
            let (mut a, mut b) = ([0.0; COLUMNS], [0.0; COLUMNS]);
            for ((a, b), (&first, &second)) in a.iter_mut().zip(&mut b).zip(first.iter().zip(second)) {
                // SAFETY: the second pixels never decrease, the first ones are not beyond them, and the last one is within the row.
                (*a, *b) = unsafe { (*row.get_unchecked(first), *row.get_unchecked(second)) };
            }
            for ((out, (a, b)), (near, next)) in out.iter_mut().zip(a.iter().zip(&b)).zip(near.iter().zip(next)) {
                *out = a * near + b * next;
            }
        }
    }
}

/// Two rows interpolated down.
#[inline(always)]
fn blend(a: &[f32], b: &[f32], near: f32, next: f32, out: &mut [f32]) {
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out = a * near + b * next);
}

/// Some rows of the result, whatever plane they are in.
struct Rows<'a> {
    mode: ResizeMode,
    e: &'a ResizeExtents,
    down: &'a Axis,
    across: &'a Axis,
    x: &'a [f32],
    rows: Range<usize>,
    out: &'a mut [f32],
    /// Two rows as long as those of the image and of the result.
    held: [&'a mut [f32]; 2],
}

impl Rows<'_> {
    /// A row of an image, by its number among those of all planes.
    #[inline(always)]
    fn row(x: &[f32], w: usize, row: usize) -> &[f32] {
        &x[row * w..][..w]
    }

    #[inline(always)]
    fn nearest(self) {
        let Self { e, down, across, x, rows, out, .. } = self;
        let (w, width) = (e.across.pixels, e.across.results);
        let mut before = None;
        for (at, row) in rows.enumerate() {
            let from = row / e.down.results * e.down.pixels + down.first[row % e.down.results];
            if before == Some(from) {
                out.copy_within((at - 1) * width..at * width, at * width);
            } else {
                across.pick(Self::row(x, w, from), &mut out[at * width..][..width]);
            }
            before = Some(from);
        }
    }

    /// First down, then across.
    #[inline(always)]
    fn shrinking(self) {
        let Self { e, down, across, x, rows, out, held: [blended, _], .. } = self;
        let w = e.across.pixels;
        for (row, out) in rows.zip(out.chunks_exact_mut(e.across.results)) {
            let (plane, i) = (row / e.down.results * e.down.pixels, row % e.down.results);
            let [first, second] = [&down.first, &down.second].map(|of| plane + of[i]);
            let (a, b) = (Self::row(x, w, first), Self::row(x, w, second));
            match (first == second, across.same) {
                (true, _) => across.interpolate(a, out),
                (false, true) => blend(a, b, down.near[i], down.next[i], out),
                (false, false) => {
                    blend(a, b, down.near[i], down.next[i], &mut blended[..w]);
                    across.interpolate(&blended[..w], out);
                }
            }
        }
    }

    /// First across, then down.
    #[inline(always)]
    fn growing(self) {
        let Self { e, down, across, x, rows, out, held: [mut above, mut below], .. } = self;
        let (w, width) = (e.across.pixels, e.across.results);
        // The rows of images that are held, interpolated across.
        let mut of = [usize::MAX; 2];
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            let (plane, i) = (row / e.down.results * e.down.pixels, row % e.down.results);
            let [first, second] = [&down.first, &down.second].map(|of| plane + of[i]);
            if of[0] != first {
                if of[1] == first {
                    std::mem::swap(&mut above, &mut below);
                    of.swap(0, 1);
                } else {
                    across.interpolate(Self::row(x, w, first), &mut above[..width]);
                    of[0] = first;
                }
            }
            if first == second {
                out.copy_from_slice(&above[..width]);
                continue;
            }
            if of[1] != second {
                across.interpolate(Self::row(x, w, second), &mut below[..width]);
                of[1] = second;
            }
            blend(&above[..width], &below[..width], down.near[i], down.next[i], out);
        }
    }
}

impl PlainKernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.mode {
            ResizeMode::Nearest => self.nearest(),
            ResizeMode::Bilinear if self.across.same || self.e.down.results <= self.e.down.pixels => self.shrinking(),
            ResizeMode::Bilinear => self.growing(),
        }
    }
}

impl Execute for Resize2d {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let e = self.extents(&inputs[0].shape())?;
        let (x, y) = (f32s(inputs, 0), outputs[0].f32());
        if y.is_empty() {
            return Ok(());
        }
        let (down, across) = (Axis::new(&e.down, self.mode)?, Axis::new(&e.across, self.mode)?);
        let threads = if x.len().max(y.len()) < PARALLEL { 1 } else { simd.threads() };
        let (width, rows) = (e.across.results, e.planes * e.down.results);
        let each = (PART / width).max(LEAST_ROWS).min(rows);
        let held = width.max(e.across.pixels);
        scratch::room(&[held, held], threads)?;
        let out = Shared::new(y.as_mut_ptr());
        threads::for_each(rows.div_ceil(each), threads, |part| {
            let rows = part * each..rows.min((part + 1) * each);
            // SAFETY: the rows of a part are within the result, and no other part has them.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(rows.start * width), rows.len() * width) };
            scratch::slices([held, held], |held| {
                let rows = Rows { mode: self.mode, e: &e, down: &down, across: &across, x, rows, out, held };
                // SAFETY: a `Simd` exists only for an available instruction set.
                unsafe { dispatch_plain(simd.isa(), rows) };
            });
        });
        Ok(())
    }
}
