//! Operations recorded now and run together on a device.

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Buffer, DType, Data, DataMut, Error, Operand, QuantFormat, Record, Result, Shape, TensorType};

use crate::blocking_and_async;
use crate::driver::Driver;
use crate::profile::Profile;
use crate::runner::GraphRunner;
use crate::state::State;
use crate::tensor::Tensor;

/// Operations recorded now and run together on a device. They are the methods of [`Record`].
///
/// Uploads go to the device at once, and their data stay there. Nothing else happens until the batch is executed: then
/// element-wise chains become one kernel each, equal operations are computed once, unneeded ones are dropped, memory is reused
/// as soon as it is free, and everything is submitted together. Executed again, after [`Batch::set`] or not, it replays what
/// was compiled and bound the first time. The last four sets of wanted tensors stay ready, as long as the results of those
/// before the last hold no more than 256 MiB; none of them uploads anything again.
#[derive(Debug)]
pub struct Batch<D: Driver> {
    graph: Graph,
    runner: GraphRunner<D>,
}

impl<D: Driver> Batch<D> {
    /// An empty batch.
    pub fn new(device: D) -> Self {
        Self { graph: Graph::new(), runner: GraphRunner::new(device) }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &D {
        self.runner.device()
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
        tensor.check_on(self.device())?;
        let id = self.graph.input(tensor.ty());
        self.runner.import(id, tensor)?;
        Ok(id)
    }

    /// Adds a state of the device, which executions of the batch change. What is written to it
    /// ([`write_rows`](Record::write_rows)) is its next version; every execution runs all writes that are recorded, whatever results
    /// are wanted.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a state of another device.
    pub fn state(&mut self, state: &State<D>) -> Result<TensorId> {
        state.tensor().check_on(self.device())?;
        let id = self.graph.state(state.ty());
        self.runner.bind_state(id, state)?;
        Ok(id)
    }

    async fn upload_now(&mut self, operand: &Operand<'_>) -> Result<TensorId> {
        let id = self.graph.input(operand.ty());
        self.runner.upload(id, operand).await?;
        Ok(id)
    }

    /// A tensor that the last execution computed, or an input, as it is on the device. The batch does not write to its
    /// memory from then on.
    ///
    /// # Errors
    /// The errors of [`Batch::read_async`].
    pub fn tensor(&mut self, id: TensorId) -> Result<Tensor<D>> {
        self.runner.tensor(&self.graph, id)
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

        /// Copies indices of the given extents to the device.
        ///
        /// # Errors
        /// The errors of [`Batch::upload_async`].
        pub fn upload_indices, upload_indices_async(&mut self, _waiting, data: &[u32], dims: &[usize]) -> Result<TensorId> {
            self.upload_now(&Operand::elements(data, dims)?).await
        }

        /// Copies quantised blocks to the device; the extents count elements.
        ///
        /// # Errors
        /// The errors of [`Batch::upload_async`], and [`Error::Format`] when a row is not whole blocks.
        pub fn upload_blocks, upload_blocks_async(
            &mut self, _waiting, data: &[u8], dims: &[usize], format: QuantFormat,
        ) -> Result<TensorId> {
            self.upload_now(&Operand::new(Data::Blocks(format, data), Shape::new(dims)?)?).await
        }

        /// Copies an operand of any element type to the device.
        ///
        /// # Errors
        /// The errors of [`Batch::upload_async`].
        pub fn upload_operand, upload_operand_async(&mut self, _waiting, operand: &Operand<'_>) -> Result<TensorId> {
            self.upload_now(operand).await
        }

        /// Replaces the f32 elements of an input for the next execution.
        ///
        /// # Errors
        /// The errors of [`Batch::set_data_async`].
        pub fn set, set_async(&mut self, _waiting, id: TensorId, data: &[f32]) -> Result<()> {
            self.runner.set(&self.graph, id, Data::F32(data)).await
        }

        /// Replaces the elements of an input for the next execution.
        ///
        /// # Errors
        /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that is not an input,
        /// [`Error::Type`] and [`Error::Length`] where the elements do not fit.
        pub fn set_data, set_data_async(&mut self, _waiting, id: TensorId, data: Data<'_>) -> Result<()> {
            self.runner.set(&self.graph, id, data).await
        }

        /// Makes the computation of these tensors ready: its kernels compiled and its memory allocated. Executions of the same
        /// tensors then compile nothing. The results of the last execution can still be read.
        ///
        /// # Errors
        /// The errors of [`Batch::execute_async`].
        pub fn prepare, prepare_async(&mut self, _waiting, wanted: &[TensorId]) -> Result<()> {
            self.runner.prepare(&self.graph, wanted).await
        }

        /// Computes these tensors, and leaves them on the device. It does not wait for the device, unless data can be at fault.
        ///
        /// # Errors
        /// [`Error::ForeignTensor`] for a tensor of another batch; [`Error::Index`] for an index outside of its table;
        /// [`Error::Unsupported`], [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`]. Inputs are intact
        /// afterwards, as long as the device is.
        pub fn execute, execute_async(&mut self, waiting, wanted: &[TensorId]) -> Result<()> {
            self.runner.execute(&self.graph, wanted, waiting).await
        }

        /// Computes every result that no recorded operation reads.
        ///
        /// # Errors
        /// The errors of [`Batch::execute_async`].
        pub fn execute_all, execute_all_async(&mut self, waiting) -> Result<()> {
            let wanted = self.graph.leaves();
            self.runner.execute(&self.graph, &wanted, waiting).await
        }

        /// Computes these tensors and reads them, in one submission.
        ///
        /// # Errors
        /// The errors of [`Batch::execute_async`].
        pub fn run, run_async(&mut self, waiting, wanted: &[TensorId]) -> Result<Vec<Buffer>> {
            self.runner.run(&self.graph, wanted, waiting).await
        }

        /// Computes these tensors and reads them into slices.
        ///
        /// # Errors
        /// The errors of [`Batch::execute_async`]; [`Error::Arity`], [`Error::Type`], [`Error::Length`] where results do not fit `outputs`.
        pub fn run_into, run_into_async(
            &mut self, waiting, wanted: &[TensorId], outputs: &mut [DataMut<'_>],
        ) -> Result<()> {
            self.runner.execute_into(&self.graph, wanted, outputs, waiting).await
        }

        /// The f32 elements of a tensor that the last execution computed, or of an input.
        ///
        /// # Errors
        /// The errors of [`Batch::read_buffer_async`]; [`Error::Type`] for a tensor of another element type.
        pub fn read, read_async(&self, waiting, id: TensorId) -> Result<Vec<f32>> {
            match self.runner.read(&self.graph, &[id], waiting).await?.pop() {
                Some(Buffer::F32(elements)) => Ok(elements),
                _ => Err(Error::Type { op: "read", index: 0, expected: DType::F32, found: self.graph.ty(id)?.dtype }),
            }
        }

        /// The elements of a tensor that the last execution computed, or of an input.
        ///
        /// # Errors
        /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not computed;
        /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
        pub fn read_buffer, read_buffer_async(&self, waiting, id: TensorId) -> Result<Buffer> {
            let read = self.runner.read(&self.graph, &[id], waiting).await?.pop();
            read.ok_or(Error::ForeignTensor { index: id.index() })
        }

        /// Reads several such tensors, in one submission and with one wait.
        ///
        /// # Errors
        /// The errors of [`Batch::read_buffer_async`].
        pub fn read_many, read_many_async(&self, waiting, ids: &[TensorId]) -> Result<Vec<Buffer>> {
            self.runner.read(&self.graph, ids, waiting).await
        }

        /// The time of each kernel of the last execution, on a device that was opened to time them.
        ///
        /// # Errors
        /// [`Error::Unavailable`] on another device, [`Error::Parameter`] where nothing was executed since the batch was
        /// changed, [`Error::DeviceLost`].
        pub fn profile, profile_async(&self, waiting) -> Result<Profile> {
            self.runner.profile(waiting).await
        }
    }
}

impl<D: Driver> Record for Batch<D> {
    type Tensor = TensorId;

    fn record_all(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        self.graph.record_all(op, inputs)
    }
}
