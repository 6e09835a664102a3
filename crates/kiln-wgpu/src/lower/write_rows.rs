//! Rows of a tensor replaced by others.

use kiln_device::lower::stored_as;
use kiln_ir::op::{Operation, WriteRows};
use kiln_ir::{DType, Result};
use kiln_shaders::{WRITE_ROWS, number};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

impl Lower<GpuDevice> for WriteRows {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (positions, out) = (inputs[2], outputs[0]);
        let e = self.extents(&out.ty.shape, &inputs[1].ty.shape, &positions.ty.shape)?;
        if e.s == 0 || positions.ty.shape.is_empty() {
            return Ok(());
        }
        // Whole fours of f32 are rounded as they are written.
        let rounds = inputs[1].ty.dtype == DType::F32
            && matches!(out.ty.dtype, DType::F16 | DType::Bf16)
            && e.d.is_multiple_of(4);
        let rows = if rounds { inputs[1] } else { stored_as(plan, inputs[1], out.ty.dtype)? };
        let row = rows.ty.bytes().checked_div(e.outer * e.s).unwrap_or(0);
        let unit = [16, 4, 2].into_iter().find(|&unit| row.is_multiple_of(unit)).unwrap_or(1);
        let to = if rounds { out.ty.dtype } else { DType::F32 };
        let fault = plan.fault(self.name(), e.n);
        let [of_matrix, new] = [out.ty.bytes().checked_div(e.outer).unwrap_or(0), e.s * row];
        for piece in pieces(&plan.target.limits, e.outer, &[of_matrix, new]) {
            let buffers = vec![piece.of(rows, new), positions.into(), piece.of(out, of_matrix), Slice::fault(fault)];
            let count = piece.len * e.s;
            let of_set = e.sharing.max(1);
            let extents = [piece.start, of_set, e.n, e.s, row / unit, positions.ty.shape.numel(), count];
            let code = Code::Kernel(WRITE_ROWS, vec![("UNIT", unit as u32), ("TO_TYPE", number(to))]);
            // One workgroup checks the positions if there is nothing to write.
            plan.dispatch(code, buffers, &extents.map(Word::from), Grid::groups_of(count.max(1)));
        }
        Ok(())
    }
}
