//! Operations recorded now and run together on a device.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Buffer, DType, Data, DataMut, Error, Operand, QuantFormat, Record, Result, Shape, TensorType};

use crate::execute::Executable;
use crate::memory::Region;
use crate::plan::Plan;
use crate::{CudaDevice, CudaProfile, CudaTensor};

/// A tensor of one batch. Other batches refuse it.
pub type BufferId = TensorId;

/// Operations recorded now and run together on a device. They are the methods of [`Record`].
///
/// What is uploaded goes to the device at once and stays there. Nothing else happens until the batch is executed: then
/// element-wise chains become one kernel each, what is computed twice is shared, what is not needed is dropped and memory
/// is used again as soon as it is free. Executed again, after [`CudaCommandBatch::set`] or not, it replays what was made
/// the first time, all launches in one call of the driver.
#[derive(Debug)]
pub struct CudaCommandBatch {
    device: CudaDevice,
    graph: Graph,
    inputs: HashMap<BufferId, Region>,
    /// Inputs whose memory someone outside of the batch holds, too: it must not change.
    shared: HashSet<BufferId>,
    ready: Option<Ready>,
}

/// What an execution made, for the next one.
#[derive(Debug)]
struct Ready {
    wanted: Vec<BufferId>,
    executable: Executable,
    /// Whether the results are those of the present inputs.
    done: bool,
    /// Whether someone outside of the batch holds a result, too.
    shared: bool,
}

