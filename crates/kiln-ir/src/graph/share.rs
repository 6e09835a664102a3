use std::collections::HashMap;

use super::{Graph, TensorId};

/// A graph without redundant and dead nodes.
pub(super) struct Simplified {
    /// For every tensor, the tensor with its value under the same extents: itself, or the result of an equal earlier
    /// node.
    pub(super) same_as: Vec<TensorId>,
    /// For every tensor, the tensor whose elements it has under any extents: itself, except for results of reshapes.
    value: Vec<TensorId>,
    /// For every tensor, the tensor whose memory it uses under any extents: that of its elements, except for results
    /// that are written to a state.
    root: Vec<TensorId>,
    /// Nodes that must run, in recorded order.
    pub(super) live: Vec<usize>,
    /// For nodes that write to a state, the nodes that read the state before the write.
    readers_before: HashMap<usize, Vec<usize>>,
}

/// Merges common nodes and drops dead ones.
///
/// Two nodes are common if they have the same operation, the same parameters (bit for bit) and the same operands. Every
/// operation is a pure function, so the result of the first serves both; each version of a state is a tensor of its
/// own. A reshape does not run, nor does any operation that keeps all elements in their order: its result is another
/// name of its operand. A node that writes to a state is always needed.
pub(super) fn simplify(graph: &Graph, wanted: &[TensorId]) -> Simplified {
    let mut same_as: Vec<TensorId> =
        (0..graph.tensors() as u32).map(|index| TensorId { graph: graph.id, index }).collect();
    let mut value = same_as.clone();
    let mut root = same_as.clone();
    let mut seen = HashMap::new();
    let mut writers = Vec::new();
    // For the elements of a tensor, their names, each under other extents.
    let mut names: HashMap<TensorId, Vec<TensorId>> = HashMap::new();
    let mut first_of = Vec::with_capacity(graph.nodes.len());
    for (at, node) in graph.nodes.iter().enumerate() {
        let inputs: Vec<TensorId> = node.inputs.iter().map(|id| same_as[id.index()]).collect();
        if let ([from], [out]) = (&inputs[..], &node.outputs[..])
            && node.op.renames(&[graph.type_of(*from)])
        {
            let elements = value[from.index()];
            let names = names.entry(elements).or_insert_with(|| vec![elements]);
            let shape = graph.type_of(*out).shape;
            let known = names.iter().copied().find(|&name| graph.type_of(name).shape == shape);
            if known.is_none() {
                names.push(*out);
            }
            same_as[out.index()] = known.unwrap_or(*out);
            value[out.index()] = elements;
            root[out.index()] = root[from.index()];
            first_of.push(at);
            continue;
        }
        if graph.states.updated(&node.op, &node.inputs).is_some() {
            writers.push(at);
            first_of.push(at);
            root[node.outputs[0].index()] = root[inputs[0].index()];
            continue;
        }
        let first = *seen.entry((node.op, inputs)).or_insert(at);
        first_of.push(first);
        for (out, original) in node.outputs.iter().zip(&graph.nodes[first].outputs) {
            same_as[out.index()] = *original;
            value[out.index()] = *original;
            root[out.index()] = *original;
        }
    }

    let mut needed = vec![false; graph.nodes.len()];
    let written = writers.iter().flat_map(|&node| &graph.nodes[node].outputs);
    let mut pending: Vec<TensorId> = wanted.iter().chain(written).copied().collect();
    while let Some(id) = pending.pop() {
        if let Some(node) = graph.producer(value[same_as[id.index()].index()])
            && !std::mem::replace(&mut needed[node], true)
        {
            pending.extend(&graph.nodes[node].inputs);
        }
    }
    let live = (0..graph.nodes.len()).filter(|&at| needed[at] && first_of[at] == at).collect();
    let mut simplified = Simplified { same_as, value, root, live, readers_before: HashMap::new() };
    if !writers.is_empty() {
        simplified.order_writes(graph, &writers);
    }
    simplified
}

impl Simplified {
    /// The tensor whose memory holds the value of another.
    pub(super) fn memory(&self, id: TensorId) -> TensorId {
        self.root[self.same_as[id.index()].index()]
    }

    /// The tensor whose elements a tensor has, under any extents.
    pub(super) fn elements(&self, id: TensorId) -> TensorId {
        self.value[self.same_as[id.index()].index()]
    }

    /// Nodes that must run before a node although it does not read their results.
    pub(super) fn before(&self, node: usize) -> &[usize] {
        self.readers_before.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Whether a node reads a state that another node writes to afterwards.
    pub(super) fn reads_before_a_write(&self, node: usize) -> bool {
        self.readers_before.values().any(|readers| readers.contains(&node))
    }

    /// Finds, for each node that writes to a state, the live nodes that read the version before.
    fn order_writes(&mut self, graph: &Graph, writers: &[usize]) {
        let writer_of: HashMap<TensorId, usize> =
            writers.iter().map(|&node| (self.elements(graph.nodes[node].inputs[0]), node)).collect();
        for &reader in &self.live {
            for &id in &graph.nodes[reader].inputs {
                if let Some(&writer) = writer_of.get(&self.elements(id))
                    && writer != reader
                {
                    self.readers_before.entry(writer).or_default().push(reader);
                }
            }
        }
    }
}
