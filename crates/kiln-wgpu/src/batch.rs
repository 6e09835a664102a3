//! Operations recorded now and run together on a device.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::{Op, check_outputs};
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Record, Result, TensorType};
#[cfg(not(target_arch = "wasm32"))]
use kiln_ir::{DType, QuantFormat, Shape};

use crate::direct::{self, HostResults};
use crate::execute::{Executable, write};
use crate::memory::Region;
use crate::plan::Plan;
#[cfg(not(target_arch = "wasm32"))]
use crate::runtime::block_on;
use crate::tensor::copy_to;
use crate::wait::Waiting;
use crate::{GpuDevice, GpuProfile, GpuTensor};

/// A tensor of one batch. Other batches refuse it.
pub type BufferId = TensorId;

/// Operations recorded now and run together on a device. They are the methods of [`Record`].
///
/// What is uploaded goes to the device at once and stays there. Nothing else happens until the batch is executed: then
/// element-wise chains become one kernel each, what is computed twice is shared, what is not needed is dropped, memory is
/// used again as soon as it is free, and everything runs in one submission. Executed again, after [`GpuCommandBatch::set`]
/// or not, it replays what was made the first time.
///
/// ```no_run
/// use kiln_ir::Record;
/// use kiln_wgpu::{GpuCommandBatch, GpuDevice};
///
/// # fn main() -> kiln_ir::Result<()> {
/// let mut batch = GpuCommandBatch::new(GpuDevice::new()?);
/// let x = batch.upload(&[1.0, -2.0, 3.0], &[3])?;
/// let y = batch.scale(x, 2.0)?;
/// let y = batch.relu(y)?;
/// assert_eq!(batch.run(&[y])?[0].as_data().f32(), [2.0, 0.0, 6.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GpuCommandBatch {
    device: GpuDevice,
    graph: Graph,
    inputs: HashMap<BufferId, Region>,
    /// Inputs whose memory someone outside of the batch holds, too: it must not change.
    shared: HashSet<BufferId>,
    /// The last used last: the last execution.
    ready: Vec<Ready>,
}

/// Sets of wanted tensors whose executions are kept for the next time, and what those that are not the last hold at most.
const MOST_READY: usize = 4;
const MOST_BYTES: u64 = 256 << 20;

/// What an execution made, for the next one.
#[derive(Debug)]
struct Ready {
    wanted: Vec<BufferId>,
    executable: Executable,
    /// The results where the host reads them, if they lie there.
    visible: Option<HostResults>,
    /// Whether it was the last execution, and its results are those of the present inputs.
    done: bool,
    /// Whether someone outside of the batch holds a result, too.
    shared: bool,
}

impl GpuCommandBatch {
    /// An empty batch.
    pub fn new(device: GpuDevice) -> Self {
        Self { device, graph: Graph::new(), inputs: HashMap::new(), shared: HashSet::new(), ready: Vec::new() }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// What was recorded.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Number of operations recorded.
    pub fn num_operations(&self) -> usize {
        self.graph.nodes().len()
    }

    /// Number of tensors: uploaded ones and results.
    pub fn num_buffers(&self) -> usize {
        self.graph.tensors()
    }

    /// Type and extents of a tensor.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch.
    pub fn ty(&self, id: BufferId) -> Result<TensorType> {
        self.graph.ty(id)
    }

    /// Uses a tensor of the device where it lies. Nothing the batch does changes it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a tensor of another device.
    pub fn import(&mut self, tensor: &GpuTensor) -> Result<BufferId> {
        if !Arc::ptr_eq(&tensor.device.inner, &self.device.inner) {
            return Err(self.device.stranger(tensor));
        }
        let id = self.graph.input(tensor.ty);
        self.inputs.insert(id, tensor.region.clone());
        self.shared.insert(id);
        Ok(id)
    }

    /// Copies an operand to the device.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn upload_async(&mut self, operand: &Operand<'_>) -> Result<BufferId> {
        let tensor = self.device.upload_async(operand).await?;
        let id = self.graph.input(tensor.ty);
        self.inputs.insert(id, tensor.region);
        Ok(id)
    }

