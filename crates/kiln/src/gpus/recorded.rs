//! What some tensors of a recorded graph need, recorded again by a batch on a device.

use std::collections::{HashMap, HashSet};

use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Error, Result};

/// The part of a graph that leads to some of its tensors.
pub(super) struct Recorded<'a> {
    graph: &'a Graph,
    wanted: &'a [TensorId],
    needed: HashSet<TensorId>,
}

impl<'a> Recorded<'a> {
    /// That of the wanted tensors.
    pub(super) fn new(graph: &'a Graph, wanted: &'a [TensorId]) -> Self {
        let mut needed: HashSet<TensorId> = wanted.iter().copied().collect();
        for node in graph.nodes().iter().rev() {
            if node.outputs.iter().any(|id| needed.contains(id)) {
                needed.extend(&node.inputs);
            }
        }
        Self { graph, wanted, needed }
    }

    /// Whether a tensor is read on the way.
    pub(super) fn needs(&self, id: &TensorId) -> bool {
        self.needed.contains(id)
    }

    /// Records the operations by `record`, which knows the inputs under the second of their names, and gives the names of the
    /// wanted tensors there.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor that is neither given nor computed, and those of `record`.
    pub(super) fn record(
        &self,
        inputs: &[(TensorId, TensorId)],
        mut record: impl FnMut(Op, &[TensorId]) -> Result<Vec<TensorId>>,
    ) -> Result<Vec<TensorId>> {
        let mut names: HashMap<TensorId, TensorId> = inputs.iter().copied().collect();
        let find = |names: &HashMap<TensorId, TensorId>, ids: &[TensorId]| {
            let name = |id: &TensorId| names.get(id).copied().ok_or(Error::ForeignTensor { index: id.index() });
            ids.iter().map(name).collect::<Result<Vec<_>>>()
        };
        for node in self.graph.nodes().iter().filter(|node| node.outputs.iter().any(|id| self.needs(id))) {
            let made = record(node.op, &find(&names, &node.inputs)?)?;
            names.extend(node.outputs.iter().copied().zip(made));
        }
        find(&names, self.wanted)
    }
}
