//! From a recorded graph to a plan.

use std::collections::HashSet;

use kiln_core::graph::{Graph, Schedule, Step, TensorId};
use kiln_core::op::Op;
use kiln_core::{Error, Record, Result, TensorType};

use crate::lower::{Lowering, Value, elementwise, lower};
use crate::plan::{Location, Plan, Target};

impl Plan {
    /// Plans the computation of the wanted tensors.
    pub(crate) fn new(graph: &Graph, wanted: &[TensorId], target: Target<'_>) -> Result<Self> {
        let schedule = graph.schedule(wanted, elementwise::fusion_limits(target.limits))?;
        let kept: HashSet<TensorId> = schedule.results.iter().copied().collect();
        let location = |id: TensorId| -> Result<Location> {
            Ok(match schedule.slot(id) {
                Some(slot) => Location::Slot(slot),
                None if graph.is_input(id)? => Location::Input(id),
                None if kept.contains(&id) => Location::Result(id),
                None => return Err(Error::ForeignTensor { index: id.index() }),
            })
        };
        let value = |id: TensorId| Ok(Value { at: location(id)?, ty: graph.ty(id)? });

        let (mut dispatches, mut scratch, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for step in &schedule.steps {
            let mut lowering = Lowering::new(target, &mut dispatches, &mut scratch, &mut faults);
            let inputs = step.inputs().iter().map(|&id| value(id)).collect::<Result<Vec<_>>>()?;
            let outputs = step.outputs().map(value).collect::<Result<Vec<_>>>()?;
            match step {
                Step::Run { op, .. } => lower(op, &mut lowering, &inputs, &outputs)?,
                Step::Fused(fused) => elementwise::lower_fused(fused, &mut lowering, &inputs, &outputs),
            }
        }
        let results = schedule.results.iter().map(|&id| Ok((location(id)?, graph.ty(id)?.bytes() as u64)));
        Ok(Self {
            dispatches,
            slots: schedule.slots.iter().map(|slot| slot.bytes as u64).collect(),
            scratch,
            faults,
            inputs: inputs_of(&schedule, graph)?,
            results: results.collect::<Result<_>>()?,
        })
    }

    /// Plans one operation on inputs of these types: the graph that it is, and its plan.
    pub(crate) fn of_operation(op: &Op, inputs: &[TensorType], target: Target<'_>) -> Result<(Vec<TensorId>, Self)> {
        let mut graph = Graph::new();
        let inputs: Vec<TensorId> = inputs.iter().map(|&ty| graph.input(ty)).collect();
        let wanted = graph.record_all(*op, &inputs)?;
        Ok((inputs, Self::new(&graph, &wanted, target)?))
    }
}

/// The inputs that a schedule reads or gives back.
fn inputs_of(schedule: &Schedule, graph: &Graph) -> Result<Vec<(TensorId, u64)>> {
    let mut seen = HashSet::new();
    let mut inputs = Vec::new();
    let read = schedule.steps.iter().flat_map(|step| step.inputs().iter().copied());
    for id in read.chain(schedule.results.iter().copied()) {
        if graph.is_input(id)? && seen.insert(id) {
            inputs.push((id, graph.ty(id)?.bytes() as u64));
        }
    }
    Ok(inputs)
}
