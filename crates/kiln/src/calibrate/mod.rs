//! Measuring a machine.

pub mod grid;
mod measure;
pub mod regret;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kiln_core::Result;
use kiln_route::{Calibrated, Class, Place, Problem, Profile, Roofline};
use web_time::Instant;

use crate::Engine;
use measure::{Bench, Budget};

use grid::Probe;

/// How much time measuring may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effort {
    /// Seconds to about a quarter of a minute: enough for good decisions.
    #[default]
    Quick,
    /// About four times as long: for machines that are never quiet.
    Thorough,
}

/// How far measuring has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress<'a> {
    /// Steps done.
    pub done: usize,
    /// Steps in all.
    pub total: usize,
    /// What is measured next.
    pub what: &'a str,
}

/// What a calibration measured.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationReport {
    /// The time it took.
    pub took: Duration,
    /// Classes measured: operations, and their kinds of shape.
    pub classes: usize,
    /// Times measured.
    pub measurements: usize,
    /// Where the profile was written, or why it could not be; `None` for an engine without a file.
    pub saved: Option<Result<PathBuf, String>>,
}

impl std::fmt::Display for CalibrationReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { took, classes, measurements, saved } = self;
        write!(f, "{measurements} measurements of {classes} classes in {:.1} s", took.as_secs_f64())?;
        match saved {
            None => Ok(()),
            Some(Ok(path)) => write!(f, ", written to {}", path.display()),
            Some(Err(reason)) => write!(f, ", not written: {reason}"),
        }
    }
}

/// A place that is this many times slower than the best is not waited for where one run takes long.
const HOPELESS: f64 = 4.0;

/// What "takes long" means there, in seconds.
const LONG: f64 = 2e-3;

/// Everything is measured this often, seconds apart, and the least time counts: whatever kept the machine busy for a
/// moment has passed by then.
const PASSES: usize = 2;

/// Work on which more threads gained little is measured this often again: either it does not scale, or another program
/// had one of the cores.
const OPINIONS: usize = 3;

