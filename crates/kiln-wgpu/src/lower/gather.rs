//! Rows of a table.

use kiln_ir::op::{Dequantize, Gather, Operation};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_shaders::{GATHER, GATHER_FAULT};

use super::cast::cast;
use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Word};

/// So many indices a single workgroup looks through while the others work.
const SCANNED: usize = 1 << 14;

impl Lower<GpuDevice> for Gather {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (dtype, out) = (inputs[0].ty.dtype, outputs[0]);
        if inputs[1].ty.shape.is_empty() {
            return Ok(());
        }
        if dtype == out.ty.dtype || out.ty.shape.is_empty() {
            rows(self, plan, inputs, out);
            return Ok(());
        }
        // The rows that are chosen as they are stored, and then as f32.
        let shape = Shape::new(&[inputs[1].ty.shape.numel(), inputs[0].ty.shape.columns()])?;
        let stored = plan.scratch(TensorType::of(dtype, shape)?);
        rows(self, plan, inputs, stored);
        match dtype {
            DType::Blocks(format) => Dequantize { format }.lower(plan, &[stored], outputs),
            _ => {
                cast(plan, [stored.at.into(), out.at.into()], [dtype, out.ty.dtype], shape.numel());
                Ok(())
            }
        }
    }
}

/// Copies rows as they are stored.
fn rows(op: &Gather, plan: &mut Lowering<'_>, inputs: &[Value], out: Value) {
    let (table, count) = (inputs[0].ty, inputs[1].ty.shape.numel());
    let rows = table.shape.rows();
    let row = table.bytes() / rows.max(1);
    // Bytes of a unit, and units of a word.
    let unit = [16, 4, 2].into_iter().find(|&unit| row.is_multiple_of(unit)).unwrap_or(1);
    let per = (4 / unit).max(1);
    let fault = plan.fault(op.name(), rows);
    // Rows of no columns have no invocations to report what is wrong with their indices.
    let scan = count <= SCANNED || row == 0;
    let constants = vec![("UNIT", unit as u32), ("SCAN", scan.into())];
    let tables = pieces(&plan.target.limits, rows, &[row]);
    for piece in pieces(&plan.target.limits, count, &[4, row]) {
        let n = (piece.len * row / unit).div_ceil(per);
        for part in &tables {
            let buffers =
                vec![part.of(inputs[0].at, row), piece.of(inputs[1].at, 4), piece.of(out.at, row), fault.into()];
            let extents = [part.start, part.len, rows, row / unit, piece.start, piece.len, n];
            let code = Code::Kernel(GATHER, constants.clone());
            plan.dispatch(code, buffers, &extents.map(Word::from), Grid::invocations(n.max(1)));
        }
    }
    if !scan {
        plan.run(GATHER_FAULT, &[], &[inputs[1].at, fault], &[], Grid::groups_of(1));
    }
}
