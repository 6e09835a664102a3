//! Tensors of an engine: on the host, in the memory of devices, or both.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use kiln_device::waiting::Waiting;
#[cfg(not(browser_gpu))]
use kiln_ir::Record;
use kiln_ir::op::{Call, Op};
use kiln_ir::{Buffer, DType, Data, DataMut, Element, Error, Operand, QuantFormat, Result, Shape, TensorType};
use kiln_route::{Explanation, Problem, Residency};

use crate::gpus::{self, Fault, Gpu, Resident, WAITING, wait};
use crate::{Engine, MemoryUse};

/// Bytes that a tensor shares with their owner, such as a memory map.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A tensor: shape, element type, and elements on the host, in the memory of devices, or both. The elements never change. Cloning it is
/// cheap; clones refer to the same elements.
///
/// A tensor is copied to a device once, when an operation there first reads it; the copy on the host is then dropped, unless
/// [`Tensor::keep_on_host`] asked to keep it. Results stay on the device that computed them until they are read. Memory is freed
/// with the last tensor that uses it; [`Engine::memory_use`] reports what each device holds.
///
/// ```
/// use kiln::{Engine, Record, Tensor};
///
/// # fn main() -> kiln::Result<()> {
/// let engine = Engine::new()?;
/// let mut on = engine.tensors();
/// let x = Tensor::from_slice(&[1.0, -2.0, 3.0, -4.0], &[2, 2])?;
/// let y = on.scale(&x, 0.5)?;
/// let y = on.relu(&y)?;
/// assert_eq!(y.to_vec()?, [0.5, 0.0, 1.5, 0.0]);
/// assert_eq!(y.slice(1..2)?.to_vec()?, [1.5, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    /// Offset of the first byte in the storage.
    offset: usize,
    ty: TensorType,
}

/// The elements of a tensor and its views.
struct Storage {
    /// The type of the stored tensor. Views see parts of it.
    ty: TensorType,
    host: RwLock<Option<Arc<Host>>>,
    /// Copies in device memory, each with its GPU.
    devices: RwLock<Vec<(Gpu, Resident)>>,
    keep_on_host: bool,
    /// The number of parts of a tensor of parts. Neither a single device nor the host has all of it.
    parts: Option<usize>,
}

/// Elements on the host.
pub(crate) enum Host {
    Owned(Buffer),
    Shared(DType, SharedBytes),
    /// One tensor for each device of a group.
    Parts(Vec<Tensor>),
}

/// The error for reading a tensor of parts outside a group of devices.
fn apart(parts: usize) -> Error {
    let reason = "each device of a group has one part; only operations on a group of as many devices read it".into();
    Error::Unavailable { what: format!("a tensor of {parts} parts"), reason }
}

impl Host {
    fn data(&self) -> Result<Data<'_>> {
        match self {
            Self::Owned(buffer) => Ok(buffer.as_data()),
            Self::Shared(dtype, bytes) => Data::from_bytes(*dtype, (**bytes).as_ref()),
            Self::Parts(parts) => Err(apart(parts.len())),
        }
    }

    /// The elements of a type, beginning at a byte.
    pub(crate) fn part(&self, offset: usize, ty: &TensorType) -> Result<Data<'_>> {
        let all = self.data()?.as_bytes();
        let bytes = all.get(offset..offset + ty.bytes()).ok_or_else(|| Error::View {
            what: "tensor",
            reason: format!("{} bytes from byte {offset} on exceed the {} bytes of the tensor", ty.bytes(), all.len()),
        })?;
        Data::from_bytes(ty.dtype, bytes)
    }
}

/// Elements of a tensor on the host, locked while they are read.
pub(crate) struct OnHost {
    host: Arc<Host>,
    offset: usize,
    ty: TensorType,
}

