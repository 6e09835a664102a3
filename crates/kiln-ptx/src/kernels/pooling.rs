//! The maximum or mean of windows of images, an element of the result a thread.

use kiln_ir::Result;
use kiln_ir::op::{Bound, Pool2d, PoolExtents, Pooling};

use super::math::maximum;
use super::window::{BLOCK, launch, words};
use crate::kernel::extent;
use crate::{Builder, Kernel, Launch, PtxKernel, Target};

/// The greatest element or the mean of each window that lies inside of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool {
    pooling: Pooling,
    target: Target,
}

impl Pool {
    /// For devices from `target` on.
    pub fn new(pooling: Pooling, target: Target) -> Self {
        Self { pooling, target }
    }

    /// The launch of an operation on images of these extents. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 results, 2³⁰ rows or columns, or 2³² - 1 elements of a window.
    pub fn launch(&self, op: &Pool2d, extents: &PoolExtents) -> Result<Launch> {
        let PoolExtents { planes, h, w, out_h, out_w } = *extents;
        let ((kh, kw), (sh, sw)) = (op.window, op.stride);
        let results = planes.saturating_mul(out_h).saturating_mul(out_w);
        extent("elements of a window", kh.saturating_mul(kw), u32::MAX.into())?;
        // A stride beyond the image is applied once, from 0.
        let words = words("rows or columns", &[h, w, out_h, out_w, kh, kw, sh.min(h.max(1)), sw.min(w.max(1))])?;
        launch(2, results, words)
    }

    /// The error bound of an operation: a thread adds the rows of a window one element after the other, then their sums, and rounds
    /// the quotient.
    pub fn bound(op: &Pool2d) -> Bound {
        match op.pooling {
            Pooling::Max => Bound::Exact,
            Pooling::Average => Bound::Magnitude(op.window.0.saturating_add(op.window.1) as f64 - 1.0),
        }
    }

    fn write(&self, k: &Builder) {
        let [x, out] = ["x", "out"].map(|name| k.buffer::<f32>(name));
        let n = k.parameter::<u32>("n");
        let [h, w, out_h, out_w, kh, kw, sh, sw] =
            ["h", "w", "out_h", "out_w", "kh", "kw", "sh", "sw"].map(|name| k.parameter::<u32>(name));
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, n), || {
            let (j, rest) = (at % out_w, at / out_w);
            let (i, plane) = (rest % out_h, rest / out_h);
            let row = k.mad_wide(plane, h, k.cvt_u64(i * sh));
            let first = k.mad(row, k.cvt_u64(w), k.cvt_u64(j * sw));
            let corner = x.index_wide(first);
            let result = match self.pooling {
                Pooling::Max => {
                    let greatest = k.variable(f32::NEG_INFINITY);
                    k.for_(0, kh, 1, |p| {
                        let row = corner.index_wide(k.mul_wide(p, w));
                        k.for_(0, kw, 1, |r| {
                            greatest.set(maximum(self.target, greatest.get(), k.ld(row.index(r))));
                        });
                    });
                    greatest.get()
                }
                Pooling::Average => {
                    let sum = k.variable(0.0f32);
                    k.for_(0, kh, 1, |p| {
                        let row = corner.index_wide(k.mul_wide(p, w));
                        let part = k.variable(0.0f32);
                        k.for_(0, kw, 1, |r| part.set(k.add(part, k.ld(row.index(r)))));
                        sum.set(k.add(sum, part));
                    });
                    sum.get() / k.cvt_rn_f32(kh * kw)
                }
            };
            k.st(out.index(at), result);
        });
    }
}

impl Kernel for Pool {
    fn name(&self) -> String {
        match self.pooling {
            Pooling::Max => "max_pool2d",
            Pooling::Average => "avg_pool2d",
        }
        .to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
