//! Comparisons, the choice between two tensors, and functions of integers.

use kiln_ir::op::{Arithmetic, Compare, Select};
use kiln_ir::{Result, TensorType};
use kiln_shaders::{ARITHMETIC, COMPARE, SELECT, constant, number};

use super::cast::cast;
use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Word};

impl Lower<GpuDevice> for Compare {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let operands: Vec<Value> = inputs.iter().map(|&input| in_words(plan, input)).collect();
        let constants = vec![constant(self.comparison), ("STORED", number(operands[0].ty.dtype))];
        of_each(plan, &Code::Kernel(COMPARE, constants), &operands, outputs[0]);
        Ok(())
    }
}

impl Lower<GpuDevice> for Select {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        of_each(plan, &Code::Kernel(SELECT, Vec::new()), inputs, outputs[0]);
        Ok(())
    }
}

impl Lower<GpuDevice> for Arithmetic {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let constants = vec![constant(self.function), ("STORED", number(outputs[0].ty.dtype))];
        of_each(plan, &Code::Kernel(ARITHMETIC, constants), inputs, outputs[0]);
        Ok(())
    }
}

/// A value whose elements are words: itself, or for bytes a copy for the duration of this step.
pub(super) fn in_words(plan: &mut Lowering<'_>, value: Value) -> Value {
    let to = Compare::in_words(value.ty.dtype);
    if to == value.ty.dtype {
        return value;
    }
    let words = plan.scratch(TensorType { dtype: to, shape: value.ty.shape });
    cast(plan, [value.into(), words.into()], [value.ty.dtype, to], value.ty.shape.numel());
    words
}

/// Runs a kernel whose invocations process four elements of operands that may repeat.
fn of_each(plan: &mut Lowering<'_>, code: &Code, operands: &[Value], out: Value) {
    let n = out.ty.shape.numel();
    let sizes: Vec<usize> = operands.iter().chain([&out]).map(|value| value.ty.dtype.size()).collect();
    for piece in pieces(&plan.target.limits, n, &sizes) {
        let vectors = piece.len.div_ceil(4);
        let (mut words, mut buffers): (Vec<Word>, _) = (vec![vectors.into()], Vec::new());
        for operand in operands {
            let length = operand.ty.shape.numel();
            if length == n {
                buffers.push(piece.of(*operand, operand.ty.dtype.size()));
                words.extend([piece.len, 0].map(Word::from));
            } else {
                buffers.push((*operand).into());
                words.extend([length, piece.start % length].map(Word::from));
            }
        }
        buffers.push(piece.of(out, out.ty.dtype.size()));
        plan.dispatch(code.clone(), buffers, &words, Grid::invocations(vectors));
    }
}