    /// Replaces the elements of an uploaded tensor for the next execution.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not uploaded,
    /// [`Error::Type`] and [`Error::Length`] where the elements do not fit.
    pub async fn set_async(&mut self, id: BufferId, data: Data<'_>) -> Result<()> {
        let ty = self.graph.ty(id)?;
        if ty.dtype != data.dtype() {
            return Err(Error::Type { op: "set", index: 0, expected: ty.dtype, found: data.dtype() });
        }
        Operand::new(data, ty.shape)?;
        if !self.inputs.contains_key(&id) {
            let reason = format!("tensor {} is a result; only uploaded tensors can be replaced", id.index());
            return Err(Error::Parameter { op: "set", reason });
        }
        let device = self.device.clone();
        let own = self.inputs.get(&id).filter(|_| !self.shared.contains(&id)).cloned();
        self.forget_results();
        if own.is_none() {
            // What is bound is the memory that the input had.
            self.ready.retain(|ready| ready.executable.input(id).is_none());
        }
        let written = device.scoped("an upload", ty.bytes() as u64, || {
            let region = own.map_or_else(|| device.take(ty.bytes() as u64).map(Region::from), Ok)?;
            write(&device, &region, data.as_bytes());
            Ok(region)
        });
        self.inputs.insert(id, written.await?);
        self.shared.remove(&id);
        Ok(())
    }

    /// No result is that of the last execution any more.
    fn forget_results(&mut self) {
        self.ready.iter_mut().for_each(|ready| ready.done = false);
    }

    /// Makes the computation of these tensors ready: its kernels compiled, by several threads, and its memory taken. What
    /// computes or runs them afterwards compiles nothing. The last four sets of tensors stay ready, as long as the results of
    /// those before the last are no more than 256 MiB.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::compute_async`].
    pub async fn prepare_async(&mut self, wanted: &[BufferId]) -> Result<()> {
        let ready = self.take_ready(wanted, false).await?;
        self.ready.push(ready);
        Ok(())
    }

    /// What is ready for these tensors, or is made so, taken out for as long as it is in use: what fails, or is given up, on
    /// the way is made anew. Results that are `read` lie where the host reads them if this is worth it.
    async fn take_ready(&mut self, wanted: &[BufferId], read: bool) -> Result<Ready> {
        self.device.check_alive()?;
        let same = self.ready.iter().position(|ready| ready.wanted == wanted);
        // Results that someone else holds stay as they are: others are made.
        let ready = same.map(|at| self.ready.remove(at)).filter(|ready| !ready.shared);
        // Another one is the last from now on.
        self.forget_results();
        if let Some(ready) = ready {
            return Ok(ready);
        }
        // Old ones give their memory back before the new one takes any.
        let held = |ready: &[Ready]| ready.iter().map(|ready| ready.executable.computed_bytes()).sum::<u64>();
        while self.ready.len() >= MOST_READY || held(&self.ready) > MOST_BYTES {
            self.ready.remove(0);
        }
        match self.make_ready(wanted, read).await {
            Err(Error::OutOfMemory { .. }) if !self.ready.is_empty() => {
                self.ready.clear();
                self.device.trim();
                self.make_ready(wanted, read).await
            }
            made => made,
        }
    }

    async fn make_ready(&self, wanted: &[BufferId], read: bool) -> Result<Ready> {
        let plan = Plan::new(&self.graph, wanted, self.device.inner.target())?;
        let visible = read && direct::takes(&self.device, &plan);
        let (executable, visible) = match visible {
            true => {
                let mut given = self.inputs.clone();
                let results = HostResults::new(&self.device, &plan, &mut given).await?;
                (Executable::new(&self.device, &plan, &given).await?, Some(results))
            }
            false => (Executable::new(&self.device, &plan, &self.inputs).await?, None),
        };
        Ok(Ready { wanted: wanted.to_vec(), executable, visible, done: false, shared: false })
    }

    /// Computes every result that no recorded operation reads.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::compute_async`].
    pub async fn execute_async(&mut self) -> Result<()> {
        self.compute_with(&self.graph.leaves(), Waiting::Elsewhere).await
    }

