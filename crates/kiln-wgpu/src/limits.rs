//! What a device can do at most: what measured figures are held against.

use kiln_core::Result;

use crate::memory::{DeviceBuffer, Region};
#[cfg(not(target_arch = "wasm32"))]
use crate::runtime::block_on;
use crate::{GpuDevice, GpuTensor};

/// A copy within the memory of a device, without a kernel: every byte of a tensor is read once and written once. No
/// operation that touches as many bytes of the memory is faster.
#[derive(Debug)]
pub struct DeviceCopy {
    device: GpuDevice,
    from: Region,
    to: DeviceBuffer,
    bytes: u64,
}

impl DeviceCopy {
    /// Takes memory for a copy of a tensor.
    ///
    /// # Errors
    /// [`kiln_core::Error::Limit`], [`kiln_core::Error::OutOfMemory`], [`kiln_core::Error::DeviceLost`].
    pub async fn of_async(tensor: &GpuTensor) -> Result<Self> {
        let device = tensor.device.clone();
        let bytes = (tensor.ty.bytes() as u64).next_multiple_of(4);
        let to = device.scoped("memory for a copy", bytes, || device.take(bytes)).await?;
        Ok(Self { device, from: tensor.region.clone(), to, bytes })
    }

    /// Bytes that one copy reads, and as many that it writes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies once more. It does not wait for the device: [`GpuDevice::finish_async`] does.
    ///
    /// # Errors
    /// [`kiln_core::Error::DeviceLost`].
    pub async fn run_async(&self) -> Result<()> {
        let inner = &self.device.inner;
        let submit = || {
            let mut encoder = inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(self.from.raw(), self.from.offset, self.to.raw(), 0, self.bytes);
            inner.submit(encoder.finish());
            inner.counters.submitted(1, 0);
            Ok(())
        };
        self.device.scoped("a copy", self.bytes, submit).await
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl DeviceCopy {
    /// As [`DeviceCopy::of_async`].
    ///
    /// # Errors
    /// As there.
    pub fn of(tensor: &GpuTensor) -> Result<Self> {
        block_on(Self::of_async(tensor))
    }

    /// As [`DeviceCopy::run_async`].
    ///
    /// # Errors
    /// As there.
    pub fn run(&self) -> Result<()> {
        block_on(self.run_async())
    }
}
