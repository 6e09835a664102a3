//! Times operations on GPUs, one after another: no other work uses them, so samples need not alternate with the CPU's.

use kiln_ir::{Buffer, Error, Operand, Result};
use kiln_route::Link;

use super::grid::Probe;
use super::measure::{Inputs, Progress};
use crate::Engine;
use crate::gpus::{Gpu, Launch};
use crate::runs::median;

/// The time recorded for a problem that a GPU cannot run, so that the GPU is never chosen for it.
pub(super) const NEVER: f64 = 1e6;

/// The measurements of one GPU.
pub(super) struct Times {
    pub(super) launch: Launch,
    pub(super) link: Link,
    /// Seconds of each problem on resident operands, without the launch.
    pub(super) seconds: Vec<f64>,
}

/// Measures every problem on each of these GPUs. A GPU that fails gives its device error, which is logged; the others
/// are measured nevertheless.
///
/// # Errors
/// Errors that are not errors of a device.
pub(super) fn survey<'a>(
    gpus: &[&Gpu],
    probes: &[&'a Probe],
    progress: &mut dyn FnMut(Progress<'a>),
) -> Result<Vec<Result<Times>>> {
    let mut inputs = Inputs::default();
    let mut measured = |gpu: &Gpu| match times(gpu, probes, &mut inputs, progress) {
        Err(error) if !gpu.failed_to_be_measured(&error) => Err(error),
        done => Ok(done),
    };
    gpus.iter().map(|gpu| measured(gpu)).collect()
}

/// Measures every problem on a GPU.
fn times<'a>(
    gpu: &Gpu,
    probes: &[&'a Probe],
    inputs: &mut Inputs,
    progress: &mut dyn FnMut(Progress<'a>),
) -> Result<Times> {
    if let Some(error) = gpu.gone() {
        return Err(error.clone());
    }
    gpu.open()?;
    compile_ahead(gpu, probes)?;
    let (mut launches, mut links) = (Vec::new(), Vec::new());
    let mut seconds = Vec::with_capacity(probes.len());
    for (done, probe) in probes.iter().enumerate() {
        progress(Progress { done, total: probes.len(), what: probe.op.name() });
        if done.is_multiple_of(probes.len().div_ceil(LAUNCHES)) {
            launches.push(gpu.launch()?);
        }
        if done.is_multiple_of(probes.len().div_ceil(LINKS)) {
            links.push(gpu.link()?);
        }
        let launch = typical(&launches);
        let time = inputs.show(&probe.inputs, |operands| gpu.kernel_seconds(&probe.op, operands, &launch));
        seconds.push(or_never(time)?);
    }
    let link = Link::median(&links).map_or_else(|| gpu.link(), Ok)?;
    if launches.is_empty() {
        launches.push(gpu.launch()?);
    }
    Ok(Times { launch: typical(&launches), link, seconds })
}

/// How often the launch and the links are measured, with problems between: they differ from second to second.
const LAUNCHES: usize = 16;
const LINKS: usize = 4;

/// A typical launch: the median of each of its parts.
fn typical(launches: &[Launch]) -> Launch {
    let of = |part: fn(&Launch) -> f64| median(&mut launches.iter().map(part).collect::<Vec<_>>());
    Launch { cold: of(|launch| launch.cold), queued: of(|launch| launch.queued) }
}

/// Compiles the kernels of these problems.
fn compile_ahead(gpu: &Gpu, probes: &[&Probe]) -> Result<()> {
    let operations: Vec<_> = probes.iter().map(|probe| (probe.op, probe.inputs.as_slice())).collect();
    gpu.compile_ahead(&operations)
}

/// Seconds of problems from host to host, on each GPU of the engine.
pub(super) struct HostToHost<'e> {
    engine: &'e Engine,
    inputs: Inputs,
}

impl<'e> HostToHost<'e> {
    /// Compiles the kernels of these problems.
    ///
    /// # Errors
    /// Errors that are not errors of a device.
    pub(super) fn new(engine: &'e Engine, probes: &[&Probe]) -> Result<Self> {
        for gpu in engine.gpus.iter().filter(|gpu| !gpu.is_gone()) {
            compile_ahead(gpu, probes).or_else(|error| if gpu.failed(&error) { Ok(()) } else { Err(error) })?;
        }
        Ok(Self { engine, inputs: Inputs::default() })
    }

    pub(super) fn seconds(&mut self, probe: &Probe) -> Result<Vec<f64>> {
        let types = probe.op.infer(&probe.inputs)?;
        let time = |gpu: &Gpu| {
            if gpu.is_gone() {
                return Ok(NEVER);
            }
            let mut results = types.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
            let mut outputs: Vec<_> = results.iter_mut().map(Buffer::as_mut).collect();
            let inputs = &mut self.inputs;
            let run = |operands: &[Operand<'_>]| gpu.host_seconds(&probe.op, operands, &mut outputs);
            match or_never(inputs.show(&probe.inputs, run)) {
                Err(error) if gpu.failed(&error) => Ok(NEVER),
                seconds => seconds,
            }
        };
        self.engine.gpus.iter().map(time).collect()
    }
}

/// Replaces the error of an operation that the device refuses or lacks by [`NEVER`]; returns other errors.
fn or_never(seconds: Result<f64>) -> Result<f64> {
    match seconds {
        Err(Error::Limit { .. } | Error::OutOfMemory { .. } | Error::Unsupported { .. }) => Ok(NEVER),
        other => other,
    }
}
