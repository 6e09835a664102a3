use std::collections::HashSet;

use super::{Graph, Schedule, TensorId};
use crate::{Error, Result};

/// The memory of a tensor of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Location {
    /// The memory of an input, provided from outside.
    Input(TensorId),
    /// The memory of a state, provided from outside and modified.
    State(TensorId),
    /// The memory of a wanted result, which lives as long as it is wanted.
    Result(TensorId),
    /// A slot that intermediate results share.
    Slot(usize),
}

impl Schedule {
    /// The memory of a tensor that a step reads or writes, or that is wanted. The result of a reshape has the memory of its operand,
    /// and each version of a state that of the state.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another graph, and for one that this schedule does not compute.
    pub fn location(&self, graph: &Graph, id: TensorId) -> Result<Location> {
        let root = self.root(id);
        Ok(match self.slot(root) {
            Some(slot) => Location::Slot(slot),
            None if graph.state_of(root).is_some() => Location::State(root),
            None if graph.is_input(root)? => Location::Input(root),
            None if self.results.iter().any(|&wanted| self.root(wanted) == root) => Location::Result(root),
            None => return Err(Error::ForeignTensor { index: id.index() }),
        })
    }

    /// The inputs that steps read or that are wanted themselves, each once.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] where the graph is not the one that was scheduled.
    pub fn inputs(&self, graph: &Graph) -> Result<Vec<TensorId>> {
        let mut seen = HashSet::new();
        let mut inputs = Vec::new();
        let read = self.steps.iter().flat_map(|step| step.inputs().iter().copied());
        for id in read.chain(self.results.iter().copied()).map(|id| self.root(id)) {
            if graph.is_input(id)? && seen.insert(id) {
                inputs.push(id);
            }
        }
        Ok(inputs)
    }
}
