//! Operations over sizes, every instruction set in turns, beside the limits of the machine.

use std::cell::RefCell;
use std::time::Duration;

use kiln_benches::Array;
use kiln_benches::ceilings::Limits;
use kiln_benches::measure::{Effort, Run, Sampler};
use kiln_ir::{Buffer, Data, DataMut, Operand};
use kiln_simd::ceilings::{Pass, touch};
use kiln_simd::{Isa, Operations, Simd};
use serde::Serialize;

use super::operations::{ALL, Ceiling, Input, Measured};
use crate::Result;

/// A limit of the machine.
#[derive(Debug, Serialize)]
pub(super) struct Limit {
    pub(super) name: String,
    pub(super) isa: &'static str,
    pub(super) threads: usize,
    pub(super) unit: &'static str,
    pub(super) value: f64,
}

/// One operation over sizes.
#[derive(Debug, Serialize)]
pub(super) struct Series {
    pub(super) operation: &'static str,
    /// The meaning of the size.
    pub(super) shape: &'static str,
    pub(super) unit: &'static str,
    pub(super) variants: Vec<Variant>,
    /// The limits of the machine for one thread and for all threads, of the best instruction set.
    pub(super) limits: Vec<Curve>,
}

/// An instruction set and a number of threads.
#[derive(Debug, Serialize)]
pub(super) struct Variant {
    pub(super) name: String,
    pub(super) threads: usize,
    pub(super) points: Vec<Point>,
}

/// A measured rate.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Point {
    pub(super) size: usize,
    pub(super) rate: f64,
    pub(super) seconds: f64,
    /// Whether enough samples were undisturbed.
    pub(super) certain: bool,
}

/// A limit over sizes.
#[derive(Debug, Serialize)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) threads: usize,
    pub(super) points: Vec<(usize, f64)>,
}

impl Series {
    /// The limit at a size for a number of threads.
    pub(super) fn limit(&self, threads: usize, size: usize) -> Option<f64> {
        let curve = self.limits.iter().find(|c| c.threads == threads)?;
        curve.points.iter().find(|p| p.0 == size).map(|p| p.1)
    }
}

/// Everything that is measured with: the variants and their limits.
struct Bench {
    quick: bool,
    effort: Effort,
    sampler: Sampler,
    variants: Vec<Simd>,
    /// The best instruction set on one thread, and on all of them: what limits are measured with.
    ceilings: Vec<Simd>,
    limits: Vec<Limits>,
}

/// Passes over the memory that an operation uses, to be compared with it.
///
/// Where a problem exceeds the nearer caches, the passes run over the arrays of the operation itself: other arrays
/// would be in further caches, since all instruction sets take turns on the same operands, and other pages may be of
/// another kind.
struct Passes<'a> {
    /// The ways to make the pass: the limit is that of the fastest.
    kinds: Vec<Pass>,
    /// Bytes that a pass touches.
    bytes: usize,
    /// The arrays that a pass reads where the operands of the operation are: all of them for [`Pass::Read`], else one
    /// or two.
    operands: Vec<&'a [f32]>,
    /// Replaces operands that are short or of another type, and results of another length.
    own: [RefCell<Array>; 3],
    /// Whether the first result of the operation can be written to.
    into_result: bool,
}

/// Problems of fewer bytes are in a near cache whatever their arrays.
const NEAR: usize = 1 << 20;

impl<'a> Passes<'a> {
    fn none() -> Self {
        let own = [0; 3].map(|_| RefCell::new(Array::new(0, 0.0, 0)));
        Self { kinds: Vec::new(), bytes: 0, operands: Vec::new(), own, into_result: false }
    }

    fn new(pass: Pass, bytes: usize, operands: &[Operand<'a>], outputs: &[Buffer]) -> Self {
        let floats = |operand: &Operand<'a>| match operand.data() {
            Data::F32(x) => Some(x),
            _ => None,
        };
        let largest = operands.iter().map(|o| o.shape().numel()).max().unwrap_or(0);
        let large: Vec<&[f32]> = operands.iter().filter(|o| o.shape().numel() == largest).filter_map(floats).collect();
        let result = outputs.first().and_then(|out| if let Buffer::F32(out) = out { Some(out.len()) } else { None });
        let reads = match pass {
            Pass::Read => large.len(),
            Pass::Copy | Pass::CopyStreamed => 1,
            Pass::Add | Pass::AddStreamed => 2,
        };
        let fits = bytes >= NEAR && !large.is_empty() && large.len() >= reads;
        let into_result = fits && result == Some(largest);
        let kinds = std::iter::once(pass).chain(pass.streamed().filter(|_| bytes >= NEAR)).collect();
        if fits && (into_result || pass == Pass::Read) {
            let operands: Vec<&[f32]> = large.into_iter().take(reads).collect();
            let touched = 4 * largest * (reads + usize::from(pass != Pass::Read));
            return Self { kinds, bytes: touched, operands, into_result, ..Self::none() };
        }
        let n = (bytes / pass.bytes()).max(SHORT);
        let own = [4, 5, 6].map(|position| {
            let used = position == 4 || position == 5 && reads == 2 || position == 6 && pass != Pass::Read;
            RefCell::new(Array::new(if used { n } else { 0 }, 0.75, position))
        });
        Self { kinds, bytes: n * pass.bytes(), operands: Vec::new(), own, into_result: false }
    }

