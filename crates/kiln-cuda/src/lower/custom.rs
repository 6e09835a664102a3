//! Operations that a program defines, by their kernels in PTX.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kiln_ir::op::{Custom, Operation};
use kiln_ir::{Error, Result, TensorType};
use kiln_ptx::{Kernel, PtxKernel, Target};

use super::{Launches, Lower, Lowering, Value};
use crate::{CudaDevice, CudaKernel};

/// A kernel from a program, whose compiled code is cached by its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CustomCode(Arc<PtxKernel>);

impl Hash for CustomCode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text().hash(state);
    }
}

impl Kernel for CustomCode {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    /// Unknown for a program's kernel.
    fn reads_early(&self, _: Target) -> Option<Vec<usize>> {
        None
    }

    fn build(&self) -> PtxKernel {
        (*self.0).clone()
    }
}

impl Lower<CudaDevice> for Custom {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let own = self.kernel::<CudaKernel>().ok_or(Error::Unsupported { op: self.name(), backend: "CUDA" })?;
        let [types, results] = [inputs, outputs].map(|values| values.iter().map(|v| v.ty).collect::<Vec<TensorType>>());
        let (kernel, launch) = self.call(&types, &results, |call| own.write(call, plan.target.target))?;
        let buffers: Vec<_> = inputs.iter().chain(outputs).map(|value| value.at).collect();
        plan.run(CustomCode(Arc::new(kernel)), launch, &buffers);
        Ok(())
    }
}
