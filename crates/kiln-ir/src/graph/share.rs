use std::collections::HashMap;

use super::{Graph, TensorId};
use crate::op::Op;

/// What remains of a graph for the results that are wanted.
pub(super) struct Simplified {
    /// For every tensor, the tensor that holds its value under the same extents: itself, or the result of an equal node
    /// before it.
    pub(super) same_as: Vec<TensorId>,
    /// For every tensor, the one whose memory it is, under whatever extents: itself, but for what a reshape gives.
    pub(super) root: Vec<TensorId>,
    /// Nodes that must run, in recorded order.
    pub(super) live: Vec<usize>,
}

/// Shares common nodes and drops dead ones.
///
/// Two nodes are common when the operation, its parameters (by their bits) and the tensors it reads are the same.
/// Every operation is a pure function, so the first one's results serve both. A reshape is no node that runs: its result is
/// another name for its operand.
pub(super) fn simplify(graph: &Graph, wanted: &[TensorId]) -> Simplified {
    let mut same_as: Vec<TensorId> =
        (0..graph.tensors() as u32).map(|index| TensorId { graph: graph.id, index }).collect();
    let mut root = same_as.clone();
    let mut seen = HashMap::new();
    // For the memory of a tensor, the names that it has, each under other extents.
    let mut names: HashMap<TensorId, Vec<TensorId>> = HashMap::new();
    let mut first_of = Vec::with_capacity(graph.nodes.len());
    for (at, node) in graph.nodes.iter().enumerate() {
        let inputs: Vec<TensorId> = node.inputs.iter().map(|id| same_as[id.index()]).collect();
        if let (Op::Reshape(_), [from], [out]) = (&node.op, &inputs[..], &node.outputs[..]) {
            let memory = root[from.index()];
            let names = names.entry(memory).or_insert_with(|| vec![memory]);
            let shape = graph.type_of(*out).shape;
            let known = names.iter().copied().find(|&name| graph.type_of(name).shape == shape);
            if known.is_none() {
                names.push(*out);
            }
            same_as[out.index()] = known.unwrap_or(*out);
            root[out.index()] = memory;
            first_of.push(at);
            continue;
        }
        let first = *seen.entry((node.op, inputs)).or_insert(at);
        first_of.push(first);
        for (out, original) in node.outputs.iter().zip(&graph.nodes[first].outputs) {
            same_as[out.index()] = *original;
            root[out.index()] = root[original.index()];
        }
    }

    let mut needed = vec![false; graph.nodes.len()];
    let mut pending: Vec<TensorId> = wanted.to_vec();
    while let Some(id) = pending.pop() {
        if let Some(node) = graph.producer(root[same_as[id.index()].index()])
            && !std::mem::replace(&mut needed[node], true)
        {
            pending.extend(&graph.nodes[node].inputs);
        }
    }
    let live = (0..graph.nodes.len()).filter(|&at| needed[at] && first_of[at] == at).collect();
    Simplified { same_as, root, live }
}

impl Simplified {
    /// The tensor whose memory holds the value of another.
    pub(super) fn memory(&self, id: TensorId) -> TensorId {
        self.root[self.same_as[id.index()].index()]
    }
}
