//! The regret of decisions: the measured time that they lose compared with the best placement.

use std::time::Duration;

use kiln_ir::Result;
use kiln_route::{Backend, BackendSelector, OpComplexity, Problem, RecordedProblem, Recording};
use web_time::Instant;

use super::Effort;
use super::gpu::{HostToHost, NEVER};
use super::graphs;
pub use super::graphs::GraphRow;
use super::grid::Probe;
use super::measure::{Budget, Plan, Progress, RIVAL, Typical, survey};
#[cfg(not(target_arch = "wasm32"))]
pub use super::shared::{SharedRow, shared};
use crate::Engine;

/// A time on a GPU is measured again if it exceeds its prediction by this factor: perhaps it compiled, or its device was busy.
const UNEXPECTED: f64 = 1.3;

/// Times on a GPU are measured this often at most, for each half.
const ATTEMPTS: usize = 3;

/// Two times of a GPU confirm one another if they differ by at most this share.
const CONFIRMED: f64 = 0.05;

/// A policy that chooses placements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The calibrated router.
    Router,
    /// [`BackendSelector::select_with_moe`]; SIMD and GPU are the best instruction set with one thread.
    ComplexityTable,
    /// [`BackendSelector::select_backend`]; SIMD and GPU are the best instruction set with all threads.
    RatioRule,
    /// Always chooses scalar code.
    AlwaysScalar,
    /// Always chooses the best instruction set with one thread.
    AlwaysOneThread,
    /// Always chooses the best instruction set with all threads.
    AlwaysAllThreads,
    /// Always chooses the first GPU.
    AlwaysGpu,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 7] = [
        Self::Router,
        Self::ComplexityTable,
        Self::RatioRule,
        Self::AlwaysScalar,
        Self::AlwaysOneThread,
        Self::AlwaysAllThreads,
        Self::AlwaysGpu,
    ];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::ComplexityTable => "static: complexity table",
            Self::RatioRule => "static: ratio rule",
            Self::AlwaysScalar => "always scalar",
            Self::AlwaysOneThread => "always SIMD, one thread",
            Self::AlwaysAllThreads => "always SIMD, all threads",
            Self::AlwaysGpu => "always GPU",
        }
    }

    /// The position of the placement that it chooses.
    fn choose(self, engine: &Engine, probe: &Probe, problem: &Problem) -> usize {
        let places = engine.cpu_places();
        let scalar = places.iter().position(|p| p.backend == Backend::Scalar).unwrap_or(0);
        let one_thread = places.iter().rposition(|p| p.threads == 1).unwrap_or(0);
        let all_threads = places.len().saturating_sub(1);
        let gpu = (!engine.gpus.is_empty()).then_some(places.len());
        let rules = BackendSelector::new();
        match self {
            Self::Router => engine.router().decide(problem, &engine.on_host()).index(),
            Self::ComplexityTable => {
                let elements = probe.inputs.iter().map(|t| t.shape.numel()).max().unwrap_or(0);
                match rules.select_with_moe(OpComplexity::of(&probe.op), elements) {
                    Backend::Scalar => scalar,
                    Backend::Gpu | Backend::Cuda => gpu.unwrap_or(one_thread),
                    Backend::Simd => one_thread,
                }
            }
            Self::RatioRule => {
                let cost = problem.cost();
                match rules.select_backend(cost.bytes(), cost.flops) {
                    Backend::Scalar => scalar,
                    Backend::Gpu | Backend::Cuda => gpu.unwrap_or(all_threads),
                    Backend::Simd => all_threads,
                }
            }
            Self::AlwaysScalar => scalar,
            Self::AlwaysOneThread => one_thread,
            Self::AlwaysAllThreads => all_threads,
            Self::AlwaysGpu => gpu.unwrap_or(all_threads),
        }
    }
}

/// One problem, measured on every placement.
#[derive(Debug, Clone, PartialEq)]
pub struct RegretRow {
    /// The operation and its shapes.
    pub problem: String,
    /// The operation.
    pub op: &'static str,
    /// Whether the shape was held out of the calibration.
    pub held_out: bool,
    /// Measured seconds on each placement; infinite if the placement was too slow to measure.
    pub seconds: Vec<f64>,
    /// Measured seconds from one half of the measurements alone, and from the other half.
    pub halves: [Vec<f64>; 2],
    /// Predicted seconds on each placement.
    pub predicted: Vec<f64>,
    /// The index of the fastest placement.
    pub best: usize,
    /// Whether the router called its decision unsure.
    pub unsure: bool,
    /// The index of the placement that each policy chooses, in the order of [`Policy::ALL`].
    pub chosen: [usize; 7],
}

