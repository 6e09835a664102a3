//! Operations that move elements: strided copies.

use kiln_ir::op::{AllReduce, BroadcastTo, Concat, Elementwise, Movement, Pad, Permute, Reshape, Slice, StridedCopy};
use kiln_ir::{Result, TensorType};
use kiln_ptx::kernels::transpose::Transpose;
use kiln_ptx::kernels::{all_reduce, shape};

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;
use kiln_device::Location;

macro_rules! movements {
    ($($operation:ident),*) => {
        $(impl Lower<CudaDevice> for $operation {
            fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
                lower(plan, self, inputs, outputs[0])
            }
        })*
    };
}
movements!(BroadcastTo, Concat, Pad, Permute, Reshape, Slice);

/// A device that is in no group has nothing to add but the addend of [`FusionLimits::addends`](kiln_ir::graph::FusionLimits::addends).
impl Lower<CudaDevice> for AllReduce {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        match inputs {
            [_, _] => Elementwise::add().lower(plan, inputs, outputs),
            _ => lower(plan, self, inputs, outputs[0]),
        }
    }
}

/// Sums over the devices of a group, through the memory that they exchange operands by.
pub(crate) fn lower_all_reduce(
    plan: &mut Lowering<'_>,
    devices: usize,
    from: Value,
    addend: Option<Value>,
    to: Value,
) -> Result<()> {
    let n = to.ty.shape.numel();
    let kernel = all_reduce::AllReduce::new(devices, n)?.adding(addend.is_some());
    let exchange = (0..devices).map(Location::Exchange);
    let own = [to.at, Location::OwnExchange].into_iter().chain(exchange);
    let buffers: Vec<Location> =
        [Some(from.at), addend.map(|addend| addend.at)].into_iter().flatten().chain(own).collect();
    plan.run(kernel, kernel.launch(n, plan.target.multiprocessors)?, &buffers);
    Ok(())
}

/// Fills the output if operands do not cover all of it, and copies each operand to its position.
fn lower(plan: &mut Lowering<'_>, op: &impl Movement, inputs: &[Value], out: Value) -> Result<()> {
    if let Some(value) = op.fill() {
        let word = out.ty.dtype.word_of(value);
        // Memory ends with a whole word.
        plan.run(shape::Fill, shape::Fill.launch(word, out.ty.bytes().div_ceil(4))?, &[out.at]);
    }
    let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
    for (index, input) in inputs.iter().enumerate() {
        copy(plan, &op.copy(&types, index)?, input.at, out.at)?;
    }
    Ok(())
}

/// Copies the units of a plan from one tensor to another.
pub(super) fn copy(plan: &mut Lowering<'_>, copy: &StridedCopy, x: Location, out: Location) -> Result<()> {
    if copy.is_empty() {
        return Ok(());
    }
    if let (4, Some([matrices, rows, columns])) = (copy.unit(), copy.as_transpose()) {
        plan.run(Transpose, Transpose.launch(matrices, rows, columns)?, &[x, out]);
        return Ok(());
    }
    let kernel = shape::StridedCopy::new(copy);
    plan.run(kernel, kernel.launch(copy)?, &[x, out]);
    Ok(())
}
