//! Buffers that kiln shares with other wgpu code: its buffers as tensors, and tensors as its buffers.

use kiln_ir::{Error, Result, Shape, TensorType};

use crate::{GpuDevice, GpuTensor, Region};

impl GpuDevice {
    /// The underlying device of wgpu, for buffers and pipelines of your own. Destroying it loses the device.
    pub fn wgpu_device(&self) -> &wgpu::Device {
        &self.inner.device
    }

    /// The queue of that device. Work runs in the order of submissions, including those of kiln. kiln delays small uploads until
    /// its next submission; [`GpuDevice::wgpu_buffer`] submits them, so commands that are submitted after it see the tensor, also
    /// through a queue that was obtained earlier.
    pub fn wgpu_queue(&self) -> &wgpu::Queue {
        &self.inner.queue
    }

    /// A tensor of f32 in a buffer of [`GpuDevice::wgpu_device`], from its first byte on, row-major. The buffer is not copied:
    /// operations read its contents when they run, and never write it. Submissions before or after may write it; it must not be
    /// mapped while an operation is submitted.
    ///
    /// # Errors
    /// [`Error::Parameter`] unless the buffer is for `STORAGE` and `COPY_SRC` and has the bytes of the tensor, in whole vectors
    /// of 16 bytes. The first use of a buffer of another device returns [`Error::Driver`].
    pub fn import_buffer(&self, buffer: wgpu::Buffer, dims: &[usize]) -> Result<GpuTensor> {
        let ty = TensorType::f32(Shape::new(dims)?);
        let refused = |reason: String| Err(Error::Parameter { op: "import_buffer", reason });
        let needed = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        if !buffer.usage().contains(needed) {
            return refused(format!("the usages of the buffer are {:?}, {needed:?} are needed", buffer.usage()));
        }
        let bytes = (ty.bytes() as u64).max(1).next_multiple_of(16);
        if buffer.size() < bytes {
            return refused(format!("the buffer has {} bytes, {bytes} are needed", buffer.size()));
        }
        Ok(GpuTensor::from_region(self.clone(), Region::unpooled(buffer, bytes), ty))
    }

    /// The part of a buffer of [`GpuDevice::wgpu_device`] that a tensor is in, row-major: to bind, to draw from or to copy.
    /// Writing to it changes the tensor and all its clones and views. Once they are all dropped kiln reuses the memory for
    /// work that it submits later. Uploads that kiln keeps back until its next submission are submitted first.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a tensor of another device.
    pub fn wgpu_buffer<'a>(&self, tensor: &'a GpuTensor) -> Result<wgpu::BufferSlice<'a>> {
        self.check_own(&[tensor])?;
        self.inner.submit_uploads();
        let region = tensor.region();
        Ok(region.memory()?.slice(region.offset()..region.offset() + region.bytes()))
    }
}