impl OnHost {
    pub(crate) fn operand(&self) -> Result<Operand<'_>> {
        Operand::new(self.host.part(self.offset, &self.ty)?, self.ty.shape)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ty, .. } = self;
        write!(f, "Tensor({} {} on {})", ty.dtype, ty.shape, self.residency().join(", "))
    }
}

impl Tensor {
    fn new(host: Host, shape: Shape) -> Result<Self> {
        let ty = Operand::new(host.data()?, shape)?.ty();
        Ok(Self { storage: Arc::new(Storage::on_host_alone(host, ty)), offset: 0, ty })
    }

    /// Makes a tensor that owns these elements.
    ///
    /// # Errors
    /// [`Error::Length`] when they do not fill the extents.
    pub fn from_buffer(elements: Buffer, dims: &[usize]) -> Result<Self> {
        Self::new(Host::Owned(elements), Shape::new(dims)?)
    }

    /// Makes a tensor of f32 that owns its elements.
    ///
    /// # Errors
    /// The errors of [`Tensor::from_buffer`].
    pub fn from_vec(elements: Vec<f32>, dims: &[usize]) -> Result<Self> {
        Self::from_buffer(Buffer::F32(elements), dims)
    }

    /// Copies f32 elements into a tensor.
    ///
    /// # Errors
    /// The errors of [`Tensor::from_buffer`], and [`Error::OutOfMemory`].
    pub fn from_slice(elements: &[f32], dims: &[usize]) -> Result<Self> {
        Self::from_buffer(Data::F32(elements).to_buffer()?, dims)
    }

    /// Copies elements into a tensor, of any Rust type that tensors support.
    ///
    /// # Errors
    /// The errors of [`Tensor::from_slice`].
    pub fn from_elements<T: Element>(elements: &[T], dims: &[usize]) -> Result<Self> {
        Self::from_buffer(T::data(elements).to_buffer()?, dims)
    }

    /// Copies quantised blocks into a tensor; the extents count elements.
    ///
    /// # Errors
    /// The errors of [`Tensor::from_slice`], and [`Error::Format`] when a row is not whole blocks.
    pub fn from_blocks(blocks: &[u8], dims: &[usize], format: QuantFormat) -> Result<Self> {
        Self::from_buffer(Data::Blocks(format, blocks).to_buffer()?, dims)
    }

    /// Makes a tensor of bytes, in the byte order of the machine, that it shares with their owner, such as a memory-mapped file of
    /// weights, without a copy on the host.
    ///
    /// # Errors
    /// The errors of [`Tensor::from_buffer`]; [`Error::View`] for bytes that are not aligned for the element type.
    pub fn from_shared(bytes: SharedBytes, dtype: DType, dims: &[usize]) -> Result<Self> {
        Self::new(Host::Shared(dtype, bytes), Shape::new(dims)?)
    }

    /// Makes a tensor with one part for each device of a group. All parts have one type, which is also the type of the whole. Only
    /// operations on such a group can read it; [`EngineBuilder::cuda_group`](crate::EngineBuilder::cuda_group) makes a group a
    /// placement, and [`AllReduce`](kiln_ir::op::AllReduce) adds the parts of its devices.
    ///
    /// # Errors
    /// [`Error::Arity`] without a part; [`Error::Type`] and [`Error::Shape`] if parts differ.
    pub fn from_parts(parts: Vec<Self>) -> Result<Self> {
        let ty = TensorType::of_parts(parts.iter().map(Self::ty))?;
        let count = Some(parts.len());
        let storage = Storage { parts: count, ..Storage::on_host_alone(Host::Parts(parts), ty) };
        Ok(Self { storage: Arc::new(storage), offset: 0, ty })
    }

    /// Returns the same tensor, which keeps its copy on the host when it is copied to a device: it remains usable after the device is
    /// lost.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if the elements were only on a lost device; [`Error::OutOfMemory`].
    pub fn keep_on_host(&self) -> Result<Self> {
        let host = wait(self.storage.on_host(WAITING)).map_err(Fault::error)?;
        let devices = self.storage.devices.read().unwrap_or_else(PoisonError::into_inner).clone();
        let storage = Storage {
            ty: self.storage.ty,
            host: RwLock::new(Some(host)),
            devices: RwLock::new(devices),
            keep_on_host: true,
            parts: None,
        };
        Ok(Self { storage: Arc::new(storage), ..self.clone() })
    }

