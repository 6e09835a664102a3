//! States: tensors that executions of batches change.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kiln_device::waiting::Waiting;
use kiln_ir::{Buffer, DType, Data, Error, Operand, Result, Shape, TensorType};
use kiln_route::Residency;

use crate::Engine;
use crate::gpus::{self, Fault, Gpu, Resident};
#[cfg(not(browser_gpu))]
use crate::gpus::{WAITING, wait};

/// A tensor that executions of batches change, such as the keys and values of a language model. It is on the host or on one device,
/// depending on where the last batch that used it ran.
///
/// Several batches may use it ([`Batch::state`](crate::Batch::state)), one at a time: each execution sees the changes of earlier ones.
/// Cloning it is cheap; clones refer to the same elements.
///
/// ```
/// use kiln::{DType, Engine, Record, State};
///
/// # fn main() -> kiln::Result<()> {
/// let engine = Engine::new()?;
/// let state = State::zeros(DType::F32, &[3, 2])?;
/// let mut batch = engine.batch();
/// let rows = batch.state(&state);
/// let new = batch.upload(&[1.0, 2.0], &[1, 2])?;
/// let position = batch.upload_indices(&[2], &[1])?;
/// let rows = batch.write_rows(rows, new, position)?;
/// let sums = batch.sum_axis(rows, 0)?;
/// batch.execute(&[sums])?;
/// assert_eq!(batch.read(sums)?, [1.0, 2.0]);
/// batch.set_data(position, kiln::Data::U32(&[0]))?;
/// batch.execute(&[sums])?;
/// assert_eq!(batch.read(sums)?, [2.0, 4.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct State {
    ty: TensorType,
    held: Arc<Mutex<Held>>,
}

/// The elements of a state.
enum Held {
    /// Zeros that have no memory yet.
    Zeros,
    Host(Buffer),
    Device(Gpu, Resident),
    /// An execution has taken them.
    InUse,
}

/// The elements of a state during an execution. Dropping it returns them to the state.
pub(crate) struct Taken {
    state: State,
    held: Held,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({} {} on {})", self.ty.dtype, self.ty.shape, self.residency())
    }
}

impl State {
    fn new(ty: TensorType, held: Held) -> Self {
        Self { ty, held: Arc::new(Mutex::new(held)) }
    }

    /// Makes a state of zeros. Its memory is allocated on the device that first uses it.
    ///
    /// # Errors
    /// [`Error::Overflow`] when the extents overflow, [`Error::Format`] for rows that are not whole blocks.
    pub fn zeros(dtype: DType, dims: &[usize]) -> Result<Self> {
        Ok(Self::new(TensorType::of(dtype, Shape::new(dims)?)?, Held::Zeros))
    }

    /// Makes a state with these elements.
    ///
    /// # Errors
    /// [`Error::Length`] when they do not fill the extents.
    pub fn from_buffer(elements: Buffer, dims: &[usize]) -> Result<Self> {
        let ty = Operand::new(elements.as_data(), Shape::new(dims)?)?.ty();
        Ok(Self::new(ty, Held::Host(elements)))
    }

    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.ty.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The location of the elements: `host`, the name of a placement, `nowhere` before the first use, or `an execution` while one uses
    /// them.
    pub fn residency(&self) -> String {
        match &*self.held() {
            Held::Zeros => "nowhere".into(),
            Held::Host(_) => "host".into(),
            Held::Device(gpu, _) => gpu.name().into(),
            Held::InUse => "an execution".into(),
        }
    }

    /// Replaces the elements.
    ///
    /// # Errors
    /// [`Error::Type`] and [`Error::Length`] where the elements do not fit; [`Error::Unavailable`] while an execution uses the
    /// state; [`Error::OutOfMemory`].
    pub fn set(&self, data: Data<'_>) -> Result<()> {
        if data.dtype() != self.ty.dtype {
            return Err(Error::Type { op: "set", index: 0, expected: self.ty.dtype, found: data.dtype() });
        }
        Operand::new(data, self.ty.shape)?;
        let mut taken = self.take()?;
        taken.held = Held::Host(data.to_buffer()?);
        Ok(())
    }

