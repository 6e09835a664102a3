//! From a recorded graph to a plan.

use kiln_ir::graph::{Graph, Step, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Record, Result, TensorType};

use crate::lower::{Lowering, Value, elementwise, lower};
use crate::plan::{Location, Plan, Target};

impl Plan {
    /// Plans the computation of the wanted tensors.
    pub(crate) fn new(graph: &Graph, wanted: &[TensorId], target: Target<'_>) -> Result<Self> {
        let schedule = graph.schedule(wanted, elementwise::fusion_limits(target.limits))?;
        let location = |id: TensorId| schedule.location(graph, id).map(Location::from);
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
        let inputs = schedule.inputs(graph)?.into_iter().map(|id| Ok((id, graph.ty(id)?.bytes() as u64)));
        let results = schedule.results.iter().map(|&id| Ok((location(id)?, graph.ty(id)?.bytes() as u64)));
        Ok(Self {
            dispatches,
            slots: schedule.slots.iter().map(|slot| slot.bytes as u64).collect(),
            scratch,
            faults,
            inputs: inputs.collect::<Result<_>>()?,
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
