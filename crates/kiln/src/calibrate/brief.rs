//! A calibration for pages: within about a second, with a clock that may be coarse, without keeping the page waiting.
//!
//! It measures a few sizes of the most informative classes. Small sizes of all classes come first, so that only large sizes are
//! skipped when the time is over; for those the last measured rate is used. Classes without measurements are predicted from
//! bandwidth and peak.

use std::ops::Range;
use std::time::Duration;

use kiln_ir::op::{
    Convolve2d, Dot, Elementwise, LayerNorm, Matmul, Matvec, Op, Padding, Reduce, Reduction, Softmax, Transpose,
};
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Operations, Precision, Result, Shape, TensorType};
use kiln_route::{Calibrated, Class, Link, Memory, Place, Problem, Profile};
use kiln_simd::Simd;
use web_time::Instant;

use super::fit::fitted;
use super::grid::Probe;
use crate::repeats::Repeats;
use crate::{Engine, gpus};

/// Minimum length of a sample, in ticks of the clock.
const TICKS: f64 = 20.0;
/// Minimum and maximum length of a sample in seconds, whatever the clock.
const SAMPLE: (f64, f64) = (100e-6, 4e-3);
/// A placement that is this many times slower than the best is not measured if one run takes [`LONG`].
const HOPELESS: f64 = 4.0;
/// Seconds above which one run of a hopeless placement takes too long.
const LONG: f64 = 2e-3;
/// The time recorded for a problem that a GPU cannot run, so that the GPU is never chosen for it.
#[cfg(browser_gpu)]
const NEVER: f64 = 1e6;
/// Minimum time of a kernel.
const LEAST: f64 = 1e-9;

/// The measured points of one class.
struct Curve {
    points: Vec<(f64, Probe)>,
    /// Seconds of the first points on the CPU placements, if they were measured before everything else.
    ahead: Vec<Vec<f64>>,
    measured: Calibrated,
    /// Whether the engine's precision applies to it.
    is_rounded: bool,
    /// Whether the time does not suffice for more points.
    ended: bool,
}

impl Curve {
    fn new(op: impl Into<Op>, shapes: &[&[&[usize]]]) -> Result<Self> {
        let op = op.into();
        let mut points = Vec::with_capacity(shapes.len());
        let mut class = Class { op: op.name(), shape: "" };
        for shapes in shapes {
            let inputs =
                shapes.iter().map(|dims| Ok(TensorType::f32(Shape::new(dims)?))).collect::<Result<Vec<_>>>()?;
            let problem = Problem::new(&op, &inputs)?;
            class = problem.class().unwrap_or(class);
            points.push((problem.work().max(1.0), Probe::new(op, inputs)?));
        }
        let (name, shape) = (class.op.to_owned(), class.shape.to_owned());
        let precision = Precision::Contract;
        let measured = Calibrated { op: name, shape, precision, work: Vec::new(), seconds: Vec::new() };
        Ok(Self { points, ahead: Vec::new(), measured, is_rounded: class.is_rounded(), ended: false })
    }

    /// Whether the constants of placements are fitted from it.
    fn is_of_constants(&self) -> bool {
        ["scale", "matmul"].contains(&&*self.measured.op)
    }

    /// The expected time of a point on each placement, from the times of the points before it.
    fn forecast(&self, point: usize, times: &[Vec<f64>]) -> Forecast {
        let Some(before) = point.checked_sub(1) else { return Forecast(Vec::new()) };
        let growth = self.points[point].0 / self.points[before].0;
        Forecast(times.get(before).map_or(Vec::new(), |times| times.iter().map(|seconds| seconds * growth).collect()))
    }
}

/// Expected seconds of each placement; empty if nothing is known.
struct Forecast(Vec<f64>);

impl Forecast {
    /// The seconds of a placement that is not measured.
    fn hopeless(&self, place: usize) -> Option<f64> {
        let best = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        self.0.get(place).copied().filter(|&next| next > LONG && next > HOPELESS * best)
    }

    /// The expected seconds of measuring these placements.
    fn cost(&self, sample: f64, places: Range<usize>) -> f64 {
        let waited_for = places.filter(|&place| self.hopeless(place).is_none());
        waited_for.map(|place| 3.0 * (sample + self.0.get(place).copied().unwrap_or(0.0))).sum()
    }
}

