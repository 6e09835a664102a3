//! Operations that a program defines, by their kernels in PTX.

use std::sync::Arc;

use kiln_ir::op::{Custom, Operation};
use kiln_ir::{Error, Result, TensorType};

use super::{Launches, Lower, Lowering, Value};
use crate::plan::CustomCode;
use crate::{CudaDevice, CudaKernel};

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