    /// Computes these tensors, and leaves them on the device.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch; [`Error::Index`] for an index outside of its table;
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`]. What was uploaded is intact afterwards, as long as
    /// the device is.
    pub async fn compute_async(&mut self, wanted: &[BufferId]) -> Result<()> {
        self.compute_with(wanted, Waiting::Elsewhere).await
    }

    /// Computes these tensors and reads them, in one submission.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::compute_async`].
    pub async fn run_async(&mut self, wanted: &[BufferId]) -> Result<Vec<Buffer>> {
        self.run_with(wanted, Waiting::Elsewhere).await
    }

    /// As [`GpuCommandBatch::run_async`], into memory of the caller.
    ///
    /// # Errors
    /// As there; [`Error::Arity`], [`Error::Type`], [`Error::Length`] where results do not fit `outputs`.
    pub async fn run_into_async(&mut self, wanted: &[BufferId], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.run_into_with(wanted, outputs, Waiting::Elsewhere).await
    }

    /// Reads a tensor that the last execution computed, or that was uploaded.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not computed.
    pub async fn read_async(&self, id: BufferId) -> Result<Buffer> {
        self.lying(id)?.read_async().await
    }

    /// Reads several such tensors, in one submission and with one wait.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::read_async`].
    pub async fn read_many_async(&self, ids: &[BufferId]) -> Result<Vec<Buffer>> {
        self.read_many_with(ids, Waiting::Elsewhere).await
    }

    async fn read_many_with(&self, ids: &[BufferId], waiting: Waiting) -> Result<Vec<Buffer>> {
        let tensors = ids.iter().map(|&id| self.lying(id)).collect::<Result<Vec<_>>>()?;
        self.device.read_many(&tensors, waiting).await
    }

    /// A tensor that the last execution computed, or that was uploaded, as it lies on the device. The batch leaves its
    /// memory alone from then on.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::read_async`].
    pub fn tensor(&mut self, id: BufferId) -> Result<GpuTensor> {
        let tensor = self.lying(id)?;
        if self.inputs.contains_key(&id) {
            self.shared.insert(id);
        } else if let Some(ready) = self.ready.last_mut() {
            ready.shared = true;
        }
        Ok(tensor)
    }

    fn lying(&self, id: BufferId) -> Result<GpuTensor> {
        let ty = self.graph.ty(id)?;
        let computed = self.ready.last().filter(|ready| ready.done).and_then(|ready| {
            let position = ready.wanted.iter().position(|&wanted| wanted == id)?;
            Some(&ready.executable.results().get(position)?.0)
        });
        let region = self.inputs.get(&id).or(computed).cloned().ok_or_else(|| Error::Parameter {
            op: "read",
            reason: format!("tensor {} is not among what the last execution computed", id.index()),
        })?;
        Ok(GpuTensor { device: self.device.clone(), region, ty })
    }

    /// How long each kernel of the last execution took, on a device that was opened with
    /// [`crate::DeviceOptions::profile`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] on another device, [`Error::Parameter`] where nothing was executed since the batch was
    /// changed, [`Error::DeviceLost`].
    pub async fn profile_async(&self) -> Result<GpuProfile> {
        self.profile_with(Waiting::Elsewhere).await
    }

    async fn profile_with(&self, waiting: Waiting) -> Result<GpuProfile> {
        match self.ready.last() {
            Some(ready) => ready.executable.profile(waiting).await,
            None => Err(Error::Parameter { op: "profile", reason: "nothing was executed yet".into() }),
        }
    }

    async fn compute_with(&mut self, wanted: &[BufferId], waiting: Waiting) -> Result<()> {
        let mut ready = self.take_ready(wanted, false).await?;
        ready.executable.run(&[], waiting, |_, _| {}).await?;
        self.ready.push(Ready { done: true, ..ready });
        Ok(())
    }

    fn types(&self, wanted: &[BufferId]) -> Result<Vec<TensorType>> {
        wanted.iter().map(|&id| self.graph.ty(id)).collect()
    }

    async fn run_with(&mut self, wanted: &[BufferId], waiting: Waiting) -> Result<Vec<Buffer>> {
        let mut results = self.types(wanted)?.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
        self.run_into_with(wanted, &mut outputs, waiting).await?;
        Ok(results)
    }

    async fn run_into_with(
        &mut self,
        wanted: &[BufferId],
        outputs: &mut [DataMut<'_>],
        waiting: Waiting,
    ) -> Result<()> {
        check_outputs("run_into", &self.types(wanted)?, outputs)?;
        let mut ready = self.take_ready(wanted, true).await?;
        let see = |position: usize, stored: &[u8]| copy_to(stored, &mut outputs[position]);
        match &ready.visible {
            Some(results) => {
                ready.executable.run(&[], waiting, |_, _| {}).await?;
                results.read(&self.device, waiting, see).await?;
            }
            None => {
                let all: Vec<usize> = (0..wanted.len()).collect();
                ready.executable.run(&all, waiting, see).await?;
            }
        }
        self.ready.push(Ready { done: true, ..ready });
        Ok(())
    }
}

