//! Rows of a table, chosen, written and added to.

use kiln_device::Location;
use kiln_ir::op::{Dequantize, Gather, IndexAdd, Operation, Reshape, Scatter, Sort};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_shaders::{GATHER, GATHER_FAULT, INDEX_ADD, SCATTER_SOURCES, number};

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
            rows(plan, self.name(), inputs, out);
            return Ok(());
        }
        // The rows that are chosen as they are stored, and then as f32.
        let shape = Shape::new(&[inputs[1].ty.shape.numel(), inputs[0].ty.shape.columns()])?;
        let stored = plan.scratch(TensorType::of(dtype, shape)?);
        rows(plan, self.name(), inputs, stored);
        match dtype {
            DType::Blocks(format) => Dequantize { format }.lower(plan, &[stored], outputs),
            _ => {
                cast(plan, [stored.at.into(), out.at.into()], [dtype, out.ty.dtype], shape.numel());
                Ok(())
            }
        }
    }
}

/// Copies rows of a table as they are stored.
fn rows(plan: &mut Lowering<'_>, op: &'static str, inputs: &[Value], out: Value) {
    let (table, rows, count) = (inputs[0], inputs[0].ty.shape.rows(), inputs[1].ty.shape.numel());
    let row = table.ty.bytes() / rows.max(1);
    let fault = plan.fault(op, rows);
    // Rows of no columns have no invocations to report what is wrong with their indices.
    let scan = count <= SCANNED || row == 0;
    copied(plan, &[table], row, inputs[1], out, (fault, scan));
    if !scan {
        plan.run(GATHER_FAULT, &[], &[inputs[1].at, fault], &[], Grid::groups_of(1));
    }
}

/// Copies rows of `row` bytes of tables that are counted through.
fn copied(
    plan: &mut Lowering<'_>,
    tables: &[Value],
    row: usize,
    indices: Value,
    out: Value,
    (fault, scan): (Location, bool),
) {
    let count = indices.ty.shape.numel();
    let rows: usize = tables.iter().map(|table| table.ty.shape.rows()).sum();
    // Bytes of a unit, and units of a word.
    let unit = [16, 4, 2].into_iter().find(|&unit| row.is_multiple_of(unit)).unwrap_or(1);
    let per = (4 / unit).max(1);
    let constants = vec![("UNIT", unit as u32), ("SCAN", scan.into())];
    for piece in pieces(&plan.target.limits, count, &[4, row]) {
        let n = (piece.len * row / unit).div_ceil(per);
        let mut first = 0;
        for table in tables {
            let here = table.ty.shape.rows();
            for part in pieces(&plan.target.limits, here, &[row]) {
                let buffers =
                    vec![part.of(table.at, row), piece.of(indices.at, 4), piece.of(out.at, row), fault.into()];
                let extents = [first + part.start, part.len, rows, row / unit, piece.start, piece.len, n];
                let code = Code::Kernel(GATHER, constants.clone());
                plan.dispatch(code, buffers, &extents.map(Word::from), Grid::invocations(n.max(1)));
            }
            first += here;
        }
    }
}

impl Lower<GpuDevice> for Scatter {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let ([table, indices, source], out) = ([inputs[0], inputs[1], inputs[2]], outputs[0]);
        let (rows, count) = (table.ty.shape.rows(), indices.ty.shape.numel());
        let fault = reported(plan, self.name(), rows, indices)?;
        if out.ty.shape.is_empty() {
            return Ok(());
        }
        // Where each row of the result comes from: the table, or the source, whose rows are counted after those.
        let from = plan.scratch(TensorType::u32(Shape::new(&[rows])?));
        for (choose, n) in [(0, rows), (1, count)] {
            let words = [rows, n].map(Word::from);
            // What would hold indices is not read before they choose; there may be none.
            let read = if count == 0 { table.at } else { indices.at };
            plan.run(SCATTER_SOURCES, &[("CHOOSE", choose)], &[read, from.at], &words, Grid::invocations(n.max(1)));
        }
        let tables = if count == 0 { vec![table] } else { vec![table, source] };
        copied(plan, &tables, table.ty.bytes() / rows, from, out, (fault, false));
        Ok(())
    }
}

impl Lower<GpuDevice> for IndexAdd {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let ([table, indices, source], out) = ([inputs[0], inputs[1], inputs[2]], outputs[0]);
        let (rows, count) = (table.ty.shape.rows(), indices.ty.shape.numel());
        reported(plan, self.name(), rows, indices)?;
        if out.ty.shape.is_empty() {
            return Ok(());
        }
        if count == 0 {
            let copy = Reshape::to(table.ty.shape.dims())?;
            return copy.lower(plan, &[table], &[out]);
        }
        let ty = TensorType::u32(Shape::new(&[count])?);
        let [sorted, positions] = [0, 1].map(|_| plan.scratch(ty));
        Sort { axis: 0, descending: false }.lower(plan, &[indices], &[sorted, positions])?;
        let stored = number(if out.ty.dtype == DType::F32 { DType::F32 } else { DType::U32 });
        let columns = table.ty.shape.columns();
        for piece in pieces(&plan.target.limits, rows, &[4 * columns]) {
            let n = piece.len * columns;
            let words = [piece.start, columns, count, n].map(Word::from);
            let [table, out] = [table.at, out.at].map(|at| piece.of(at, 4 * columns));
            let buffers = vec![table, sorted.at.into(), positions.at.into(), source.at.into(), out];
            let code = Code::Kernel(INDEX_ADD, vec![("STORED", stored)]);
            plan.dispatch(code, buffers, &words, Grid::invocations(n));
        }
        Ok(())
    }
}

/// Reports an index outside of a table of `rows` rows, which a gather of rows of no columns finds.
fn reported(plan: &mut Lowering<'_>, op: &'static str, rows: usize, indices: Value) -> Result<Location> {
    let fault = plan.fault(op, rows);
    if !indices.ty.shape.is_empty() {
        // Rows of nothing are neither read nor written.
        let nothing = plan.scratch(TensorType::u32(Shape::new(&[4])?));
        let table = Value { at: indices.at, ty: TensorType::u32(Shape::new(&[rows, 0])?) };
        copied(plan, &[table], 0, indices, nothing, (fault, true));
    }
    Ok(fault)
}
