//! Resizing of images.

use kiln_ir::Result;
use kiln_ir::op::Resize2d;
use kiln_ptx::kernels::resize::Resize;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Resize2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = Resize::new(self.mode);
        let launch = kernel.launch(&self.extents(&inputs[0].ty.shape)?)?;
        plan.run(kernel, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}
