//! Rows of a table.

use kiln_ir::Result;
use kiln_ir::op::{Gather, Operation};
use kiln_shaders::{GATHER, GATHER_FAULT};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Word};

/// So many indices a single workgroup looks through while the others work.
const SCANNED: usize = 1 << 14;

impl Lower<GpuDevice> for Gather {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (table, count) = (inputs[0].ty.shape, inputs[1].ty.shape.numel());
        let (rows, columns) = (table.rows(), table.columns());
        if count == 0 {
            return Ok(());
        }
        let unit = if columns.is_multiple_of(4) { 4 } else { 1 };
        let fault = plan.fault(self.name(), rows);
        // Rows of no columns have no invocations to report what is wrong with their indices.
        let scan = count <= SCANNED || columns == 0;
        let constants = vec![("VECTORS", u32::from(unit == 4)), ("SCAN", scan.into())];
        let tables = pieces(&plan.target.limits, rows, &[4 * columns]);
        for piece in pieces(&plan.target.limits, count, &[4, 4 * columns]) {
            let n = piece.len * columns / unit;
            for part in &tables {
                let buffers = vec![
                    part.of(inputs[0].at, 4 * columns),
                    piece.of(inputs[1].at, 4),
                    piece.of(outputs[0].at, 4 * columns),
                    fault.into(),
                ];
                let extents = [part.start, part.len, rows, columns / unit, piece.start, piece.len, n];
                let code = Code::Kernel(GATHER, constants.clone());
                plan.dispatch(code, buffers, &extents.map(Word::from), Grid::invocations(n.max(1)));
            }
        }
        if !scan {
            plan.run(GATHER_FAULT, &[], &[inputs[1].at, fault], &[], Grid::groups_of(1));
        }
        Ok(())
    }
}
