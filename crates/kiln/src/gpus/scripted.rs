//! A GPU that fails when a test says so. What it computes the CPU computes.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kiln_device::waiting::{Arriving, Waiting};
use kiln_device::{KernelTime, MemoryUse, Profile};
use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::{Call, Custom, Op};
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Operations, Result, Shape, TensorType};
use kiln_route::Backend;
use kiln_simd::Simd;

use super::Gpu;
use super::device::{Again, Device, Pending, Resident, Runner};

/// The device of a [`Gpu`], which the test controls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scripted(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The errors that the next calls return.
    errors: Mutex<VecDeque<Error>>,
    /// Whether the next execution of a graph does not end.
    hangs: AtomicBool,
    /// Calls so far.
    calls: AtomicUsize,
    /// Number of tensors that runners held at the last call.
    held: AtomicUsize,
}

impl Scripted {
    /// A GPU of this name with this device.
    pub(crate) fn gpu(&self, name: &str) -> Gpu {
        Gpu::new(name.into(), Backend::Gpu, self.clone())
    }

    /// Makes the next call fail with this error, after the errors that were queued before.
    pub(crate) fn fail(&self, error: Error) {
        self.0.errors.lock().unwrap_or_else(PoisonError::into_inner).push_back(error);
    }

    /// Makes the future of the next execution of a graph wait for ever.
    pub(crate) fn hang(&self) {
        self.0.hangs.store(true, Ordering::Relaxed);
    }

    /// The number of device tensors that the last graph and earlier ones hold.
    pub(crate) fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// The number of calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::Relaxed)
    }

    fn call(&self) -> Result<()> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.0.errors.lock().unwrap_or_else(PoisonError::into_inner).pop_front().map_or(Ok(()), Err)
    }
}

/// A future that is complete.
fn done<'a, T: Send + 'a>(result: Result<T>) -> Pending<'a, T> {
    Box::pin(std::future::ready(result))
}

impl Device for Scripted {
    fn open(&self, _: Waiting) -> Pending<'_, ()> {
        done(Ok(()))
    }

    fn has_kernel(&self, _: &Custom) -> bool {
        true
    }

    fn run_call<'a>(&'a self, call: &'a Call<'_>, outputs: &'a mut [DataMut<'_>], _: Waiting) -> Pending<'a, ()> {
        done(self.call().and_then(|()| Simd::new()?.run_call(call, outputs)))
    }

    fn upload<'a>(&'a self, operand: &'a Operand<'_>, _: Waiting) -> Pending<'a, Resident> {
        let buffer = operand.data().to_buffer();
        done(buffer.map(|buffer| Resident::scripted(operand.ty().shape, buffer)))
    }

    fn state<'a>(&'a self, from: Option<Data<'a>>, ty: TensorType, _: Waiting) -> Pending<'a, Resident> {
        let buffer = from.map_or_else(|| Buffer::zeros(&ty), |data| data.to_buffer());
        done(buffer.map(|buffer| Resident::scripted_state(ty.shape, buffer)))
    }

    fn run<'a>(&'a self, op: &'a Op, inputs: &'a [Resident], _: Waiting) -> Pending<'a, Vec<Resident>> {
        let run = || {
            self.call()?;
            let held = inputs.iter().map(Resident::of_script).collect::<Result<Vec<_>>>()?;
            let operands =
                held.iter().map(|held| Operand::new(held.1.as_data(), held.0)).collect::<Result<Vec<_>>>()?;
            let types: Vec<_> = operands.iter().map(Operand::ty).collect();
            let outputs = op.infer(&types)?;
            let results = Simd::new()?.run(op, &operands)?.into_iter().zip(outputs.iter());
            Ok(results.map(|(buffer, ty)| Resident::scripted(ty.shape, buffer)).collect())
        };
        done(run())
    }

    fn runner(&self, _: Waiting) -> Pending<'_, Box<dyn Runner>> {
        let runner: Box<dyn Runner> =
            Box::new(Recorded { device: self.clone(), held: HashMap::new(), states: HashMap::new() });
        done(Ok(runner))
    }

    fn planned_bytes<'a>(&'a self, graph: &'a Graph, wanted: &'a [TensorId], _: Waiting) -> Pending<'a, u64> {
        let bytes = wanted.iter().map(|&id| graph.ty(id).map(|ty| ty.bytes() as u64));
        done(bytes.sum())
    }

    fn memory(&self, _: Waiting) -> Pending<'_, (Option<u64>, u64)> {
        done(Ok((None, 256)))
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }

    fn compile_ahead<'a>(&'a self, _: &'a [(Op, &'a [TensorType])], _: Waiting) -> Pending<'a, ()> {
        done(Ok(()))
    }

    fn resident(&self, _: &Op, _: &[Operand<'_>]) -> Result<Again> {
        let device = self.clone();
        Ok(Box::new(move |_| device.call()))
    }

    fn copies(&self, op: &Op, inputs: &[Operand<'_>], _: usize) -> Result<Again> {
        self.resident(op, inputs)
    }

    fn reopen(&self, _: Waiting) -> Pending<'_, bool> {
        done(Ok(false))
    }
}

