//! Operations that move elements, run as text, against the reference: a launch an operand, after one that fills.

use kiln_ir::op::{Matmul as MatmulOp, Movement, Permute, reference};
use kiln_ir::{Buffer, Operand, TensorType};
use kiln_ptx::Kernel;
use kiln_ptx::kernels::shape::{Fill, StridedCopy};

use crate::support::Device;

/// Runs an operation as the backend for NVIDIA does. Memory ends with a whole word.
fn run(op: &impl Movement, inputs: &[Operand<'_>]) -> Result<Buffer, String> {
    let types: Vec<TensorType> = inputs.iter().map(Operand::ty).collect();
    let out = op.infer(&types).unwrap()[0];
    let mut device = Device::default();
    let result = device.allocate(out.bytes().next_multiple_of(4));
    if let Some(value) = op.fill() {
        let word = out.dtype.word_of(value);
        device.run(&Fill, &Fill.launch(word, out.bytes().div_ceil(4)).unwrap(), &[result])?;
    }
    for (index, input) in inputs.iter().enumerate() {
        let copy = op.copy(&types, index).unwrap();
        if copy.is_empty() {
            continue;
        }
        let bytes = input.data().as_bytes();
        let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len()];
        let x = device.upload(&[bytes, &padding].concat());
        let kernel = StridedCopy::new(&copy);
        device.run(&kernel, &kernel.launch(&copy).unwrap(), &[x, result])?;
    }
    let mut buffer = Buffer::zeros(&out).unwrap();
    let mut data = buffer.as_mut();
    let n = out.bytes();
    data.as_bytes().copy_from_slice(&device.download(result)[..n]);
    Ok(buffer)
}

fn conforms<O: Movement>(op_of: impl Fn(&kiln_ir::op::Op) -> O) -> usize {
    let mut compared = 0;
    for case in O::cases() {
        let elements: usize = case.inputs.iter().map(|input| input.shape.numel()).sum();
        if elements > 20_000 {
            continue;
        }
        let op = op_of(&case.op);
        let results =
            |_: &_, inputs: &[Operand<'_>]| Ok(vec![run(&op, inputs).unwrap_or_else(|e| panic!("{case}: {e}"))]);
        compared += reference::conform(&case, results).unwrap_or_else(|why| panic!("{why}")).compared;
    }
    compared
}

macro_rules! conformance {
    ($($name:ident $operation:ident $least:literal;)*) => {
        $(#[test]
        fn $name() {
            let compared = conforms(|op| match op {
                kiln_ir::op::Op::$operation(op) => *op,
                op => panic!("{op:?}"),
            });
            assert!(compared > $least, "{compared}");
        })*
    };
}

conformance! {
    permute_keeps_every_bit Permute 10_000;
    slice_keeps_every_bit Slice 2_000;
    broadcast_to_keeps_every_bit BroadcastTo 10_000;
    pad_keeps_every_bit Pad 5_000;
    concat_keeps_every_bit Concat 1_000;
    reshape_keeps_every_bit Reshape 1_000;
    all_reduce_keeps_every_bit_on_one_device AllReduce 50;
}

#[test]
fn copies_are_counted_in_the_widest_units() {
    let names = |dims: &[usize], axes: &[usize], half: bool| {
        let shape = kiln_ir::Shape::new(dims).unwrap();
        let ty = if half { TensorType::f16(shape) } else { TensorType::f32(shape) };
        StridedCopy::new(&Permute::new(axes).unwrap().copy(&[ty], 0).unwrap()).name()
    };
    assert_eq!(names(&[4, 6, 8], &[1, 0, 2], false), "strided_copy_x4_3d");
    assert_eq!(names(&[4, 6, 7], &[1, 0, 2], false), "strided_copy_b32_3d");
    assert_eq!(names(&[4, 6, 8], &[1, 0, 2], true), "strided_copy_x4_2d");
    assert_eq!(names(&[4, 6, 6], &[1, 0, 2], true), "strided_copy_b32_3d");
    assert_eq!(names(&[4, 6, 8], &[0, 2, 1], true), "strided_copy_b16_3d");
    assert_eq!(names(&[2, 3, 2, 3, 2, 3], &[5, 4, 3, 2, 1, 0], false), "strided_copy_b32_6d");
}

#[test]
fn stacks_are_made_as_long_as_their_products() {
    let ty = |dims: &[usize]| TensorType::f32(kiln_ir::Shape::new(dims).unwrap());
    let (a, b) = (ty(&[3, 1, 4, 5]), ty(&[2, 5, 6]));
    let [repeat_a, repeat_b] = MatmulOp::default().repeats(&a, &b).unwrap();
    let lengths = [repeat_a, repeat_b].map(|repeat| repeat.unwrap().len());
    assert_eq!(lengths, [6 * 20, 6 * 30]);
    assert_eq!(MatmulOp::default().repeats(&ty(&[6, 4, 5]), &ty(&[5, 6])).unwrap(), [None, None]);
    assert_eq!(MatmulOp::default().repeats(&ty(&[6, 4, 5]), &ty(&[1, 5, 6])).unwrap(), [None, None]);
    assert_eq!(MatmulOp::default().repeats(&ty(&[1, 4, 5]), &ty(&[2, 3, 5, 6])).unwrap(), [None, None]);
}
