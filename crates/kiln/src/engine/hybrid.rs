//! Large operations on host memory that the CPU and a GPU run together, each on a part of the rows.

use kiln_device::cut::{Cut, Join, cut, split};
use kiln_device::waiting::no_thread;
use kiln_ir::op::{Call, Op, total_bytes};
use kiln_ir::{DataMut, Operations, Result, TensorType};
use kiln_route::{Decision, ExplainedSegment, Problem};

use super::Engine;
use crate::gpus::{WAITING, wait};

/// Minimum seconds of shared work: below, starting a thread and splitting cost more than a tenth of it.
const FROM: f64 = 1e-3;

/// Shares of the rows that are considered for a GPU, in eighths.
const SHARES: std::ops::Range<usize> = 1..8;

/// The CPU and a GPU share an operation if both together are predicted to take less than this share of the time of the
/// best placement.
const WORTH: f64 = 0.9;

/// Threads of the host that copy to and from a GPU: the CPU computes with the others meanwhile.
const COPYING: f64 = 4.0;

/// The division of an operation between the CPU and a GPU.
#[derive(Debug)]
pub(crate) struct Hybrid {
    cut: Cut,
    /// The GPU computes this many first rows.
    rows: usize,
    /// The position of the GPU.
    gpu: usize,
    /// The CPU placement that computes the rest.
    cpu: usize,
    /// Predicted seconds of the GPU and of the CPU.
    seconds: [f64; 2],
}

impl Hybrid {
    /// Predicted seconds until both have ended.
    pub(super) fn longest(&self) -> f64 {
        self.seconds[0].max(self.seconds[1])
    }
}

impl Engine {
    /// How the CPU and a GPU share an operation, or `None` if sharing is not faster. Depends only on the shape, the
    /// profile and, if the engine refines, on what was observed, so that results are reproducible without that.
    pub(crate) fn hybrid(&self, op: &Op, types: &[TensorType], decision: &Decision<'_>) -> Option<Hybrid> {
        if self.gpus.is_empty() || decision.seconds() < FROM || self.router.forced().is_some() {
            return None;
        }
        let cut = cut(op, types).filter(|cut| cut.join == Join::Rows)?;
        let residency = self.able(self.on_host(), op);
        // The predicted seconds of each part on every placement.
        let predicted = |rows: usize| {
            let types = cut.part_types(types, rows).ok()?;
            let bytes = |types: &[TensorType]| total_bytes(types.iter().map(|ty| ty.bytes() as u64));
            let all = || op.infer(&types).map_or(u64::MAX, |outputs| bytes(&types).saturating_add(bytes(&outputs)));
            let residency = self.within_budget(residency.clone(), all);
            let problem = Problem::new(op, &types).ok()?;
            let decision = self.router.decide(&problem, &residency);
            let seconds: Vec<f64> = decision.predictions().map(|prediction| prediction.seconds).collect();
            Some((problem, seconds))
        };
        let least = |seconds: &[f64]| {
            let least = seconds.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
            least.filter(|(_, seconds)| seconds.is_finite())
        };
        let mut best: Option<Hybrid> = None;
        for share in SHARES {
            let rows = cut.rows * share / SHARES.end;
            if rows == 0 {
                continue;
            }
            let ((part, on_gpu), (_, on_cpu)) = (predicted(rows)?, predicted(cut.rows - rows)?);
            let (cpu, computing) = least(&on_cpu[..self.cpu.len()])?;
            // More rows are more bytes.
            let Some((gpu, gpu_seconds)) = least(&on_gpu[self.cpu.len()..]) else { break };
            let copying = self.router.transfers(&part, self.cpu.len() + gpu);
            let cpu_seconds = computing + copying * (COPYING / self.cpu[cpu].threads() as f64).min(1.0);
            let longest = cpu_seconds.max(gpu_seconds);
            let limit = best.as_ref().map_or(decision.seconds() * WORTH, Hybrid::longest);
            if longest < limit {
                let seconds = [gpu_seconds, cpu_seconds];
                best = Some(Hybrid { cut: cut.clone(), rows, gpu, cpu, seconds });
            }
        }
        best
    }

    /// Runs an operation on the CPU and a GPU at once. The CPU computes what the GPU refuses.
    pub(super) fn run_hybrid(&self, hybrid: &Hybrid, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        let Hybrid { cut, rows, gpu, cpu, .. } = hybrid;
        let (op, gpu, cpu) = (call.op(), &self.gpus[*gpu], &self.cpu[*cpu]);
        let (mut first, mut rest) = (Vec::with_capacity(outputs.len()), Vec::with_capacity(outputs.len()));
        for output in outputs.iter_mut() {
            let (mine, others) = split(output.reborrow(), *rows, cut.rows);
            first.push(mine);
            rest.push(others);
        }
        let of_gpu = cut.part(call.inputs(), 0, *rows)?;
        let of_cpu = cut.part(call.inputs(), *rows, cut.rows)?;
        let (on_gpu, on_cpu) = std::thread::scope(|scope| {
            let run = || Call::with(op, &of_gpu, |call| wait(gpu.run_call(call, &mut first, WAITING)));
            let thread = std::thread::Builder::new().spawn_scoped(scope, run);
            let on_cpu = cpu.run_into(op, &of_cpu, &mut rest);
            match thread {
                Ok(thread) => (Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))), on_cpu),
                Err(why) => {
                    no_thread("a GPU beside the CPU", &why);
                    (None, on_cpu)
                }
            }
        });
        on_cpu?;
        match on_gpu {
            Some(Err(error)) if !gpu.failed(&error) => Err(error),
            Some(Ok(())) => Ok(()),
            _ => cpu.run_into(op, &of_gpu, &mut first),
        }
    }

    /// The two parts as [`Explanation`](kiln_route::Explanation) shows them.
    pub(super) fn explained(&self, hybrid: &Hybrid) -> (Vec<ExplainedSegment>, String) {
        let places = [self.cpu.len() + hybrid.gpu, hybrid.cpu];
        let segment = |(place, finish): (usize, f64)| ExplainedSegment {
            place: self.places()[place].name.clone(),
            steps: 1,
            start: 0.0,
            finish,
        };
        let segments = places.into_iter().zip(hybrid.seconds).map(segment).collect();
        let (rows, all) = (hybrid.rows, hybrid.cut.rows);
        (segments, format!("{rows} of {all} rows go to the GPU and the others to the CPU, at once"))
    }
}
