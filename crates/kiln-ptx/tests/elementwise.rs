//! Element-wise functions and chains of them, run as text, against the f64 reference.

use kiln_ir::graph::{Fetch, FusionLimits, Graph, Step};
use kiln_ir::op::reference::{self, Random};
use kiln_ir::op::{Elementwise, ElementwiseKind, Op, Operation};
use kiln_ir::{Buffer, Error, Record, Shape, TensorType};
use kiln_ptx::Target;
use kiln_ptx::kernels::elementwise::Chain;

use crate::support::{Device, floats, words};

/// Results of a chain on inputs.
fn run(
    chain: &Chain,
    n: usize,
    inputs: &[&[f32]],
    params: &[[f32; 2]],
    outputs: usize,
) -> Result<Vec<Vec<f32>>, String> {
    let mut device = Device::default();
    let mut buffers: Vec<usize> = inputs.iter().map(|x| device.upload(&words(x))).collect();
    let written: Vec<usize> = (0..outputs).map(|_| device.allocate(4 * n)).collect();
    buffers.extend(&written);
    let lengths: Vec<usize> = inputs.iter().map(|x| x.len()).collect();
    let launch = chain.launch(n, &lengths, params).map_err(|error| error.to_string())?;
    device.run(chain, &launch, &buffers)?;
    Ok(written.into_iter().map(|buffer| floats(device.download(buffer))).collect())
}

/// The cases of kiln-ir, those aside that are long only to last: an interpreter takes a thousand times as long as a GPU.
#[test]
fn every_function_keeps_its_contract() {
    const LONGEST: usize = 12_000;
    let mut compared = 0;
    for case in Elementwise::cases() {
        let Op::Elementwise(op) = case.op else { panic!("{case}") };
        let inputs: Vec<&[f32]> = case.inputs.iter().map(|input| input.buffer.as_data().f32()).collect();
        let n = inputs.iter().map(|x| x.len()).max().unwrap_or(0);
        if n > LONGEST {
            continue;
        }
        let fetches: Vec<Fetch> = inputs.iter().map(|x| Fetch::of(x.len(), n)).collect();
        for target in [Target::Sm70, Target::Sm80] {
            let chain = Chain::of(&op, &fetches, target).unwrap();
            let results = |_: &Op, _: &[kiln_ir::Operand<'_>]| {
                let results = run(&chain, n, &inputs, &[op.params()], 1).unwrap_or_else(|why| panic!("{case}: {why}"));
                Ok(results.into_iter().map(Buffer::F32).collect())
            };
            compared += reference::conform(&case, results).unwrap_or_else(|why| panic!("{target}: {why}")).compared;
        }
    }
    assert!(compared > 500_000, "{compared}");
}

/// Fused chains give the same bits as their functions one after another.
#[test]
fn chains_compute_what_their_functions_do() {
    let mut random = Random::new(5);
    for round in 0..40 {
        let (rows, columns) = ([1, 3, 7][random.below(3)], [1, 7, 64, 250][random.below(4)]);
        let mut graph = Graph::new();
        let mut ids = Vec::new();
        let mut data = Vec::new();
        for dims in [&[rows, columns][..], &[rows, columns], &[columns], &[]] {
            ids.push(graph.input(TensorType::f32(Shape::new(dims).unwrap())));
            data.push(random.uniforms(dims.iter().product(), -2.0, 2.0));
        }
        for _ in 0..2 + random.below(12) {
            let kind = ElementwiseKind::ALL[random.below(ElementwiseKind::ALL.len())];
            let operands: Vec<_> = (0..kind.arity()).map(|_| ids[random.below(ids.len())]).collect();
            ids.push(graph.record(kind.with_params([-0.5, 1.25]), &operands).unwrap());
        }
        let wanted = [ids[ids.len() - 1], ids[4 + random.below(ids.len() - 4)]];
        let target = [Target::Sm70, Target::Sm80][round % 2];
        let results = [FusionLimits::default(), FusionLimits::NONE].map(|limits| {
            let mut values: Vec<Vec<f32>> = data.clone();
            values.resize(graph.tensors(), Vec::new());
            let schedule = graph.schedule(&wanted, limits).unwrap();
            for step in &schedule.steps {
                let inputs: Vec<&[f32]> = step.inputs().iter().map(|id| values[id.index()].as_slice()).collect();
                let written: Vec<_> = step.outputs().collect();
                let n = graph.ty(written[0]).unwrap().shape.numel();
                let fetches: Vec<Fetch> = inputs.iter().map(|x| Fetch::of(x.len(), n)).collect();
                let (chain, params) = match step {
                    Step::Fused(fused) => {
                        let params: Vec<_> = fused.instructions.iter().map(|i| i.params).collect();
                        (Chain::fused(fused, &fetches, target).unwrap(), params)
                    }
                    Step::Run { op: Op::Elementwise(op), .. } => {
                        (Chain::of(op, &fetches, target).unwrap(), vec![op.params()])
                    }
                    Step::Run { op, .. } => panic!("{op:?}"),
                };
                let results = run(&chain, n, &inputs, &params, written.len()).unwrap();
                for (id, result) in written.into_iter().zip(results) {
                    values[id.index()] = result;
                }
            }
            let bits =
                |id: &kiln_ir::graph::TensorId| values[id.index()].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            schedule.results.iter().map(bits).collect::<Vec<_>>()
        });
        assert!(results[0] == results[1], "round {round}");
    }
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let chain = Chain::of(&Elementwise::add(), &[Fetch::Whole, Fetch::Vectors], Target::Sm70).unwrap();
    assert!(chain.launch(8, &[8, 4], &[[0.0; 2]]).is_ok());
    assert!(matches!(chain.launch(8, &[8], &[[0.0; 2]]), Err(Error::Arity { .. })));
    assert!(matches!(chain.launch(8, &[8, 4], &[]), Err(Error::Arity { .. })));
    for lengths in [[7, 4], [8, 3], [8, 0], [8, 2]] {
        assert!(matches!(chain.launch(8, &lengths, &[[0.0; 2]]), Err(Error::Length { .. })), "{lengths:?}");
    }
    let most = u32::MAX as usize;
    assert!(matches!(chain.launch(most, &[most, 4], &[[0.0; 2]]), Err(Error::Limit { .. })));
    assert!(matches!(Chain::of(&Elementwise::exp(), &[], Target::Sm70), Err(Error::Arity { .. })));
}
