//! Rows of a table, chosen, written and added to.

use kiln_device::Location;
use kiln_ir::op::{Dequantize, Gather, Operation};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_shaders::{GATHER, GATHER_FAULT};

use super::cast::cast;
use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

/// Maximum number of indices that a single workgroup checks while the others copy.
const SCANNED: usize = 1 << 14;

impl Lower<GpuDevice> for Gather {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (dtype, out) = (inputs[0].ty.dtype, outputs[0]);
        if inputs[1].ty.shape.is_empty() {
            return Ok(());
        }
        if dtype == out.ty.dtype || out.ty.shape.is_empty() {
            rows(plan, self.name(), inputs, out);
            return Ok(());
        }
        // Gathers the rows as stored, then decodes them to f32.
        let shape = Shape::new(&[inputs[1].ty.shape.numel(), inputs[0].ty.shape.columns()])?;
        let stored = plan.scratch(TensorType::of(dtype, shape)?);
        rows(plan, self.name(), inputs, stored);
        match dtype {
            DType::Blocks(format) => Dequantize { format }.lower(plan, &[stored], outputs),
            _ => {
                cast(plan, [stored.into(), out.into()], [dtype, out.ty.dtype], shape.numel());
                Ok(())
            }
        }
    }
}

/// Copies rows of a table as stored.
fn rows(plan: &mut Lowering<'_>, op: &'static str, inputs: &[Value], out: Value) {
    let (table, rows, count) = (inputs[0], inputs[0].ty.shape.rows(), inputs[1].ty.shape.numel());
    let row = table.ty.bytes() / rows.max(1);
    let fault = plan.fault(op, rows);
    // Without columns no invocations copy rows, so the scan must report invalid indices.
    let scan = count <= SCANNED || row == 0;
    copied(plan, &[table], row, inputs[1], out, (fault, scan));
    if !scan {
        plan.run(GATHER_FAULT, &[], &[inputs[1].into(), Slice::fault(fault)], &[], Grid::groups_of(1));
    }
}

/// Copies rows of `row` bytes of tables whose rows are numbered consecutively.
pub(super) fn copied(
    plan: &mut Lowering<'_>,
    tables: &[Value],
    row: usize,
    indices: Value,
    out: Value,
    (fault, scan): (Location, bool),
) {
    let count = indices.ty.shape.numel();
    let rows: usize = tables.iter().map(|table| table.ty.shape.rows()).sum();
    // Bytes of a unit, and units per word.
    let unit = [16, 4, 2].into_iter().find(|&unit| row.is_multiple_of(unit)).unwrap_or(1);
    let per = (4 / unit).max(1);
    let constants = vec![("UNIT", unit as u32), ("SCAN", scan.into())];
    for piece in pieces(&plan.target.limits, count, &[4, row]) {
        let n = (piece.len * row / unit).div_ceil(per);
        let mut first = 0;
        for table in tables {
            let here = table.ty.shape.rows();
            for part in pieces(&plan.target.limits, here, &[row]) {
                let buffers = vec![part.of(*table, row), piece.of(indices, 4), piece.of(out, row), Slice::fault(fault)];
                let extents = [first + part.start, part.len, rows, row / unit, piece.start, piece.len, n];
                let code = Code::Kernel(GATHER, constants.clone());
                plan.dispatch(code, buffers, &extents.map(Word::from), Grid::invocations(n.max(1)));
            }
            first += here;
        }
    }
}
