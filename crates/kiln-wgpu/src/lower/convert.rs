//! Between f32 and f16.

use kiln_core::op::Convert;
use kiln_core::{DType, Result, TensorType};
use kiln_shaders::CONVERT;

use super::pieces::pieces;
use super::{Lower, Lowering, Value};
use crate::plan::{Code, Grid};

impl Lower for Convert {
    const HALVES: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        convert(plan, inputs[0], outputs[0]);
        Ok(())
    }
}

/// Converts all elements; both have as many.
pub(super) fn convert(plan: &mut Lowering<'_>, from: Value, to: Value) {
    let half = |value: Value| u32::from(value.ty.dtype == DType::F16);
    let constants = [("FROM_HALF", half(from)), ("TO_HALF", half(to))];
    let bytes = [from, to].map(|value| value.ty.dtype.size());
    for piece in pieces(plan.limits, from.ty.shape.numel(), &bytes) {
        let buffers = vec![piece.of(from.at, bytes[0]), piece.of(to.at, bytes[1])];
        let vectors = piece.len.div_ceil(4);
        let code = Code::Kernel(CONVERT, constants.to_vec());
        plan.dispatch(code, buffers, &[vectors.into()], Grid::invocations(vectors));
    }
}

/// A value as f32: itself, or where it is f16 a copy for the duration of this step.
pub(super) fn widened(plan: &mut Lowering<'_>, value: Value) -> Value {
    if value.ty.dtype != DType::F16 {
        return value;
    }
    let wide = plan.scratch(TensorType::f32(value.ty.shape));
    convert(plan, value, wide);
    wide
}
