//! A recorded graph on one device: its inputs and states in device memory, and its executions made ready.

use std::collections::{HashMap, HashSet};

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::check_outputs;
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Result, TensorType};

use crate::driver::{Driver, RegionOf};
#[cfg(not(target_arch = "wasm32"))]
use crate::executable::Call;
use crate::executable::Executable;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::state::State;
#[cfg(not(target_arch = "wasm32"))]
use crate::submission_queue::{SubmissionQueue, Submitted};
use crate::tensor::{Tensor, read_many, take, write};
#[cfg(not(target_arch = "wasm32"))]
use crate::waiting::block_on;
use crate::waiting::{Arriving, Waiting};

/// Maximum number of sets of wanted tensors whose executables are cached.
const MOST_READY: usize = 4;
/// Bytes that they may hold while another is made: these, or this share of the free memory if it is more and known. A prompt of
/// 1024 tokens of a large model holds hundreds of megabytes, in executables with a result and without one.
const MOST_BYTES: u64 = 256 << 20;
const SHARE_OF_FREE: u64 = 16;

/// Bytes that cached executables may hold on a device with this many free bytes.
fn most_bytes(free: Option<u64>) -> u64 {
    free.map_or(MOST_BYTES, |free| MOST_BYTES.max(free / SHARE_OF_FREE))
}

/// A cached executable.
#[derive(Debug)]
struct Ready<D: Driver> {
    /// The first result of the graph, which identifies the graph if no tensors are wanted.
    first: Option<TensorId>,
    wanted: Vec<TensorId>,
    /// The number of writes to states that it runs: all that were recorded when it was planned.
    writes: usize,
    /// The result that is in the memory of an input, and that input.
    feed: Option<[TensorId; 2]>,
    executable: Executable<D>,
    /// The results in memory that the host maps, if they are in such memory.
    host_results: Option<D::HostResults>,
    /// Whether it was the last execution.
    is_last: bool,
    /// Whether the caller holds one of its results.
    is_shared: bool,
}

impl<D: Driver> Ready<D> {
    fn is_for(&self, graph: &Graph, wanted: &[TensorId], feed: Option<[TensorId; 2]>) -> bool {
        self.first == first(graph) && self.wanted == wanted && self.writes == graph.writes() && self.feed == feed
    }
}

/// The inputs of a graph in the memory of a device, and its executions made ready. The graph itself is passed to each call, so
/// that one graph can run on several devices.
#[derive(Debug)]
pub struct GraphRunner<D: Driver> {
    device: D,
    inputs: HashMap<TensorId, RegionOf<D>>,
    /// Inputs whose memory the caller shares, so it must not change.
    shared: HashSet<TensorId>,
    /// Most recently used last.
    ready: Vec<Ready<D>>,
    /// Whether an input was replaced since the last execution, so that its results belong to old inputs.
    is_stale: bool,
}

