//! Products on tensor cores, of all layouts and precisions, against the f64 reference.

mod support;

use kiln_core::op::reference::{Random, check};
use kiln_core::op::{Matmul, Op};
use kiln_core::{Buffer, Data, Operand, Record, Result, Shape, f16};
use kiln_cuda::{CudaCommandBatch, CudaDevice, DeviceOptions, InputPrecision, numerics};

/// A device with tensor cores that kernels use.
fn device_with(input_precision: InputPrecision) -> Option<CudaDevice> {
    let device = support::device_with(&DeviceOptions::new().input_precision(input_precision))?;
    if !device.has_tensor_cores() {
        eprintln!("left out: no kernel uses the tensor cores of {}", device.info());
        return None;
    }
    Some(device)
}

/// Products, rows, depth and columns; and whether one B serves all A.
const EXTENTS: [(usize, [usize; 3], bool); 9] = [
    (1, [1, 64, 64], true),
    (1, [64, 64, 64], true),
    (1, [104, 72, 136], true),
    (1, [136, 1024, 264], true),
    (1, [64, 4096, 64], true),
    (1, [16, 2048, 256], true),
    (1, [520, 40, 264], true),
    (3, [72, 136, 88], false),
    (3, [72, 136, 88], true),
];

/// Holds products to the bound of the device.
fn holds(device: &CudaDevice, halves: bool) {
    let (mut random, mut worst) = (Random::new(7), 0.0f64);
    for (batch, [m, k, n], shared) in EXTENTS {
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let op = Matmul { transpose_a, transpose_b };
            let dims = [if transpose_a { [k, m] } else { [m, k] }, if transpose_b { [n, k] } else { [k, n] }];
            let mut operand = |dims: [usize; 2], alone: bool| {
                let shape = if alone { Shape::new(&dims) } else { Shape::new(&[batch, dims[0], dims[1]]) }.unwrap();
                let values = random.uniforms(shape.numel(), -1.0, 1.0);
                let halved = || Buffer::F16(values.iter().map(|&x| f16::from_f32(x)).collect());
                (if halves { halved() } else { Buffer::F32(values.clone()) }, shape)
            };
            let stored = [operand(dims[0], batch == 1), operand(dims[1], shared)];
            let operands = stored.each_ref().map(|(data, shape)| Operand::new(data.as_data(), *shape).unwrap());
            let expected = Op::from(op).reference(&operands).unwrap();
            let bound = numerics::bound_on(device, &op.into(), &operands.each_ref().map(Operand::ty)).unwrap();
            let tensors = operands.each_ref().map(|operand| device.upload(operand).unwrap());
            let results = device.run(&op.into(), &tensors.each_ref()).unwrap();
            let got = results.iter().map(|result| result.read()).collect::<Result<Vec<_>>>().unwrap();
            let got: Vec<Data<'_>> = got.iter().map(Buffer::as_data).collect();
            let accuracy = check(bound, &expected, &got);
            let accuracy = accuracy.unwrap_or_else(|why| panic!("{op:?}, {batch} x {m} x {k} x {n}: {why}"));
            worst = worst.max(accuracy.worst);
        }
    }
    println!("worst {worst:.1} units");
}

#[test]
fn products_of_f16_keep_their_bound() {
    device_with(InputPrecision::Ieee).iter().for_each(|device| holds(device, true));
}

#[test]
fn products_in_two_parts_keep_their_bound() {
    device_with(InputPrecision::Tf32x3).iter().for_each(|device| holds(device, false));
}

#[test]
fn products_in_tf32_keep_their_bound() {
    device_with(InputPrecision::Tf32).iter().for_each(|device| holds(device, false));
}

/// Captured, with the descriptions of tensors in the capture; the kernels are those of tensor cores.
#[test]
fn batches_replay_them() {
    let Some(_) = device_with(InputPrecision::Ieee) else { return };
    let options = DeviceOptions::new().profile();
    for (device, replays) in [(support::device().unwrap(), true), (support::device_with(&options).unwrap(), false)] {
        let mut batch = CudaCommandBatch::new(device);
        let x = batch.upload_f16(&[f16::from_f32(0.5); 64 * 64], &[64, 64]).unwrap();
        let w = batch.upload_f16(&[f16::from_f32(0.25); 64 * 128], &[128, 64]).unwrap();
        let y = batch.record(Matmul { transpose_a: false, transpose_b: true }, &[x, w]).unwrap();
        let y = batch.relu(y).unwrap();
        for run in 0..4 {
            let value = run as f32;
            batch.set_data(x, Data::F16(&[f16::from_f32(value); 64 * 64])).unwrap();
            let result = batch.run(&[y]).unwrap();
            assert!(result[0].as_data().f32().iter().all(|&y| y == 16.0 * value), "run {run}");
        }
        if !replays {
            let profile = batch.profile().unwrap();
            assert!(profile.kernels[0].name.starts_with("gemm_nt_f16_f32"), "{profile}");
        }
    }
}