/// The classes to measure; each family is measured by one representative member.
fn curves(precision: Precision) -> Result<Vec<Curve>> {
    let flat: [&[&[usize]]; 5] = [&[&[1 << 8]], &[&[1 << 12]], &[&[1 << 15]], &[&[1 << 18]], &[&[1 << 20]]];
    let two: [&[&[usize]]; 4] =
        [&[&[1 << 8], &[1 << 8]], &[&[1 << 12], &[1 << 12]], &[&[1 << 16], &[1 << 16]], &[&[1 << 19], &[1 << 19]]];
    let rows: [&[&[usize]]; 3] = [&[&[8, 64]], &[&[64, 256]], &[&[512, 1024]]];
    let mut curves = vec![
        Curve::new(Elementwise::scale(0.75), &flat)?,
        Curve::new(
            Matmul::default(),
            &[
                &[&[24, 24], &[24, 24]],
                &[&[64, 64], &[64, 64]],
                &[&[128, 128], &[128, 128]],
                &[&[256, 256], &[256, 256]],
                &[&[512, 512], &[512, 512]],
            ],
        )?,
        Curve::new(Elementwise::add(), &two)?,
        Curve::new(Elementwise::exp(), &flat[..4])?,
        Curve::new(Elementwise::gelu(), &flat[..4])?,
        Curve::new(Reduce::all(Reduction::Sum), &flat)?,
        Curve::new(Reduce::all(Reduction::Max), &flat[..4])?,
        Curve::new(Softmax, &rows)?,
        Curve::new(
            Convolve2d { padding: Padding::Same, ..Convolve2d::default() },
            &[&[&[32, 32], &[5, 5]], &[&[128, 128], &[5, 5]], &[&[512, 512], &[5, 5]]],
        )?,
        Curve::new(Elementwise::tanh(), &flat[..4])?,
        Curve::new(
            Matvec { transpose: false },
            &[&[&[64, 64], &[64]], &[&[256, 256], &[256]], &[&[1024, 1024], &[1024]]],
        )?,
        Curve::new(
            LayerNorm::new(1e-5),
            &[&[&[8, 64], &[64], &[64]], &[&[64, 256], &[256], &[256]], &[&[512, 1024], &[1024], &[1024]]],
        )?,
        Curve::new(Transpose, &rows)?,
        Curve::new(Dot, &two)?,
    ];
    curves.iter_mut().filter(|curve| curve.is_rounded).for_each(|curve| curve.measured.precision = precision);
    Ok(curves)
}

/// Minimum seconds of a sample with this clock.
fn sample() -> f64 {
    let mut tick = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        let elapsed = loop {
            let elapsed = start.elapsed().as_secs_f64();
            if elapsed > 0.0 {
                break elapsed;
            }
        };
        tick = tick.min(elapsed);
    }
    (TICKS * tick).clamp(SAMPLE.0, SAMPLE.1)
}

/// Seconds of an operation on the CPU.
fn on_cpu(simd: &Simd, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>], sample: f64) -> Result<f64> {
    let mut repeats = Repeats::new(sample, u32::MAX);
    loop {
        let start = Instant::now();
        for _ in 0..repeats.count() {
            simd.run_into(op, inputs, outputs)?;
        }
        if let Some(seconds) = repeats.took(start.elapsed().as_secs_f64()) {
            return Ok(seconds.max(LEAST));
        }
    }
}

/// The operands of a probe.
fn operands<'a>(probe: &Probe, data: &'a [f32]) -> Result<Vec<Operand<'a>>> {
    probe.inputs.iter().map(|ty| Operand::new(Data::F32(&data[..ty.shape.numel()]), ty.shape)).collect()
}

