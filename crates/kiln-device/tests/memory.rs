//! Device memory: what is used again, what goes back, and what happens where there is too little.

use kiln_device::waiting::block_on;
use kiln_device::{Backend, MatmulCache, MemoryUse, bodies};
use kiln_ir::graph::TensorId;
use kiln_ir::op::{Custom, Elementwise, Op, Transpose};
use kiln_ir::{Buffer, Error, Operand, Operations, Record, Result};

use crate::support::{Batch, HostDevice, HostKernel, HostOptions, Twice, device, elements, numbers, upload};

/// Devices that report a lack of memory at the allocation, and those that report it afterwards.
fn both_kinds() -> [HostDevice; 2] {
    [false, true].map(|late_errors| HostDevice::new(HostOptions { late_errors, ..HostOptions::default() }))
}

fn is_out_of_memory<T: std::fmt::Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::OutOfMemory { .. })), "{result:?}");
}

/// `softmax((x + x)ᵀ)` and its sum, with slots, scratch memory and results.
fn chain(device: &HostDevice) -> (Batch, TensorId, [TensorId; 2]) {
    let mut batch = Batch::new(device.clone());
    let x = batch.upload(&numbers(64), &[8, 8]).unwrap();
    let double = batch.add(x, x).unwrap();
    let across = batch.transpose(double).unwrap();
    let soft = batch.softmax(across).unwrap();
    let total = batch.sum(soft).unwrap();
    (batch, x, [soft, total])
}

#[test]
fn a_lack_of_memory_at_any_allocation_leaves_everything_as_it_was() {
    for device in both_kinds() {
        let (mut batch, x, [soft, total]) = chain(&device);
        let before = device.memory_use();
        let mut failures = 0;
        for limit in (before.live..).step_by(if cfg!(miri) { 128 } else { 16 }) {
            device.limit_memory(limit);
            match batch.execute(&[soft, total]) {
                Ok(()) => break,
                failed => is_out_of_memory(failed),
            }
            failures += 1;
            assert_eq!(device.memory_use().live, before.live);
            assert!(batch.read(soft).is_err() && batch.tensor(total).is_err());
            assert_eq!(batch.read(x).unwrap(), numbers(64), "inputs are intact");
            let prepared = batch.prepare(&[soft]);
            assert!(prepared.is_ok() || matches!(prepared, Err(Error::OutOfMemory { .. })), "{prepared:?}");
        }
        assert!(failures > 3, "{failures}");
        let total = batch.read(total).unwrap()[0];
        assert!((total - 8.0).abs() < 1e-5, "{total}");
        drop(batch);
        device.trim();
        assert_eq!((device.memory_use(), device.allocated()), (MemoryUse::default(), 0));
    }
}

#[test]
fn other_sets_of_wanted_results_make_room() {
    for device in both_kinds() {
        let mut batch = Batch::new(device.clone());
        let x = batch.upload(&numbers(64), &[64]).unwrap();
        let results: Vec<TensorId> = (1..=3).map(|n| batch.scale(x, n as f32).unwrap()).collect();
        // The input and one result.
        device.limit_memory(512);
        for _ in 0..2 {
            for (at, &result) in results.iter().enumerate() {
                batch.execute(&[result]).unwrap();
                assert_eq!(batch.read(result).unwrap()[0], numbers(1)[0] * (at + 1) as f32);
                assert_eq!(device.memory_use().live, 512);
            }
        }
        // What others hold is not taken from them.
        let held = batch.tensor(results[2]).unwrap();
        is_out_of_memory(batch.execute(&[results[0]]));
        is_out_of_memory(batch.execute(&[results[2]]));
        assert_eq!(elements(&held)[0], numbers(1)[0] * 3.0);
        drop(held);
        batch.execute(&[results[0]]).unwrap();
        assert_eq!(batch.read(results[0]).unwrap(), numbers(64));
    }
}

#[test]
fn other_sets_stay_ready_where_there_is_room() {
    let device = device();
    let (mut batch, _, [soft, total]) = chain(&device);
    batch.execute(&[soft]).unwrap();
    batch.execute(&[total]).unwrap();
    let allocations = device.allocations();
    batch.execute(&[soft]).unwrap();
    batch.execute(&[total]).unwrap();
    assert_eq!(device.allocations(), allocations);
}

