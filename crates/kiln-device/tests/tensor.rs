//! Tensors in device memory: views, copies, reading, and operations on them.

use kiln_ir::op::{Elementwise, Matmul, Op, TopK};
use kiln_ir::{Buffer, Error, Operand, QuantFormat, f16};

use crate::support::{HostDevice, HostOptions, device, elements, numbers, poll_times, upload};

fn aligned_to(view_alignment: u64) -> HostDevice {
    HostDevice::new(HostOptions { view_alignment, ..HostOptions::default() })
}

#[test]
fn what_is_uploaded_is_read() {
    let device = device();
    let halves: Vec<f16> = numbers(5).into_iter().map(f16::from_f32).collect();
    let blocks: Vec<u8> = (0..QuantFormat::Q8_0.block_bytes() as u8).collect();
    for operand in [
        Operand::f32(&numbers(6), &[2, 3]).unwrap(),
        Operand::elements(&halves, &[5]).unwrap(),
        Operand::elements(&[1u32, u32::MAX], &[2]).unwrap(),
        Operand::blocks(&blocks, &[1, 32], QuantFormat::Q8_0).unwrap(),
        Operand::f32(&[], &[0, 3]).unwrap(),
        Operand::f32(&[1.5], &[]).unwrap(),
    ] {
        let tensor = device.upload(&operand).unwrap();
        assert_eq!((tensor.ty(), tensor.shape()), (operand.ty(), operand.shape()));
        assert_eq!(tensor.read().unwrap(), operand.data().to_buffer().unwrap());
    }
}

#[test]
fn slices_are_views_where_they_are_aligned_and_copies_elsewhere() {
    // Alignments below that of vectors are raised to it.
    for (alignment, views) in [(1, true), (4, true), (16, true), (32, false), (256, false)] {
        let device = aligned_to(alignment);
        let data = numbers(24);
        let tensor = upload(&device, &data, &[6, 4]).unwrap();
        for (range, is_view) in [(0..6, true), (0..2, true), (1..3, views), (5..6, views), (2..6, alignment <= 32)] {
            let allocations = device.allocations();
            let slice = tensor.slice(range.clone()).unwrap();
            assert_eq!(slice.shape().dims(), [range.len(), 4]);
            assert_eq!(elements(&slice), data[4 * range.start..4 * range.end], "{range:?} at {alignment}");
            assert_eq!(device.allocations() == allocations, is_view, "{range:?} at {alignment}");
            // A kernel reads the view at its offset.
            let negated = device.run(&Op::from(Elementwise::neg()), &[&slice]).unwrap();
            assert_eq!(elements(&negated[0])[0], -data[4 * range.start]);
            drop((slice, negated));
            // So that a copy allocates new memory.
            device.trim();
        }
    }
}

#[test]
fn slices_that_begin_within_a_vector_are_copied() {
    let device = device();
    let data = numbers(21);
    let tensor = upload(&device, &data, &[7, 3]).unwrap();
    for start in 0..7 {
        for end in start..=7 {
            let slice = tensor.slice(start..end).unwrap();
            assert_eq!(elements(&slice), data[3 * start..3 * end]);
            // Slices of views and of copies.
            for inner in 0..end - start {
                let part = slice.slice(inner..end - start).unwrap();
                assert_eq!(elements(&part), data[3 * (start + inner)..3 * end]);
            }
        }
    }
}

