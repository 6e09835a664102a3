//! Every kernel in every configuration, for the tests that go through all of them.

use kiln_core::graph::{Fetch, FusionLimits, Graph, Step};
use kiln_core::op::{ElementwiseKind, Matmul, Reduction};
use kiln_core::{Record, Shape, TensorType};
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::gemm::{Gemm, Tile};
use kiln_ptx::kernels::norm::Norm;
use kiln_ptx::kernels::reduce::ReduceLevel;
use kiln_ptx::kernels::softmax::Softmax;
use kiln_ptx::kernels::transpose::Transpose;
use kiln_ptx::{Kernel, Target};

/// The targets that kernels are written for; each text serves those up to the next.
pub(crate) const LADDER: [Target; 2] = [Target::Sm70, Target::Sm80];

/// Kernels for a step of the ladder.
pub(crate) fn kernels(target: Target) -> Vec<Box<dyn Kernel>> {
    let mut kernels: Vec<Box<dyn Kernel>> = Vec::new();
    for &kind in ElementwiseKind::ALL {
        let op = kind.with_params([0.0; 2]);
        kernels.push(Box::new(Chain::of(&op, &vec![Fetch::Whole; kind.arity()], target).unwrap()));
    }
    for fetch in [Fetch::Scalar, Fetch::Vectors, Fetch::Elements] {
        let op = ElementwiseKind::Add.with_params([0.0; 2]);
        kernels.push(Box::new(Chain::of(&op, &[Fetch::Whole, fetch], target).unwrap()));
    }
    kernels.push(Box::new(chain(target)));
    for &reduction in Reduction::ALL {
        kernels.extend(ReduceLevel::all(reduction, target).into_iter().map(|level| Box::new(level) as _));
    }
    kernels.extend(Softmax::all(target).into_iter().map(|softmax| Box::new(softmax) as _));
    kernels.extend(Norm::all().into_iter().map(|norm| Box::new(norm) as _));
    kernels.push(Box::new(Transpose));
    for tile in Tile::ALL {
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            kernels.push(Box::new(Gemm::new(Matmul { transpose_a, transpose_b }, tile)));
        }
    }
    kernels
}

/// relu(scale(a + b)) and the sum, the way a graph gives it.
pub(crate) fn chain(target: Target) -> Chain {
    let mut graph = Graph::new();
    let matrix = graph.input(TensorType::f32(Shape::new(&[8, 4]).unwrap()));
    let row = graph.input(TensorType::f32(Shape::new(&[4]).unwrap()));
    let sum = graph.add(matrix, row).unwrap();
    let scaled = graph.scale(sum, 2.0).unwrap();
    let out = graph.relu(scaled).unwrap();
    let schedule = graph.schedule(&[sum, out], FusionLimits::default()).unwrap();
    let [Step::Fused(fused)] = &schedule.steps[..] else { panic!("{:?}", schedule.steps) };
    Chain::fused(fused, &[Fetch::Whole, Fetch::Vectors], target).unwrap()
}
