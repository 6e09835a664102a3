//! Plans that run on several devices: the segments of a placement, each a graph of its own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kiln_device::waiting::Waiting;
use kiln_ir::graph::{Graph, Schedule, Step, TensorId};
use kiln_ir::op::{Op, Reshape};
use kiln_ir::{Buffer, Error, Operand, Record, Result};
use kiln_route::{Flow, Memory, Placement, Residency};

use super::plan::Plan;
use super::{Batch, Held, copied, one};
use crate::Tensor;

/// Where the steps of a plan run, and its parts where those are several devices.
#[derive(Debug)]
pub(super) struct Placed {
    /// Where the inputs were, and which places were barred.
    residency: Residency,
    placement: Placement,
    parts: Option<Parts>,
}

#[derive(Debug)]
struct Parts {
    /// In the order in which they are submitted.
    list: Vec<Part>,
    /// The part that computes each tensor that another part reads or that is wanted, and what it is called there.
    made: HashMap<TensorId, (usize, TensorId)>,
}

#[derive(Debug)]
struct Part {
    /// The position of a GPU; `None` on the CPU.
    gpu: Option<usize>,
    names: Names,
    /// What it reads of others, and where each is made.
    from_parts: Vec<(TensorId, (usize, TensorId))>,
    plan: Plan,
}

/// The graph of a part, and what its inputs are called in the graph of the batch.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) graph: Graph,
    pub(super) outer: HashMap<TensorId, TensorId>,
}

impl Parts {
    fn new(
        graph: &Graph,
        schedule: &Schedule,
        placement: &Placement,
        gpu: impl Fn(usize) -> Option<usize>,
    ) -> Result<Self> {
        let mut made: HashMap<TensorId, (usize, TensorId)> = HashMap::new();
        let mut drafts = Vec::with_capacity(placement.segments.len());
        for (number, segment) in placement.segments.iter().enumerate() {
            let mut names = Names::default();
            let mut from_parts = Vec::new();
            let mut inner: HashMap<TensorId, TensorId> = HashMap::new();
            for &step in &segment.steps {
                let Some(Step::Run { op, inputs, outputs, .. }) = schedule.steps.get(step) else { continue };
                let mut read = Vec::with_capacity(inputs.len());
                for &id in inputs {
                    let root = schedule.root(id);
                    let base = match inner.entry(root) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(unknown) => {
                            let input = names.graph.input(graph.ty(root)?);
                            match made.get(&root) {
                                Some(&source) => from_parts.push((input, source)),
                                None => drop(names.outer.insert(input, root)),
                            }
                            *unknown.insert(input)
                        }
                    };
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
                    inner.insert(id, result);
                    made.insert(id, (number, result));
                }
            }
            let place = (segment.memory != Memory::HOST).then(|| gpu(segment.place)).flatten();
            drafts.push((place, names, from_parts));
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
    /// What the parts hold on GPUs by names of their own.
    pub(super) fn held(&self) -> impl Iterator<Item = (usize, Vec<TensorId>)> + '_ {
        let parts = self.parts.iter().flat_map(|parts| &parts.list);
        parts.filter_map(|part| {
            let read = part.names.outer.keys().copied().chain(part.from_parts.iter().map(|&(input, _)| input));
            Some((part.gpu?, read.chain(part.plan.wanted.iter().copied()).collect()))
        })
    }
}

impl Part {
    /// The inputs of the batch that it reads.
    fn inputs(&self) -> Vec<TensorId> {
        self.names.outer.values().copied().collect()
    }

    /// A result on the host, of a part that ran there.
    fn result(&self, id: TensorId) -> Result<&Buffer> {
        let root = self.plan.schedule.root(id);
        let memory = self.plan.memory.as_ref();
        memory.and_then(|memory| memory.results.get(&root)).ok_or(Error::ForeignTensor { index: id.index() })
    }
}

impl Batch<'_> {
    /// Where the steps of a plan run: as before where nothing has changed since.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where some step has no kernel on any place.
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
            // Parts that run as before keep their memory.
            let old = placed.take();
            let same = |old: &Placed| segments(&old.placement).eq(segments(&placement));
            let parts = match old {
                Some(old) if same(&old) => old.parts,
                old => {
                    released.extend(old.iter().flat_map(Placed::held));
                    let parts = || Parts::new(&self.graph, schedule, &placement, |place| engine.gpu_position(place));
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

    /// Runs the parts of a plan in turn: GPUs work while the next parts are prepared. An error of a GPU says which it was.
    pub(super) async fn compute_parts(
        &mut self,
        plan: &mut Plan,
        waiting: Waiting,
    ) -> Result<(), (Option<usize>, Error)> {
        let Some(Placed { parts: Some(parts), .. }) = &mut plan.placed else {
            return Err((None, Error::Parameter { op: "execute", reason: "the plan was not placed".into() }));
        };
        // Results of GPUs that others read.
        let mut fetched: HashMap<(usize, TensorId), Buffer> = HashMap::new();
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
            match part.gpu {
                Some(gpu) => {
                    self.run_part_on(gpu, part, before, &fetched, waiting).await.map_err(|error| (Some(gpu), error))?;
                }
                None => self.run_part(part, before, &fetched, waiting).await.map_err(|error| (None, error))?,
            }
        }
        Ok(())
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
        let done = done.and_then(|()| self.run_on_cpu(Some(&part.names), &mut part.plan, &held, &mut HashMap::new()));
        self.inputs = inputs;
        done
    }

    /// Submits a part to a GPU.
    async fn run_part_on(
        &mut self,
        gpu: usize,
        part: &Part,
        before: &[Part],
        fetched: &HashMap<(usize, TensorId), Buffer>,
        waiting: Waiting,
    ) -> Result<()> {
        let mut runner = self.take_runner(gpu, waiting).await?;
        let run = async {
            self.send(gpu, &part.inputs(), &mut *runner, waiting).await?;
            let graph = &part.names.graph;
            for (&inner, &outer) in &part.names.outer {
                runner.alias(inner, &self.graph, outer)?;
            }
            for &(inner, (source, id)) in &part.from_parts {
                if before[source].gpu == Some(gpu) {
                    runner.alias(inner, &before[source].names.graph, id)?;
                    continue;
                }
                let buffer = fetched.get(&(source, id)).map_or_else(|| before[source].result(id), Ok)?;
                match runner.has(inner) {
                    true => runner.set(graph, inner, buffer.as_data()).await?,
                    false => {
                        runner.upload(inner, &Operand::new(buffer.as_data(), graph.ty(inner)?.shape)?).await?;
                    }
                }
            }
            runner.execute(graph, &part.plan.wanted, waiting).await?;
            // Results stay there by their own names, whatever is executed after it.
            part.plan.wanted.iter().try_for_each(|&id| runner.alias(id, graph, id))
        };
        let done = run.await;
        self.runners.insert(gpu, runner);
        done
    }

    /// Frees what parts held on GPUs that are no more.
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

    /// A result of the last plan, which ran in parts, where it is on a GPU.
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

/// The part that computes a result, and what it is called there.
fn made(plan: &Plan, id: TensorId) -> Option<(&Part, TensorId)> {
    let parts = plan.placed.as_ref()?.parts.as_ref()?;
    let &(part, inner) = parts.made.get(&id)?;
    Some((parts.list.get(part)?, inner))
}

/// What runs where.
fn segments(placement: &Placement) -> impl Iterator<Item = (Memory, &[usize])> {
    placement.segments.iter().map(|segment| (segment.memory, &segment.steps[..]))
}