    /// A result in the memory of a GPU.
    pub(crate) fn on_device(gpu: &Gpu, resident: Resident, ty: TensorType) -> Self {
        let devices = RwLock::new(vec![(gpu.clone(), resident)]);
        let storage = Storage { ty, host: RwLock::new(None), devices, keep_on_host: false, parts: None };
        Self { storage: Arc::new(storage), offset: 0, ty }
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

    /// The locations of the elements: `host` and the names of placements.
    pub fn residency(&self) -> Vec<String> {
        let host = self.storage.host.read().unwrap_or_else(PoisonError::into_inner).is_some();
        let devices = self.storage.devices.read().unwrap_or_else(PoisonError::into_inner);
        let host = host.then(|| "host".to_owned());
        host.into_iter().chain(devices.iter().map(|(gpu, _)| gpu.name().to_owned())).collect()
    }

    /// Returns the same elements with other extents, without a copy.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements differs or rows of blocks would be cut.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        Ok(Self { ty: self.ty.reshaped(dims)?, ..self.clone() })
    }

    /// Returns the entries `range` along the first axis, without a copy: rows of a matrix, elements of a vector.
    ///
    /// # Errors
    /// [`Error::View`] when the range is not within the first extent, or the tensor has no extent; [`Error::Format`] when blocks would be
    /// cut.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        let (offset, ty) = self.ty.entries(range)?;
        // Inside the storage, so the offset fits usize.
        Ok(Self { offset: self.offset + offset as usize, ty, ..self.clone() })
    }

    /// Returns the elements of any type, copied to the host.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if they were only on a lost device; [`Error::OutOfMemory`].
    pub async fn to_buffer_async(&self) -> Result<Buffer> {
        self.buffer(Waiting::Elsewhere).await
    }

    pub(crate) async fn buffer(&self, waiting: Waiting) -> Result<Buffer> {
        self.storage.check_whole()?;
        if let Some(host) = self.storage.host() {
            return host.part(self.offset, &self.ty)?.to_buffer();
        }
        let Some((gpu, resident)) = self.storage.any_device() else { return Err(self.storage.nowhere()) };
        self.part_of(&resident, waiting).await?.read(waiting).await.map_err(|error| self.storage.lost(&gpu, error))
    }

    /// The part of a copy of the whole storage that this tensor views.
    async fn part_of(&self, whole: &Resident, waiting: Waiting) -> Result<Resident> {
        if self.offset == 0 && self.ty == self.storage.ty {
            return Ok(whole.clone());
        }
        whole.view(self.offset as u64, self.ty, waiting).await
    }

    /// The elements on the host; downloads them if they are not there.
    pub(crate) async fn on_host(&self, waiting: Waiting) -> Result<OnHost, Fault> {
        Ok(OnHost { host: self.storage.on_host(waiting).await?, offset: self.offset, ty: self.ty })
    }

    /// The elements in the memory of a GPU; uploads them if they are not there.
    pub(crate) async fn on_gpu(&self, gpu: &Gpu, waiting: Waiting) -> Result<Resident, Fault> {
        let whole = match self.storage.device(gpu) {
            Some(resident) => resident,
            None => {
                let resident = match self.storage.host().as_deref() {
                    Some(Host::Parts(parts)) => upload_parts(gpu, parts, waiting).await?,
                    _ => {
                        let host = self.storage.on_host(waiting).await?;
                        let operand = Operand::new(host.data()?, self.storage.ty.shape)?;
                        gpu.upload(&operand, waiting).await.map_err(Fault::of(gpu))?
                    }
                };
                self.storage.put(gpu, &resident);
                resident
            }
        };
        self.part_of(&whole, waiting).await.map_err(Fault::of(gpu))
    }

    /// Records the location of operand `index` for the router.
    pub(crate) fn placed(&self, engine: &Engine, residency: Residency, index: usize) -> Residency {
        let on_host = self.storage.host().is_some();
        let devices = self.storage.devices.read().unwrap_or_else(PoisonError::into_inner);
        let positions = devices.iter().filter_map(|(gpu, _)| engine.position(gpu));
        let residency = match self.storage.parts {
            Some(parts) => engine.on_groups_of(parts, residency),
            None => residency,
        };
        positions.enumerate().fold(residency, |residency, (number, position)| match (on_host, number) {
            (false, 0) => residency.moved(index, gpus::memory(position)),
            _ => residency.copied(index, gpus::memory(position)),
        })
    }
}

