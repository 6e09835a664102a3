use std::ops::Range;

use kiln_core::op::ConvolveExtents;

use crate::vector::{Kernel, Vector};

/// Rows and columns of results.
#[derive(Debug, Clone)]
pub(super) struct Region {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// How a padded picture with a stride is laid out so that the kernels see neither.
///
/// Each plane is split into phases: phase `(p, q)` holds the padded pixels whose row is `p` and whose column is `q`
/// modulo the strides. In a phase, the pixels under neighbouring results are neighbours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// Strides of the convolution, down and across.
    pub(super) stride: (usize, usize),
    /// Phases that the kernel reaches, down and across.
    pub(super) phases: (usize, usize),
    /// Rows of a phase.
    pub(super) rows: usize,
    /// Columns of a phase.
    pub(super) columns: usize,
    /// The first row and column of results that it serves.
    first: (usize, usize),
    top: usize,
    left: usize,
    h: usize,
    w: usize,
}

impl Frame {
    /// The frame under a region of results.
    pub(super) fn new(e: &ConvolveExtents, stride: (usize, usize), region: &Region) -> Self {
        Self {
            stride,
            phases: (stride.0.min(e.kh), stride.1.min(e.kw)),
            // The last result reaches (k - 1) / stride pixels further in its phase.
            rows: region.rows.len() + (e.kh - 1) / stride.0,
            columns: region.columns.len() + (e.kw - 1) / stride.1,
            first: (region.rows.start, region.columns.start),
            top: e.top,
            left: e.left,
            h: e.h,
            w: e.w,
        }
    }

    /// Elements from one plane to the next: an odd number of cache lines, so that the same pixel of many planes, which a
    /// tile reads together, does not fall into the same few sets of the cache.
    pub(super) fn plane(&self) -> usize {
        ((self.phases.0 * self.phases.1 * self.rows * self.columns).div_ceil(16) | 1) * 16
    }

    /// Where the pixel under kernel row `p` and column `q` stands, for the first result.
    pub(super) fn offset(&self, p: usize, q: usize) -> usize {
        let ((sh, sw), (_, across)) = (self.stride, self.phases);
        let phase = (p % sh) * across + q % sw;
        (phase * self.rows + p / sh) * self.columns + q / sw
    }
}

/// Copies planes into frames.
///
/// # Safety
/// `x` is good for reading `planes` pictures, `to` for writing as many planes of the frame and alone in doing so.
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
                for row in 0..f.rows {
                    // SAFETY: the row lies inside of the plane of the frame.
                    let to = unsafe { to.add(plane * f.plane() + down * f.phases.1 * phase + row * f.columns) };
                    // The row of the picture, when it is one. Results beyond the last need nothing.
                    let y = (f.first.0 + row).checked_mul(f.stride.0).map(|y| y + down);
                    let y = y.and_then(|y| y.checked_sub(f.top)).filter(|&y| y < f.h);
                    // SAFETY: each phase across has such a row; row y of the picture exists.
                    unsafe {
                        let phases = |across: usize| std::slice::from_raw_parts_mut(to.add(across * phase), f.columns);
                        let Some(y) = y else {
                            (0..f.phases.1).for_each(|across| zeros::<V>(phases(across)));
                            continue;
                        };
                        let from = std::slice::from_raw_parts(x.add((plane * f.h + y) * f.w), f.w);
                        if f.stride.1 == 2 {
                            let to = [0, 1].map(|across| to.wrapping_add(across * phase));
                            let start = (2 * f.first.1).wrapping_sub(f.left).cast_signed();
                            split_row::<V>(from, to, f.phases.1, f.columns, start);
                            continue;
                        }
                        for across in 0..f.phases.1 {
                            copy_phase::<V>(from, phases(across), f.stride.1, f.left, f.first.1 * f.stride.1 + across);
                        }
                    }
                }
            }
        }
    }
}

/// Fills with zeros; mostly a few, for which a call would take longer.
///
/// # Safety
/// The instruction set of `V` is there.
#[inline(always)]
unsafe fn zeros<V: Vector>(to: &mut [f32]) {
    if to.len() > V::LANES {
        to.fill(0.0);
    } else {
        // SAFETY: no more than the length of the slice.
        unsafe { V::splat(0.0).store_first(to.as_mut_ptr(), to.len()) };
    }
}

/// The first `phases` of `to[across][j] = from[2 j + across + start]`, zero where that is outside: both phases of a row in
/// one pass.
///
/// # Safety
/// The instruction set of `V` is there; as many of `to` are good for writing `columns`.
#[inline(always)]
unsafe fn split_row<V: Vector>(from: &[f32], to: [*mut f32; 2], phases: usize, columns: usize, start: isize) {
    // SAFETY: every read is cut to the slice.
    let load = |at: isize| unsafe {
        match usize::try_from(at) {
            Ok(at) => {
                let rest = from.len().saturating_sub(at);
                let p = from.as_ptr().wrapping_add(at);
                if rest >= V::LANES { V::load(p) } else { V::load_first(p, rest) }
            }
            Err(_) if at.unsigned_abs() >= V::LANES => V::splat(0.0),
            Err(_) => {
                let skip = at.unsigned_abs();
                V::load_within(from.as_ptr(), skip, from.len().min(V::LANES - skip), 0.0)
            }
        }
    };
    for j in (0..columns).step_by(V::LANES) {
        let at = start + (2 * j).cast_signed();
        let (even, odd) = V::unzip(load(at), load(at + V::LANES.cast_signed()));
        for (v, to) in [even, odd].into_iter().zip(to).take(phases) {
            let (n, to) = (columns - j, to.wrapping_add(j));
            // SAFETY: the caller's contract.
            unsafe { if n >= V::LANES { v.store(to) } else { v.store_first(to, n) } }
        }
    }
}

/// `to[j] = from[j * stride + first - left]`, zero where that is outside.
///
/// # Safety
/// The instruction set of `V` is there.
#[inline(always)]
unsafe fn copy_phase<V: Vector>(from: &[f32], to: &mut [f32], stride: usize, left: usize, first: usize) {
    // The first j with j * stride + first >= left, and one past the last inside.
    let lo = left.saturating_sub(first).div_ceil(stride).min(to.len());
    let hi = (from.len() + left).saturating_sub(first).div_ceil(stride).clamp(lo, to.len());
    // SAFETY: every access is checked against the lengths of the slices; tails are accessed up to their ends.
    unsafe {
        zeros::<V>(&mut to[..lo]);
        zeros::<V>(&mut to[hi..]);
        if lo == hi {
            return;
        }
        let start = lo * stride + first - left;
        let (to, from) = (&mut to[lo..hi], &from[start..]);
        let (n, p, q) = (to.len(), from.as_ptr(), to.as_mut_ptr());
        let mut j = 0;
        match stride {
            1 => {
                while j + V::LANES <= n {
                    V::load(p.add(j)).store(q.add(j));
                    j += V::LANES;
                }
                V::load_first(p.wrapping_add(j), n - j).store_first(q.wrapping_add(j), n - j);
            }
            _ => {
                for (to, from) in to.iter_mut().zip(from.iter().step_by(stride)) {
                    *to = *from;
                }
            }
        }
    }
}
