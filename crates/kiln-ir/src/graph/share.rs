use std::collections::HashMap;

use super::{Graph, TensorId};

/// What remains of a graph for the results that are wanted.
pub(super) struct Simplified {
    /// For every tensor, the tensor that holds its value: itself, or the result of an equal node before it.
    pub(super) same_as: Vec<TensorId>,
    /// Nodes that must run, in recorded order.
    pub(super) live: Vec<usize>,
}

/// Shares common nodes and drops dead ones.
///
/// Two nodes are common when the operation, its parameters (by their bits) and the tensors it reads are the same.
/// Every operation is a pure function, so the first one's results serve both.
pub(super) fn simplify(graph: &Graph, wanted: &[TensorId]) -> Simplified {
    let mut same_as: Vec<TensorId> =
        (0..graph.tensors() as u32).map(|index| TensorId { graph: graph.id, index }).collect();
    let mut seen = HashMap::new();
    let mut first_of = Vec::with_capacity(graph.nodes.len());
    for (at, node) in graph.nodes.iter().enumerate() {
        let inputs: Vec<TensorId> = node.inputs.iter().map(|id| same_as[id.index()]).collect();
        let first = *seen.entry((node.op, inputs)).or_insert(at);
        first_of.push(first);
        for (out, original) in node.outputs.iter().zip(&graph.nodes[first].outputs) {
            same_as[out.index()] = *original;
        }
    }

    let mut needed = vec![false; graph.nodes.len()];
    let mut pending: Vec<TensorId> = wanted.to_vec();
    while let Some(id) = pending.pop() {
        if let Some(node) = graph.producer(same_as[id.index()])
            && !std::mem::replace(&mut needed[node], true)
        {
            pending.extend(&graph.nodes[node].inputs);
        }
    }
    let live = (0..graph.nodes.len()).filter(|&at| needed[at] && first_of[at] == at).collect();
    Simplified { same_as, live }
}
