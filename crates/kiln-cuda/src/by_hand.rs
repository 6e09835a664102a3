//! Kernels that a program brings: launched on tensors of a device, or by custom operations.

use std::sync::Arc;

use kiln_device::Driver;
use kiln_ir::Result;
use kiln_ir::op::CustomCall;
use kiln_ptx::{Kernel, Launch, PtxKernel, Target};

use crate::driver::{Begins, Function};
use crate::{CudaDevice, CudaTensor, span};

/// Writes the kernel of a custom operation for a call and a target, and its launch. The launch names buffers by number: the
/// inputs, then the results.
pub type WriteKernel = fn(&CustomCall<'_>, Target) -> Result<(PtxKernel, Launch)>;

/// The kernel of a custom operation in PTX, one of [`CustomOperation::kernels`](kiln_ir::op::CustomOperation::kernels).
#[derive(Debug, Clone, Copy)]
pub struct CudaKernel(WriteKernel);

impl CudaKernel {
    /// A kernel that this function writes.
    ///
    /// # Safety
    /// For every call that the shape rule of the operation accepts the kernel ends, and reads and writes within its buffers
    /// alone: those of the inputs, which it does not write, and of the results.
    #[allow(unsafe_code)] // Only the caller knows what a kernel of another crate does.
    pub const unsafe fn new(write: WriteKernel) -> Self {
        Self(write)
    }

    pub(crate) fn write(&self, call: &CustomCall<'_>, target: Target) -> Result<(PtxKernel, Launch)> {
        (self.0)(call, target)
    }
}

/// A kernel that is loaded, and a launch of it on tensors of its device.
#[derive(Debug)]
pub struct CudaLaunch {
    function: Arc<Function>,
    launch: Launch,
    tensors: Vec<CudaTensor>,
}

impl CudaDevice {
    /// Loads a kernel, and keeps the arguments of its launch, which names tensors by their positions. Write the kernel for the
    /// target [`CudaDevice::target`].
    ///
    /// # Errors
    /// [`kiln_ir::Error::Unavailable`] for a tensor of another device, and if the driver is too old for the kernel;
    /// [`kiln_ir::Error::Driver`] with the message of the driver's compiler; [`kiln_ir::Error::DeviceLost`].
    ///
    /// # Safety
    /// Launched with these arguments the kernel ends, and reads and writes within these tensors alone. Nothing else uses those
    /// that it writes, slices of them included, except work that the same thread submits: work runs in the order of submission.
    #[allow(unsafe_code)] // Only the caller knows what a kernel of another crate does.
    pub unsafe fn prepare_kernel(
        &self,
        kernel: &dyn Kernel,
        launch: Launch,
        tensors: &[&CudaTensor],
    ) -> Result<CudaLaunch> {
        Driver::check_alive(self)?;
        self.check_own(tensors)?;
        let function = Arc::new(self.inner.kernels.make(kernel)?);
        Ok(CudaLaunch { function, launch, tensors: tensors.iter().copied().cloned().collect() })
    }
}

impl CudaLaunch {
    /// Launches the kernel once more. It does not wait for the device: [`CudaDevice::finish`] does.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Driver`] if the arguments of the launch do not fit the kernel, or the driver refuses;
    /// [`kiln_ir::Error::DeviceLost`].
    pub fn run(&mut self) -> Result<()> {
        let spans = self
            .tensors
            .iter()
            .map(|tensor| span(tensor.region(), 0, tensor.region().bytes()))
            .collect::<Result<Vec<_>>>()?;
        self.function.launch(&self.launch, &spans, Begins::Behind)
    }
}
