//! Attention.

use kiln_core::Result;
use kiln_core::op::Attention;
use kiln_ptx::kernels::attention;

use super::{Lower, Lowering, Value};

impl Lower for Attention {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let extents = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape, &inputs[2].ty.shape)?;
        let kernel = attention::Attention::new(extents.d, self.causal, plan.hardware.target);
        let launch = kernel.launch(&extents, self.scale(extents.d))?;
        plan.run(kernel, launch, &[inputs[0].at, inputs[1].at, inputs[2].at, outputs[0].at]);
        Ok(())
    }
}
