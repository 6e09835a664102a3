use std::collections::HashMap;

use super::TensorId;
use crate::op::Op;
use crate::{Error, Result, TensorType};

/// The states of a graph, and the tensors that are versions of them.
#[derive(Debug, Default)]
pub(super) struct States {
    /// For a tensor that is a version of a state: the state and the number of the version.
    versions: HashMap<TensorId, (TensorId, u32)>,
    /// The latest version of each state, and its number.
    latest: HashMap<TensorId, (TensorId, u32)>,
    writes: usize,
}

impl States {
    pub(super) fn is_empty(&self) -> bool {
        self.latest.is_empty()
    }

    pub(super) fn writes(&self) -> usize {
        self.writes
    }

    pub(super) fn add(&mut self, state: TensorId) {
        self.versions.insert(state, (state, 0));
        self.latest.insert(state, (state, 0));
    }

    /// The state that a tensor is a version of.
    pub(super) fn of(&self, id: TensorId) -> Option<TensorId> {
        self.versions.get(&id).map(|&(state, _)| state)
    }

    /// Refuses a version that a later write has superseded.
    ///
    /// # Errors
    /// [`Error::Parameter`], which names the latest version.
    pub(super) fn check_latest(&self, op: &'static str, id: TensorId) -> Result<()> {
        let Some((state, version)) = self.versions.get(&id) else { return Ok(()) };
        match self.latest.get(state) {
            Some((latest, newest)) if newest != version => {
                let reason = format!(
                    "tensor {} is a state as it was before it was written to; use its latest version, tensor {}",
                    id.index(),
                    latest.index()
                );
                Err(Error::Parameter { op, reason })
            }
            _ => Ok(()),
        }
    }

    /// Refuses an update that reads the state that it writes.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub(super) fn check_update(&self, op: &Op, inputs: &[TensorId]) -> Result<()> {
        let Some(state) = self.updated(op, inputs) else { return Ok(()) };
        match inputs[1..].iter().find(|&&id| self.of(id) == Some(state)) {
            Some(id) => {
                let reason = format!("operand {} is the state that is written to; cast or copy it first", id.index());
                Err(Error::Parameter { op: op.name(), reason })
            }
            None => Ok(()),
        }
    }

    /// The state that an operation writes to.
    pub(super) fn updated(&self, op: &Op, inputs: &[TensorId]) -> Option<TensorId> {
        if op.updates() { self.of(*inputs.first()?) } else { None }
    }

    /// Records which results are versions of states.
    pub(super) fn recorded(&mut self, op: &Op, types: &[TensorType], inputs: &[TensorId], outputs: &[TensorId]) {
        let (Some(first), Some(&out)) = (inputs.first(), outputs.first()) else { return };
        let Some(&(state, version)) = self.versions.get(first) else { return };
        if op.updates() {
            self.versions.insert(out, (state, version + 1));
            self.latest.insert(state, (out, version + 1));
            self.writes += 1;
        } else if op.renames(types) {
            self.versions.insert(out, (state, version));
        }
    }
}
