//! Between f32 and f16.

use kiln_ir::op::Convert;
use kiln_ir::{DType, Result, TensorType};
use kiln_shaders::CONVERT;

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice};

impl Lower<GpuDevice> for Convert {
    const HALVES: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let types = [inputs[0], outputs[0]].map(|value| value.ty.dtype);
        convert(plan, [inputs[0].at.into(), outputs[0].at.into()], types, inputs[0].ty.shape.numel());
        Ok(())
    }
}

/// Converts so many elements of one type to another.
pub(super) fn convert(plan: &mut Lowering<'_>, [from, to]: [Slice; 2], types: [DType; 2], elements: usize) {
    let [from_half, to_half] = types.map(|dtype| u32::from(dtype == DType::F16));
    for piece in pieces(&plan.target.limits, elements, &types.map(DType::size)) {
        let code = Code::Kernel(CONVERT, vec![("FROM_HALF", from_half), ("TO_HALF", to_half)]);
        let slices = vec![piece.of(from, types[0].size()), piece.of(to, types[1].size())];
        let vectors = piece.len.div_ceil(4);
        plan.dispatch(code, slices, &[vectors.into()], Grid::invocations(vectors));
    }
}

/// A value as f32: itself, or where it is f16 a copy for the duration of this step.
pub(crate) fn widened(plan: &mut Lowering<'_>, value: Value) -> Value {
    if value.ty.dtype != DType::F16 {
        return value;
    }
    let wide = plan.scratch(TensorType::f32(value.ty.shape));
    convert(plan, [value.at.into(), wide.at.into()], [DType::F16, DType::F32], value.ty.shape.numel());
    wide
}
