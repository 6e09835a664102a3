//! States: memory that executions of batches change.

use kiln_device::State;
use kiln_ir::graph::TensorId;
use kiln_ir::op::WriteRows;
use kiln_ir::{Buffer, DType, Data, Error, Operand, QuantFormat, Record, Shape, TensorType};

use crate::support::{Batch, HostDevice, HostOptions, device, numbers};

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::of(dtype, Shape::new(dims).unwrap()).unwrap()
}

/// A batch that writes one row of three to a state and adds up its rows: the new row, its position, and the sums.
fn sums(device: &HostDevice, state: &State<HostDevice>) -> (Batch, [TensorId; 2], TensorId) {
    let mut batch = Batch::new(device.clone());
    let held = batch.state(state).unwrap();
    let row = batch.upload(&[1.0, 2.0, 3.0], &[1, 3]).unwrap();
    let at = batch.upload_indices(&[0], &[1]).unwrap();
    let written = batch.write_rows(held, row, at).unwrap();
    let out = batch.sum_axis(written, 0).unwrap();
    (batch, [row, at], out)
}

#[test]
fn each_execution_finds_what_the_one_before_left_and_makes_nothing_anew() {
    let device = device();
    let state = State::zeros(&device, ty(DType::F32, &[5, 3])).unwrap();
    let (mut batch, [row, at], out) = sums(&device, &state);
    batch.execute(&[out]).unwrap();
    let (before, compiled) = (device.statistics(), device.compilations());
    for i in 1..5u32 {
        batch.set(row, &[i as f32; 3]).unwrap();
        batch.set_data(at, Data::U32(&[i])).unwrap();
        batch.execute(&[out]).unwrap();
        let more = (1..=i).sum::<u32>() as f32;
        assert_eq!(batch.read(out).unwrap(), [1.0 + more, 2.0 + more, 3.0 + more]);
    }
    // Only positions and rows are uploaded.
    let did = device.statistics() - before;
    assert_eq!((did.made(), device.compilations(), did.uploads, did.uploaded_bytes), (0, compiled, 8, 4 * 16));
    let rows: Vec<f32> = [1.0, 2.0, 3.0].into_iter().chain((1..5).flat_map(|i| [i as f32; 3])).collect();
    assert_eq!(state.read().unwrap(), Buffer::F32(rows));
}

#[test]
fn batches_share_a_state_and_run_one_after_another() {
    let device = device();
    let state = State::upload(&device, &Operand::f32(&numbers(15), &[5, 3]).unwrap()).unwrap();
    let (mut first, [row, _], _) = sums(&device, &state);
    let (mut second, [_, at], out) = sums(&device, &state);
    first.set(row, &[7.0, 8.0, 9.0]).unwrap();
    // Nothing is wanted, but the write runs nevertheless.
    first.execute(&[]).unwrap();
    second.set_data(at, Data::U32(&[WriteRows::SKIPPED])).unwrap();
    second.execute(&[out]).unwrap();
    let mut expected = numbers(15);
    expected[..3].copy_from_slice(&[7.0, 8.0, 9.0]);
    assert_eq!(state.read().unwrap(), Buffer::F32(expected.clone()));
    let sums: Vec<f32> = (0..3).map(|c| expected.iter().skip(c).step_by(3).sum()).collect();
    assert_eq!(second.read(out).unwrap(), sums);
    state.set(Data::F32(&[0.5; 15])).unwrap();
    second.execute(&[out]).unwrap();
    assert_eq!(second.read(out).unwrap(), [2.5; 3]);
    assert!(matches!(state.set(Data::F32(&[0.5; 14])), Err(Error::Length { .. })));
    assert!(matches!(state.set(Data::U32(&[0; 15])), Err(Error::Type { .. })));
}

#[test]
fn a_position_out_of_range_is_an_error_and_nothing_is_written() {
    for suspends in [false, true] {
        let device = HostDevice::new(HostOptions { suspends, ..HostOptions::default() });
        let state = State::zeros(&device, ty(DType::F32, &[5, 3])).unwrap();
        let (mut batch, [_, at], out) = sums(&device, &state);
        for bad in [5, u32::MAX - 1] {
            batch.set_data(at, Data::U32(&[bad])).unwrap();
            let error = Error::Index { op: "write_rows", position: 0, index: bad as usize, bound: 5 };
            assert_eq!(batch.execute(&[out]), Err(error));
            assert_eq!(state.read().unwrap(), Buffer::F32(vec![0.0; 15]));
        }
        batch.set_data(at, Data::U32(&[4])).unwrap();
        batch.execute(&[out]).unwrap();
        assert_eq!(batch.read(out).unwrap(), [1.0, 2.0, 3.0]);
    }
}

