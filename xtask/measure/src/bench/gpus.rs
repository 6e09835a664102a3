//! Operations over sizes on every adapter and every device of CUDA, resident and from host to host, in turns with the CPU: where a GPU pays.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use kiln_benches::measure::{Effort, Run, Sampler, Timing};
use kiln_cuda::{CudaBackend, CudaDevice, CudaDeviceOptions, DeviceInfo};
use kiln_ir::op::Op;
use kiln_ir::{Buffer, DataMut, Error, Operand};
use kiln_simd::{Isa, Operations, Simd};
use kiln_wgpu::{AdapterChoice, AdapterInfo, GpuBackend, GpuDevice};
use serde::Serialize;

use super::measure::Point;
use super::numbers;
use super::operations::{ALL, Ceiling, Input, Measured};
use crate::Result;

/// The measurements of the adapters of this machine.
#[derive(Debug, Serialize)]
pub(super) struct Gpus {
    /// In the order of what was measured on each.
    pub(super) adapters: Vec<Adapter>,
    pub(super) series: Vec<Series>,
}

/// An adapter, or a device of CUDA.
#[derive(Debug, Serialize)]
pub(super) struct Adapter {
    /// `gpu` and its index, or `cuda` and its number.
    pub(super) name: String,
    pub(super) detail: String,
}

/// One operation over sizes.
#[derive(Debug, Serialize)]
pub(super) struct Series {
    pub(super) operation: &'static str,
    /// The meaning of the size.
    pub(super) shape: &'static str,
    pub(super) unit: &'static str,
    /// The better of one thread and all threads, on the best instruction set.
    pub(super) cpu: Vec<Point>,
    pub(super) adapters: Vec<OnAdapter>,
}

/// One operation on one adapter.
#[derive(Debug, Default, Serialize)]
pub(super) struct OnAdapter {
    /// Operands and results stay in device memory: a submission, and waiting for it.
    pub(super) resident: Vec<Point>,
    /// Operands are uploaded, and results are downloaded.
    pub(super) host: Vec<Point>,
    /// The rate of a copy within the memory of the device that touches as many bytes and is waited for, too.
    pub(super) copy: Vec<Point>,
    pub(super) resident_pays: Pays,
    pub(super) host_pays: Pays,
    /// The reason for missing sizes, if the device refused them.
    pub(super) refused: Option<String>,
}

/// From which size on an adapter is faster than the CPU, up to the largest size measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pays {
    /// It is slower at the largest size, or was too slow to be measured there.
    #[default]
    Never,
    /// The size where the curves cross.
    From(f64),
    /// It is faster at the smallest size, too.
    Everywhere,
}

