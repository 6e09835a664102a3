//! Convolution plane by plane: a stencil over rows.
//!
//! A block of four rows and two vectors of results stays in registers. For each column of the kernel, every row of the
//! image under the block is loaded once, at that shift, and used for all the results that see it: seven loads serve
//! forty products of a kernel of five rows, so that loads, which straddle cache lines here, do not set the pace.
//!
//! Taller kernels are cut into slices of at most five rows, input channels and the phases of a stride into passes; the
//! results of later passes are added. The rows of a dilated kernel are not neighbours. Then result rows are split into classes,
//! whose rows are as far apart, so that their windows overlap again; each class has passes of its own.

use std::ops::Range;

use kiln_ir::op::ConvolveExtents;

use super::frame::{Fill, Frame, Region};
use crate::array::from_fn;
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};
use crate::{Isa, scratch};

/// Elements of a block of rows, which stays in the second-level cache while it is read again.
const BLOCK: usize = 32 * 1024;

/// Columns of results below which a padded image is copied whole rather than only along its border: on AVX2 that takes
/// 0.3 of the time for planes of 14 x 14 and kernels of 5 x 5, 0.7 for 56 x 56 and 3 x 3, and equal time for 112 x 112.
const NARROW: usize = 96;

pub(super) fn run(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: &mut [f32],
) {
    let inside = inside(e, stride);
    let has_border = inside.rows.len() < e.out_h || inside.columns.len() < e.out_w;
    // Row blocks that consist of whole register blocks.
    let (_, classes) = steps(e, stride);
    let rows = (BLOCK / e.w.saturating_mul(stride.0).max(1)).max(1).next_multiple_of(4 * classes).min(e.out_h);
    let blocks = e.out_h.div_ceil(rows);
    let out = Shared::new(y.as_mut_ptr());
    threads::for_each(e.batch * blocks, threads, |part| {
        let (n, block) = (part / blocks, part % blocks);
        let rows = block * rows..e.out_h.min((block + 1) * rows);
        let plane = Plane { isa, e, stride, kernel, x: &x[n * e.c_in * e.h * e.w..], y: out.get(), n };
        if e.out_w < NARROW && has_border {
            return plane.region(&Region { rows, columns: 0..e.out_w }, false);
        }
        // The rows whose windows are inside the image, and those above and below.
        let start = rows.start.max(inside.rows.start).min(rows.end);
        let end = rows.end.min(inside.rows.end).max(start);
        let columns = 0..e.out_w;
        let Region { columns: Range { start: left, end: right }, .. } = inside;
        plane.region(&Region { rows: rows.start..start, columns: columns.clone() }, false);
        plane.region(&Region { rows: start..end, columns: 0..left }, false);
        plane.region(&Region { rows: start..end, columns: left..right }, true);
        plane.region(&Region { rows: start..end, columns: right..e.out_w }, false);
        plane.region(&Region { rows: end..rows.end, columns }, false);
    });
}

/// The results whose windows are inside the image, so that they need no copy of it: none with a column stride, because
/// its pixels must be gathered.
fn inside(e: &ConvolveExtents, stride: (usize, usize)) -> Region {
    let along = |n: usize, k: usize, before: usize, stride: usize, out: usize| {
        let end = if n + before >= k { out.min((n + before - k) / stride + 1) } else { 0 };
        before.div_ceil(stride).min(end)..end
    };
    let (down, across) = e.span();
    let rows = along(e.h, down, e.top, stride.0, e.out_h);
    let columns = if stride.1 == 1 { along(e.w, across, e.left, 1, e.out_w) } else { 0..0 };
    Region { rows, columns }
}

/// The steps between kernel rows, and between rows of results, that see the same pixels: for result row `i`, kernel row
/// `p + step` sees the pixels that kernel row `p` sees for result row `i + classes`.
fn steps(e: &ConvolveExtents, stride: (usize, usize)) -> (usize, usize) {
    let (mut common, mut rest) = (stride.0, e.dilation.0);
    while rest > 0 {
        (common, rest) = (rest, common % rest);
    }
    (stride.0 / common, e.dilation.0 / common)
}

/// Data that the regions of an image share.
struct Plane<'a> {
    isa: Isa,
    e: &'a ConvolveExtents,
    stride: (usize, usize),
    kernel: &'a [f32],
    /// The image.
    x: &'a [f32],
    /// All results.
    y: *mut f32,
    /// The index of the image in the batch.
    n: usize,
}

