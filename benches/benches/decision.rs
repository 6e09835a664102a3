//! What does a decision cost? It must vanish beside the smallest work that it is about: less than a microsecond.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kiln::op::{Elementwise, Matmul, Op, Reduce, Reduction};
use kiln::{Engine, Problem, Residency, Shape, TensorType};

fn decisions(c: &mut Criterion) {
    let engine = match Engine::new() {
        Ok(engine) => engine,
        Err(e) => return eprintln!("{e}"),
    };
    let ty = |dims: &[usize]| Shape::new(dims).map(TensorType::f32).unwrap_or(TensorType::f32(Shape::SCALAR));
    let questions: [(&str, Op, Vec<TensorType>); 3] = [
        ("add 1000", Elementwise::add().into(), vec![ty(&[1000]); 2]),
        ("matmul 256", Matmul::default().into(), vec![ty(&[256, 256]); 2]),
        ("sum 1e6", Reduce::all(Reduction::Sum).into(), vec![ty(&[1_000_000])]),
    ];
    println!("profile: {:?}", engine.profile_status());
    for (name, op, types) in questions {
        c.bench_function(&format!("decide {name}"), |b| {
            b.iter(|| {
                let problem = Problem::new(black_box(&op), black_box(&types));
                problem.map(|problem| engine.router().decide(&problem, &Residency::host()).index())
            });
        });
    }
}

criterion_group!(benches, decisions);
criterion_main!(benches);
