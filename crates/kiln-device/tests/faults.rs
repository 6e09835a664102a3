//! What goes wrong on a device: indices outside of their table, refused kernels, and the loss of the device.

use kiln_device::waiting::block_on;
use kiln_device::{Backend, MatmulCache, State};
use kiln_ir::graph::TensorId;
use kiln_ir::op::{Attention, AttentionOperands, Elementwise, Gather, Op};
use kiln_ir::{Buffer, Data, Error, Operand, Operations, Record, Result, Shape, TensorType};

use crate::support::{Batch, HostDevice, HostOptions, device, elements, numbers, poll_times, upload};

fn index_error(position: usize, index: usize, bound: usize) -> Error {
    Error::Index { op: "gather", position, index, bound }
}

/// Rows of a table of 3 rows, and rows of those: the batch, its two lists of indices, and its result.
fn lookups(device: &HostDevice) -> (Batch, [TensorId; 2], TensorId) {
    let mut batch = Batch::new(device.clone());
    let table = batch.upload(&numbers(12), &[3, 4]).unwrap();
    let first = batch.upload_indices(&[0, 2, 1, 2], &[4]).unwrap();
    let second = batch.upload_indices(&[3, 0], &[2]).unwrap();
    let rows = batch.gather(table, first).unwrap();
    let out = batch.gather(rows, second).unwrap();
    (batch, [first, second], out)
}

#[test]
fn the_first_index_outside_of_its_table_is_reported() {
    let device = device();
    let (mut batch, [first, second], out) = lookups(&device);
    let expected = [&numbers(12)[8..12], &numbers(12)[..4]].concat();
    for (a, b, fault) in [
        ([0, 2, 1, 2], [3, 0], None),
        ([0, 3, 1, 9], [3, 0], Some(index_error(1, 3, 3))),
        ([0, 2, 1, 2], [3, 4], Some(index_error(1, 4, 4))),
        // The fault of the operation that runs first is reported.
        ([0, 2, 1, u32::MAX], [7, 0], Some(index_error(3, u32::MAX as usize, 3))),
        // The words are reset for each execution.
        ([0, 2, 1, 2], [3, 0], None),
    ] {
        batch.set_data(first, Data::U32(&a)).unwrap();
        batch.set_data(second, Data::U32(&b)).unwrap();
        assert_eq!(batch.execute(&[out]).err(), fault);
        assert_eq!(batch.run(&[out]).err(), fault);
        match fault {
            None => assert_eq!(batch.read(out).unwrap(), expected),
            Some(_) => assert!(matches!(batch.read(out), Err(Error::Parameter { .. }))),
        }
    }
}

#[test]
fn faults_are_reported_wherever_an_operation_runs() {
    for (direct, suspends) in [(false, false), (false, true), (true, false)] {
        let device = HostDevice::new(HostOptions { direct, suspends, ..HostOptions::default() });
        let backend = Backend::on(device.clone());
        for _ in 0..2 {
            assert_eq!(backend.gather(&numbers(6), 2, &[0, 5]).unwrap_err(), index_error(1, 5, 3));
            assert_eq!(backend.gather(&numbers(6), 2, &[1]).unwrap(), numbers(6)[2..4]);
        }
        let (table, op) = (upload(&device, &numbers(6), &[3, 2]).unwrap(), Op::from(Gather));
        let indices = |indices: &[u32]| device.upload(&Operand::elements(indices, &[indices.len()]).unwrap()).unwrap();
        assert_eq!(device.run(&op, &[&table, &indices(&[3])]).unwrap_err(), index_error(0, 3, 3));
        let bad = indices(&[2, 8]);
        let mut prepared = device.prepare(&op, &[&table, &bad]).unwrap();
        assert_eq!(prepared.run().unwrap_err(), index_error(1, 8, 3));
        assert_eq!(block_on(prepared.run_async()).unwrap_err(), index_error(1, 8, 3));
        prepared.repeat(2).unwrap();
        // A table without rows, and no indices.
        assert_eq!(backend.gather(&[], 2, &[0]).unwrap_err(), index_error(0, 0, 0));
        assert!(backend.gather(&[], 2, &[]).unwrap().is_empty());
    }
}

#[test]
fn lengths_of_more_keys_than_there_are_are_faults() {
    let backend = Backend::on(device());
    let q = numbers(2 * 4);
    let kv = numbers(2 * 3 * 4);
    let q = Operand::f32(&q, &[2, 1, 1, 4]).unwrap();
    let kv = Operand::f32(&kv, &[2, 1, 3, 4]).unwrap();
    let attend = |lengths: &[u32]| {
        let lengths = Some(Operand::elements(lengths, &[lengths.len()]).unwrap());
        let more = AttentionOperands { lengths, ..AttentionOperands::default() };
        backend.attention_with(q, kv, kv, more, Attention::full())
    };
    let error = Error::Index { op: "attention", position: 1, index: 4, bound: 4 };
    assert_eq!(attend(&[3, 4]).unwrap_err(), error);
    let all = attend(&[3, 3]).unwrap();
    // No key is visible; one length serves both sequences.
    assert_eq!(attend(&[3, 0]).unwrap(), [&all[..4], &[0.0; 4]].concat());
    assert_eq!(attend(&[0]).unwrap(), [0.0; 8]);
}

