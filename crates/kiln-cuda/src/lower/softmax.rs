//! Softmax and its logarithm.

use kiln_ir::Result;
use kiln_ir::op::{LogSoftmax, Softmax};
use kiln_ptx::kernels::softmax;

use super::rows::run;
use super::{Lower, Lowering, Value};
use crate::CudaDevice;

fn softmax(plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value], logarithm: bool) -> Result<()> {
    let x = inputs[0].ty.shape;
    let rows = softmax::Softmax::plan(x.rows(), x.columns(), logarithm, plan.target.target)?;
    run(plan, rows, inputs, &outputs[0]);
    Ok(())
}

impl Lower<CudaDevice> for Softmax {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        softmax(plan, inputs, outputs, false)
    }
}

impl Lower<CudaDevice> for LogSoftmax {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        softmax(plan, inputs, outputs, true)
    }
}
