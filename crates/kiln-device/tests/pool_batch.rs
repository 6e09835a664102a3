//! Batches that run on any device of a pool: their inputs, where they run, and what happens when devices are lost.

use std::thread::{scope, yield_now};

use kiln_device::{Driver, Lent};
use kiln_ir::graph::TensorId;
use kiln_ir::{Buffer, DType, Data, Error, Operand, Record, Shape, TensorType};

use crate::support;
use crate::support::{HostDevice, HostOptions, numbers, upload};

type DevicePool = kiln_device::DevicePool<HostDevice>;
type PoolBatch = kiln_device::PoolBatch<HostDevice>;
type PoolTensor = kiln_device::PoolTensor<HostDevice>;

fn devices(n: usize) -> Vec<HostDevice> {
    (0..n).map(|i| HostDevice::named(&format!("device {i}"), HostOptions::default())).collect()
}

/// Gives work to all devices but this one, so that everything else goes there.
fn keep_busy<'p>(pool: &'p DevicePool, but: &HostDevice) -> Vec<Lent<'p, HostDevice>> {
    let lent = pool.devices().map(|_| pool.least_loaded(1 << 40).unwrap()).collect::<Vec<_>>();
    lent.into_iter().filter(|lent| lent.device().label() != but.label()).collect()
}

fn floats(results: &[Buffer]) -> &[f32] {
    results[0].as_data().f32()
}

/// `softmax(x w) + b`, where `w` is on each device of the pool and `b` is the host's.
struct Model {
    batch: PoolBatch,
    x: TensorId,
    b: TensorId,
    out: TensorId,
}

impl Model {
    fn new(pool: &DevicePool, weights: &PoolTensor, is_given: bool) -> Self {
        let mut batch = PoolBatch::new(pool);
        let x = match is_given {
            true => batch.input(TensorType::f32(Shape::new(&[2, 3]).unwrap())),
            false => batch.upload(&numbers(6), &[2, 3]).unwrap(),
        };
        let w = batch.import(weights).unwrap();
        let b = batch.upload(&[0.5, -0.5], &[2]).unwrap();
        let product = batch.matmul(x, w).unwrap();
        let shares = batch.softmax(product).unwrap();
        let out = batch.add(shares, b).unwrap();
        Self { batch, x, b, out }
    }
}

fn weights(pool: &DevicePool) -> PoolTensor {
    pool.upload(&Operand::f32(&numbers(6), &[3, 2]).unwrap()).unwrap()
}

/// The results for `numbers(6)`, and for ones.
fn expected() -> [Vec<f32>; 2] {
    let pool = DevicePool::of(devices(1)).unwrap();
    let mut model = Model::new(&pool, &weights(&pool), false);
    let first = model.batch.run(&[model.out]).unwrap();
    model.batch.set(model.x, &[1.0; 6]).unwrap();
    let second = model.batch.run(&[model.out]).unwrap();
    [first, second].map(|results| floats(&results).to_vec())
}

