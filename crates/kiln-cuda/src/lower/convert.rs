//! Between f32 and f16.

use kiln_ir::op::Convert;
use kiln_ir::{DType, Result, TensorType};
use kiln_ptx::kernels::half;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Convert {
    const HALVES: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        convert(plan, inputs[0], outputs[0])
    }
}

/// Converts all elements; both have as many.
fn convert(plan: &mut Lowering<'_>, from: Value, to: Value) -> Result<()> {
    let kernel = half::Convert::new(from.ty.dtype == DType::F16, to.ty.dtype == DType::F16);
    let launch = kernel.launch(from.ty.shape.numel())?;
    plan.run(kernel, launch, &[from.at, to.at]);
    Ok(())
}

/// A value as f32: itself, or where it is f16 a copy for the duration of this step.
pub(crate) fn widened(plan: &mut Lowering<'_>, value: Value) -> Result<Value> {
    if value.ty.dtype != DType::F16 {
        return Ok(value);
    }
    let ty = TensorType::f32(value.ty.shape);
    let wide = Value { at: plan.scratch_bytes(ty.bytes()), ty };
    convert(plan, value, wide)?;
    Ok(wide)
}