impl RegretRow {
    /// Returns `t(chosen) / t(best) - 1`, where one half of the measurements selects the best placement and the other half gives its time:
    /// the geometric mean over both assignments of the halves, or 0 if that is negative. The least of several noisy times of equal
    /// placements is below their mean, so a placement that is selected and timed by the same measurements would seem better than any choice
    /// can be.
    pub fn regret(&self, policy: Policy) -> f64 {
        let chosen = self.chosen[policy as usize];
        let [a, b] = &self.halves;
        let ratio = |named: &[f64], timed: &[f64]| timed[chosen] / timed[fastest(named)];
        ((ratio(a, b) * ratio(b, a)).sqrt() - 1.0).max(0.0)
    }

    /// Returns `t(chosen) / t(best) - 1` by the times of all measurements.
    pub fn regret_of_all(&self, policy: Policy) -> f64 {
        self.seconds[self.chosen[policy as usize]] / self.seconds[self.best] - 1.0
    }
}

/// The position of the least time.
fn fastest(seconds: &[f64]) -> usize {
    (0..seconds.len()).min_by(|&a, &b| seconds[a].total_cmp(&seconds[b])).unwrap_or(0)
}

/// The regret of a policy over many problems.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The number of problems.
    pub count: usize,
    /// Geometric mean of `1 + regret`, minus 1.
    pub geomean: f64,
    /// The regret that 95 of 100 problems do not exceed.
    pub p95: f64,
    /// The maximum regret.
    pub max: f64,
    /// Share of problems where the best placement was chosen, among those where the best two differ by more than 10 %.
    pub right: f64,
}

/// Measured regret.
#[derive(Debug, Clone, PartialEq)]
pub struct RegretReport {
    /// The names of the placements.
    pub places: Vec<String>,
    /// The policies that differ on these placements: all of them, or all but the one that needs a GPU.
    pub policies: Vec<Policy>,
    /// The problems.
    pub rows: Vec<RegretRow>,
    /// Problems left out of the summaries: threads had to wait for a core in every sample of several threads.
    pub disturbed: Vec<RegretRow>,
    /// Recorded graphs, measured on each device and in their planned segments; empty on machines without a GPU, where every plan is equal.
    pub graphs: Vec<GraphRow>,
    /// Nanoseconds that a decision takes, on average over the problems.
    pub decision_ns: f64,
    /// The time that measuring took.
    pub took: Duration,
}

impl RegretReport {
    /// Returns the regret of a policy over the problems that `keep` accepts; `None` if it rejects all.
    pub fn summary(&self, policy: Policy, keep: impl Fn(&RegretRow) -> bool) -> Option<Summary> {
        let rows: Vec<&RegretRow> = self.rows.iter().filter(|row| keep(row)).collect();
        let (geomean, p95, max) = spread(rows.iter().map(|row| row.regret(policy)).collect())?;
        let count = rows.len();
        let clear = rows.iter().filter(|row| {
            let others = row.seconds.iter().enumerate().filter(|&(i, _)| i != row.best).map(|(_, &s)| s);
            others.fold(f64::INFINITY, f64::min) > row.seconds[row.best] * 1.1
        });
        let (hits, clear) = clear.fold((0, 0), |(hits, clear), row| {
            (hits + usize::from(row.chosen[policy as usize] == row.best), clear + 1)
        });
        let right = if clear == 0 { 1.0 } else { hits as f64 / clear as f64 };
        Some(Summary { count, geomean, p95, max, right })
    }

    /// Returns the measurements and the profile that decided, to replay the decisions elsewhere.
    pub fn recording(&self, engine: &Engine) -> Recording {
        let finite = |&seconds: &f64| (seconds < NEVER).then_some(seconds);
        let problem = |row: &RegretRow| RecordedProblem {
            name: row.problem.clone(),
            seconds: row.seconds.iter().map(finite).collect(),
        };
        let problems = self.rows.iter().map(problem).collect();
        Recording { profile: engine.router().profile().clone(), problems }
    }