#[test]
fn a_device_gets_an_input_again_only_if_it_changed() {
    let devices = devices(2);
    let pool = DevicePool::of(devices.clone()).unwrap();
    let weights = weights(&pool);
    assert_eq!(weights.ty(), TensorType::f32(Shape::new(&[3, 2]).unwrap()));
    let mut model = Model::new(&pool, &weights, false);
    let [first, second] = expected();
    let uploads = || devices.iter().map(|device| device.statistics().uploads).collect::<Vec<_>>();
    assert_eq!(uploads(), [1, 1]);
    for (round, device) in [0, 1, 0, 1].into_iter().zip([0, 0, 1, 1]) {
        let _busy = keep_busy(&pool, &devices[device]);
        assert_eq!(floats(&model.batch.run(&[model.out]).unwrap()), first);
        assert_eq!(uploads()[device], 3, "round {round}");
    }
    model.batch.set(model.x, &[1.0; 6]).unwrap();
    for device in [1, 0, 0, 1] {
        let _busy = keep_busy(&pool, &devices[device]);
        assert_eq!(floats(&model.batch.run(&[model.out]).unwrap()), second);
        assert_eq!(uploads()[device], 4);
    }
    assert_eq!(devices.iter().map(|device| device.statistics().dispatches > 0).collect::<Vec<_>>(), [true; 2]);
    // An imported tensor is replaced like any other input, and stays as it is elsewhere.
    let w = TensorId::clone(&model.batch.graph().nodes()[0].inputs[1]);
    model.batch.set(w, &[0.0; 6]).unwrap();
    assert_eq!(floats(&model.batch.run(&[model.out]).unwrap()), [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(weights.on(&devices[0]).unwrap().read().unwrap().as_data().f32(), numbers(6));
    assert!(weights.on(&support::device()).is_none());
}

#[test]
fn data_that_are_given_are_those_of_one_run() {
    let devices = devices(2);
    let pool = DevicePool::of(devices.clone()).unwrap();
    let weights = weights(&pool);
    let mut model = Model::new(&pool, &weights, true);
    let [first, second] = expected();
    let missing = model.batch.run(&[model.out]).unwrap_err();
    assert!(matches!(&missing, Error::Parameter { reason, .. } if reason.contains("input 0")), "{missing}");
    model.batch.prepare(&[model.out]).unwrap();
    let ones = [1.0; 6];
    for device in [0, 1, 1, 0] {
        let _busy = keep_busy(&pool, &devices[device]);
        for (data, expected) in [(&numbers(6)[..], &first), (&ones, &second)] {
            let given = [(model.x, Data::F32(data))];
            assert_eq!(floats(&model.batch.run_with(&given, &[model.out]).unwrap()), *expected);
        }
        // Neither the data of an earlier run nor zeros of `prepare` are used.
        assert!(matches!(model.batch.run(&[model.out]), Err(Error::Parameter { .. })));
    }
    // What the batch has is used again after a run that was given something else.
    let mut model = Model::new(&pool, &weights, false);
    for _ in 0..2 {
        assert_eq!(floats(&model.batch.run_with(&[(model.x, Data::F32(&ones))], &[model.out]).unwrap()), second);
        assert_eq!(floats(&model.batch.run(&[model.out]).unwrap()), first);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let pool = DevicePool::of(devices(2)).unwrap();
    let mut model = Model::new(&pool, &weights(&pool), false);
    let Model { x, out, .. } = model;
    let mut other = PoolBatch::new(&pool);
    let foreign = other.upload(&[1.0], &[1]).unwrap();
    let batch = &mut model.batch;
    assert!(matches!(batch.run(&[foreign]), Err(Error::ForeignTensor { .. })));
    assert!(matches!(batch.set(foreign, &[1.0]), Err(Error::ForeignTensor { .. })));
    assert!(matches!(batch.set(out, &[1.0; 4]), Err(Error::Parameter { .. })));
    assert!(matches!(batch.set(x, &[1.0; 5]), Err(Error::Length { .. })));
    let is_type = |error: &Error| matches!(error, Error::Type { expected: DType::F32, found: DType::U32, .. });
    assert!(is_type(&batch.set_data(x, Data::U32(&[1; 6])).unwrap_err()));
    assert!(is_type(&batch.run_with(&[(x, Data::U32(&[1; 6]))], &[out]).unwrap_err()));
    let mut short = Buffer::F32(vec![0.0; 3]);
    let refused = batch.run_with_into(&[], &[out], &mut [short.as_mut()]);
    assert!(matches!(refused, Err(Error::Length { .. })), "{refused:?}");
    let elsewhere = DevicePool::of(devices(1)).unwrap();
    assert!(matches!(batch.import(&weights(&elsewhere)), Err(Error::Unavailable { .. })));
    let stranger = upload(&support::device(), &[1.0], &[1]).unwrap();
    assert!(matches!(batch.import_from_device(&stranger), Err(Error::Unavailable { .. })));
    assert_eq!(floats(&batch.run(&[out]).unwrap()), expected()[0]);
}

#[test]
fn faults_of_the_data_are_reported_and_not_repeated() {
    let devices = devices(2);
    let pool = DevicePool::of(devices.clone()).unwrap();
    let mut batch = PoolBatch::new(&pool);
    let table = batch.upload(&numbers(6), &[3, 2]).unwrap();
    let indices = batch.upload_operand(&Operand::elements(&[2u32, 3], &[2]).unwrap()).unwrap();
    let rows = batch.gather(table, indices).unwrap();
    let fault = Err(Error::Index { op: "gather", position: 1, index: 3, bound: 3 });
    assert_eq!(batch.run(&[rows]), fault);
    assert_eq!(devices.iter().map(|device| device.statistics().dispatches).sum::<u64>(), 1);
    batch.set_data(indices, Data::U32(&[2, 0])).unwrap();
    let expected = [&numbers(6)[4..], &numbers(6)[..2]].concat();
    assert_eq!(floats(&batch.run(&[rows]).unwrap()), expected);
}

/// Loses devices at each submission of a run, the first run on a device and a later one.
#[test]
fn a_run_that_a_device_is_lost_in_is_repeated_by_another() {
    let expected = expected();
    for count in [2, 3] {
        for has_run in [false, true] {
            let mut n = 0;
            loop {
                let devices = devices(count);
                let pool = DevicePool::of(devices.clone()).unwrap();
                let mut model = Model::new(&pool, &weights(&pool), false);
                let busy = keep_busy(&pool, &devices[0]);
                if has_run {
                    assert_eq!(floats(&model.batch.run(&[model.out]).unwrap()), expected[0]);
                }
                model.batch.set(model.x, &[1.0; 6]).unwrap();
                // All devices but the last are lost in the same run.
                devices[..count - 1].iter().for_each(|device| device.lose_at(n));
                drop(busy);
                let found = model.batch.run(&[model.out]).unwrap();
                assert_eq!(floats(&found), expected[1], "submission {n}");
                if !devices[0].is_lost() {
                    break;
                }
                // The batch goes on with other data, and with what it had.
                assert_eq!(floats(&model.batch.run(&[model.out]).unwrap()), expected[1]);
                model.batch.set(model.x, &numbers(6)).unwrap();
                assert_eq!(floats(&model.batch.run(&[model.out]).unwrap()), expected[0]);
                // What was lost is not kept, and the last one is a typed error.
                let last = &devices[count - 1];
                last.lose();
                for _ in 0..2 {
                    let lost = model.batch.run(&[model.out]).unwrap_err();
                    assert!(matches!(lost, Error::DeviceLost { .. }), "{lost}");
                    assert!(matches!(model.batch.prepare(&[model.out]), Err(Error::DeviceLost { .. })));
                }
                assert!(pool.upload(&Operand::vector(&[1.0])).is_err());
                drop((model, pool));
                assert!(devices.iter().all(|device| device.memory_use().live == 0));
                n += 1;
            }
            // Uploads of two inputs or one, a program and a download at least.
            assert!(n >= 3, "{n}");
        }
    }
}

#[test]
fn all_devices_are_lost_in_one_run() {
    let devices = devices(3);
    let pool = DevicePool::of(devices.clone()).unwrap();
    let mut model = Model::new(&pool, &weights(&pool), false);
    devices.iter().for_each(|device| device.lose_at(2));
    let lost = model.batch.run(&[model.out]).unwrap_err();
    assert!(matches!(&lost, Error::DeviceLost { device, .. } if device == "device 2"), "{lost}");
}

#[test]
fn an_input_of_one_device_is_lost_with_it() {
    let devices = devices(2);
    let pool = DevicePool::of(devices.clone()).unwrap();
    let only = upload(&devices[1], &numbers(4), &[2, 2]).unwrap();
    let mut batch = PoolBatch::new(&pool);
    let spare = batch.upload(&[1.0; 4], &[2, 2]).unwrap();
    let x = batch.import_from_device(&only).unwrap();
    let other = upload(&devices[0], &numbers(4), &[2, 2]).unwrap();
    assert!(matches!(batch.import_from_device(&other), Err(Error::Unavailable { .. })));
    let y = batch.add(x, spare).unwrap();
    let sums: Vec<f32> = numbers(4).iter().map(|x| x + 1.0).collect();
    let busy = keep_busy(&pool, &devices[0]);
    assert_eq!(floats(&batch.run(&[y]).unwrap()), sums);
    drop(busy);
    batch.prepare(&[y]).unwrap();
    assert_eq!(devices[0].statistics().dispatches, 0);
    devices[1].lose_at(0);
    for _ in 0..2 {
        let lost = batch.run(&[y]).unwrap_err();
        let Error::DeviceLost { device, reason } = &lost else { panic!("{lost}") };
        assert_eq!(device, "device 1");
        assert!(reason.contains("input 1 of the batch was in its memory alone"), "{reason}");
    }
    // With data of the host in its place the batch runs on the other device.
    batch.set(x, &numbers(4)).unwrap();
    assert_eq!(floats(&batch.run(&[y]).unwrap()), sums);
}

#[test]
fn a_tensor_is_uploaded_to_the_devices_that_are_left() {
    let devices = devices(3);
    let pool = DevicePool::of(devices.clone()).unwrap();
    devices[0].lose();
    devices[1].lose_at(0);
    let weights = weights(&pool);
    assert!(weights.on(&devices[1]).is_none() && weights.on(&devices[2]).is_some());
    let mut model = Model::new(&pool, &weights, false);
    model.batch.prepare(&[model.out]).unwrap();
    assert_eq!(floats(&model.batch.run(&[model.out]).unwrap()), expected()[0]);
    assert_eq!(
        floats(&model.batch.run_with(&[(model.b, Data::F32(&[0.5, -0.5]))], &[model.out]).unwrap()),
        expected()[0]
    );
}

#[test]
fn small_batches_of_several_threads_are_one_submission() {
    let device = devices(1).remove(0);
    let pool = DevicePool::of(vec![device.clone()]).unwrap();
    let weights = weights(&pool);
    let [first, second] = expected();
    for round in 0..2 {
        device.set_gate(Some(0));
        let before = device.statistics();
        scope(|scope| {
            let run = |number: usize| {
                let mut model = Model::new(&pool, &weights, false);
                if number % 2 == 1 {
                    model.batch.set(model.x, &[1.0; 6]).unwrap();
                }
                let found = model.batch.run(&[model.out]).unwrap();
                assert_eq!(floats(&found), [&first, &second][number % 2]);
            };
            scope.spawn(move || run(0));
            device.await_at_gate(1);
            for number in 1..8 {
                scope.spawn(move || run(number));
                while pool.waiting() != number {
                    yield_now();
                }
            }
            device.set_gate(None);
        });
        assert_eq!((device.statistics() - before).submissions, 2, "round {round}");
    }
}

/// Threads with a batch each, while devices are lost.
#[test]
fn threads_share_a_pool_while_its_devices_are_lost() {
    let [first, second] = expected();
    for n in (0..if cfg!(miri) { 4 } else { 120 }).step_by(3) {
        let devices = devices(3);
        let pool = DevicePool::of(devices.clone()).unwrap();
        let weights = weights(&pool);
        devices[1].lose_at(n);
        devices[2].lose_at(2 * n);
        scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut model = Model::new(&pool, &weights, true);
                    for _ in 0..5 {
                        for (data, expected) in [(&numbers(6)[..], &first), (&[1.0; 6], &second)] {
                            let given = [(model.x, Data::F32(data))];
                            assert_eq!(floats(&model.batch.run_with(&given, &[model.out]).unwrap()), *expected);
                        }
                    }
                });
            }
        });
        assert!(!devices[0].is_lost());
    }
}
