//! Device memory that executions of graphs change, such as the data that a model keeps from one step to the next.

use kiln_ir::{Buffer, Data, Error, Operand, Result, TensorType};

use crate::blocking_and_async;
use crate::driver::Driver;
use crate::tensor::{Tensor, take, write};
use crate::waiting::Waiting;

/// Number of zero bytes that are written at once.
const ZEROS: usize = 1 << 20;

/// A tensor in the memory of a device that executions of graphs change, such as the keys and values of a language model. Several
/// batches may use it ([`Batch::state`](crate::Batch::state)): their executions run one after another, each on what the one
/// before left.
///
/// Cloning it is cheap and gives the same memory.
#[derive(Debug)]
pub struct State<D: Driver>(Tensor<D>);

impl<D: Driver> Clone for State<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Driver> State<D> {
    /// A tensor that shares the memory of the state, so its elements change.
    pub(crate) fn tensor(&self) -> &Tensor<D> {
        &self.0
    }

    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        self.0.ty()
    }

    /// The device that it is on.
    pub fn device(&self) -> &D {
        self.0.device()
    }

    /// A state of zeros, for callers that say who drives the device.
    ///
    /// # Errors
    /// The errors of [`State::zeros_async`].
    pub async fn zeros_on(device: &D, ty: TensorType) -> Result<Self> {
        let bytes = ty.bytes();
        let make = || {
            let region = take(device, bytes as u64)?;
            let zeros = vec![0; bytes.min(ZEROS)];
            for from in (0..bytes).step_by(ZEROS) {
                let len = ZEROS.min(bytes - from);
                let misaligned = || Error::View { what: "state", reason: format!("byte {from} is not aligned") };
                let part = region.part(from as u64, len as u64, device.view_alignment()).ok_or_else(misaligned)?;
                write(device, &part, &zeros[..len])?;
            }
            Ok(region)
        };
        let region = device.scoped("a state", bytes as u64, make).await?;
        Ok(Self(Tensor::from_region(device.clone(), region, ty)))
    }

    /// A state that begins with these elements, for callers that say who drives the device.
    ///
    /// # Errors
    /// The errors of [`State::zeros_async`].
    pub async fn upload_to(device: &D, operand: &Operand<'_>) -> Result<Self> {
        Ok(Self(Tensor::upload(device, operand).await?))
    }

    /// Copies the elements to the host, for callers that say who drives the device.
    ///
    /// # Errors
    /// The errors of [`State::read_async`].
    pub async fn read_waiting(&self, waiting: Waiting) -> Result<Buffer> {
        self.0.read_waiting(waiting).await
    }

    blocking_and_async! {
        /// A state of zeros.
        ///
        /// # Errors
        /// [`Error::Limit`] where it is too large for the device, [`Error::OutOfMemory`], [`Error::DeviceLost`].
        pub fn zeros, zeros_async(_waiting, device: &D, ty: TensorType) -> Result<Self> {
            Self::zeros_on(device, ty).await
        }

        /// A state that begins with these elements.
        ///
        /// # Errors
        /// The errors of [`State::zeros_async`].
        pub fn upload, upload_async(_waiting, device: &D, operand: &Operand<'_>) -> Result<Self> {
            Self::upload_to(device, operand).await
        }

        /// Replaces the elements, after all work that is submitted already.
        ///
        /// # Errors
        /// [`Error::Type`] and [`Error::Length`] where the elements do not fit, [`Error::DeviceLost`].
        pub fn set, set_async(&self, _waiting, data: Data<'_>) -> Result<()> {
            let ty = self.ty();
            if data.dtype() != ty.dtype {
                return Err(Error::Type { op: "set", index: 0, expected: ty.dtype, found: data.dtype() });
            }
            Operand::new(data, ty.shape)?;
            let device = self.device();
            device.check_alive()?;
            let upload = || write(device, self.0.region(), data.as_bytes());
            device.scoped("an upload", ty.bytes() as u64, upload).await
        }

        /// Copies the elements to the host, after all work that is submitted already.
        ///
        /// # Errors
        /// [`Error::DeviceLost`], [`Error::OutOfMemory`].
        pub fn read, read_async(&self, waiting) -> Result<Buffer> {
            self.read_waiting(waiting).await
        }
    }
}
