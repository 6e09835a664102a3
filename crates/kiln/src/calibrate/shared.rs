//! Measures large operations on host memory: on every placement alone, and as the engine runs them, which may be on the CPU and a
//! GPU at once.

use kiln_ir::op::{Elementwise, Matmul};
use kiln_ir::{Buffer, Operand, Operations, Result, Shape, TensorType};
use kiln_route::Problem;

use super::gpu::HostToHost;
use super::grid::Probe;
use super::measure::Inputs;
use crate::Engine;
use crate::runs::Runs;

/// The times of one large operation from host to host.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedRow {
    /// The operation and its shapes.
    pub problem: String,
    /// The name of the fastest single placement: all threads of the CPU, or a GPU.
    pub alone_on: String,
    /// The seconds of that placement.
    pub alone: f64,
    /// Seconds as the engine runs the operation.
    pub seconds: f64,
    /// Whether the engine divides it between the CPU and a GPU.
    pub is_shared: bool,
}

/// GELU of 64 Mi elements, and the product of two matrices of 4096 x 4096.
fn probes() -> Result<[Probe; 2]> {
    let of = |dims: &[usize]| Ok(TensorType::f32(Shape::new(dims)?));
    let square = of(&[4096, 4096])?;
    Ok([Probe::new(Elementwise::gelu(), vec![of(&[1 << 26])?])?, Probe::new(Matmul::default(), vec![square; 2])?])
}

/// Measures large operations on every placement alone and as the engine runs them; returns an empty list without a GPU.
///
/// # Errors
/// Errors of the operations, such as [`Error::OutOfMemory`](kiln_ir::Error::OutOfMemory): the largest takes 512 MiB.
pub fn shared(engine: &Engine) -> Result<Vec<SharedRow>> {
    if engine.gpus.is_empty() {
        return Ok(Vec::new());
    }
    const RUNS: Runs = Runs { untimed: 2, most: 9, enough: 0.5, long: f64::INFINITY };
    let probes = probes()?;
    let (mut inputs, mut on_gpus) = (Inputs::default(), HostToHost::new(engine, &probes.each_ref())?);
    let mut row = |probe: &Probe| {
        let mut results = probe.op.infer(&probe.inputs)?.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<_> = results.iter_mut().map(Buffer::as_mut).collect();
        let mut times = |operands: &[Operand<'_>]| {
            let cpu = engine.cpu.last().map(|cpu| RUNS.least(|| cpu.run_into(&probe.op, operands, &mut outputs)));
            let seconds = RUNS.least(|| engine.run_into(&probe.op, operands, &mut outputs))?;
            Ok((cpu.transpose()?.unwrap_or(f64::INFINITY), seconds))
        };
        let (cpu, seconds) = inputs.show(&probe.inputs, &mut times)?;
        let mut alone = vec![f64::INFINITY; engine.cpu.len().saturating_sub(1)];
        alone.push(cpu);
        alone.extend(on_gpus.seconds(probe)?);
        let places = engine.places().iter().zip(alone);
        let (alone_on, alone) = places
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map_or((String::new(), f64::INFINITY), |(place, seconds)| (place.name.clone(), seconds));
        let problem = Problem::new(&probe.op, &probe.inputs)?;
        let decision = engine.router().decide(&problem, &engine.on_host());
        let is_shared = engine.hybrid(&probe.op, &probe.inputs, &decision).is_some();
        Ok(SharedRow { problem: probe.to_string(), alone_on, alone, seconds, is_shared })
    };
    probes.iter().map(&mut row).collect()
}
