//! The first minutes with kiln: `cargo run --release --example quickstart`.

use std::process::ExitCode;

use kiln::op::Matmul;
use kiln::{Engine, Operations, Result, Shape, TensorType};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    // All devices of the machine, and the measurements of an earlier calibration if there are any.
    let engine = Engine::new()?;
    let places: Vec<&str> = engine.places().iter().map(|place| place.name.as_str()).collect();
    println!("places: {}", places.join(", "));
    for absent in engine.absent() {
        println!("without {absent}");
    }

    // Operations on slices return vectors ...
    let x: Vec<f32> = (0..1_000_000).map(|i| i as f32 * 1e-6).collect();
    let y = engine.exp(&x)?;
    println!("mean of eˣ over [0, 1): {:.6}", engine.sum(&y)? / y.len() as f32);

    // ... or write into slices of the caller without allocating.
    let mut z = vec![0.0; x.len()];
    engine.fma_into(&x, &y, &x, &mut z)?;
    println!("last of x eˣ + x: {:.6}", z[z.len() - 1]);

    // Mismatched extents are an error, never a panic.
    if let Err(error) = engine.dot(&x, &y[1..]) {
        println!("refused: {error}");
    }

    // Where would a product of two 1024 x 1024 matrices run, and why?
    let matrix = TensorType::f32(Shape::new(&[1024, 1024])?);
    println!("\n{}", engine.explain(Matmul::default(), &[matrix, matrix])?);
    Ok(())
}
