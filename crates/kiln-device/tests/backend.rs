//! Operations between slices of the host: opening the device, and what is kept for the next call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use kiln_device::DevicePool;
use kiln_device::waiting::block_on;
use kiln_ir::op::{Custom, Elementwise, Op, TopK};
use kiln_ir::{Buffer, DataMut, Error, Operand, Operations, Result};

use crate::support::{HostChoice, HostDevice, HostKernel, HostOptions, Twice, device, numbers, poll_times};

type Backend = kiln_device::Backend<HostDevice>;

/// A choice, and how often it was opened.
fn choice(missing: bool) -> (HostChoice, Arc<AtomicU64>) {
    let choice = HostChoice { name: "the chosen one".into(), missing, ..HostChoice::default() };
    let opened = choice.opened.clone();
    (choice, opened)
}

#[test]
fn the_first_call_opens_the_device() {
    let (choice, opened) = choice(false);
    let backend = Backend::with_choice(choice).with_options(HostOptions { profiles: true, ..HostOptions::default() });
    assert!(backend.opened().is_none());
    assert!(backend.add(&[1.0], &[1.0, 2.0, 3.0]).is_err());
    assert!(backend.opened().is_none(), "the shape rule refused it");
    for _ in 0..3 {
        assert_eq!(backend.relu(&[-1.0, 1.0]).unwrap(), [0.0, 1.0]);
    }
    let device = backend.opened().unwrap();
    assert_eq!(kiln_device::Driver::label(device), "the chosen one");
    assert!(kiln_device::Driver::is_profiling(device), "it was opened with the options");
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[test]
fn a_device_that_cannot_be_opened_is_tried_once() {
    let (choice, opened) = choice(true);
    let backend = Backend::with_choice(choice);
    assert!(
        matches!(backend.matmul(&[1.0], &[1.0], 2, 2, 2), Err(Error::Length { .. })),
        "no device is needed to refuse it"
    );
    let first = backend.neg(&[1.0]).unwrap_err();
    assert!(matches!(&first, Error::Unavailable { reason, .. } if reason == "attempt 1 failed"), "{first}");
    for _ in 0..2 {
        assert_eq!(backend.neg(&[1.0]).unwrap_err(), first);
        assert_eq!(backend.device().unwrap_err(), first);
        assert_eq!(block_on(backend.device_async()).unwrap_err(), first);
    }
    assert!(backend.opened().is_none() && opened.load(Ordering::SeqCst) == 1);
}

#[test]
fn threads_that_come_first_together_open_one_device() {
    let (choice, opened) = choice(false);
    let backend = Backend::with_choice(choice);
    let run = |n: usize| {
        for i in 0..if cfg!(miri) { 2 } else { 20 } {
            let x = (n + i) as f32;
            assert_eq!(backend.add(&[x; 3], &[1.0; 3]).unwrap(), [x + 1.0; 3]);
            assert_eq!(backend.scale(&[x; 2], 2.0).unwrap(), [x * 2.0; 2]);
        }
    };
    let run = &run;
    thread::scope(|scope| [100, 200, 300].map(|n| scope.spawn(move || run(n))).into_iter().for_each(drop));
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[test]
fn futures_that_come_first_together_share_one_device() {
    let (choice, _) = choice(false);
    let backend = Backend::with_choice(choice);
    let (mut a, mut b) = (Box::pin(backend.device_async()), Box::pin(backend.device_async()));
    assert!(poll_times(a.as_mut(), 1).is_none() && poll_times(b.as_mut(), 1).is_none());
    let (b, a) = (block_on(b).unwrap(), block_on(a).unwrap());
    assert!(std::ptr::eq(a, b));
}

#[test]
fn a_second_call_finds_everything_ready() {
    for direct in [false, true] {
        let device = HostDevice::new(HostOptions { direct, ..HostOptions::default() });
        let backend = Backend::on(device.clone());
        let x = Operand::f32(&[3.0, 1.0, 2.0, 5.0, 6.0, 4.0], &[2, 3]).unwrap();
        let expected = [Buffer::F32(vec![3.0, 2.0, 6.0, 5.0]), Buffer::U32(vec![0, 2, 1, 0])];
        assert_eq!(backend.run(&Op::from(TopK { k: 2 }), &[x]).unwrap(), expected);
        let (before, compilations, use_before) = (device.statistics(), device.compilations(), device.memory_use());
        for _ in 0..3 {
            assert_eq!(backend.run(&Op::from(TopK { k: 2 }), &[x]).unwrap(), expected);
        }
        let done = device.statistics() - before;
        assert_eq!((done.made(), device.compilations(), device.memory_use()), (0, compilations, use_before));
        assert_eq!((done.uploads, done.uploaded_bytes, done.downloads, done.downloaded_bytes), (3, 72, 3, 96));
    }
}

#[test]
fn shapes_are_inferred_once_for_each_call() {
    static TWICE: Twice = Twice::new(Some(HostKernel));
    let op = Op::from(Custom::new(&TWICE, &[]).unwrap());
    let backend = Backend::on(device());
    let pool = DevicePool::of(vec![device(), device()]).unwrap();
    let inputs = [Operand::vector(&[1.0, -2.0])];
    let expected = [Buffer::F32(vec![2.0, -4.0])];
    // The kernel of the test device is the reference, which infers the shapes by itself.
    let of_kernel = TWICE.inferred_by(|| drop(op.reference(&inputs).unwrap()));
    let check = |name: &str, call: &dyn Fn() -> Result<Vec<Buffer>>| {
        let run = || assert_eq!(call().unwrap(), expected, "{name}");
        // The first call also plans.
        run();
        assert_eq!(TWICE.inferred_by(run), 1 + of_kernel, "{name}");
    };
    check("run", &|| backend.run(&op, &inputs));
    check("run_async", &|| block_on(backend.run_async(&op, &inputs)));
    check("run_into", &|| {
        let mut out = vec![0.0; 2];
        backend.run_into(&op, &inputs, &mut [DataMut::F32(&mut out)])?;
        Ok(vec![Buffer::F32(out)])
    });
    check("run of a pool", &|| pool.run(&op, &inputs));
}

#[test]
fn another_shape_or_parameter_is_another_operation() {
    let device = device();
    let backend = Backend::on(device.clone());
    let made = |n: usize, factor: f32| {
        let before = device.statistics();
        assert_eq!(backend.scale(&vec![1.0; n], factor).unwrap(), vec![factor; n]);
        (device.statistics() - before).bind_groups
    };
    assert_eq!([made(4, 2.0), made(5, 2.0), made(4, 3.0), made(4, 0.0), made(4, -0.0)], [1; 5]);
    assert_eq!([made(4, 2.0), made(5, 2.0), made(4, 3.0), made(4, 0.0), made(4, -0.0)], [0; 5]);
}

#[test]
fn the_64_operations_used_last_are_kept() {
    let device = device();
    let backend = Backend::on(device.clone());
    let is_made = |n: usize| {
        let before = device.statistics();
        backend.neg(&vec![1.0; n]).unwrap();
        (device.statistics() - before).bind_groups == 1
    };
    assert!((1..=64).all(is_made));
    assert!(!is_made(1) && !is_made(64));
    // 2 is the least recently used one.
    assert!(is_made(65));
    assert!(!is_made(1) && !is_made(3));
    assert!(is_made(2) && is_made(4));
}

#[test]
fn operations_that_are_kept_hold_a_limited_number_of_bytes() {
    let device = device();
    let backend = Backend::on(device.clone());
    // Each holds 24 KiB, so the third evicts the first.
    for n in [1024, 1025, 1026] {
        for _ in 0..2 {
            backend.add(&vec![1.0; 2 * n], &vec![1.0; 2 * n]).unwrap();
        }
        assert!(device.memory_use().live <= 1 << 16, "{}", device.memory_use().live);
    }
    // A single operation above the limit is kept.
    let n = 1 << 13;
    backend.add(&vec![1.0; n], &vec![1.0; n]).unwrap();
    assert_eq!(device.memory_use().live, 3 * 4 * n as u64);
    let before = device.statistics();
    backend.add(&vec![1.0; n], &vec![1.0; n]).unwrap();
    assert_eq!((device.statistics() - before).made(), 0);
    drop(backend);
    assert_eq!(device.memory_use().live, 0);
}

#[test]
fn results_are_written_into_slices_that_fit() {
    for direct in [false, true] {
        let backend = Backend::on(HostDevice::new(HostOptions { direct, ..HostOptions::default() }));
        let x = Operand::f32(&[1.0, 2.0], &[2]).unwrap();
        let op = Op::from(Elementwise::neg());
        let mut out = [0.0; 2];
        backend.run_into(&op, &[x], &mut [DataMut::F32(&mut out)]).unwrap();
        assert_eq!(out, [-1.0, -2.0]);
        assert!(matches!(backend.run_into(&op, &[x], &mut []), Err(Error::Arity { .. })));
        let long = backend.run_into(&op, &[x], &mut [DataMut::F32(&mut [0.0; 3])]);
        assert!(matches!(long, Err(Error::Length { .. })), "{long:?}");
        assert!(matches!(backend.run_into(&op, &[], &mut [DataMut::F32(&mut out)]), Err(Error::Arity { .. })));
        // Empty operands and results.
        assert!(backend.neg(&[]).unwrap().is_empty());
        assert_eq!(backend.sum(&[]).unwrap(), 0.0);
        assert_eq!(backend.matmul(&[], &[], 2, 0, 2).unwrap(), [0.0; 4]);
    }
}

#[test]
fn futures_may_be_dropped_at_every_poll() {
    for direct in [false, true] {
        let options = HostOptions { direct, suspends: true, ..HostOptions::default() };
        let (choice, _) = choice(false);
        let backend = Backend::with_choice(choice).with_options(options);
        let x = Operand::vector(&[1.0, -2.0]);
        let op = Op::from(Elementwise::abs());
        let completed = (0..10).filter(|&polls| {
            let mut out = [0.0; 2];
            let mut outputs = [DataMut::F32(&mut out)];
            let done = poll_times(backend.run_into_async(&op, &[x], &mut outputs), polls);
            done.inspect(|done| assert_eq!(done, &Ok(()))).is_some()
        });
        let completed = completed.count();
        assert!((1..9).contains(&completed), "{completed}");
        assert_eq!(backend.abs(&[1.0, -2.0]).unwrap(), [1.0, 2.0]);
        let run = block_on(backend.run_async(&op, &[Operand::vector(&numbers(3))])).unwrap();
        assert_eq!(run, [Buffer::F32(numbers(3).iter().map(|x| x.abs()).collect())]);
    }
}