    /// Returns the geometric mean, 95th percentile and maximum of the regret of the planned segments of graphs, and the geometric mean of
    /// the best constant policy: always the CPU, or always the same GPU. `None` without graphs.
    pub fn graph_summary(&self) -> Option<[f64; 4]> {
        let (geomean, p95, max) = spread(self.graphs.iter().map(GraphRow::regret).collect())?;
        let always = |device: usize| {
            let regret =
                |row: &GraphRow| row.seconds[device] / row.seconds.iter().copied().fold(row.planned, f64::min) - 1.0;
            spread(self.graphs.iter().map(regret).collect()).map_or(f64::INFINITY, |(geomean, ..)| geomean)
        };
        let devices = self.graphs.first().map_or(0, |row| row.seconds.len());
        Some([geomean, p95, max, (0..devices).map(always).fold(f64::INFINITY, f64::min)])
    }

    /// Returns the geometric mean of the factors between predictions and measurements (the greater of their ratio and its inverse): over
    /// all problems and placements, and over all graphs and devices.
    pub fn prediction_error(&self) -> (f64, f64) {
        let error = |pairs: Vec<(f64, f64)>| {
            let logs = pairs.iter().filter(|(a, b)| a.is_finite() && b.is_finite() && *a < 1e5 && *b < 1e5);
            let logs: Vec<f64> = logs.map(|(a, b)| (a / b).ln().abs()).collect();
            (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
        };
        let pairs = |a: &[f64], b: &[f64]| a.iter().copied().zip(b.iter().copied()).collect::<Vec<_>>();
        let problems = self.rows.iter().flat_map(|row| pairs(&row.predicted, &row.seconds)).collect();
        (error(problems), error(self.graphs.iter().flat_map(|row| pairs(&row.predicted, &row.seconds)).collect()))
    }

    /// Returns the maximum regret of the router among the problems left out; `None` if none was left out.
    pub fn worst_disturbed(&self) -> Option<f64> {
        self.disturbed.iter().map(|row| row.regret(Policy::Router)).max_by(f64::total_cmp)
    }

    /// Returns the problems where the policy lost most, worst first.
    pub fn worst(&self, policy: Policy, count: usize) -> Vec<&RegretRow> {
        let mut rows: Vec<&RegretRow> = self.rows.iter().collect();
        rows.sort_by(|a, b| b.regret(policy).total_cmp(&a.regret(policy)));
        rows.truncate(count);
        rows
    }
}

impl std::fmt::Display for RegretReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held_out = self.rows.iter().filter(|row| row.held_out).count();
        writeln!(f, "regret over {} problems, {held_out} of them held out of the calibration", self.rows.len())?;
        writeln!(f, "{:28} {:>9} {:>9} {:>9} {:>9} {:>12}", "policy", "geomean", "p95", "worst", "right", "held out")?;
        for &policy in &self.policies {
            let Some(all) = self.summary(policy, |_| true) else { continue };
            let held = self.summary(policy, |row| row.held_out).map_or(f64::NAN, |s| s.geomean);
            writeln!(
                f,
                "{:28} {:>8.1}% {:>8.1}% {:>8.1}% {:>8.0}% {:>11.1}%",
                policy.name(),
                all.geomean * 100.0,
                all.p95 * 100.0,
                all.max * 100.0,
                all.right * 100.0,
                held * 100.0,
            )?;
        }
        let of_all = self.rows.iter().map(|row| row.regret_of_all(Policy::Router)).collect();
        if let Some((geomean, p95, max)) = spread(of_all) {
            let [geomean, p95, max] = [geomean, p95, max].map(|regret| regret * 100.0);
            writeln!(
                f,
                "router, if the same measurements name and time the best place: geomean {geomean:.1}%, p95 {p95:.1}%, worst {max:.1}%"
            )?;
        }
        if let Some(worst) = self.worst_disturbed() {
            let (count, worst) = (self.disturbed.len(), worst * 100.0);
            write!(f, "{count} problems are left out: threads had to wait for a core in every sample; ")?;
            writeln!(f, "the router lost at most {worst:.1} % there")?;
        }
        if let Some([geomean, p95, max, always]) = self.graph_summary() {
            let shared = self.graphs.iter().filter(|row| row.segments > 1).count();
            let [geomean, p95, max, always] = [geomean, p95, max, always].map(|regret| regret * 100.0);
            writeln!(
                f,
                "{} graphs and resident operands: geomean {geomean:.1}%, p95 {p95:.1}%, worst {max:.1}%; one device always \
                 {always:.1}%; {shared} run on several devices",
                self.graphs.len(),
            )?;
        }
        let (problems, graphs) = self.prediction_error();
        write!(f, "predictions are off by a factor of {problems:.2}")?;
        if !self.graphs.is_empty() {
            write!(f, ", of graphs by {graphs:.2}")?;
        }
        write!(f, "; a decision takes {:.0} ns", self.decision_ns)
    }
}

