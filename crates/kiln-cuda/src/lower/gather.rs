//! Rows of a table, chosen, written and added to.

use kiln_ir::op::{Dequantize, Gather, IndexAdd, Operation, Reshape, Scatter, Sort};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_ptx::kernels::{gather, strided};

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
        // The rows that are chosen as they are stored, and then as f32.
        let shape = Shape::new(&[inputs[1].ty.shape.numel(), inputs[0].ty.shape.columns()])?;
        let stored = plan.scratch(TensorType::of(dtype, shape)?);
        rows(self, plan, inputs, stored)?;
        match dtype {
            DType::Blocks(format) => Dequantize { format }.lower(plan, &[stored], outputs),
            _ => cast::cast(plan, stored, out),
        }
    }
}

/// Copies rows as they are stored.
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
        plan.run(strided::Fill, strided::Fill.launch(u32::MAX, 2 * rows)?, &[last]);
        plan.run(gather::LastSource, gather::LastSource.launch(count, rows)?, &[indices.at, last]);
        let row = table.ty.bytes() / rows;
        let kernel = gather::Scatter::new(row);
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
        let kernel = gather::IndexAdd::new(out.ty.dtype);
        let launch = kernel.launch(rows, table.ty.shape.columns(), count)?;
        plan.run(kernel, launch, &[table.at, sorted.at, positions.at, source.at, out.at]);
        Ok(())
    }
}

/// Reports an index outside of a table of `rows` rows.
fn reported(plan: &mut Lowering<'_>, op: &'static str, rows: usize, indices: Value) -> Result<()> {
    let report = plan.fault(op, rows);
    // Of rows of nothing a gather looks at the indices alone.
    let kernel = gather::Gather::new(0);
    let launch = kernel.launch(indices.ty.shape.numel(), rows, 0)?;
    plan.run(kernel, launch, &[indices.at, indices.at, indices.at, report]);
    Ok(())
}