    /// The pass as a contender beside the operation. All arrays have the length that the pass wants: it does not fail.
    fn run<'s>(&'s self, simd: Simd, pass: Pass) -> Run<'s, Vec<Buffer>> {
        Box::new(move |outputs: &mut Vec<Buffer>| match (&self.operands[..], outputs.first_mut()) {
            ([a, rest @ ..], Some(Buffer::F32(out))) if self.into_result => {
                _ = touch(&simd, pass, a, rest.first().unwrap_or(a), out);
            }
            ([], _) => {
                let [a, b, out] = &self.own;
                _ = touch(&simd, pass, &a.borrow(), &b.borrow(), &mut out.borrow_mut());
            }
            (operands, _) => operands.iter().for_each(|a| _ = touch(&simd, pass, a, a, &mut [])),
        })
    }
}

/// Limits of shorter arrays are those of this many elements, which are enough to hide the call.
const SHORT: usize = 2048;

/// A variant that would take longer than this for one call is left out at larger sizes.
fn patience(quick: bool) -> f64 {
    if quick { 0.02 } else { 0.4 }
}

/// Measures the operations that `wants` accepts. The third result has the limits of all threads, which need not be measured
/// again.
pub(super) fn run(quick: bool, wants: impl Fn(&str) -> bool) -> Result<(Vec<Limit>, Vec<Series>, Option<Limits>)> {
    let best = Simd::with_isa(Isa::best())?;
    let mut variants = Vec::new();
    for isa in Isa::available() {
        variants.push(Simd::with_isa(isa)?.with_threads(1));
    }
    let mut ceilings = vec![best.with_threads(1)];
    if best.threads() > 1 {
        variants.push(best);
        ceilings.push(best);
    }
    let effort = match quick {
        true => Effort { samples: 9, budget: Duration::from_millis(80) },
        false => Effort { samples: 21, budget: Duration::from_millis(500) },
    };
    let limits = ceilings.iter().map(|&simd| Limits::new(simd, effort)).collect();
    let sampler = Sampler::new(best.with_threads(1));
    let mut bench = Bench { quick, effort, sampler, variants, ceilings, limits };

    let measured: Vec<&Measured> = ALL.iter().filter(|m| wants(m.name)).collect();
    let bar = super::bar(measured.iter().map(|m| m.sizes(quick).len()).sum());
    let mut series = Vec::new();
    for measured in measured {
        bar.set_message(measured.name);
        series.push(bench.series(measured, || bar.inc(1))?);
    }
    bar.set_message("limits");
    let limits = bench.machine_limits();
    bar.finish_and_clear();
    Ok((limits, series, bench.limits.pop()))
}

/// The name of a variant for readers.
pub(super) fn variant_name(isa: &str, threads: usize) -> String {
    if threads == 1 { isa.to_owned() } else { format!("{isa} × {threads}") }
}

