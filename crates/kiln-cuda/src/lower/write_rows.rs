//! Rows of a tensor replaced by others.

use kiln_device::lower::stored_as;
use kiln_ir::Result;
use kiln_ir::op::{Operation, WriteRows};
use kiln_ptx::kernels::write_rows;

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
        let rounding = write_rows::WriteRows::rounding(extents.d, [inputs[1].ty.dtype, out.ty.dtype]);
        let rows = if rounding.is_some() { inputs[1] } else { stored_as(plan, inputs[1], out.ty.dtype)? };
        let row = rows.ty.bytes().checked_div(extents.outer * extents.s).unwrap_or(0);
        let kernel = rounding.unwrap_or_else(|| write_rows::WriteRows::new(row));
        let launch = kernel.launch(&extents, row, positions.ty.shape.numel())?;
        let report = plan.fault(self.name(), extents.n);
        plan.run(kernel, launch, &[rows.at, positions.at, out.at, report]);
        Ok(())
    }
}
