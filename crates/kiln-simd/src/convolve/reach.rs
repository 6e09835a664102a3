use std::ops::Range;

use kiln_ir::op::ConvolveExtents;
use kiln_ir::{Result, reserve};

/// The part of the kernels that ever meets the picture.
///
/// With padding a kernel may be far larger than the picture. The frame of a convolution grows with the product of both
/// extents of picture and kernel together: a wide picture and a tall kernel of a few megabytes would ask for terabytes. What
/// always lies on zeros is left away instead, and the rest is at most twice as large as the picture.
pub(super) struct Reach {
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Reach {
    /// The rows and columns of the kernels that meet a picture with pixels, or `None` where all of them may.
    pub(super) fn new(e: &ConvolveExtents, stride: (usize, usize)) -> Option<Self> {
        // For the last result the kernel lies furthest to the end, for the first furthest to the front.
        let along = |n: usize, k: usize, before: usize, stride: usize, out: usize| {
            before.saturating_sub((out - 1) * stride)..k.min(before + n)
        };
        let rows = along(e.h, e.kh, e.top, stride.0, e.out_h);
        let columns = along(e.w, e.kw, e.left, stride.1, e.out_w);
        (rows.len() < e.kh || columns.len() < e.kw).then_some(Self { rows, columns })
    }

    /// The extents with these parts as kernels.
    pub(super) fn extents(&self, e: &ConvolveExtents) -> ConvolveExtents {
        let Self { rows, columns } = self;
        ConvolveExtents {
            kh: rows.len(),
            kw: columns.len(),
            top: e.top - rows.start,
            left: e.left - columns.start,
            ..*e
        }
    }

    /// The parts, one after the other.
    pub(super) fn cut(&self, e: &ConvolveExtents, kernel: &[f32]) -> Result<Vec<f32>> {
        let mut parts = Vec::new();
        reserve(&mut parts, e.c_out * e.c_in * self.rows.len() * self.columns.len())?;
        for kernel in kernel.chunks_exact(e.kh * e.kw) {
            let rows = kernel.chunks_exact(e.kw).skip(self.rows.start).take(self.rows.len());
            rows.for_each(|row| parts.extend_from_slice(&row[self.columns.clone()]));
        }
        Ok(parts)
    }

    /// Results of kernels that are NaN or infinite outside of these parts are NaN: such a weight meets a zero each time.
    pub(super) fn poison(&self, e: &ConvolveExtents, kernel: &[f32], y: &mut [f32]) {
        let outside = |at: usize| !(self.rows.contains(&(at / e.kw)) && self.columns.contains(&(at % e.kw)));
        let spoils = |kernel: &[f32]| kernel.iter().enumerate().any(|(at, w)| !w.is_finite() && outside(at));
        for (o, kernels) in kernel.chunks_exact(e.c_in * e.kh * e.kw).enumerate() {
            if kernels.chunks_exact(e.kh * e.kw).any(spoils) {
                let planes = y.chunks_exact_mut(e.out_h * e.out_w);
                planes.skip(o).step_by(e.c_out).for_each(|plane| plane.fill(f32::NAN));
            }
        }
    }
}
