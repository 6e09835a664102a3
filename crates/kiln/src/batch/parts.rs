//! The parts of plans that run on several devices: the segments of a placement, each a graph of its own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kiln_ir::graph::{Graph, Schedule, Step, TensorId};
use kiln_ir::op::Reshape;
use kiln_ir::{Buffer, Error, Record, Result};
use kiln_route::{Placement, Residency};

use super::host_plan::HostPlan;
use crate::gpus;

/// The placement of a plan's steps, and the parts of the plan if they run on several devices.
#[derive(Debug)]
pub(super) struct Placed {
    /// The locations of the inputs and the excluded placements when this was decided.
    pub(super) residency: Residency,
    pub(super) placement: Placement,
    pub(super) parts: Option<Parts>,
}

/// The parts of a plan.
#[derive(Debug)]
pub(super) struct Parts {
    /// In the order in which they are submitted.
    pub(super) list: Vec<Part>,
    /// For each tensor that is wanted or that another part reads: the part that computes it, and its id there.
    pub(super) made: HashMap<TensorId, (usize, TensorId)>,
}

/// The steps of a plan that run on one device, one after the other.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) on: On,
    pub(super) names: Names,
    /// The tensors that it reads from other parts, and where each is made.
    pub(super) from_parts: Vec<(TensorId, (usize, TensorId))>,
}

/// The device of a part, and what the part computes there.
#[derive(Debug)]
pub(super) enum On {
    Cpu(Box<HostPlan>),
    /// The position of a GPU, which schedules the graph of the part by itself, and the wanted tensors.
    Gpu(usize, Vec<TensorId>),
}

/// The graph of a part, and the ids that its inputs have in the graph of the batch.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) graph: Graph,
    pub(super) outer: HashMap<TensorId, TensorId>,
}

impl Parts {
    pub(super) fn new(graph: &Graph, schedule: &Schedule, placement: &Placement) -> Result<Self> {
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
            let on = match gpu {
                Some(gpu) => On::Gpu(gpu, wanted),
                None => On::Cpu(Box::new(HostPlan::new(&names.graph, &wanted)?)),
            };
            Ok(Part { on, names, from_parts })
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
            Some((part.gpu()?, read.chain(part.wanted().iter().copied()).collect()))
        })
    }
}

impl Part {
    /// The position of its GPU; `None` on the CPU.
    pub(super) fn gpu(&self) -> Option<usize> {
        match self.on {
            On::Cpu(_) => None,
            On::Gpu(gpu, _) => Some(gpu),
        }
    }

    /// The tensors that it computes for other parts or for the caller, by their ids in its graph.
    pub(super) fn wanted(&self) -> &[TensorId] {
        match &self.on {
            On::Cpu(plan) => &plan.wanted,
            On::Gpu(_, wanted) => wanted,
        }
    }

    /// The inputs of the batch that the part reads.
    pub(super) fn inputs(&self) -> Vec<TensorId> {
        self.names.outer.values().copied().collect()
    }

    /// A result on the host, of a part that ran on the CPU.
    pub(super) fn result(&self, id: TensorId) -> Result<&Buffer> {
        let result = match &self.on {
            On::Cpu(plan) => plan.memory.as_ref().and_then(|memory| memory.results.get(&plan.schedule.root(id))),
            On::Gpu(..) => None,
        };
        result.ok_or(Error::ForeignTensor { index: id.index() })
    }
}
