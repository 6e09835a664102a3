use std::ops::Range;

use kiln_ir::op::ConvolveExtents;

use crate::Isa;
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Rows and columns of results.
#[derive(Debug, Clone)]
pub(super) struct Region {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// The layout of a padded copy of an image in which kernels need neither padding nor stride.
///
/// Each plane is split into phases: phase `(p, q)` holds the padded pixels whose row is `p` and whose column is `q`
/// modulo the strides. In a phase, the pixels under adjacent results are adjacent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// Strides of the convolution, down and across.
    pub(super) stride: (usize, usize),
    /// Dilations of the kernel, down and across.
    dilation: (usize, usize),
    /// Phases that the kernel reaches, down and across.
    pub(super) phases: (usize, usize),
    /// Rows of a phase.
    pub(super) rows: usize,
    /// Columns of a phase.
    pub(super) columns: usize,
    /// The first row and column of the results that it serves.
    first: (usize, usize),
    top: usize,
    left: usize,
    h: usize,
    w: usize,
}

impl Frame {
    /// The frame under a region of results.
    pub(super) fn new(e: &ConvolveExtents, stride: (usize, usize), region: &Region) -> Self {
        let span = e.span();
        Self {
            stride,
            dilation: e.dilation,
            phases: (stride.0.min(span.0), stride.1.min(span.1)),
            // The last result reads (span - 1) / stride pixels further in its phase.
            rows: region.rows.len() + (span.0 - 1) / stride.0,
            columns: region.columns.len() + (span.1 - 1) / stride.1,
            first: (region.rows.start, region.columns.start),
            top: e.top,
            left: e.left,
            h: e.h,
            w: e.w,
        }
    }

    /// The frame under all results.
    pub(super) fn whole(e: &ConvolveExtents, stride: (usize, usize)) -> Self {
        Self::new(e, stride, &Region { rows: 0..e.out_h, columns: 0..e.out_w })
    }

    /// Elements of a row of all phases of a plane.
    pub(super) fn row(&self) -> usize {
        self.phases.0 * self.phases.1 * self.columns
    }

    /// Elements of a plane, which may exceed the address space.
    pub(super) fn elements(&self) -> u128 {
        let extents = [self.phases.0, self.phases.1, self.rows, self.columns];
        extents.iter().fold(1, |elements: u128, &n| elements.saturating_mul(n as u128))
    }

    /// Elements between consecutive planes: an odd number of cache lines, so that the same pixel of many planes, which
    /// a tile reads together, does not map to the same few cache sets.
    pub(super) fn plane(&self) -> usize {
        ((self.phases.0 * self.phases.1 * self.rows * self.columns).div_ceil(16) | 1) * 16
    }

    /// The offset of the pixel under kernel row `p` and column `q`, for the first result.
    pub(super) fn offset(&self, p: usize, q: usize) -> usize {
        let ((sh, sw), (_, across)) = (self.stride, self.phases);
        let (p, q) = (p * self.dilation.0, q * self.dilation.1);
        let phase = (p % sh) * across + q % sw;
        (phase * self.rows + p / sh) * self.columns + q / sw
    }
}

/// Copies planes into frames.
///
/// # Safety
/// `x` is readable for `planes` images; `to` is writable for as many planes of the frame, and nothing else accesses it.
pub(super) struct Fill {
    pub(super) frame: Frame,
    pub(super) planes: usize,
    pub(super) x: *const f32,
    pub(super) to: *mut f32,
}

impl Kernel for Fill {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { frame: f, planes, x, to } = self;
        let phase = f.rows * f.columns;
        for plane in 0..planes {
            for down in 0..f.phases.0 {
                let (inside, first) = span(f.rows, f.stride.0, f.first.0 * f.stride.0 + down, f.top, f.h);
                // SAFETY: the phases are inside the plane of the frame, the rows inside the image.
                unsafe {
                    let to = to.add(plane * f.plane() + down * f.phases.1 * phase);
                    for across in 0..f.phases.1 {
                        let to = to.add(across * phase);
                        zeros::<V>(to, inside.start * f.columns);
                        zeros::<V>(to.add(inside.end * f.columns), (f.rows - inside.end) * f.columns);
                    }
                    let mut from = x.wrapping_add((plane * f.h + first) * f.w);
                    for row in inside {
                        f.copy_row::<V>(std::slice::from_raw_parts(from, f.w), to.add(row * f.columns), phase);
                        from = from.wrapping_add(f.stride.0 * f.w);
                    }
                }
            }
        }
    }
}

