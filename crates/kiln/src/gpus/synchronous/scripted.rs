//! A GPU of which tests say when it fails. What it computes the CPU computes.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Operations, Record, Result, Shape};
use kiln_route::Backend;
use kiln_simd::Simd;

use super::Gpu;
use super::device::{Again, Device, Recording};

/// The device of a [`Gpu`], and what is left of it for the test.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scripted(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// What the next calls end with.
    errors: Mutex<VecDeque<Error>>,
    /// Calls so far.
    calls: AtomicUsize,
}

impl Scripted {
    /// A GPU of this name on it.
    pub(crate) fn gpu(&self, name: &str) -> Gpu {
        Gpu::new(name.into(), Backend::Gpu, self.clone())
    }

    /// Lets the next call end with this error, or the one after those that were said before.
    pub(crate) fn fail(&self, error: Error) {
        self.0.errors.lock().unwrap_or_else(PoisonError::into_inner).push_back(error);
    }

    /// How often it was asked to run something.
    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::Relaxed)
    }

    fn call(&self) -> Result<()> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.0.errors.lock().unwrap_or_else(PoisonError::into_inner).pop_front().map_or(Ok(()), Err)
    }
}

impl Device for Scripted {
    fn open(&self) -> Result<()> {
        Ok(())
    }

    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.call()?;
        Simd::new()?.run_into(op, inputs, outputs)
    }

    fn resident(&self, _: &Op, _: &[Operand<'_>]) -> Result<Again> {
        let device = self.clone();
        Ok(Box::new(move || device.call()))
    }

    fn reading(&self, _: &Operand<'_>) -> Result<Again> {
        let device = self.clone();
        Ok(Box::new(move || device.call()))
    }

    fn batch(&self) -> Result<Box<dyn Recording>> {
        Ok(Box::new(Recorded { device: self.clone(), graph: Graph::new(), held: HashMap::new() }))
    }
}

#[derive(Debug)]
struct Recorded {
    device: Scripted,
    graph: Graph,
    held: HashMap<TensorId, (Shape, Buffer)>,
}

impl Recording for Recorded {
    fn upload(&mut self, operand: &Operand<'_>) -> Result<TensorId> {
        let id = self.graph.input(operand.ty());
        self.held.insert(id, (operand.ty().shape, operand.data().to_buffer()?));
        Ok(id)
    }

    fn set(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
        let (_, held) = self.held.get_mut(&id).ok_or(Error::ForeignTensor { index: id.index() })?;
        *held = data.to_buffer()?;
        Ok(())
    }

    fn record(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        self.graph.record_all(op, inputs)
    }

    fn run(&mut self, wanted: &[TensorId]) -> Result<Vec<Buffer>> {
        self.device.call()?;
        let mut held = self.held.clone();
        let missing = |id: &TensorId| Error::ForeignTensor { index: id.index() };
        for node in self.graph.nodes() {
            let operand = |id: &TensorId| {
                let (shape, buffer) = held.get(id).ok_or_else(|| missing(id))?;
                Operand::new(buffer.as_data(), *shape)
            };
            let inputs = node.inputs.iter().map(operand).collect::<Result<Vec<_>>>()?;
            let results = Simd::new()?.run(&node.op, &inputs)?;
            for (&id, result) in node.outputs.iter().zip(results) {
                held.insert(id, (self.graph.ty(id)?.shape, result));
            }
        }
        wanted.iter().map(|id| held.get(id).map(|(_, buffer)| buffer.clone()).ok_or_else(|| missing(id))).collect()
    }
}