impl CudaCommandBatch {
    /// An empty batch.
    pub fn new(device: CudaDevice) -> Self {
        Self { device, graph: Graph::new(), inputs: HashMap::new(), shared: HashSet::new(), ready: None }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &CudaDevice {
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
    pub fn import(&mut self, tensor: &CudaTensor) -> Result<BufferId> {
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
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub fn upload_operand(&mut self, operand: &Operand<'_>) -> Result<BufferId> {
        let tensor = self.device.upload(operand)?;
        let id = self.graph.input(tensor.ty);
        self.inputs.insert(id, tensor.region);
        Ok(id)
    }

    /// Copies f32 elements of the given extents to the device.
    ///
    /// # Errors
    /// [`Error::Length`] when the elements do not fill the extents; as [`CudaCommandBatch::upload_operand`].
    pub fn upload(&mut self, data: &[f32], dims: &[usize]) -> Result<BufferId> {
        self.upload_operand(&Operand::f32(data, dims)?)
    }

    /// Copies f16 elements of the given extents to the device.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::upload`].
    pub fn upload_f16(&mut self, data: &[kiln_ir::f16], dims: &[usize]) -> Result<BufferId> {
        self.upload_operand(&Operand::f16(data, dims)?)
    }

    /// Copies indices of the given extents to the device.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::upload`].
    pub fn upload_indices(&mut self, data: &[u32], dims: &[usize]) -> Result<BufferId> {
        self.upload_operand(&Operand::u32(data, dims)?)
    }

    /// Copies quantised blocks to the device; the extents count elements.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::upload`], and [`Error::Format`] when a row is not whole blocks.
    pub fn upload_blocks(&mut self, format: QuantFormat, data: &[u8], dims: &[usize]) -> Result<BufferId> {
        self.upload_operand(&Operand::new(Data::Blocks(format, data), Shape::new(dims)?)?)
    }

    /// Replaces the elements of an uploaded tensor for the next execution.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not uploaded,
    /// [`Error::Type`] and [`Error::Length`] where the elements do not fit.
    pub fn set_data(&mut self, id: BufferId, data: Data<'_>) -> Result<()> {
        let ty = self.graph.ty(id)?;
        if ty.dtype != data.dtype() {
            return Err(Error::Type { op: "set", index: 0, expected: ty.dtype, found: data.dtype() });
        }
        Operand::new(data, ty.shape)?;
        let Some(held) = self.inputs.get(&id) else {
            let reason = format!("tensor {} is a result; only uploaded tensors can be replaced", id.index());
            return Err(Error::Parameter { op: "set", reason });
        };
        let replaced = self.shared.contains(&id);
        let region = if replaced { self.device.take(ty.bytes() as u64)? } else { held.clone() };
        self.device.inner.staging.upload(data.as_bytes(), &region)?;
        self.inputs.insert(id, region);
        self.shared.remove(&id);
        match &mut self.ready {
            // What is launched reads the memory that the input had.
            Some(_) if replaced => self.ready = None,
            Some(ready) => ready.done = false,
            None => {}
        }
        Ok(())
    }

    /// Replaces the f32 elements of an uploaded tensor for the next execution.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::set_data`].
    pub fn set(&mut self, id: BufferId, data: &[f32]) -> Result<()> {
        self.set_data(id, Data::F32(data))
    }

    /// Makes the computation of these tensors ready: its kernels compiled and its memory taken. What computes or runs them
    /// afterwards compiles nothing.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::compute`].
    pub fn prepare(&mut self, wanted: &[BufferId]) -> Result<()> {
        self.device.check_alive()?;
        if self.ready.as_ref().is_some_and(|ready| ready.wanted == wanted && !ready.shared) {
            return Ok(());
        }
        // The old one gives its memory back before the new one takes any.
        self.ready = None;
        let plan = Plan::new(&self.graph, wanted, self.device.inner.hardware)?;
        let executable = Executable::new(&self.device, plan, &self.inputs)?;
        self.ready = Some(Ready { wanted: wanted.to_vec(), executable, done: false, shared: false });
        Ok(())
    }

    /// Computes every result that no recorded operation reads.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::compute`].
    pub fn execute(&mut self) -> Result<()> {
        self.compute(&self.graph.leaves())
    }

    /// Computes these tensors, and leaves them on the device. Unless data can be at fault it does not wait for the device.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch; [`Error::Index`] for an index outside of its table;
    /// [`Error::Unsupported`], [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`]. What was uploaded is intact
    /// afterwards, as long as the device is.
    pub fn compute(&mut self, wanted: &[BufferId]) -> Result<()> {
        self.run_into(wanted, &mut [])
    }

    /// Computes these tensors and reads them.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::compute`].
    pub fn run(&mut self, wanted: &[BufferId]) -> Result<Vec<Buffer>> {
        let types = wanted.iter().map(|&id| self.graph.ty(id)).collect::<Result<Vec<_>>>()?;
        let mut results = types.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
        let mut bytes: Vec<&mut [u8]> = outputs.iter_mut().map(DataMut::as_bytes).collect();
        self.run_into(wanted, &mut bytes)?;
        Ok(results)
    }

    fn run_into(&mut self, wanted: &[BufferId], outputs: &mut [&mut [u8]]) -> Result<()> {
        self.prepare(wanted)?;
        let Some(ready) = &mut self.ready else { return Ok(()) };
        ready.done = false;
        ready.executable.run(outputs)?;
        ready.done = true;
        Ok(())
    }

    /// Reads a tensor that the last execution computed, or that was uploaded.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not computed.
    pub fn read_buffer(&self, id: BufferId) -> Result<Buffer> {
        self.lying(id)?.read()
    }

    /// The f32 elements of a tensor that the last execution computed, or that was uploaded.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::read_buffer`]; [`Error::Type`] for a tensor of another element type.
    pub fn read(&self, id: BufferId) -> Result<Vec<f32>> {
        match self.read_buffer(id)? {
            Buffer::F32(elements) => Ok(elements),
            other => Err(Error::Type { op: "read", index: 0, expected: DType::F32, found: other.as_data().dtype() }),
        }
    }

    /// A tensor that the last execution computed, or that was uploaded, as it lies on the device. The batch leaves its
    /// memory alone from then on.
    ///
    /// # Errors
    /// As [`CudaCommandBatch::read_buffer`].
    pub fn tensor(&mut self, id: BufferId) -> Result<CudaTensor> {
        let tensor = self.lying(id)?;
        if self.inputs.contains_key(&id) {
            self.shared.insert(id);
        } else if let Some(ready) = &mut self.ready {
            ready.shared = true;
        }
        Ok(tensor)
    }

    fn lying(&self, id: BufferId) -> Result<CudaTensor> {
        let ty = self.graph.ty(id)?;
        let computed = self.ready.as_ref().filter(|ready| ready.done).and_then(|ready| {
            let position = ready.wanted.iter().position(|&wanted| wanted == id)?;
            Some(&ready.executable.results().get(position)?.0)
        });
        let region = self.inputs.get(&id).or(computed).cloned().ok_or_else(|| Error::Parameter {
            op: "read",
            reason: format!("tensor {} is not among what the last execution computed", id.index()),
        })?;
        Ok(CudaTensor { device: self.device.clone(), region, ty })
    }

    /// How long each kernel of the last execution took, on a device that was opened with
    /// [`crate::DeviceOptions::profile`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] on another device, [`Error::Parameter`] where nothing was executed since the batch was
    /// changed, [`Error::DeviceLost`].
    pub fn profile(&self) -> Result<CudaProfile> {
        match &self.ready {
            Some(ready) => ready.executable.profile(),
            None => Err(Error::Parameter { op: "profile", reason: "nothing was executed yet".into() }),
        }
    }
}

impl Record for CudaCommandBatch {
    fn record_all(&mut self, op: Op, inputs: &[BufferId]) -> Result<Vec<BufferId>> {
        self.graph.record_all(op, inputs)
    }
}