/// The blocking forms.
#[cfg(not(browser_gpu))]
impl Tensor {
    /// The elements of any type, copied to the host.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_buffer_async`].
    pub fn to_buffer(&self) -> Result<Buffer> {
        wait(self.buffer(WAITING))
    }

    /// Returns the f32 elements, copied to the host.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_buffer_async`]; [`Error::Type`] for a tensor of another element type.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        self.to_elements()
    }

    /// Returns the elements as a Rust type, copied to the host.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    pub fn to_elements<T: Element>(&self) -> Result<Vec<T>> {
        let wrong = |other: Buffer| Error::Type {
            op: "elements of a tensor",
            index: 0,
            expected: T::DTYPE,
            found: other.as_data().dtype(),
        };
        T::elements(self.to_buffer()?).map_err(wrong)
    }

    /// Copies the f32 elements into a slice on the host.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`]; [`Error::Length`] for a slice of another length.
    pub fn read_into(&self, out: &mut [f32]) -> Result<()> {
        let (expected, found) = (self.ty.shape.numel(), out.len());
        if expected != found {
            return Err(Error::Length { op: "read_into", operand: "output", expected, found });
        }
        out.copy_from_slice(&self.to_vec()?);
        Ok(())
    }
}

/// Copies parts to the devices of a group.
async fn upload_parts(gpu: &Gpu, parts: &[Tensor], waiting: Waiting) -> Result<Resident, Fault> {
    let mut held = Vec::with_capacity(parts.len());
    for part in parts {
        // A part has parts of its own only by mistake, which reading it reports.
        held.push(Box::pin(part.on_host(waiting)).await?);
    }
    let operands = held.iter().map(OnHost::operand).collect::<Result<Vec<_>>>()?;
    gpu.upload_parts(&operands, waiting).await.map_err(Fault::of(gpu))
}

impl Storage {
    fn on_host_alone(host: Host, ty: TensorType) -> Self {
        let host = RwLock::new(Some(Arc::new(host)));
        Self { ty, host, devices: RwLock::default(), keep_on_host: false, parts: None }
    }

    fn host(&self) -> Option<Arc<Host>> {
        self.host.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn any_device(&self) -> Option<(Gpu, Resident)> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.iter().find(|(gpu, _)| !gpu.is_gone()).or(devices.first()).cloned()
    }

