//! Views of tensors that stay on a device: what they show, when they are copies, and that every operation takes them.

mod support;

use std::collections::HashMap;

use kiln_ir::op::reference::{self, Input};
use kiln_ir::op::{Elementwise, Matmul, Op, Reduce, Reduction, all_cases};
use kiln_ir::{Buffer, DType, Data, Error, Operand, QuantFormat, Record, Shape, TensorType};
use kiln_wgpu::{GpuCommandBatch, GpuDevice, GpuTensor, numerics};

fn counted(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn slices_and_their_slices_show_their_elements() {
    let Some(device) = support::device() else { return };
    let host = counted(64 * 30);
    let x = device.upload(&Operand::f32(&host, &[30, 64]).unwrap()).unwrap();
    // Rows of 256 bytes begin at a valid binding offset of every device.
    let before = device.statistics();
    let rows = x.slice(3..20).unwrap();
    let inner = rows.slice(5..9).unwrap();
    let flat = inner.reshape(&[256]).unwrap();
    let again = flat.slice(64..192).unwrap();
    assert_eq!((device.statistics() - before).submissions, 0, "nothing is copied");
    assert_eq!(rows.shape().dims(), [17, 64]);
    assert_eq!(rows.read().unwrap().as_data().f32(), &host[3 * 64..20 * 64]);
    assert_eq!(inner.read().unwrap().as_data().f32(), &host[8 * 64..12 * 64]);
    assert_eq!(again.read().unwrap().as_data().f32(), &host[9 * 64..11 * 64]);

    // The second element begins after four bytes, which is not a valid offset anywhere.
    let before = device.statistics();
    let copied = flat.slice(1..200).unwrap();
    assert_eq!((device.statistics() - before).submissions, 1, "a copy on the device");
    assert_eq!(copied.read().unwrap().as_data().f32(), &host[8 * 64 + 1..8 * 64 + 200]);
    assert_eq!((device.statistics() - before).uploads, 0);
    let sum = device.run(&Op::from(Reduce::all(Reduction::Sum)), &[&copied]).unwrap().remove(0);
    assert_eq!(sum.read().unwrap().as_data().f32(), [host[513..712].iter().sum::<f32>()]);
}

#[test]
fn a_view_keeps_its_memory_and_sees_no_more_than_its_part() {
    let Some(device) = support::device() else { return };
    // More than software devices bind at once; the view is a small part of it.
    let large = device.upload(&Operand::f32(&vec![1.0; 36_000_000], &[36_000_000]).unwrap()).unwrap();
    let view = large.slice(64_000..64_101).unwrap();
    drop(large);
    let other = device.upload(&Operand::f32(&vec![7.0; 36_000_000], &[36_000_000]).unwrap()).unwrap();
    let sum = device.run(&Op::from(Reduce::all(Reduction::Sum)), &[&view]).unwrap().remove(0);
    assert_eq!(sum.read().unwrap().as_data().f32(), [101.0]);
    drop(other);
}

#[test]
fn ranges_outside_are_refused() {
    let Some(device) = support::device() else { return };
    let x = device.upload(&Operand::f32(&counted(12), &[4, 3]).unwrap()).unwrap();
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..5, 3..2, 5..5, usize::MAX..usize::MAX, 0..usize::MAX] {
        assert!(matches!(x.slice(range.clone()), Err(Error::View { .. })), "{range:?}");
    }
    let scalar = device.upload(&Operand::f32(&[1.0], &[]).unwrap()).unwrap();
    assert!(matches!(scalar.slice(0..1), Err(Error::View { .. })));
    let empty = x.slice(4..4).unwrap();
    assert_eq!(empty.shape().dims(), [0, 3]);
    assert!(empty.read().unwrap().as_data().f32().is_empty());
    let sums = device.run(&Op::from(Reduce::along(Reduction::Sum, 0)), &[&empty]).unwrap().remove(0);
    assert_eq!(sums.read().unwrap().as_data().f32(), [0.0; 3]);

    let blocks: Vec<u8> = (0..34 * 8).map(|i| (i % 251) as u8).collect();
    let format = QuantFormat::Q8_0;
    let rows =
        device.upload(&Operand::new(Data::Blocks(format, &blocks), Shape::new(&[8, 32]).unwrap()).unwrap()).unwrap();
    assert_eq!(rows.slice(2..4).unwrap().read().unwrap().as_data().as_bytes(), &blocks[68..136]);
    assert_eq!(rows.slice(1..1).unwrap().shape().dims(), [0, 32], "nothing begins nowhere");
    let flat = rows.reshape(&[256]).unwrap();
    assert!(matches!(flat.slice(16..48), Err(Error::Format { .. })), "blocks would be cut");
}

