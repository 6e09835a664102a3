//! The graph that a batch records, and the schedule that runs it.
//!
//! [`Graph`] records operations and checks shapes. [`Graph::schedule`] simplifies what was recorded, for the results
//! that are wanted: nodes that compute the same thing are shared, nodes that nobody needs are dropped, element-wise
//! chains become one [`Fused`] step, and results that are alive at different times share a slot of memory. All of it is
//! independent of the backend that runs the steps.
//!
//! A graph may have **states** ([`Graph::state`]): inputs that its executions change, such as the keys and values that a language
//! model keeps between tokens. An operation that updates, [`WriteRows`](crate::op::WriteRows), writes into a state and returns its
//! next version, a new id of the same memory. Only the latest version can be read, so the recorded order is the order of reads
//! and writes. A schedule keeps that order, runs every write whatever results are wanted, and never shares one.

mod fetch;
mod fuse;
mod location;
mod schedule;
mod share;
mod slots;
mod state;
mod step;

pub use fetch::Fetch;
pub use fuse::{Fused, FusionLimits, Instruction, NormLimits, Source};
pub use location::Location;
pub use schedule::Schedule;
pub use slots::Slot;
use state::States;
pub use step::Step;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::op::{Cost, Op};
use crate::{Error, Record, Result, TensorType};

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
    /// The tensors that it reads.
    pub inputs: Vec<TensorId>,
    /// The tensors that it writes.
    pub outputs: Vec<TensorId>,
}

/// Operations recorded in order. Shapes are checked as they are recorded, once, for every backend.
#[derive(Debug)]
pub struct Graph {
    id: u64,
    tensors: Vec<(TensorType, Option<u32>)>,
    nodes: Vec<Node>,
    states: States,
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
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, tensors: Vec::new(), nodes: Vec::new(), states: States::default() }
    }

    fn tensor(&mut self, ty: TensorType, node: Option<u32>) -> TensorId {
        self.tensors.push((ty, node));
        TensorId { graph: self.id, index: (self.tensors.len() - 1) as u32 }
    }

    /// Adds a tensor whose data come from outside.
    pub fn input(&mut self, ty: TensorType) -> TensorId {
        self.tensor(ty, None)
    }

    /// Adds a state: a tensor whose data come from outside, and that executions change.
    pub fn state(&mut self, ty: TensorType) -> TensorId {
        let id = self.input(ty);
        self.states.add(id);
        id
    }

    /// Whether executions of the graph change data that come from outside.
    pub fn has_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// The state that a tensor is a version of, under whatever extents.
    pub fn state_of(&self, id: TensorId) -> Option<TensorId> {
        self.states.of(id)
    }

    /// Number of recorded writes to states. Every execution runs all of them, so a schedule is valid for one such number.
    pub fn writes(&self) -> usize {
        self.states.writes()
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

    /// The nodes, in recorded order: a node reads only what earlier nodes wrote.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Number of tensors, inputs included.
    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the data of a tensor come from outside.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for an id of another graph.
    pub fn is_input(&self, id: TensorId) -> Result<bool> {
        self.ty(id)?;
        Ok(self.tensors[id.index()].1.is_none())
    }

    /// The work of every node as recorded, one after the other.
    ///
    /// # Errors
    /// The errors of the operations' shape rules.
    pub fn cost(&self) -> Result<Cost> {
        self.nodes.iter().try_fold(Cost::default(), |sum, node| {
            let types = node.inputs.iter().map(|&id| self.ty(id)).collect::<Result<Vec<_>>>()?;
            Ok(sum + node.op.cost(&types)?)
        })
    }

    /// Results that no node reads, except for superseded versions of states.
    pub fn leaves(&self) -> Vec<TensorId> {
        let read: HashSet<TensorId> = self.nodes.iter().flat_map(|node| node.inputs.iter().copied()).collect();
        let results = self.nodes.iter().flat_map(|node| node.outputs.iter().copied());
        results.filter(|id| !read.contains(id) && self.states.check_latest("leaves", *id).is_ok()).collect()
    }

    fn producer(&self, id: TensorId) -> Option<usize> {
        self.tensors[id.index()].1.map(|node| node as usize)
    }

    fn type_of(&self, id: TensorId) -> TensorType {
        self.tensors[id.index()].0
    }
}

impl Record for Graph {
    type Tensor = TensorId;

    fn record_all(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        let types = inputs.iter().map(|&id| self.ty(id)).collect::<Result<Vec<_>>>()?;
        let node = Some(self.nodes.len() as u32);
        let results = op.infer(&types)?;
        inputs.iter().try_for_each(|&id| self.states.check_latest(op.name(), id))?;
        self.states.check_update(&op, inputs)?;
        let outputs = results.iter().map(|&ty| self.tensor(ty, node)).collect::<Vec<_>>();
        self.states.recorded(&op, &types, inputs, &outputs);
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs: outputs.clone() });
        Ok(outputs)
    }
}
