use std::ops::Range;

use kiln_ir::op::ConvolveExtents;
use kiln_ir::{Result, reserve};

/// The part of the kernels that meets the image for some result, and the extents of a convolution with it.
///
/// With padding or dilation a kernel may be far larger than the image. The frame of a convolution grows with the
/// product of one extent of the image and the other of the kernel: a wide image and a tall kernel of a few megabytes
/// would need terabytes. So the part that always meets zeros is removed, and the rest is at most a few times as large
/// as image and results.
pub(super) struct Reach {
    rows: Range<usize>,
    columns: Range<usize>,
    /// The extents with these parts in place of the kernels.
    pub(super) extents: ConvolveExtents,
}

/// The remaining part along one dimension.
struct Along {
    /// The elements of the kernel.
    part: Range<usize>,
    /// Zeros before the image.
    before: usize,
    dilation: usize,
}

impl Along {
    /// For `n` pixels after `before` zeros, `k` elements of a kernel and `out` results.
    fn new((n, before): (usize, usize), (k, dilation): (usize, usize), stride: usize, out: usize) -> Self {
        // The first result has the kernel furthest to the front, the last one furthest to the end. `start` is rounded
        // down, so that `before` is not negative: the first remaining element may be before the image for every result.
        // A kernel that never meets the image keeps one element, which is multiplied with zeros.
        let steps = (out - 1) * stride;
        let start = (before.saturating_sub(steps) / dilation).min(k - 1);
        let end = k.min((before + n).div_ceil(dilation)).max(start + 1);
        let reached = (n + steps).max(1);
        match end - start {
            1 => Self { part: start..end, before: before - start * dilation, dilation: 1 },
            // The first never meets the image, so it may be moved nearer.
            2 if dilation > reached => {
                Self { part: start..end, before: before + reached - (end - 1) * dilation, dilation: reached }
            }
            _ => Self { part: start..end, before: before - start * dilation, dilation },
        }
    }
}

impl Reach {
    /// The rows and columns of the kernels that meet an image, or `None` if all of them may.
    pub(super) fn new(e: &ConvolveExtents, stride: (usize, usize)) -> Option<Self> {
        let down = Along::new((e.h, e.top), (e.kh, e.dilation.0), stride.0, e.out_h);
        let across = Along::new((e.w, e.left), (e.kw, e.dilation.1), stride.1, e.out_w);
        let extents = ConvolveExtents {
            kh: down.part.len(),
            kw: across.part.len(),
            top: down.before,
            left: across.before,
            dilation: (down.dilation, across.dilation),
            ..*e
        };
        (extents != *e).then_some(Self { rows: down.part, columns: across.part, extents })
    }

    /// The parts of all kernels, concatenated.
    pub(super) fn cut(&self, e: &ConvolveExtents, kernel: &[f32]) -> Result<Vec<f32>> {
        let mut parts = Vec::new();
        reserve(&mut parts, e.c_out * (e.c_in / e.groups) * self.rows.len() * self.columns.len())?;
        for kernel in kernel.chunks_exact(e.kh * e.kw) {
            let rows = kernel.chunks_exact(e.kw).skip(self.rows.start).take(self.rows.len());
            rows.for_each(|row| parts.extend_from_slice(&row[self.columns.clone()]));
        }
        Ok(parts)
    }

    /// Sets results to NaN for kernels with NaN or infinite weights outside of these parts: such a weight is always
    /// multiplied with a zero.
    pub(super) fn poison(&self, e: &ConvolveExtents, kernel: &[f32], y: &mut [f32]) {
        let outside = |at: usize| !(self.rows.contains(&(at / e.kw)) && self.columns.contains(&(at % e.kw)));
        let spoils = |kernel: &[f32]| kernel.iter().enumerate().any(|(at, w)| !w.is_finite() && outside(at));
        for (o, kernels) in kernel.chunks_exact(e.terms()).enumerate() {
            if kernels.chunks_exact(e.kh * e.kw).any(spoils) {
                let planes = y.chunks_exact_mut(e.out_h * e.out_w);
                planes.skip(o).step_by(e.c_out).for_each(|plane| plane.fill(f32::NAN));
            }
        }
    }
}
