//! Operations recorded now and run together, on the CPU, on a GPU, or on several devices.

mod batch_plan;
mod cpu;
mod host_plan;
mod lent;
mod on_gpu;
mod on_parts;
mod parts;
mod placing;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use batch_plan::BatchPlan;
use host_plan::{Memory, packable};
use kiln_device::waiting::Waiting;
use kiln_device::{Profile, host_copy};
use kiln_ir::graph::{FusionLimits, Graph, Schedule, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Buffer, DType, Data, Error, Operand, QuantFormat, Record, Result, Shape, TensorType};
use lent::Lent;
use parts::Names;

#[cfg(not(browser_gpu))]
use crate::gpus::wait;
use crate::gpus::{self, Fault, Runner, WAITING};
use crate::state::{State, Taken};
use crate::tensor::OnHost;
use crate::{Engine, PackedMatrix, Tensor};

/// How a batch holds its engine.
#[derive(Debug)]
pub(crate) enum Holder<'e> {
    Borrowed(&'e Engine),
    /// For owners that cannot borrow the engine.
    #[cfg(target_arch = "wasm32")]
    Shared(std::sync::Arc<Engine>),
}

impl std::ops::Deref for Holder<'_> {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        match self {
            Self::Borrowed(engine) => engine,
            #[cfg(target_arch = "wasm32")]
            Self::Shared(engine) => engine,
        }
    }
}

/// A list of recorded operations that run together. The methods that record them are those of [`Record`].
///
/// Nothing runs before the batch is executed. It then computes the requested tensors: unneeded operations are dropped, equal ones
/// are computed once, element-wise chains run as one pass, and memory is reused as soon as it is free. The last four sets of
/// wanted tensors stay ready: if they are executed again, after [`Batch::set`] or not, nothing is planned, compiled or allocated
/// a second time, and only inputs that changed are uploaded.
///
/// Each step runs on the device that is predicted to make the whole batch fastest: often all steps run on one device, and on several
/// where transfers are worth it or branches do not depend on one another. [`Batch::explain`] shows the devices and the reasons.
///
/// On a GPU an execution leaves its results there until they are read. Inputs are uploaded once, and their copy on the host is
/// then dropped, unless [`Batch::keep_on_host`] asks to keep it. A [`Tensor`] is imported without a copy: several batches share
/// it.
///
/// ```
/// use kiln::Record;
///
/// # fn main() -> kiln::Result<()> {
/// let engine = kiln::Engine::new()?;
/// let mut batch = engine.batch();
/// let x = batch.upload(&[1.0, -2.0, 3.0], &[3])?;
/// let bias = batch.upload(&[0.5], &[])?;
/// let y = batch.add(x, bias)?;
/// let y = batch.relu(y)?;
/// batch.execute(&[y])?;
/// assert_eq!(batch.read(y)?, [1.5, 0.0, 3.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Batch<'e> {
    pub(crate) engine: Holder<'e>,
    graph: Graph,
    inputs: HashMap<TensorId, Input>,
    keep_on_host: bool,
    /// The device that runs everything regardless of predictions: `Some(None)` is the CPU, `Some(Some(i))` is GPU `i`.
    only_on: Option<Option<usize>>,
    /// The device that operations recorded from now on are pinned to, in the same form.
    pin: Option<Option<usize>>,
    /// Results of pinned operations.
    pins: HashMap<TensorId, Option<usize>>,
    /// Uploaded matrices that [`Batch::pack`] requested to be packed for products.
    to_pack: HashSet<TensorId>,
    /// Packed copies that the products of executed schedules required, by matrix and by whether it was packed
    /// transposed.
    packed: HashMap<(TensorId, bool), PackedMatrix>,
    /// Plans, most recently executed last.
    plans: Vec<BatchPlan>,
    /// The runner of each GPU, by the GPU's position.
    runners: HashMap<usize, Box<dyn Runner>>,
    /// The location of the last plan's results; `None` if inputs were replaced since.
    results: Option<Target>,
}