#[test]
fn a_batch_reads_its_state_as_it_is_and_gives_its_memory_to_nobody() {
    let device = device();
    let state = State::zeros(&device, ty(DType::F32, &[2, 3])).unwrap();
    let mut batch = Batch::new(device.clone());
    let held = batch.state(&state).unwrap();
    let row = batch.upload(&[1.0, 2.0, 3.0], &[1, 3]).unwrap();
    let at = batch.upload_indices(&[1], &[1]).unwrap();
    let before = batch.scale(held, 10.0).unwrap();
    let written = batch.write_rows(held, row, at).unwrap();
    let flat = batch.reshape(written, &[6]).unwrap();
    for step in 0..2 {
        batch.execute(&[before, flat, written]).unwrap();
        let row = [1.0, 2.0, 3.0].map(|x| x * 10.0 * step as f32);
        assert_eq!(batch.read(before).unwrap()[3..], row, "read before it was written to");
        for version in [held, written, flat] {
            assert_eq!(batch.read(version).unwrap(), [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
        }
    }
    for version in [held, written, flat] {
        assert!(matches!(batch.tensor(version), Err(Error::Parameter { .. })));
    }
    assert!(matches!(batch.execute(&[held]), Err(Error::Parameter { .. })), "a version that was replaced");
    // Writes that are recorded later run with the tensors that were wanted before.
    let next = batch.upload_indices(&[0], &[1]).unwrap();
    batch.write_rows(written, row, next).unwrap();
    batch.execute(&[before]).unwrap();
    assert_eq!(state.read().unwrap(), Buffer::F32([[1.0, 2.0, 3.0]; 2].concat()));
}

#[test]
fn rows_are_stored_as_the_state_is() {
    let device = device();
    let rows = numbers(64);
    for dtype in [DType::F16, DType::Bf16, DType::Blocks(QuantFormat::Q8_0)] {
        let state = State::zeros(&device, ty(dtype, &[3, 32])).unwrap();
        let mut batch = Batch::new(device.clone());
        let held = batch.state(&state).unwrap();
        let new = batch.upload(&rows, &[2, 32]).unwrap();
        let at = batch.upload_indices(&[2, 0], &[2]).unwrap();
        batch.write_rows(held, new, at).unwrap();
        batch.execute(&[]).unwrap();
        let stored = WriteRows::stored(Data::F32(&rows), dtype).unwrap();
        let row = stored.as_data().bytes() / 2;
        let read = state.read().unwrap();
        assert_eq!(read.as_data().as_bytes()[2 * row..], stored.as_data().as_bytes()[..row], "{dtype}");
        assert_eq!(read.as_data().as_bytes()[..row], stored.as_data().as_bytes()[row..], "{dtype}");
    }
}

#[test]
fn a_state_of_another_or_a_lost_device_is_refused() {
    let (device, other) = (device(), HostDevice::named("other", HostOptions::default()));
    let state = State::zeros(&other, ty(DType::F32, &[5, 3])).unwrap();
    assert!(matches!(Batch::new(device).state(&state), Err(Error::Unavailable { .. })));
    let (mut batch, _, out) = sums(&other, &state);
    other.lose();
    assert!(matches!(batch.execute(&[out]), Err(Error::DeviceLost { .. })));
    assert!(matches!(state.read(), Err(Error::DeviceLost { .. })));
    assert!(matches!(state.set(Data::F32(&[0.0; 15])), Err(Error::DeviceLost { .. })));
    assert!(matches!(State::zeros(&other, ty(DType::F32, &[1])), Err(Error::DeviceLost { .. })));
}

#[test]
fn a_state_larger_than_memory_is_an_error_and_returns_what_it_took() {
    let device = device();
    device.limit_memory(1 << 20);
    assert!(matches!(State::zeros(&device, ty(DType::F32, &[1 << 20])), Err(Error::OutOfMemory { .. })));
    let state = State::zeros(&device, ty(DType::F32, &[100])).unwrap();
    assert_eq!(state.read().unwrap(), Buffer::F32(vec![0.0; 100]));
}