#[test]
fn uploads_slices_and_replacements_without_memory_are_refused() {
    for device in both_kinds() {
        let tensor = upload(&device, &numbers(64), &[64]).unwrap();
        let mut batch = Batch::new(device.clone());
        let x = batch.import(&tensor).unwrap();
        let y = batch.neg(x).unwrap();
        device.limit_memory(256 + 239);
        let live = device.memory_use().live;
        is_out_of_memory(upload(&device, &numbers(64), &[64]));
        is_out_of_memory(tensor.slice(1..61));
        is_out_of_memory(batch.upload(&numbers(64), &[64]));
        is_out_of_memory(batch.set(x, &numbers(64)));
        is_out_of_memory(device.run(&Op::from(Elementwise::neg()), &[&tensor]));
        is_out_of_memory(device.prepare(&Op::from(Elementwise::neg()), &[&tensor]));
        is_out_of_memory(batch.execute(&[y]));
        assert_eq!((device.memory_use().live, elements(&tensor)), (live, numbers(64)));
        assert_eq!(batch.read(x).unwrap(), numbers(64));
        // Once there is room again, all of it works: memory that was not allocated is not used again.
        device.limit_memory(1 << 20);
        let first = upload(&device, &numbers(64), &[64]).unwrap();
        assert_eq!(elements(&first), numbers(64));
        batch.set(x, &[1.0; 64]).unwrap();
        batch.execute(&[y]).unwrap();
        assert_eq!(batch.read(y).unwrap(), [-1.0; 64]);
        assert_eq!(elements(&device.run(&Op::from(Elementwise::abs()), &[&tensor]).unwrap()[0]).len(), 64);
    }
}

#[test]
fn pooled_memory_is_returned_before_an_allocation_fails() {
    let device = HostDevice::new(HostOptions { memory: 1024, ..HostOptions::default() });
    drop(upload(&device, &numbers(256), &[256]).unwrap());
    assert_eq!(device.memory_use(), MemoryUse { live: 0, pooled: 1024 });
    let small = upload(&device, &numbers(4), &[4]).unwrap();
    assert_eq!(device.memory_use(), MemoryUse { live: 16, pooled: 0 });
    assert_eq!(elements(&small), numbers(4));
}

#[test]
fn operations_that_a_backend_keeps_make_room() {
    for device in both_kinds() {
        let backend = Backend::on(device.clone());
        // Two operands of 256 bytes and a result.
        device.limit_memory(768);
        for _ in 0..2 {
            assert_eq!(backend.add(&numbers(64), &[1.0; 64]).unwrap()[0], numbers(1)[0] + 1.0);
            assert_eq!(backend.relu(&[-1.0; 64]).unwrap(), [0.0; 64]);
            assert_eq!(backend.mul(&numbers(64), &[2.0; 64]).unwrap()[0], numbers(1)[0] * 2.0);
        }
        device.limit_memory(767);
        is_out_of_memory(backend.sub(&numbers(64), &[1.0; 64]));
        assert_eq!(backend.neg(&[1.0; 64]).unwrap(), [-1.0; 64]);
        drop(backend);
        assert_eq!(device.memory_use().live, 0);
    }
}

#[test]
fn products_that_a_cache_keeps_make_room() {
    for device in both_kinds() {
        let mut cache = MatmulCache::new(device.clone());
        cache.upload_weight("w", &[1.0; 16], 4, 4).unwrap();
        // The weight, and two rows of operand and result.
        device.limit_memory(64 + 2 * 32);
        for rows in [1, 2, 1, 2] {
            assert_eq!(cache.matmul("w", &vec![1.0; 4 * rows]).unwrap(), vec![4.0; 4 * rows]);
        }
        is_out_of_memory(cache.matmul("w", &[1.0; 12]));
        assert_eq!(cache.matmul("w", &[1.0; 4]).unwrap(), [4.0; 4]);
    }
}

#[test]
fn a_tensor_beyond_the_largest_allocation_is_refused() {
    let device = HostDevice::new(HostOptions { largest: 64, ..HostOptions::default() });
    let refused = upload(&device, &numbers(17), &[17]);
    assert!(matches!(refused, Err(Error::Limit { limit: 64, .. })), "{refused:?}");
    assert_eq!(device.memory_use().live, 0);
    let mut batch = Batch::new(device.clone());
    let x = batch.upload(&numbers(16), &[16, 1]).unwrap();
    let y = batch.upload(&numbers(16), &[1, 16]).unwrap();
    let product = batch.matmul(x, y).unwrap();
    let live = device.memory_use().live;
    assert!(matches!(batch.execute(&[product]), Err(Error::Limit { .. })));
    assert_eq!(device.memory_use().live, live);
}

