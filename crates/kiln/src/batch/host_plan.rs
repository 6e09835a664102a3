//! A schedule for the host, with the memory that running it there needs.

use std::collections::HashMap;

use kiln_ir::graph::{FusionLimits, Graph, Schedule, Step, TensorId};
use kiln_ir::op::{Matmul, Op, total_bytes};
use kiln_ir::{Buffer, Data, DataMut, Result, TensorType};
use kiln_route::Problem;

use crate::state::Taken;

/// The schedule for a set of wanted tensors, of the graph of a batch or of a part, with the element-wise chains that the CPU
/// fuses. A GPU schedules the graph again when it plans it ([`kiln_device::Plan`]).
#[derive(Debug)]
pub(super) struct HostPlan {
    pub(super) wanted: Vec<TensorId>,
    pub(super) schedule: Schedule,
    /// The inputs that the schedule reads, in the order of [`Problem::inputs_of`], followed by the inputs that are
    /// wanted.
    pub(super) inputs: Vec<TensorId>,
    /// Allocated when the plan first runs on the CPU.
    pub(super) memory: Option<Memory>,
    /// The CPU placement of each step, decided at its first run.
    pub(super) on_cpu: Vec<usize>,
}

/// The results on the host: intermediate ones in slots, wanted ones in their own buffers. The result of a reshape
/// shares the memory of its operand.
#[derive(Debug)]
pub(super) struct Memory {
    slots: Vec<Buffer>,
    pub(super) results: HashMap<TensorId, Buffer>,
    /// The elements of the states while the plan runs; empty otherwise.
    states: HashMap<TensorId, Buffer>,
}

impl HostPlan {
    pub(super) fn new(graph: &Graph, wanted: &[TensorId]) -> Result<Self> {
        #[cfg(test)]
        SCHEDULES.with(|count| count.set(count.get() + 1));
        let schedule = graph.schedule(wanted, FusionLimits::default())?;
        let mut inputs = Problem::inputs_of(&schedule, graph)?;
        // Inputs that are wanted and that no step reads.
        let wanted_inputs = schedule.inputs(graph)?.into_iter();
        inputs.extend(wanted_inputs.filter(|id| !inputs.contains(id)).collect::<Vec<_>>());
        Ok(Self { wanted: wanted.to_vec(), schedule, inputs, memory: None, on_cpu: Vec::new() })
    }

    /// The tensor whose memory holds the wanted tensor with this index: an input, a state or a result.
    pub(super) fn source(&self, at: usize) -> TensorId {
        self.schedule.root(self.schedule.results[at])
    }
}

impl Memory {
    pub(super) fn new(graph: &Graph, schedule: &Schedule) -> Result<Self> {
        let slots = schedule.slots.iter().map(|slot| Buffer::with_bytes(slot.dtype, slot.bytes));
        let slots = slots.collect::<Result<_>>()?;
        let mut results = HashMap::new();
        for id in schedule.results.iter().map(|&id| schedule.root(id)) {
            if !graph.is_input(id)? {
                results.insert(id, Buffer::zeros(&graph.ty(id)?)?);
            }
        }
        Ok(Self { slots, results, states: HashMap::new() })
    }

    /// The bytes that [`Memory::new`] allocates.
    pub(super) fn planned_bytes(graph: &Graph, schedule: &Schedule) -> Result<u64> {
        let mut bytes = total_bytes(schedule.slots.iter().map(|slot| slot.bytes as u64));
        for id in schedule.results.iter().map(|&id| schedule.root(id)) {
            if !graph.is_input(id)? {
                bytes = bytes.saturating_add(graph.ty(id)?.bytes() as u64);
            }
        }
        Ok(bytes)
    }

    /// Exchanges the states on the host with those of an execution. Called before and after it.
    pub(super) fn swap_states(&mut self, taken: &mut HashMap<TensorId, Taken>) {
        for (&id, state) in taken {
            if let Some(elements) = state.on_host() {
                let held = self.states.entry(id).or_insert_with(|| Buffer::F32(Vec::new()));
                std::mem::swap(held, elements);
            }
        }
    }

    /// Whether a tensor is in the memory of a state.
    pub(super) fn is_state(&self, schedule: &Schedule, id: TensorId) -> bool {
        self.states.contains_key(&schedule.root(id))
    }

    pub(super) fn get(&self, schedule: &Schedule, id: TensorId) -> Option<&Buffer> {
        let own = || self.results.get(&schedule.root(id)).or_else(|| self.states.get(&schedule.root(id)));
        schedule.slot(id).map_or_else(own, |slot| self.slots.get(slot))
    }

    pub(super) fn take(&mut self, schedule: &Schedule, id: TensorId) -> Buffer {
        let held = match schedule.slot(id) {
            Some(slot) => self.slots.get_mut(slot),
            None => self.results.get_mut(&id).or_else(|| self.states.get_mut(&schedule.root(id))),
        };
        held.map_or(Buffer::F32(Vec::new()), |buffer| std::mem::replace(buffer, Buffer::F32(Vec::new())))
    }

    pub(super) fn put(&mut self, schedule: &Schedule, id: TensorId, buffer: Buffer) {
        match schedule.slot(id) {
            Some(slot) => self.slots[slot] = buffer,
            None => match self.states.get_mut(&schedule.root(id)) {
                Some(state) => *state = buffer,
                None => drop(self.results.insert(id, buffer)),
            },
        }
    }
}

/// The right-hand matrix of a step that is a product and can take it packed.
pub(super) fn packable(step: &Step) -> Option<(TensorId, Matmul)> {
    match step {
        Step::Run { op: Op::Matmul(op), inputs, .. } if !op.transpose_a => Some((*inputs.get(1)?, *op)),
        _ => None,
    }
}

/// The prefix of a slot that a tensor occupies.
pub(super) fn prefix<'a>(data: Data<'a>, ty: &TensorType) -> Data<'a> {
    let bytes = ty.bytes().min(data.bytes());
    data.part(0..bytes)
}

pub(super) fn prefix_mut<'a>(data: DataMut<'a>, ty: &TensorType) -> DataMut<'a> {
    let bytes = ty.bytes().min(data.bytes());
    data.split_at(bytes).0
}

#[cfg(test)]
thread_local! {
    /// How often this thread has scheduled a graph for the host.
    pub(super) static SCHEDULES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
