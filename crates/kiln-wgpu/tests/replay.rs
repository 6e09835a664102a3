//! Repeated runs create no new objects, and send only changed data.

mod support;

use kiln_ir::op::{Gather, Matmul, Softmax};
use kiln_ir::{Operand, Operations, Record};
use kiln_wgpu::{GpuBackend, GpuCommandBatch, GpuDevice, GpuDeviceOptions, GpuMatmulCache, Statistics};

/// The statistics of a device from the third run on.
fn again(device: &GpuDevice, mut run: impl FnMut(usize)) -> Statistics {
    (0..2).for_each(&mut run);
    let (before, kernels) = (device.statistics(), device.compiled_kernels());
    (2..7).for_each(&mut run);
    let did = device.statistics() - before;
    assert_eq!((did.made(), device.compiled_kernels()), (0, kernels), "{did}");
    did
}

fn devices() -> impl Iterator<Item = GpuDevice> {
    // Parameters are immediates on one of them, and in a buffer on the other.
    [GpuDeviceOptions::new(), GpuDeviceOptions::new().plain()].into_iter().filter_map(|o| support::device_with(&o))
}

#[test]
fn an_execution_and_its_reading() {
    for device in devices() {
        let mut batch = GpuCommandBatch::new(device.clone());
        let weights = batch.upload(&vec![0.25; 300 * 200], &[300, 200]).unwrap();
        let x = batch.upload(&[0.0; 300], &[1, 300]).unwrap();
        let product = batch.matmul(x, weights).unwrap();
        let y = batch.relu(product).unwrap();
        let total = batch.sum(y).unwrap();
        let did = again(&device, |i| {
            batch.set(x, &[i as f32; 300]).unwrap();
            batch.execute_all().unwrap();
            assert_eq!(batch.read(total).unwrap(), [300.0 * 0.25 * 200.0 * i as f32]);
        });
        // Unchanged inputs are not uploaded again.
        assert_eq!((did.uploads, did.uploaded_bytes, did.downloads), (5, 5 * 1200, 5), "{did}");
        let did = again(&device, |_| batch.execute_all().unwrap());
        assert_eq!((did.uploads, did.submissions), (0, 5), "{did}");
        let did = again(&device, |_| assert_eq!(batch.run(&[y, total]).unwrap()[0].as_data().f32().len(), 200));
        assert_eq!((did.uploads, did.submissions, did.downloads), (0, 5, 5), "{did}");
        let did = again(&device, |_| _ = batch.read_many(&[y, weights, total]).unwrap());
        assert_eq!((did.submissions, did.downloads), (5, 5), "{did}");
    }
}

#[test]
fn several_sets_of_wanted_tensors_in_turn() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let square = batch.matmul(x, x).unwrap();
    let turned = batch.transpose(x).unwrap();
    let sum = batch.sum(square).unwrap();
    again(&device, |i| {
        batch.set(x, &[1.0 + i as f32, 2.0, 3.0, 4.0]).unwrap();
        let first = 1.0 + i as f32;
        assert_eq!(batch.run(&[turned]).unwrap()[0].as_data().f32(), [first, 3.0, 2.0, 4.0]);
        assert!(batch.read(square).is_err(), "the last execution computed something else");
        batch.execute(&[square, sum]).unwrap();
        assert_eq!(batch.read(square).unwrap()[0], first * first + 6.0);
        assert!(batch.read(turned).is_err(), "not of the last execution");
        assert_eq!(batch.run(&[sum, turned]).unwrap()[1].as_data().f32(), [first, 3.0, 2.0, 4.0]);
    });
    // A tensor that the caller holds keeps its contents, and the others are reused.
    batch.execute(&[square, sum]).unwrap();
    let held = batch.tensor(square).unwrap();
    let before = held.read().unwrap();
    batch.set(x, &[0.0; 4]).unwrap();
    batch.execute(&[square, sum]).unwrap();
    assert_eq!(batch.read(square).unwrap(), [0.0; 4]);
    assert_eq!(held.read().unwrap(), before);
    // An input whose memory the caller holds gets new memory: programs bound to the old memory are bound anew and are
    // correct.
    let held = batch.tensor(x).unwrap();
    batch.set(x, &[5.0; 4]).unwrap();
    assert_eq!(batch.run(&[turned]).unwrap()[0].as_data().f32(), [5.0; 4]);
    assert_eq!(batch.run(&[sum, turned]).unwrap()[0].as_data().f32(), [200.0]);
    assert_eq!(held.read().unwrap().as_data().f32(), [0.0; 4]);
}

#[test]
fn an_operation_a_call_and_a_product_with_a_weight() {
    for device in devices() {
        let x = device.upload(&Operand::f32(&[1.0; 4096], &[2, 2048]).unwrap()).unwrap();
        let mut softmax = device.prepare(&Softmax.into(), &[&x]).unwrap();
        again(&device, |_| {
            softmax.run().unwrap();
            softmax.repeat(3).unwrap();
            assert_eq!(softmax.results()[0].read().unwrap().as_data().f32(), [1.0 / 2048.0; 4096]);
        });
        let indices = device.upload(&Operand::elements(&[1u32, 1], &[2]).unwrap()).unwrap();
        let mut gather = device.prepare(&Gather.into(), &[&x, &indices]).unwrap();
        again(&device, |_| gather.run().unwrap());
        let backend = GpuBackend::on(device.clone());
        again(&device, |i| {
            assert_eq!(backend.matmul(&[i as f32; 4], &[1.0; 4], 2, 2, 2).unwrap(), [2.0 * i as f32; 4])
        });
        again(&device, |i| assert_eq!(backend.scale(&[i as f32; 4], 2.0).unwrap(), [2.0 * i as f32; 4]));
        let mut cache = GpuMatmulCache::new(device.clone());
        cache.upload_weight("w", &[1.0; 64], 8, 8).unwrap();
        again(&device, |i| assert_eq!(cache.matmul("w", &[i as f32; 8]).unwrap(), [8.0 * i as f32; 8]));
    }
}

#[test]
fn the_memory_of_tensors_that_are_gone_is_used_again() {
    let Some(device) = support::device() else { return };
    let host = vec![0.5; 100 * 100];
    let operand = Operand::f32(&host, &[100, 100]).unwrap();
    let made = |run: &dyn Fn()| {
        let before = device.statistics();
        run();
        (device.statistics() - before).storage_buffers
    };
    let product = || {
        let x = device.upload(&operand).unwrap();
        let y = device.run(&Matmul::default().into(), &[&x, &x]).unwrap().remove(0);
        assert_eq!(y.read().unwrap().as_data().f32()[0], 25.0);
    };
    assert!(made(&product) >= 2);
    assert_eq!(made(&product), 0);
    let (one, other) = (device.upload(&operand).unwrap(), device.upload(&operand).unwrap());
    let third = std::cell::RefCell::new(None);
    assert_eq!(made(&|| *third.borrow_mut() = Some(device.upload(&operand).unwrap())), 1, "all others are in use");
    drop((one, third));
    assert_eq!(made(&|| _ = (device.upload(&operand).unwrap(), device.upload(&operand).unwrap())), 0);
    device.trim();
    assert_eq!(made(&|| _ = device.upload(&operand).unwrap()), 1, "it was given back to the driver");
    drop(other);
}
