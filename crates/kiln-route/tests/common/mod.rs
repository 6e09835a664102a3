//! Synthetic machines: places whose constants are written down instead of measured.
#![allow(dead_code)] // each test file uses its part

use kiln_ir::op::{Elementwise, Matmul, Op};
use kiln_ir::{Precision, Shape, TensorType};
use kiln_route::{Backend, Calibrated, Link, Machine, Memory, Place, Problem, Profile, Residency, Roofline, Router};

pub(crate) const GPU: Memory = Memory::new(1);

pub(crate) fn machine() -> Machine {
    Machine { name: "test".into(), threads: 2, instruction_set: "avx512".into(), cpus: None }
}

pub(crate) fn cpu_places() -> Vec<Place> {
    vec![
        Place::cpu("scalar x1", Backend::Scalar, 1, 1),
        Place::cpu("avx2 x1", Backend::Simd, 8, 1),
        Place::cpu("avx512 x1", Backend::Simd, 16, 1),
        Place::cpu("avx512 x2", Backend::Simd, 16, 2),
    ]
}

pub(crate) fn gpu_place() -> Place {
    Place {
        name: "gpu".into(),
        backend: Backend::Gpu,
        threads: 1,
        memory: GPU,
        launch: 10e-6,
        queued: 2e-6,
        compile: 50e-3,
        roofline: Roofline { overhead: 2e-6, levels: vec![(u64::MAX, 2e12)], peak: 50e12 },
    }
}

pub(crate) fn with_gpu() -> Router {
    let mut places = cpu_places();
    places.push(gpu_place());
    let link = Link::linear((5e-6, 25e9), (5e-6, 25e9));
    Router::new(Profile::new(machine(), places).unwrap().with_link(GPU, link).unwrap())
}

pub(crate) fn cpu_only() -> Router {
    Router::new(Profile::new(machine(), cpu_places()).unwrap())
}

pub(crate) fn ty(dims: &[usize]) -> TensorType {
    TensorType::f32(Shape::new(dims).unwrap())
}

pub(crate) fn problem(op: impl Into<Op>, inputs: &[&[usize]]) -> Problem {
    Problem::new(&op.into(), &inputs.iter().map(|dims| ty(dims)).collect::<Vec<_>>()).unwrap()
}

pub(crate) fn square(n: usize) -> Problem {
    Problem::new(&Matmul::default().into(), &[ty(&[n, n]), ty(&[n, n])]).unwrap()
}

pub(crate) fn addition(n: usize) -> Problem {
    Problem::new(&Elementwise::add().into(), &[ty(&[n]), ty(&[n])]).unwrap()
}

pub(crate) fn chosen(router: &Router, problem: &Problem, residency: &Residency) -> String {
    router.decide(problem, residency).place().name.clone()
}

pub(crate) fn calibrated(op: &str, shape: &str, points: &[(f64, [f64; 4])]) -> Calibrated {
    Calibrated {
        precision: Precision::Contract,
        op: op.into(),
        shape: shape.into(),
        work: points.iter().map(|p| p.0).collect(),
        seconds: points.iter().map(|p| p.1.to_vec()).collect(),
    }
}
