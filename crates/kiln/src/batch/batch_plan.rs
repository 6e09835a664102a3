//! A plan of a whole batch, with what was decided about it.

use kiln_ir::Result;
use kiln_ir::graph::{Graph, Schedule, TensorId};
use kiln_route::{Flow, Problem, Residency};

use super::parts::Placed;
use super::plan::Plan;

/// A plan of the graph of a batch, and where its steps run.
#[derive(Debug)]
pub(super) struct BatchPlan {
    /// The plan as a whole, before it is cut into parts.
    pub(super) whole: Plan,
    /// The number of writes to states that it runs: all that were recorded when it was made.
    pub(super) writes: usize,
    /// Its steps one by one, and their schedule, after the first placement.
    pub(super) flow: Option<(Flow, Schedule)>,
    /// The last placement.
    pub(super) placed: Option<Placed>,
    /// The work of its steps, computed when the router is first asked about the whole plan.
    problem: Option<Problem>,
    /// The router's decision about the whole plan, and where the inputs were at that time.
    pub(super) decided: Option<(Residency, usize)>,
    /// Tensors that earlier parts hold on GPUs, by the positions of the GPUs.
    pub(super) released: Vec<(usize, Vec<TensorId>)>,
}

impl BatchPlan {
    pub(super) fn new(graph: &Graph, wanted: &[TensorId]) -> Result<Self> {
        Ok(Self {
            whole: Plan::new(graph, wanted)?,
            writes: graph.writes(),
            flow: None,
            placed: None,
            problem: None,
            decided: None,
            released: Vec::new(),
        })
    }

    /// The work of its steps, computed once.
    ///
    /// # Errors
    /// The errors of [`Problem::schedule`].
    pub(super) fn problem(&mut self, graph: &Graph) -> Result<&Problem> {
        let problem = match self.problem.take() {
            Some(problem) => problem,
            None => {
                #[cfg(test)]
                PROBLEMS.with(|count| count.set(count.get() + 1));
                Problem::schedule(&self.whole.schedule, graph)?
            }
        };
        Ok(self.problem.insert(problem))
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread has computed the work of a schedule.
    pub(super) static PROBLEMS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