    fn device(&self, gpu: &Gpu) -> Option<Resident> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.iter().find(|(known, _)| known.is(gpu)).map(|(_, resident)| resident.clone())
    }

    /// Stores a copy in the memory of a GPU, and drops the host's copy unless [`Tensor::keep_on_host`] keeps it.
    fn put(&self, gpu: &Gpu, resident: &Resident) {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        if !devices.iter().any(|(known, _)| known.is(gpu)) {
            devices.push((gpu.clone(), resident.clone()));
        }
        if !self.keep_on_host {
            *self.host.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn check_whole(&self) -> Result<()> {
        self.parts.map_or(Ok(()), |parts| Err(apart(parts)))
    }

    async fn on_host(&self, waiting: Waiting) -> Result<Arc<Host>, Fault> {
        self.check_whole()?;
        if let Some(host) = self.host() {
            return Ok(host);
        }
        let Some((gpu, resident)) = self.any_device() else { return Err(self.nowhere().into()) };
        let read = resident.read(waiting).await.map_err(|error| Fault::of(&gpu)(self.lost(&gpu, error)))?;
        let host = Arc::new(Host::Owned(read));
        *self.host.write().unwrap_or_else(PoisonError::into_inner) = Some(host.clone());
        Ok(host)
    }

    fn nowhere(&self) -> Error {
        Error::Unavailable { what: format!("a tensor {}", self.ty.shape), reason: "its elements are missing".into() }
    }

    /// Adds what was lost to the error of a lost device.
    fn lost(&self, gpu: &Gpu, error: Error) -> Error {
        match error {
            Error::DeviceLost { device, reason } => Error::DeviceLost {
                device,
                reason: format!(
                    "{reason}; a tensor {} of {} was only in its memory (`{}`; `Tensor::keep_on_host` keeps a copy)",
                    self.ty.shape,
                    self.ty.dtype,
                    gpu.name()
                ),
            },
            error => error,
        }
    }
}

/// The operations of an engine on [`Tensor`]s, as the methods of [`kiln_ir::Record`]; see [`Engine::tensors`]. In a browser, where
/// nothing can block, [`Tensors::run_async`] runs any of them.
#[derive(Debug, Clone, Copy)]
pub struct Tensors<'e>(&'e Engine);