impl Plane<'_> {
    /// All passes over a region, which nothing else accesses.
    fn region(&self, region: &Region, in_place: bool) {
        let Self { e, stride, .. } = *self;
        if region.rows.is_empty() || region.columns.is_empty() {
            return;
        }
        let frame = Frame::new(e, stride, region);
        let (step, classes) = steps(e, stride);
        scratch::slices([if in_place { 0 } else { frame.plane() }], |[copy]| {
            for c in 0..e.c_in {
                let picture = self.x[c * e.h * e.w..].as_ptr();
                if !in_place {
                    let fill = Fill { frame, planes: 1, x: picture, to: copy.as_mut_ptr() };
                    // SAFETY: a `Simd` exists only for an available instruction set; the scratch is a plane long.
                    unsafe { dispatch(self.isa, fill) };
                }
                for o in 0..e.c_out {
                    for phase in 0..step.min(e.kh) {
                        let heights = (e.kh - phase).div_ceil(step);
                        for slice in (0..heights).step_by(TALLEST) {
                            let p = phase + slice * step;
                            for class in 0..classes.min(region.rows.len()) {
                                let first = region.rows.start + class;
                                let (from, x_stride) = if in_place {
                                    // The window of the first result is inside the image, so nothing below is negative.
                                    let row = first * stride.0 + p * e.dilation.0 - e.top;
                                    (picture.wrapping_add(row * e.w + region.columns.start - e.left), stride.0 * e.w)
                                } else {
                                    let offset = frame.offset(p, 0) + class * frame.columns;
                                    (copy.as_ptr().wrapping_add(offset), frame.columns)
                                };
                                let y = ((self.n * e.c_out + o) * e.out_h + first) * e.out_w;
                                let pass = Pass {
                                    x: from,
                                    x_stride: classes * x_stride,
                                    phase: frame.rows * frame.columns,
                                    stride: stride.1,
                                    step: (e.dilation.1 % stride.1, e.dilation.1 / stride.1),
                                    w: self.kernel[((o * e.c_in + c) * e.kh + p) * e.kw..].as_ptr(),
                                    w_stride: step * e.kw,
                                    kh: (heights - slice).min(TALLEST),
                                    kw: e.kw,
                                    y: self.y.wrapping_add(y + region.columns.start),
                                    y_stride: classes * e.out_w,
                                    rows: (region.rows.len() - class).div_ceil(classes),
                                    columns: region.columns.len(),
                                    add: c > 0 || phase > 0 || slice > 0,
                                };
                                // SAFETY: a `Simd` exists only for an available instruction set. The rows of the image
                                // or of the frame reach (span - 1) / stride beyond the results, down and across;
                                // nothing else accesses the region of the results.
                                unsafe { dispatch(self.isa, pass) };
                            }
                        }
                    }
                }
            }
        });
    }
}

/// Maximum rows of a slice of a kernel.
const TALLEST: usize = 5;

/// One pass: rows of results (+)= a slice of the kernel over rows of the image.
///
/// # Safety
/// `x` is readable for `rows + kh - 1` rows of the pixels that the kernel reaches, `w` for `kh` rows of `kw`; `y` is
/// writable for `rows` of `columns`, and nothing else writes there.
struct Pass {
    x: *const f32,
    x_stride: usize,
    /// Elements between column phases.
    phase: usize,
    stride: usize,
    /// The change of phase, and the number of whole strides, between columns of the kernel.
    step: (usize, usize),
    w: *const f32,
    w_stride: usize,
    kh: usize,
    kw: usize,
    y: *mut f32,
    y_stride: usize,
    rows: usize,
    columns: usize,
    add: bool,
}

impl Kernel for Pass {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the contract of `Pass`.
        unsafe {
            match self.kh {
                1 => self.slice::<V, 1>(),
                2 => self.slice::<V, 2>(),
                3 => self.slice::<V, 3>(),
                4 => self.slice::<V, 4>(),
                _ => self.slice::<V, TALLEST>(),
            }
        }
    }
}

impl Pass {
    /// # Safety
    /// The contract of [`Pass`], and `kh` is `KH`.
    #[inline(always)]
    unsafe fn slice<V: Vector, const KH: usize>(&self) {
        let mut row = 0;
        // SAFETY: rows stay below `self.rows`.
        unsafe {
            while row + 4 <= self.rows {
                self.row_block::<V, KH, 4>(row);
                row += 4;
            }
            while row < self.rows {
                self.row_block::<V, KH, 1>(row);
                row += 1;
            }
        }
    }

    /// # Safety
    /// The conditions of [`Pass::slice`] hold; rows `row .. row + R` exist.
    #[inline(always)]
    unsafe fn row_block<V: Vector, const KH: usize, const R: usize>(&self, row: usize) {
        let mut at = 0;
        // SAFETY: columns stay below `self.columns`.
        unsafe {
            while at + 2 * V::LANES <= self.columns {
                self.block::<V, KH, R, 2, false>(row, at);
                at += 2 * V::LANES;
            }
            if at + V::LANES <= self.columns {
                self.block::<V, KH, R, 1, false>(row, at);
                at += V::LANES;
            }
            if at < self.columns {
                self.block::<V, KH, R, 1, true>(row, at);
            }
        }
    }

    /// `R` rows and `N` vectors of results; if `TAIL`, only the remaining columns.
    ///
    /// # Safety
    /// The conditions of [`Pass::row_block`] hold; the columns from `at` exist.
    #[inline(always)]
    unsafe fn block<V: Vector, const KH: usize, const R: usize, const N: usize, const TAIL: bool>(
        &self,
        row: usize,
        at: usize,
    ) {
        let rest = self.columns - at;
        // SAFETY: the contract of this function.
        unsafe {
            let load = |p: *const f32| if const { TAIL } { V::load_first(p, rest) } else { V::load(p) };
            let mut sums = [[V::splat(0.0); N]; R];
            let x = self.x.add(row * self.x_stride + at);
            // The phase of a kernel column, and its shift in that phase.
            let (mut phase, mut shift) = (0, 0);
            for column in 0..self.kw {
                let x = x.add(phase * self.phase + shift);
                let weights: [V; KH] = from_fn(|p| V::splat(*self.w.add(p * self.w_stride + column)));
                for i in 0..R + KH - 1 {
                    let pixels: [V; N] = from_fn(|v| load(x.add(i * self.x_stride + v * V::LANES)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        if i >= r && i - r < KH {
                            for v in 0..N {
                                sums[v] = pixels[v].mul_add(weights[i - r], sums[v]);
                            }
                        }
                    }
                }
                (phase, shift) = (phase + self.step.0, shift + self.step.1);
                if phase >= self.stride {
                    (phase, shift) = (phase - self.stride, shift + 1);
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums.into_iter().enumerate() {
                    let y = self.y.add((row + r) * self.y_stride + at + v * V::LANES);
                    let sum = if self.add { load(y) + sum } else { sum };
                    if const { TAIL } { sum.store_first(y, rest) } else { sum.store(y) }
                }
            }
        }
    }
}
