//! A copy within device memory: the bandwidth that measured figures are compared with.

use kiln_ir::Result;

use crate::{CudaTensor, Region, span};
use kiln_device::Driver;

/// A copy within the memory of a device: it reads and writes every byte of a tensor once. No operation that reads and
/// writes as much is faster.
#[derive(Debug)]
pub struct DeviceCopy {
    from: CudaTensor,
    to: Region,
}

impl DeviceCopy {
    /// Allocates memory for a copy of a tensor.
    ///
    /// # Errors
    /// [`kiln_ir::Error::OutOfMemory`], [`kiln_ir::Error::DeviceLost`].
    pub fn of(tensor: &CudaTensor) -> Result<Self> {
        let device = tensor.device();
        device.check_alive()?;
        let bytes = tensor.ty().bytes() as u64;
        let to = device.shared().pool.take(bytes, |bytes| device.allocate(bytes))?;
        Ok(Self { to, from: tensor.clone() })
    }

    /// Bytes that one copy reads, and as many that it writes.
    pub fn bytes(&self) -> u64 {
        self.from.ty().bytes() as u64
    }

    /// Copies once more. It does not wait for the device: [`crate::CudaDevice::finish`] does.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub fn run(&mut self) -> Result<()> {
        let bytes = self.bytes();
        if bytes == 0 {
            return Ok(());
        }
        span(&self.to, 0, bytes)?.copy_from(&span(self.from.region(), 0, bytes)?)
    }
}
