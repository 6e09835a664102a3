//! Rotary position embedding.

use kiln_ir::op::{Operation, Rope};
use kiln_ir::{Error, Result};
use kiln_ptx::kernels::rope;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Rope {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        // Angles grow beyond what the kernel reduces; no model has such a base.
        if self.theta.get() < 1.0 {
            return Err(Error::Unsupported { op: self.name(), backend: "CUDA" });
        }
        let shape = inputs[0].ty.shape;
        let [.., positions, columns] = *shape.dims() else {
            return Err(Error::Shape { op: self.name(), reason: format!("{shape} has no rows of positions") });
        };
        let kernel = rope::Rope::new(self.style);
        let launch = kernel.launch(self, shape.rows(), positions, columns)?;
        plan.run(kernel, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}
