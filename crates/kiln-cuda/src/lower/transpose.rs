//! Transposes.

use kiln_ir::Result;
use kiln_ir::op::Transpose;
use kiln_ptx::kernels::transpose;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Transpose {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (matrices, m, n) = self.extents(&inputs[0].ty.shape)?;
        let launch = transpose::Transpose.launch(matrices, m, n)?;
        plan.run(transpose::Transpose, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}