impl<D: Driver> GraphRunner<D> {
    /// A runner without inputs.
    pub fn new(device: D) -> Self {
        Self { device, inputs: HashMap::new(), shared: HashSet::new(), ready: Vec::new(), is_stale: false }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Whether an input is in the memory of the device.
    pub fn has(&self, id: TensorId) -> bool {
        self.inputs.contains_key(&id)
    }

    /// Uses a tensor of the device as an input, without a copy. It is never changed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a tensor of another device.
    pub fn import(&mut self, id: TensorId, tensor: &Tensor<D>) -> Result<()> {
        tensor.check_on(&self.device)?;
        self.bind(id, tensor.region().clone());
        self.shared.insert(id);
        Ok(())
    }

    /// Uses the memory of a state of the device as a state of the graph. Executions change it, and other graphs that use it see
    /// that.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a state of another device.
    pub fn bind_state(&mut self, id: TensorId, state: &State<D>) -> Result<()> {
        state.tensor().check_on(&self.device)?;
        self.bind(id, state.tensor().region().clone());
        Ok(())
    }

    /// Uses a tensor that is here, an input or what the last execution computed, as an input of another graph or of a later
    /// execution, without a copy. Both are then the same memory: what changes one changes the other.
    ///
    /// # Errors
    /// The errors of [`GraphRunner::read`].
    pub fn alias(&mut self, id: TensorId, graph: &Graph, source: TensorId) -> Result<()> {
        let region = self.resident(graph, source)?.region().clone();
        // Then its mark is right: `tensor` marks all inputs in the memory that it returns.
        if self.inputs.get(&id).is_some_and(|bound| bound.is_same(&region)) {
            return Ok(());
        }
        let is_shared = self.shared.contains(&source) || self.is_shared(&region);
        self.bind(id, region);
        match is_shared {
            true => self.shared.insert(id),
            false => self.shared.remove(&id),
        };
        Ok(())
    }

    /// Whether the caller holds this memory: that of an input, or of results of an execution.
    fn is_shared(&self, region: &RegionOf<D>) -> bool {
        let mut inputs = self.inputs.iter().filter(|(id, _)| self.shared.contains(id)).map(|(_, input)| input);
        let mut results =
            self.ready.iter().filter(|ready| ready.is_shared).flat_map(|ready| ready.executable.results());
        inputs.any(|input| input.shares(region)) || results.any(|result| result.shares(region))
    }

    /// Removes inputs, and executions that read or made them: their memory is free as soon as its last owner is dropped.
    pub fn release(&mut self, ids: &[TensorId]) {
        let of_ready =
            |ready: &Ready<D>| ids.iter().any(|id| ready.wanted.contains(id) || ready.executable.input(*id).is_some());
        self.ready.retain(|ready| !of_ready(ready));
        for id in ids {
            self.inputs.remove(id);
            self.shared.remove(id);
        }
    }

    /// Makes a region the memory of an input, and drops the programs that are bound to another one.
    fn bind(&mut self, id: TensorId, region: RegionOf<D>) {
        if self.inputs.get(&id).is_none_or(|bound| !bound.is_same(&region)) {
            self.ready.retain(|ready| ready.executable.input(id).is_none());
            self.inputs.insert(id, region);
        }
    }

    /// Copies an input to the device. It replaces the memory of an input that is there already, for the next execution.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn upload(&mut self, id: TensorId, operand: &Operand<'_>) -> Result<()> {
        let tensor = Tensor::upload(&self.device, operand).await?;
        self.is_stale |= self.has(id);
        self.bind(id, tensor.region().clone());
        self.shared.remove(&id);
        Ok(())
    }

    /// Replaces the elements of an input for the next execution: in its memory, unless others hold that.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a tensor that is not an input here; [`Error::Type`] and [`Error::Length`] where the elements do
    /// not fit; the errors of the device.
    pub async fn set(&mut self, graph: &Graph, id: TensorId, data: Data<'_>) -> Result<()> {
        self.set_all(graph, &[(id, data)]).await
    }

