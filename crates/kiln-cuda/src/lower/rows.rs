//! Operations on rows: the softmax family and the normalisations.

use kiln_ir::op::{BatchNorm, GroupNorm, LayerNorm, LogSoftmax, RmsNorm, Softmax, channels_of};
use kiln_ir::{Result, Shape, TensorType};
use kiln_ptx::Target;
use kiln_ptx::kernels::channels::Channels;
use kiln_ptx::kernels::norm::Norm;
use kiln_ptx::kernels::{softmax, strided};

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

fn softmax(plan: &mut Lowering<'_>, x: &Value, out: &Value, logarithm: bool) -> Result<()> {
    let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.columns());
    let kernel = softmax::Softmax::new(columns, logarithm, plan.target.target);
    let launch = kernel.launch(rows, columns)?;
    plan.run(kernel, launch, &[x.at, out.at]);
    Ok(())
}

impl Lower<CudaDevice> for Softmax {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        softmax(plan, &inputs[0], &outputs[0], false)
    }
}

impl Lower<CudaDevice> for LogSoftmax {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        softmax(plan, &inputs[0], &outputs[0], true)
    }
}

fn norm(
    plan: &mut Lowering<'_>,
    of: impl Fn(usize, Target) -> Norm,
    eps: f32,
    inputs: &[Value],
    outputs: &[Value],
) -> Result<()> {
    let (rows, columns) = (inputs[0].ty.shape.rows(), inputs[0].ty.shape.columns());
    let kernel = of(columns, plan.target.target);
    let launch = kernel.launch(rows, columns, eps)?;
    let buffers: Vec<_> = inputs.iter().chain(outputs).map(|value| value.at).collect();
    plan.run(kernel, launch, &buffers);
    Ok(())
}

impl Lower<CudaDevice> for LayerNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        norm(plan, Norm::layer, self.eps.get(), inputs, outputs)
    }
}

impl Lower<CudaDevice> for RmsNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        norm(plan, Norm::rms, self.eps.get(), inputs, outputs)
    }
}

impl Lower<CudaDevice> for GroupNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let extents = channels_of(&inputs[0].ty);
        let [outer, channels, plane] = extents;
        // Groups are rows, which are normalised first; then each channel is scaled and shifted.
        let (rows, row) = (outer * self.groups, channels / self.groups * plane);
        let x = Value { ty: TensorType::f32(Shape::new(&[rows, row])?), ..inputs[0] };
        let normal = plan.scratch(x.ty);
        let vector = TensorType::f32(Shape::new(&[row])?);
        let [scale, shift] = [0, 1].map(|_| plan.scratch(vector));
        for (filled, value) in [(scale, 1.0f32), (shift, 0.0)] {
            plan.run(strided::Fill, strided::Fill.launch(value.to_bits(), row)?, &[filled.at]);
        }
        norm(plan, Norm::layer, self.eps.get(), &[x, scale, shift], &[normal])?;
        let kernel = Channels::new(false);
        let buffers = [normal.at, inputs[1].at, inputs[2].at, outputs[0].at];
        plan.run(kernel, kernel.launch(extents, 0.0)?, &buffers);
        Ok(())
    }
}

impl Lower<CudaDevice> for BatchNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = Channels::new(true);
        let launch = kernel.launch(channels_of(&inputs[0].ty), self.eps.get())?;
        let buffers: Vec<_> = inputs.iter().chain(outputs).map(|value| value.at).collect();
        plan.run(kernel, launch, &buffers);
        Ok(())
    }
}