/// The same for those who wait.
#[cfg(not(target_arch = "wasm32"))]
impl GpuCommandBatch {
    /// Copies f32 elements of the given extents to the device.
    ///
    /// # Errors
    /// [`Error::Length`] when the elements do not fill the extents; as [`GpuCommandBatch::upload_async`].
    pub fn upload(&mut self, data: &[f32], dims: &[usize]) -> Result<BufferId> {
        block_on(self.upload_async(&Operand::f32(data, dims)?))
    }

    /// Copies f16 elements of the given extents to the device.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::upload`].
    pub fn upload_f16(&mut self, data: &[kiln_ir::f16], dims: &[usize]) -> Result<BufferId> {
        block_on(self.upload_async(&Operand::f16(data, dims)?))
    }

    /// Copies indices of the given extents to the device.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::upload`].
    pub fn upload_indices(&mut self, data: &[u32], dims: &[usize]) -> Result<BufferId> {
        block_on(self.upload_async(&Operand::u32(data, dims)?))
    }

    /// Copies quantised blocks to the device; the extents count elements.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::upload`], and [`Error::Format`] when a row is not whole blocks.
    pub fn upload_blocks(&mut self, format: QuantFormat, data: &[u8], dims: &[usize]) -> Result<BufferId> {
        block_on(self.upload_async(&Operand::new(Data::Blocks(format, data), Shape::new(dims)?)?))
    }

    /// Replaces the f32 elements of an uploaded tensor for the next execution.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::set_async`].
    pub fn set(&mut self, id: BufferId, data: &[f32]) -> Result<()> {
        block_on(self.set_async(id, Data::F32(data)))
    }

    /// As [`GpuCommandBatch::prepare_async`].
    ///
    /// # Errors
    /// As there.
    pub fn prepare(&mut self, wanted: &[BufferId]) -> Result<()> {
        block_on(self.prepare_async(wanted))
    }

    /// As [`GpuCommandBatch::execute_async`].
    ///
    /// # Errors
    /// As there.
    pub fn execute(&mut self) -> Result<()> {
        let wanted = self.graph.leaves();
        block_on(self.compute_with(&wanted, Waiting::Here))
    }

    /// As [`GpuCommandBatch::compute_async`].
    ///
    /// # Errors
    /// As there.
    pub fn compute(&mut self, wanted: &[BufferId]) -> Result<()> {
        block_on(self.compute_with(wanted, Waiting::Here))
    }

    /// As [`GpuCommandBatch::run_async`].
    ///
    /// # Errors
    /// As there.
    pub fn run(&mut self, wanted: &[BufferId]) -> Result<Vec<Buffer>> {
        block_on(self.run_with(wanted, Waiting::Here))
    }

    /// As [`GpuCommandBatch::run_into_async`].
    ///
    /// # Errors
    /// As there.
    pub fn run_into(&mut self, wanted: &[BufferId], outputs: &mut [DataMut<'_>]) -> Result<()> {
        block_on(self.run_into_with(wanted, outputs, Waiting::Here))
    }

    /// As [`GpuCommandBatch::profile_async`].
    ///
    /// # Errors
    /// As there.
    pub fn profile(&self) -> Result<GpuProfile> {
        block_on(self.profile_with(Waiting::Here))
    }

    /// As [`GpuCommandBatch::read_many_async`].
    ///
    /// # Errors
    /// As there.
    pub fn read_many(&self, ids: &[BufferId]) -> Result<Vec<Buffer>> {
        block_on(self.read_many_with(ids, Waiting::Here))
    }

    /// The f32 elements of a tensor that the last execution computed, or that was uploaded.
    ///
    /// # Errors
    /// As [`GpuCommandBatch::read_async`]; [`Error::Type`] for a tensor of another element type.
    pub fn read(&self, id: BufferId) -> Result<Vec<f32>> {
        match self.lying(id)?.read()? {
            Buffer::F32(elements) => Ok(elements),
            other => Err(Error::Type { op: "read", index: 0, expected: DType::F32, found: other.as_data().dtype() }),
        }
    }
}

impl Record for GpuCommandBatch {
    fn record_all(&mut self, op: Op, inputs: &[BufferId]) -> Result<Vec<BufferId>> {
        self.graph.record_all(op, inputs)
    }
}
