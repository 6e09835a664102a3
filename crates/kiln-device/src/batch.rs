//! Operations recorded now and run together on a device.

use std::collections::{HashMap, HashSet};

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::{Op, check_outputs};
use kiln_ir::{Buffer, DType, Data, DataMut, Error, Operand, QuantFormat, Record, Result, Shape, TensorType, f16};

use crate::driver::{Driver, RegionOf};
use crate::executable::Executable;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::tensor::{Tensor, read_many, take, write};
use crate::waiting::{Waiting, blocking_and_async};

/// Operations recorded now and run together on a device. They are the methods of [`Record`].
///
/// What is uploaded goes to the device at once and stays there. Nothing else happens until the batch is executed: then
/// element-wise chains become one kernel each, equal operations are computed once, unneeded ones are dropped, memory is reused
/// as soon as it is free, and everything is submitted together. Executed again, after [`Batch::set`] or not, it replays what
/// was compiled and bound the first time. The last four sets of wanted tensors stay ready, as long as the results of those
/// before the last hold no more than 256 MiB; none of them uploads anything again.
#[derive(Debug)]
pub struct Batch<D: Driver> {
    device: D,
    graph: Graph,
    inputs: HashMap<TensorId, RegionOf<D>>,
    /// Inputs whose memory others hold, too: it must not change.
    shared: HashSet<TensorId>,
    /// The most recently used last.
    ready: Vec<Ready<D>>,
}

/// Sets of wanted tensors that stay ready, and what those before the last hold at most.
const MOST_READY: usize = 4;
const MOST_BYTES: u64 = 256 << 20;

/// What an execution made, for the next one.
#[derive(Debug)]
struct Ready<D: Driver> {
    wanted: Vec<TensorId>,
    executable: Executable<D>,
    /// The results where the host reads them, if they are in such memory.
    host_results: Option<D::HostResults>,
    /// Whether it was the last execution, and its results are those of the present inputs.
    is_current: bool,
    /// Whether others hold a result, too.
    is_shared: bool,
}

