//! Products with Q4_K weights on a GPU of NVIDIA: `cargo run --release --features cuda --example q4k_gemm`.
//!
//! Weights are fitted to blocks on the CPU, and products compared with those of the decoded weights in f64. Without a driver
//! it says so and does nothing.

use std::process::ExitCode;
use std::time::Instant;

use kiln::cuda::CudaDevice;
use kiln::op::{Op, QuantMatmul};
use kiln::{Operand, Operations, QuantFormat, Result, Simd};

fn main() -> ExitCode {
    if let Err(problem) = CudaDevice::driver_version() {
        println!("q4k_gemm: nothing to run on: {problem}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("q4k_gemm: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all products are as close as their format allows.
fn run() -> Result<bool> {
    const FORMAT: QuantFormat = QuantFormat::Q4K;
    const N: usize = 2048;
    const K: usize = 4096;
    let device = CudaDevice::new()?;
    println!("on {}", device.info());
    let values = |count: usize, step: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * step) % 1009) as f32 / 504.5 - 1.0).collect()
    };
    let simd = Simd::new()?;
    let blocks = simd.quantize(&values(N * K, 31), K, FORMAT)?;
    let decoded = simd.dequantize(&blocks, FORMAT)?;
    let weights = device.upload(&Operand::blocks(&blocks, &[N, K], FORMAT)?)?;
    println!(
        "{N} x {K} weights in {} bytes, {:.1} bits each",
        blocks.len(),
        8.0 * blocks.len() as f64 / (N * K) as f64
    );
    let mut right = true;
    for m in [1, 2, 16, 64] {
        let x = values(m * K, 37);
        let rows = device.upload(&Operand::f32(&x, &[m, K])?)?;
        let mut product = device.prepare(&Op::from(QuantMatmul { format: FORMAT }), &[&rows, &weights])?;
        product.run()?;
        device.finish()?;
        let start = Instant::now();
        product.run()?;
        device.finish()?;
        let seconds = start.elapsed().as_secs_f64();
        let results = product.results()[0].read()?;
        let y = results.as_data().f32();
        let mut worst = 0.0f64;
        for at in (0..m * N).step_by(997) {
            let (row, column) = (at / N, at % N);
            let terms = (0..K).map(|i| f64::from(x[row * K + i]) * f64::from(decoded[column * K + i]));
            let (exact, magnitude) = terms.fold((0.0, 0.0), |(sum, all), term| (sum + term, all + f64::abs(term)));
            worst = worst.max((f64::from(y[at]) - exact).abs() / magnitude);
        }
        right &= worst < 1e-4;
        let (gigabytes, gigaflops) = (blocks.len() as f64 / seconds * 1e-9, 2e-9 * (m * N * K) as f64 / seconds);
        println!(
            "{m:>3} rows: {:>8.1} us, {gigabytes:>6.0} GB/s of weights, {gigaflops:>7.0} GFLOP/s, off by {worst:.1e} of the terms",
            seconds * 1e6
        );
    }
    println!("{}", if right { "all products are right" } else { "products are wrong" });
    Ok(right)
}