/// Copies all planes of an image into a frame; `to` has room for it.
pub(super) fn fill(isa: Isa, threads: usize, frame: Frame, planes: usize, x: &[f32], to: &mut [f32]) {
    assert!(x.len() >= planes * frame.h * frame.w && to.len() >= planes * frame.plane());
    let to = Shared::new(to.as_mut_ptr());
    let share = planes.div_ceil(threads);
    threads::for_each(planes.div_ceil(share), threads, |part| {
        let first = part * share;
        let x = x[first * frame.h * frame.w..].as_ptr();
        let to = to.get().wrapping_add(first * frame.plane());
        // SAFETY: a `Simd` exists only for an available instruction set; the slices hold these planes, and each part writes
        // its own.
        unsafe { dispatch(isa, Fill { frame, planes: share.min(planes - first), x, to }) };
    });
}

impl Frame {
    /// Copies a row of the image into the column phases, which are `phase` elements apart.
    ///
    /// # Safety
    /// The instruction set of `V` is available; `to` is writable for a row of each column phase.
    #[inline(always)]
    unsafe fn copy_row<V: Vector>(&self, from: &[f32], to: *mut f32, phase: usize) {
        let start = (self.first.1 * self.stride.1).wrapping_sub(self.left).cast_signed();
        let lanes = V::LANES.cast_signed();
        // SAFETY: the caller's contract; stores end with the columns.
        unsafe {
            match self.stride.1 {
                1 => {
                    for j in (0..self.columns).step_by(V::LANES) {
                        let v: V = window(from, start + j.cast_signed());
                        put(v, to.add(j), self.columns - j);
                    }
                }
                // Both phases in one pass.
                2 => {
                    for j in (0..self.columns).step_by(V::LANES) {
                        let (at, n) = (start + 2 * j.cast_signed(), self.columns - j);
                        let (even, odd) = V::unzip(window(from, at), window(from, at + lanes));
                        put(even, to.add(j), n);
                        if self.phases.1 == 2 {
                            put(odd, to.add(phase + j), n);
                        }
                    }
                }
                stride => {
                    for across in 0..self.phases.1 {
                        let first = self.first.1 * stride + across;
                        let (inside, first) = span(self.columns, stride, first, self.left, from.len());
                        let to = std::slice::from_raw_parts_mut(to.add(across * phase), self.columns);
                        to.fill(0.0);
                        for (to, from) in to[inside].iter_mut().zip(from.iter().skip(first).step_by(stride)) {
                            *to = *from;
                        }
                    }
                }
            }
        }
    }
}

/// The positions inside an image of `extent` pixels after `padding`, of `count` positions that are `stride` pixels apart and begin
/// at padded pixel `first`; and the pixel under the first of them.
fn span(count: usize, stride: usize, first: usize, padding: usize, extent: usize) -> (Range<usize>, usize) {
    let start = padding.saturating_sub(first).div_ceil(stride).min(count);
    let end = (extent + padding).saturating_sub(first).div_ceil(stride).clamp(start, count);
    (start..end, (start * stride + first).saturating_sub(padding))
}

/// A vector of a row beginning at `at`, zero outside of the row.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
unsafe fn window<V: Vector>(row: &[f32], at: isize) -> V {
    // SAFETY: every read is clamped to the slice.
    unsafe {
        match usize::try_from(at) {
            Ok(at) => {
                let (rest, p) = (row.len().saturating_sub(at), row.as_ptr().wrapping_add(at));
                if rest >= V::LANES { V::load(p) } else { V::load_first(p, rest) }
            }
            Err(_) if at.unsigned_abs() >= V::LANES => V::splat(0.0),
            Err(_) => {
                let skip = at.unsigned_abs();
                V::load_within(row.as_ptr(), skip, row.len().min(V::LANES - skip), 0.0)
            }
        }
    }
}

/// Writes the first `n` lanes, or all if there are fewer.
///
/// # Safety
/// `to` is writable for these lanes.
#[inline(always)]
unsafe fn put<V: Vector>(v: V, to: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { if n >= V::LANES { v.store(to) } else { v.store_first(to, n) } }
}

/// Fills with zeros. Inlined, because `n` is often 0 and a call would take longer.
///
/// # Safety
/// The instruction set of `V` is available; `to` is writable for `n` elements.
#[inline(always)]
unsafe fn zeros<V: Vector>(to: *mut f32, n: usize) {
    for j in (0..n).step_by(V::LANES) {
        // SAFETY: no more than n elements.
        unsafe { put(V::splat(0.0), to.add(j), n - j) };
    }
}
