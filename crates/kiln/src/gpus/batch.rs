//! Recorded graphs on a GPU.

use std::collections::{HashMap, HashSet};

use kiln_core::graph::{Graph, TensorId};
use kiln_core::{Buffer, Data, Error, Operand, Result};

use super::Gpu;
use super::device::Recording;

/// A recorded graph on a GPU, ready to run again.
#[derive(Debug)]
pub(crate) struct OnGpu {
    batch: Box<dyn Recording>,
    /// What was uploaded: in the graph, and in the batch.
    inputs: Vec<(TensorId, TensorId)>,
    /// In the batch.
    wanted: Vec<TensorId>,
}

impl OnGpu {
    /// Records what the wanted tensors need, and uploads what that reads.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn new(gpu: &Gpu, graph: &Graph, host: &HashMap<TensorId, Buffer>, wanted: &[TensorId]) -> Result<Self> {
        let mut batch = gpu.device.batch()?;
        let mut needed: HashSet<TensorId> = wanted.iter().copied().collect();
        for node in graph.nodes().iter().rev() {
            if node.outputs.iter().any(|id| needed.contains(id)) {
                needed.extend(&node.inputs);
            }
        }
        let mut inputs = Vec::new();
        for (&id, buffer) in host.iter().filter(|(id, _)| needed.contains(id)) {
            let operand = Operand::new(buffer.as_data(), graph.ty(id)?.shape)?;
            inputs.push((id, batch.upload(&operand)?));
        }
        let mut ids: HashMap<TensorId, TensorId> = inputs.iter().copied().collect();
        let find = |ids: &HashMap<TensorId, TensorId>, id: &TensorId| {
            ids.get(id).copied().ok_or(Error::ForeignTensor { index: id.index() })
        };
        for node in graph.nodes().iter().filter(|node| node.outputs.iter().any(|id| needed.contains(id))) {
            let read = node.inputs.iter().map(|id| find(&ids, id)).collect::<Result<Vec<_>>>()?;
            let made = batch.record(node.op, &read)?;
            ids.extend(node.outputs.iter().copied().zip(made));
        }
        let wanted = wanted.iter().map(|id| find(&ids, id)).collect::<Result<_>>()?;
        Ok(Self { batch, inputs, wanted })
    }

    /// Sends the elements of an input anew.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn set(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
        match self.inputs.iter().find(|(name, _)| *name == id) {
            Some(&(_, sent)) => self.batch.set(sent, data),
            None => Ok(()),
        }
    }

    /// Computes and reads the wanted tensors, in their order.
    ///
    /// # Errors
    /// Errors of the data and of the device.
    pub(crate) fn run(&mut self) -> Result<Vec<Buffer>> {
        self.batch.run(&self.wanted)
    }
}