    /// [`GraphRunner::set`] for several inputs. In a browser the errors of all of them are awaited once.
    ///
    /// # Errors
    /// The errors of [`GraphRunner::set`].
    pub async fn set_all(&mut self, graph: &Graph, all: &[(TensorId, Data<'_>)]) -> Result<()> {
        let mut bytes = 0;
        for &(id, data) in all {
            let ty = graph.ty(id)?;
            if ty.dtype != data.dtype() {
                return Err(Error::Type { op: "set", index: 0, expected: ty.dtype, found: data.dtype() });
            }
            Operand::new(data, ty.shape)?;
            if !self.has(id) {
                let reason = format!("tensor {} is a result; only inputs can be replaced", id.index());
                return Err(Error::Parameter { op: "set", reason });
            }
            bytes += data.bytes() as u64;
        }
        let device = self.device.clone();
        self.is_stale = true;
        // Drops the programs that are bound to the previous memory of inputs whose memory others hold.
        let Self { ready, shared, inputs, .. } = self;
        ready.retain(|ready| !all.iter().any(|(id, _)| shared.contains(id) && ready.executable.input(*id).is_some()));
        let upload = || {
            let regions = all.iter().map(|(id, data)| {
                let own = inputs.get(id).filter(|_| !shared.contains(id)).cloned();
                let region = own.map_or_else(|| take(&device, data.bytes() as u64), Ok)?;
                write(&device, &region, data.as_bytes())?;
                Ok(region)
            });
            regions.collect::<Result<Vec<_>>>()
        };
        let written = device.scoped("an upload", bytes, upload).await?;
        for (&(id, _), region) in all.iter().zip(written) {
            self.inputs.insert(id, region);
            self.shared.remove(&id);
        }
        Ok(())
    }

    /// A tensor that the last execution computed, or an input, as it is on the device. The runner does not write to its
    /// memory from then on.
    ///
    /// # Errors
    /// The errors of [`GraphRunner::read`].
    pub fn tensor(&mut self, graph: &Graph, id: TensorId) -> Result<Tensor<D>> {
        if graph.state_of(id).is_some() {
            let reason = format!("tensor {} is a state, whose memory changes; read it instead", id.index());
            return Err(Error::Parameter { op: "tensor", reason });
        }
        let tensor = self.resident(graph, id)?;
        // A result may be an input under other extents.
        let inputs = self.inputs.iter().filter(|(_, region)| region.shares(tensor.region()));
        self.shared.extend(inputs.map(|(&input, _)| input));
        for ready in &mut self.ready {
            ready.is_shared |= ready.executable.results().iter().any(|result| result.shares(tensor.region()));
        }
        Ok(tensor)
    }

    /// The last execution; `None` if it failed, or before the first.
    fn last(&self) -> Option<&Ready<D>> {
        self.ready.iter().find(|ready| ready.is_last)
    }

    fn resident(&self, graph: &Graph, id: TensorId) -> Result<Tensor<D>> {
        let ty = graph.ty(id)?;
        self.device.check_alive()?;
        let computed = self.last().filter(|_| !self.is_stale).and_then(|ready| {
            let position = ready.wanted.iter().position(|&wanted| wanted == id)?;
            ready.executable.results().get(position)
        });
        let region = computed.or_else(|| self.inputs.get(&id)).cloned().ok_or_else(|| Error::Parameter {
            op: "read",
            reason: format!("tensor {} is not among what the last execution computed", id.index()),
        })?;
        Ok(Tensor::from_region(self.device.clone(), region, ty))
    }

    /// Takes the executable for these tensors out of the cache while it is in use, and creates it if it is missing.
    /// After an error or a dropped future it is created again. If results are `read`, they are in memory that the host
    /// maps if that is faster.
    async fn take_ready(
        &mut self,
        graph: &Graph,
        wanted: &[TensorId],
        feed: Option<[TensorId; 2]>,
        read: bool,
    ) -> Result<Ready<D>> {
        self.device.check_alive()?;
        let same = self.ready.iter().position(|ready| ready.is_for(graph, wanted, feed));
        // Results that the caller holds must not change, so a new executable is created.
        if let Some(ready) = same.map(|at| self.ready.remove(at)).filter(|ready| !ready.is_shared) {
            return Ok(ready);
        }
        // Old executables release their memory before the new one allocates, except the one whose results can be read.
        let held = |ready: &[Ready<D>]| ready.iter().map(|ready| ready.executable.computed_bytes()).sum::<u64>();
        let most = most_bytes(self.device.free_bytes()?);
        while self.ready.len() >= MOST_READY || held(&self.ready) > most {
            let Some(oldest) = self.ready.iter().position(|ready| !ready.is_last) else { break };
            self.ready.remove(oldest);
        }
        match self.make_ready(graph, wanted, feed, read).await {
            Err(Error::OutOfMemory { .. }) if !self.ready.is_empty() => {
                self.ready.clear();
                crate::bodies::trim(&self.device);
                self.make_ready(graph, wanted, feed, read).await
            }
            made => made,
        }
    }

    async fn make_ready(
        &self,
        graph: &Graph,
        wanted: &[TensorId],
        feed: Option<[TensorId; 2]>,
        read: bool,
    ) -> Result<Ready<D>> {
        let plan = Plan::new(graph, wanted, self.device.target())?;
        if let Some((id, _)) = plan.inputs.iter().find(|(id, _)| !self.has(*id)) {
            let reason = format!("input {} is not on {}; upload or import it first", id.index(), self.device.label());
            return Err(Error::Parameter { op: "execute", reason });
        }
        // Only inputs of this graph: a result whose memory another graph reads gets memory of its own.
        let given = plan.inputs.iter().filter_map(|(id, _)| Some((*id, self.inputs.get(id)?.clone())));
        let mut given: HashMap<TensorId, RegionOf<D>> = given.collect();
        if let Some([result, input]) = feed {
            let region = self.inputs.get(&input).filter(|_| !self.shared.contains(&input));
            given.extend(region.map(|region| (result, region.clone())));
        }
        let host_results = if read { self.device.host_results(&plan, &mut given).await? } else { None };
        let executable = Executable::new(&self.device, plan, &given).await?;
        let (first, wanted, writes) = (first(graph), wanted.to_vec(), graph.writes());
        Ok(Ready { first, wanted, writes, feed, executable, host_results, is_last: false, is_shared: false })
    }

    /// Forgets the last execution: until the next one succeeds no result can be read.
    fn begin_execution(&mut self) {
        self.ready.iter_mut().for_each(|ready| ready.is_last = false);
    }

    /// Caches the executable that has just run.
    fn end(&mut self, ready: Ready<D>) {
        self.ready.push(Ready { is_last: true, ..ready });
        self.is_stale = false;
    }

    /// Computes these tensors, and leaves them on the device.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another graph, or an input that is not here; [`Error::Index`] for an index
    /// outside of its table; [`Error::Unsupported`], [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn execute(&mut self, graph: &Graph, wanted: &[TensorId], waiting: Waiting) -> Result<()> {
        self.begin_execution();
        let mut ready = self.take_ready(graph, wanted, None, false).await?;
        ready.executable.run(Vec::new(), waiting).await?;
        self.end(ready);
        Ok(())
    }

    /// Computes these tensors and reads them into slices.
    ///
    /// # Errors
    /// The errors of [`GraphRunner::execute`]; [`Error::Arity`], [`Error::Type`], [`Error::Length`] where results do not fit `outputs`.
    pub async fn execute_into(
        &mut self,
        graph: &Graph,
        wanted: &[TensorId],
        outputs: &mut [DataMut<'_>],
        waiting: Waiting,
    ) -> Result<()> {
        check_outputs("run_into", &types(graph, wanted)?, outputs)?;
        self.compute_into(graph, wanted, outputs, true, waiting).await
    }

    /// [`GraphRunner::execute_into`] for outputs that were checked. New executables have results that the host maps only if `mapped`.
    pub(crate) async fn compute_into(
        &mut self,
        graph: &Graph,
        wanted: &[TensorId],
        outputs: &mut [DataMut<'_>],
        mapped: bool,
        waiting: Waiting,
    ) -> Result<()> {
        self.begin_execution();
        let mut ready = self.take_ready(graph, wanted, None, mapped).await?;
        let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(DataMut::as_bytes).collect();
        match &ready.host_results {
            Some(results) => {
                ready.executable.run(Vec::new(), waiting).await?;
                self.device.read_host_results(results, &mut outputs, waiting).await?;
            }
            None => ready.executable.run(outputs.into_iter().enumerate().collect(), waiting).await?,
        }
        self.end(ready);
        Ok(())
    }

    /// Computes these tensors in a submission with other calls that wait in the queue, and reads them into slices, which were checked.
    /// `false` if they have to be computed in a submission of their own. No execution has results that the host maps.
    ///
    /// # Errors
    /// The errors of [`GraphRunner::execute_into`].
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn execute_queued(
        &mut self,
        graph: &Graph,
        wanted: &[TensorId],
        outputs: &mut [DataMut<'_>],
        queue: &SubmissionQueue<D>,
    ) -> Result<bool> {
        self.begin_execution();
        let ready = block_on(self.take_ready(graph, wanted, None, false))?;
        let Ready { first, wanted, writes, feed, executable, .. } = ready;
        let call = Call::new(executable, outputs.iter().map(DataMut::bytes));
        let Submitted::Done(call) = queue.submit(&self.device, call)? else { return Ok(false) };
        let (executable, done) = call.finish(outputs);
        done?;
        self.end(Ready {
            first,
            wanted,
            writes,
            feed,
            executable,
            host_results: None,
            is_last: false,
            is_shared: false,
        });
        Ok(true)
    }

    /// Computes these tensors and reads them.
    ///
    /// # Errors
    /// The errors of [`GraphRunner::execute`].
    pub async fn run(&mut self, graph: &Graph, wanted: &[TensorId], waiting: Waiting) -> Result<Vec<Buffer>> {
        let mut results = types(graph, wanted)?.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
        self.execute_into(graph, wanted, &mut outputs, waiting).await?;
        Ok(results)
    }

    /// Computes these tensors, and begins to read them: the future that it returns waits for them, and not for later executions.
    /// The result `feed[0]` is written to the memory of the input `feed[1]`, so that the next execution finds it there. `None` if the
    /// device cannot do this, or times kernels; then nothing was computed.
    ///
    /// # Errors
    /// The errors of [`GraphRunner::execute`].
    pub async fn begin(
        &mut self,
        graph: &Graph,
        wanted: &[TensorId],
        feed: [TensorId; 2],
        waiting: Waiting,
    ) -> Result<Option<Arriving<Vec<Buffer>>>> {
        if !D::BEGINS || self.device.is_profiling() {
            return Ok(None);
        }
        self.begin_execution();
        let types = types(graph, wanted)?;
        let mut ready = self.take_ready(graph, wanted, Some(feed), false).await?;
        // A result that is a reshaped input, for example, has no memory of its own.
        let result = wanted.iter().position(|&id| id == feed[0]).and_then(|at| ready.executable.results().get(at));
        if !result.is_some_and(|region| self.inputs.get(&feed[1]).is_some_and(|input| input.is_same(region))) {
            return Ok(None);
        }
        let begun = ready.executable.begin(types.iter().map(TensorType::bytes), waiting).await?;
        let Some(arriving) = begun else { return Ok(None) };
        self.end(ready);
        Ok(Some(Box::pin(async move {
            let filled = |(ty, bytes): (&TensorType, Vec<u8>)| {
                let mut buffer = Buffer::zeros(ty)?;
                buffer.as_mut().as_bytes().copy_from_slice(&bytes);
                Ok(buffer)
            };
            types.iter().zip(arriving.await?).map(filled).collect()
        })))
    }

    /// Reads tensors that the last execution computed, or inputs, together.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another graph, [`Error::Parameter`] for one that was not computed;
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub async fn read(&self, graph: &Graph, ids: &[TensorId], waiting: Waiting) -> Result<Vec<Buffer>> {
        let tensors = ids.iter().map(|&id| self.resident(graph, id)).collect::<Result<Vec<_>>>()?;
        read_many(&self.device, &tensors, waiting).await
    }

    /// The time of each kernel of the last execution.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the device does not time them, [`Error::Parameter`] where nothing was executed since the
    /// inputs changed, [`Error::DeviceLost`].
    pub async fn profile(&self, waiting: Waiting) -> Result<Profile> {
        match self.last().filter(|_| !self.is_stale) {
            Some(ready) => ready.executable.profile(waiting).await,
            None => {
                let reason = "nothing was executed since the inputs changed".into();
                Err(Error::Parameter { op: "profile", reason })
            }
        }
    }

    /// Makes the computation of these tensors ready: its kernels compiled and its memory allocated. The results of the last
    /// execution can still be read.
    ///
    /// # Errors
    /// The errors of [`GraphRunner::execute`].
    pub async fn prepare(&mut self, graph: &Graph, wanted: &[TensorId]) -> Result<()> {
        if self.last().is_some_and(|last| last.is_for(graph, wanted, None)) {
            return self.device.check_alive();
        }
        let ready = self.take_ready(graph, wanted, None, false).await?;
        self.ready.push(ready);
        Ok(())
    }
}

fn first(graph: &Graph) -> Option<TensorId> {
    graph.nodes().first()?.outputs.first().copied()
}

fn types(graph: &Graph, wanted: &[TensorId]) -> Result<Vec<TensorType>> {
    wanted.iter().map(|&id| graph.ty(id)).collect()
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn executables_hold_more_where_much_memory_is_free() {
        assert_eq!(most_bytes(None), MOST_BYTES);
        assert_eq!(most_bytes(Some(1 << 30)), MOST_BYTES);
        assert_eq!(most_bytes(Some(64 << 30)), 4 << 30);
    }
}