/// Measures every class of the grid on every place of the engine.
pub(crate) fn run(
    engine: &Engine,
    effort: Effort,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(Profile, CalibrationReport)> {
    let start = Instant::now();
    let budget = match effort {
        Effort::Quick => Budget { rounds: 4, sample: 20e-6, seconds: 0.005 },
        Effort::Thorough => Budget { rounds: 10, sample: 40e-6, seconds: 0.025 },
    };
    let mut classes = BTreeMap::<Class, Vec<(f64, Probe)>>::new();
    for probe in grid::calibration()? {
        let problem = Problem::new(&probe.op, &probe.inputs)?;
        if let Some(class) = problem.class() {
            classes.entry(class).or_default().push((problem.work(), probe));
        }
    }
    for probes in classes.values_mut() {
        probes.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Two shapes of equal work would make two times for one point of the curve.
        probes.dedup_by(|later, earlier| later.0 <= earlier.0);
    }
    let total = (PASSES + OPINIONS) * classes.values().map(Vec::len).sum::<usize>();
    let mut done = 0;
    let mut bench = Bench::default();
    let mut calibrated: Vec<Calibrated> = classes.keys().map(|class| empty(*class)).collect();
    for pass in 0..PASSES + OPINIONS {
        for ((class, probes), curve) in classes.iter().zip(&mut calibrated) {
            let earlier = std::mem::replace(curve, empty(*class));
            for (point, (work, probe)) in probes.iter().enumerate() {
                progress(Progress { done, total, what: class.op });
                done += 1;
                let before = earlier.seconds.get(point);
                // On a machine that stays busy everything is doubtful, and measuring on would not help.
                let late = effort == Effort::Quick && start.elapsed().as_secs_f64() > 12.0;
                if pass >= PASSES && (late || !before.is_some_and(|seconds| doubtful(seconds, engine.places()))) {
                    curve.work.push(work.max(1.0));
                    curve.seconds.extend(before.cloned());
                    continue;
                }
                let expected = expected(curve, *work, engine.places());
                let measured = bench.times(probe, &engine.cpu, &expected, budget)?;
                let earlier = |place: usize| earlier.seconds.get(point).map_or(f64::MAX, |seconds| seconds[place]);
                let least = |(place, (measured, expected)): (usize, (&Option<f64>, &Option<f64>))| {
                    measured.or(*expected).unwrap_or(f64::MAX).min(earlier(place))
                };
                curve.work.push(work.max(1.0));
                curve.seconds.push(measured.iter().zip(&expected).enumerate().map(least).collect());
            }
        }
    }
    let places = fitted(engine.places(), &calibrated);
    let classes = calibrated.len();
    let measurements = calibrated.iter().flat_map(|c| &c.seconds).map(Vec::len).sum();
    let profile = Profile::new(engine.machine().clone(), places).and_then(|p| p.with_classes(calibrated));
    let profile = profile.map_err(|problem| kiln_core::Error::Unavailable {
        what: "a usable measurement".into(),
        reason: problem.to_string(),
    })?;
    Ok((profile, CalibrationReport { took: start.elapsed(), classes, measurements, saved: None }))
}

/// Whether all threads together gained little over one of them on work that lasts long enough to be shared.
fn doubtful(seconds: &[f64], places: &[Place]) -> bool {
    let least = |several: bool| {
        let times = places.iter().zip(seconds).filter(|(place, _)| (place.threads > 1) == several);
        times.map(|(_, &seconds)| seconds).fold(f64::INFINITY, f64::min)
    };
    let (one, several) = (least(false), least(true));
    several.is_finite() && one > 20e-6 && several > 0.7 * one
}

fn empty(class: Class) -> Calibrated {
    Calibrated { op: class.op.to_owned(), shape: class.shape.to_owned(), work: Vec::new(), seconds: Vec::new() }
}

/// Times that need not be measured: those of single threads that fell behind for good. Work on many threads is always
/// measured, because that is where it catches up.
fn expected(curve: &Calibrated, work: f64, places: &[Place]) -> Vec<Option<f64>> {
    let (Some(last), Some(last_work)) = (curve.seconds.last(), curve.work.last()) else {
        return vec![None; places.len()];
    };
    let best = last.iter().copied().fold(f64::INFINITY, f64::min);
    let hopeless = |(place, &seconds): (&Place, &f64)| {
        let next = seconds * work / last_work;
        (place.threads == 1 && seconds > HOPELESS * best && next > LONG).then_some(next)
    };
    places.iter().zip(last).map(hopeless).collect()
}

/// The constants of the formula from what was measured: overhead and bandwidths from a function that only moves its
/// data, the peak from the matrix product.
fn fitted(places: &[Place], calibrated: &[Calibrated]) -> Vec<Place> {
    let find = |op: &str| calibrated.iter().find(|c| c.op == op && c.shape.is_empty());
    let (Some(moving), Some(computing)) = (find("scale"), find("matmul")) else { return places.to_vec() };
    let fit = |(i, place): (usize, &Place)| {
        let at = |curve: &Calibrated, point: usize| curve.seconds[point][i];
        let overhead = at(moving, 0);
        let level = |point: usize| {
            // At least a tenth of the time is movement, whatever the noise of the overhead.
            let seconds = (at(moving, point) - overhead).max(at(moving, point) * 0.1);
            (moving.work[point] as u64, moving.work[point] / seconds)
        };
        let mut levels: Vec<(u64, f64)> = (1..moving.work.len()).map(level).collect();
        if let Some(last) = levels.last_mut() {
            last.0 = u64::MAX;
        } else {
            levels = place.roofline.levels.clone();
        }
        let rate = |point: usize| computing.work[point] / at(computing, point);
        let peak = (0..computing.work.len()).map(rate).fold(1.0, f64::max);
        Place { roofline: Roofline { overhead, levels, peak }, ..place.clone() }
    };
    places.iter().enumerate().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_route::Backend;

    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn places() -> Vec<Place> {
        let place = |name: &str, threads| Place::cpu(name, Backend::Simd, 8, threads);
        vec![place("avx2 x1", 1), place("avx512 x1", 1), place("avx512 x2", 2)]
    }

    #[test]
    fn little_gain_of_long_work_is_doubtful() {
        assert!(doubtful(&[100e-6, 90e-6, 88e-6], &places()));
        assert!(!doubtful(&[100e-6, 90e-6, 50e-6], &places()));
        assert!(!doubtful(&[1e-6, 0.9e-6, 5e-6], &places()), "too short to be shared");
        assert!(!doubtful(&[100e-6, 90e-6], &places()[..2]), "no place has several threads");
    }

    #[test]
    fn only_single_threads_far_behind_are_not_waited_for() {
        let class = Class { op: "matmul", shape: "" };
        let mut curve = empty(class);
        assert_eq!(expected(&curve, 1e6, &places()), [None; 3]);
        curve.work.push(1e6);
        curve.seconds.push(vec![10e-3, 1e-3, 9e-3]);
        assert_eq!(expected(&curve, 2e6, &places()), [Some(20e-3), None, None]);
        assert_eq!(expected(&curve, 1e5, &places()), [None; 3], "short enough to be measured");
    }

    #[test]
    fn constants_are_fitted_to_what_moves_and_what_computes() {
        let curve = |op: &str, points: &[(f64, f64)]| Calibrated {
            op: op.to_owned(),
            shape: String::new(),
            work: points.iter().map(|p| p.0).collect(),
            seconds: points.iter().map(|p| vec![p.1; 3]).collect(),
        };
        let moving = curve("scale", &[(1e2, 1e-7), (1e5, 1e-7 + 1e5 / 50e9), (1e8, 1e-7 + 1e8 / 10e9)]);
        let computing = curve("matmul", &[(1e4, 1e-6), (1e8, 1e-3)]);
        let roofline = &fitted(&places(), &[moving, computing])[0].roofline;
        assert!((roofline.bandwidth(1000) / 50e9 - 1.0).abs() < 1e-6);
        assert!((roofline.bandwidth(u64::MAX) / 10e9 - 1.0).abs() < 1e-6);
        assert!((roofline.peak / 100e9 - 1.0).abs() < 1e-6);
    }
}
