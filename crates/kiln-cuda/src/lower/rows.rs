//! Operations on rows: the softmax family and the normalisations.

use kiln_ir::Result;
use kiln_ir::op::{LayerNorm, LogSoftmax, RmsNorm, Softmax};
use kiln_ptx::Target;
use kiln_ptx::kernels::norm::Norm;
use kiln_ptx::kernels::softmax;

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
