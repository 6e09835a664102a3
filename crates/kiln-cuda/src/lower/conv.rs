//! Convolution and its transpose.

use kiln_ir::op::{Convolve2d, ConvolveExtents, ConvolveTranspose2d, Matmul};
use kiln_ir::{Precision, Result, Shape, TensorType};
use kiln_ptx::kernels::conv::{Convolve, ConvolveTranspose, Unfold};

use super::{Launches, Lower, Lowering, Value, accepted, matmul};
use crate::CudaDevice;

/// Minimum flops of a convolution that runs as a product: of fewer, an element of the result per thread takes as long.
const MANY_FLOPS: usize = 10_000_000;
/// Minimum output channels of a group and products of a result: tiles of a product would be empty otherwise.
const WIDE: usize = 16;
/// Maximum bytes of unfolded images.
const MOST_UNFOLDED: usize = 1 << 30;

/// Adds a convolution as `weights * unfolded images`, a product for each group of each image. Returns whether it is large enough
/// for that and the unfolded images are not too large.
fn as_product(
    plan: &mut Lowering<'_>,
    op: &Convolve2d,
    extents: &ConvolveExtents,
    [x, weights, out]: [Value; 3],
) -> Result<bool> {
    let ConvolveExtents { batch, c_out, groups, out_h, out_w, .. } = *extents;
    let (rows, terms, pixels) = (c_out / groups, extents.terms(), out_h * out_w);
    let unfolded = [batch, groups, terms, pixels, size_of::<f32>()].into_iter().try_fold(1, usize::checked_mul);
    let flops = [2, batch, c_out, terms, pixels].into_iter().try_fold(1, usize::checked_mul);
    let wide = rows >= WIDE && terms >= WIDE && pixels >= WIDE;
    if !wide || flops.is_some_and(|flops| flops < MANY_FLOPS) || unfolded.is_none_or(|bytes| bytes > MOST_UNFOLDED) {
        return Ok(false);
    }
    let stack = |dims: [usize; 4]| Ok(TensorType::f32(Shape::new(&dims)?));
    let columns = stack([batch, groups, terms, pixels])?;
    let at = if Unfold::is_identity(op, extents) {
        x.at
    } else {
        let Some(launch) = accepted(Unfold.launch(op, extents))? else { return Ok(false) };
        let at = plan.scratch_bytes(columns.bytes());
        plan.run(Unfold, launch, &[x.at, at]);
        at
    };
    let a = Value { at: weights.at, ty: stack([1, groups, rows, terms])? };
    let c = Value { at: out.at, ty: stack([batch, groups, rows, pixels])? };
    matmul::stacks(plan, Precision::Contract, Matmul::default(), [a, Value { at, ty: columns }, c])?;
    Ok(true)
}

impl Lower<CudaDevice> for Convolve2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let extents = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        if as_product(plan, self, &extents, [inputs[0], inputs[1], outputs[0]])? {
            return Ok(());
        }
        let kernel = Convolve::new(&extents);
        let launch = kernel.launch(self, &extents)?;
        plan.run(kernel, launch, &[inputs[0].at, inputs[1].at, outputs[0].at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for ConvolveTranspose2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let launch = ConvolveTranspose.launch(&self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?)?;
        plan.run(ConvolveTranspose, launch, &[inputs[0].at, inputs[1].at, outputs[0].at]);
        Ok(())
    }
}
