//! Operations on a GPU, alone and recorded: `cargo run --release --features gpu --example gpu_batch`.
//!
//! Prints what each way of asking costs in transfers and submissions. `KILN_ADAPTER` chooses the adapter.

use std::process::ExitCode;
use std::time::Instant;

use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuBackend, GpuCommandBatch, GpuDevice};
use kiln::{Operations, Record, Result};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_batch: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    // A software driver is enough: this example counts transfers and measures no speed.
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
    let device = GpuDevice::open(&if named { AdapterChoice::Best } else { AdapterChoice::Any })?;
    println!("on {}", device.adapter());

    let x: Vec<f32> = (0..1 << 20).map(|i| (i % 1000) as f32 - 500.0).collect();
    let y = vec![1.5; x.len()];

    // Each operation alone: its operands are uploaded and its result is downloaded.
    let backend = GpuBackend::on(device.clone());
    let alone = told(&device, "add, scale and relu, one after the other", || {
        let sum = backend.add(&x, &y)?;
        let scaled = backend.scale(&sum, 0.5)?;
        backend.relu(&scaled)
    })?;

    // The same, recorded: intermediate results stay on the device, and the three functions become one kernel.
    let mut batch = GpuCommandBatch::new(device.clone());
    let recorded = told(&device, "the same as a batch", || {
        let (x, y) = (batch.upload(&x, &[x.len()])?, batch.upload(&y, &[y.len()])?);
        let sum = batch.add(x, y)?;
        let scaled = batch.scale(sum, 0.5)?;
        let z = batch.relu(scaled)?;
        Ok(batch.run(&[z])?.remove(0))
    })?;
    assert_eq!(recorded.as_data().f32(), alone);

    // A layer, relu(x W + b): its weights are uploaded once, its input changes.
    let (rows, inputs, outputs) = (64, 512, 256);
    let mut layer = GpuCommandBatch::new(device.clone());
    let w: Vec<f32> = (0..inputs * outputs).map(|i| ((i * 7 % 13) as f32 - 6.0) / 100.0).collect();
    let input = layer.upload(&vec![0.1; rows * inputs], &[rows, inputs])?;
    let weights = layer.upload(&w, &[inputs, outputs])?;
    let bias = layer.upload(&vec![0.01; outputs], &[outputs])?;
    let product = layer.matmul(input, weights)?;
    let sum = layer.add(product, bias)?;
    let z = layer.relu(sum)?;
    told(&device, "relu(x W + b), the first time", || layer.run(&[z]))?;
    told(&device, "relu(x W + b), with another x", || {
        layer.set(input, &vec![0.2; rows * inputs])?;
        layer.run(&[z])
    })?;
    Ok(())
}

/// Runs something and prints what the device was asked for meanwhile.
fn told<T>(device: &GpuDevice, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (before, start) = (device.statistics(), Instant::now());
    let result = work()?;
    let took = start.elapsed().as_secs_f64() * 1e3;
    println!("{what}: {took:.2} ms\n  {}", device.statistics() - before);
    Ok(result)
}
