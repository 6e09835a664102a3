//! Plans that run on several devices: the segments of a placement, each a graph of its own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kiln_device::waiting::Waiting;
use kiln_ir::graph::{Graph, Schedule, Step, TensorId};
use kiln_ir::op::{Op, Reshape};
use kiln_ir::{Buffer, Error, Operand, Record, Result};
use kiln_route::{Flow, Memory, Placement, Residency};

use super::plan::Plan;
use super::{Batch, Held, Input, copied, one};
use crate::state::Taken;
use crate::{Tensor, gpus};

/// Where the steps of a plan run, and the parts of the plan if they run on several devices.
#[derive(Debug)]
pub(super) struct Placed {
    /// Where the inputs were, and which placements were excluded.
    residency: Residency,
    placement: Placement,
    parts: Option<Parts>,
}

#[derive(Debug)]
struct Parts {
    /// In the order in which they are submitted.
    list: Vec<Part>,
    /// For each tensor that is wanted or that another part reads: the part that computes it, and its id there.
    made: HashMap<TensorId, (usize, TensorId)>,
}

#[derive(Debug)]
struct Part {
    /// The position of a GPU; `None` on the CPU.
    gpu: Option<usize>,
    names: Names,
    /// The tensors that it reads from other parts, and where each is made.
    from_parts: Vec<(TensorId, (usize, TensorId))>,
    plan: Plan,
}

/// The graph of a part, and the ids that its inputs have in the graph of the batch.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) graph: Graph,
    pub(super) outer: HashMap<TensorId, TensorId>,
}

impl Parts {
    fn new(graph: &Graph, schedule: &Schedule, placement: &Placement) -> Result<Self> {
        let mut made: HashMap<TensorId, (usize, TensorId)> = HashMap::new();
        let mut drafts = Vec::with_capacity(placement.segments.len());
        for (number, segment) in placement.segments.iter().enumerate() {
            let mut names = Names::default();
            let mut from_parts = Vec::new();
            let mut inner: HashMap<TensorId, TensorId> = HashMap::new();
            // The latest version of each state.
            let mut latest: HashMap<TensorId, TensorId> = HashMap::new();
            for &step in &segment.steps {
                let Some(Step::Run { op, inputs, outputs, .. }) = schedule.steps.get(step) else { continue };
                let mut read = Vec::with_capacity(inputs.len());
                for &id in inputs {
                    let root = schedule.root(id);
                    let is_state = graph.state_of(root).is_some();
                    let base = match inner.entry(root) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(unknown) => {
                            let ty = graph.ty(root)?;
                            let input = if is_state { names.graph.state(ty) } else { names.graph.input(ty) };
                            match made.get(&root) {
                                Some(&source) => from_parts.push((input, source)),
                                None => drop(names.outer.insert(input, root)),
                            }
                            *unknown.insert(input)
                        }
                    };
                    if is_state {
                        // All parts share the memory of a state, and each finds it as the part before left it:
                        // whichever version was recorded, here it is the latest one.
                        let version = *latest.entry(root).or_insert(base);
                        let ty = graph.ty(id)?;
                        read.push(match ty.shape == names.graph.ty(version)?.shape {
                            true => version,
                            false => names.graph.record(Reshape::to(ty.shape.dims())?, &[version])?,
                        });
                        continue;
                    }
                    let shown = match inner.entry(id) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(unknown) => {
                            let shape = Reshape::to(graph.ty(id)?.shape.dims())?;
                            *unknown.insert(names.graph.record(shape, &[base])?)
                        }
                    };
                    read.push(shown);
                }
                for (&id, result) in outputs.iter().zip(names.graph.record_all(*op, &read)?) {
                    if graph.state_of(id).is_some() {
                        latest.insert(schedule.root(id), result);
                        continue;
                    }
                    inner.insert(id, result);
                    made.insert(id, (number, result));
                }
            }
            drafts.push((gpus::position(segment.memory), names, from_parts));
        }
        let mut wanted: Vec<Vec<TensorId>> = vec![Vec::new(); drafts.len()];
        let between = drafts.iter().flat_map(|(_, _, from_parts)| from_parts.iter().map(|&(_, source)| source));
        let results = schedule.results.iter().filter_map(|&id| made.get(&schedule.root(id)).copied());
        for (part, id) in between.chain(results) {
            if !wanted[part].contains(&id) {
                wanted[part].push(id);
            }
        }
        let finished = |((gpu, names, from_parts), wanted): (_, Vec<TensorId>)| {
            let names: Names = names;
            let plan = Plan::new(&names.graph, &wanted)?;
            Ok(Part { gpu, names, from_parts, plan })
        };
        let list = drafts.into_iter().zip(wanted).map(finished).collect::<Result<_>>()?;
        Ok(Self { list, made })
    }
}

