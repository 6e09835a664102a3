//! Tensors of f16.

mod support;

use kiln_ir::op::reference::{Accuracy, Case, Input, Random, conform_within};
use kiln_ir::op::{Cast, Elementwise, Matmul, Op};
use kiln_ir::{Buffer, DType, Data, Error, Operand, Operations, QuantFormat, Record, TensorType, f16};
use kiln_wgpu::{GpuBackend, GpuCommandBatch, numerics};

/// Numbers that f16 has.
fn values(n: usize) -> Vec<f16> {
    (0..n).map(|i| f16::from_f32(((i * 7919) % 127) as f32 / 64.0 - 1.0)).collect()
}

fn wide(x: &[f16]) -> Vec<f32> {
    x.iter().map(|x| x.to_f32()).collect()
}

#[test]
fn what_is_uploaded_is_read_and_seen_in_parts() {
    let Some(device) = support::device() else { return };
    for n in [0, 1, 2, 7, 1000, 4097] {
        let x = values(n);
        let tensor = device.upload(&Operand::elements(&x, &[n]).unwrap()).unwrap();
        assert_eq!((tensor.ty().dtype, tensor.ty().bytes()), (DType::F16, 2 * n));
        assert_eq!(tensor.read().unwrap(), Buffer::F16(x));
    }
    let x = values(1000);
    let tensor = device.upload(&Operand::elements(&x, &[1000]).unwrap()).unwrap();
    // Ranges where a kernel may begin, where a copy may, and where a kernel has to copy.
    for range in [0..5, 512..1000, 2..9, 998..1000, 3..3, 3..9] {
        let part = tensor.slice(range.clone()).unwrap();
        assert_eq!(part.read().unwrap(), Buffer::F16(x[range].to_vec()));
    }
    assert!(matches!(Operand::elements(&x, &[999]), Err(Error::Length { expected: 999, found: 1000, .. })));
}

#[test]
fn a_batch_converts_and_computes_on_both_types() {
    let Some(device) = support::device() else { return };
    let (x, y) = (values(64 * 48), values(48 * 40));
    let mut batch = GpuCommandBatch::new(device);
    let a = batch.upload_operand(&Operand::elements(&x, &[64, 48]).unwrap()).unwrap();
    let b = batch.upload_operand(&Operand::elements(&y, &[48, 40]).unwrap()).unwrap();
    // Element-wise on f16, a chain after it, rounded, and multiplied.
    let doubled = batch.add(a, a).unwrap();
    let chain = batch.relu(doubled).unwrap();
    let chain = batch.scale(chain, 0.5).unwrap();
    let half = batch.cast(chain, DType::F16).unwrap();
    let product = batch.matmul(half, b).unwrap();
    let rounded = batch.cast(product, DType::F16).unwrap();
    let results = batch.run(&[half, product, rounded]).unwrap();

    let relu: Vec<f16> = x.iter().map(|x| f16::from_f32(x.to_f32().max(0.0))).collect();
    assert_eq!(results[0], Buffer::F16(relu.clone()));
    let (relu, y) = (wide(&relu), wide(&y));
    let exact =
        |i: usize, j: usize| (0..48).map(|k| f64::from(relu[48 * i + k]) * f64::from(y[40 * k + j])).sum::<f64>();
    let (Data::F32(product), Data::F16(rounded)) = (results[1].as_data(), results[2].as_data()) else {
        panic!("{results:?}")
    };
    assert_eq!(product.len(), 64 * 40);
    for (at, (&got, rounded)) in product.iter().zip(rounded).enumerate() {
        assert!((f64::from(got) - exact(at / 40, at % 40)).abs() < 1e-4, "{at}: {got}");
        assert_eq!(*rounded, f16::from_f32(got));
    }
}

