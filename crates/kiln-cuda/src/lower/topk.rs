//! The greatest elements of rows.

use kiln_ir::Result;
use kiln_ir::op::TopK;
use kiln_ptx::kernels::topk;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for TopK {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let x = inputs[0].ty.shape;
        let launch = topk::TopK.launch(x.rows(), x.columns(), self.k)?;
        plan.run(topk::TopK, launch, &[inputs[0].at, outputs[0].at, outputs[1].at]);
        Ok(())
    }
}
