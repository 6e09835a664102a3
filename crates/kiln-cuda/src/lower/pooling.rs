//! The maximum or mean of windows of images.

use kiln_ir::Result;
use kiln_ir::op::Pool2d;
use kiln_ptx::kernels::pooling::Pool;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Pool2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = Pool::new(self.pooling, plan.target.target);
        let launch = kernel.launch(self, &self.extents(&inputs[0].ty.shape)?)?;
        plan.run(kernel, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}