#[test]
fn products_of_f16_of_every_shape() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let mut random = Random::new(61);
    let mut of = |dims: &[usize], half: bool| {
        let x = random.uniforms(dims.iter().product(), -1.0, 1.0);
        let narrow = |x: Vec<f32>| Buffer::F16(x.into_iter().map(f16::from_f32).collect());
        Input::new(if half { narrow(x) } else { Buffer::F32(x) }, dims)
    };
    let mut worst = (Accuracy::default(), Accuracy::default());
    // Few rows or columns, and each tile size: whole tiles, edges in every direction, k of whole slices, multiples of
    // eight and of four, odd.
    let extents = [
        (1, 1, 7, 5),
        (1, 1, 260, 300),
        (2, 5, 64, 37),
        (1, 40, 33, 31),
        (1, 128, 32, 128),
        (1, 128, 512, 256),
        (1, 136, 40, 264),
        (3, 72, 24, 200),
        (1, 129, 64, 130),
        (1, 250, 100, 252),
        (2, 24, 8, 16),
    ];
    // If KILN_SAMPLE requests samples, each transposition of each shape takes one pair of types, and the next one another.
    let (step, mut numbers) = (kiln_device::conformance::sample().min(3), 0..);
    for (batch, m, k, n) in extents {
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let first = numbers.next().unwrap_or(0) % step;
            for (half_a, half_b) in [(true, true), (true, false), (false, true)].into_iter().skip(first).step_by(step) {
                let a = of(&if transpose_a { [batch, k, m] } else { [batch, m, k] }, half_a);
                let b = of(&if transpose_b { [batch, n, k] } else { [batch, k, n] }, half_b);
                let case = Case::new(Matmul { transpose_a, transpose_b }, vec![a, b]);
                let bound = |op: &Op, inputs: &[TensorType]| numerics::bound_on(&device, op, inputs);
                let accuracy = conform_within(&case, bound, true, |op, inputs| backend.run(op, inputs));
                let accuracy = accuracy.unwrap_or_else(|why| panic!("{why}"));
                let all = if half_a && half_b { &mut worst.0 } else { &mut worst.1 };
                *all = all.merge(accuracy);
            }
        }
    }
    println!("worst of f16 x f16 {:?}, of one f16 {:?}", worst.0, worst.1);
}

#[test]
fn element_wise_functions_read_f16_however_it_repeats() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let mut random = Random::new(63);
    let mut of = |dims: &[usize], half: bool| {
        let x = random.uniforms(dims.iter().product(), -2.0, 2.0);
        let narrow = |x: Vec<f32>| Buffer::F16(x.into_iter().map(f16::from_f32).collect());
        Input::new(if half { narrow(x) } else { Buffer::F32(x) }, dims)
    };
    // Whole, one element, rows of vectors, rows of other lengths.
    for (dims, repeated) in [
        (&[7, 5, 8][..], &[7, 5, 8][..]),
        (&[1001], &[]),
        (&[33, 12], &[12]),
        (&[33, 7], &[7]),
        (&[3, 5, 9], &[5, 9]),
        (&[2, 1], &[1]),
    ] {
        for (half_a, half_b) in [(true, true), (false, true), (true, false)] {
            let (a, b) = (of(dims, half_a), of(repeated, half_b));
            for op in [Elementwise::add(), Elementwise::max()] {
                let case = Case::new(op, vec![a.clone(), b.clone()]);
                let run = |op: &Op, inputs: &[Operand<'_>]| backend.run(op, inputs);
                conform_within(&case, numerics::bound, true, run).unwrap_or_else(|why| panic!("{why}"));
            }
        }
    }
}

/// Terms of one sign: errors that are too add up, and stay within what the device promises.
#[test]
fn long_sums_of_f16_keep_their_bound() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let mut random = Random::new(62);
    for (m, k, n) in [(16, 4096, 16), (128, 4096, 136)] {
        let mut of = |dims: &[usize]| {
            let x = random.uniforms(dims.iter().product(), 0.0, 1.0);
            Input::new(Buffer::F16(x.into_iter().map(f16::from_f32).collect()), dims)
        };
        let case = Case::new(Matmul::default(), vec![of(&[m, k]), of(&[k, n])]);
        let bound = |op: &Op, inputs: &[TensorType]| numerics::bound_on(&device, op, inputs);
        let accuracy = conform_within(&case, bound, true, |op, inputs| backend.run(op, inputs));
        println!("{case}: {:?}", accuracy.unwrap_or_else(|why| panic!("{why}")));
    }
}

#[test]
fn types_that_do_not_fit_are_errors() {
    let Some(device) = support::device() else { return };
    let x = device.upload(&Operand::elements(&values(12), &[3, 4]).unwrap()).unwrap();
    let indices = device.upload(&Operand::elements(&[1u32, 2, 3], &[3]).unwrap()).unwrap();
    let run = |op: Op, inputs: &[&kiln_wgpu::GpuTensor]| device.run(&op, inputs).map(drop);
    let blocks = DType::Blocks(QuantFormat::Q8_0);
    assert!(matches!(run(Cast { to: blocks }.into(), &[&x]), Err(Error::Parameter { .. })));
    assert!(run(Cast { to: DType::F16 }.into(), &[&indices]).is_ok());
    assert!(matches!(run(Matmul::default().into(), &[&x, &x]), Err(Error::Shape { .. })));
    assert!(matches!(run(Elementwise::add().into(), &[&x, &indices]), Err(Error::Type { index: 1, .. })));
}
