//! Between the types of elements.

use kiln_ir::op::Cast;
use kiln_ir::{DType, Result, TensorType};
use kiln_ptx::kernels::cast;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Cast {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        cast(plan, inputs[0], outputs[0])
    }
}

/// Casts all elements; both have as many.
pub(super) fn cast(plan: &mut Lowering<'_>, from: Value, to: Value) -> Result<()> {
    let kernel = cast::Cast::new(from.ty.dtype, to.ty.dtype)?;
    let launch = kernel.launch(from.ty.shape.numel())?;
    plan.run(kernel, launch, &[from.at, to.at]);
    Ok(())
}

/// A value of floats as f32: itself, or where it is of another type a copy for the duration of this step.
pub(crate) fn widened(plan: &mut Lowering<'_>, value: Value) -> Result<Value> {
    if value.ty.dtype == DType::F32 {
        return Ok(value);
    }
    let ty = TensorType::f32(value.ty.shape);
    let wide = Value { at: plan.scratch_bytes(ty.bytes()), ty };
    cast(plan, value, wide)?;
    Ok(wide)
}
