//! The calibration: measures every class of the grid on every placement.

use std::ops::Range;

use kiln_ir::{Precision, Result};
use kiln_route::{Calibrated, Class, Place, Problem, Profile};
use web_time::Instant;

use super::fit::fitted;
use super::grid::Probe;
use super::measure::{Budget, Observed, Plan, Progress, SHARED, hopeless, survey};
use super::{CalibrationReport, Effort, gpu};
use crate::gpus::{self, Gpu};
use crate::{Absent, Engine};

/// Measures these problems on every CPU placement and on these GPUs. The profile contains the GPUs that did not fail.
pub(crate) fn run(
    engine: &Engine,
    gpus: &[&Gpu],
    probes: Vec<Probe>,
    effort: Effort,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(Profile, CalibrationReport)> {
    let start = Instant::now();
    let (budget, seconds) = match effort {
        Effort::Quick => (Budget { rounds: 8, sample: 20e-6, seconds: 0.006 }, 15.0),
        Effort::Thorough => (Budget { rounds: 10, sample: 40e-6, seconds: 0.025 }, 60.0),
    };
    let plan = Plan { budget, seconds };
    let mut points: Vec<(Class, f64, Probe)> = Vec::new();
    for probe in probes {
        let problem = Problem::new(&probe.op, &probe.inputs)?;
        if let Some(class) = problem.class() {
            points.push((class, problem.work().max(1.0), probe));
        }
    }
    points.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Two shapes of equal work would give one point of the curve two times.
    points.dedup_by(|later, earlier| later.0 == earlier.0 && later.1 <= earlier.1);
    let places = engine.cpu_places();
    let expected = |i: usize, observed: &[Observed]| match i.checked_sub(1) {
        Some(last) if points[last].0 == points[i].0 => {
            hopeless(places, &observed[last].typical().seconds, points[i].1 / points[last].1)
        }
        _ => vec![None; places.len()],
    };
    let probes: Vec<&Probe> = points.iter().map(|(_, _, probe)| probe).collect();
    let observed = survey(engine, &probes, plan, expected, progress)?;
    let on_gpus = gpu::survey(gpus, &probes, progress)?;
    let mut calibrated: Vec<Calibrated> = Vec::new();
    for ((class, work, _), observed) in points.iter().zip(observed) {
        if calibrated.last().is_none_or(|curve| (curve.op.as_str(), curve.shape.as_str()) != (class.op, class.shape)) {
            let (op, shape) = (class.op.to_owned(), class.shape.to_owned());
            let precision = if class.is_rounded() { engine.precision() } else { Precision::Contract };
            calibrated.push(Calibrated { op, shape, precision, work: Vec::new(), seconds: Vec::new() });
        }
        if let Some(curve) = calibrated.last_mut() {
            curve.work.push(*work);
            let seconds = observed.typical().seconds;
            let disturbed = observed.is_disturbed(places, &seconds);
            curve.seconds.push(if disturbed { with_fair_gains(seconds, places) } else { seconds });
        }
    }
    for curve in &mut calibrated {
        without_noise(curve, places);
        without_idling(curve, places);
        without_dips(curve, places);
    }
    let mut places = places.to_vec();
    let (mut links, mut left_out) = (Vec::new(), Vec::new());
    for (gpu, times) in gpus.iter().zip(&on_gpus) {
        let times = match times {
            Ok(times) => times,
            Err(reason) => {
                left_out.push(Absent::gpu(gpu, reason));
                continue;
            }
        };
        let (place, _) = gpus::assumed(gpu, links.len());
        links.push((place.memory, times.link.clone()));
        places.push(Place { launch: times.launch.cold, queued: times.launch.queued, ..place });
        let curves = calibrated.iter_mut().flat_map(|curve| &mut curve.seconds);
        curves.zip(&times.seconds).for_each(|(seconds, &time)| seconds.push(time));
    }
    let places = fitted(&places, &calibrated);
    let classes = calibrated.len();
    let measurements = calibrated.iter().flat_map(|c| &c.seconds).map(Vec::len).sum();
    let machine = engine.machine().clone();
    let profile = Profile::new(machine.clone(), places).and_then(|p| p.with_classes(calibrated));
    let profile = profile.and_then(|profile| gpus::linked(profile, links));
    let profile = profile.map_err(super::unusable)?;
    Ok((profile, CalibrationReport { machine, took: start.elapsed(), classes, measurements, left_out, saved: None }))
}

/// Seconds to hand work to other threads and to wait for them.
const HAND_OVER: f64 = 5e-6;

/// The assumed share of the ideal gain of threads if nothing better is known.
const FAIR: f64 = 0.8;

/// More threads than this are assumed to gain as much as this many: most work that is disturbed is short.
const FAIR_THREADS: usize = 4;

/// Times for when another program had a core during every measurement of several threads: they are assumed to gain a
/// fair share. Kernels run work that does not gain on one thread by themselves, so choosing too many threads costs less
/// than choosing too few.
fn with_fair_gains(mut seconds: Vec<f64>, places: &[Place]) -> Vec<f64> {
    let Some(one) = places.iter().rposition(|place| place.threads == 1) else { return seconds };
    for (i, place) in places.iter().enumerate().filter(|(_, place)| place.threads > 1) {
        seconds[i] =
            seconds[i].min(HAND_OVER + seconds[one] / (FAIR * place.threads.min(FAIR_THREADS) as f64).max(1.0));
    }
    seconds
}

/// A gain of threads that is above noise. Kernels run short work on one thread whatever is allowed, and times of the
/// same code differ by a tenth.
const GAIN: f64 = 1.25;

/// Discards thread speedups that are within noise, on work too short to be shared, and all of those on work that takes less than handing it
/// over.
fn without_noise(curve: &mut Calibrated, places: &[Place]) {
    let Some(one) = places.iter().rposition(|place| place.threads == 1) else { return };
    for seconds in curve.seconds.iter_mut().filter(|seconds| seconds[one] < SHARED) {
        for i in (0..places.len()).filter(|&i| places[i].threads > 1) {
            if seconds[i] < seconds[one] && (seconds[one] < GAIN * seconds[i] || seconds[one] < HAND_OVER) {
                seconds[i] = seconds[one];
            }
        }
    }
}

/// Threads count as equally fast if their times differ by at most this share.
const ALIKE: f64 = 0.10;

/// The gain from which more threads are chosen.
const CHOSEN: f64 = 1.11;

/// Makes more threads chosen if they were as fast as one on work that can be shared. Either the kernel kept the work on
/// one thread, and then both choices run the same code, or it shared the work as its cutoff says and another program
/// had the core, which a virtual machine does not always see.
fn without_idling(curve: &mut Calibrated, places: &[Place]) {
    let Some(one) = places.iter().rposition(|place| place.threads == 1) else { return };
    for seconds in curve.seconds.iter_mut().filter(|seconds| seconds[one] >= SHARED) {
        for i in (0..places.len()).filter(|&i| places[i].threads > 1) {
            if (seconds[i] / seconds[one] - 1.0).abs() <= ALIKE {
                seconds[i] = seconds[one] / CHOSEN;
            }
        }
    }
}

/// Fills dips that other programs caused. The speedup of threads over one thread rises with the work while starting
/// them matters, and falls where they share the memory; it has no dip. A point with a smaller speedup than points on
/// both sides of it was measured while a core was busy. Speedups of work too short to be shared are noise and prove nothing about longer
/// work.
fn without_dips(curve: &mut Calibrated, places: &[Place]) {
    let Some(one) = places.iter().rposition(|place| place.threads == 1) else { return };
    for (i, place) in places.iter().enumerate().filter(|(_, place)| place.threads > 1) {
        let gain = |seconds: &Vec<f64>| (seconds[one] / seconds[i]).min(place.threads as f64);
        let gains: Vec<f64> = curve.seconds.iter().map(gain).collect();
        let shared: Vec<bool> = curve.seconds.iter().map(|seconds| seconds[one] >= SHARED).collect();
        for (point, seconds) in curve.seconds.iter_mut().enumerate() {
            let most = |points: Range<usize>| points.filter(|&i| shared[i]).map(|i| gains[i]).fold(0.0, f64::max);
            let around = most(0..point).min(most(point + 1..gains.len()));
            if around >= GAIN && gains[point] < around {
                seconds[i] = seconds[one] / around;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::tests::places;

    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn disturbed_threads_gain_a_fair_share() {
        let gains = |seconds: [f64; 3]| with_fair_gains(seconds.to_vec(), &places());
        let filled = gains([200e-6, 160e-6, 170e-6]);
        assert_eq!(filled[..2], [200e-6, 160e-6]);
        assert!((filled[2] - 105e-6).abs() < 1e-9);
        assert_eq!(gains([200e-6, 160e-6, 90e-6])[2], 90e-6, "measured to be better than that");
    }

    #[test]
    fn gains_of_threads_have_no_dips() {
        let work = vec![1.0, 2.0, 3.0, 4.0, 5.0];
        let times = [[1.0, 1.0, 1.0], [2.0, 2.0, 1.0], [4.0, 4.0, 4.0], [6.0, 6.0, 4.0], [9.0, 9.0, 9.0]];
        let seconds = times.iter().map(|t| t.to_vec()).collect();
        let mut curve =
            Calibrated { op: "add".into(), shape: String::new(), precision: Precision::Contract, work, seconds };
        without_dips(&mut curve, &places());
        let spread: Vec<f64> = curve.seconds.iter().map(|s| s[2]).collect();
        // The third point is between speedups of 2 and 1.5; the fourth and last ones fall permanently.
        assert_eq!(spread, [1.0, 1.0, 4.0 / 1.5, 4.0, 9.0]);
        assert!(curve.seconds.iter().zip(times).all(|(s, t)| s[..2] == t[..2]), "single threads are unchanged");
    }

    #[test]
    fn a_small_gain_on_short_work_is_none() {
        let seconds =
            vec![vec![2e-6, 1.1e-6, 1e-6], vec![4e-6, 4e-6, 1e-6], vec![8e-6, 8e-6, 4e-6], vec![40e-6, 22e-6, 20e-6]];
        let work = vec![1.0, 2.0, 3.0, 4.0];
        let mut curve =
            Calibrated { op: "add".into(), shape: String::new(), precision: Precision::Contract, work, seconds };
        without_noise(&mut curve, &places());
        let spread: Vec<f64> = curve.seconds.iter().map(|s| s[2]).collect();
        assert_eq!(
            spread,
            [1.1e-6, 4e-6, 4e-6, 20e-6],
            "shorter than handing over; the third gained much, the fourth lasts long"
        );
    }

    #[test]
    fn threads_as_fast_as_one_are_chosen_for_work_that_can_be_shared() {
        let seconds =
            vec![vec![8e-6, 8e-6, 8e-6], vec![50e-6, 40e-6, 41e-6], vec![90e-6, 60e-6, 30e-6], vec![9.0, 6.0, 7.0]];
        let work = vec![1.0, 2.0, 3.0, 4.0];
        let mut curve =
            Calibrated { op: "add".into(), shape: String::new(), precision: Precision::Contract, work, seconds };
        without_idling(&mut curve, &places());
        let spread: Vec<f64> = curve.seconds.iter().map(|s| s[2]).collect();
        assert_eq!(spread, [8e-6, 40e-6 / CHOSEN, 30e-6, 7.0], "too short; alike; faster; slower");
    }

    #[test]
    fn noise_of_short_work_is_no_gain() {
        let unchanged = |times: [[f64; 3]; 4]| {
            let seconds: Vec<Vec<f64>> = times.iter().map(|t| t.to_vec()).collect();
            let mut curve = Calibrated {
                op: "add".into(),
                shape: String::new(),
                precision: Precision::Contract,
                work: vec![1.0, 2.0, 3.0, 4.0],
                seconds: seconds.clone(),
            };
            without_dips(&mut curve, &places());
            assert_eq!(curve.seconds, seconds);
        };
        unchanged([[1.1, 1.1, 1.0], [2.0, 2.0, 2.0], [4.0, 4.0, 4.0], [9.0, 9.0, 5.0]]);
        // Work of 8 µs that seemed twice as fast on several threads says nothing about work of 34 µs that kernels keep on one thread.
        unchanged([[3e-6, 3e-6, 3e-6], [8e-6, 8e-6, 4e-6], [34e-6, 34e-6, 34e-6], [190e-6, 190e-6, 80e-6]]);
    }
}