impl Engine {
    /// The operations on tensors: `engine.tensors().softmax(&x)`. Each runs where it is predicted to run fastest, considering where
    /// its operands are; its results stay on that device.
    pub fn tensors(&self) -> Tensors<'_> {
        Tensors(self)
    }

    /// The memory that each GPU of the engine holds, by the name of its placement; zero for a GPU that was not opened.
    pub fn memory_use(&self) -> Vec<(String, MemoryUse)> {
        let used = |gpu: &Gpu| (gpu.name().to_owned(), gpu.memory_use().unwrap_or_default());
        self.gpus.iter().map(used).collect()
    }

    /// Copies a tensor to the memory of the placement with this name, unless it is there already; a CPU placement means the host.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no placement has this name; [`Error::Limit`], [`Error::OutOfMemory`],
    /// [`Error::DeviceLost`].
    pub async fn move_to_async(&self, tensor: &Tensor, place: &str) -> Result<()> {
        self.move_waiting(tensor, place, Waiting::Elsewhere).await
    }

    /// Copies a tensor to the memory of the placement with this name, unless it is there already; a CPU placement means the host.
    ///
    /// # Errors
    /// The errors of [`Engine::move_to_async`].
    #[cfg(not(browser_gpu))]
    pub fn move_to(&self, tensor: &Tensor, place: &str) -> Result<()> {
        wait(self.move_waiting(tensor, place, WAITING))
    }

    async fn move_waiting(&self, tensor: &Tensor, place: &str, waiting: Waiting) -> Result<()> {
        match self.device_named(place)? {
            Some(position) => tensor.on_gpu(&self.gpus[position], waiting).await.map(drop),
            None => tensor.on_host(waiting).await.map(drop),
        }
        .map_err(Fault::error)
    }

    /// The position of the GPU whose placement has this name; `None` for a CPU placement and for `host`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no placement has this name.
    pub(crate) fn device_named(&self, place: &str) -> Result<Option<usize>> {
        let gpu = self.gpus.iter().position(|gpu| gpu.name() == place);
        if gpu.is_none() && place != "host" && !self.places().iter().any(|known| known.name == place) {
            let names: Vec<&str> = self.places().iter().map(|known| known.name.as_str()).collect();
            let reason = format!("expected `host` or one of: {}", names.join(", "));
            return Err(Error::Unavailable { what: format!("placement {place:?}"), reason });
        }
        Ok(gpu)
    }

    /// Excludes all placements except groups of this many devices.
    fn on_groups_of(&self, devices: usize, residency: Residency) -> Residency {
        let others = self.gpus.iter().enumerate().filter(|(_, gpu)| gpu.devices() != devices);
        let others = (0..self.cpu.len()).chain(others.map(|(position, _)| self.cpu.len() + position));
        others.fold(residency, Residency::barred)
    }

    /// The position of a GPU among the engine's GPUs.
    pub(crate) fn position(&self, gpu: &Gpu) -> Option<usize> {
        self.gpus.iter().position(|known| known.is(gpu))
    }

    /// Runs an operation on tensors where it is predicted to run fastest.
    async fn run_on_tensors(&self, op: &Op, inputs: &[Tensor], waiting: Waiting) -> Result<Vec<Tensor>> {
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let outputs = op.infer(&types)?;
        let problem = Problem::new(op, &types)?;
        let (mut excluded, mut failed) = (Vec::new(), None);
        loop {
            let placed = |residency, (index, input): (usize, &Tensor)| input.placed(self, residency, index);
            let able = self.able(self.on_host().keep_result(), op);
            let able = self.within_budget_of(able, types.iter().chain(outputs.iter()));
            let residency = inputs.iter().enumerate().fold(able, placed);
            let residency = excluded.iter().fold(residency, |residency, &place| residency.barred(place));
            let decision = match self.decide(&problem, &residency, op.name()) {
                Ok(decision) => decision,
                Err(lacking) => return Err(failed.unwrap_or(lacking)),
            };
            let explained = || Explanation::operation(op, &types, &problem, &decision);
            self.budgeted.check(decision.seconds(), || explained().question, || explained().to_string());
            let Some((_, gpu)) = self.gpu(&decision) else {
                let mut held = Vec::with_capacity(inputs.len());
                for input in inputs {
                    held.push(input.on_host(waiting).await.map_err(Fault::error)?);
                }
                let operands = held.iter().map(OnHost::operand).collect::<Result<Vec<_>>>()?;
                let mut results = outputs.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
                let mut slices: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
                Call::with(op, &operands, |call| self.run_on_cpu(&problem, &decision, call, &mut slices))?;
                let results = results.into_iter().zip(outputs.iter());
                return results.map(|(result, ty)| Tensor::from_buffer(result, ty.shape.dims())).collect();
            };
            let fault = match self.run_on_gpu(op, inputs, gpu, waiting).await {
                Ok(results) => {
                    let results = results.into_iter().zip(outputs.iter());
                    return Ok(results.map(|(result, &ty)| Tensor::on_device(gpu, result, ty)).collect());
                }
                Err(fault) => fault,
            };
            let Some(place) = self.exclude_after(&fault, &excluded) else { return Err(fault.error) };
            excluded.push(place);
            failed = Some(fault.error);
        }
    }

    async fn run_on_gpu(
        &self,
        op: &Op,
        inputs: &[Tensor],
        gpu: &Gpu,
        waiting: Waiting,
    ) -> Result<Vec<Resident>, Fault> {
        let mut residents = Vec::with_capacity(inputs.len());
        for input in inputs {
            residents.push(input.on_gpu(gpu, waiting).await?);
        }
        gpu.run(op, &residents, waiting).await.map_err(Fault::of(gpu))
    }
}

impl Tensors<'_> {
    /// Runs any operation on tensors, as the methods of [`kiln_ir::Record`] do, and returns its results.
    ///
    /// # Errors
    /// The errors of the shape rule, of the data and of devices.
    pub async fn run_async(&self, op: &Op, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.0.run_on_tensors(op, inputs, Waiting::Elsewhere).await
    }
}

#[cfg(not(browser_gpu))]
impl Record for Tensors<'_> {
    type Tensor = Tensor;

    fn record_all(&mut self, op: Op, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        wait(self.0.run_on_tensors(&op, inputs, WAITING))
    }
}
