//! Softmax and its logarithm.

use kiln_ir::Result;
use kiln_ir::op::{LogSoftmax, Softmax};

use super::rows::Kernels;
use super::{Lower, Lowering, Value};
use crate::GpuDevice;

fn softmax(plan: &mut Lowering<'_>, log: bool, x: &Value, out: &Value) -> Result<()> {
    let kernels = Kernels {
        whole: kiln_shaders::SOFTMAX,
        parts: kiln_shaders::SOFTMAX_PARTS,
        join: kiln_shaders::SOFTMAX_JOIN,
        apply: kiln_shaders::SOFTMAX_APPLY,
        constant: ("LOG", log),
        words: 2,
        operands: &[],
        params: &[],
        measured: false,
    };
    kernels.lower(plan, x, out)
}

impl Lower<GpuDevice> for Softmax {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        softmax(plan, false, &inputs[0], &outputs[0])
    }
}

impl Lower<GpuDevice> for LogSoftmax {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        softmax(plan, true, &inputs[0], &outputs[0])
    }
}
