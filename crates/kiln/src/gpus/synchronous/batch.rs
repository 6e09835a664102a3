//! Recorded graphs on a GPU.

use std::collections::HashMap;

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::{Buffer, Data, Operand, Result};

use super::Gpu;
use super::device::Recording;
use crate::gpus::recorded::Recorded;

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
        let recorded = Recorded::new(graph, wanted);
        let mut inputs = Vec::new();
        for (&id, buffer) in host.iter().filter(|(id, _)| recorded.needs(id)) {
            let operand = Operand::new(buffer.as_data(), graph.ty(id)?.shape)?;
            inputs.push((id, batch.upload(&operand)?));
        }
        let wanted = recorded.record(&inputs, |op, inputs| batch.record(op, inputs))?;
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