/// The state of recorded graphs on a scripted device: inputs, and the wanted tensors of executions.
#[derive(Debug)]
struct Recorded {
    device: Scripted,
    held: HashMap<TensorId, (Shape, Buffer)>,
    states: HashMap<TensorId, Resident>,
}

impl Recorded {
    fn find(&self, id: TensorId) -> Result<&(Shape, Buffer)> {
        self.held.get(&id).ok_or(Error::ForeignTensor { index: id.index() })
    }

    fn compute(&mut self, graph: &Graph, wanted: &[TensorId]) -> Result<()> {
        self.device.call()?;
        for (&id, state) in &self.states {
            self.held.insert(id, state.state_of_script()?.clone());
        }
        for node in graph.nodes() {
            let operand = |id: &TensorId| self.find(*id).map(|(shape, buffer)| Operand::new(buffer.as_data(), *shape));
            // Nodes that are not wanted may read inputs that this device does not have.
            let Ok(inputs) = node.inputs.iter().map(operand).collect::<Result<Vec<_>>>() else { continue };
            let results = Simd::new()?.run(&node.op, &inputs.into_iter().collect::<Result<Vec<_>>>()?)?;
            for (&id, result) in node.outputs.iter().zip(results) {
                let written = graph.state_of(id).filter(|_| node.op.updates());
                if let Some(state) = written.and_then(|state| self.states.get(&state)) {
                    state.state_of_script()?.1 = result.clone();
                }
                self.held.insert(id, (graph.ty(id)?.shape, result));
            }
        }
        let between = graph.nodes().iter().flat_map(|node| &node.outputs).filter(|id| !wanted.contains(id));
        between.for_each(|id| drop(self.held.remove(id)));
        self.device.0.held.store(self.held.len(), Ordering::Relaxed);
        Ok(())
    }
}

impl Runner for Recorded {
    fn has(&self, id: TensorId) -> bool {
        self.held.contains_key(&id)
    }

    fn import(&mut self, id: TensorId, tensor: &Resident) -> Result<()> {
        self.held.insert(id, tensor.of_script()?.clone());
        Ok(())
    }

    fn bind_state(&mut self, id: TensorId, state: &Resident) -> Result<()> {
        drop(state.state_of_script()?);
        self.states.insert(id, state.clone());
        Ok(())
    }

    fn alias(&mut self, id: TensorId, _: &Graph, source: TensorId) -> Result<()> {
        let held = self.find(source)?.clone();
        self.held.insert(id, held);
        Ok(())
    }

    fn release(&mut self, ids: &[TensorId]) {
        ids.iter().for_each(|id| drop(self.held.remove(id)));
    }

    fn upload<'a>(&'a mut self, id: TensorId, operand: &'a Operand<'_>) -> Pending<'a, ()> {
        let buffer = operand.data().to_buffer();
        done(buffer.map(|buffer| drop(self.held.insert(id, (operand.ty().shape, buffer)))))
    }

    fn set_all<'a>(&'a mut self, graph: &'a Graph, all: &'a [(TensorId, Data<'a>)]) -> Pending<'a, ()> {
        let mut set = |&(id, data): &(TensorId, Data<'a>)| {
            let shape = graph.ty(id)?.shape;
            self.held.insert(id, (shape, data.to_buffer()?));
            Ok(())
        };
        done(all.iter().try_for_each(&mut set))
    }

    fn execute<'a>(&'a mut self, graph: &'a Graph, wanted: &'a [TensorId], _: Waiting) -> Pending<'a, ()> {
        if self.device.0.hangs.swap(false, Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        done(self.compute(graph, wanted))
    }

    fn run<'a>(&'a mut self, graph: &'a Graph, wanted: &'a [TensorId], waiting: Waiting) -> Pending<'a, Vec<Buffer>> {
        match self.compute(graph, wanted) {
            Ok(()) => self.read(graph, wanted, waiting),
            Err(error) => done(Err(error)),
        }
    }

    fn begin<'a>(
        &'a mut self,
        _: &'a Graph,
        _: &'a [TensorId],
        _: [TensorId; 2],
        _: Waiting,
    ) -> Pending<'a, Option<Arriving<Vec<Buffer>>>> {
        Box::pin(async { Ok(None) })
    }

    fn read<'a>(&'a self, _: &'a Graph, ids: &'a [TensorId], _: Waiting) -> Pending<'a, Vec<Buffer>> {
        done(ids.iter().map(|&id| self.find(id).map(|(_, buffer)| buffer.clone())).collect())
    }

    fn tensor(&mut self, _: &Graph, id: TensorId) -> Result<Resident> {
        self.find(id).map(|(shape, buffer)| Resident::scripted(*shape, buffer.clone()))
    }

    fn profile(&self, _: Waiting) -> Pending<'_, Profile> {
        let kernel = KernelTime { name: "all".into(), grid: [1; 3], resident_blocks: None, nanoseconds: 1e3 };
        done(Ok(Profile { kernels: vec![kernel] }))
    }
}
