//! Runs plans in parts, each on its device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kiln_device::waiting::Waiting;
use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::{Buffer, Error, Operand, Result};

use super::batch_plan::BatchPlan;
use super::lent::{Lent, LentRunner};
use super::parts::{On, Part, Placed};
use super::{Batch, Held, Input, copied, one};
use crate::Tensor;
use crate::gpus::Fault;
use crate::state::Taken;

impl Batch<'_> {
    /// Runs the parts of a plan in turn: GPUs compute while the next parts are prepared. If `read` is set and the last
    /// part computes all wanted tensors on a GPU, returns them: the submission that computes them downloads them too.
    pub(super) async fn compute_parts(
        &mut self,
        plan: &mut BatchPlan,
        read: bool,
        waiting: Waiting,
    ) -> Result<Option<Vec<Buffer>>, Fault> {
        let by_last = if read { made_by_last(plan) } else { None };
        let Some(Placed { parts: Some(parts), .. }) = &mut plan.placed else {
            return Err(Error::Parameter { op: "execute", reason: "the plan was not placed".into() }.into());
        };
        // Results of GPUs that other parts read.
        let mut fetched: HashMap<(usize, TensorId), Buffer> = HashMap::new();
        let (parts_count, mut results) = (parts.list.len(), None);
        for number in 0..parts.list.len() {
            let (before, rest) = parts.list.split_at_mut(number);
            let Some(part) = rest.first_mut() else { break };
            for &(_, (source, id)) in &part.from_parts {
                let Some(gpu) = before[source].gpu().filter(|_| before[source].gpu() != part.gpu()) else { continue };
                if let Entry::Vacant(missing) = fetched.entry((source, id)) {
                    let read = self.read_from(gpu, &before[source].names.graph, id, waiting).await;
                    missing.insert(read.map_err(Fault::of(&self.engine.gpus[gpu]))?);
                }
            }
            let is_last = number + 1 == parts_count;
            match part.gpu() {
                Some(gpu) => {
                    let wanted = by_last.as_deref().filter(|_| is_last);
                    results = self.run_part_on(gpu, part, before, &fetched, wanted, waiting).await?;
                }
                None => self.run_part(part, before, &fetched, waiting).await?,
            }
        }
        Ok(results)
    }

    async fn read_from(&self, gpu: usize, graph: &Graph, id: TensorId, waiting: Waiting) -> Result<Buffer> {
        let runner = self.runners.get(&gpu).ok_or(Error::ForeignTensor { index: id.index() })?;
        one(runner.read(graph, &[id], waiting).await?, id)
    }

    /// Runs a part on the CPU.
    async fn run_part(
        &mut self,
        part: &mut Part,
        before: &[Part],
        fetched: &HashMap<(usize, TensorId), Buffer>,
        waiting: Waiting,
    ) -> Result<(), Fault> {
        let on_host = self.on_host(&part.inputs(), waiting).await?;
        let mut states = self.take_states_of(part)?;
        for state in states.values_mut() {
            state.bring_to_host(waiting).await?;
        }
        let Part { on: On::Cpu(plan), names, from_parts } = part else { return Ok(()) };
        let inputs = std::mem::take(&mut self.inputs);
        let by_name = on_host.operands(&inputs);
        let own = |(&inner, outer): (&TensorId, &TensorId)| Some((inner, *by_name.get(outer)?));
        let mut held: HashMap<TensorId, Held<'_>> = names.outer.iter().filter_map(own).collect();
        let mut done = Ok(());
        for &(inner, (source, id)) in &*from_parts {
            match fetched.get(&(source, id)).map_or_else(|| before[source].result(id), Ok) {
                Ok(buffer) => drop(held.insert(inner, Held::Owned(buffer))),
                Err(error) => done = Err(error),
            }
        }
        let done = done.and_then(|()| self.run_on_cpu(Some(names), plan, &held, &mut states));
        self.inputs = inputs;
        Ok(done?)
    }

    /// Takes the states of a part for its execution, by their ids in the part.
    fn take_states_of(&self, part: &Part) -> Result<HashMap<TensorId, Taken>> {
        let states = part.names.outer.iter().filter_map(|(&inner, outer)| match self.inputs.get(outer) {
            Some(Input::State(state)) => Some(state.take().map(|taken| (inner, taken))),
            _ => None,
        });
        states.collect()
    }

    /// Submits a part to a GPU, and downloads its results at the indices `read`, if given.
    async fn run_part_on(
        &mut self,
        gpu: usize,
        part: &Part,
        before: &[Part],
        fetched: &HashMap<(usize, TensorId), Buffer>,
        read: Option<&[usize]>,
        waiting: Waiting,
    ) -> Result<Option<Vec<Buffer>>, Fault> {
        let mut lent = Lent::runner(self, gpu, waiting).await?;
        let (batch, LentRunner { runner, .. }) = lent.split();
        batch.send(gpu, &part.inputs(), &mut **runner, waiting).await?;
        let handle = batch.engine.gpus[gpu].clone();
        let mut states = batch.take_states_of(part)?;
        for (&inner, &outer) in &part.names.outer {
            match states.get_mut(&inner) {
                Some(state) => runner.bind_state(inner, &state.on_gpu(&handle, waiting).await?),
                None => runner.alias(inner, &batch.graph, outer),
            }
            .map_err(Fault::of(&handle))?;
        }
        let run = async {
            let graph = &part.names.graph;
            for &(inner, (source, id)) in &part.from_parts {
                if before[source].gpu() == Some(gpu) {
                    runner.alias(inner, &before[source].names.graph, id)?;
                    continue;
                }
                let buffer = fetched.get(&(source, id)).map_or_else(|| before[source].result(id), Ok)?;
                match runner.has(inner) {
                    true => runner.set_all(graph, &[(inner, buffer.as_data())]).await?,
                    false => {
                        runner.upload(inner, &Operand::new(buffer.as_data(), graph.ty(inner)?.shape)?).await?;
                    }
                }
            }
            let results = match read {
                Some(_) => Some(runner.run(graph, part.wanted(), waiting).await?),
                None => {
                    runner.execute(graph, part.wanted(), waiting).await?;
                    None
                }
            };
            // Results stay in device memory under their own ids, whatever is executed afterwards.
            part.wanted().iter().try_for_each(|&id| runner.alias(id, graph, id))?;
            let (Some(mut results), Some(read)) = (results, read) else { return Ok(None) };
            let of = |&at: &usize| results.get_mut(at).map(|found| std::mem::replace(found, Buffer::F32(Vec::new())));
            Ok(read.iter().map(of).collect())
        };
        run.await.map_err(Fault::of(&handle))
    }

    /// Frees the tensors that discarded parts held on GPUs.
    pub(super) fn release(&mut self, held: impl IntoIterator<Item = (usize, Vec<TensorId>)>) {
        for (gpu, ids) in held {
            if let Some(runner) = self.runners.get_mut(&gpu) {
                runner.release(&ids);
            }
        }
    }

    /// Reads a result of a plan in parts.
    pub(super) async fn read_part(&self, plan: &BatchPlan, id: TensorId, waiting: Waiting) -> Result<Buffer> {
        let missing = Error::ForeignTensor { index: id.index() };
        let Some((part, inner)) = made(plan, id) else { return Err(missing) };
        match part.gpu() {
            Some(gpu) => self.read_from(gpu, &part.names.graph, inner, waiting).await,
            None => copied(part.result(inner)?),
        }
    }

    /// A result of the last plan, which ran in parts, if it is on a GPU.
    pub(super) fn tensor_of_part(&mut self, id: TensorId) -> Result<Option<Tensor>> {
        let ty = self.graph.ty(id)?;
        let Some(plan) = self.plans.last() else { return Ok(None) };
        let Some(at) = plan.whole.wanted.iter().position(|&wanted| wanted == id) else { return Ok(None) };
        let source = plan.whole.source(at);
        let Some((Part { on: On::Gpu(gpu, _), names, .. }, inner)) = made(plan, source) else { return Ok(None) };
        let Some(runner) = self.runners.get_mut(gpu) else { return Ok(None) };
        Ok(Some(Tensor::on_device(&self.engine.gpus[*gpu], runner.tensor(&names.graph, inner)?, ty)))
    }
}

/// The part that computes a result, and the id of the result there.
fn made(plan: &BatchPlan, id: TensorId) -> Option<(&Part, TensorId)> {
    let parts = plan.placed.as_ref()?.parts.as_ref()?;
    let &(part, inner) = parts.made.get(&id)?;
    Some((parts.list.get(part)?, inner))
}

/// For each result of a plan, its index among the results of the last part; `None` unless that part computes all of
/// them, each once, on a GPU.
fn made_by_last(plan: &BatchPlan) -> Option<Vec<usize>> {
    let parts = plan.placed.as_ref()?.parts.as_ref()?;
    let last = parts.list.last().filter(|part| part.gpu().is_some())?;
    let mut places = Vec::with_capacity(plan.whole.schedule.results.len());
    for &id in &plan.whole.schedule.results {
        let &(part, inner) = parts.made.get(&plan.whole.schedule.root(id))?;
        let at = last.wanted().iter().position(|&wanted| wanted == inner)?;
        if part + 1 != parts.list.len() || places.contains(&at) {
            return None;
        }
        places.push(at);
    }
    Some(places)
}
