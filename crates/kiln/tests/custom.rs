//! Operations of a program on the CPU, and where they go.

use std::sync::atomic::{AtomicUsize, Ordering};

#[path = "../examples/custom_operation/prelu.rs"]
mod prelu;

use kiln::op::reference::{Case, Input, Random, conform};
use kiln::op::{Bound, Contract, CpuKernel, Custom, CustomCall, CustomOperation, Op, Outputs};
use kiln::{DataMut, Engine, Error, Operand, Operations, Record, Result, Simd, Tensor, TensorType};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn prelu() -> Custom {
    Custom::new(&prelu::Prelu, &[]).unwrap()
}

/// Has no kernel anywhere.
#[derive(Debug)]
struct Nowhere;

impl CustomOperation for Nowhere {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    fn formula(&self) -> &'static str {
        "x"
    }

    fn infer(&self, _: &[f32], inputs: &[TensorType]) -> Result<Outputs> {
        Ok(inputs[0].into())
    }

    fn flops(&self, _: &CustomCall<'_>) -> u64 {
        0
    }

    fn contract(&self) -> Contract {
        Contract { bound: Bound::Exact, special: "" }
    }
}

#[test]
fn it_keeps_its_contract() {
    let mut random = Random::new(11);
    let engine = Engine::builder().without_profile().build().unwrap();
    for dims in [&[1, 1][..], &[3, 7], &[2, 3, 33], &[0, 4], &[4, 0], &[1000]] {
        let x = Input::f32(random.uniforms(dims.iter().product(), -2.0, 2.0), dims);
        let channels = dims[dims.len() - 1];
        let case = Case::new(prelu(), vec![x, Input::f32(random.uniforms(channels, -1.0, 1.0), &[channels])]);
        conform(&case, |op, inputs| engine.run(op, inputs)).unwrap();
    }
}

#[test]
fn it_is_recorded_explained_and_run_on_tensors() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let (x, slope) = ([-1.0, 2.0, -3.0, 4.0], [0.5, 2.0]);
    let [a, b] = [Tensor::from_slice(&x, &[2, 2]).unwrap(), Tensor::from_slice(&slope, &[2]).unwrap()];
    let eager = engine.tensors().record(prelu(), &[a.clone(), b.clone()]).unwrap();
    assert_eq!(eager.to_vec().unwrap(), [-0.5, 2.0, -1.5, 4.0]);
    let mut batch = engine.batch();
    let [a, b] = [&a, &b].map(|tensor| batch.import(tensor));
    let y = batch.record(prelu(), &[a, b]).unwrap();
    let y = batch.neg(y).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [0.5, -2.0, 1.5, -4.0]);
    let types = [(&x[..], &[2, 2][..]), (&slope, &[2])].map(|(data, dims)| Operand::f32(data, dims).unwrap().ty());
    let explained = engine.explain(prelu(), &types).unwrap().to_string();
    assert!(explained.starts_with("prelu [2, 2] [2]:"), "{explained}");
    assert!(matches!(batch.record(prelu(), &[b, a]), Err(Error::Shape { op: "prelu", .. })));
}

#[test]
fn without_a_kernel_it_is_refused_and_not_tried_again_and_again() {
    let engine = Engine::builder().without_profile().build().unwrap();
    let op = Op::from(Custom::new(&Nowhere, &[]).unwrap());
    let x = [Operand::vector(&[1.0])];
    assert!(matches!(engine.run(&op, &x), Err(Error::Unsupported { op: "nowhere", .. })));
    assert!(matches!(engine.explain(op, &[x[0].ty()]), Err(Error::Unsupported { op: "nowhere", .. })));
    let tensor = Tensor::from_slice(&[1.0], &[1]).unwrap();
    let refused = engine.tensors().record(op, &[tensor]).map(drop);
    assert!(matches!(refused, Err(Error::Unsupported { op: "nowhere", .. })));
    let mut batch = engine.batch();
    let x = batch.upload(&[1.0], &[1]).unwrap();
    let y = batch.record(op, &[x]).unwrap();
    assert!(matches!(batch.execute(&[y]), Err(Error::Unsupported { op: "nowhere", .. })));
    assert!(matches!(batch.explain(&[y]), Err(Error::Unsupported { op: "batch", .. })));
}

/// Counts the calls of its shape rule.
#[derive(Debug)]
struct Counting(AtomicUsize);

impl CustomOperation for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn formula(&self) -> &'static str {
        "x"
    }

    fn infer(&self, _: &[f32], inputs: &[TensorType]) -> Result<Outputs> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(inputs[0].into())
    }

    fn flops(&self, _: &CustomCall<'_>) -> u64 {
        0
    }

    fn contract(&self) -> Contract {
        Contract { bound: Bound::Exact, special: "" }
    }

    fn cpu(&self) -> Option<CpuKernel> {
        Some(|_, inputs, outputs| {
            outputs[0].as_bytes().copy_from_slice(inputs[0].data().as_bytes());
            Ok(())
        })
    }
}

#[test]
fn methods_that_allocate_results_infer_shapes_as_often_as_those_that_do_not() {
    static COUNTING: Counting = Counting(AtomicUsize::new(0));
    let op = Op::from(Custom::new(&COUNTING, &[]).unwrap());
    let routed = Engine::builder().without_profile().build().unwrap();
    let simd = Simd::new().unwrap();
    let one_place = Engine::builder().without_profile().instruction_set(simd.isa()).threads(1).build().unwrap();
    let x = [1.0, 2.0];
    let inputs = [Operand::vector(&x)];
    let check = |name: &str, call: &dyn Fn() -> Result<Vec<f32>>| {
        let before = COUNTING.0.load(Ordering::Relaxed);
        assert_eq!(call().unwrap(), x, "{name}");
        // Of the call, and of the operands of the kernel, which are f32 where those of the call are f16.
        assert_eq!(COUNTING.0.load(Ordering::Relaxed) - before, 2, "{name}");
    };
    check("run", &|| Ok(routed.run(&op, &inputs)?[0].as_data().f32().to_vec()));
    check("run_f32", &|| routed.run_f32(&op, &inputs));
    check("run_into", &|| {
        let mut out = vec![0.0; 2];
        routed.run_into(&op, &inputs, &mut [DataMut::F32(&mut out)])?;
        Ok(out)
    });
    check("run_f32 of one place", &|| one_place.run_f32(&op, &inputs));
    check("run_f32 of a CPU", &|| simd.run_f32(&op, &inputs));
}
