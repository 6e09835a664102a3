//! Casts between element types.

use kiln_ir::op::Cast;
use kiln_ir::{DType, Result, TensorType};
use kiln_shaders::{CAST, number};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice};

impl Lower<GpuDevice> for Cast {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let types = [inputs[0], outputs[0]].map(|value| value.ty.dtype);
        cast(plan, [inputs[0].into(), outputs[0].into()], types, inputs[0].ty.shape.numel());
        Ok(())
    }
}

/// Casts `elements` elements from `types[0]` to `types[1]`.
pub(super) fn cast(plan: &mut Lowering<'_>, [from, to]: [Slice; 2], types: [DType; 2], elements: usize) {
    let [from_type, to_type] = types.map(number);
    for piece in pieces(&plan.target.limits, elements, &types.map(DType::size)) {
        let code = Code::Kernel(CAST, vec![("FROM_TYPE", from_type), ("TO_TYPE", to_type)]);
        let slices = vec![piece.of(from, types[0].size()), piece.of(to, types[1].size())];
        let vectors = piece.len.div_ceil(4);
        plan.dispatch(code, slices, &[vectors.into()], Grid::invocations(vectors));
    }
}

/// Casts f16 or bf16 to f32 for the duration of this step.
pub(crate) fn widened(plan: &mut Lowering<'_>, value: Value) -> Value {
    let wide = plan.scratch(TensorType::f32(value.ty.shape));
    cast(plan, [value.into(), wide.into()], [value.ty.dtype, DType::F32], value.ty.shape.numel());
    wide
}