impl Engine {
    /// An empty batch, to record operations that run together.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(Holder::Borrowed(self))
    }
}

/// The location of an input's elements.
#[derive(Debug)]
enum Input {
    /// Owned by the batch: on the host, on GPUs, or both.
    Owned {
        host: Option<Buffer>,
        gpus: HashSet<usize>,
    },
    Imported(Tensor),
    State(State),
}

/// The device or devices that run a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Cpu,
    /// The position of a GPU.
    Gpu(usize),
    /// Several devices, which run the parts of the plan in turn.
    Parts,
}

/// The number of sets of wanted tensors whose plans are kept.
const MOST_PLANS: usize = 4;

/// Inputs on the host.
struct OnTheHost {
    ids: Vec<TensorId>,
    imported: HashMap<TensorId, OnHost>,
}

/// Elements of an input on the host while a schedule runs.
#[derive(Clone, Copy)]
enum Held<'a> {
    Owned(&'a Buffer),
    Imported(&'a OnHost),
}

impl<'e> Batch<'e> {
    pub(crate) fn new(engine: Holder<'e>) -> Self {
        Self {
            engine,
            graph: Graph::new(),
            inputs: HashMap::new(),
            // A page can lose its device and continues with a new one.
            keep_on_host: cfg!(target_arch = "wasm32"),
            only_on: None,
            pin: None,
            pins: HashMap::new(),
            to_pack: HashSet::new(),
            packed: HashMap::new(),
            plans: Vec::new(),
            runners: HashMap::new(),
            results: None,
        }
    }

    /// Sets whether inputs keep their copy on the host when they are uploaded to a GPU: the batch can then run on another device
    /// after that GPU is lost. Off by default, on in browsers. Applies to later uploads.
    pub fn keep_on_host(&mut self, keep: bool) {
        self.keep_on_host = keep;
    }

    /// Runs everything on one device from now on: `Some(None)` is the CPU, `Some(Some(i))` is GPU `i`. `None` returns
    /// to the device that is predicted to be fastest.
    #[cfg(not(browser_gpu))]
    pub(crate) fn on_device(&mut self, device: Option<Option<usize>>) {
        self.only_on = device;
    }

    /// Pins the operations that are recorded from now on to the placement with this name, whatever is predicted and whatever placement
    /// the engine forces. A CPU placement and `host` mean the CPU, where the router chooses the placement of each step. With `None`
    /// operations are not pinned: in a batch with pinned ones they run on the device of the step before them.
    ///
    /// Segments of steps on different devices run one after the other, and tensors that pass between them are copied through the
    /// host. A state is on the device of the steps that use it. If a device fails, the operations pinned to it run on the CPU, unless the
    /// engine forces a placement: then the execution returns the error.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no placement has this name.
    pub fn pin(&mut self, place: Option<&str>) -> Result<()> {
        self.pin = place.map(|name| self.engine.device_named(name)).transpose()?;
        Ok(())
    }

    /// Copies f32 elements of the given extents into the batch.
    ///
    /// # Errors
    /// [`Error::Length`] when the elements do not fill the extents.
    pub fn upload(&mut self, data: &[f32], dims: &[usize]) -> Result<TensorId> {
        self.upload_operand(&Operand::f32(data, dims)?)
    }

    /// Copies indices of the given extents into the batch.
    ///
    /// # Errors
    /// The errors of [`Batch::upload`].
    pub fn upload_indices(&mut self, data: &[u32], dims: &[usize]) -> Result<TensorId> {
        self.upload_operand(&Operand::elements(data, dims)?)
    }

    /// Copies quantised blocks into the batch; the extents count elements.
    ///
    /// # Errors
    /// The errors of [`Batch::upload`], and [`Error::Format`] when a row is not whole blocks.
    pub fn upload_blocks(&mut self, data: &[u8], dims: &[usize], format: QuantFormat) -> Result<TensorId> {
        self.upload_operand(&Operand::blocks(data, dims, format)?)
    }

    /// Copies an operand of any element type into the batch. It is uploaded to a GPU when an execution there first reads it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn upload_operand(&mut self, operand: &Operand<'_>) -> Result<TensorId> {
        let host = Some(operand.data().to_buffer()?);
        let id = self.graph.input(operand.ty());
        self.inputs.insert(id, Input::Owned { host, gpus: HashSet::new() });
        Ok(id)
    }

    /// Adds a tensor as an input, without a copy. The batch never changes it.
    pub fn import(&mut self, tensor: &Tensor) -> TensorId {
        let id = self.graph.input(tensor.ty());
        self.inputs.insert(id, Input::Imported(tensor.clone()));
        id
    }

    /// Adds a state, which executions of the batch change. A write to it ([`write_rows`](Record::write_rows)) gives its next version,
    /// which replaces the one before: only the latest can be read, so reads and writes happen in the order of recording. Every execution
    /// runs all recorded writes, whatever results are wanted, on one device.
    pub fn state(&mut self, state: &State) -> TensorId {
        let known = self.inputs.iter().find(|(_, input)| matches!(input, Input::State(known) if known.is(state)));
        if let Some((&id, _)) = known {
            return id;
        }
        let id = self.graph.state(state.ty());
        self.inputs.insert(id, Input::State(state.clone()));
        id
    }

    /// Replaces the f32 elements of an uploaded tensor for the next execution.
    ///
    /// # Errors
    /// The errors of [`Batch::set_data`].
    pub fn set(&mut self, id: TensorId, data: &[f32]) -> Result<()> {
        self.set_data(id, Data::F32(data))
    }

    /// Replaces the elements of an uploaded tensor for the next execution. On a GPU they overwrite the old ones.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not uploaded,
    /// [`Error::Type`] and [`Error::Length`] if the elements do not fit.
    pub fn set_data(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
        let ty = self.graph.ty(id)?;
        if data.dtype() != ty.dtype {
            return Err(Error::Type { op: "set", index: 0, expected: ty.dtype, found: data.dtype() });
        }
        Operand::new(data, ty.shape)?;
        match self.inputs.get_mut(&id) {
            Some(Input::Owned { host: Some(held), gpus }) => {
                copy_on_host(data.as_bytes(), held.as_mut().as_bytes());
                gpus.clear();
            }
            Some(Input::State(state)) => state.set(data)?,
            Some(input) => *input = Input::Owned { host: Some(data.to_buffer()?), gpus: HashSet::new() },
            None => {
                let reason = format!("tensor {} is a result; only inputs can be replaced", id.index());
                return Err(Error::Parameter { op: "set", reason });
            }
        }
        self.packed.retain(|&(packed, _), _| packed != id);
        self.results = None;
        Ok(())
    }

    /// Additionally keeps a packed copy of an uploaded matrix for the products that have it as their right-hand matrix, as
    /// [`Engine::pack_b`] does. The copy is made when the first of them runs, and again after [`Batch::set`].
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not uploaded,
    /// [`Error::Shape`] for one that is not a matrix, [`Error::Type`] for one of another element type.
    pub fn pack(&mut self, id: TensorId) -> Result<()> {
        let ty = self.graph.ty(id)?;
        if matches!(self.inputs.get(&id), None | Some(Input::State(_))) {
            let reason = format!("tensor {} is a result or a state; only inputs can be packed", id.index());
            return Err(Error::Parameter { op: "pack", reason });
        }
        if ty.dtype != DType::F32 {
            return Err(Error::Type { op: "pack", index: 0, expected: DType::F32, found: ty.dtype });
        }
        if ty.shape.dims().len() != 2 {
            return Err(Error::Shape { op: "pack", reason: format!("expected a matrix, found {}", ty.shape) });
        }
        self.to_pack.insert(id);
        Ok(())
    }

    /// Packs the matrices that products of a schedule take packed. If a GPU is forced, the few products that are pinned to the CPU take
    /// them unpacked.
    fn pack_for(
        &mut self,
        part: Option<&Names>,
        schedule: &Schedule,
        held: &HashMap<TensorId, Held<'_>>,
    ) -> Result<()> {
        let steps = if self.engine.takes_packed() { &schedule.steps[..] } else { &[] };
        for step in steps {
            let Some((id, op)) = packable(step) else { continue };
            let key = (name(part, id), op.transpose_b);
            if !self.to_pack.contains(&key.0) || self.packed.contains_key(&key) {
                continue;
            }
            if let (Some(held), ty) = (held.get(&id), self.graph.ty(key.0)?)
                && let (Data::F32(b), &[rows, columns]) = (held.operand(&ty)?.data(), ty.shape.dims())
            {
                let (k, n) = if op.transpose_b { (columns, rows) } else { (rows, columns) };
                self.packed.insert(key, self.engine.pack_b(b, k, n, op.transpose_b)?);
            }
        }
        Ok(())
    }

    /// Takes the plan for these tensors out, and creates it if it is missing.
    fn plan(&mut self, wanted: &[TensorId]) -> Result<BatchPlan> {
        // Nodes are only ever added, and a schedule contains exactly the nodes that its results need.
        let writes = self.graph.writes();
        if let Some(at) = self.plans.iter().position(|plan| plan.whole.wanted == wanted && plan.writes == writes) {
            return Ok(self.plans.remove(at));
        }
        if self.plans.len() >= MOST_PLANS {
            let oldest = self.plans.remove(0);
            self.release(oldest.placed.iter().flat_map(|placed| placed.held()));
        }
        self.new_plan(wanted)
    }

    /// Executes, and, if `read` is set, returns results that a GPU downloads in the same submission.
    async fn compute(&mut self, wanted: &[TensorId], read: bool, waiting: Waiting) -> Result<Option<Vec<Buffer>>> {
        let plan = self.plan(wanted)?;
        self.results = None;
        let mut lent = Lent::new(self, plan);
        let (batch, plan) = lent.split();
        let done = batch.compute_plan(plan, read, waiting).await;
        drop(lent);
        let (place, read) = done?;
        self.results = Some(place);
        Ok(read)
    }

    async fn compute_plan(
        &mut self,
        plan: &mut BatchPlan,
        read: bool,
        waiting: Waiting,
    ) -> Result<(Target, Option<Vec<Buffer>>)> {
        let (mut excluded, mut failed) = (Vec::new(), None);
        let mut lost = None;
        loop {
            let target = match self.target(plan, &excluded) {
                Ok(target) => target,
                Err(lacking) => return Err(failed.unwrap_or(lacking)),
            };
            let computed = match target {
                Target::Gpu(position) => self.compute_on(position, &plan.whole, read, waiting).await,
                Target::Parts if gpus::POSSIBLE => self.compute_parts(plan, read, waiting).await,
                Target::Cpu | Target::Parts => break,
            };
            let fault = match computed {
                Ok(read) => return Ok((target, read)),
                Err(fault) => fault,
            };
            let Some(gpu) = fault.gpu.clone() else { return Err(fault.error) };
            if matches!(fault.error, Error::DeviceLost { .. })
                && let Some(position) = self.engine.position(&gpu)
            {
                self.forget(position);
            }
            if lost.is_none() && gpu.recovers(&fault.error, waiting).await {
                lost = Some(fault.error);
                continue;
            }
            // The lost device held the only copy of a tensor or a state.
            if let (Some(lost), Error::Unavailable { .. }) = (&mut lost, &fault.error) {
                return Err(std::mem::replace(lost, fault.error));
            }
            let place = if self.only_on.is_some() { None } else { self.engine.exclude_after(&fault, &excluded) };
            let Some(place) = place else { return Err(fault.error) };
            excluded.push(place);
            failed = Some(fault.error);
        }
        let plan = &mut plan.whole;
        let held = self.on_host(&plan.inputs, waiting).await.map_err(Fault::error)?;
        let mut states = self.take_states(&plan.inputs)?;
        for state in states.values_mut() {
            state.bring_to_host(waiting).await.map_err(Fault::error)?;
        }
        let inputs = std::mem::take(&mut self.inputs);
        let done = self.run_on_cpu(None, plan, &held.operands(&inputs), &mut states);
        self.inputs = inputs;
        done.map(|()| (Target::Cpu, None))
    }

    /// Takes the states among these inputs for an execution.
    fn take_states(&self, inputs: &[TensorId]) -> Result<HashMap<TensorId, Taken>> {
        let states = inputs.iter().filter_map(|id| match self.inputs.get(id) {
            Some(Input::State(state)) => Some(state.take().map(|taken| (*id, taken))),
            _ => None,
        });
        states.collect()
    }

    /// Downloads inputs to the host, and locks imported ones there.
    async fn on_host(&mut self, ids: &[TensorId], waiting: Waiting) -> Result<OnTheHost, Fault> {
        self.bring_to_host(ids, waiting).await?;
        let mut held = OnTheHost { ids: ids.to_vec(), imported: HashMap::new() };
        for &id in ids {
            if let Some(Input::Imported(tensor)) = self.inputs.get(&id) {
                held.imported.insert(id, tensor.on_host(waiting).await?);
            }
        }
        Ok(held)
    }

    /// Drops the references to everything in the memory of a lost GPU.
    fn forget(&mut self, position: usize) {
        self.runners.remove(&position);
        for input in self.inputs.values_mut() {
            if let Input::Owned { gpus, .. } = input {
                gpus.remove(&position);
            }
        }
    }

    /// Downloads the batch's own inputs that are not on the host.
    async fn bring_to_host(&mut self, ids: &[TensorId], waiting: Waiting) -> Result<(), Fault> {
        for &id in ids {
            let Some(Input::Owned { host: None, gpus }) = self.inputs.get(&id) else { continue };
            let holder = gpus.iter().find_map(|position| Some((position, self.runners.get(position)?)));
            let lost = || Error::DeviceLost {
                device: "the GPU of a batch".into(),
                reason: format!("input {} was only in its memory; `Batch::keep_on_host` keeps a copy", id.index()),
            };
            let (&position, runner) = holder.ok_or_else(lost)?;
            let read = runner.read(&self.graph, &[id], waiting).await;
            let mut read = read.map_err(Fault::of(&self.engine.gpus[position]))?;
            if let (Some(Input::Owned { host, .. }), Some(buffer)) = (self.inputs.get_mut(&id), read.pop()) {
                *host = Some(buffer);
            }
        }
        Ok(())
    }

    /// Reads results of the last execution, or inputs.
    async fn read_waiting(&self, ids: &[TensorId], waiting: Waiting) -> Result<Vec<Buffer>> {
        let mut read = Vec::with_capacity(ids.len());
        for &id in ids {
            read.push(self.read_one(id, waiting).await?);
        }
        Ok(read)
    }

    async fn read_one(&self, id: TensorId, waiting: Waiting) -> Result<Buffer> {
        self.graph.ty(id)?;
        let plan = self.plans.last().filter(|_| self.results.is_some());
        let position = |plan: &&BatchPlan| plan.whole.wanted.iter().position(|&wanted| wanted == id);
        let computed = plan.and_then(|plan| Some((plan, position(&plan)?)));
        // A wanted tensor may be an input under other extents, or a state.
        let source = computed.map_or(id, |(plan, at)| plan.whole.source(at));
        match self.inputs.get(&source) {
            Some(Input::State(state)) => return state.buffer(waiting).await,
            Some(Input::Owned { host: Some(buffer), .. }) => return copied(buffer),
            Some(Input::Owned { host: None, gpus }) => {
                let runner = gpus.iter().find_map(|position| self.runners.get(position));
                if let Some(runner) = runner {
                    return one(runner.read(&self.graph, &[source], waiting).await?, id);
                }
            }
            Some(Input::Imported(tensor)) => return tensor.buffer(waiting).await,
            None => {}
        }
        match (computed, self.results) {
            (Some((plan, _)), Some(Target::Parts)) if gpus::POSSIBLE => self.read_part(plan, source, waiting).await,
            (Some((plan, _)), Some(Target::Cpu)) => {
                let result = plan.whole.memory.as_ref().and_then(|memory| memory.results.get(&source));
                copied(result.ok_or(Error::ForeignTensor { index: id.index() })?)
            }
            (Some(_), Some(Target::Gpu(position))) => {
                let runner = self.runners.get(&position).ok_or(Error::ForeignTensor { index: id.index() })?;
                one(runner.read(&self.graph, &[id], waiting).await?, id)
            }
            _ => Err(Error::Parameter {
                op: "read",
                reason: format!(
                    "tensor {} was not computed, or inputs were replaced since; execute the batch with it",
                    id.index()
                ),
            }),
        }
    }

    /// Returns a wanted tensor of the last execution, or an input, without a copy. The batch does not reuse its memory afterwards.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not computed;
    /// [`Error::OutOfMemory`].
    pub fn tensor(&mut self, id: TensorId) -> Result<Tensor> {
        let ty = self.graph.ty(id)?;
        if let Some(Input::Imported(tensor)) = self.inputs.get(&id) {
            return Ok(tensor.clone());
        }
        if self.graph.state_of(id).is_some() {
            let reason = format!("tensor {} is a state, whose elements change; read it instead", id.index());
            return Err(Error::Parameter { op: "tensor", reason });
        }
        let computed = self.plans.last().is_some_and(|plan| plan.whole.wanted.contains(&id));
        let position = match (self.inputs.get(&id), self.results) {
            (Some(Input::Owned { host: None, gpus }), _) => gpus.iter().next().copied(),
            (None, Some(Target::Gpu(position))) if computed => Some(position),
            (None, Some(Target::Parts)) if gpus::POSSIBLE && computed => {
                if let Some(tensor) = self.tensor_of_part(id)? {
                    return Ok(tensor);
                }
                None
            }
            _ => None,
        };
        if let Some((position, runner)) = position.and_then(|at| Some((at, self.runners.get_mut(&at)?))) {
            return Ok(Tensor::on_device(&self.engine.gpus[position], runner.tensor(&self.graph, id)?, ty));
        }
        // The tensor is on the host already, so this does not block.
        let buffer = kiln_device::waiting::poll_once(std::pin::pin!(self.read_one(id, WAITING)));
        let buffer = buffer.ok_or(Error::ForeignTensor { index: id.index() })??;
        Tensor::from_buffer(buffer, ty.shape.dims())
    }

    /// The extents of a tensor of this batch.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch.
    pub fn shape(&self, id: TensorId) -> Result<Shape> {
        Ok(self.graph.ty(id)?.shape)
    }

    /// The recorded graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The number of recorded operations.
    pub fn num_operations(&self) -> usize {
        self.graph.nodes().len()
    }

    /// The number of tensors: inputs and results.
    pub fn num_tensors(&self) -> usize {
        self.graph.tensors()
    }

    /// Returns the steps that compute the wanted tensors, without running them.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch.
    pub fn schedule(&self, wanted: &[TensorId]) -> Result<Schedule> {
        self.graph.schedule(wanted, FusionLimits::default())
    }
}

