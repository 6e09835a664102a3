//! From a recorded graph to a plan.

use kiln_ir::graph::{FusionLimits, Graph, Step, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Record, Result, TensorType};

use crate::lower::{Lowering, Value, elementwise, lower};
use crate::plan::{Hardware, Location, Plan};

impl Plan {
    /// Plans the computation of the wanted tensors, with kernels for a device.
    pub(crate) fn new(graph: &Graph, wanted: &[TensorId], hardware: Hardware) -> Result<Self> {
        let schedule = graph.schedule(wanted, FusionLimits::default())?;
        let value = |id: TensorId| Ok(Value { at: Location::Tensor(schedule.location(graph, id)?), ty: graph.ty(id)? });
        let (mut dispatches, mut scratch, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for step in &schedule.steps {
            let mut lowering = Lowering::new(hardware, &mut dispatches, &mut scratch, &mut faults);
            let inputs = step.inputs().iter().map(|&id| value(id)).collect::<Result<Vec<_>>>()?;
            let outputs = step.outputs().map(value).collect::<Result<Vec<_>>>()?;
            match step {
                Step::Run { op, .. } => lower(op, &mut lowering, &inputs, &outputs)?,
                Step::Fused(fused) => elementwise::lower_fused(fused, &mut lowering, &inputs, &outputs)?,
            }
        }
        let bytes = |id| graph.ty(id).map(|ty| ty.bytes() as u64);
        let inputs = schedule.inputs(graph)?.into_iter().map(|id| Ok((id, bytes(id)?)));
        let results = schedule.results.iter().map(|&id| Ok((schedule.location(graph, id)?, bytes(id)?)));
        Ok(Self {
            dispatches,
            slots: schedule.slots.iter().map(|slot| slot.bytes as u64).collect(),
            scratch,
            faults,
            inputs: inputs.collect::<Result<_>>()?,
            results: results.collect::<Result<_>>()?,
        })
    }

    /// Plans one operation on inputs of these types: the tensors of the inputs, and the plan.
    pub(crate) fn of_operation(op: &Op, inputs: &[TensorType], hardware: Hardware) -> Result<(Vec<TensorId>, Self)> {
        let mut graph = Graph::new();
        let inputs: Vec<TensorId> = inputs.iter().map(|&ty| graph.input(ty)).collect();
        let wanted = graph.record_all(*op, &inputs)?;
        Ok((inputs, Self::new(&graph, &wanted, hardware)?))
    }
}
