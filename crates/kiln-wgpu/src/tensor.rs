//! Tensors that stay on a device.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use kiln_ir::graph::TensorId;
use kiln_ir::op::{Op, Outputs};
use kiln_ir::{Buffer, DType, DataMut, Error, Operand, Result, Shape, TensorType};

use crate::execute::{Executable, write};
use crate::host_copy;
use crate::memory::Region;
use crate::plan::Plan;
use crate::readbacks::{Readback, groups};
#[cfg(not(target_arch = "wasm32"))]
use crate::runtime::block_on;
use crate::wait::Waiting;
use crate::{GpuDevice, GpuProfile};

/// A tensor in the memory of a device. Cloning it is cheap and gives the same memory, which nothing changes.
#[derive(Debug, Clone)]
pub struct GpuTensor {
    pub(crate) device: GpuDevice,
    pub(crate) region: Region,
    pub(crate) ty: TensorType,
}

impl GpuTensor {
    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.ty.shape
    }

    /// The device that it lies on.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// The same elements, where they lie, with other extents.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements differs or rows of blocks would be cut.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        let ty = self.ty.reshaped(dims)?;
        Ok(Self { ty, ..self.clone() })
    }

    /// The entries `range` along the first axis: rows of a matrix, elements of a vector. They are seen where they lie if
    /// a kernel can begin to read there, which most devices ask to be a multiple of 16 to 256 bytes; else they are copied
    /// on the device.
    ///
    /// # Errors
    /// [`Error::View`] when the range is not within the first extent, or there is none, or an odd number of f16 stands before
    /// it; [`Error::Format`] when blocks would be cut, or begin in the middle of a word where they have to be copied;
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn slice_async(&self, range: Range<usize>) -> Result<Self> {
        let (offset, ty) = self.ty.entries(range.clone())?;
        let bytes = ty.bytes() as u64;
        let inner = &self.device.inner;
        if let Some(region) = self.region.part(offset, bytes, &inner.limits) {
            return Ok(Self { region, ty, ..self.clone() });
        }
        if bytes > 0 && !offset.is_multiple_of(4) {
            let reason = format!("entry {} begins at byte {offset}, in the middle of a word", range.start);
            return Err(match ty.dtype {
                DType::Blocks(format) => Error::Format { format: format.name(), reason },
                _ => Error::View { what: "slice", reason },
            });
        }
        let copied = self.device.scoped("a slice", bytes, || {
            let region = Region::from(self.device.take(bytes)?);
            if bytes > 0 {
                let mut encoder = inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                let (from, words) = (self.region.offset + offset, bytes.next_multiple_of(4));
                encoder.copy_buffer_to_buffer(self.region.raw(), from, region.raw(), 0, words);
                inner.submit(encoder.finish());
                inner.counters.submitted(1, 0);
            }
            Ok(region)
        });
        Ok(Self { region: copied.await?, ty, ..self.clone() })
    }

    /// Copies the elements to the host.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`].
    pub async fn read_async(&self) -> Result<Buffer> {
        self.read_with(Waiting::Elsewhere).await
    }

    async fn read_with(&self, waiting: Waiting) -> Result<Buffer> {
        let mut out = Buffer::zeros(&self.ty)?;
        self.device.read_into(std::slice::from_ref(self), std::slice::from_mut(&mut out), waiting).await?;
        Ok(out)
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl GpuTensor {
    /// As [`GpuTensor::slice_async`].
    ///
    /// # Errors
    /// As there.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        block_on(self.slice_async(range))
    }

    /// As [`GpuTensor::read_async`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self) -> Result<Buffer> {
        block_on(self.read_with(Waiting::Here))
    }
}

