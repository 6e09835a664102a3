//! Rows of a tensor replaced by others.

use kiln_ir::op::{Operation, Quantize, WriteRows};
use kiln_ir::{DType, Result, TensorType};
use kiln_ptx::kernels::write_rows;

use super::cast::{cast, widened};
use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for WriteRows {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (positions, out) = (inputs[2], outputs[0]);
        let extents = self.extents(&out.ty.shape, &inputs[1].ty.shape, &positions.ty.shape)?;
        if extents.s == 0 || positions.ty.shape.is_empty() {
            return Ok(());
        }
        let rows = stored(plan, inputs[1], out.ty.dtype)?;
        let row = rows.ty.bytes().checked_div(extents.outer * extents.s).unwrap_or(0);
        let kernel = write_rows::WriteRows::new(row);
        let launch = kernel.launch(&extents, row, positions.ty.shape.numel())?;
        let report = plan.fault(self.name(), extents.n);
        plan.run(kernel, launch, &[rows.at, positions.at, out.at, report]);
        Ok(())
    }
}

/// Rows as elements or blocks of a type, for the duration of this step.
fn stored(plan: &mut Lowering<'_>, rows: Value, dtype: DType) -> Result<Value> {
    if rows.ty.dtype == dtype || rows.ty.shape.is_empty() {
        return Ok(rows);
    }
    let stored = plan.scratch(TensorType::of(dtype, rows.ty.shape)?);
    match dtype {
        DType::Blocks(format) => {
            let wide = widened(plan, rows)?;
            Quantize { format }.lower(plan, &[wide], &[stored])?;
        }
        _ => cast(plan, rows, stored)?,
    }
    Ok(stored)
}