/// Defines the methods that may wait for a device, in a blocking and an asynchronous form.
macro_rules! waiting_methods {
    ($($(#[$doc:meta])* pub fn $name:ident, $name_async:ident [$($receiver:tt)*] $self:ident ($this:ident, $waiting:ident $(, $arg:ident: $ty:ty)*) -> $out:ty $body:block)*) => {
        impl Batch<'_> { $(
            $(#[$doc])*
            #[doc = ""]
            #[doc = concat!("`", stringify!($name), "` is the blocking form.")]
            pub async fn $name_async($($receiver)* $(, $arg: $ty)*) -> $out {
                let ($this, $waiting) = ($self, Waiting::Elsewhere);
                $body
            }

            $(#[$doc])*
            #[cfg(not(browser_gpu))]
            pub fn $name($($receiver)* $(, $arg: $ty)*) -> $out {
                let ($this, $waiting) = ($self, WAITING);
                wait(async move { $body })
            }
        )* }
    };
}

waiting_methods! {
    /// Computes the wanted tensors from the present inputs. Results of a GPU stay there until they are read.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch; errors of the data, such as an index out of its table. Inputs
    /// are intact afterwards, except those that were only in the memory of a lost GPU ([`Error::DeviceLost`]).
    pub fn execute, execute_async [&mut self] self (batch, waiting, wanted: &[TensorId]) -> Result<()> {
        batch.compute(wanted, false, waiting).await.map(drop)
    }

    /// Computes every result that no recorded operation reads.
    ///
    /// # Errors
    /// The errors of [`Batch::execute_async`].
    pub fn execute_all, execute_all_async [&mut self] self (batch, waiting) -> Result<()> {
        let wanted = batch.graph.leaves();
        batch.compute(&wanted, false, waiting).await.map(drop)
    }

    /// Computes the wanted tensors and reads them, on a GPU in one submission.
    ///
    /// # Errors
    /// The errors of [`Batch::execute_async`].
    pub fn run, run_async [&mut self] self (batch, waiting, wanted: &[TensorId]) -> Result<Vec<Buffer>> {
        match batch.compute(wanted, true, waiting).await? {
            Some(read) => Ok(read),
            None => batch.read_waiting(wanted, waiting).await,
        }
    }

    /// Returns the f32 elements of a wanted tensor of the last execution, or of an input.
    ///
    /// # Errors
    /// The errors of [`Batch::read_buffer_async`]; [`Error::Type`] for a tensor of another element type.
    pub fn read, read_async [&self] self (batch, waiting, id: TensorId) -> Result<Vec<f32>> {
        match batch.read_one(id, waiting).await? {
            Buffer::F32(elements) => Ok(elements),
            other => Err(Error::Type { op: "read", index: 0, expected: DType::F32, found: other.as_data().dtype() }),
        }
    }

    /// Returns the elements of a tensor of indices, a wanted one of the last execution or an input.
    ///
    /// # Errors
    /// The errors of [`Batch::read_async`].
    pub fn read_indices, read_indices_async [&self] self (batch, waiting, id: TensorId) -> Result<Vec<u32>> {
        match batch.read_one(id, waiting).await? {
            Buffer::U32(elements) => Ok(elements),
            other => Err(Error::Type { op: "read", index: 0, expected: DType::U32, found: other.as_data().dtype() }),
        }
    }

    /// Returns the elements of a wanted tensor of the last execution, or of an input, of any element type.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not computed since inputs
    /// were replaced; [`Error::DeviceLost`], [`Error::OutOfMemory`].
    pub fn read_buffer, read_buffer_async [&self] self (batch, waiting, id: TensorId) -> Result<Buffer> {
        batch.read_one(id, waiting).await
    }

    /// Returns the bytes that computing these tensors on the placement with this name takes in addition to inputs and states: results,
    /// intermediate results and scratch memory of kernels. They come from the plan of running everything there; nothing is compiled or
    /// allocated.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch; [`Error::Unavailable`] if no placement has this name;
    /// [`Error::Unsupported`] and [`Error::Limit`] if the device cannot run it.
    pub fn planned_bytes, planned_bytes_async [&self] self (batch, waiting, wanted: &[TensorId], place: &str) -> Result<u64> {
        match batch.engine.device_named(place)? {
            Some(position) => batch.engine.gpus[position].planned_bytes(&batch.graph, wanted, waiting).await,
            None => Memory::planned_bytes(&batch.graph, &batch.schedule(wanted)?),
        }
    }

    /// Returns the time of each kernel of the last execution, if one GPU ran all of it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the CPU or several devices ran it, or if the engine does not time kernels
    /// (`EngineBuilder::time_kernels`); [`Error::Parameter`] if nothing was executed since inputs were replaced;
    /// [`Error::DeviceLost`].
    pub fn profile, profile_async [&self] self (batch, waiting) -> Result<Profile> {
        let runner = match batch.results {
            Some(Target::Gpu(position)) => batch.runners.get(&position),
            Some(_) => None,
            None => return Err(Error::Parameter { op: "profile", reason: "nothing was executed, or inputs were replaced since; execute the batch first".into() }),
        };
        let elsewhere = || Error::Unavailable {
            what: "the time of each kernel".into(),
            reason: "the last execution was not that of one GPU".into(),
        };
        runner.ok_or_else(elsewhere)?.profile(waiting).await
    }

    /// Returns the elements of several such tensors.
    ///
    /// # Errors
    /// The errors of [`Batch::read_buffer_async`].
    pub fn read_many, read_many_async [&self] self (batch, waiting, ids: &[TensorId]) -> Result<Vec<Buffer>> {
        batch.read_waiting(ids, waiting).await
    }
}

/// Both forms, blocking and asynchronous, for crates that write waiting code once.
#[doc(hidden)]
impl Batch<'_> {
    pub async fn execute_waiting(&mut self, wanted: &[TensorId], waiting: Waiting) -> Result<()> {
        self.compute(wanted, false, waiting).await.map(drop)
    }

    pub async fn run_waiting(&mut self, wanted: &[TensorId], waiting: Waiting) -> Result<Vec<Buffer>> {
        match self.compute(wanted, true, waiting).await? {
            Some(read) => Ok(read),
            None => self.read_waiting(wanted, waiting).await,
        }
    }
}

impl Record for Batch<'_> {
    type Tensor = TensorId;

    fn record_all(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        let results = self.graph.record_all(op, inputs)?;
        if let Some(device) = self.pin {
            self.pins.extend(results.iter().map(|&id| (id, device)));
        }
        Ok(results)
    }
}