/// Seconds of a probe on each CPU placement.
fn on_places_of_cpu(
    engine: &Engine,
    probe: &Probe,
    inputs: &[Operand<'_>],
    forecast: &Forecast,
    sample: f64,
) -> Result<Vec<f64>> {
    let mut results = probe.op.infer(&probe.inputs)?.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
    let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
    let measured = engine.cpu.iter().enumerate().map(|(place, simd)| match forecast.hopeless(place) {
        Some(expected) => Ok(expected),
        None => on_cpu(simd, &probe.op, inputs, &mut outputs, sample),
    });
    let mut seconds = measured.collect::<Result<Vec<_>>>()?;
    // The code is the same except for its vectors: if scalar code seems faster, another program had the processor.
    if let Some((best, lesser)) = seconds.split_last_mut() {
        lesser.iter_mut().for_each(|seconds| *seconds = seconds.max(*best));
    }
    Ok(seconds)
}

/// Measures the CPU placements that have constants before everything else, because compiling the kernels of a GPU may
/// take all of the time. Uses at most half of the time.
async fn places_of_cpu(
    engine: &Engine,
    curves: &mut [Curve],
    data: &[f32],
    sample: f64,
    within: f64,
) -> Result<Vec<Place>> {
    let start = Instant::now();
    for curve in curves.iter_mut().filter(|curve| curve.is_of_constants()) {
        for point in 0..curve.points.len() {
            pause().await;
            let forecast = curve.forecast(point, &curve.ahead);
            let cost = forecast.cost(sample, 0..engine.cpu.len());
            if point > 0 && start.elapsed().as_secs_f64() + cost > within / 2.0 {
                break;
            }
            let probe = &curve.points[point].1;
            curve.ahead.push(on_places_of_cpu(engine, probe, &operands(probe, data)?, &forecast, sample)?);
        }
    }
    let measured = curves.iter().filter(|curve| curve.is_of_constants()).map(|curve| Calibrated {
        work: curve.points.iter().map(|(work, _)| *work).take(curve.ahead.len()).collect(),
        seconds: curve.ahead.clone(),
        ..curve.measured.clone()
    });
    Ok(fitted(&engine.places()[..engine.cpu.len()], &measured.collect::<Vec<_>>()))
}

/// Lets the page handle its events.
async fn pause() {
    #[cfg(browser_gpu)]
    gpus::pause().await;
}

/// Measures the placements of an engine within this time.
#[cfg_attr(not(browser_gpu), allow(unused_mut, reason = "GPUs are added where there are some"))]
pub(crate) async fn measure(engine: &Engine, within: Duration) -> Result<Profile> {
    let (start, within) = (Instant::now(), within.as_secs_f64());
    let sample = sample();
    let mut curves = curves(engine.precision())?;
    let largest = curves.iter().flat_map(|curve| &curve.points).flat_map(|(_, probe)| &probe.inputs);
    let largest = largest.map(|ty| ty.shape.numel()).max().unwrap_or(0);
    // Values between one half and two: valid for roots and logarithms, and products of many stay in range.
    let data: Vec<f32> =
        (0..largest).map(|i| 0.5 + (i.wrapping_mul(0x9e37_79b1) >> 8 & 0xffff) as f32 / 43_690.0).collect();

    let mut places = engine.places().to_vec();
    let of_cpu = places_of_cpu(engine, &mut curves, &data, sample, within).await?;
    let mut links: Vec<(Memory, Link)> = Vec::new();
    // Whether each GPU can be measured. A GPU that fails is recorded as a placement that is never chosen.
    #[cfg(browser_gpu)]
    let mut works: Vec<bool> = Vec::with_capacity(engine.gpus.len());
    #[cfg(browser_gpu)]
    for (position, (gpu, place)) in engine.gpus.iter().zip(&mut places[engine.cpu.len()..]).enumerate() {
        let (_, assumed) = gpus::assumed(gpu, position);
        let measured = match gpu.launch(sample).await {
            Ok(launch) => gpu.link(launch, sample).await.map(|link| (launch, link)),
            Err(error) => Err(error),
        };
        if let Err(error) = &measured {
            tracing::warn!("{}: {error}; this GPU is not used", gpu.name());
        }
        works.push(measured.is_ok());
        let (launch, link) = measured.unwrap_or((NEVER, assumed));
        place.launch = launch;
        links.push((gpus::memory(position), link));
    }
    let longest = curves.iter().map(|curve| curve.points.len()).max().unwrap_or(0);
    for point in 0..longest {
        for curve in curves.iter_mut().filter(|curve| !curve.ended && point < curve.points.len()) {
            pause().await;
            let forecast = curve.forecast(point, &curve.measured.seconds);
            // The CPU placements may have been measured ahead.
            let first = curve.ahead.get(point).map_or(0, Vec::len);
            if start.elapsed().as_secs_f64() + forecast.cost(sample, first..places.len()) > within {
                curve.ended = true;
                continue;
            }
            let (work, probe) = &curve.points[point];
            let inputs = operands(probe, &data)?;
            let mut seconds = match curve.ahead.get(point) {
                Some(seconds) => seconds.clone(),
                None => on_places_of_cpu(engine, probe, &inputs, &forecast, sample)?,
            };
            #[cfg(browser_gpu)]
            for (place, (gpu, works)) in (engine.cpu.len()..).zip(engine.gpus.iter().zip(&mut works)) {
                seconds.push(match forecast.hopeless(place) {
                    _ if !*works => NEVER,
                    Some(expected) => expected,
                    None => {
                        let timing = (places[place].launch, sample);
                        let measured = gpu.resident_seconds(&probe.op, &inputs, timing).await;
                        if matches!(measured, Err(Error::DeviceLost { .. } | Error::Unavailable { .. })) {
                            *works = false;
                        }
                        // A problem that the GPU refuses is never sent to it.
                        measured.unwrap_or(NEVER)
                    }
                });
            }
            curve.measured.work.push(*work);
            curve.measured.seconds.push(seconds);
        }
    }
    let measured: Vec<Calibrated> =
        curves.into_iter().map(|curve| curve.measured).filter(|curve| !curve.work.is_empty()).collect();
    let mut places = fitted(&places, &measured);
    places.splice(..of_cpu.len(), of_cpu);
    let profile = Profile::new(engine.machine().clone(), places).and_then(|profile| profile.with_classes(measured));
    let profile = profile.and_then(|profile| gpus::linked(profile, links));
    profile.map_err(|problem| Error::Unavailable { what: "a usable measurement".into(), reason: problem.to_string() })
}
