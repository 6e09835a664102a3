//! Causal attention with grouped heads on a GPU of NVIDIA, beside the CPU:
//! `cargo run --release --features cuda --example simple_attention_cuda`.
//!
//! Without a driver it says so and does nothing.

use std::process::ExitCode;
use std::time::Instant;

use kiln::cuda::CudaDevice;
use kiln::op::{Attention, Op};
use kiln::{Operand, Operations, Result, Simd};

fn main() -> ExitCode {
    if let Err(problem) = CudaDevice::driver_version() {
        println!("simple_attention_cuda: nothing to run on: {problem}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simple_attention_cuda: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether GPU and CPU agree.
fn run() -> Result<bool> {
    const HEADS: usize = 8;
    const KV_HEADS: usize = 2;
    const LENGTH: usize = 512;
    const D: usize = 64;
    let device = CudaDevice::new()?;
    println!("on {}", device.info());
    let values = |count: usize, step: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * step) % 1009) as f32 / 504.5 - 1.0).collect()
    };
    let q = values(HEADS * LENGTH * D, 31);
    let (k, v) = (values(KV_HEADS * LENGTH * D, 37), values(KV_HEADS * LENGTH * D, 41));
    let operands = [
        Operand::f32(&q, &[HEADS, LENGTH, D])?,
        Operand::f32(&k, &[KV_HEADS, LENGTH, D])?,
        Operand::f32(&v, &[KV_HEADS, LENGTH, D])?,
    ];
    let op = Op::from(Attention::causal());
    let tensors = operands.iter().map(|operand| device.upload(operand)).collect::<Result<Vec<_>>>()?;
    let mut attention = device.prepare(&op, &tensors.iter().collect::<Vec<_>>())?;
    attention.run()?;
    device.finish()?;
    let start = Instant::now();
    attention.run()?;
    device.finish()?;
    let gpu_seconds = start.elapsed().as_secs_f64();
    let on_gpu = attention.results()[0].read()?;

    let simd = Simd::new()?;
    let start = Instant::now();
    let on_cpu = simd.run(&op, &operands)?;
    let cpu_seconds = start.elapsed().as_secs_f64();
    let pairs = on_gpu.as_data().f32().iter().zip(on_cpu[0].as_data().f32());
    let worst = pairs.fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
    println!("{HEADS} heads on {KV_HEADS} of keys, {LENGTH} positions of {D} elements, causal");
    println!("GPU {:.3} ms, CPU {:.3} ms", gpu_seconds * 1e3, cpu_seconds * 1e3);
    let agree = worst < 1e-5;
    println!("largest difference {worst:.2e}: {}", if agree { "they agree" } else { "they do not agree" });
    Ok(agree)
}
