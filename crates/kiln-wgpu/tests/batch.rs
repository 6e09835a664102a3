//! Batches: recorded operations run once, together, and again without being compiled again.

mod support;

use kiln_ir::op::Elementwise;
use kiln_ir::{Data, DataMut, Error, Operand, Operations, Record};
use kiln_wgpu::{GpuBackend, GpuCommandBatch};

#[test]
fn a_chain_is_one_kernel_and_gives_what_its_operations_give() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let x: Vec<f32> = (0..1001).map(|i| i as f32 / 100.0 - 5.0).collect();
    let bias: Vec<f32> = (0..7).map(|i| i as f32).collect();
    let a = batch.upload(&x, &[143, 7]).unwrap();
    let b = batch.upload(&bias, &[7]).unwrap();
    let sum = batch.add(a, b).unwrap();
    let scaled = batch.scale(sum, 0.5).unwrap();
    let y = batch.relu(scaled).unwrap();
    assert_eq!((batch.num_operations(), batch.num_tensors()), (3, 5));
    let before = device.compiled_kernels();
    let results = batch.run(&[y]).unwrap();
    assert_eq!(device.compiled_kernels() - before, 1, "three functions, one kernel");
    let expected: Vec<f32> = x.iter().enumerate().map(|(i, x)| (0.5 * (x + bias[i % 7])).max(0.0)).collect();
    assert_eq!(results[0].as_data().f32(), expected);
}

#[test]
fn an_execution_is_replayed_with_new_inputs() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&[1.0, 2.0, 3.0], &[3]).unwrap();
    let y = batch.exp(x).unwrap();
    let y = batch.ln(y).unwrap();
    batch.execute_all().unwrap();
    let first = batch.read(y).unwrap();
    let kernels = device.compiled_kernels();
    batch.set(x, &[4.0, 5.0, 6.0]).unwrap();
    assert!(matches!(batch.read(y), Err(Error::Parameter { .. })), "not computed from the new inputs yet");
    batch.execute_all().unwrap();
    let second = batch.read(y).unwrap();
    assert_eq!(device.compiled_kernels(), kernels);
    for (got, want) in first.iter().chain(&second).zip([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]) {
        assert!((got - want).abs() < 1e-5, "{first:?} {second:?}");
    }
    assert_eq!(batch.read(x).unwrap(), [4.0, 5.0, 6.0]);
}

#[test]
fn tensors_stay_on_the_device_and_what_is_held_is_left_alone() {
    let Some(device) = support::device() else { return };
    let x = device.upload(&Operand::f32(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap()).unwrap();
    let doubled = device.run(&Elementwise::scale(2.0).into(), &[&x]).unwrap().remove(0);
    let mut batch = GpuCommandBatch::new(device.clone());
    let input = batch.import(&doubled).unwrap();
    let y = batch.scale(input, 10.0).unwrap();
    batch.execute(&[y]).unwrap();
    let held = batch.tensor(y).unwrap();
    batch.set(input, &[1.0; 4]).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [10.0; 4]);
    assert_eq!(held.read().unwrap().as_data().f32(), [20.0, 40.0, 60.0, 80.0]);
    assert_eq!(doubled.read().unwrap().as_data().f32(), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(doubled.reshape(&[4]).unwrap().shape().dims(), [4]);
    assert!(doubled.reshape(&[5]).is_err());
}

#[test]
fn what_is_not_needed_is_dropped_and_results_may_be_inputs() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&[1.0, -1.0], &[2]).unwrap();
    let wanted = batch.abs(x).unwrap();
    let same = batch.abs(x).unwrap();
    let dead = batch.exp(x).unwrap();
    let results = batch.run(&[wanted, x, same, wanted]).unwrap();
    let expected = [[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, 1.0]];
    assert!(results.iter().zip(expected).all(|(got, want)| got.as_data().f32() == want), "{results:?}");
    assert!(matches!(batch.read(dead), Err(Error::Parameter { .. })));
}

#[test]
fn several_tensors_are_read_at_once() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&[1.0, -2.0, 3.0], &[3]).unwrap();
    let nothing = batch.upload(&[], &[0]).unwrap();
    let indices = batch.upload_indices(&[7], &[1]).unwrap();
    let (abs, sum) = (batch.abs(x).unwrap(), batch.sum(x).unwrap());
    assert!(matches!(batch.read_many(&[x, abs]), Err(Error::Parameter { .. })), "not computed yet");
    batch.execute_all().unwrap();
    let before = device.statistics();
    let read = batch.read_many(&[abs, nothing, indices, sum, x, abs]).unwrap();
    let spent = device.statistics() - before;
    assert_eq!((spent.submissions, spent.downloads), (1, 1));
    let floats = |position: usize| read[position].as_data().f32().to_vec();
    assert_eq!([floats(0), floats(1), floats(3)], [vec![1.0, 2.0, 3.0], vec![], vec![2.0]]);
    assert_eq!([floats(4), floats(5)], [[1.0, -2.0, 3.0], [1.0, 2.0, 3.0]]);
    assert_eq!(read[2].as_data().u32(), [7]);
    assert!(batch.read_many(&[]).unwrap().is_empty());
    let mut other = GpuCommandBatch::new(device);
    let foreign = other.upload(&[1.0], &[1]).unwrap();
    assert!(matches!(batch.read_many(&[x, foreign]), Err(Error::ForeignTensor { .. })));
}

