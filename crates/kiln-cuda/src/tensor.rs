//! Tensors that stay on a device.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use kiln_ir::graph::TensorId;
use kiln_ir::op::{Op, Outputs};
use kiln_ir::{Buffer, Error, Operand, Result, Shape, TensorType};

use crate::execute::Executable;
use crate::memory::Region;
use crate::plan::Plan;
use crate::{CudaDevice, CudaProfile};

/// A tensor in the memory of a device. Cloning it is cheap and gives the same memory, which nothing changes.
#[derive(Debug, Clone)]
pub struct CudaTensor {
    pub(crate) device: CudaDevice,
    pub(crate) region: Region,
    pub(crate) ty: TensorType,
}

impl CudaTensor {
    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.ty.shape
    }

    /// The device that it lies on.
    pub fn device(&self) -> &CudaDevice {
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
    /// they begin at a multiple of 16 bytes; else they are copied on the device.
    ///
    /// # Errors
    /// [`Error::View`] when the range is not within the first extent, or there is none; [`Error::Format`] when blocks would
    /// be cut; [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        let (offset, ty) = self.ty.entries(range)?;
        let bytes = ty.bytes() as u64;
        if let Some(region) = self.region.part(offset, bytes) {
            return Ok(Self { region, ty, ..self.clone() });
        }
        let region = self.device.take(bytes)?;
        if bytes > 0 {
            region.span(0, bytes)?.copy_from(&self.region.span(offset, bytes)?)?;
        }
        Ok(Self { region, ty, ..self.clone() })
    }

    /// Copies the elements to the host.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`].
    pub fn read(&self) -> Result<Buffer> {
        self.device.check_alive()?;
        let mut out = Buffer::zeros(&self.ty)?;
        self.device.inner.staging.download(&mut [(&self.region, out.as_mut().as_bytes())])?;
        Ok(out)
    }
}

impl CudaDevice {
    /// Copies a tensor to the device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn upload(&self, operand: &Operand<'_>) -> Result<CudaTensor> {
        let ty = operand.ty();
        let region = self.take(ty.bytes() as u64)?;
        self.inner.staging.upload(operand.data().as_bytes(), &region)?;
        Ok(CudaTensor { device: self.clone(), region, ty })
    }

    /// Runs an operation on tensors of this device; its results stay there. Unless its data can be at fault it does not wait
    /// for the device: [`CudaDevice::finish`] does.
    ///
    /// # Errors
    /// What the shape rule says; [`Error::Unavailable`] for a tensor of another device; [`Error::Index`] for an index
    /// outside of its table; [`Error::Unsupported`], [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn run(&self, op: &Op, inputs: &[&CudaTensor]) -> Result<Vec<CudaTensor>> {
        let mut operation = self.prepare(op, inputs)?;
        operation.run()?;
        Ok(operation.results())
    }

    /// Refuses tensors of another device.
    pub(crate) fn check_own(&self, tensors: &[&CudaTensor]) -> Result<()> {
        let stranger = tensors.iter().find(|tensor| !Arc::ptr_eq(&tensor.device.inner, &self.inner));
        stranger.map_or(Ok(()), |stranger| Err(self.stranger(stranger)))
    }

    /// Why a tensor of another device is refused.
    pub(crate) fn stranger(&self, tensor: &CudaTensor) -> Error {
        Error::Unavailable {
            what: format!("a tensor of {}", tensor.device.info()),
            reason: format!("{} cannot see it; read it and upload it there", self.info()),
        }
    }

    /// Compiles the kernels of operations on operands of these types, so that none of them has to be compiled when it runs
    /// first.
    ///
    /// # Errors
    /// What the shape rules say; [`Error::Unsupported`], [`Error::Driver`], [`Error::DeviceLost`].
    pub fn compile_ahead(&self, operations: &[(Op, &[TensorType])]) -> Result<()> {
        for (op, types) in operations {
            let (_, plan) = Plan::of_operation(op, types, self.inner.hardware)?;
            plan.dispatches.iter().try_for_each(|dispatch| self.inner.kernels.get(&dispatch.code).map(drop))?;
        }
        Ok(())
    }

    /// Makes an operation on tensors of this device ready to run, again and again.
    ///
    /// # Errors
    /// As [`CudaDevice::run`].
    pub fn prepare(&self, op: &Op, inputs: &[&CudaTensor]) -> Result<CudaOperation> {
        self.check_alive()?;
        self.check_own(inputs)?;
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let outputs = op.infer(&types)?;
        let (ids, plan) = Plan::of_operation(op, &types, self.inner.hardware)?;
        let given: HashMap<TensorId, Region> =
            ids.into_iter().zip(inputs.iter().map(|input| input.region.clone())).collect();
        Ok(CudaOperation { executable: Executable::new(self, plan, &given)?, device: self.clone(), outputs })
    }
}

/// An operation on tensors of a device, with its kernels compiled and its memory taken.
#[derive(Debug)]
pub struct CudaOperation {
    device: CudaDevice,
    executable: Executable,
    outputs: Outputs,
}

impl CudaOperation {
    /// Runs it once more, over the results of the last time. Unless its data can be at fault it does not wait for the
    /// device: [`CudaDevice::finish`] does.
    ///
    /// # Errors
    /// As [`CudaDevice::run`].
    pub fn run(&mut self) -> Result<()> {
        self.executable.run(&mut [])
    }

    /// How long each of its kernels took when it ran last, on a device that was opened with
    /// [`crate::DeviceOptions::profile`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] on another device, [`Error::Parameter`] where it did not run yet, [`Error::DeviceLost`].
    pub fn profile(&self) -> Result<CudaProfile> {
        self.executable.profile()
    }

    /// Its results, which are there once it ran. They change when it runs again.
    pub fn results(&self) -> Vec<CudaTensor> {
        let tensor = |((region, _), &ty): (&(Region, u64), &TensorType)| CudaTensor {
            device: self.device.clone(),
            region: region.clone(),
            ty,
        };
        self.executable.results().iter().zip(self.outputs.iter()).map(tensor).collect()
    }
}
