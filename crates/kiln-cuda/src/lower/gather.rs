//! Rows of a table.

use kiln_ir::Result;
use kiln_ir::op::{Gather, Operation};
use kiln_ptx::kernels::gather;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Gather {
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (table, indices) = (inputs[0].ty.shape, inputs[1].ty.shape.numel());
        if indices == 0 {
            return Ok(());
        }
        let kernel = gather::Gather::new(table.columns());
        let launch = kernel.launch(indices, table.rows(), table.columns())?;
        let report = plan.fault(self.name(), table.rows());
        plan.run(kernel, launch, &[inputs[0].at, inputs[1].at, outputs[0].at, report]);
        Ok(())
    }
}