#[test]
fn attention_of_a_batch_runs_again_with_other_lengths() {
    let (q, kv) = (numbers(4), numbers(3 * 4));
    let backend = Backend::on(device());
    let mut batch = Batch::new(device());
    let (query, keys) = (batch.upload(&q, &[1, 1, 4]).unwrap(), batch.upload(&kv, &[1, 3, 4]).unwrap());
    let lengths = batch.upload_indices(&[3], &[1]).unwrap();
    let more = AttentionOperands { lengths: Some(lengths), ..AttentionOperands::default() };
    let out = batch.attention_with(query, keys, keys, more, Attention::full()).unwrap();
    for length in [3, 1, 2, 0] {
        batch.set_data(lengths, Data::U32(&[length as u32])).unwrap();
        batch.run(&[out]).unwrap();
        let kv = &kv[..4 * length];
        let expected = backend.attention(&q, &[1, 1, 4], kv, kv, &[1, length, 4], Attention::full()).unwrap();
        assert_eq!(batch.read(out).unwrap(), expected);
    }
}

#[test]
fn a_refused_kernel_is_an_error_of_the_driver() {
    let device = device();
    let mut batch = Batch::new(device.clone());
    let x = batch.upload(&numbers(4), &[2, 2]).unwrap();
    let (product, across) = (batch.matmul(x, x).unwrap(), batch.transpose(x).unwrap());
    batch.execute(&[across]).unwrap();
    let live = device.memory_use().live;
    device.refuse(Some("matmul"));
    for _ in 0..2 {
        let refused = batch.execute(&[product]);
        assert!(matches!(&refused, Err(Error::Driver { what, .. }) if what == "compiling matmul"), "{refused:?}");
        assert_eq!(device.memory_use().live, live);
        batch.execute(&[across]).unwrap();
    }
    let backend = Backend::on(device.clone());
    assert!(matches!(backend.matmul(&[1.0; 4], &[1.0; 4], 2, 2, 2), Err(Error::Driver { .. })));
    let ty = Operand::f32(&numbers(4), &[2, 2]).unwrap().ty();
    let ahead = device.compile_ahead(&[(Op::from(kiln_ir::op::Matmul::default()), &[ty, ty])]);
    assert!(matches!(ahead, Err(Error::Driver { .. })));
    device.refuse(None);
    batch.execute(&[product]).unwrap();
    // Compiled kernels are not compiled again.
    device.refuse(Some("matmul"));
    assert_eq!(backend.matmul(&[1.0; 4], &[1.0; 4], 2, 2, 2).unwrap(), [2.0; 4]);
}

#[test]
fn an_operation_without_a_kernel_is_unsupported() {
    let device = HostDevice::new(HostOptions { unsupported: Some("transpose"), ..HostOptions::default() });
    let mut batch = Batch::new(device);
    let x = batch.upload(&numbers(4), &[2, 2]).unwrap();
    let (sum, across) = (batch.add(x, x).unwrap(), batch.transpose(x).unwrap());
    assert_eq!(batch.execute(&[sum, across]), Err(Error::Unsupported { op: "transpose", backend: "host" }));
    batch.execute(&[sum]).unwrap();
    assert_eq!(batch.read(sum).unwrap().len(), 4);
}

