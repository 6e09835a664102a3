//! Rows written or added to those of a table.

use kiln_ir::op::{IndexAdd, Operation, Reshape, Scatter, Sort};
use kiln_ir::{Result, Shape, TensorType};
use kiln_ptx::kernels::{gather, scatter, shape};

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Scatter {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let ([table, indices, source], out) = ([inputs[0], inputs[1], inputs[2]], outputs[0]);
        let (rows, count) = (table.ty.shape.rows(), indices.ty.shape.numel());
        reported(plan, self.name(), rows, indices)?;
        if out.ty.shape.is_empty() {
            return Ok(());
        }
        // Two words for each row.
        let last = plan.scratch(TensorType::u32(Shape::new(&[rows, 2])?)).at;
        plan.run(shape::Fill, shape::Fill.launch(u32::MAX, 2 * rows)?, &[last]);
        plan.run(scatter::LastSource, scatter::LastSource.launch(count, rows)?, &[indices.at, last]);
        let row = table.ty.bytes() / rows;
        let kernel = scatter::Scatter::new(row);
        plan.run(kernel, kernel.launch(rows, row)?, &[table.at, source.at, last, out.at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for IndexAdd {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let ([table, indices, source], out) = ([inputs[0], inputs[1], inputs[2]], outputs[0]);
        let (rows, count) = (table.ty.shape.rows(), indices.ty.shape.numel());
        reported(plan, self.name(), rows, indices)?;
        if out.ty.shape.is_empty() {
            return Ok(());
        }
        if count == 0 {
            return Reshape::to(table.ty.shape.dims())?.lower(plan, &[table], &[out]);
        }
        let ty = TensorType::u32(Shape::new(&[count])?);
        let [sorted, positions] = [0, 1].map(|_| plan.scratch(ty));
        Sort { axis: 0, descending: false }.lower(plan, &[indices], &[sorted, positions])?;
        let kernel = scatter::IndexAdd::new(out.ty.dtype);
        let launch = kernel.launch(rows, table.ty.shape.columns(), count)?;
        plan.run(kernel, launch, &[table.at, sorted.at, positions.at, source.at, out.at]);
        Ok(())
    }
}

/// Reports an index outside of a table of `rows` rows.
pub(super) fn reported(plan: &mut Lowering<'_>, op: &'static str, rows: usize, indices: Value) -> Result<()> {
    let report = plan.fault(op, rows);
    // For rows without columns a gather only checks the indices.
    let kernel = gather::Gather::new(0);
    let launch = kernel.launch(indices.ty.shape.numel(), rows, 0)?;
    plan.run(kernel, launch, &[indices.at, indices.at, indices.at, report]);
    Ok(())
}
