//! Reductions on a GPU, of data that lie there: `cargo run --release --features gpu --example gpu_reduction`.
//!
//! `KILN_ADAPTER` chooses the adapter.

use std::process::ExitCode;
use std::time::Instant;

use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice};
use kiln::op::{Op, Reduce, Reduction};
use kiln::{Buffer, Operand, Operations, Result, Simd};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_reduction: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
    let device = GpuDevice::open(&if named { AdapterChoice::Best } else { AdapterChoice::Any })?;
    println!("on {}", device.adapter());
    let (rows, columns) = (4096, 4096);
    let x: Vec<f32> = (0..rows * columns).map(|i| ((i * 31) % 1009) as f32 / 1009.0 - 0.5).collect();
    let tensor = device.upload(&Operand::f32(&x, &[rows, columns])?)?;
    let simd = Simd::new()?;
    println!("{:24} {:>16} {:>16} {:>9} {:>9}", "", "GPU", "CPU", "time", "GB/s");
    for reduction in [Reduction::Sum, Reduction::Max, Reduction::NormL2, Reduction::ArgMax] {
        for (form, op) in [("of all", Reduce::all(reduction)), ("of each row", Reduce::along(reduction, 1))] {
            let op = Op::from(op);
            let mut operation = device.prepare(&op, &[&tensor])?;
            operation.run()?;
            device.finish()?;
            let start = Instant::now();
            operation.run()?;
            device.finish()?;
            let seconds = start.elapsed().as_secs_f64();
            let gpu = first(&operation.results()[0].read()?);
            let cpu = first(&simd.run(&op, &[Operand::f32(&x, &[rows, columns])?])?[0]);
            let rate = (4 * x.len()) as f64 / seconds / 1e9;
            let name = format!("{} {form}", op.name());
            println!("{name:24} {gpu:>16.7} {cpu:>16.7} {:>6.2} ms {rate:>9.1}", seconds * 1e3);
        }
    }
    Ok(())
}

/// The first element, whatever its type.
fn first(buffer: &Buffer) -> f64 {
    match buffer {
        Buffer::F32(values) => values.first().map_or(f64::NAN, |&value| f64::from(value)),
        Buffer::U32(values) => values.first().map_or(f64::NAN, |&value| f64::from(value)),
        _ => f64::NAN,
    }
}
