//! Tensors in device memory.

use kiln_ir::{Buffer, Error, Operand, Result, Shape, TensorType};

use crate::blocking_and_async;
use crate::driver::{Driver, Read, RegionOf, is_same};
use crate::waiting::Waiting;

/// A tensor in the memory of a device. Cloning it is cheap and gives the same memory, whose contents never change.
#[derive(Debug)]
pub struct Tensor<D: Driver> {
    device: D,
    region: RegionOf<D>,
    ty: TensorType,
}

impl<D: Driver> Clone for Tensor<D> {
    fn clone(&self) -> Self {
        Self { device: self.device.clone(), region: self.region.clone(), ty: self.ty }
    }
}

impl<D: Driver> Tensor<D> {
    /// A tensor in memory that a driver has allocated, contiguous from the first byte on.
    pub fn from_region(device: D, region: RegionOf<D>, ty: TensorType) -> Self {
        Self { device, region, ty }
    }

    /// The memory that it is in.
    pub fn region(&self) -> &RegionOf<D> {
        &self.region
    }

    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.ty.shape
    }

    /// The device that it is on.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The same elements in the same memory, with other extents.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements differs or rows of blocks would be cut.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        let ty = self.ty.reshaped(dims)?;
        Ok(Self { ty, ..self.clone() })
    }

    /// Copies an operand to a device.
    ///
    /// # Errors
    /// [`Error::Limit`] where it is too large for the device, [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn upload(device: &D, operand: &Operand<'_>) -> Result<Self> {
        let ty = operand.ty();
        let bytes = ty.bytes() as u64;
        let upload = || {
            let region = take(device, bytes)?;
            write(device, &region, operand.data().as_bytes())?;
            Ok(region)
        };
        let region = device.scoped("an upload", bytes, upload).await?;
        Ok(Self { device: device.clone(), region, ty })
    }

    /// A tensor with a part of its own on each device of a [`Group`](crate::Group): one operand for each, all of one type,
    /// which is that of the tensor. A single device takes one part.
    ///
    /// # Errors
    /// [`Error::Arity`] for another number of parts; [`Error::Type`] and [`Error::Shape`] where they differ; the errors of
    /// [`Tensor::upload`].
    pub async fn upload_parts(device: &D, parts: &[Operand<'_>]) -> Result<Self> {
        if parts.len() != device.parts() {
            return Err(Error::Arity { op: "parts of a tensor", expected: device.parts(), found: parts.len() });
        }
        let ty = TensorType::of_parts(parts.iter().map(Operand::ty))?;
        let bytes = ty.bytes() as u64;
        let upload = || {
            let region = take(device, bytes)?;
            for (number, part) in parts.iter().enumerate() {
                device.shared().counters.uploaded(ty.bytes());
                device.write_part(number, &region, part.data().as_bytes())?;
            }
            Ok(region)
        };
        let region = device.scoped("an upload", bytes, upload).await?;
        Ok(Self { device: device.clone(), region, ty })
    }

    /// Copies the elements to the host, for callers that say who drives the device.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`].
    pub async fn read_waiting(&self, waiting: Waiting) -> Result<Buffer> {
        let mut out = Buffer::zeros(&self.ty)?;
        read_into(&self.device, std::slice::from_ref(self), std::slice::from_mut(&mut out), waiting).await?;
        Ok(out)
    }

    /// Refuses a tensor of another device.
    ///
    /// # Errors
    /// [`Error::Unavailable`], which names both devices.
    pub fn check_on(&self, device: &D) -> Result<()> {
        if is_same(&self.device, device) {
            return Ok(());
        }
        Err(Error::Unavailable {
            what: format!("a tensor of {}", self.device.label()),
            reason: format!("{} cannot access it; read it and upload it there", device.label()),
        })
    }

    blocking_and_async! {
        /// Copies the elements to the host.
        ///
        /// # Errors
        /// [`Error::DeviceLost`], [`Error::OutOfMemory`].
        pub fn read, read_async(&self, waiting) -> Result<Buffer> {
            self.read_waiting(waiting).await
        }
    }
}

/// Allocates memory for a tensor.
pub(crate) fn take<D: Driver>(device: &D, bytes: u64) -> Result<RegionOf<D>> {
    device.check_alive()?;
    device.shared().pool.take(bytes, |bytes| device.allocate(bytes))
}

/// Writes the elements of a tensor to its memory, before all work that is submitted later.
pub(crate) fn write<D: Driver>(device: &D, to: &RegionOf<D>, bytes: &[u8]) -> Result<()> {
    device.shared().counters.uploaded(bytes.len());
    device.write(to, bytes)
}

/// Downloads several tensors of one device in one submission.
pub(crate) async fn read_many<D: Driver>(device: &D, tensors: &[Tensor<D>], waiting: Waiting) -> Result<Vec<Buffer>> {
    let mut outputs = tensors.iter().map(|tensor| Buffer::zeros(&tensor.ty)).collect::<Result<Vec<_>>>()?;
    read_into(device, tensors, &mut outputs, waiting).await?;
    Ok(outputs)
}

async fn read_into<D: Driver>(
    device: &D,
    tensors: &[Tensor<D>],
    outputs: &mut [Buffer],
    waiting: Waiting,
) -> Result<()> {
    device.check_alive()?;
    let mut outputs: Vec<_> = outputs.iter_mut().map(Buffer::as_mut).collect();
    let reads = tensors.iter().zip(&mut outputs);
    let mut reads: Vec<_> =
        reads.map(|(tensor, out)| Read { from: tensor.region.clone(), to: out.as_bytes() }).collect();
    device.read(&mut reads, waiting).await
}
