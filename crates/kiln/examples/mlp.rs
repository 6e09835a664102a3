//! A multilayer perceptron with weights that stay where they are used: written once, run eagerly and as a batch.
//!
//! `cargo run --release --example mlp`, with `--features gpu` or `cuda` for GPUs.

use std::time::Instant;

use kiln::op::Matmul;
use kiln::{Engine, Record, Result, Tensor};

/// The weights `[outputs, inputs]` and the bias `[outputs]` of a layer.
struct Layer<T> {
    weights: T,
    bias: T,
}

/// The model: every layer but the last is followed by GELU, the last by softmax.
fn mlp<R: Record>(on: &mut R, x: &R::Tensor, layers: &[Layer<R::Tensor>]) -> Result<R::Tensor> {
    let mut x = x.clone();
    for (number, layer) in layers.iter().enumerate() {
        x = on.matmul_with(&x, &layer.weights, Matmul { transpose_b: true, ..Matmul::default() })?;
        x = on.add(&x, &layer.bias)?;
        x = if number + 1 < layers.len() { on.gelu(&x)? } else { on.softmax(&x)? };
    }
    Ok(x)
}

/// Numbers that look random, of about this size.
fn weights(count: usize, size: f32, seed: u32) -> Vec<f32> {
    let mix = |i: usize| (i as u32).wrapping_add(seed).wrapping_mul(0x9e37_79b1) >> 8;
    (0..count).map(|i| size * (mix(i) as f32 / (1 << 23) as f32 - 1.0)).collect()
}

fn main() -> Result<()> {
    let engine = Engine::new()?;
    let sizes = [784, 512, 256, 10];
    let rows = 32;
    let mut layers = Vec::new();
    for (number, pair) in sizes.windows(2).enumerate() {
        let &[inputs, outputs] = pair else { continue };
        let weights = weights(inputs * outputs, (3.0 / inputs as f32).sqrt(), number as u32);
        let weights = Tensor::from_vec(weights, &[outputs, inputs])?;
        layers.push(Layer { weights, bias: Tensor::from_vec(vec![0.0; outputs], &[outputs])? });
    }
    let x = weights(rows * sizes[0], 1.0, 99);

    // Eager: each operation runs at once, and its result stays where it was computed.
    let eager = mlp(&mut engine.tensors(), &Tensor::from_slice(&x, &[rows, sizes[0]])?, &layers)?;

    // As a batch: recorded once and executed for every input, with the same weights.
    let mut batch = engine.batch();
    let input = batch.upload(&x, &[rows, sizes[0]])?;
    let mut imported = Vec::new();
    for layer in &layers {
        imported.push(Layer { weights: batch.import(&layer.weights), bias: batch.import(&layer.bias) });
    }
    let probabilities = mlp(&mut batch, &input, &imported)?;
    batch.execute(&[probabilities])?;
    let (start, runs) = (Instant::now(), 100);
    for _ in 0..runs {
        batch.set(input, &x)?;
        batch.execute(&[probabilities])?;
    }
    let result = batch.read(probabilities)?;
    println!("{} us a batch of {rows}", start.elapsed().as_micros() / runs);
    println!("{}", batch.explain(&[probabilities])?);
    for (place, used) in engine.memory_use() {
        println!("{place} holds {} bytes", used.live);
    }
    let difference = eager.to_vec()?.iter().zip(&result).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("row 0: {:.3?}; the two ways differ by at most {difference:e}", &result[..sizes[3]]);
    Ok(())
}
