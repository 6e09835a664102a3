//! Plans that run on the CPU, step by step.

use std::collections::HashMap;

use kiln_ir::graph::{Schedule, Step, TensorId};
use kiln_ir::op::widened;
use kiln_ir::{Buffer, DataMut, Error, Operand, Result};

use super::host_plan::{HostPlan, Memory, packable, prefix, prefix_mut};
use super::parts::Names;
use super::{Batch, Held, name};
use crate::state::Taken;

impl Batch<'_> {
    /// Runs a plan on the CPU: the plan of the batch's graph, or that of a part.
    pub(super) fn run_on_cpu(
        &mut self,
        part: Option<&Names>,
        plan: &mut HostPlan,
        held: &HashMap<TensorId, Held<'_>>,
        states: &mut HashMap<TensorId, Taken>,
    ) -> Result<()> {
        self.pack_for(part, &plan.schedule, held)?;
        let graph = part.map_or(&self.graph, |part| &part.graph);
        if plan.memory.is_none() {
            plan.memory = Some(Memory::new(graph, &plan.schedule)?);
        }
        if plan.on_cpu.is_empty() {
            let place = |step| self.engine.place_on_cpu(step, graph);
            plan.on_cpu = plan.schedule.steps.iter().map(place).collect::<Result<_>>()?;
        }
        let HostPlan { schedule, memory: Some(memory), on_cpu, .. } = plan else { return Ok(()) };
        let mut done = Ok(());
        memory.swap_states(states);
        for (step, &place) in schedule.steps.iter().zip(&*on_cpu) {
            let ids: Vec<TensorId> = step.outputs().collect();
            // The outputs leave the storage while the step writes them; no step reads its own outputs.
            let mut out: Vec<Buffer> = ids.iter().map(|&id| memory.take(schedule, id)).collect();
            done = self.run_step(part, schedule, memory, held, (step, place), &mut out);
            for (id, buffer) in ids.into_iter().zip(out) {
                memory.put(schedule, id, buffer);
            }
            if done.is_err() {
                break;
            }
        }
        memory.swap_states(states);
        done
    }

    fn run_step(
        &self,
        part: Option<&Names>,
        schedule: &Schedule,
        memory: &Memory,
        held: &HashMap<TensorId, Held<'_>>,
        (step, place): (&Step, usize),
        out: &mut [Buffer],
    ) -> Result<()> {
        let graph = part.map_or(&self.graph, |part| &part.graph);
        // A state is updated in place.
        let updated = match step {
            Step::Run { op, inputs, .. } if op.updates() => inputs.first().filter(|&&id| memory.is_state(schedule, id)),
            _ => None,
        };
        let mut operands = Vec::with_capacity(step.inputs().len());
        for &id in step.inputs() {
            let ty = graph.ty(id)?;
            if Some(&id) == updated {
                operands.push(Operand::of_type(ty));
                continue;
            }
            // Only `memory` holds the tensors that are in slots.
            let outside = if schedule.slot(id).is_some() { None } else { held.get(&schedule.root(id)) };
            operands.push(match (outside, memory.get(schedule, id)) {
                (Some(held), _) => held.operand(&ty)?,
                (None, Some(buffer)) => Operand::new(prefix(buffer.as_data(), &ty), ty.shape)?,
                (None, None) => return Err(Error::ForeignTensor { index: id.index() }),
            });
        }
        let mut outputs = Vec::with_capacity(out.len());
        for (id, buffer) in step.outputs().zip(out) {
            outputs.push(prefix_mut(buffer.as_mut(), &graph.ty(id)?));
        }
        if self.engine.takes_packed()
            && let Some((id, op)) = packable(step)
            && let Some(b) = self.packed.get(&(name(part, id), op.transpose_b))
            && let [DataMut::F32(out)] = &mut outputs[..]
        {
            // One matrix multiplies a stack of others: the rows of the stack follow one another in memory.
            let dims = operands[0].ty().shape;
            let m = dims.dims().iter().rev().skip(1).product();
            return widened(&operands[..1], kiln_ir::widen, |a| {
                self.engine.matmul_packed_into(a[0].data().f32(), b, m, out)
            });
        }
        match step {
            Step::Run { op, .. } if updated.is_some() => {
                let state = outputs.pop().ok_or(Error::Arity { op: op.name(), expected: 1, found: 0 })?;
                self.engine.cpu[place].update(op, &operands, state)
            }
            Step::Run { op, .. } => self.engine.run_step(place, op, &operands, &mut outputs),
            Step::Fused(fused) => {
                let inputs: Vec<&[f32]> = operands.iter().map(|o| o.data().f32()).collect();
                let mut slices: Vec<&mut [f32]> = outputs.iter_mut().map(DataMut::f32).collect();
                self.engine.cpu[place].run_fused(fused, &inputs, &mut slices)
            }
        }
    }
}
