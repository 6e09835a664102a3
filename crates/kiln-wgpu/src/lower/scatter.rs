//! Rows written or added to those of a table.

use kiln_device::Location;
use kiln_ir::op::{IndexAdd, Operation, Reshape, Scatter, Sort};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_shaders::{INDEX_ADD, SCATTER_SOURCES, number};

use super::gather::copied;
use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Word};

impl Lower<GpuDevice> for Scatter {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let ([table, indices, source], out) = ([inputs[0], inputs[1], inputs[2]], outputs[0]);
        let (rows, count) = (table.ty.shape.rows(), indices.ty.shape.numel());
        let fault = reported(plan, self.name(), rows, indices)?;
        if out.ty.shape.is_empty() {
            return Ok(());
        }
        // The source of each row of the result: the table, or the source operand, whose rows are numbered after those.
        let from = plan.scratch(TensorType::u32(Shape::new(&[rows])?));
        for (choose, n) in [(0, rows), (1, count)] {
            let words = [rows, n].map(Word::from);
            // The placeholder of indices is not read before they exist; there may be none.
            let read = if count == 0 { table } else { indices };
            plan.run(
                SCATTER_SOURCES,
                &[("CHOOSE", choose)],
                &[read.into(), from.into()],
                &words,
                Grid::invocations(n.max(1)),
            );
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
            let [table, out] = [table, out].map(|value| piece.of(value, 4 * columns));
            let buffers = vec![table, sorted.into(), positions.into(), source.into(), out];
            let code = Code::Kernel(INDEX_ADD, vec![("STORED", stored)]);
            plan.dispatch(code, buffers, &words, Grid::invocations(n));
        }
        Ok(())
    }
}

/// Reports an index outside of a table of `rows` rows, which a gather of rows without columns finds.
pub(super) fn reported(plan: &mut Lowering<'_>, op: &'static str, rows: usize, indices: Value) -> Result<Location> {
    let fault = plan.fault(op, rows);
    if !indices.ty.shape.is_empty() {
        // Empty rows are neither read nor written.
        let nothing = plan.scratch(TensorType::u32(Shape::new(&[4])?));
        let table = Value { at: indices.at, ty: TensorType::u32(Shape::new(&[rows, 0])?) };
        copied(plan, &[table], 0, indices, nothing, (fault, true));
    }
    Ok(fault)
}
