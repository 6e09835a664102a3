//! Uploads: in order with submissions, and through reused buffers.

mod support;

use std::sync::{Barrier, Mutex};

use kiln_ir::op::Elementwise;
use kiln_ir::{Data, Operand, Operations, QuantFormat, Record, Shape};
use kiln_wgpu::{GpuBackend, GpuCommandBatch};

#[test]
fn repeated_uploads_make_no_buffers() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    for n in [1, 1000, 1 << 18] {
        let x = vec![1.5; n];
        // Not an element-wise function, because the host writes their operands in place without copies.
        let run = || assert_eq!(backend.transpose(&x, n, 1).unwrap(), x);
        let before = device.statistics();
        run();
        let first = device.statistics() - before;
        assert!(first.upload_buffers <= 1 && first.uploaded_bytes == 4 * n as u64, "{n} elements: {first}");
        run();
        let before = device.statistics();
        (0..5).for_each(|_| run());
        let did = device.statistics() - before;
        assert_eq!((did.uploads, did.made(), did.submissions), (5, 0, 5), "{n} elements: {did}");
    }
    // Each size used a buffer of its own.
    assert!(device.statistics().upload_buffers >= 2, "{}", device.statistics());
}

#[test]
fn many_small_uploads_share_buffers_and_keep_their_order() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let before = device.statistics();
    // The last of several writes to one tensor wins, and each tensor keeps its own.
    let ids: Vec<_> = (0..200).map(|i| batch.upload(&[i as f32; 7], &[7]).unwrap()).collect();
    for round in 0..5 {
        for (i, &id) in ids.iter().enumerate() {
            batch.set(id, &[(1000 * round + i) as f32; 7]).unwrap();
        }
    }
    let did = device.statistics() - before;
    assert!(did.uploads == 1200 && did.upload_buffers <= 2 && did.submissions == 0, "{did}");
    let doubled: Vec<_> = ids.iter().map(|&id| batch.scale(id, 2.0).unwrap()).collect();
    for (i, result) in batch.run(&doubled).unwrap().iter().enumerate() {
        assert_eq!(result.as_data().f32(), [2.0 * (4000 + i) as f32; 7]);
    }
}

#[test]
fn what_was_submitted_before_an_upload_sees_what_was_there_before() {
    let Some(device) = support::device() else { return };
    let n = 1 << 18;
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&vec![0.0; n], &[n]).unwrap();
    let y = batch.scale(x, 1.0).unwrap();
    let mut held = Vec::new();
    for round in 0..12 {
        batch.set(x, &vec![round as f32; n]).unwrap();
        batch.execute(&[y]).unwrap();
        held.push(batch.tensor(y).unwrap());
    }
    for (round, tensor) in held.iter().enumerate() {
        assert_eq!(tensor.read().unwrap().as_data().f32(), vec![round as f32; n]);
    }
}

#[test]
fn uploads_of_every_size_arrive() {
    let Some(device) = support::device() else { return };
    // Small, at and beyond the minimum size of a buffer, at and beyond a part of a large upload, and more parts than
    // may be in flight, each into memory that another upload used before.
    for n in [0, 1, 3, 65_535, 65_536, 65_537, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (15 << 20) + 1, 5] {
        let host: Vec<f32> = (0..n).map(|i| (i % 8191) as f32).collect();
        let earlier = device.upload(&Operand::f32(&vec![-1.0; n], &[n]).unwrap()).unwrap();
        drop(earlier);
        let x = device.upload(&Operand::f32(&host, &[n]).unwrap()).unwrap();
        let same = x.read().unwrap().as_data().f32() == host;
        assert!(same, "{n} elements");
    }
    // Not whole words.
    let blocks: Vec<u8> = (0..34).collect();
    let operand = Operand::new(Data::Blocks(QuantFormat::Q8_0, &blocks), Shape::new(&[32]).unwrap()).unwrap();
    assert_eq!(device.upload(&operand).unwrap().read().unwrap().as_data().blocks(), blocks);
}

#[test]
fn parts_of_large_uploads_take_turns_on_their_buffers() {
    let Some(device) = support::device() else { return };
    // Parts have 8 MiB, and six parts of an upload may be in flight: those of one upload, and of the one before it.
    let host: Vec<f32> = (0..15 << 20).map(|i| (i % 8191) as f32).collect();
    let before = device.statistics();
    for _ in 0..5 {
        let x = device.upload(&Operand::vector(&host)).unwrap();
        assert!(x.read().unwrap().as_data().f32() == host);
    }
    let did = device.statistics() - before;
    assert!((1..=13).contains(&did.upload_buffers), "{did}");
}

#[test]
fn operands_that_are_written_together_keep_their_places() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    // Below, at and above the size that is copied at a time, and enough for several threads.
    for n in [1, 1000, 65_536, 65_537, 300_001, 1 << 20] {
        let a: Vec<f32> = (0..n).map(|i| (i % 8191) as f32).collect();
        let b: Vec<f32> = (0..n).map(|i| -((i % 127) as f32)).collect();
        let sum = backend.add(&a, &b).unwrap();
        assert!(sum.iter().zip(a.iter().zip(&b)).all(|(sum, (a, b))| *sum == a + b), "{n} elements");
    }
}

#[test]
fn copies_wait_for_no_work_of_others() {
    let Some(device) = support::device() else { return };
    let x: Vec<f32> = (0..1 << 20).map(|i| (i % 8191) as f32).collect();
    let copied = || {
        let y = device.upload(&Operand::vector(&x)).unwrap().read().unwrap();
        assert!(y.as_data().f32() == x);
    };
    // While every thread of the pool waits for a lock that this one holds.
    let (held, waiting) = (Mutex::new(()), Barrier::new(rayon_core::current_num_threads() + 1));
    rayon_core::in_place_scope(|scope| {
        let guard = held.lock().unwrap();
        for _ in 0..rayon_core::current_num_threads() {
            scope.spawn(|_| {
                waiting.wait();
                drop(held.lock().unwrap());
            });
        }
        waiting.wait();
        copied();
        drop(guard);
    });
    // From all threads of the pool at once.
    rayon_core::scope(|scope| (0..16).for_each(|_| scope.spawn(|_| copied())));
}

#[test]
fn threads_upload_at_the_same_time() {
    let Some(device) = support::device() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = device.clone();
            scope.spawn(move || {
                for round in 0..30 {
                    let value = (100 * thread + round) as f32;
                    let n = 1000 * (1 + round % 3);
                    let x = device.upload(&Operand::f32(&vec![value; n], &[n]).unwrap()).unwrap();
                    let y = device.run(&Elementwise::scale(2.0).into(), &[&x]).unwrap().remove(0);
                    assert_eq!(y.read().unwrap().as_data().f32(), vec![2.0 * value; n]);
                }
            });
        }
    });
    // Uploads complete even if nothing follows, and returned memory is allocated anew.
    let x = device.upload(&Operand::f32(&[1.0, 2.0], &[2]).unwrap()).unwrap();
    device.finish().unwrap();
    device.trim();
    assert_eq!(x.read().unwrap().as_data().f32(), [1.0, 2.0]);
}