impl Bench {
    fn series(&mut self, measured: &Measured, mut step: impl FnMut()) -> Result<Series> {
        let mut variants: Vec<Variant> = self
            .variants
            .iter()
            .map(|simd| Variant {
                name: variant_name(simd.isa().name(), simd.threads()),
                threads: simd.threads(),
                points: Vec::new(),
            })
            .collect();
        let mut curves: Vec<Curve> = Vec::new();
        for simd in &self.ceilings {
            let threads = simd.threads();
            let what = match measured.ceiling {
                Ceiling::Arithmetic => "multiply-add",
                Ceiling::Memory(pass) => pass.name(),
            };
            let name = format!("{what} limit, {threads} thread{}", if threads == 1 { "" } else { "s" });
            curves.push(Curve { name, threads, points: Vec::new() });
        }
        // Work and seconds of each variant at the size before.
        let mut before: Vec<Option<(f64, f64)>> = vec![None; variants.len()];
        for size in measured.sizes(self.quick) {
            let (op, types) = (measured.problem)(size)?;
            let cost = op.cost(&types)?;
            let work = match measured.ceiling {
                Ceiling::Arithmetic => cost.flops as f64,
                Ceiling::Memory(_) => cost.bytes() as f64,
            };
            let arrays = (1..).zip(&types).map(|(i, ty)| Input::new(ty, measured, i));
            let arrays: Vec<Input> = arrays.collect::<kiln_ir::Result<_>>()?;
            let operands: Vec<Operand<'_>> =
                arrays.iter().zip(&types).map(|(x, ty)| x.operand(ty)).collect::<kiln_ir::Result<_>>()?;
            let mut outputs = op.infer(&types)?.iter().map(Buffer::zeros).collect::<kiln_ir::Result<Vec<_>>>()?;
            let passes = match measured.ceiling {
                Ceiling::Memory(pass) => Passes::new(pass, cost.bytes() as usize, &operands, &outputs),
                Ceiling::Arithmetic => Passes::none(),
            };
            let patience = patience(self.quick);
            let chosen: Vec<usize> =
                (0..variants.len()).filter(|&v| before[v].is_none_or(|(w, s)| s * work / w < patience)).collect();
            let mut runs: Vec<Run<'_, Vec<Buffer>>> = Vec::new();
            for &v in &chosen {
                let (simd, op, operands) = (self.variants[v], &op, &operands);
                runs.push(Box::new(move |outputs: &mut Vec<Buffer>| {
                    let mut outputs: Vec<DataMut<'_>> = outputs.iter_mut().map(Buffer::as_mut).collect();
                    // The types were inferred from the operation: a failure would show in the verification.
                    let _ = simd.run_into(op, operands, &mut outputs);
                }));
            }
            // The limit of memory is measured in turns with the operation.
            for &simd in &self.ceilings {
                runs.extend(passes.kinds.iter().map(|&pass| passes.run(simd, pass)));
            }
            let timings = self.sampler.compare(&mut outputs, &mut runs, self.effort);
            drop(runs);
            let (timings, of_limits) = timings.split_at(chosen.len());
            for (&v, timing) in chosen.iter().zip(timings) {
                before[v] = Some((work, timing.seconds));
                let rate = work / timing.seconds * 1e-9;
                variants[v].points.push(Point { size, rate, seconds: timing.seconds, certain: timing.is_certain() });
            }
            // The rate of one thread is within reach of all of them: short work runs on one thread.
            let mut least = 0.0f64;
            for (i, curve) in curves.iter_mut().enumerate() {
                let limit = match measured.ceiling {
                    Ceiling::Arithmetic => self.limits[i].peak(&mut self.sampler),
                    Ceiling::Memory(_) => {
                        let of_this = &of_limits[i * passes.kinds.len()..][..passes.kinds.len()];
                        passes.bytes as f64 / of_this.iter().map(|t| t.seconds).fold(f64::INFINITY, f64::min)
                    }
                };
                least = least.max(limit);
                curve.points.push((size, least * 1e-9));
            }
            step();
        }
        let unit = match measured.ceiling {
            Ceiling::Arithmetic => "GFLOP/s",
            Ceiling::Memory(_) => "GB/s",
        };
        Ok(Series { operation: measured.name, shape: measured.shape, unit, variants, limits: curves })
    }

    /// The peak of every variant, and the bandwidth at each level for one thread and for all.
    fn machine_limits(&mut self) -> Vec<Limit> {
        let mut rows = Vec::new();
        for &simd in &self.variants {
            let value = Limits::new(simd, self.effort).peak(&mut self.sampler) * 1e-9;
            let (isa, threads) = (simd.isa().name(), simd.threads());
            rows.push(Limit { name: "multiply-add".into(), isa, threads, unit: "GFLOP/s", value });
        }
        for limits in &mut self.limits {
            let (isa, threads) = (limits.simd().isa().name(), limits.simd().threads());
            for (level, elements) in [("8 KiB", 1 << 11), ("64 KiB", 1 << 14), ("4 MiB", 1 << 20), ("64 MiB", 1 << 24)]
            {
                for &pass in Pass::ALL {
                    let value = limits.bandwidth(&mut self.sampler, pass, elements) * 1e-9;
                    let name = format!("{}, arrays of {level}", pass.name());
                    rows.push(Limit { name, isa, threads, unit: "GB/s", value });
                }
            }
        }
        rows
    }
}