impl GpuDevice {
    /// Copies a tensor to the device.
    ///
    /// # Errors
    /// [`Error::Limit`] where it is too large for the device, [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn upload_async(&self, operand: &Operand<'_>) -> Result<GpuTensor> {
        let ty = operand.ty();
        let data = operand.data();
        let region = self.scoped("an upload", ty.bytes() as u64, || {
            let region = Region::from(self.take(ty.bytes() as u64)?);
            write(self, &region, data.as_bytes());
            Ok(region)
        });
        Ok(GpuTensor { device: self.clone(), region: region.await?, ty })
    }

    /// Reads tensors of this device.
    pub(crate) async fn read_many(&self, tensors: &[GpuTensor], waiting: Waiting) -> Result<Vec<Buffer>> {
        let mut outputs = tensors.iter().map(|tensor| Buffer::zeros(&tensor.ty)).collect::<Result<Vec<_>>>()?;
        self.read_into(tensors, &mut outputs, waiting).await?;
        Ok(outputs)
    }

    /// Reads tensors of this device in one submission and one mapping, or in as few as its largest buffer allows.
    async fn read_into(&self, tensors: &[GpuTensor], outputs: &mut [Buffer], waiting: Waiting) -> Result<()> {
        let inner = &self.inner;
        let sizes = tensors.iter().map(|tensor| tensor.ty.bytes() as u64);
        for group in groups(0, sizes, inner.limits.max_buffer_size) {
            if group.bytes == 0 {
                self.check_alive()?;
                continue;
            }
            let copied = self.scoped("reading tensors", group.bytes, || {
                let to = Readback::new(self, group.bytes);
                let mut encoder = inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                for place in group.places.iter().filter(|place| place.bytes > 0) {
                    let from = &tensors[place.number].region;
                    encoder.copy_buffer_to_buffer(from.raw(), from.offset, to.raw(), place.start, place.words());
                }
                inner.submit(encoder.finish());
                inner.counters.submitted(1, 0);
                Ok(to)
            });
            let see = |bytes: &[u8]| {
                group.places.iter().for_each(|place| copy_to(place.of(bytes), &mut outputs[place.number].as_mut()));
            };
            copied.await?.see(waiting, see).await?;
        }
        Ok(())
    }

    /// Runs an operation on tensors of this device; its results stay there.
    ///
    /// # Errors
    /// What the shape rule says; [`Error::Unavailable`] for a tensor of another device; [`Error::Index`] for an index
    /// outside of its table; [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn run_async(&self, op: &Op, inputs: &[&GpuTensor]) -> Result<Vec<GpuTensor>> {
        self.run_with(op, inputs, Waiting::Elsewhere).await
    }

    /// Why a tensor of another device is refused.
    pub(crate) fn stranger(&self, tensor: &GpuTensor) -> Error {
        Error::Unavailable {
            what: format!("a tensor of {}", tensor.device.adapter().name),
            reason: format!("{} cannot see it; read it and upload it there", self.adapter().name),
        }
    }

    async fn run_with(&self, op: &Op, inputs: &[&GpuTensor], waiting: Waiting) -> Result<Vec<GpuTensor>> {
        let mut operation = self.prepare_async(op, inputs).await?;
        operation.executable.run(&[], waiting, |_, _| {}).await?;
        Ok(operation.results())
    }

    /// Compiles the kernels of operations on operands of these types, by several threads, so that none of them has to be
    /// compiled when it runs first.
    ///
    /// # Errors
    /// What the shape rules say; [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn compile_ahead_async(&self, operations: &[(Op, &[TensorType])]) -> Result<()> {
        self.check_alive()?;
        let plan = |(op, types): &(Op, &[TensorType])| Ok(Plan::of_operation(op, types, self.inner.target())?.1);
        let plans = operations.iter().map(plan).collect::<Result<Vec<_>>>()?;
        let dispatches = plans.iter().flat_map(|plan| &plan.dispatches);
        self.pipelines(dispatches.map(|dispatch| &dispatch.code)).await.map(drop)
    }

    /// Makes an operation on tensors of this device ready to run, again and again.
    ///
    /// # Errors
    /// As [`GpuDevice::run_async`].
    pub async fn prepare_async(&self, op: &Op, inputs: &[&GpuTensor]) -> Result<GpuOperation> {
        self.check_alive()?;
        if let Some(stranger) = inputs.iter().find(|input| !Arc::ptr_eq(&input.device.inner, &self.inner)) {
            return Err(self.stranger(stranger));
        }
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let outputs = op.infer(&types)?;
        let (ids, plan) = Plan::of_operation(op, &types, self.inner.target())?;
        let given: HashMap<TensorId, Region> =
            ids.into_iter().zip(inputs.iter().map(|input| input.region.clone())).collect();
        let executable = Executable::new(self, &plan, &given).await?;
        Ok(GpuOperation { device: self.clone(), executable, outputs })
    }
}

