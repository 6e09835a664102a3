//! Fused chains give the same bits as their functions one after another.

use std::collections::HashMap;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use kiln_ir::graph::{Fused, FusionLimits, Graph, Source, Step, TensorId};
use kiln_ir::op::reference::Random;
use kiln_ir::op::{Elementwise, ElementwiseKind};
use kiln_ir::{Operand, Record, Shape, TensorType};
use kiln_simd::{Isa, Operations, Simd};

/// Runs a schedule of element-wise steps and returns the wanted results.
fn run(
    simd: &Simd,
    graph: &Graph,
    inputs: &[(TensorId, Vec<f32>)],
    wanted: &[TensorId],
    limits: FusionLimits,
) -> Vec<Vec<f32>> {
    let mut values: HashMap<TensorId, Vec<f32>> = inputs.iter().cloned().collect();
    let schedule = graph.schedule(wanted, limits).unwrap();
    for step in &schedule.steps {
        let read: Vec<&[f32]> = step.inputs().iter().map(|id| values[id].as_slice()).collect();
        let written = match step {
            Step::Fused(fused) => {
                let mut out = vec![vec![0.0; fused.shape.numel()]; fused.outputs.len()];
                let mut slices: Vec<&mut [f32]> = out.iter_mut().map(Vec::as_mut_slice).collect();
                simd.run_fused(fused, &read, &mut slices).unwrap();
                out
            }
            Step::Run { op, inputs, .. } => {
                let shapes = inputs.iter().map(|&id| graph.ty(id).unwrap().shape);
                let operands: Vec<Operand<'_>> =
                    read.iter().zip(shapes).map(|(d, s)| Operand::f32(d, s.dims()).unwrap()).collect();
                simd.run(op, &operands).unwrap().iter().map(|b| b.as_data().f32().to_vec()).collect()
            }
        };
        values.extend(step.outputs().zip(written));
    }
    schedule.results.iter().map(|id| values[id].clone()).collect()
}

#[test]
fn random_graphs_give_the_same_bits_fused_and_not() {
    let mut random = Random::new(11);
    for round in 0..60 {
        let (rows, columns) = ([1, 3, 40][random.below(3)], [1, 7, 64, 1500][random.below(4)]);
        let mut graph = Graph::new();
        let mut inputs = Vec::new();
        for dims in [&[rows, columns][..], &[rows, columns], &[columns], &[]] {
            let id = graph.input(TensorType::f32(Shape::new(dims).unwrap()));
            inputs.push((id, random.uniforms(dims.iter().product(), -2.0, 2.0)));
        }
        let mut ids: Vec<TensorId> = inputs.iter().map(|&(id, _)| id).collect();
        for _ in 0..2 + random.below(25) {
            let kind = ElementwiseKind::ALL[random.below(ElementwiseKind::ALL.len())];
            let op: Elementwise = kind.with_params([-0.5, 1.25]);
            let operands: Vec<TensorId> = (0..kind.arity()).map(|_| ids[random.below(ids.len())]).collect();
            ids.push(graph.record(op, &operands).unwrap());
        }
        let wanted: Vec<TensorId> = (0..3).map(|_| ids[random.below(ids.len())]).chain(ids.last().copied()).collect();
        for isa in Isa::available() {
            for threads in [1, 2] {
                let simd = Simd::with_isa(isa).unwrap().with_threads(threads);
                let bits = |limits| -> Vec<Vec<u32>> {
                    let results = run(&simd, &graph, &inputs, &wanted, limits);
                    // One pattern for every NaN: it is not specified which of two NaN operands is propagated.
                    let bits = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
                    results.iter().map(|r| r.iter().map(bits).collect()).collect()
                };
                assert_eq!(bits(FusionLimits::default()), bits(FusionLimits::NONE), "round {round} on {isa}");
            }
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let mut graph = Graph::new();
    let a = graph.input(TensorType::f32(Shape::new(&[6]).unwrap()));
    let b = graph.record(Elementwise::neg(), &[a]).unwrap();
    let c = graph.record(Elementwise::relu(), &[b]).unwrap();
    let schedule = graph.schedule(&[c], FusionLimits::default()).unwrap();
    let Step::Fused(fused) = &schedule.steps[0] else { panic!("not fused") };
    let simd = Simd::new().unwrap();
    assert!(simd.run_fused(fused, &[&[0.0; 6]], &mut [&mut [0.0; 6]]).is_ok());
    assert!(simd.run_fused(fused, &[&[0.0; 5]], &mut [&mut [0.0; 6]]).is_err());
    assert!(simd.run_fused(fused, &[&[0.0; 6]], &mut [&mut [0.0; 5]]).is_err());
    assert!(simd.run_fused(fused, &[], &mut [&mut [0.0; 6]]).is_err());
    assert!(simd.run_fused(fused, &[&[0.0; 6]], &mut []).is_err());
}

#[test]
fn steps_that_no_graph_makes_are_refused() {
    let mut graph = Graph::new();
    let a = graph.input(TensorType::f32(Shape::new(&[4]).unwrap()));
    let b = graph.record(Elementwise::neg(), &[a]).unwrap();
    let c = graph.record(Elementwise::add(), &[b, a]).unwrap();
    let schedule = graph.schedule(&[c], FusionLimits::default()).unwrap();
    let Step::Fused(sound) = &schedule.steps[0] else { panic!("not fused") };
    let simd = Simd::new().unwrap();
    let runs = |fused: &Fused| {
        let (inputs, mut outputs) =
            (vec![&[1.0, 2.0, 3.0, 4.0][..]; fused.inputs.len()], vec![vec![0.0; 4]; fused.outputs.len()]);
        let mut outputs: Vec<&mut [f32]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        simd.run_fused(fused, &inputs, &mut outputs).is_ok()
    };
    assert!(runs(sound));
    let changes: [fn(&mut Fused); 6] = [
        |fused| fused.instructions[1].operands.clear(),
        |fused| fused.instructions[0].operands.push(Source::Input(0)),
        |fused| fused.instructions[0].operands[0] = Source::Input(1),
        |fused| fused.instructions[0].operands[0] = Source::Result(0),
        |fused| fused.outputs[0].1 = 2,
        |fused| fused.outputs.push(fused.outputs[0]),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut fused = sound.clone();
        change(&mut fused);
        assert!(!runs(&fused), "change {number}");
    }
}