    /// The elements, copied to the host.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if they were on a lost device; [`Error::Unavailable`] while an execution uses the state;
    /// [`Error::OutOfMemory`].
    pub async fn to_buffer_async(&self) -> Result<Buffer> {
        self.buffer(Waiting::Elsewhere).await
    }

    /// The elements, copied to the host.
    ///
    /// # Errors
    /// The errors of [`State::to_buffer_async`].
    #[cfg(not(browser_gpu))]
    pub fn to_buffer(&self) -> Result<Buffer> {
        wait(self.buffer(WAITING))
    }

    pub(crate) async fn buffer(&self, waiting: Waiting) -> Result<Buffer> {
        let taken = self.take()?;
        match &taken.held {
            Held::Host(buffer) => buffer.as_data().to_buffer(),
            Held::Device(_, resident) => resident.read(waiting).await.map_err(|error| self.lost(error)),
            Held::Zeros | Held::InUse => Buffer::zeros(&self.ty),
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.held, &other.held)
    }

    /// Takes the elements for an execution.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while another execution has them.
    pub(crate) fn take(&self) -> Result<Taken> {
        match std::mem::replace(&mut *self.held(), Held::InUse) {
            Held::InUse => Err(Error::Unavailable {
                what: format!("the state {} {}", self.ty.dtype, self.ty.shape),
                reason: "another execution is using it; run one after the other".into(),
            }),
            held => Ok(Taken { state: self.clone(), held }),
        }
    }

    /// Records the location of operand `index` for the router. Zeros are created on the device that uses them.
    pub(crate) fn placed(&self, engine: &Engine, residency: Residency, index: usize) -> Residency {
        match &*self.held() {
            Held::Zeros => (0..engine.gpus.len()).fold(residency, |all, gpu| all.copied(index, gpus::memory(gpu))),
            Held::Device(gpu, _) => match engine.position(gpu) {
                Some(position) => residency.moved(index, gpus::memory(position)),
                None => residency,
            },
            Held::Host(_) | Held::InUse => residency,
        }
    }

    /// Adds what was lost to the error of a lost device.
    fn lost(&self, error: Error) -> Error {
        match error {
            Error::DeviceLost { device, reason } => Error::DeviceLost {
                device,
                reason: format!("{reason}; a state {} of {} was in its memory", self.ty.shape, self.ty.dtype),
            },
            error => error,
        }
    }
}

impl Taken {
    /// Downloads the elements to the host.
    pub(crate) async fn bring_to_host(&mut self, waiting: Waiting) -> Result<(), Fault> {
        let on_host = match &self.held {
            Held::Device(gpu, resident) => {
                let lost = |error| Fault::of(gpu)(self.state.lost(error));
                resident.read(waiting).await.map_err(lost)?
            }
            Held::Zeros => Buffer::zeros(&self.state.ty)?,
            Held::Host(_) | Held::InUse => return Ok(()),
        };
        self.held = Held::Host(on_host);
        Ok(())
    }

    /// The elements, if they are on the host.
    pub(crate) fn on_host(&mut self) -> Option<&mut Buffer> {
        match &mut self.held {
            Held::Host(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The elements in the memory of a GPU; uploads them if they are elsewhere.
    pub(crate) async fn on_gpu(&mut self, gpu: &Gpu, waiting: Waiting) -> Result<Resident, Fault> {
        if let Held::Device(holder, resident) = &self.held
            && holder.is(gpu)
        {
            return Ok(resident.clone());
        }
        if let Held::Device(..) = &self.held {
            self.bring_to_host(waiting).await?;
        }
        let elements = match &self.held {
            Held::Host(buffer) => Some(buffer.as_data()),
            _ => None,
        };
        let resident = gpu.state(elements, self.state.ty, waiting).await.map_err(Fault::of(gpu))?;
        self.held = Held::Device(gpu.clone(), resident.clone());
        Ok(resident)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let held = std::mem::replace(&mut self.held, Held::Zeros);
        *self.state.held() = held;
    }
}
