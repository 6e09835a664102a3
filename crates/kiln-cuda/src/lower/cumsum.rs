//! Sums of all elements up to each along a dimension.
//!
//! A block goes through a row. Where there are few and long rows it takes a part of one: totals of parts come first, then their
//! sums, then the parts.

use kiln_ir::op::Cumsum;
use kiln_ir::{Result, Shape, TensorType};
use kiln_ptx::kernels::cumsum;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;
use kiln_device::lower::along_last;

/// Blocks for each multiprocessor, which are resident together.
const RESIDENT: usize = 8;
/// Minimum tiles of a part: three launches take some microseconds.
const SHORTEST: usize = 4;

impl Lower<CudaDevice> for Cumsum {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        along_last(plan, self.axis, inputs[0], outputs, |plan, x, outputs| {
            let (rows, n, dtype, y) = (x.ty.shape.rows(), x.ty.shape.columns(), outputs[0].ty.dtype, outputs[0].at);
            let busy = RESIDENT * plan.target.multiprocessors as usize;
            let most = n.div_ceil(SHORTEST * Self::TILE);
            let part = n.div_ceil(Self::TILE).div_ceil((busy / rows.max(1)).clamp(1, most.max(1))) * Self::TILE;
            let parts = n.div_ceil(part);
            let of_rows = cumsum::Cumsum::rows(dtype);
            if parts == 1 {
                plan.run(of_rows, of_rows.launch(rows, n, n)?, &[x.at, y]);
                return Ok(());
            }
            let ty = TensorType::u32(Shape::new(&[rows, parts])?);
            let [totals, before] = [0, 1].map(|_| plan.scratch(ty).at);
            let (of_totals, of_parts) = (cumsum::Cumsum::totals(dtype), cumsum::Cumsum::parts(dtype));
            plan.run(of_totals, of_totals.launch(rows, n, part)?, &[x.at, totals]);
            plan.run(of_rows, of_rows.launch(rows, parts, parts)?, &[totals, before]);
            plan.run(of_parts, of_parts.launch(rows, n, part)?, &[x.at, before, y]);
            Ok(())
        })
    }
}