#[test]
fn slices_may_begin_within_a_word() {
    let Some(device) = support::device() else { return };
    let bytes: Vec<u8> = (0..3400).map(|i| (i * i % 251) as u8).collect();
    let types = [(DType::F16, 5), (DType::I8, 7), (DType::U8, 3), (DType::Bool, 9)];
    let blocks = [QuantFormat::Q8_0, QuantFormat::Q4_0].map(|format| (DType::Blocks(format), format.block_len()));
    for (dtype, columns) in types.into_iter().chain(blocks) {
        let ty = TensorType::of(dtype, Shape::new(&[100, columns]).unwrap()).unwrap();
        let row = ty.bytes() / 100;
        let mut host: Vec<u8> = bytes[..ty.bytes()].to_vec();
        if dtype == DType::Bool {
            host.iter_mut().for_each(|byte| *byte &= 1);
        }
        let operand = Operand::new(Data::from_bytes(dtype, &host).unwrap(), ty.shape).unwrap();
        let x = device.upload(&operand).unwrap();
        for range in [1..2, 1..100, 3..98, 99..100] {
            let slice = x.slice(range.clone()).unwrap();
            let again = slice.slice(0..1).unwrap();
            assert_eq!(slice.ty().dtype, dtype);
            assert_eq!(slice.read().unwrap().as_data().as_bytes(), &host[row * range.start..row * range.end]);
            assert_eq!(again.read().unwrap().as_data().as_bytes(), &host[row * range.start..][..row]);
        }
        let part = kiln_wgpu::runtime::block_on(x.slice_async(5..8)).unwrap();
        assert_eq!(part.read().unwrap().as_data().as_bytes(), &host[5 * row..8 * row], "{dtype:?}");
    }
}

#[test]
fn batches_take_views_and_leave_them_as_they_are() {
    let Some(device) = support::device() else { return };
    let host = counted(4 * 64);
    let x = device.upload(&Operand::f32(&host, &[4, 64]).unwrap()).unwrap();
    let mut batch = GpuCommandBatch::new(device);
    let (a, b) = (batch.import(&x.slice(1..2).unwrap()).unwrap(), batch.import(&x.slice(3..4).unwrap()).unwrap());
    let sum = batch.add(a, b).unwrap();
    let results = batch.run(&[sum, a]).unwrap();
    let expected: Vec<f32> = (0..64).map(|i| host[64 + i] + host[192 + i]).collect();
    assert_eq!(results[0].as_data().f32(), expected);
    assert_eq!(results[1].as_data().f32(), &host[64..128]);
    batch.set(a, &[1.0; 64]).unwrap();
    assert_eq!(batch.run(&[a]).unwrap()[0].as_data().f32(), [1.0; 64]);
    assert_eq!(x.read().unwrap().as_data().f32(), host);
}

/// The operand as a view into a larger tensor, between other elements, where every device can begin to read.
fn embedded(device: &GpuDevice, operand: &Operand<'_>) -> GpuTensor {
    let (n, dtype, bytes) = (operand.shape().numel(), operand.ty().dtype, operand.ty().bytes());
    // 128 blocks of any format are multiples of 256 bytes. The surroundings are NaN, the largest integer, true.
    let (unit, unit_bytes, units) = match dtype {
        DType::Blocks(format) => (format.block_len(), format.block_bytes(), [128, 128]),
        other => (1, other.size(), [256 / other.size(), 5]),
    };
    let [before, after] = units.map(|units| units * unit);
    let mut all = Buffer::with_bytes(dtype, bytes + (units[0] + units[1]) * unit_bytes).unwrap();
    let mut all_bytes = all.as_mut();
    all_bytes.as_bytes().fill(0xff);
    all_bytes.as_bytes()[units[0] * unit_bytes..][..bytes].copy_from_slice(operand.data().as_bytes());
    let all = Input::new(all, &[before + n + after]);
    let tensor = device.upload(&all.operand().unwrap()).unwrap();
    tensor.slice(before..before + n).unwrap().reshape(operand.shape().dims()).unwrap()
}

#[test]
fn every_operation_takes_views() {
    const CASES: usize = 4;
    let Some(device) = support::device() else { return };
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for case in all_cases() {
        let nothing = case.inputs.iter().any(|input| input.operand().unwrap().shape().is_empty());
        let seen = seen.entry(case.op.name()).or_default();
        // A few of the element-wise functions, which share one frame.
        let frame = matches!(case.op, Op::Elementwise(op) if op != Elementwise::add() && op != Elementwise::relu());
        if nothing || frame || *seen == CASES {
            continue;
        }
        *seen += 1;
        let bound = |op: &Op, inputs: &[TensorType]| numerics::bound_on(&device, op, inputs);
        let run = |op: &Op, inputs: &[Operand<'_>]| {
            let before = device.statistics();
            let views: Vec<GpuTensor> = inputs.iter().map(|input| embedded(&device, input)).collect();
            assert_eq!((device.statistics() - before).submissions, 0, "{case}: views, and no copies");
            let results = device.run(op, &views.iter().collect::<Vec<_>>())?;
            results.iter().map(GpuTensor::read).collect()
        };
        reference::conform_within(&case, bound, true, run).unwrap_or_else(|why| panic!("{why}"));
    }
    assert!(seen.len() > 20, "{seen:?}");
}

#[test]
fn weights_and_products_of_views() {
    let Some(device) = support::device() else { return };
    let host = counted(3 * 64);
    let x = device.upload(&Operand::f32(&host, &[3, 64]).unwrap()).unwrap();
    let (row, column) = (x.slice(1..2).unwrap(), x.slice(2..3).unwrap().reshape(&[64, 1]).unwrap());
    let product = device.run(&Op::from(Matmul::default()), &[&row, &column]).unwrap().remove(0);
    let expected: f64 = (0..64).map(|i| f64::from(host[64 + i]) * f64::from(host[128 + i])).sum();
    assert_eq!(product.read().unwrap().as_data().f32(), [expected as f32]);
    let total: f32 = device.tiled_reduce::<kiln_ir::SumOp>(&x.slice(1..3).unwrap()).unwrap();
    assert_eq!(total, host[64..].iter().sum::<f32>());
}
