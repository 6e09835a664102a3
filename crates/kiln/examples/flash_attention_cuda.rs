//! Attention of f16 on the tensor cores of a GPU of NVIDIA, full and causal, beside attention of f32 there, and held to its error
//! bound: `cargo run --release --features cuda --example flash_attention_cuda`.
//!
//! Without a driver it says so and does nothing.

use std::process::ExitCode;
use std::time::Instant;

use kiln::cuda::{CudaDevice, numerics};
use kiln::op::{Attention, Bound, Op};
use kiln::{Operand, Result, f16};

fn main() -> ExitCode {
    if let Err(problem) = CudaDevice::driver_version() {
        println!("flash_attention_cuda: nothing to run on: {problem}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flash_attention_cuda: {error}");
            ExitCode::FAILURE
        }
    }
}

const HEADS: usize = 16;
const KV_HEADS: usize = 4;
const LENGTH: usize = 4096;
const D: usize = 128;
/// Queries whose results are compared, of each head.
const COMPARED: usize = 3;

/// Whether all results keep their bound.
fn run() -> Result<bool> {
    let device = CudaDevice::new()?;
    println!("on {}, kernels for {}", device.info(), device.target());
    if !device.has_tensor_cores() {
        println!("no kernel uses its tensor cores: f16 is widened, and attended to as f32");
    }
    println!("{HEADS} heads on {KV_HEADS} of keys, {LENGTH} positions of {D} elements");
    let values = |count: usize, step: usize| -> Vec<f16> {
        (0..count).map(|i| f16::from_f32(((i * step) % 1009) as f32 / 504.5 - 1.0)).collect()
    };
    let q = values(HEADS * LENGTH * D, 31);
    let (k, v) = (values(KV_HEADS * LENGTH * D, 37), values(KV_HEADS * LENGTH * D, 41));
    let dims = [HEADS, KV_HEADS, KV_HEADS].map(|heads| [heads, LENGTH, D]);
    let halves = [&q, &k, &v];
    let wide = halves.map(|x| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
    let mut right = true;
    for op in [Attention::full(), Attention::causal()] {
        let operands = [0, 1, 2].map(|i| Operand::elements(halves[i], &dims[i]));
        let floats = [0, 1, 2].map(|i| Operand::f32(&wide[i], &dims[i]));
        let (seconds, out) = measure(&device, op, operands)?;
        let (seconds_f32, _) = measure(&device, op, floats)?;
        let flops = 4 * HEADS * LENGTH * D * if op.causal { LENGTH.div_ceil(2) } else { LENGTH };
        println!(
            "{}: f16 {:.3} ms, {:.1} TFLOP/s; f32 {:.3} ms",
            if op.causal { "causal" } else { "full" },
            seconds * 1e3,
            flops as f64 / seconds * 1e-12,
            seconds_f32 * 1e3
        );
        let types = [0, 1, 2].map(|i| Operand::elements(halves[i], &dims[i]).map(|operand| operand.ty()));
        let [q, k, v] = types;
        let bound = numerics::bound_on(&device, &op.into(), &[q?, k?, v?])?;
        let Bound::Magnitude(units) = bound else {
            println!("  no bound of magnitudes: {bound}");
            return Ok(false);
        };
        let worst = worst_error(op, &wide, &out);
        println!("  worst error of {} rows: {worst:.1} of {units:.0} units allowed", HEADS * COMPARED);
        right &= worst <= units;
    }
    println!("{}", if right { "every row keeps its bound" } else { "a row is beyond its bound" });
    Ok(right)
}

/// Seconds of an attention on tensors of the device, the least of a few, and its result.
fn measure(device: &CudaDevice, op: Attention, operands: [Result<Operand<'_>>; 3]) -> Result<(f64, Vec<f32>)> {
    let tensors = operands.into_iter().map(|operand| device.upload(&operand?)).collect::<Result<Vec<_>>>()?;
    let mut attention = device.prepare(&Op::from(op), &tensors.iter().collect::<Vec<_>>())?;
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        attention.run()?;
        device.finish()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok((least, attention.results()[0].read()?.as_data().f32().to_vec()))
}

/// The greatest error of some rows of each head against f64, in units of 2⁻²⁴ of the magnitude that the bound is relative to.
fn worst_error(op: Attention, [q, k, v]: &[Vec<f32>; 3], out: &[f32]) -> f64 {
    let scale = f64::from(op.scale(D));
    let rows = (0..HEADS).flat_map(|head| [0, LENGTH / 3, LENGTH - 1].map(|query| (head, query)));
    let error_of_row = |(head, query): (usize, usize)| {
        let row = (head * LENGTH + query) * D;
        let first = head / (HEADS / KV_HEADS) * LENGTH;
        let seen = if op.causal { query + 1 } else { LENGTH };
        let products = |key: usize| {
            let key = &k[(first + key) * D..][..D];
            q[row..][..D].iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k) * scale)
        };
        let scores: Vec<f64> = (0..seen).map(|key| products(key).sum()).collect();
        let sizes: Vec<f64> = (0..seen).map(|key| products(key).map(f64::abs).sum()).collect();
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - greatest).exp()).sum();
        let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp() / total).collect();
        let size: f64 = weights.iter().zip(&sizes).map(|(weight, size)| weight * size).sum();
        let error_of = |column: usize| {
            let value = |key: usize| f64::from(v[(first + key) * D + column]);
            let exact: f64 = weights.iter().enumerate().map(|(key, weight)| weight * value(key)).sum();
            let magnitude: f64 = (0..seen).map(|key| weights[key] * value(key).abs() * (1.0 + sizes[key] + size)).sum();
            (f64::from(out[row + column]) - exact).abs() / (magnitude * f64::powi(2.0, -24))
        };
        greatest_of((0..D).map(error_of))
    };
    greatest_of(rows.map(error_of_row))
}

/// Returns the greatest error, or infinity if one of them is NaN.
fn greatest_of(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(0.0, |greatest, error| if error.is_nan() { f64::INFINITY } else { error.max(greatest) })
}
