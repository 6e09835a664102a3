//! Calibrates the router, judges its decisions, and maps them.

use kiln::regret::{GraphRow, Policy, RegretRow};
use kiln::{Effort, Engine, Progress, Residency};
use kiln_route::Problem;
use serde::Serialize;

use super::numbers::digits;
use super::operations::{ALL, Measured};
use crate::Result;

/// The result of a calibration.
#[derive(Debug, Serialize)]
pub(super) struct Calibration {
    pub(super) measurements: usize,
    pub(super) classes: usize,
    pub(super) seconds: f64,
}

/// The quality of the decisions.
#[derive(Debug, Serialize)]
pub(super) struct Routing {
    pub(super) places: Vec<String>,
    pub(super) problems: usize,
    /// Problems whose shapes were held out of the calibration.
    pub(super) held_out: usize,
    /// Problems left out because threads had to wait for a core in every sample.
    pub(super) disturbed: Vec<ProblemRow>,
    pub(super) decision_ns: f64,
    pub(super) policies: Vec<PolicyRow>,
    /// Every problem, the one where the router lost most first.
    pub(super) measured: Vec<ProblemRow>,
    /// Recorded graphs, the one where the plan lost most first; none without a GPU.
    pub(super) graphs: Vec<GraphTimes>,
    /// The geometric mean of how far predictions of problems are from measurements.
    pub(super) prediction_error: f64,
    pub(super) map: Vec<MapRow>,
}

/// The times of one graph on the CPU, on each GPU and as planned, measured and predicted.
#[derive(Debug, Serialize)]
pub(super) struct GraphTimes {
    pub(super) graph: String,
    pub(super) seconds: Vec<f64>,
    pub(super) predicted: Vec<f64>,
    pub(super) planned: f64,
    pub(super) planned_predicted: f64,
    pub(super) segments: usize,
    pub(super) regret: f64,
}

/// The regret of one way to choose.
#[derive(Debug, Serialize)]
pub(super) struct PolicyRow {
    pub(super) name: &'static str,
    pub(super) geomean: f64,
    pub(super) p95: f64,
    pub(super) worst: f64,
    /// Geometric mean over the held-out problems alone.
    pub(super) held_out: Option<f64>,
}

/// The times of one problem, measured and predicted.
#[derive(Debug, Serialize)]
pub(super) struct ProblemRow {
    pub(super) problem: String,
    /// Position of the place that the router chose, and of the fastest one.
    pub(super) chosen: usize,
    pub(super) best: usize,
    pub(super) regret: f64,
    pub(super) held_out: bool,
    /// Measured seconds on each place; `null` in the JSON where a place was too slow to wait for.
    pub(super) seconds: Vec<f64>,
    /// Predicted seconds on each place.
    pub(super) predicted: Vec<f64>,
}

/// The backend of one operation over sizes.
#[derive(Debug, Serialize)]
pub(super) struct MapRow {
    pub(super) operation: &'static str,
    pub(super) shape: &'static str,
    /// Size, position of the chosen place, and how many times longer the slowest place is predicted to take.
    pub(super) cells: Vec<(usize, usize, f64)>,
}

impl Routing {
    /// The problems where the router lost most.
    pub(super) fn worst(&self, count: usize) -> &[ProblemRow] {
        &self.measured[..count.min(self.measured.len())]
    }

    /// A sentence about the problems left out; empty if all took part.
    pub(super) fn left_out(&self) -> String {
        let Some(worst) = self.disturbed.iter().map(|row| row.regret).max_by(f64::total_cmp) else {
            return String::new();
        };
        format!(
            "{} more are left out, because their threads had to wait for a core in every sample; the router lost at most \
             {:.1} % there.",
            self.disturbed.len(),
            worst * 100.0
        )
    }

    /// The name of a place, and how long a problem took there.
    pub(super) fn timed(&self, row: &ProblemRow, place: usize) -> String {
        let name = self.places.get(place).map_or("", String::as_str);
        let seconds = row.seconds.get(place).copied().unwrap_or(f64::NAN);
        format!("{name}, {} µs", digits(seconds * 1e6))
    }
}

fn effort(quick: bool) -> Effort {
    if quick { Effort::Quick } else { Effort::Thorough }
}

/// Runs `work` with a bar that follows its progress.
fn followed<T>(work: impl FnOnce(&mut dyn FnMut(Progress<'_>)) -> kiln::Result<T>) -> Result<T> {
    let bar = super::bar(0);
    let result = work(&mut |progress: Progress<'_>| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(progress.what.to_owned());
    });
    bar.finish_and_clear();
    Ok(result?)
}

/// Measures the constants of the router.
pub(super) fn calibrate(engine: &mut Engine, quick: bool) -> Result<Calibration> {
    let report = followed(|progress| engine.calibrate(effort(quick), progress))?;
    println!("  {report}");
    Ok(Calibration { measurements: report.measurements, classes: report.classes, seconds: report.took.as_secs_f64() })
}

/// Measures the regret of the decisions against the best place, and maps the decisions.
pub(super) fn judge(engine: &Engine, quick: bool) -> Result<Routing> {
    let problems = kiln::grid::evaluation()?;
    let report = followed(|progress| kiln::regret::evaluate(engine, &problems, effort(quick), progress))?;
    println!("{report}");
    let policies = report
        .policies
        .iter()
        .filter_map(|&policy| {
            let all = report.summary(policy, |_| true)?;
            let held_out = report.summary(policy, |row| row.held_out).map(|s| s.geomean);
            let (geomean, p95, worst) = (all.geomean, all.p95, all.max);
            Some(PolicyRow { name: policy.name(), geomean, p95, worst, held_out })
        })
        .collect();
    let problem = |row: &RegretRow| ProblemRow {
        problem: row.problem.clone(),
        chosen: row.chosen[Policy::Router as usize],
        best: row.best,
        regret: row.regret(Policy::Router),
        held_out: row.held_out,
        seconds: row.seconds.clone(),
        predicted: row.predicted.clone(),
    };
    let graph = |row: &GraphRow| GraphTimes {
        graph: row.graph.clone(),
        seconds: row.seconds.clone(),
        predicted: row.predicted.clone(),
        planned: row.planned,
        planned_predicted: row.planned_predicted,
        segments: row.segments,
        regret: row.regret(),
    };
    let mut graphs: Vec<GraphTimes> = report.graphs.iter().map(graph).collect();
    graphs.sort_by(|a, b| b.regret.total_cmp(&a.regret));
    Ok(Routing {
        graphs,
        prediction_error: report.prediction_error().0,
        problems: report.rows.len(),
        held_out: report.rows.iter().filter(|row| row.held_out).count(),
        disturbed: report.disturbed.iter().map(problem).collect(),
        decision_ns: report.decision_ns,
        policies,
        measured: report.worst(Policy::Router, usize::MAX).into_iter().map(problem).collect(),
        map: ALL.iter().map(|measured| map_row(engine, measured)).collect::<Result<_>>()?,
        places: report.places,
    })
}

fn map_row(engine: &Engine, measured: &Measured) -> Result<MapRow> {
    let cell = |&size: &usize| -> Result<(usize, usize, f64)> {
        let (op, types) = (measured.problem)(size)?;
        let problem = Problem::new(&op, &types)?;
        let decision = engine.router().decide(&problem, &Residency::host());
        let slowest = decision.predictions().map(|p| p.seconds).fold(0.0, f64::max);
        Ok((size, decision.index(), slowest / decision.seconds()))
    };
    let cells = measured.sizes.iter().map(cell).collect::<Result<_>>()?;
    Ok(MapRow { operation: measured.name, shape: measured.shape, cells })
}
