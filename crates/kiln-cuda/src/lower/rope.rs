//! Rotary position embedding.

use kiln_ir::op::{Operation, Rope};
use kiln_ir::{Error, Result, TensorType};
use kiln_ptx::kernels::rope;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Rope {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        // Angles would exceed the kernel's range reduction; no model has such a base.
        if self.theta.get() < 1.0 {
            return Err(Error::Unsupported { op: self.name(), backend: "CUDA" });
        }
        let shape = inputs[0].ty.shape;
        let [.., positions, columns] = *shape.dims() else {
            return Err(Error::Shape { op: self.name(), reason: format!("{shape} has no rows of positions") });
        };
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let kernel = rope::Rope::new(self.style, Self::operands(&types));
        let launch = kernel.launch(self, shape.rows(), positions, columns)?;
        let buffers: Vec<_> = inputs.iter().chain(outputs).map(|value| value.at).collect();
        plan.run(kernel, launch, &buffers);
        Ok(())
    }
}
