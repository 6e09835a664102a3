//! Rows of a table, chosen, written and added to.

use kiln_ir::op::{Dequantize, Gather, Operation};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_ptx::kernels::gather;

use super::{Launches, Lower, Lowering, Value, cast};
use crate::CudaDevice;

impl Lower<CudaDevice> for Gather {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (dtype, out) = (inputs[0].ty.dtype, outputs[0]);
        if inputs[1].ty.shape.is_empty() {
            return Ok(());
        }
        if dtype == out.ty.dtype || out.ty.shape.is_empty() {
            return rows(self, plan, inputs, out);
        }
        // Gathers the rows as stored, then decodes them to f32.
        let shape = Shape::new(&[inputs[1].ty.shape.numel(), inputs[0].ty.shape.columns()])?;
        let stored = plan.scratch(TensorType::of(dtype, shape)?);
        rows(self, plan, inputs, stored)?;
        match dtype {
            DType::Blocks(format) => Dequantize { format }.lower(plan, &[stored], outputs),
            _ => cast::cast(plan, stored, out),
        }
    }
}

/// Copies rows as stored.
fn rows(op: &Gather, plan: &mut Lowering<'_>, inputs: &[Value], out: Value) -> Result<()> {
    let (table, indices) = (inputs[0].ty, inputs[1].ty.shape.numel());
    let rows = table.shape.rows();
    let row = table.bytes() / rows.max(1);
    let kernel = gather::Gather::new(row);
    let launch = kernel.launch(indices, rows, row)?;
    let report = plan.fault(op.name(), rows);
    plan.run(kernel, launch, &[inputs[0].at, inputs[1].at, out.at, report]);
    Ok(())
}
