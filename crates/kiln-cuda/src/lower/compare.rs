//! Comparisons, the choice between two tensors, and functions of integers.

use kiln_ir::op::{Arithmetic, Compare, Select};
use kiln_ir::{Result, TensorType};
use kiln_ptx::kernels::compare;

use super::cast::cast;
use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Compare {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (a, b) = (in_words(plan, inputs[0])?, in_words(plan, inputs[1])?);
        let kernel = compare::Compare::new(self.comparison, a.ty.dtype);
        let lengths = [a, b].map(|operand| operand.ty.shape.numel());
        let launch = kernel.launch(outputs[0].ty.shape.numel(), lengths)?;
        plan.run(kernel, launch, &[a.at, b.at, outputs[0].at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for Select {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let lengths = [0, 1, 2].map(|i: usize| inputs[i].ty.shape.numel());
        let launch = compare::Select.launch(outputs[0].ty.shape.numel(), lengths)?;
        plan.run(compare::Select, launch, &[inputs[0].at, inputs[1].at, inputs[2].at, outputs[0].at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for Arithmetic {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = compare::Arithmetic::new(self.function, outputs[0].ty.dtype);
        let lengths = [inputs[0], inputs[1]].map(|operand| operand.ty.shape.numel());
        let launch = kernel.launch(outputs[0].ty.shape.numel(), lengths)?;
        plan.run(kernel, launch, &[inputs[0].at, inputs[1].at, outputs[0].at]);
        Ok(())
    }
}

/// A value whose elements are words: itself, or for bytes a copy for the duration of this step.
pub(super) fn in_words(plan: &mut Lowering<'_>, value: Value) -> Result<Value> {
    let to = Compare::in_words(value.ty.dtype);
    if to == value.ty.dtype {
        return Ok(value);
    }
    let words = plan.scratch(TensorType { dtype: to, shape: value.ty.shape });
    cast(plan, value, words)?;
    Ok(words)
}
