//! The placement of a batch: the devices that its steps run on, and the reasons.

use kiln_ir::graph::{FusionLimits, Step, TensorId};
use kiln_ir::op::{Op, total_bytes};
use kiln_ir::{Error, Result};
use kiln_route::{Explanation, Flow, Memory, Placement, Problem, Residency};

use super::batch_plan::BatchPlan;
use super::host_plan::{self, HostPlan};
use super::parts::{Parts, Placed};
use super::{Batch, Input, Target};
use crate::gpus;

impl Batch<'_> {
    /// The predicted seconds of a plan without the excluded placements, the number of its segments, and the placement
    /// of the first.
    #[cfg(not(browser_gpu))]
    pub(crate) fn predicted(&self, wanted: &[TensorId], excluded: &[usize]) -> Result<(f64, usize, usize)> {
        let mut plan = self.new_plan(wanted)?;
        let placement = self.place(&mut plan, excluded)?;
        Ok((placement.seconds, placement.segments.len(), placement.segments.first().map_or(0, |first| first.place)))
    }

    /// Decides what runs a plan; GPUs in `excluded` have failed already.
    pub(super) fn target(&self, plan: &mut BatchPlan, excluded: &[usize]) -> Result<Target> {
        let engine = &*self.engine;
        let alone = !gpus::POSSIBLE || engine.gpus.is_empty();
        // Without a choice of placements and without a limit of time no prediction is needed.
        let needs_time = engine.budgeted.limits_time();
        if plan.whole.schedule.steps.is_empty() || alone && !needs_time {
            return Ok(Target::Cpu);
        }
        if let Some(device) = self.only_on {
            return Ok(device.map_or(Target::Cpu, Target::Gpu));
        }
        // A build without GPU backends omits the code that places steps.
        if gpus::POSSIBLE && plan.pinned {
            self.place_pinned(plan, excluded)?;
        } else if let Some(place) = engine.router.forced().filter(|_| !needs_time) {
            return Ok(engine.gpu_position(place).map_or(Target::Cpu, Target::Gpu));
        } else if alone || engine.router.forced().is_some() || self.graph.has_states() {
            // A result that is written to a state stays with the state.
            let able = self.able(&plan.whole);
            let residency = excluded.iter().fold(able, |all, &place| all.barred(place));
            let place = match &plan.decided {
                Some((of, place)) if *of == residency && !engine.refine => *place,
                _ => {
                    let name = plan.name.clone();
                    let problem = plan.problem(&self.graph)?;
                    let decision = engine.decide(problem, &residency, "batch")?;
                    let explained = || Explanation::new(name.clone(), problem, &decision).to_string();
                    engine.budgeted.check(decision.seconds(), || name.clone(), explained);
                    let place = decision.index();
                    plan.decided = Some((residency, place));
                    place
                }
            };
            return Ok(engine.gpu_position(place).map_or(Target::Cpu, Target::Gpu));
        } else {
            self.place(plan, excluded)?;
        }
        let BatchPlan { name, placed: Some(Placed { placement, .. }), .. } = plan else {
            return Err(Error::Parameter { op: "batch", reason: "the plan was not placed".into() });
        };
        let words = || placement.in_words(name, engine.places());
        engine.budgeted.check(placement.seconds, || name.clone(), words);
        Ok(match &placement.segments[..] {
            [only] => gpus::position(only.memory).map_or(Target::Cpu, Target::Gpu),
            _ => Target::Parts,
        })
    }

    /// Where inputs are, with lost devices excluded.
    pub(super) fn residency(&self, inputs: &[TensorId]) -> Residency {
        let mut residency = self.engine.on_host();
        for (operand, id) in inputs.iter().enumerate() {
            match self.inputs.get(id) {
                Some(Input::Imported(tensor)) => residency = tensor.placed(&self.engine, residency, operand),
                Some(Input::State(state)) => residency = state.placed(&self.engine, residency, operand),
                Some(Input::Owned { host, gpus }) => {
                    for (number, &gpu) in gpus.iter().enumerate() {
                        residency = match (host, number) {
                            (None, 0) => residency.moved(operand, gpus::memory(gpu)),
                            _ => residency.copied(operand, gpus::memory(gpu)),
                        };
                    }
                }
                None => {}
            }
        }
        residency
    }

    /// Where inputs are, with placements excluded that lack a kernel for some step, or may not hold as many bytes.
    pub(super) fn able(&self, plan: &HostPlan) -> Residency {
        let able = |residency, step: &Step| match step {
            Step::Run { op, .. } => self.engine.able(residency, op),
            Step::Fused(_) => residency,
        };
        let residency = plan.schedule.steps.iter().fold(self.residency(&plan.inputs), able);
        self.engine.within_budget(residency, || self.bytes(plan))
    }

    /// Returns the predicted time of computing these tensors on each placement if they were executed now, and the reason for the choice.
    /// Tensors in the memory of a GPU count as resident there. If operations are pinned, the time is that of an execution whose inputs
    /// are already on the devices that read them.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`](kiln_ir::Error::ForeignTensor) for a tensor of another batch;
    /// [`Error::Unsupported`](kiln_ir::Error::Unsupported) if no placement has kernels for all steps.
    pub fn explain(&self, wanted: &[TensorId]) -> Result<Explanation> {
        let mut plan = self.new_plan(wanted)?;
        let question = format!("a batch of {} steps", plan.whole.schedule.steps.len());
        let problem = Problem::schedule(&plan.whole.schedule, &self.graph)?;
        if gpus::POSSIBLE && plan.pinned {
            let decision = self.engine.router.decide(&problem, &Residency::everywhere());
            let placement = self.place_pinned(&mut plan, &[])?;
            return Ok(Explanation::new(question, &problem, &decision).pinned(placement, self.engine.places()));
        }
        let residency = self.able(&plan.whole);
        let alone = !gpus::POSSIBLE
            || self.engine.gpus.is_empty()
            || self.engine.router.forced().is_some()
            || self.graph.has_states();
        if alone || plan.whole.schedule.steps.is_empty() {
            let decision = self.engine.decide(&problem, &residency, "batch")?;
            return Ok(Explanation::new(question, &problem, &decision));
        }
        let decision = self.engine.router.decide(&problem, &residency);
        let placement = self.place(&mut plan, &[])?;
        Ok(Explanation::new(question, &problem, &decision).placed(placement, self.engine.places()))
    }

    /// Where the steps of a plan run; the last placement if nothing has changed since.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no placement has a kernel for some step.
    pub(super) fn place<'p>(&self, plan: &'p mut BatchPlan, excluded: &[usize]) -> Result<&'p Placement> {
        let engine = &*self.engine;
        if plan.flow.is_none() {
            let (mut flow, schedule) = Flow::new(&self.graph, &plan.whole.wanted)?;
            flow.bar(&schedule, engine.places().len(), |op, place| match op {
                Op::Custom(custom) => engine.lacks(custom, place),
                _ => false,
            });
            plan.flow = Some((flow, schedule));
        }
        let BatchPlan { flow: Some((flow, schedule)), placed, released, .. } = plan else {
            return Err(Error::Unsupported { op: "batch", backend: "any placement of the engine" });
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
            _ => Err(Error::Unsupported { op: "batch", backend: "any placement of the engine" }),
        }
    }

    /// A plan that was not placed.
    pub(super) fn new_plan(&self, wanted: &[TensorId]) -> Result<BatchPlan> {
        // Each operation is checked, because a fused step names only the results of its last operations.
        let is_pinned = || {
            let steps = self.graph.schedule(wanted, FusionLimits::NONE)?.steps;
            Ok(steps.iter().any(|step| self.pin_of(step).is_some()))
        };
        let pinned = gpus::POSSIBLE && !self.pins.is_empty() && is_pinned()?;
        BatchPlan::new(&self.graph, wanted, pinned)
    }

    /// Bytes of the inputs, results and intermediate results of a plan.
    fn bytes(&self, plan: &HostPlan) -> u64 {
        let inputs = plan.inputs.iter().filter_map(|&id| self.graph.ty(id).ok());
        let computed = host_plan::Memory::planned_bytes(&self.graph, &plan.schedule).unwrap_or(u64::MAX);
        total_bytes(inputs.map(|ty| ty.bytes() as u64).chain([computed]))
    }

    fn pin_of(&self, step: &Step) -> Option<Option<usize>> {
        step.outputs().find_map(|id| self.pins.get(&id).copied())
    }

    /// Where the steps of a plan with pinned steps run: the last placement unless other devices have failed since.
    /// Steps that are pinned to a failed device run on the CPU.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a plan of another graph.
    pub(super) fn place_pinned<'p>(&self, plan: &'p mut BatchPlan, excluded: &[usize]) -> Result<&'p Placement> {
        let engine = &*self.engine;
        let failed =
            |position: usize| engine.gpus[position].is_gone() || excluded.contains(&(engine.cpu.len() + position));
        let all = (0..engine.gpus.len()).filter(|&position| failed(position));
        let residency = all.fold(Residency::everywhere(), |all, position| all.barred(engine.cpu.len() + position));
        if plan.placed.as_ref().is_none_or(|placed| placed.residency != residency) {
            plan.released.extend(plan.placed.iter().flat_map(Placed::held));
            let (flow, schedule) = Flow::new(&self.graph, &plan.whole.wanted)?;
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
}

/// Runs of steps with the memory that each uses.
fn segments(placement: &Placement) -> impl Iterator<Item = (Memory, &[usize])> {
    placement.segments.iter().map(|segment| (segment.memory, &segment.steps[..]))
}
