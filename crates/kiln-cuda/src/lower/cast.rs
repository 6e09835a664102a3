//! Casts between element types.

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

/// Casts all elements; both have the same number.
pub(super) fn cast(plan: &mut Lowering<'_>, from: Value, to: Value) -> Result<()> {
    let kernel = cast::Cast::new(from.ty.dtype, to.ty.dtype)?;
    let launch = kernel.launch(from.ty.shape.numel())?;
    plan.run(kernel, launch, &[from.at, to.at]);
    Ok(())
}

/// A floating-point value as f32: unchanged, or a copy for the duration of this step.
pub(crate) fn widened(plan: &mut Lowering<'_>, value: Value) -> Result<Value> {
    of_type(plan, value, DType::F32)
}

/// A floating-point value in this type: unchanged, or a copy for the duration of this step.
pub(super) fn of_type(plan: &mut Lowering<'_>, value: Value, dtype: DType) -> Result<Value> {
    if value.ty.dtype == dtype {
        return Ok(value);
    }
    let ty = TensorType { dtype, shape: value.ty.shape };
    let copy = Value { at: plan.scratch_bytes(ty.bytes().next_multiple_of(4)), ty };
    cast(plan, value, copy)?;
    Ok(copy)
}