impl Pays {
    fn of(cpu: &[Point], gpu: &[Point]) -> Self {
        let mut sizes: Vec<usize> = cpu.iter().chain(gpu).map(|p| p.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let at = |points: &[Point], size| points.iter().find(|p| p.size == size).map(|p| p.seconds);
        // The logarithm of how many times longer the adapter takes; infinite where it was too slow to be measured.
        let losses: Vec<f64> = sizes
            .iter()
            .map(|&size| match (at(cpu, size), at(gpu, size)) {
                (Some(cpu), Some(gpu)) => (gpu / cpu).ln(),
                (None, Some(_)) => f64::NEG_INFINITY,
                (_, None) => f64::INFINITY,
            })
            .collect();
        let wins = losses.iter().rev().take_while(|loss| **loss <= 0.0).count();
        let first = losses.len() - wins;
        match first {
            _ if wins == 0 => Self::Never,
            0 => Self::Everywhere,
            _ => {
                let (before, after) = (losses[first - 1], losses[first]);
                let (from, to) = (sizes[first - 1] as f64, sizes[first] as f64);
                let share = if before.is_finite() && after.is_finite() { before / (before - after) } else { 1.0 };
                Self::From(from * (to / from).powf(share))
            }
        }
    }
}

/// An operation on a device that can be repeated; each time it is waited for.
type Again = RefCell<Box<dyn FnMut() -> kiln_ir::Result<()>>>;

/// An operation on an adapter, ready to be timed, and the copy that it is compared with.
struct Ready {
    operation: Again,
    copy: Again,
}

/// An open adapter, or an open device of CUDA.
trait Open {
    /// Uploads the operands, and the source of the copy.
    fn ready(&self, op: &Op, operands: &[Operand<'_>], copied: &Operand<'_>) -> kiln_ir::Result<Ready>;

    /// Runs an operation from host to host.
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> kiln_ir::Result<()>;

    /// Releases memory that is not in use.
    fn trim(&self);
}

/// The two backends have the same methods on types of their own.
macro_rules! open {
    ($($name:ident: $device:ident, $backend:ident, $copy:path;)*) => {$(
        struct $name {
            device: $device,
            backend: $backend,
        }

        impl Open for $name {
            fn ready(&self, op: &Op, operands: &[Operand<'_>], copied: &Operand<'_>) -> kiln_ir::Result<Ready> {
                let tensors = operands.iter().map(|operand| self.device.upload(operand));
                let tensors = tensors.collect::<kiln_ir::Result<Vec<_>>>()?;
                let mut operation = self.device.prepare(op, &tensors.iter().collect::<Vec<_>>())?;
                let mut copy = <$copy>::of(&self.device.upload(copied)?)?;
                let [operating, copying] = [self.device.clone(), self.device.clone()];
                Ok(Ready {
                    operation: RefCell::new(Box::new(move || operation.run().and_then(|()| operating.finish()))),
                    copy: RefCell::new(Box::new(move || copy.run().and_then(|()| copying.finish()))),
                })
            }

            fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> kiln_ir::Result<()> {
                self.backend.run_into(op, inputs, outputs)
            }

            fn trim(&self) {
                self.device.trim();
            }
        }
    )*};
}
open! {
    OpenAdapter: GpuDevice, GpuBackend, kiln_wgpu::device_copy::DeviceCopy;
    OpenCuda: CudaDevice, CudaBackend, kiln_cuda::device_copy::DeviceCopy;
}

/// The lengths of copies that touch as many bytes as an operation.
fn copied(op: &Op, types: &[kiln_ir::TensorType]) -> kiln_ir::Result<Vec<f32>> {
    let few = kiln_benches::random(1 << 16, -1.0, 1.0, 7);
    let half = (op.cost(types)?.bytes() / 8).max(1) as usize;
    Ok(few.iter().copied().cycle().take(half).collect())
}

/// A way to run an operation on an adapter.
#[derive(Clone, Copy)]
enum Way {
    Resident,
    Host,
    Copy,
}

const WAYS: [Way; 3] = [Way::Resident, Way::Host, Way::Copy];

/// A variant that would take longer than this for one call is left out at larger sizes.
fn patience(quick: bool) -> f64 {
    if quick { 0.015 } else { 0.4 }
}

/// Measures the operations that `wants` accepts on every adapter in use; `None` without an adapter.
pub(super) fn run(quick: bool, wants: impl Fn(&str) -> bool) -> Result<Option<Gpus>> {
    let (mut adapters, mut open) = (Vec::new(), Vec::<Box<dyn Open>>::new());
    for info in super::find::adapters() {
        match opened(&info) {
            Ok(device) => {
                adapters.push(Adapter { name: format!("gpu {}", info.index), detail: detail(&info) });
                open.push(Box::new(device));
            }
            Err(why) => println!("  without gpu {}: {why}", info.index),
        }
    }
    for info in super::find::cuda_devices() {
        let name = super::find::cuda_name(&info);
        match opened_cuda(&info) {
            Ok(device) => {
                adapters.push(Adapter { name, detail: format!("{info} through CUDA") });
                open.push(Box::new(device));
            }
            Err(why) => println!("  without {name}: {why}"),
        }
    }
    if open.is_empty() {
        return Ok(None);
    }
    let effort = match quick {
        true => Effort { samples: 9, budget: Duration::from_millis(50) },
        false => Effort { samples: 21, budget: Duration::from_millis(500) },
    };
    let best = Simd::with_isa(Isa::best())?;
    let mut cpus = vec![best.with_threads(1)];
    cpus.extend((best.threads() > 1).then_some(best));
    let mut bench = Bench { quick, effort, sampler: Sampler::new(best.with_threads(1)), cpus, open };
    let measured: Vec<&Measured> = ALL.iter().filter(|m| wants(m.name)).collect();
    let bar = super::bar(measured.iter().map(|m| m.sizes(quick).len()).sum());
    let mut series = Vec::new();
    for measured in measured {
        bar.set_message(measured.name);
        series.push(bench.series(measured, || bar.inc(1))?);
    }
    bar.finish_and_clear();
    Ok(Some(Gpus { adapters, series }))
}

fn detail(info: &AdapterInfo) -> String {
    format!("{} through {}, {}", info.label, info.api, info.driver)
}

fn opened(info: &AdapterInfo) -> kiln_ir::Result<OpenAdapter> {
    let device = GpuDevice::open(&AdapterChoice::Index(info.index))?;
    Ok(OpenAdapter { backend: GpuBackend::on(device.clone()), device })
}

fn opened_cuda(info: &DeviceInfo) -> kiln_ir::Result<OpenCuda> {
    let device = CudaDevice::open(info.ordinal, &CudaDeviceOptions::new())?;
    Ok(OpenCuda { backend: CudaBackend::on(device.clone()), device })
}

/// Everything that is measured with.
struct Bench {
    quick: bool,
    effort: Effort,
    sampler: Sampler,
    cpus: Vec<Simd>,
    open: Vec<Box<dyn Open>>,
}

/// A contender: a number of threads of the CPU, or an adapter and a way.
#[derive(Clone, Copy)]
enum Who {
    Cpu(usize),
    Gpu(usize, Way),
}

impl Bench {
    fn series(&mut self, measured: &Measured, mut step: impl FnMut()) -> Result<Series> {
        let everyone: Vec<Who> = (0..self.cpus.len())
            .map(Who::Cpu)
            .chain((0..self.open.len()).flat_map(|gpu| WAYS.map(|way| Who::Gpu(gpu, way))))
            .collect();
        let mut cpu: Vec<Point> = Vec::new();
        let mut adapters: Vec<OnAdapter> = self.open.iter().map(|_| OnAdapter::default()).collect();
        // Work and seconds of every contender at the size before.
        let mut before: Vec<Option<(f64, f64)>> = vec![None; everyone.len()];
        for size in measured.sizes(self.quick) {
            let (op, types) = (measured.problem)(size)?;
            let cost = op.cost(&types)?;
            let work = match measured.ceiling {
                Ceiling::Arithmetic => cost.flops as f64,
                Ceiling::Memory(_) => cost.bytes() as f64,
            };
            let inputs = (1..).zip(&types).map(|(i, ty)| Input::new(ty, measured, i));
            let inputs: Vec<Input> = inputs.collect::<kiln_ir::Result<_>>()?;
            let operands: Vec<Operand<'_>> =
                inputs.iter().zip(&types).map(|(x, ty)| x.operand(ty)).collect::<kiln_ir::Result<_>>()?;
            let mut outputs = op.infer(&types)?.iter().map(Buffer::zeros).collect::<kiln_ir::Result<Vec<_>>>()?;
            let mut ready: Vec<Option<Ready>> = Vec::new();
            let half = copied(&op, &types)?;
            for (open, adapter) in self.open.iter().zip(&mut adapters) {
                let made = open.ready(&op, &operands, &Operand::vector(&half));
                if let Err(why) = &made {
                    refuse(adapter, size, why);
                }
                ready.push(made.ok());
            }

            let soon = |who: usize| before[who].is_none_or(|(w, s)| s * work / w < patience(self.quick));
            let there = |who: &Who| if let Who::Gpu(gpu, _) = *who { ready[gpu].is_some() } else { true };
            let chosen: Vec<usize> = (0..everyone.len()).filter(|&who| soon(who) && there(&everyone[who])).collect();
            let failed: Vec<Cell<Option<Error>>> = chosen.iter().map(|_| Cell::new(None)).collect();
            let mut runs: Vec<Run<'_, Vec<Buffer>>> = Vec::new();
            for (&who, failed) in chosen.iter().zip(&failed) {
                let (op, operands) = (&op, &operands);
                let into = move |on: &dyn Fn(&mut [DataMut<'_>]) -> kiln_ir::Result<()>, outputs: &mut Vec<Buffer>| {
                    let mut outputs: Vec<DataMut<'_>> = outputs.iter_mut().map(Buffer::as_mut).collect();
                    on(&mut outputs)
                };
                let run: Run<'_, Vec<Buffer>> = match everyone[who] {
                    Who::Cpu(cpu) => {
                        let simd = self.cpus[cpu];
                        // The types were inferred from the operation: a failure would show in the verification.
                        Box::new(move |outputs| _ = into(&|outputs| simd.run_into(op, operands, outputs), outputs))
                    }
                    Who::Gpu(gpu, way) => {
                        let (open, Some(ready)) = (&self.open[gpu], &ready[gpu]) else { continue };
                        Box::new(move |outputs: &mut Vec<Buffer>| {
                            let done = match way {
                                Way::Resident => (ready.operation.borrow_mut())(),
                                Way::Host => into(&|outputs| open.run_into(op, operands, outputs), outputs),
                                Way::Copy => (ready.copy.borrow_mut())(),
                            };
                            if let Err(why) = done {
                                failed.set(Some(why));
                            }
                        })
                    }
                };
                runs.push(run);
            }
            let timings = self.sampler.compare(&mut outputs, &mut runs, self.effort);
            drop(runs);

            let mut best: Option<Point> = None;
            for ((&who, timing), failed) in chosen.iter().zip(&timings).zip(failed) {
                before[who] = Some((work, timing.seconds));
                let point = point(size, work, timing);
                match (everyone[who], failed.into_inner()) {
                    (Who::Cpu(_), _) => best = Some(best.filter(|b| b.seconds <= point.seconds).unwrap_or(point)),
                    (Who::Gpu(gpu, _), Some(why)) => refuse(&mut adapters[gpu], size, &why),
                    (Who::Gpu(gpu, Way::Resident), None) => adapters[gpu].resident.push(point),
                    (Who::Gpu(gpu, Way::Host), None) => adapters[gpu].host.push(point),
                    (Who::Gpu(gpu, Way::Copy), None) => adapters[gpu].copy.push(point),
                }
            }
            cpu.extend(best);
            step();
        }
        for adapter in &mut adapters {
            adapter.resident_pays = Pays::of(&cpu, &adapter.resident);
            adapter.host_pays = Pays::of(&cpu, &adapter.host);
        }
        self.open.iter().for_each(|open| open.trim());
        let unit = match measured.ceiling {
            Ceiling::Arithmetic => "GFLOP/s",
            Ceiling::Memory(_) => "GB/s",
        };
        Ok(Series { operation: measured.name, shape: measured.shape, unit, cpu, adapters })
    }
}

fn point(size: usize, work: f64, timing: &Timing) -> Point {
    Point { size, rate: work / timing.seconds * 1e-9, seconds: timing.seconds, certain: timing.is_certain() }
}

/// Notes the first size that an adapter refused, and why.
fn refuse(adapter: &mut OnAdapter, size: usize, why: &Error) {
    adapter.refused.get_or_insert_with(|| format!("{}: {why}", numbers::size(size)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(seconds: &[(usize, f64)]) -> Vec<Point> {
        seconds.iter().map(|&(size, seconds)| Point { size, rate: 1.0, seconds, certain: true }).collect()
    }

    #[test]
    fn an_adapter_pays_from_where_it_stays_faster() {
        let cpu = points(&[(10, 1.0), (100, 10.0), (1000, 100.0)]);
        assert_eq!(Pays::of(&cpu, &points(&[(10, 2.0), (100, 20.0), (1000, 200.0)])), Pays::Never);
        assert_eq!(Pays::of(&cpu, &points(&[(10, 0.5), (100, 5.0), (1000, 50.0)])), Pays::Everywhere);
        // Ten times slower, then ten times faster: the curves cross half way between.
        let Pays::From(size) = Pays::of(&cpu, &points(&[(10, 50.0), (100, 100.0), (1000, 10.0)])) else { panic!() };
        assert!((size - 1e5f64.sqrt()).abs() < 1e-6, "{size}");
        assert_eq!(Pays::of(&cpu, &points(&[(10, 0.5), (100, 20.0), (1000, 100.0)])), Pays::From(1000.0));
    }

    #[test]
    fn what_was_too_slow_to_measure_does_not_pay() {
        let cpu = points(&[(10, 1.0), (100, 10.0)]);
        assert_eq!(Pays::of(&cpu, &points(&[(10, 0.5)])), Pays::Never);
        assert_eq!(Pays::of(&cpu[..1], &points(&[(10, 2.0), (100, 3.0)])), Pays::From(100.0));
        assert_eq!(Pays::of(&[], &[]), Pays::Never);
        assert_eq!(Pays::of(&cpu, &[]), Pays::Never);
    }
}