/// Geometric mean of `1 + regret` minus 1, 95th percentile and maximum; `None` for an empty list.
fn spread(mut regrets: Vec<f64>) -> Option<(f64, f64, f64)> {
    regrets.sort_by(f64::total_cmp);
    let count = regrets.len();
    let max = *regrets.last()?;
    let geomean = (regrets.iter().map(|regret| regret.ln_1p()).sum::<f64>() / count as f64).exp_m1();
    Some((geomean, regrets[(count * 95).div_ceil(100).clamp(1, count) - 1], max))
}

/// Measures problems on every placement of the engine and compares the choice of each policy with the best placement.
///
/// # Errors
/// Errors of the operations measured.
pub fn evaluate(
    engine: &Engine,
    problems: &[(Probe, bool)],
    effort: Effort,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<RegretReport> {
    let start = Instant::now();
    // The limit applies to doubtful problems after every problem was measured three times: on a shared machine many are
    // doubtful.
    let (budget, seconds) = match effort {
        Effort::Quick => (Budget { rounds: 8, sample: 30e-6, seconds: 0.016 }, 15.0),
        Effort::Thorough => (Budget { rounds: 30, sample: 60e-6, seconds: 0.2 }, 60.0),
    };
    let plan = Plan { budget, seconds };
    let probes: Vec<&Probe> = problems.iter().map(|(probe, _)| probe).collect();
    // Doubtful problems are measured again whichever policy did well or badly on them: the policies choose after the last measurement
    // of a problem.
    let measured = survey(engine, &probes, plan, |_, _| Vec::new(), progress)?;
    let mut on_gpus = HostToHost::new(engine, &probes)?;
    let of_gpus = probes.iter().map(|probe| on_gpus.seconds(probe)).collect::<Result<Vec<_>>>()?;
    let graphs =
        if engine.gpus.is_empty() { Vec::new() } else { graphs::measure(engine, plan.budget.seconds, progress)? };
    let mut rows = Vec::with_capacity(problems.len());
    let mut disturbed = Vec::new();
    for (((probe, held_out), observed), of_gpus) in problems.iter().zip(measured).zip(of_gpus) {
        let problem = Problem::new(&probe.op, &probe.inputs)?;
        let decision = engine.router().decide(&problem, &engine.on_host());
        let predicted: Vec<f64> = decision.predictions().map(|p| p.seconds).collect();
        let Typical { mut seconds, mut halves } = observed.typical();
        let left_out = observed.is_disturbed(engine.cpu_places(), &seconds);
        let [a, b] =
            again_where_it_matters(&seconds, &predicted[engine.cpu.len()..], of_gpus, || on_gpus.seconds(probe))?;
        seconds.extend(a.iter().zip(&b).map(|(a, b)| a.min(*b)));
        halves[0].extend(a);
        halves[1].extend(b);
        let unsure = decision.is_unsure();
        let best = fastest(&seconds);
        let chosen = Policy::ALL.map(|policy| policy.choose(engine, probe, &problem));
        let (problem, op, held_out) = (probe.to_string(), probe.op.name(), *held_out);
        let row = RegretRow { problem, op, held_out, seconds, halves, predicted, best, unsure, chosen };
        if left_out { disturbed.push(row) } else { rows.push(row) }
    }
    let decision_ns = decision_time(engine, problems)?;
    let places = engine.places().iter().map(|p| p.name.clone()).collect();
    let shown = |policy: &Policy| *policy != Policy::AlwaysGpu || !engine.gpus.is_empty();
    let policies = Policy::ALL.into_iter().filter(shown).collect();
    Ok(RegretReport { places, policies, rows, disturbed, graphs, decision_ns, took: start.elapsed() })
}

/// Two independent times of a problem on each GPU. The second is measured, and both again until they are confirmed, if the first is less
/// than twice the best time of all, so that it may decide, or much more than predicted. `measured` are seconds on the CPU.
fn again_where_it_matters(
    measured: &[f64],
    predicted: &[f64],
    first: Vec<f64>,
    mut measure: impl FnMut() -> Result<Vec<f64>>,
) -> Result<[Vec<f64>; 2]> {
    let mut halves = [first.clone(), first];
    for attempt in 0..2 * ATTEMPTS - 1 {
        let [a, b] = &halves;
        let best = measured.iter().chain(a).chain(b).copied().fold(f64::INFINITY, f64::min);
        let matters = |i: usize| {
            let least = a[i].min(b[i]);
            let unconfirmed = attempt == 0 || (a[i] / b[i]).ln().abs() > CONFIRMED;
            let unexpected = attempt == 0 && least > UNEXPECTED * predicted[i];
            least < NEVER && (unconfirmed && least < RIVAL * best || unexpected)
        };
        if !(0..a.len()).any(matters) {
            break;
        }
        let again = measure()?;
        let half = &mut halves[(attempt + 1) % 2];
        // The second half begins with its own first time.
        half.iter_mut()
            .zip(&again)
            .for_each(|(known, &again)| *known = if attempt == 0 { again } else { known.min(again) });
    }
    Ok(halves)
}

/// Average nanoseconds of a decision from operation and types to placement: the best of several passes over the
/// problems.
fn decision_time(engine: &Engine, problems: &[(Probe, bool)]) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..50 {
            for (probe, _) in problems {
                let problem = Problem::new(&probe.op, &probe.inputs)?;
                std::hint::black_box(engine.router().decide(&problem, &engine.on_host()).index());
            }
        }
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least / (50 * problems.len().max(1)) as f64 * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn row(halves: [[f64; 3]; 2], chosen: usize) -> RegretRow {
        let seconds: Vec<f64> = (0..3).map(|i| halves[0][i].min(halves[1][i])).collect();
        RegretRow {
            problem: "sum [3]".into(),
            op: "sum",
            held_out: true,
            best: fastest(&seconds),
            seconds,
            halves: halves.map(|half| half.to_vec()),
            predicted: vec![1.0; 3],
            unsure: false,
            chosen: [chosen; 7],
        }
    }

    #[test]
    fn noise_is_no_regret_and_a_difference_is() {
        let regret = |halves, chosen| row(halves, chosen).regret(Policy::Router);
        // Two equal places, each lucky in one half: the other half does not confirm it.
        assert!(regret([[0.8, 1.0, 3.0], [1.0, 0.8, 3.0]], 0) < 1e-12);
        assert!((row([[0.8, 1.0, 3.0], [1.0, 1.0, 3.0]], 1).regret_of_all(Policy::Router) - 0.25).abs() < 1e-12);
        // A real difference counts in full, whichever half names the best place.
        assert!((regret([[1.0, 1.3, 3.0], [2.0, 2.6, 6.0]], 1) - 0.3).abs() < 1e-12);
        assert_eq!(regret([[1.0, 1.3, 3.0], [2.0, 2.6, 6.0]], 0), 0.0);
        assert!((regret([[1.0, 1.3, 3.0], [1.0, 1.3, 3.0]], 2) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn calls_on_gpus_that_decide_are_never_judged_by_one_run() {
        let halves = |predicted: f64, times: &[f64]| {
            let mut later = times[1..].iter();
            let mut measured = 0;
            let halves = again_where_it_matters(&[10e-6, 8e-6], &[predicted], vec![times[0]], || {
                measured += 1;
                Ok(vec![*later.next().expect("it is not measured as often")])
            });
            let [a, b] = halves.unwrap();
            (a[0], b[0], measured)
        };
        assert_eq!(halves(20e-6, &[20e-6]), (20e-6, 20e-6, 0), "far behind, as predicted");
        assert_eq!(halves(NEVER, &[NEVER]), (NEVER, NEVER, 0), "it cannot run there");
        assert_eq!(halves(9e-6, &[9e-6, 9.1e-6]), (9e-6, 9.1e-6, 1), "confirmed");
        assert_eq!(halves(9e-6, &[90e-6, 9e-6, 9e-6]), (9e-6, 9e-6, 2), "the first time compiled");
        assert_eq!(halves(60e-6, &[90e-6, 89e-6]), (90e-6, 89e-6, 1), "slower than predicted, but far behind");
        let unsteady = [9e-6, 12e-6, 8e-6, 11e-6, 9e-6, 10e-6];
        assert_eq!(halves(9e-6, &unsteady), (8e-6, 10e-6, 5), "each half has three times at most");
    }
}