#[test]
fn memory_is_freed_on_drop_and_used_again() {
    let device = device();
    let x = upload(&device, &numbers(64), &[64]).unwrap();
    let y = device.run(&Op::from(Elementwise::neg()), &[&x]).unwrap();
    assert_eq!(device.memory_use().live, 512);
    drop(x);
    assert_eq!(device.memory_use(), MemoryUse { live: 256, pooled: 256 });
    let allocations = device.allocations();
    let z = upload(&device, &numbers(63), &[63]).unwrap();
    assert_eq!((device.memory_use(), device.allocations()), (MemoryUse { live: 512, pooled: 0 }, allocations));
    // What is queued on memory that was dropped runs before its next owner writes.
    let sums: Vec<_> = (0..4)
        .map(|n| {
            let x = upload(&device, &[n as f32; 64], &[64]).unwrap();
            device.run(&Op::from(Elementwise::add()), &[&x, &x]).unwrap().remove(0)
        })
        .collect();
    for (n, sum) in sums.iter().enumerate() {
        assert_eq!(elements(sum), [2.0 * n as f32; 64]);
    }
    drop((y, z, sums));
    assert_eq!(device.memory_use().live, 0);
    device.trim();
    assert_eq!((device.memory_use(), device.allocated()), (MemoryUse::default(), 0));
}

#[test]
fn the_pool_keeps_no_more_than_its_limit() {
    let device = HostDevice::new(HostOptions { most_free: 300, ..HostOptions::default() });
    let tensors: Vec<_> = (0..4).map(|_| upload(&device, &numbers(32), &[32]).unwrap()).collect();
    drop(tensors);
    assert_eq!((device.memory_use(), device.allocated()), (MemoryUse { live: 0, pooled: 256 }, 256));
}

#[test]
fn large_results_of_earlier_sets_are_not_kept() {
    let device = device();
    let mut batch = Batch::new(device.clone());
    let (column, row) =
        (batch.upload(&[0.0; 4096], &[4096, 1]).unwrap(), batch.upload(&[0.0; 4096], &[1, 4096]).unwrap());
    const RESULT: u64 = 4 * 4096 * 4096;
    // Prepared and not run: the test device makes no bytes for them.
    let products = (1..=8).map(|n| {
        let scaled = batch.scale(column, n as f32).unwrap();
        batch.matmul(scaled, row).unwrap()
    });
    let products: Vec<TensorId> = products.collect();
    let results = |device: &HostDevice| device.memory_use().live / RESULT;
    for (at, wanted) in [&products[..1], &products[1..3], &products[3..4], &products[4..8]].into_iter().enumerate() {
        batch.prepare(wanted).unwrap();
        // Before the last, the first three and what is between their kernels hold more than 256 MiB: the first one goes.
        assert_eq!(results(&device), [1, 3, 4, 7][at]);
    }
    // Four results alone hold more, too.
    batch.prepare(&products[..1]).unwrap();
    assert_eq!(results(&device), 1);
    assert_eq!(batch.read(column).unwrap(), [0.0; 4096]);
}

#[test]
fn results_that_the_host_maps_are_beside_the_pool() {
    let device = HostDevice::new(HostOptions { host_results: true, ..HostOptions::default() });
    let mut batch = Batch::new(device.clone());
    let x = batch.upload(&numbers(64), &[64]).unwrap();
    let y = batch.neg(x).unwrap();
    let result = batch.run(&[y]).unwrap();
    assert_eq!(result, [Buffer::F32(numbers(64).iter().map(|x| -x).collect())]);
    assert_eq!((device.memory_use().live, device.allocated()), (256, 512));
    let before = device.memory_use();
    device.limit_memory(512);
    let z = batch.abs(x).unwrap();
    batch.run(&[z]).unwrap();
    assert_eq!(device.memory_use(), before, "the first results made room");
    drop(batch);
    device.trim();
    assert_eq!(device.allocated(), 0);
}

#[test]
fn kernels_are_compiled_ahead_without_memory() {
    let device = device();
    let square = Operand::f32(&numbers(4), &[2, 2]).unwrap().ty();
    device.compile_ahead(&[(Op::from(Transpose), &[square])]).unwrap();
    assert_eq!((device.compilations(), device.allocations()), (1, 0));
    let x = upload(&device, &numbers(4), &[2, 2]).unwrap();
    device.run(&Op::from(Transpose), &[&x]).unwrap();
    assert_eq!(device.compilations(), 1);
}

#[test]
fn operations_that_are_compiled_ahead_are_planned_once() {
    static KNOWN: Twice = Twice::new(Some(HostKernel));
    static UNKNOWN: Twice = Twice::new(None);
    let device = device();
    let ty = Operand::vector(&[1.0, 2.0]).ty();
    let operations = [&KNOWN, &UNKNOWN].map(|twice| (Op::from(Custom::new(twice, &[]).unwrap()), vec![ty]));
    let operations = operations.each_ref().map(|(op, types)| (*op, &types[..]));
    let compile = || block_on(bodies::compile_supported(&device, &operations)).unwrap();
    assert_eq!(KNOWN.inferred_by(compile), 1);
    assert_eq!(device.compilations(), 1);
    assert_eq!(KNOWN.inferred_by(|| device.compile_ahead(&operations[..1]).unwrap()), 1);
    assert!(matches!(device.compile_ahead(&operations), Err(Error::Unsupported { op: "twice", .. })));
}
