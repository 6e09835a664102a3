//! Kernels packed once for many images.

use kiln_ir::op::Convolve2d;
use kiln_ir::{Error, Result, Shape, reserve};

use super::{bounded, convolve_far, pixels, threads};
use crate::float_state::require_default;
use crate::{Isa, Simd};

/// Kernels of a convolution of many channels, such as the weights of a layer, in the order in which the convolution of one
/// instruction set reads them. Made by [`Simd::pack_kernels`].
#[derive(Debug)]
pub struct PackedKernels {
    isa: Isa,
    shape: Shape,
    order: Order,
}

/// The layout of kernels, which depends on the algorithm.
#[derive(Debug)]
enum Order {
    ByPixels(pixels::Kept),
    AsTheyAre(Vec<f32>),
}

impl PackedKernels {
    /// The instruction set whose order they have.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Their shape, `[c_out, c_in, kh, kw]`.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

impl Simd {
    /// Packs kernels of the shape `[c_out, c_in, kh, kw]` for convolutions of many images.
    ///
    /// # Errors
    /// [`Error::Length`] when the slice does not have these extents, [`Error::Overflow`] when they overflow,
    /// [`Error::OutOfMemory`].
    pub fn pack_kernels(&self, kernels: &[f32], dims: [usize; 4]) -> Result<PackedKernels> {
        let shape = Shape::new(&dims)?;
        let [_, c_in, kh, kw] = dims;
        if kernels.len() != shape.numel() {
            let (expected, found) = (shape.numel(), kernels.len());
            return Err(Error::Length { op: "pack_kernels", operand: "kernels", expected, found });
        }
        let order = if pixels::suits(self.isa(), dims) {
            Order::ByPixels(pixels::Kept::new(self.isa(), kernels, c_in * kh * kw)?)
        } else {
            let mut copy = Vec::new();
            reserve(&mut copy, kernels.len())?;
            copy.extend_from_slice(kernels);
            Order::AsTheyAre(copy)
        };
        Ok(PackedKernels { isa: self.isa(), shape, order })
    }

    /// The convolution of images of the shape `[c_in, h, w]` or `[n, c_in, h, w]` with packed kernels, into `out`, with
    /// `c_out` channels. The error bound is that of [`Convolve2d`]; sums may be added up in another order than with kernels
    /// that are not packed, so bits may differ.
    ///
    /// # Errors
    /// [`Error::Length`] when a slice does not have its extents, [`Error::Shape`] when the channels differ or the kernels are
    /// empty or larger than a padded image, [`Error::Parameter`] for a stride or a dilation of zero, for groups of channels, when
    /// the kernels were packed for another instruction set, and when most of them never meets the image, which is for kernels that
    /// are not packed.
    pub fn convolve2d_packed_into(
        &self,
        x: &[f32],
        dims: &[usize],
        kernels: &PackedKernels,
        op: Convolve2d,
        out: &mut [f32],
    ) -> Result<()> {
        require_default!(self.convolve2d_packed_into(x, dims, kernels, op, out));
        const OP: &str = "convolve2d_packed";
        let (input, shape) = (Shape::new(dims)?, kernels.shape);
        let e = op.extents(&input, &shape)?;
        if e.groups > 1 {
            let reason =
                format!("packed kernels are for 1 group of channels, not for {}: convolve without packing", e.groups);
            return Err(Error::Parameter { op: OP, reason });
        }
        let expected = Shape::new(&[e.batch, e.c_out, e.out_h, e.out_w])?.numel();
        for (operand, expected, found) in [("input", input.numel(), x.len()), ("output", expected, out.len())] {
            if expected != found {
                return Err(Error::Length { op: OP, operand, expected, found });
            }
        }
        if kernels.isa() != self.isa() {
            let reason =
                format!("the kernels were packed for {}, not for {}: pack them again", kernels.isa(), self.isa());
            return Err(Error::Parameter { op: OP, reason });
        }
        if out.is_empty() || e.c_in == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let kernels = match &kernels.order {
            Order::AsTheyAre(copy) => return convolve_far(self, &e, op.stride, x, copy, out),
            Order::ByPixels(kept) => kept.kernels(),
        };
        let stride = bounded(&e, op.stride);
        let held = (x.len() / e.batch + shape.numel() + out.len() / e.batch) as u128;
        if pixels::frame_len(&e, stride) > FAR * held {
            let reason = format!("most of the kernels {shape} never meets images {input}: convolve without packing");
            return Err(Error::Parameter { op: OP, reason });
        }
        // SAFETY: the lengths were checked, no extent is zero, and the kernels are packed for the instruction set.
        unsafe { pixels::run_with(self.isa(), threads(self, &e, out.len()), &e, stride, x, &kernels, out) };
        Ok(())
    }

    /// Returns the result of [`Simd::convolve2d_packed_into`] in a new `Vec`.
    ///
    /// # Errors
    /// The errors of [`Simd::convolve2d_packed_into`]; [`Error::OutOfMemory`].
    pub fn convolve2d_packed(
        &self,
        x: &[f32],
        dims: &[usize],
        kernels: &PackedKernels,
        op: Convolve2d,
    ) -> Result<Vec<f32>> {
        let e = op.extents(&Shape::new(dims)?, &kernels.shape)?;
        let mut out = kiln_ir::zeros(Shape::new(&[e.batch, e.c_out, e.out_h, e.out_w])?.numel())?;
        self.convolve2d_packed_into(x, dims, kernels, op, &mut out)?;
        Ok(out)
    }
}

/// Maximum ratio of a frame's elements to those of image, kernels and results together; a larger frame is mostly
/// padding.
const FAR: u128 = 16;
