use kiln_core::op::ConvolveExtents;

use crate::vector::{Kernel, Vector};

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
    top: usize,
    left: usize,
    h: usize,
    w: usize,
}

impl Frame {
    /// The frame under `out_rows` rows of results.
    pub(super) fn new(e: &ConvolveExtents, stride: (usize, usize), out_rows: usize) -> Self {
        Self {
            stride,
            phases: (stride.0.min(e.kh), stride.1.min(e.kw)),
            // The last result reaches (k - 1) / stride pixels further in its phase.
            rows: out_rows + (e.kh - 1) / stride.0,
            columns: e.out_w + (e.kw - 1) / stride.1,
            top: e.top,
            left: e.left,
            h: e.h,
            w: e.w,
        }
    }

    /// Elements of a plane.
    pub(super) fn plane(&self) -> usize {
        self.phases.0 * self.phases.1 * self.rows * self.columns
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
    /// The first row of results that the frame serves.
    pub(super) first: usize,
    pub(super) planes: usize,
    pub(super) x: *const f32,
    pub(super) to: *mut f32,
}

impl Kernel for Fill {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { frame: f, first, planes, x, to } = self;
        let phase = f.rows * f.columns;
        for plane in 0..planes {
            for down in 0..f.phases.0 {
                for row in 0..f.rows {
                    // SAFETY: the row lies inside of the plane of the frame.
                    let to = unsafe { to.add(plane * f.plane() + down * f.phases.1 * phase + row * f.columns) };
                    // The row of the picture, when it is one. Results beyond the last need nothing.
                    let y = (first + row).checked_mul(f.stride.0).map(|y| y + down);
                    let y = y.and_then(|y| y.checked_sub(f.top)).filter(|&y| y < f.h);
                    for across in 0..f.phases.1 {
                        // SAFETY: each phase has such a row.
                        let to = unsafe { std::slice::from_raw_parts_mut(to.add(across * phase), f.columns) };
                        let Some(y) = y else {
                            to.fill(0.0);
                            continue;
                        };
                        // SAFETY: row y of the picture.
                        let from = unsafe { std::slice::from_raw_parts(x.add((plane * f.h + y) * f.w), f.w) };
                        // SAFETY: the caller's contract.
                        unsafe { copy_phase::<V>(from, to, f.stride.1, f.left, across) };
                    }
                }
            }
        }
    }
}

/// `to[j] = from[j * stride + across - left]`, zero where that is outside.
///
/// # Safety
/// The instruction set of `V` is there.
#[inline(always)]
unsafe fn copy_phase<V: Vector>(from: &[f32], to: &mut [f32], stride: usize, left: usize, across: usize) {
    // The first j with j * stride + across >= left, and one past the last inside.
    let lo = left.saturating_sub(across).div_ceil(stride).min(to.len());
    let hi = (from.len() + left).saturating_sub(across).div_ceil(stride).clamp(lo, to.len());
    to[..lo].fill(0.0);
    to[hi..].fill(0.0);
    if lo == hi {
        return;
    }
    let start = lo * stride + across - left;
    if stride == 1 {
        to[lo..hi].copy_from_slice(&from[start..start + hi - lo]);
        return;
    }
    let (to, from) = (&mut to[lo..hi], &from[start..]);
    let mut j = 0;
    if stride == 2 {
        while j + V::LANES <= to.len() && 2 * (j + V::LANES) <= from.len() {
            // SAFETY: both slices have been checked to reach this far.
            unsafe {
                let p = from.as_ptr().add(2 * j);
                V::unzip(V::load(p), V::load(p.add(V::LANES))).0.store(to.as_mut_ptr().add(j));
            }
            j += V::LANES;
        }
    }
    for (to, from) in to[j..].iter_mut().zip(from[j * stride..].iter().step_by(stride)) {
        *to = *from;
    }
}
