//! Several devices: cut operations, load, and the loss of a device.

use kiln_device::{Backend, Driver};
use kiln_ir::op::{Dot, Elementwise, Matmul, Matvec, Op, QuantMatmul, Reduce, Reduction, Softmax, TopK};
use kiln_ir::{Buffer, Error, Operand, Operations, QuantFormat, Record, f16};

use crate::support::{HostChoice, HostDevice, HostOptions, device, numbers};

type DevicePool = kiln_device::DevicePool<HostDevice>;

fn devices(n: usize) -> Vec<HostDevice> {
    (0..n).map(|i| HostDevice::named(&format!("device {i}"), HostOptions::default())).collect()
}

/// Kernels that a device has run.
fn dispatches(device: &HostDevice) -> u64 {
    device.statistics().dispatches
}

/// Whether results are the same, sums of parts up to their rounding.
fn assert_close(op: &Op, found: &[Buffer], expected: &[Buffer]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let (Buffer::F32(a), Buffer::F32(b)) = (found, expected) else {
            assert_eq!(found, expected, "{op:?}");
            continue;
        };
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()), "{op:?}");
    }
}

/// More than 8 MiB of operands and results.
const LARGE: usize = 2_200_000;

#[test]
#[cfg_attr(miri, ignore = "the operands are megabytes")]
fn operations_that_are_cut_equal_the_whole() {
    let x = numbers(LARGE);
    let halves: Vec<f16> = x.iter().copied().map(f16::from_f32).collect();
    let mut spread: Vec<f32> = (0..LARGE).map(|i| (i % 1013) as f32 - 500.0).collect();
    (spread[2_000_001], spread[1_300_000], spread[1_400_000]) = (9000.0, -9000.0, -9000.0);
    let format = QuantFormat::Q8_0;
    let mut block = vec![3; format.block_bytes()];
    block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());

    let f32 = |n: usize, dims: &[usize]| Operand::f32(&x[..n], dims).unwrap();
    let tall = f32(LARGE, &[LARGE / 2, 2]);
    let cases: Vec<(Op, Vec<Operand<'_>>)> = vec![
        (Elementwise::add().into(), vec![f32(LARGE, &[1100, 2000]), f32(2000, &[2000])]),
        (Elementwise::mul().into(), vec![f32(1, &[]), f32(LARGE, &[LARGE])]),
        (Elementwise::relu().into(), vec![Operand::elements(&halves, &[LARGE]).unwrap()]),
        (Softmax.into(), vec![f32(LARGE, &[1100, 2000])]),
        (TopK { k: 2 }.into(), vec![f32(LARGE, &[LARGE / 10, 10])]),
        (Reduce::along(Reduction::Max, 1).into(), vec![tall]),
        (Reduce::all(Reduction::Sum).into(), vec![tall]),
        (Reduce::all(Reduction::Mean).into(), vec![tall]),
        (Reduce::all(Reduction::NormL1).into(), vec![tall]),
        (Reduce::all(Reduction::NormL2).into(), vec![tall]),
        (Reduce::all(Reduction::ArgMax).into(), vec![Operand::vector(&spread)]),
        (Reduce::all(Reduction::ArgMin).into(), vec![Operand::vector(&spread)]),
        (Dot.into(), vec![tall, Operand::f32(&spread, &[LARGE / 2, 2]).unwrap()]),
        (Matvec::default().into(), vec![tall, f32(2, &[2])]),
        (Matmul::default().into(), vec![tall, f32(2, &[2, 1])]),
        (Matmul::default().into(), vec![f32(LARGE, &[LARGE / 4, 2, 2]), f32(LARGE, &[LARGE / 4, 2, 2])]),
        (
            QuantMatmul { format }.into(),
            vec![f32(LARGE, &[LARGE / 32, 32]), Operand::blocks(&block, &[1, 32], format).unwrap()],
        ),
    ];
    let whole = Backend::on(device());
    let devices = devices(3);
    let pool = DevicePool::of(devices.clone()).unwrap();
    for (op, inputs) in cases {
        let before: Vec<u64> = devices.iter().map(dispatches).collect();
        assert_close(&op, &pool.run(&op, &inputs).unwrap(), &whole.run(&op, &inputs).unwrap());
        let used = devices.iter().zip(before).filter(|(device, before)| dispatches(device) > *before).count();
        let expected = if op == Op::from(Reduce::all(Reduction::NormL2)) { 1 } else { 3 };
        assert_eq!(used, expected, "{op:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "the operands are megabytes")]
fn the_others_redo_what_a_device_was_lost_in() {
    let x = numbers(LARGE);
    let sum: f32 = x.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
    let op = Op::from(Elementwise::scale(2.0));
    // Each device runs an upload, a program and a download.
    for n in 0..3 {
        let devices = devices(3);
        let pool = DevicePool::of(devices.clone()).unwrap();
        devices[1].lose_at(n);
        let doubled = pool.run(&op, &[Operand::vector(&x)]).unwrap().remove(0);
        assert!(doubled.as_data().f32().iter().zip(&x).all(|(double, x)| *double == 2.0 * x));
        assert!(devices[1].is_lost() && pool.devices().count() == 3);
        // Two are lost at once, in a reduction.
        devices[0].lose_at(n);
        let found = pool.sum(&x).unwrap();
        assert!((found - sum).abs() <= 1e-6 * sum.abs(), "{found} {sum}");
        let before = dispatches(&devices[2]);
        assert_eq!(pool.neg(&[1.0]).unwrap(), [-1.0]);
        assert_eq!(dispatches(&devices[2]) - before, 1);
        devices[2].lose_at(n);
        let lost = pool.sum(&x).unwrap_err();
        assert!(matches!(lost, Error::DeviceLost { .. }), "{lost}");
        assert!(matches!(pool.neg(&[1.0]), Err(Error::DeviceLost { .. })));
        assert!(pool.batch(1).is_err() && pool.least_loaded(1).is_err());
    }
}

#[test]
fn small_operations_are_redone_too() {
    for n in 0..3 {
        let devices = devices(2);
        let pool = DevicePool::of(devices.clone()).unwrap();
        devices[0].lose_at(n);
        assert_eq!(pool.relu(&[-1.0, 1.0]).unwrap(), [0.0, 1.0]);
        assert_eq!((devices[0].is_lost(), dispatches(&devices[1])), (true, 1));
        devices[1].lose_at(n);
        let lost = pool.relu(&[-1.0, 1.0]).unwrap_err();
        assert!(matches!(&lost, Error::DeviceLost { device, .. } if device == "device 1"), "{lost}");
    }
}

/// Half of an operation fails for want of memory, whichever allocation it is: one error, or the result, and both work afterwards.
#[test]
#[cfg_attr(miri, ignore = "the operands are megabytes")]
fn a_device_without_memory_is_reported_and_not_lost() {
    let x = numbers(LARGE);
    let op = Op::from(Elementwise::scale(2.0));
    let doubled: Vec<f32> = x.iter().map(|&x| 2.0 * x).collect();
    for n in 0..3 {
        let devices = devices(2);
        let pool = DevicePool::of(devices.clone()).unwrap();
        devices[1].fail_allocation(Some(n), true);
        match pool.run(&op, &[Operand::vector(&x)]) {
            Ok(found) => assert_eq!(found, [Buffer::F32(doubled.clone())]),
            Err(error) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
        }
        devices[1].fail_allocation(None, false);
        assert_eq!(pool.run(&op, &[Operand::vector(&x)]).unwrap(), [Buffer::F32(doubled.clone())]);
        assert!(devices.iter().all(|device| !device.is_lost() && dispatches(device) > 0));
    }
}

#[test]
fn errors_that_are_no_loss_are_reported_once() {
    let devices = devices(2);
    let pool = DevicePool::of(devices.clone()).unwrap();
    let refused = pool.gather(&[1.0, 2.0], 1, &[2]);
    assert_eq!(refused, Err(Error::Index { op: "gather", position: 0, index: 2, bound: 2 }));
    assert_eq!(devices.iter().map(dispatches).sum::<u64>(), 1);
    assert!(matches!(pool.add(&[1.0], &[1.0, 2.0, 3.0]), Err(Error::Length { .. } | Error::Shape { .. })));
}

#[test]
fn work_goes_to_the_device_with_the_least_in_flight() {
    let pool = DevicePool::of(devices(3)).unwrap();
    let name = |lent: &kiln_device::Lent<'_, HostDevice>| lent.device().label();
    let lent: Vec<_> = (0..3).map(|_| pool.least_loaded(10).unwrap()).collect();
    assert_eq!(lent.iter().map(name).collect::<Vec<_>>(), ["device 0", "device 1", "device 2"]);
    let [first, second, third] = <[_; 3]>::try_from(lent).unwrap();
    drop(second);
    let (mut batch, more) = pool.batch(15).unwrap();
    assert_eq!(name(&more), "device 1");
    drop(first);
    assert_eq!(name(&pool.least_loaded(1).unwrap()), "device 0");
    let x = batch.upload(&numbers(4), &[4]).unwrap();
    let y = batch.neg(x).unwrap();
    assert_eq!(batch.run(&[y]).unwrap(), [Buffer::F32(numbers(4).iter().map(|x| -x).collect())]);
    assert_eq!(batch.device().label(), "device 1");
    drop((third, more));
    assert_eq!(name(&pool.least_loaded(1).unwrap()), "device 0");
}

#[test]
fn a_pool_opens_the_devices_that_are_there() {
    assert!(matches!(DevicePool::of(Vec::new()), Err(Error::Parameter { .. })));
    assert!(matches!(DevicePool::with(&[]), Err(Error::Parameter { .. })));
    let labels = |pool: &DevicePool| pool.devices().map(HostDevice::label).collect::<Vec<_>>();
    assert_eq!(labels(&DevicePool::all().unwrap()), ["first", "third"], "the second one cannot be opened");
    let choices = HostDevice::hardware().unwrap();
    assert!(matches!(DevicePool::with(&choices), Err(Error::Unavailable { .. })), "it was asked for");
    let twice = HostChoice { name: "same".into(), ..HostChoice::default() };
    assert_eq!(labels(&DevicePool::with(&[twice.clone(), twice]).unwrap()), ["same", "same"]);
}

#[test]
fn threads_share_a_pool() {
    let devices = devices(2);
    let pool = DevicePool::of(devices.clone()).unwrap();
    let rounds = if cfg!(miri) { 2 } else { 30 };
    std::thread::scope(|scope| {
        for n in [100, 200] {
            let (pool, devices) = (&pool, &devices);
            scope.spawn(move || {
                for round in 0..rounds {
                    let x = (n + round) as f32;
                    assert_eq!(pool.add(&[x; 3], &[1.0; 3]).unwrap(), [x + 1.0; 3]);
                    if (n, round) == (100, rounds / 2) {
                        devices[0].lose();
                    }
                }
            });
        }
    });
    assert!(dispatches(&devices[1]) >= rounds as u64 / 2 - 1, "one of the threads has run the other half there");
}