/// Everything that submits work, the asynchronous forms of it. Returns all that is read.
async fn everything(device: &HostDevice) -> Result<Vec<Buffer>> {
    let mut read = Vec::new();
    let weight = device.upload_async(&Operand::f32(&numbers(16), &[4, 4])?).await?;
    let state = State::zeros_async(device, TensorType::f32(Shape::new(&[3, 4])?)).await?;
    let mut batch = Batch::new(device.clone());
    let w = batch.import(&weight)?;
    let x = batch.upload_async(&numbers(8), &[2, 4]).await?;
    let indices = batch.upload_indices_async(&[1, 0], &[2]).await?;
    let product = batch.matmul(x, w)?;
    let rows = batch.gather(product, indices)?;
    let out = batch.softmax(rows)?;
    let held = batch.state(&state)?;
    let written = batch.write_rows(held, product, indices)?;
    let sums = batch.sum_axis(written, 0)?;
    batch.execute_async(&[product]).await?;
    read.push(Buffer::F32(batch.read_async(product).await?));
    batch.execute_async(&[out, product]).await?;
    batch.set_async(x, &numbers(8)).await?;
    batch.set_async(w, &numbers(16)).await?;
    read.extend(batch.run_async(&[out, x]).await?);
    // Executed again: what was prepared is replayed, with other rows in the state.
    for n in 0..2 {
        batch.set_async(x, &[n as f32; 8]).await?;
        batch.execute_async(&[sums]).await?;
        read.push(Buffer::F32(batch.read_async(sums).await?));
    }
    read.push(state.read_async().await?);
    state.set_async(Data::F32(&numbers(12))).await?;
    batch.execute_all_async().await?;
    read.push(state.read_async().await?);
    let tensor = batch.tensor(out)?;
    read.push(tensor.reshape(&[8])?.slice_async(1..5).await?.read_async().await?);
    for negated in device.run_async(&Op::from(Elementwise::neg()), &[&tensor]).await? {
        read.push(negated.read_async().await?);
    }
    let mut prepared = device.prepare_async(&Op::from(Elementwise::add()), &[&tensor, &tensor]).await?;
    prepared.run_async().await?;
    prepared.repeat_async(2).await?;
    let mut cache = MatmulCache::new(device.clone());
    cache.upload_weight_async("w", &numbers(4), 2, 2).await?;
    read.push(Buffer::F32(cache.matmul_async("w", &numbers(4)).await?));
    let backend = Backend::on(device.clone());
    read.extend(backend.run_async(&Op::from(Elementwise::neg()), &[Operand::vector(&numbers(4))]).await?);
    device.finish_async().await?;
    Ok(read)
}

/// The kinds of devices that differ in what can fail where: what reads results, what suspends, what runs operations directly, and what
/// reports a lack of memory late.
fn kinds() -> [HostOptions; 4] {
    let kind = |host_results, suspends, direct, late_errors| HostOptions {
        host_results,
        suspends,
        direct,
        late_errors,
        ..HostOptions::default()
    };
    [
        kind(false, false, false, false),
        kind(true, true, true, false),
        kind(false, false, true, true),
        kind(true, false, false, true),
    ]
}

/// Nothing is left of what was dropped.
#[track_caller]
fn assert_nothing_is_held(device: &HostDevice) {
    assert_eq!(device.memory_use().live, 0, "all of it was dropped");
    device.trim();
    assert_eq!(device.allocated(), 0);
}

#[test]
fn an_allocation_that_fails_anywhere_is_one_error_and_all_works_afterwards() {
    for options in kinds() {
        let whole = HostDevice::new(options.clone());
        let expected = block_on(everything(&whole)).unwrap();
        let allocations = whole.allocations();
        assert!(allocations > 10, "{allocations}");
        let (mut refused, mut made_room) = (0, 0);
        for lasts in [false, true] {
            for n in (0..allocations).step_by(if cfg!(miri) { 7 } else { 1 }) {
                let device = HostDevice::new(options.clone());
                device.fail_allocation(Some(n), lasts);
                match block_on(everything(&device)) {
                    // The pool or what was prepared before made room, and it was allocated after all.
                    Ok(read) => {
                        assert_eq!(read, expected, "allocation {n}");
                        made_room += 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::OutOfMemory { .. }), "allocation {n}: {error:?}");
                        refused += 1;
                    }
                }
                assert_eq!(device.memory_use().live, 0, "allocation {n}");
                device.fail_allocation(None, false);
                assert_eq!(block_on(everything(&device)).unwrap(), expected, "after allocation {n}");
                assert_nothing_is_held(&device);
            }
        }
        assert!(refused > 10, "{refused}");
        println!("{allocations} allocations: {refused} runs refused, {made_room} made room");
    }
}

/// Lets each of the events that a device counts fail in turn: each is the driver's error of this call, and all works afterwards.
fn each_fails(call: &str, count: impl Fn(&HostDevice) -> u64, fail: impl Fn(&HostDevice, Option<u64>)) {
    for options in kinds() {
        let whole = HostDevice::new(options.clone());
        let expected = block_on(everything(&whole)).unwrap();
        let events = count(&whole);
        assert!(events > 5, "{call}: {events}");
        for n in 0..events {
            let device = HostDevice::new(options.clone());
            fail(&device, Some(n));
            let error = block_on(everything(&device)).unwrap_err();
            assert!(matches!(&error, Error::Driver { what, .. } if what.starts_with(call)), "{call} {n}: {error:?}");
            assert_eq!(device.memory_use().live, 0, "{call} {n}");
            fail(&device, None);
            assert_eq!(block_on(everything(&device)).unwrap(), expected, "after {call} {n}");
            assert_nothing_is_held(&device);
        }
    }
}

#[test]
fn a_kernel_that_is_refused_anywhere_is_one_error_and_all_works_afterwards() {
    each_fails("compiling", |device| device.compilations() as u64, HostDevice::refuse_from);
}

