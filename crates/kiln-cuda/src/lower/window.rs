//! Windows of images: pooling, convolution and its transpose, resizing.

use kiln_ir::Result;
use kiln_ir::op::{Convolve2d, ConvolveTranspose2d, Pool2d, Resize2d};
use kiln_ptx::kernels::resize::Resize;
use kiln_ptx::kernels::window::{Convolve, ConvolveTranspose, Pool};

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

impl Lower<CudaDevice> for Convolve2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let extents = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        let kernel = Convolve::new(&extents);
        let launch = kernel.launch(self, &extents)?;
        plan.run(kernel, launch, &[inputs[0].at, inputs[1].at, outputs[0].at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for ConvolveTranspose2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let launch = ConvolveTranspose.launch(&self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?)?;
        plan.run(ConvolveTranspose, launch, &[inputs[0].at, inputs[1].at, outputs[0].at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for Resize2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = Resize::new(self.mode);
        let launch = kernel.launch(&self.extents(&inputs[0].ty.shape)?)?;
        plan.run(kernel, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}
