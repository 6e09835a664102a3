//! An operation that kiln does not have, written by the program for every backend, recorded into a batch and placed by the
//! router.
//!
//! `cargo run --release --example custom_operation`, with `--features gpu` or `cuda` for GPUs.

mod prelu;

use kiln::op::Custom;
use kiln::{Engine, Record, Result};

fn main() -> Result<()> {
    let engine = Engine::new()?;
    let prelu = Custom::new(&prelu::Prelu, &[])?;
    let x: Vec<f32> = (0..12).map(|i| i as f32 - 6.0).collect();

    let mut batch = engine.batch();
    let x = batch.upload(&x, &[3, 4])?;
    let slope = batch.upload(&[0.0, 0.25, 0.5, 1.0], &[4])?;
    let y = batch.record(prelu, &[x, slope])?;
    let y = batch.scale(y, 10.0)?;
    batch.execute(&[y])?;
    println!("{}", batch.explain(&[y])?);
    for row in batch.read(y)?.chunks(4) {
        println!("{row:?}");
    }
    assert_eq!(batch.read(y)?[..6], [0.0, -12.5, -20.0, -30.0, 0.0, -2.5]);
    Ok(())
}