/// An operation on tensors of a device, with its kernels compiled and its memory taken.
#[derive(Debug)]
pub struct GpuOperation {
    device: GpuDevice,
    executable: Executable,
    outputs: Outputs,
}

impl GpuOperation {
    /// Runs it once more, over the results of the last time. Unless its data can be at fault it does not wait for the
    /// device: [`GpuDevice::finish_async`] does.
    ///
    /// # Errors
    /// As [`GpuDevice::run_async`].
    pub async fn run_async(&mut self) -> Result<()> {
        self.executable.run(&[], Waiting::Elsewhere, |_, _| {}).await
    }

    /// Runs it so many times in one go, for those who measure it: a clock that is coarser than one run is outlasted. Does not
    /// wait for the device, and tells no fault of the data.
    ///
    /// # Errors
    /// As [`GpuDevice::run_async`], without [`kiln_ir::Error::Index`].
    pub async fn repeat_async(&mut self, times: usize) -> Result<()> {
        self.executable.repeat(times).await
    }

    /// How long each of its kernels took when it ran last, on a device that was opened with
    /// [`crate::DeviceOptions::profile`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] on another device, [`Error::Parameter`] where it did not run yet, [`Error::DeviceLost`].
    pub async fn profile_async(&self) -> Result<GpuProfile> {
        self.executable.profile(Waiting::Elsewhere).await
    }

    /// Its results, which are there once it ran. They change when it runs again.
    pub fn results(&self) -> Vec<GpuTensor> {
        let tensor = |((region, _), &ty): (&(Region, u64), &TensorType)| GpuTensor {
            device: self.device.clone(),
            region: region.clone(),
            ty,
        };
        self.executable.results().iter().zip(self.outputs.iter()).map(tensor).collect()
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl GpuOperation {
    /// As [`GpuOperation::run_async`].
    ///
    /// # Errors
    /// As there.
    pub fn run(&mut self) -> Result<()> {
        block_on(self.executable.run(&[], Waiting::Here, |_, _| {}))
    }

    /// As [`GpuOperation::repeat_async`].
    ///
    /// # Errors
    /// As there.
    pub fn repeat(&mut self, times: usize) -> Result<()> {
        block_on(self.repeat_async(times))
    }

    /// As [`GpuOperation::profile_async`].
    ///
    /// # Errors
    /// As there.
    pub fn profile(&self) -> Result<GpuProfile> {
        block_on(self.executable.profile(Waiting::Here))
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl GpuDevice {
    /// As [`GpuDevice::upload_async`].
    ///
    /// # Errors
    /// As there.
    pub fn upload(&self, operand: &Operand<'_>) -> Result<GpuTensor> {
        block_on(self.upload_async(operand))
    }

    /// As [`GpuDevice::compile_ahead_async`].
    ///
    /// # Errors
    /// As there.
    pub fn compile_ahead(&self, operations: &[(Op, &[TensorType])]) -> Result<()> {
        block_on(self.compile_ahead_async(operations))
    }

    /// As [`GpuDevice::prepare_async`].
    ///
    /// # Errors
    /// As there.
    pub fn prepare(&self, op: &Op, inputs: &[&GpuTensor]) -> Result<GpuOperation> {
        block_on(self.prepare_async(op, inputs))
    }

    /// As [`GpuDevice::run_async`].
    ///
    /// # Errors
    /// As there.
    pub fn run(&self, op: &Op, inputs: &[&GpuTensor]) -> Result<Vec<GpuTensor>> {
        block_on(self.run_with(op, inputs, Waiting::Here))
    }
}

/// Copies what a device stored, up to whole words, into elements.
pub(crate) fn copy_to(stored: &[u8], out: &mut DataMut<'_>) {
    host_copy::read(stored, out.as_bytes());
}