impl Placed {
    /// The tensors that the parts hold on GPUs under their own ids.
    pub(super) fn held(&self) -> impl Iterator<Item = (usize, Vec<TensorId>)> + '_ {
        let parts = self.parts.iter().flat_map(|parts| &parts.list);
        parts.filter_map(|part| {
            let read = part.names.outer.keys().copied().chain(part.from_parts.iter().map(|&(input, _)| input));
            Some((part.gpu?, read.chain(part.plan.wanted.iter().copied()).collect()))
        })
    }
}

impl Part {
    /// The inputs of the batch that the part reads.
    fn inputs(&self) -> Vec<TensorId> {
        self.names.outer.values().copied().collect()
    }

    /// A result on the host, of a part that ran on the CPU.
    fn result(&self, id: TensorId) -> Result<&Buffer> {
        let root = self.plan.schedule.root(id);
        let memory = self.plan.memory.as_ref();
        memory.and_then(|memory| memory.results.get(&root)).ok_or(Error::ForeignTensor { index: id.index() })
    }
}

impl Batch<'_> {
    /// Where the steps of a plan run; the last placement if nothing has changed since.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no placement has a kernel for some step.
    pub(super) fn place<'p>(&self, plan: &'p mut Plan, excluded: &[usize]) -> Result<&'p Placement> {
        let engine = &*self.engine;
        if plan.flow.is_none() {
            let (mut flow, schedule) = Flow::new(&self.graph, &plan.wanted)?;
            flow.bar(&schedule, engine.places().len(), |op, place| match op {
                Op::Custom(custom) => engine.lacks(custom, place),
                _ => false,
            });
            plan.flow = Some((flow, schedule));
        }
        let Plan { flow: Some((flow, schedule)), placed, released, .. } = plan else {
            return Err(Error::Unsupported { op: "batch", backend: "any place of the engine" });
        };
        let residency = excluded.iter().fold(self.residency(flow.inputs()), |all, &place| all.barred(place));
        let residency = engine.within_budget(residency, || flow.bytes());
        if engine.refine || placed.as_ref().is_none_or(|placed| placed.residency != residency) {
            let placement = engine.router.place(flow, &residency);
            // Parts that run on the same device again keep their memory.
            let old = placed.take();
            let same = |old: &Placed| segments(&old.placement).eq(segments(&placement));
            let parts = match old {
                Some(old) if same(&old) => old.parts,
                old => {
                    released.extend(old.iter().flat_map(Placed::held));
                    let parts = || Parts::new(&self.graph, schedule, &placement);
                    (placement.segments.len() > 1).then(parts).transpose()?
                }
            };
            *placed = Some(Placed { residency, placement, parts });
        }
        match placed {
            Some(placed) if placed.placement.seconds < f64::INFINITY => Ok(&placed.placement),
            _ => Err(Error::Unsupported { op: "batch", backend: "any place of the engine" }),
        }
    }

    /// Whether some step of a schedule is pinned.
    pub(super) fn is_pinned(&self, schedule: &Schedule) -> bool {
        !self.pins.is_empty() && schedule.steps.iter().any(|step| self.pin_of(step).is_some())
    }

    fn pin_of(&self, step: &Step) -> Option<Option<usize>> {
        step.outputs().find_map(|id| self.pins.get(&id).copied())
    }

    /// Where the steps of a plan with pinned steps run: the last placement unless other devices have failed since.
    /// Steps that are pinned to a failed device run on the CPU.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a plan of another graph.
    pub(super) fn place_pinned<'p>(&self, plan: &'p mut Plan, excluded: &[usize]) -> Result<&'p Placement> {
        let engine = &*self.engine;
        let failed =
            |position: usize| engine.gpus[position].is_gone() || excluded.contains(&(engine.cpu.len() + position));
        let all = (0..engine.gpus.len()).filter(|&position| failed(position));
        let residency = all.fold(Residency::everywhere(), |all, position| all.barred(engine.cpu.len() + position));
        if plan.placed.as_ref().is_none_or(|placed| placed.residency != residency) {
            plan.released.extend(plan.placed.iter().flat_map(Placed::held));
            let (flow, schedule) = Flow::new(&self.graph, &plan.wanted)?;
            let pins: Vec<_> = schedule.steps.iter().map(|step| self.pin_of(step)).collect();
            let mut device = pins.iter().flatten().next().copied().flatten();
            let mut memory = |pin: &Option<Option<usize>>| {
                device = pin.unwrap_or(device);
                device.filter(|&position| !failed(position)).map_or(Memory::HOST, gpus::memory)
            };
            let memories: Vec<Memory> = pins.iter().map(&mut memory).collect();
            let placement = engine.router.assigned(&flow, &memories, &residency);
            let parts = || Parts::new(&self.graph, &schedule, &placement);
            let parts = (placement.segments.len() > 1).then(parts).transpose()?;
            plan.placed = Some(Placed { residency, placement, parts });
        }
        let missing = || Error::Parameter { op: "batch", reason: "the plan was not placed".into() };
        plan.placed.as_ref().map(|placed| &placed.placement).ok_or_else(missing)
    }

    /// Runs the parts of a plan in turn: GPUs compute while the next parts are prepared. If `read` is set and the last
    /// part computes all wanted tensors on a GPU, returns them: the submission that computes them downloads them too.
    /// An error of a GPU names that GPU.
    pub(super) async fn compute_parts(
        &mut self,
        plan: &mut Plan,
        read: bool,
        waiting: Waiting,
    ) -> Result<Option<Vec<Buffer>>, (Option<usize>, Error)> {
        let by_last = if read { made_by_last(plan) } else { None };
        let Some(Placed { parts: Some(parts), .. }) = &mut plan.placed else {
            return Err((None, Error::Parameter { op: "execute", reason: "the plan was not placed".into() }));
        };
        // Results of GPUs that other parts read.
        let mut fetched: HashMap<(usize, TensorId), Buffer> = HashMap::new();
        let (parts_count, mut results) = (parts.list.len(), None);
        for number in 0..parts.list.len() {
            let (before, rest) = parts.list.split_at_mut(number);
            let Some(part) = rest.first_mut() else { break };
            for &(_, (source, id)) in &part.from_parts {
                let Some(gpu) = before[source].gpu.filter(|_| before[source].gpu != part.gpu) else { continue };
                if let Entry::Vacant(missing) = fetched.entry((source, id)) {
                    let read = self.read_from(gpu, &before[source].names.graph, id, waiting).await;
                    missing.insert(read.map_err(|error| (Some(gpu), error))?);
                }
            }
            let is_last = number + 1 == parts_count;
            match part.gpu {
                Some(gpu) => {
                    let wanted = by_last.as_deref().filter(|_| is_last);
                    let run = self.run_part_on(gpu, part, before, &fetched, wanted, waiting).await;
                    results = run.map_err(|error| (Some(gpu), error))?;
                }
                None => self.run_part(part, before, &fetched, waiting).await.map_err(|error| (None, error))?,
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
    ) -> Result<()> {
        let on_host = self.on_host(&part.inputs(), waiting).await?;
        let mut states = self.take_states_of(part)?;
        for state in states.values_mut() {
            state.bring_to_host(waiting).await?;
        }
        let inputs = std::mem::take(&mut self.inputs);
        let by_name = on_host.operands(&inputs);
        let own = |(&inner, outer): (&TensorId, &TensorId)| Some((inner, *by_name.get(outer)?));
        let mut held: HashMap<TensorId, Held<'_>> = part.names.outer.iter().filter_map(own).collect();
        let mut done = Ok(());
        for &(inner, (source, id)) in &part.from_parts {
            match fetched.get(&(source, id)).map_or_else(|| before[source].result(id), Ok) {
                Ok(buffer) => drop(held.insert(inner, Held::Owned(buffer))),
                Err(error) => done = Err(error),
            }
        }
        let done = done.and_then(|()| self.run_on_cpu(Some(&part.names), &mut part.plan, &held, &mut states));
        self.inputs = inputs;
        done
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
    ) -> Result<Option<Vec<Buffer>>> {
        let mut runner = self.take_runner(gpu, waiting).await?;
        let run = async {
            self.send(gpu, &part.inputs(), &mut *runner, waiting).await?;
            let graph = &part.names.graph;
            let handle = self.engine.gpus[gpu].clone();
            let mut states = self.take_states_of(part)?;
            for (&inner, &outer) in &part.names.outer {
                match states.get_mut(&inner) {
                    Some(state) => runner.bind_state(inner, &state.on_gpu(&handle, waiting).await?)?,
                    None => runner.alias(inner, &self.graph, outer)?,
                }
            }
            for &(inner, (source, id)) in &part.from_parts {
                if before[source].gpu == Some(gpu) {
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
                Some(_) => Some(runner.run(graph, &part.plan.wanted, waiting).await?),
                None => {
                    runner.execute(graph, &part.plan.wanted, waiting).await?;
                    None
                }
            };
            // Results stay in device memory under their own ids, whatever is executed afterwards.
            part.plan.wanted.iter().try_for_each(|&id| runner.alias(id, graph, id))?;
            let (Some(mut results), Some(read)) = (results, read) else { return Ok(None) };
            let of = |&at: &usize| results.get_mut(at).map(|found| std::mem::replace(found, Buffer::F32(Vec::new())));
            Ok(read.iter().map(of).collect())
        };
        let done = run.await;
        self.runners.insert(gpu, runner);
        done
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
    pub(super) async fn read_part(&self, plan: &Plan, id: TensorId, waiting: Waiting) -> Result<Buffer> {
        let missing = Error::ForeignTensor { index: id.index() };
        let Some((part, inner)) = made(plan, id) else { return Err(missing) };
        match part.gpu {
            Some(gpu) => self.read_from(gpu, &part.names.graph, inner, waiting).await,
            None => copied(part.result(inner)?),
        }
    }

    /// A result of the last plan, which ran in parts, if it is on a GPU.
    pub(super) fn tensor_of_part(&mut self, id: TensorId) -> Result<Option<Tensor>> {
        let ty = self.graph.ty(id)?;
        let Some(plan) = self.plans.last() else { return Ok(None) };
        let Some(at) = plan.wanted.iter().position(|&wanted| wanted == id) else { return Ok(None) };
        let source = plan.schedule.root(plan.schedule.results[at]);
        let Some((Part { gpu: Some(gpu), names, .. }, inner)) = made(plan, source) else { return Ok(None) };
        let Some(runner) = self.runners.get_mut(gpu) else { return Ok(None) };
        Ok(Some(Tensor::on_device(&self.engine.gpus[*gpu], runner.tensor(&names.graph, inner)?, ty)))
    }
}

/// The part that computes a result, and the id of the result there.
fn made(plan: &Plan, id: TensorId) -> Option<(&Part, TensorId)> {
    let parts = plan.placed.as_ref()?.parts.as_ref()?;
    let &(part, inner) = parts.made.get(&id)?;
    Some((parts.list.get(part)?, inner))
}

/// For each result of a plan, its index among the results of the last part; `None` unless that part computes all of
/// them, each once, on a GPU.
fn made_by_last(plan: &Plan) -> Option<Vec<usize>> {
    let parts = plan.placed.as_ref()?.parts.as_ref()?;
    let last = parts.list.last().filter(|part| part.gpu.is_some())?;
    let mut places = Vec::with_capacity(plan.schedule.results.len());
    for &id in &plan.schedule.results {
        let &(part, inner) = parts.made.get(&plan.schedule.root(id))?;
        let at = last.plan.wanted.iter().position(|&wanted| wanted == inner)?;
        if part + 1 != parts.list.len() || places.contains(&at) {
            return None;
        }
        places.push(at);
    }
    Some(places)
}

/// Runs of steps with the memory that each uses.
fn segments(placement: &Placement) -> impl Iterator<Item = (Memory, &[usize])> {
    placement.segments.iter().map(|segment| (segment.memory, &segment.steps[..]))
}
