//! The plan of a whole batch, and the decisions about it.
//!
//! A graph has up to three schedules. Their steps differ, so one cannot replace another:
//!
//! - that of the host ([`HostPlan`]): element-wise chains are fused as the CPU runs them. From its work the router predicts the time of
//!   running everything on one device.
//! - that of a [`Flow`]: each operation is a step, so that the router can place it separately.
//! - that of a GPU ([`kiln_device::Plan`]): chains are fused within the limits of its kernels, equal operations form rounds, and a
//!   product may include a norm or an addend.

use kiln_ir::Result;
use kiln_ir::graph::{Graph, Schedule, TensorId};
use kiln_route::{Flow, Problem, Residency};

use super::host_plan::HostPlan;
use super::parts::Placed;

/// A plan of the graph of a batch, and where its steps run.
#[derive(Debug)]
pub(super) struct BatchPlan {
    /// The schedule of the whole graph, before it is cut into parts.
    pub(super) whole: HostPlan,
    /// Its name in the warning when it exceeds a limit: the number of steps and the types of the results.
    pub(super) name: String,
    /// Whether some operation is pinned to a device.
    pub(super) pinned: bool,
    /// The number of writes to states that it runs: all that were recorded when it was made.
    pub(super) writes: usize,
    /// Its operations one by one, and their schedule, after the first placement.
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
    pub(super) fn new(graph: &Graph, wanted: &[TensorId], pinned: bool) -> Result<Self> {
        let whole = HostPlan::new(graph, wanted)?;
        let mut name = format!("a batch of {} steps", whole.schedule.steps.len());
        for (number, &id) in wanted.iter().enumerate() {
            let ty = graph.ty(id)?;
            name += &format!("{} {} {}", if number == 0 { " for" } else { "," }, ty.dtype, ty.shape);
        }
        Ok(Self {
            whole,
            name,
            pinned,
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