#[test]
fn results_that_are_read_and_results_that_stay_are_the_same() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device);
    let x = batch.upload(&[1.0, -2.0, 3.0, 4.0, 5.0], &[5]).unwrap();
    let (double, abs) = (batch.scale(x, 2.0).unwrap(), batch.abs(x).unwrap());
    for factor in [1.0, -10.0] {
        batch.set(x, &[factor, -2.0, 3.0, 4.0, 5.0]).unwrap();
        // Read at once, and read again on the device; the same tensor twice.
        let read = batch.run(&[double, abs, double]).unwrap();
        assert_eq!(read[0].as_data().f32(), [2.0 * factor, -4.0, 6.0, 8.0, 10.0]);
        assert_eq!(read[1].as_data().f32(), [factor.abs(), 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(read[2].as_data().f32(), read[0].as_data().f32());
        assert_eq!(batch.read(double).unwrap(), read[0].as_data().f32());
        batch.execute(&[double, abs, double]).unwrap();
        let held = batch.tensor(abs).unwrap();
        assert_eq!(held.read().unwrap().as_data().f32(), read[1].as_data().f32());
        assert_eq!(batch.run(&[abs]).unwrap()[0].as_data().f32(), read[1].as_data().f32());
    }
}

#[test]
fn strangers_are_refused() {
    let Some(device) = support::device() else { return };
    let (mut one, mut other) = (GpuCommandBatch::new(device.clone()), GpuCommandBatch::new(device.clone()));
    let foreign = other.upload(&[1.0], &[1]).unwrap();
    assert!(matches!(one.relu(foreign), Err(Error::ForeignTensor { .. })));
    assert!(matches!(one.execute(&[foreign]), Err(Error::ForeignTensor { .. })));
    assert!(matches!(one.read(foreign), Err(Error::ForeignTensor { .. })));
    assert!(matches!(one.set(foreign, &[1.0]), Err(Error::ForeignTensor { .. })));
    let Some(second) = support::device() else { return };
    let tensor = second.upload(&Operand::vector(&[1.0])).unwrap();
    assert!(matches!(one.import(&tensor), Err(Error::Unavailable { .. })));
    assert!(matches!(device.run(&Elementwise::relu().into(), &[&tensor]), Err(Error::Unavailable { .. })));
}

#[test]
fn wrong_lengths_and_types_are_typed_errors() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    assert!(matches!(batch.upload(&[1.0, 2.0], &[3]), Err(Error::Length { .. })));
    let x = batch.upload(&[1.0, 2.0], &[2]).unwrap();
    let y = batch.upload(&[1.0, 2.0, 3.0], &[3]).unwrap();
    assert!(matches!(batch.add(x, y), Err(Error::Shape { .. })));
    assert!(matches!(batch.set(x, &[1.0]), Err(Error::Length { .. })));
    let z = batch.relu(x).unwrap();
    assert!(matches!(batch.set(z, &[1.0, 2.0]), Err(Error::Parameter { .. })));
    let indices = batch.upload_indices(&[1, 2], &[2]).unwrap();
    assert!(matches!(batch.read(indices), Err(Error::Type { .. })));
    assert!(matches!(batch.add(x, indices), Err(Error::Type { .. })));
    let mut short = [0.0; 2];
    assert!(matches!(batch.run_into(&[y], &mut [DataMut::F32(&mut short)]), Err(Error::Length { .. })));
    assert!(matches!(batch.run_into(&[z], &mut []), Err(Error::Arity { .. })));
    assert!(matches!(batch.run_into(&[z], &mut [DataMut::U32(&mut [0; 2])]), Err(Error::Type { .. })));
    batch.run_into(&[z], &mut [DataMut::F32(&mut short)]).unwrap();
    assert_eq!(short, [1.0, 2.0]);
    let backend = GpuBackend::on(device);
    assert!(matches!(backend.relu_into(&[1.0, 2.0, 3.0], &mut short), Err(Error::Length { .. } | Error::Shape { .. })));
}

#[test]
fn empty_tensors_give_empty_results() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    assert_eq!(backend.relu(&[]).unwrap(), [0.0; 0]);
    let mut batch = GpuCommandBatch::new(device);
    let x = batch.upload(&[], &[0, 5]).unwrap();
    let y = batch.relu(x).unwrap();
    assert!(batch.run(&[y]).unwrap()[0].as_data().f32().is_empty());
    assert!(batch.run(&[]).unwrap().is_empty());
    batch.execute_all().unwrap();
}

#[test]
fn sizes_past_one_dimension_of_workgroups_and_past_one_binding_run() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    // 65 536 groups of 256 invocations of four elements, and a few more: 256 MiB, beyond the binding size of some
    // devices.
    let n = 65_536 * 256 * 4 + 5;
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let y = backend.scale(&x, 2.0).unwrap();
    assert!(y.iter().zip(&x).all(|(y, x)| *y == 2.0 * x));
}

#[test]
fn futures_work_without_waiting_on_this_thread() {
    let Some(device) = support::device() else { return };
    let done = kiln_wgpu::runtime::block_on(async {
        let mut batch = GpuCommandBatch::new(device);
        let x = batch.upload_operand_async(&Operand::vector(&[1.0, 4.0])).await?;
        let y = batch.sqrt(x)?;
        batch.execute_all_async().await?;
        let first = batch.read_buffer_async(y).await?;
        batch.set_data_async(x, Data::F32(&[9.0, 16.0])).await?;
        let second = batch.run_async(&[y]).await?;
        Ok::<_, Error>((first.as_data().f32().to_vec(), second[0].as_data().f32().to_vec()))
    });
    assert_eq!(done.unwrap(), (vec![1.0, 2.0], vec![3.0, 4.0]));
}
