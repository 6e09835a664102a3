//! Quantised blocks.

use kiln_ir::Result;
use kiln_ir::op::{Dequantize, QuantMatmul, Quantize};
use kiln_ptx::kernels::quant;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Quantize {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = quant::Quantize::new(self.format);
        let launch = kernel.launch(inputs[0].ty.shape.numel())?;
        plan.run(kernel, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for Dequantize {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = quant::Dequantize::new(self.format);
        let launch = kernel.launch(inputs[0].ty.shape.numel())?;
        plan.run(kernel, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for QuantMatmul {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (x, weights) = (inputs[0].ty.shape, inputs[1].ty.shape);
        let [m, depth, n] = [x.rows(), weights.columns(), weights.rows()];
        let buffers = [inputs[0].at, inputs[1].at, outputs[0].at];
        match quant::WarpQuantMatmul::new(self.format, m, plan.target.target) {
            Some(kernel) => plan.run(kernel, kernel.launch(m, depth, n, plan.target.multiprocessors)?, &buffers),
            None => {
                let kernel = quant::QuantMatmul::new(self.format, m);
                plan.run(kernel, kernel.launch(m, depth, n)?, &buffers);
            }
        }
        Ok(())
    }
}
