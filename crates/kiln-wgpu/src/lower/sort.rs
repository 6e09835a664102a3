//! Rows in order: the first k elements, where k is their length.

use kiln_device::lower::along_last;
use kiln_ir::op::Sort;
use kiln_ir::{DType, Result};

use super::cast::{cast, widened};
use super::compare::in_words;
use super::topk::{Order, of_rows};
use super::{Lower, Lowering, Value};
use crate::GpuDevice;

impl Lower<GpuDevice> for Sort {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        along_last(plan, self.axis, inputs[0], outputs, |plan, x, outputs| {
            // Elements smaller than a word are sorted as words of equal value.
            let words = match x.ty.dtype {
                DType::F16 | DType::Bf16 => widened(plan, x),
                _ => in_words(plan, x),
            };
            let stored = x.ty.dtype;
            let values = if words.ty == x.ty { outputs[0] } else { plan.scratch(words.ty) };
            let order = Order::Sorted { ascending: !self.descending, dtype: words.ty.dtype };
            of_rows(plan, words, x.ty.shape.columns(), order, [values, outputs[1]])?;
            if words.ty != x.ty {
                let types = [words.ty.dtype, stored];
                cast(plan, [values.into(), outputs[0].into()], types, x.ty.shape.numel());
            }
            Ok(())
        })
    }
}