#[test]
fn a_read_that_ends_early_anywhere_is_one_error_and_all_works_afterwards() {
    each_fails("reading", HostDevice::reads, HostDevice::fail_read);
}

#[test]
fn the_loss_of_a_device_at_any_submission_is_reported() {
    // An interpreter takes half a minute for all that is run once: there a device that suspends is lost in the middle.
    let is_run = |options: &HostOptions| !cfg!(miri) || options.suspends;
    for options in kinds().into_iter().filter(is_run) {
        let whole = HostDevice::new(options.clone());
        let expected = block_on(everything(&whole)).unwrap();
        let submissions = whole.submissions();
        assert!(submissions > 20);
        let is_tested = |&n: &u64| !cfg!(miri) || n == submissions / 2;
        for n in (0..submissions).filter(is_tested) {
            let device = HostDevice::new(options.clone());
            device.lose_at(n);
            let lost = block_on(everything(&device)).unwrap_err();
            assert!(matches!(lost, Error::DeviceLost { .. }), "{n}: {lost:?}");
            assert!(device.is_lost());
            assert_eq!(block_on(everything(&device)).unwrap_err(), lost);
            assert_nothing_is_held(&device);
        }
        if cfg!(not(miri)) {
            let device = HostDevice::new(options.clone());
            device.lose_at(submissions);
            assert_eq!(block_on(everything(&device)).unwrap(), expected);
        }
    }
}

#[test]
fn a_batch_reports_the_loss_of_its_device_again_and_again() {
    // Executing submits a program and reads the words of its faults; reading is another submission.
    for n in 0..3 {
        let device = device();
        let (mut batch, [first, _], out) = lookups(&device);
        batch.execute(&[out]).unwrap();
        let result = batch.tensor(out).unwrap();
        let imported = batch.tensor(first).unwrap();
        let view = result.slice(0..1).unwrap();
        device.lose_at(n);
        let lost = batch.execute(&[out]).and_then(|()| batch.read(out)).unwrap_err();
        assert!(matches!(&lost, Error::DeviceLost { device, .. } if device == "the test device"), "{lost:?}");
        for _ in 0..2 {
            assert_eq!(batch.execute(&[out]).unwrap_err(), lost);
            assert_eq!(batch.execute_all().unwrap_err(), lost);
            assert_eq!(batch.prepare(&[out]).unwrap_err(), lost);
            assert_eq!(batch.run(&[out]).unwrap_err(), lost);
            assert_eq!(batch.read_buffer(first).unwrap_err(), lost);
            assert_eq!(batch.set_data(first, Data::U32(&[0; 4])).unwrap_err(), lost);
            assert_eq!(batch.upload(&[1.0], &[1]).unwrap_err(), lost);
            assert_eq!(result.read().unwrap_err(), lost);
            assert_eq!(view.read().unwrap_err(), lost);
            assert_eq!(result.reshape(&[8]).unwrap().slice(1..3).unwrap_err(), lost);
            assert_eq!(device.finish().unwrap_err(), lost);
            assert_eq!(device.compile_ahead(&[]).unwrap_err(), lost);
            assert_eq!(device.run(&Op::from(Elementwise::neg()), &[&result]).unwrap_err(), lost);
            assert_eq!(Backend::on(device.clone()).neg(&[1.0]).unwrap_err(), lost);
        }
        drop((batch, result, imported, view));
        assert_eq!(device.memory_use().live, 0);
    }
}

#[test]
fn a_device_that_is_lost_while_a_future_is_pending_is_reported() {
    let options = HostOptions { suspends: true, ..HostOptions::default() };
    for polls in 0..30 {
        let device = HostDevice::new(options.clone());
        let mut future = Box::pin(everything(&device));
        assert!(poll_times(future.as_mut(), polls).is_none());
        device.lose();
        let lost = block_on(future).unwrap_err();
        assert!(matches!(lost, Error::DeviceLost { .. }), "{polls}: {lost:?}");
        assert_eq!(device.memory_use().live, 0);
    }
}

#[test]
fn futures_are_dropped_at_every_poll_of_everything() {
    let device = HostDevice::new(HostOptions { suspends: true, host_results: true, ..HostOptions::default() });
    let tensor = upload(&device, &numbers(4), &[4]).unwrap();
    let live = device.memory_use().live;
    let mut polls = 0;
    while poll_times(everything(&device), polls).is_none() {
        assert_eq!(device.memory_use().live, live, "{polls} polls");
        polls += if cfg!(miri) { 7 } else { 1 };
    }
    assert!(polls > 30, "{polls}");
    assert_eq!(elements(&tensor), numbers(4));
    drop(tensor);
    assert_nothing_is_held(&device);
}