impl<D: Driver> Batch<D> {
    /// An empty batch.
    pub fn new(device: D) -> Self {
        Self { device, graph: Graph::new(), inputs: HashMap::new(), shared: HashSet::new(), ready: Vec::new() }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The recorded graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Number of operations recorded.
    pub fn num_operations(&self) -> usize {
        self.graph.nodes().len()
    }

    /// Number of tensors: inputs and results.
    pub fn num_tensors(&self) -> usize {
        self.graph.tensors()
    }

    /// Shape and element type of a tensor.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch.
    pub fn ty(&self, id: TensorId) -> Result<TensorType> {
        self.graph.ty(id)
    }

    /// Adds a tensor of the device as an input, without a copy. The batch never changes it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a tensor of another device.
    pub fn import(&mut self, tensor: &Tensor<D>) -> Result<TensorId> {
        tensor.check_on(&self.device)?;
        let id = self.graph.input(tensor.ty());
        self.inputs.insert(id, tensor.region().clone());
        self.shared.insert(id);
        Ok(id)
    }

    async fn upload_now(&mut self, operand: &Operand<'_>) -> Result<TensorId> {
        let tensor = Tensor::upload(&self.device, operand).await?;
        let id = self.graph.input(tensor.ty());
        self.inputs.insert(id, tensor.region().clone());
        Ok(id)
    }

    /// A tensor that the last execution computed, or an input, as it is on the device. The batch leaves its memory alone from
    /// then on.
    ///
    /// # Errors
    /// As [`Batch::read_async`].
    pub fn tensor(&mut self, id: TensorId) -> Result<Tensor<D>> {
        let tensor = self.resident(id)?;
        if self.inputs.contains_key(&id) {
            self.shared.insert(id);
        } else if let Some(ready) = self.ready.last_mut() {
            ready.is_shared = true;
        }
        Ok(tensor)
    }

    fn resident(&self, id: TensorId) -> Result<Tensor<D>> {
        let ty = self.graph.ty(id)?;
        let computed = self.ready.last().filter(|ready| ready.is_current).and_then(|ready| {
            let position = ready.wanted.iter().position(|&wanted| wanted == id)?;
            ready.executable.results().get(position)
        });
        let region = self.inputs.get(&id).or(computed).cloned().ok_or_else(|| Error::Parameter {
            op: "read",
            reason: format!("tensor {} is not among what the last execution computed", id.index()),
        })?;
        Ok(Tensor::from_region(self.device.clone(), region, ty))
    }

    fn types(&self, wanted: &[TensorId]) -> Result<Vec<TensorType>> {
        wanted.iter().map(|&id| self.graph.ty(id)).collect()
    }

    async fn replace(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
        let ty = self.graph.ty(id)?;
        if ty.dtype != data.dtype() {
            return Err(Error::Type { op: "set", index: 0, expected: ty.dtype, found: data.dtype() });
        }
        Operand::new(data, ty.shape)?;
        if !self.inputs.contains_key(&id) {
            let reason = format!("tensor {} is a result; only inputs can be replaced", id.index());
            return Err(Error::Parameter { op: "set", reason });
        }
        let device = self.device.clone();
        let own = self.inputs.get(&id).filter(|_| !self.shared.contains(&id)).cloned();
        self.ready.iter_mut().for_each(|ready| ready.is_current = false);
        if own.is_none() {
            // Programs are bound to the memory that the input had.
            self.ready.retain(|ready| ready.executable.input(id).is_none());
        }
        let upload = || {
            let region = own.map_or_else(|| take(&device, ty.bytes() as u64), Ok)?;
            write(&device, &region, data.as_bytes())?;
            Ok(region)
        };
        let written = device.scoped("an upload", ty.bytes() as u64, upload).await?;
        self.inputs.insert(id, written);
        self.shared.remove(&id);
        Ok(())
    }

    /// What is ready for these tensors, or is made so, taken out for as long as it is in use: after an error or a dropped
    /// future it is made anew. Results that are `read` are in memory that the host maps if that is worth it.
    async fn take_ready(&mut self, wanted: &[TensorId], read: bool) -> Result<Ready<D>> {
        self.device.check_alive()?;
        let same = self.ready.iter().position(|ready| ready.wanted == wanted);
        // Results that others hold stay as they are: new ones are made.
        let ready = same.map(|at| self.ready.remove(at)).filter(|ready| !ready.is_shared);
        self.ready.iter_mut().for_each(|ready| ready.is_current = false);
        if let Some(ready) = ready {
            return Ok(ready);
        }
        // Old ones return their memory before the new one takes any.
        let held = |ready: &[Ready<D>]| ready.iter().map(|ready| ready.executable.computed_bytes()).sum::<u64>();
        while self.ready.len() >= MOST_READY || held(&self.ready) > MOST_BYTES {
            self.ready.remove(0);
        }
        match self.make_ready(wanted, read).await {
            Err(Error::OutOfMemory { .. }) if !self.ready.is_empty() => {
                self.ready.clear();
                crate::bodies::trim(&self.device);
                self.make_ready(wanted, read).await
            }
            made => made,
        }
    }

    async fn make_ready(&self, wanted: &[TensorId], read: bool) -> Result<Ready<D>> {
        let plan = Plan::new(&self.graph, wanted, self.device.target())?;
        let mut given = self.inputs.clone();
        let host_results = if read { self.device.host_results(&plan, &mut given).await? } else { None };
        let executable = Executable::new(&self.device, plan, &given).await?;
        Ok(Ready { wanted: wanted.to_vec(), executable, host_results, is_current: false, is_shared: false })
    }

    async fn compute(&mut self, wanted: &[TensorId], waiting: Waiting) -> Result<()> {
        let mut ready = self.take_ready(wanted, false).await?;
        ready.executable.run(Vec::new(), waiting).await?;
        self.ready.push(Ready { is_current: true, ..ready });
        Ok(())
    }

    async fn compute_into(&mut self, wanted: &[TensorId], outputs: &mut [DataMut<'_>], waiting: Waiting) -> Result<()> {
        check_outputs("run_into", &self.types(wanted)?, outputs)?;
        let mut ready = self.take_ready(wanted, true).await?;
        let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(DataMut::as_bytes).collect();
        match &ready.host_results {
            Some(results) => {
                ready.executable.run(Vec::new(), waiting).await?;
                self.device.read_host_results(results, &mut outputs, waiting).await?;
            }
            None => ready.executable.run(outputs.into_iter().enumerate().collect(), waiting).await?,
        }
        self.ready.push(Ready { is_current: true, ..ready });
        Ok(())
    }

    blocking_and_async! {
        /// Copies f32 elements of the given extents to the device.
        ///
        /// # Errors
        /// [`Error::Length`] when the elements do not fill the extents; [`Error::Limit`], [`Error::OutOfMemory`],
        /// [`Error::DeviceLost`].
        pub fn upload, upload_async(&mut self, _waiting, data: &[f32], dims: &[usize]) -> Result<TensorId> {
            self.upload_now(&Operand::f32(data, dims)?).await
        }

        /// Copies f16 elements of the given extents to the device.
        ///
        /// # Errors
        /// As [`Batch::upload_async`].
        pub fn upload_f16, upload_f16_async(&mut self, _waiting, data: &[f16], dims: &[usize]) -> Result<TensorId> {
            self.upload_now(&Operand::f16(data, dims)?).await
        }

        /// Copies indices of the given extents to the device.
        ///
        /// # Errors
        /// As [`Batch::upload_async`].
        pub fn upload_indices, upload_indices_async(&mut self, _waiting, data: &[u32], dims: &[usize]) -> Result<TensorId> {
            self.upload_now(&Operand::u32(data, dims)?).await
        }

        /// Copies quantised blocks to the device; the extents count elements.
        ///
        /// # Errors
        /// As [`Batch::upload_async`], and [`Error::Format`] when a row is not whole blocks.
        pub fn upload_blocks, upload_blocks_async(
            &mut self, _waiting, format: QuantFormat, data: &[u8], dims: &[usize],
        ) -> Result<TensorId> {
            self.upload_now(&Operand::new(Data::Blocks(format, data), Shape::new(dims)?)?).await
        }

        /// Copies an operand of any element type to the device.
        ///
        /// # Errors
        /// As [`Batch::upload_async`].
        pub fn upload_operand, upload_operand_async(&mut self, _waiting, operand: &Operand<'_>) -> Result<TensorId> {
            self.upload_now(operand).await
        }

        /// Replaces the f32 elements of an input for the next execution.
        ///
        /// # Errors
        /// As [`Batch::set_data_async`].
        pub fn set, set_async(&mut self, _waiting, id: TensorId, data: &[f32]) -> Result<()> {
            self.replace(id, Data::F32(data)).await
        }

        /// Replaces the elements of an input for the next execution.
        ///
        /// # Errors
        /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that is not an input,
        /// [`Error::Type`] and [`Error::Length`] where the elements do not fit.
        pub fn set_data, set_data_async(&mut self, _waiting, id: TensorId, data: Data<'_>) -> Result<()> {
            self.replace(id, data).await
        }

        /// Makes the computation of these tensors ready: its kernels compiled and its memory allocated. Executions of the same
        /// tensors then compile nothing.
        ///
        /// # Errors
        /// As [`Batch::execute_async`].
        pub fn prepare, prepare_async(&mut self, _waiting, wanted: &[TensorId]) -> Result<()> {
            let ready = self.take_ready(wanted, false).await?;
            self.ready.push(ready);
            Ok(())
        }

        /// Computes these tensors, and leaves them on the device. It does not wait for the device, unless data can be at fault.
        ///
        /// # Errors
        /// [`Error::ForeignTensor`] for a tensor of another batch; [`Error::Index`] for an index outside of its table;
        /// [`Error::Unsupported`], [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`]. Inputs are intact
        /// afterwards, as long as the device is.
        pub fn execute, execute_async(&mut self, waiting, wanted: &[TensorId]) -> Result<()> {
            self.compute(wanted, waiting).await
        }

        /// Computes every result that no recorded operation reads.
        ///
        /// # Errors
        /// As [`Batch::execute_async`].
        pub fn execute_all, execute_all_async(&mut self, waiting) -> Result<()> {
            let wanted = self.graph.leaves();
            self.compute(&wanted, waiting).await
        }

        /// Computes these tensors and reads them, in one submission.
        ///
        /// # Errors
        /// As [`Batch::execute_async`].
        pub fn run, run_async(&mut self, waiting, wanted: &[TensorId]) -> Result<Vec<Buffer>> {
            let mut results = self.types(wanted)?.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
            let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
            self.compute_into(wanted, &mut outputs, waiting).await?;
            Ok(results)
        }

        /// Computes these tensors and reads them into slices.
        ///
        /// # Errors
        /// As [`Batch::execute_async`]; [`Error::Arity`], [`Error::Type`], [`Error::Length`] where results do not fit `outputs`.
        pub fn run_into, run_into_async(
            &mut self, waiting, wanted: &[TensorId], outputs: &mut [DataMut<'_>],
        ) -> Result<()> {
            self.compute_into(wanted, outputs, waiting).await
        }

        /// The f32 elements of a tensor that the last execution computed, or of an input.
        ///
        /// # Errors
        /// As [`Batch::read_buffer_async`]; [`Error::Type`] for a tensor of another element type.
        pub fn read, read_async(&self, waiting, id: TensorId) -> Result<Vec<f32>> {
            match self.read_one(id, waiting).await? {
                Buffer::F32(elements) => Ok(elements),
                other => Err(Error::Type { op: "read", index: 0, expected: DType::F32, found: other.as_data().dtype() }),
            }
        }

        /// The elements of a tensor that the last execution computed, or of an input.
        ///
        /// # Errors
        /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not computed;
        /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
        pub fn read_buffer, read_buffer_async(&self, waiting, id: TensorId) -> Result<Buffer> {
            self.read_one(id, waiting).await
        }

        /// Reads several such tensors, in one submission and with one wait.
        ///
        /// # Errors
        /// As [`Batch::read_buffer_async`].
        pub fn read_many, read_many_async(&self, waiting, ids: &[TensorId]) -> Result<Vec<Buffer>> {
            let tensors = ids.iter().map(|&id| self.resident(id)).collect::<Result<Vec<_>>>()?;
            read_many(&self.device, &tensors, waiting).await
        }

        /// The time of each kernel of the last execution, on a device that was opened to time them.
        ///
        /// # Errors
        /// [`Error::Unavailable`] on another device, [`Error::Parameter`] where nothing was executed since the batch was
        /// changed, [`Error::DeviceLost`].
        pub fn profile, profile_async(&self, waiting) -> Result<Profile> {
            match self.ready.last() {
                Some(ready) => ready.executable.profile(waiting).await,
                None => Err(Error::Parameter { op: "profile", reason: "nothing was executed yet".into() }),
            }
        }
    }

    async fn read_one(&self, id: TensorId, waiting: Waiting) -> Result<Buffer> {
        let tensors = [self.resident(id)?];
        let read = read_many(&self.device, &tensors, waiting).await?.pop();
        read.ok_or(Error::ForeignTensor { index: id.index() })
    }
}

impl<D: Driver> Record for Batch<D> {
    fn record_all(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        self.graph.record_all(op, inputs)
    }
}