/// The id that an input of a part has in the graph of the batch.
fn name(part: Option<&Names>, id: TensorId) -> TensorId {
    part.and_then(|part| part.outer.get(&id).copied()).unwrap_or(id)
}

impl OnTheHost {
    /// The operands, by their ids in the batch.
    fn operands<'a>(&'a self, inputs: &'a HashMap<TensorId, Input>) -> HashMap<TensorId, Held<'a>> {
        let held = |&id: &TensorId| match inputs.get(&id)? {
            Input::Owned { host, .. } => Some((id, Held::Owned(host.as_ref()?))),
            Input::Imported(_) => Some((id, Held::Imported(self.imported.get(&id)?))),
            Input::State(_) => None,
        };
        self.ids.iter().filter_map(held).collect()
    }
}

/// Copies bytes, with all threads if there are many.
fn copy_on_host(from: &[u8], to: &mut [u8]) {
    const MOST_THREADS: usize = 8;
    host_copy::copy(from, to, MOST_THREADS);
}

/// A copy of the elements in new memory.
fn copied(buffer: &Buffer) -> Result<Buffer> {
    let data = buffer.as_data();
    let bytes = data.as_bytes();
    let mut copy = Buffer::with_bytes(data.dtype(), bytes.len())?;
    copy_on_host(bytes, copy.as_mut().as_bytes());
    Ok(copy)
}

/// The single buffer of a read.
fn one(mut read: Vec<Buffer>, id: TensorId) -> Result<Buffer> {
    read.pop().ok_or(Error::ForeignTensor { index: id.index() })
}

impl Held<'_> {
    fn operand(&self, ty: &TensorType) -> Result<Operand<'_>> {
        match self {
            Self::Owned(buffer) => Operand::new(buffer.as_data(), ty.shape),
            Self::Imported(tensor) => Operand::new(tensor.operand()?.data(), ty.shape),
        }
    }
}
