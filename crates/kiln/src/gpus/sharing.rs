//! Operations that the CPU and a scripted GPU do together.
#![cfg(not(target_arch = "wasm32"))] // one thread cannot share work

use kiln_ir::op::{Elementwise, Matmul, Op, TopK};
use kiln_ir::{Error, Operand, Operations, Precision, Shape, TensorType};
use kiln_route::{Backend, Calibrated, Link, Memory, Place, Profile, Roofline};
use kiln_simd::Simd;

use super::scripted::Scripted;
use crate::Engine;

/// An engine with a GPU as fast as its CPU, both slow enough that sharing is faster.
fn engine(gpu: &Scripted) -> Engine {
    engine_behind(gpu, 1e12)
}

/// The same with a link of this many bytes a second.
fn engine_behind(gpu: &Scripted, bandwidth: f64) -> Engine {
    let limited = || Engine::builder().instruction_set(Simd::new().unwrap().isa()).threads(1);
    let plain = limited().without_profile().build().unwrap();
    let mut places = plain.places().to_vec();
    places.push(Place {
        name: "gpu".into(),
        backend: Backend::Gpu,
        threads: 0,
        memory: Memory::new(1),
        launch: 0.0,
        queued: 0.0,
        compile: 0.0,
        roofline: Roofline { overhead: 0.0, levels: vec![(u64::MAX, 1e6)], peak: 1e6 },
    });
    let class = |op: &str| Calibrated {
        precision: Precision::Contract,
        op: op.into(),
        shape: String::new(),
        work: vec![1.0, 1e6],
        seconds: vec![vec![1e-6; places.len()], vec![1.0; places.len()]],
    };
    let classes = ["add", "scale", "matmul", "top_k"].map(class).to_vec();
    let link = Link::linear((0.0, bandwidth), (0.0, bandwidth));
    let profile = Profile::new(plain.machine().clone(), places).unwrap().with_classes(classes).unwrap();
    let profile = profile.with_link(Memory::new(1), link).unwrap();
    limited().profile(profile).with_gpus(vec![gpu.gpu("gpu")]).unwrap()
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37) % 101) as f32 - 50.0).collect()
}

#[test]
fn halves_of_an_operation_run_on_both_and_results_are_those_of_one() {
    let gpu = Scripted::default();
    let engine = engine(&gpu);
    let simd = Simd::new().unwrap();
    let (x, w) = (numbers(128 * 64), numbers(64 * 32));
    let matrix = || Operand::f32(&x, &[128, 64]).unwrap();
    let row = || Operand::f32(&w[..64], &[64]).unwrap();
    let cases: [(Op, Vec<Operand<'_>>); 4] = [
        (Elementwise::neg().into(), vec![matrix()]),
        (Elementwise::add().into(), vec![matrix(), row()]),
        (Matmul::default().into(), vec![matrix(), Operand::f32(&w, &[64, 32]).unwrap()]),
        (TopK { k: 3 }.into(), vec![matrix()]),
    ];
    for (calls, (op, inputs)) in cases.into_iter().enumerate() {
        let types: Vec<TensorType> = inputs.iter().map(Operand::ty).collect();
        let explained = engine.explain(op, &types).unwrap();
        assert_eq!(explained.segments.len(), 2, "{explained}");
        assert!(explained.why.contains("of 128 rows go to the GPU"), "{explained}");
        assert_eq!(engine.run(&op, &inputs).unwrap(), simd.run(&op, &inputs).unwrap(), "{}", op.name());
        assert_eq!(gpu.calls(), calls + 1);
    }
}

#[test]
fn what_the_gpu_refuses_of_its_half_the_cpu_does() {
    let gpu = Scripted::default();
    let engine = engine(&gpu);
    let x = numbers(5000);
    let expected: Vec<f32> = x.iter().map(|x| -x).collect();
    gpu.fail(Error::OutOfMemory { bytes: 1 << 30 });
    assert_eq!(engine.neg(&x).unwrap(), expected);
    assert_eq!(engine.neg(&x).unwrap(), expected);
    gpu.fail(Error::DeviceLost { device: "gpu".into(), reason: "unplugged".into() });
    assert_eq!((engine.neg(&x).unwrap(), gpu.calls()), (expected.clone(), 3));
    // From now on the CPU runs everything.
    assert_eq!((engine.neg(&x).unwrap(), gpu.calls()), (expected, 3));
    assert!(
        engine
            .explain(Elementwise::neg(), &[TensorType::f32(Shape::new(&[5000]).unwrap())])
            .unwrap()
            .segments
            .is_empty()
    );
}

#[test]
fn short_work_and_what_cannot_be_cut_stay_whole() {
    let gpu = Scripted::default();
    let engine = engine(&gpu);
    let whole = |op: Op, dims: &[usize]| {
        let ty = TensorType::f32(Shape::new(dims).unwrap());
        engine.explain(op, &[ty]).unwrap().segments.is_empty()
    };
    assert!(whole(Elementwise::neg().into(), &[16]));
    assert!(whole(TopK { k: 3 }.into(), &[20_000]), "one row");
    assert!(!whole(TopK { k: 3 }.into(), &[2, 20_000]));
    assert_eq!(engine.gather(&numbers(6000), 3, &[1999, 0]).unwrap().len(), 6);
}

/// A thread that copies does not compute.
#[test]
fn what_copying_takes_from_the_cpu_counts() {
    let gpu = Scripted::default();
    let ty = TensorType::f32(Shape::new(&[128, 64]).unwrap());
    let shared = |bandwidth: f64| {
        let explained = engine_behind(&gpu, bandwidth).explain(Elementwise::neg(), &[ty]).unwrap();
        explained.segments.len() == 2
    };
    // Half of the rows take 33 ms on either, and 8 or 30 ms to copy. 3 of 8 rows would take 47 ms on the GPU, and the CPU 41 ms
    // for the others, of 66 ms for all: but the CPU copies for 23 ms.
    assert!(shared(4e6));
    assert!(!shared(1.09e6));
}