#[test]
fn slices_that_begin_within_a_word_are_copied_by_a_kernel() {
    let device = device();
    let halves: Vec<f16> = numbers(12).into_iter().map(f16::from_f32).collect();
    let tensor = device.upload(&Operand::elements(&halves, &[4, 3]).unwrap()).unwrap();
    assert_eq!(tensor.slice(2..4).unwrap().read().unwrap(), Buffer::F16(halves[6..].to_vec()));
    let odd = tensor.slice(1..4).unwrap();
    assert_eq!((odd.shape().dims(), odd.read().unwrap()), (&[3, 3][..], Buffer::F16(halves[3..].to_vec())));
    assert_eq!(odd.slice(1..2).unwrap().read().unwrap(), Buffer::F16(halves[6..9].to_vec()));
    assert!(tensor.slice(1..1).unwrap().read().unwrap().as_data().f16().is_empty(), "nothing is copied");

    let format = QuantFormat::Q8_0;
    let bytes: Vec<u8> = (0..4 * format.block_bytes()).map(|i| i as u8).collect();
    let blocks = device.upload(&Operand::blocks(&bytes, &[4, 32], format).unwrap()).unwrap();
    assert_eq!(blocks.slice(2..3).unwrap().read().unwrap().as_data().blocks(), &bytes[2 * 34..3 * 34]);
    assert_eq!(blocks.slice(1..3).unwrap().read().unwrap().as_data().blocks(), &bytes[34..3 * 34]);
    let row = blocks.reshape(&[128]).unwrap();
    assert!(matches!(row.slice(0..33), Err(Error::Format { .. })), "blocks would be cut");
}

#[test]
fn slices_past_the_end_are_refused() {
    let device = device();
    let tensor = upload(&device, &numbers(6), &[3, 2]).unwrap();
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..4, 3..4, 4..4, 2..1, usize::MAX..usize::MAX, 0..usize::MAX] {
        assert!(matches!(tensor.slice(range.clone()), Err(Error::View { .. })), "{range:?}");
    }
    assert!(elements(&tensor.slice(3..3).unwrap()).is_empty());
    let scalar = upload(&device, &[1.0], &[]).unwrap();
    assert!(matches!(scalar.slice(0..1), Err(Error::View { .. })), "a scalar has no axis");
    let empty = upload(&device, &[], &[0, 2]).unwrap();
    assert!(elements(&empty.slice(0..0).unwrap()).is_empty() && empty.slice(0..1).is_err());
    let narrow = upload(&device, &[], &[3, 0]).unwrap();
    assert_eq!(narrow.slice(1..3).unwrap().shape().dims(), [2, 0]);
}

#[test]
fn views_keep_the_memory() {
    let device = device();
    let tensor = upload(&device, &numbers(64), &[64]).unwrap();
    let view = tensor.slice(16..32).unwrap();
    let clone = view.clone();
    drop((tensor, view));
    assert_eq!(device.memory_use().live, 256);
    assert_eq!(elements(&clone), numbers(64)[16..32]);
    drop(clone);
    assert_eq!(device.memory_use().live, 0);
}

#[test]
fn reshaping_keeps_elements_and_memory() {
    let device = device();
    let tensor = upload(&device, &numbers(12), &[3, 4]).unwrap();
    let live = device.memory_use().live;
    let other = tensor.reshape(&[2, 3, 2]).unwrap();
    assert_eq!((other.shape().dims(), device.memory_use().live), (&[2, 3, 2][..], live));
    assert_eq!(elements(&other), numbers(12));
    assert_eq!(elements(&other.slice(1..2).unwrap()), numbers(12)[6..]);
    for dims in [&[3, 3][..], &[], &[0]] {
        assert!(matches!(tensor.reshape(dims), Err(Error::Shape { .. })), "{dims:?}");
    }
    assert!(matches!(tensor.reshape(&[usize::MAX, 2]), Err(Error::Overflow { .. })));
    let blocks = vec![0; 2 * QuantFormat::Q8_0.block_bytes()];
    let blocks = device.upload(&Operand::blocks(&blocks, &[2, 32], QuantFormat::Q8_0).unwrap()).unwrap();
    assert!(blocks.reshape(&[64]).is_ok() && matches!(blocks.reshape(&[4, 16]), Err(Error::Format { .. })));
}

