//! The recorded graph: what a batch holds before it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::op::Op;
use crate::{Error, Result, TensorType};

/// A tensor of one graph. Ids of other graphs are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId {
    graph: u64,
    index: u32,
}

impl TensorId {
    /// Position among the tensors of its graph.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// An operation applied to tensors of the graph.
#[derive(Debug, Clone)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<TensorId>,
    /// What it writes.
    pub outputs: Vec<TensorId>,
}

/// Operations recorded in order. Shapes are checked as they are recorded, once, for every backend.
#[derive(Debug)]
pub struct Graph {
    id: u64,
    tensors: Vec<(TensorType, Option<u32>)>,
    nodes: Vec<Node>,
}

impl Default for Graph {
    fn default() -> Self {
        Self::new()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), tensors: Vec::new(), nodes: Vec::new() }
    }

    fn tensor(&mut self, ty: TensorType, node: Option<u32>) -> TensorId {
        self.tensors.push((ty, node));
        TensorId { graph: self.id, index: (self.tensors.len() - 1) as u32 }
    }

    /// Adds a tensor whose data come from outside.
    pub fn input(&mut self, ty: TensorType) -> TensorId {
        self.tensor(ty, None)
    }

    /// Records an operation.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`], and what the shape rule of the operation says.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        let op = op.into();
        let types = inputs.iter().map(|&id| self.ty(id)).collect::<Result<Vec<_>>>()?;
        let node = Some(self.nodes.len() as u32);
        let outputs = op.infer(&types)?.iter().map(|&ty| self.tensor(ty, node)).collect::<Vec<_>>();
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs: outputs.clone() });
        Ok(outputs)
    }

    /// The type of a tensor.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for an id of another graph.
    pub fn ty(&self, id: TensorId) -> Result<TensorType> {
        if id.graph != self.id {
            return Err(Error::ForeignTensor { index: id.index() });
        }
        self.tensors.get(id.index()).map(|t| t.0).ok_or(Error::ForeignTensor { index: id.index() })
    }

    /// The nodes, in recorded order: a node reads only what stands before it.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}
