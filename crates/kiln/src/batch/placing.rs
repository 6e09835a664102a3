//! Where a batch runs: on which device, and why.

use kiln_ir::Result;
use kiln_ir::graph::{Step, TensorId};
use kiln_route::{Explanation, Problem, Residency};

use super::plan::Plan;
use super::{Batch, Input, Target};
use crate::gpus;

impl Batch<'_> {
    /// The predicted seconds of a plan without the excluded placements, the number of its segments, and the placement
    /// of the first.
    #[cfg(not(browser_gpu))]
    pub(crate) fn predicted(&self, wanted: &[TensorId], excluded: &[usize]) -> Result<(f64, usize, usize)> {
        let mut plan = Plan::new(&self.graph, wanted)?;
        let placement = self.place(&mut plan, excluded)?;
        Ok((placement.seconds, placement.segments.len(), placement.segments.first().map_or(0, |first| first.place)))
    }

    /// Decides what runs a plan; GPUs in `excluded` have failed already.
    pub(super) fn target(&self, plan: &mut Plan, excluded: &[usize]) -> Result<Target> {
        let engine = &*self.engine;
        if !gpus::POSSIBLE || engine.gpus.is_empty() || plan.schedule.steps.is_empty() {
            return Ok(Target::Cpu);
        }
        if let Some(device) = self.only_on {
            return Ok(device.map_or(Target::Cpu, Target::Gpu));
        }
        let steps = plan.schedule.steps.len();
        let question = || format!("a batch of {steps} steps");
        let placement = if self.is_pinned(&plan.schedule) {
            self.place_pinned(plan, excluded)?
        } else if let Some(place) = engine.router.forced() {
            return Ok(engine.gpu_position(place).map_or(Target::Cpu, Target::Gpu));
        } else if self.graph.has_states() {
            // A result that is written to a state stays with the state.
            let able = self.able(plan);
            let residency = excluded.iter().fold(able, |all, &place| all.barred(place));
            let place = match plan.decided {
                Some((of, place)) if of == residency && !engine.refine => place,
                _ => {
                    let place = engine.decide(plan.problem(&self.graph)?, &residency, "batch")?.index();
                    plan.decided = Some((residency, place));
                    place
                }
            };
            return Ok(engine.gpu_position(place).map_or(Target::Cpu, Target::Gpu));
        } else {
            self.place(plan, excluded)?
        };
        engine.budgeted.check(placement.seconds, question, || placement.in_words(&question(), engine.places()));
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

    /// Where inputs are, with placements excluded that lack a kernel for some step.
    pub(super) fn able(&self, plan: &Plan) -> Residency {
        let able = |residency, step: &Step| match step {
            Step::Run { op, .. } => self.engine.able(residency, op),
            Step::Fused(_) => residency,
        };
        plan.schedule.steps.iter().fold(self.residency(&plan.inputs), able)
    }

    /// The predicted time of computing these tensors on each place if they were executed now, and why the chosen one is
    /// chosen. What is in the memory of a GPU need not be sent there. Of pinned operations it is the time of an execution that finds
    /// its inputs where they are read.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`](kiln_ir::Error::ForeignTensor) for a tensor of another batch;
    /// [`Error::Unsupported`](kiln_ir::Error::Unsupported) where no place has kernels for all
    /// steps.
    pub fn explain(&self, wanted: &[TensorId]) -> Result<Explanation> {
        let mut plan = Plan::new(&self.graph, wanted)?;
        let question = format!("a batch of {} steps", plan.schedule.steps.len());
        let problem = Problem::schedule(&plan.schedule, &self.graph)?;
        if gpus::POSSIBLE && self.is_pinned(&plan.schedule) {
            let decision = self.engine.router.decide(&problem, &Residency::everywhere());
            let placement = self.place_pinned(&mut plan, &[])?;
            return Ok(Explanation::new(question, &problem, &decision).pinned(placement, self.engine.places()));
        }
        let residency = self.able(&plan);
        let alone = !gpus::POSSIBLE
            || self.engine.gpus.is_empty()
            || self.engine.router.forced().is_some()
            || self.graph.has_states();
        if alone || plan.schedule.steps.is_empty() {
            let decision = self.engine.decide(&problem, &residency, "batch")?;
            return Ok(Explanation::new(question, &problem, &decision));
        }
        let decision = self.engine.router.decide(&problem, &residency);
        let placement = self.place(&mut plan, &[])?;
        Ok(Explanation::new(question, &problem, &decision).placed(placement, self.engine.places()))
    }
}