#[test]
fn operations_run_on_tensors_and_prepared_ones_run_again() {
    let device = HostDevice::new(HostOptions { profiles: true, ..HostOptions::default() });
    let x = upload(&device, &[3.0, 1.0, 2.0, 6.0, 5.0, 4.0], &[2, 3]).unwrap();
    let found = device.run(&Op::from(TopK { k: 2 }), &[&x]).unwrap();
    assert_eq!(elements(&found[0]), [3.0, 2.0, 6.0, 5.0]);
    assert_eq!(found[1].read().unwrap(), Buffer::U32(vec![0, 2, 0, 1]));

    let product = Op::from(Matmul { transpose_b: true, ..Matmul::default() });
    let mut prepared = device.prepare(&product, &[&x, &x]).unwrap();
    assert!(matches!(prepared.profile(), Err(Error::Parameter { .. })), "it has not run");
    prepared.run().unwrap();
    let result = prepared.results().remove(0);
    assert_eq!(elements(&result), [14.0, 31.0, 31.0, 77.0]);
    let before = device.statistics();
    prepared.run().unwrap();
    prepared.repeat(3).unwrap();
    prepared.repeat(0).unwrap();
    device.finish().unwrap();
    let done = device.statistics() - before;
    assert_eq!((done.submissions, done.dispatches, done.made()), (4, 4, 0));
    assert_eq!(prepared.profile().unwrap().kernels[0].name, "matmul");
    // Results outlive the executable that made them.
    drop(prepared);
    assert_eq!(elements(&result), [14.0, 31.0, 31.0, 77.0]);
}

#[test]
fn tensors_of_another_device_are_refused() {
    let options = HostOptions::default;
    let (here, there) = (HostDevice::named("here", options()), HostDevice::named("there", options()));
    let tensor = upload(&there, &numbers(2), &[2]).unwrap();
    let refused = |result: Result<(), Error>| {
        let Err(Error::Unavailable { what, reason }) = result else { panic!("{result:?}") };
        assert!(what.contains("there") && reason.contains("here"), "{what}: {reason}");
    };
    refused(tensor.check_on(&here));
    refused(here.run(&Op::from(Elementwise::neg()), &[&tensor]).map(drop));
    refused(here.prepare(&Op::from(Elementwise::neg()), &[&tensor]).map(drop));
    tensor.check_on(&there.clone()).unwrap();
}

#[test]
fn wrong_operands_are_refused() {
    let device = device();
    let (x, y) = (upload(&device, &numbers(6), &[2, 3]).unwrap(), upload(&device, &numbers(4), &[2, 2]).unwrap());
    assert!(matches!(device.run(&Op::from(Matmul::default()), &[&x, &x]), Err(Error::Shape { .. })));
    assert!(matches!(device.run(&Op::from(Elementwise::add()), &[&x, &y]), Err(Error::Shape { .. })));
    assert!(matches!(device.run(&Op::from(Elementwise::add()), &[&x]), Err(Error::Arity { .. })));
    assert!(matches!(device.prepare(&Op::from(Elementwise::add()), &[]), Err(Error::Arity { .. })));
}

#[test]
fn futures_may_be_dropped_at_every_poll() {
    let device = HostDevice::new(HostOptions { suspends: true, ..HostOptions::default() });
    let tensor = upload(&device, &numbers(6), &[2, 3]).unwrap();
    let live = device.memory_use().live;
    let op = Op::from(Elementwise::neg());
    for polls in 0..6 {
        let operand = Operand::vector(&[1.0; 8]);
        let _ = poll_times(device.upload_async(&operand), polls);
        let _ = poll_times(tensor.slice_async(1..2), polls);
        let _ = poll_times(tensor.read_async(), polls);
        let _ = poll_times(device.run_async(&op, &[&tensor]), polls);
        let _ = poll_times(device.prepare_async(&op, &[&tensor]), polls);
        let _ = poll_times(device.finish_async(), polls);
        assert_eq!((device.memory_use().live, elements(&tensor)), (live, numbers(6)));
    }
    let read = kiln_device::waiting::block_on(async { tensor.slice_async(1..2).await?.read_async().await });
    assert_eq!(read.unwrap(), Buffer::F32(numbers(6)[3..].to_vec()));
}
