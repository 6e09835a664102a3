//! Callers of a device pool: whose work is submitted together, who is served first, and what they get if a device is lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{ScopedJoinHandle, scope, yield_now};

use kiln_device::Driver;
use kiln_ir::{Error, Operations, Result};

use crate::support::{HostDevice, HostOptions, numbers};

type DevicePool = kiln_device::DevicePool<HostDevice>;

fn devices(n: usize, options: &HostOptions) -> Vec<HostDevice> {
    (0..n).map(|i| HostDevice::named(&format!("device {i}"), options.clone())).collect()
}

/// Opens the gate of a device when it is dropped, so that a failed assertion does not leave threads waiting.
struct Opened<'d>(&'d HostDevice);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.set_gate(None);
    }
}

fn await_waiting(pool: &DevicePool, calls: usize) {
    while pool.waiting() != calls {
        yield_now();
    }
}

/// Small calls of different operations, and what they return.
const CALLS: usize = 8;

fn call(pool: &DevicePool, number: usize) -> Result<Vec<f32>> {
    let x = [number as f32, 1.0, -2.0];
    match number % 4 {
        0 => pool.add(&x, &[1.0; 3]),
        1 => pool.relu(&x),
        2 => pool.gather(&x, 1, &[2, 0]),
        _ => pool.neg(&x),
    }
}

fn expected(number: usize) -> Vec<f32> {
    let x = number as f32;
    match number % 4 {
        0 => vec![x + 1.0, 2.0, -1.0],
        1 => vec![x, 1.0, 0.0],
        2 => vec![-2.0, x],
        _ => vec![-x, -1.0, 2.0],
    }
}

/// Lets calls 0 to 7 of as many threads wait for a device: the first at its gate, the others in its queue. Then calls `release` and
/// opens the gate. Returns what the calls return.
fn pile_up(
    pool: &DevicePool,
    device: &HostDevice,
    release: impl FnOnce(),
) -> Vec<std::thread::Result<Result<Vec<f32>>>> {
    device.set_gate(Some(0));
    scope(|scope| {
        let _gate = Opened(device);
        let first = scope.spawn(|| call(pool, 0));
        device.await_at_gate(1);
        let others = (1..CALLS).map(|number| {
            let thread = scope.spawn(move || call(pool, number));
            await_waiting(pool, number);
            thread
        });
        let others: Vec<ScopedJoinHandle<'_, _>> = others.collect();
        release();
        device.set_gate(None);
        [first].into_iter().chain(others).map(ScopedJoinHandle::join).collect()
    })
}

#[track_caller]
fn assert_all(found: Vec<std::thread::Result<Result<Vec<f32>>>>) {
    for (number, found) in found.into_iter().enumerate() {
        assert_eq!(found.unwrap(), Ok(expected(number)), "call {number}");
    }
}

#[test]
fn calls_that_wait_for_a_device_are_one_submission() {
    let kind = |direct, suspends, late_errors| HostOptions { direct, suspends, late_errors, ..HostOptions::default() };
    for options in [kind(false, false, false), kind(true, false, false), kind(true, true, true)] {
        let device = devices(1, &options).remove(0);
        let pool = DevicePool::of(vec![device.clone()]).unwrap();
        for round in 0..3 {
            let before = device.statistics();
            assert_all(pile_up(&pool, &device, || ()));
            let spent = device.statistics() - before;
            assert_eq!((spent.submissions, spent.dispatches), (2, CALLS as u64), "round {round}");
            if round > 1 {
                assert_eq!(spent.made(), 0, "what ran before runs again: {spent}");
            }
            assert_eq!(pool.waiting(), 0);
        }
    }
}

#[test]
fn a_call_that_fails_does_not_fail_the_others() {
    let device = devices(1, &HostOptions::default()).remove(0);
    let pool = DevicePool::of(vec![device.clone()]).unwrap();
    device.set_gate(Some(0));
    device.refuse(Some("softmax"));
    scope(|scope| {
        let _gate = Opened(&device);
        let first = scope.spawn(|| pool.relu(&[-1.0, 1.0]));
        device.await_at_gate(1);
        let outside = scope.spawn(|| pool.gather(&[1.0, 2.0], 1, &[0, 7]));
        await_waiting(&pool, 1);
        let fine = scope.spawn(|| pool.neg(&[1.0]));
        await_waiting(&pool, 2);
        // Its kernel is refused before it waits, and again when it runs alone.
        let refused = scope.spawn(|| pool.softmax(&[1.0, 2.0], 2)).join().unwrap();
        assert!(matches!(refused, Err(Error::Driver { .. })), "{refused:?}");
        device.set_gate(None);
        assert_eq!(first.join().unwrap().unwrap(), [0.0, 1.0]);
        assert_eq!(outside.join().unwrap(), Err(Error::Index { op: "gather", position: 1, index: 7, bound: 2 }));
        assert_eq!(fine.join().unwrap().unwrap(), [-1.0]);
    });
}

#[test]
fn calls_whose_submission_fails_run_alone() {
    let device = devices(1, &HostOptions::default()).remove(0);
    let pool = DevicePool::of(vec![device.clone()]).unwrap();
    device.fail_together(Some(|| Error::OutOfMemory { bytes: 7 }));
    let before = device.statistics();
    assert_all(pile_up(&pool, &device, || ()));
    assert_eq!((device.statistics() - before).submissions, CALLS as u64);
    device.fail_together(None);
    assert_all(pile_up(&pool, &device, || ()));
}

#[test]
fn a_caller_that_panics_leaves_the_device_to_the_others() {
    let device = devices(1, &HostOptions::default()).remove(0);
    let pool = DevicePool::of(vec![device.clone()]).unwrap();
    device.fail_together(Some(|| panic!("a defect of the driver")));
    let mut found = pile_up(&pool, &device, || ());
    assert!(found[1].is_err(), "the first that waited submits");
    found[1] = Ok(Ok(expected(1)));
    assert_all(found);
    device.fail_together(None);
    assert_all(pile_up(&pool, &device, || ()));
}

#[test]
fn a_caller_with_a_stream_of_calls_does_not_starve_another() {
    let device = devices(1, &HostOptions::default()).remove(0);
    let pool = DevicePool::of(vec![device.clone()]).unwrap();
    device.set_gate(Some(0));
    let (done, stops) = (AtomicUsize::new(0), AtomicBool::new(false));
    scope(|scope| {
        let _gate = Opened(&device);
        let stream = scope.spawn(|| {
            while !stops.load(Ordering::SeqCst) {
                call(&pool, 0).unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        for _ in 0..5 {
            device.await_at_gate(1);
            let other = scope.spawn(|| call(&pool, 1));
            await_waiting(&pool, 1);
            let before = done.load(Ordering::SeqCst);
            // A call of the stream is on the device; the next submission contains the other call, and perhaps the next of the stream.
            device.set_gate(Some(2));
            assert_eq!(other.join().unwrap(), Ok(expected(1)));
            assert!(done.load(Ordering::SeqCst) - before <= 2);
        }
        stops.store(true, Ordering::SeqCst);
        device.set_gate(None);
        stream.join().unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "a hundred threads")]
fn calls_are_submitted_in_the_order_in_which_they_came() {
    let device = devices(1, &HostOptions::default()).remove(0);
    let pool = DevicePool::of(vec![device.clone()]).unwrap();
    device.set_gate(Some(0));
    let (calls, before) = (70, device.statistics());
    scope(|scope| {
        let _gate = Opened(&device);
        let threads = (0..=calls).map(|number| {
            let thread = scope.spawn(|| call(&pool, 0));
            match number {
                0 => device.await_at_gate(1),
                waiting => await_waiting(&pool, waiting),
            }
            thread
        });
        let mut threads: Vec<_> = threads.collect();
        let last = threads.split_off(65);
        device.set_gate(Some(2));
        // The first alone, and then as many as a submission takes, from the front.
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Ok(expected(0)));
        }
        device.await_at_gate(1);
        assert_eq!((device.statistics() - before).submissions, 2);
        assert!(last.iter().all(|thread| !thread.is_finished()));
        device.set_gate(None);
        assert!(last.into_iter().all(|thread| thread.join().unwrap().is_ok()));
    });
    assert_eq!((device.statistics() - before).submissions, 3);
}

/// More than small, less than what is cut.
const MEDIUM: usize = 100_000;

#[test]
#[cfg_attr(miri, ignore = "the operands are megabytes")]
fn other_work_takes_turns() {
    let device = devices(1, &HostOptions::default()).remove(0);
    let pool = DevicePool::of(vec![device.clone()]).unwrap();
    let x = numbers(MEDIUM);
    device.set_gate(Some(0));
    scope(|scope| {
        let _gate = Opened(&device);
        let threads: Vec<_> = (0..5).map(|_| scope.spawn(|| pool.neg(&x))).collect();
        device.await_at_gate(3);
        await_waiting(&pool, 2);
        // A small call does not wait for those behind the gate to leave.
        let small = scope.spawn(|| call(&pool, 1));
        device.await_at_gate(4);
        device.set_gate(None);
        assert_eq!(small.join().unwrap(), Ok(expected(1)));
        let negated: Vec<f32> = x.iter().map(|x| -x).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap().unwrap() == negated));
    });
    assert_eq!(pool.waiting(), 0);
}

#[test]
fn threads_that_come_together_choose_different_devices() {
    let devices = devices(4, &HostOptions::default());
    let pool = DevicePool::of(devices.clone()).unwrap();
    let barrier = std::sync::Barrier::new(8);
    for _ in 0..if cfg!(miri) { 2 } else { 50 } {
        let mut labels: Vec<String> = scope(|scope| {
            let threads = (0..8).map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let lent = pool.least_loaded(10).unwrap();
                    // Nobody gives the device back before all have one.
                    barrier.wait();
                    lent.device().label()
                })
            });
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        labels.sort();
        let each = |i: usize| vec![format!("device {i}"); 2];
        assert_eq!(labels, (0..4).flat_map(each).collect::<Vec<_>>());
    }
}

/// Gives work to all devices but the first, so that all calls go to that.
fn keep_busy(pool: &DevicePool, devices: usize) -> Vec<kiln_device::Lent<'_, HostDevice>> {
    let mut lent: Vec<_> = (0..devices).map(|_| pool.least_loaded(1 << 40).unwrap()).collect();
    assert_eq!(lent.remove(0).device().label(), "device 0");
    lent
}

/// Loses a device at each submission from the moment on at which a call is at its gate and the others wait in its queue.
#[test]
fn calls_that_a_device_is_lost_in_are_done_by_the_others() {
    for count in [2, 3] {
        // The first call submits a program and reads; so do the others together. Beyond that the device is not lost.
        for n in 0..=4 {
            let devices = devices(count, &HostOptions::default());
            let pool = DevicePool::of(devices.clone()).unwrap();
            let others = keep_busy(&pool, count);
            let first = &devices[0];
            let found = pile_up(&pool, first, || first.lose_at(n));
            assert_all(found);
            assert_eq!(first.is_lost(), n < 4, "submission {n}");
            drop(others);
            assert_eq!(call(&pool, 5), Ok(expected(5)));
        }
    }
}

#[test]
fn all_devices_are_lost_while_calls_wait() {
    for n in 0..4 {
        let devices = devices(2, &HostOptions::default());
        let pool = DevicePool::of(devices.clone()).unwrap();
        let busy = keep_busy(&pool, 2);
        let found = pile_up(&pool, &devices[0], || {
            devices[0].lose_at(n);
            devices[1].lose();
        });
        drop(busy);
        for (number, found) in found.into_iter().enumerate() {
            let found = found.unwrap();
            match found {
                // The first call was done before.
                Ok(found) => assert!(number == 0 && n >= 2 && found == expected(0)),
                Err(error) => assert!(matches!(error, Error::DeviceLost { .. }), "{error}"),
            }
        }
        assert!(matches!(call(&pool, 0), Err(Error::DeviceLost { .. })));
        assert_eq!(pool.waiting(), 0);
    }
}

/// Threads call while the devices are lost one after the other: each call ends, with its result or with the loss.
#[test]
fn nothing_hangs_while_devices_are_lost() {
    let rounds = if cfg!(miri) { 1 } else { 40 };
    for round in 0..rounds {
        let devices = devices(3, &HostOptions::default());
        let pool = DevicePool::of(devices.clone()).unwrap();
        devices[0].lose_at(round);
        devices[1].lose_at(2 * round);
        scope(|scope| {
            for number in 0..CALLS {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..10 {
                        assert_eq!(call(pool, number), Ok(expected(number)));
                    }
                });
            }
        });
        assert!(!devices[2].is_lost());
        assert_eq!(call(&pool, 3), Ok(expected(3)));
    }
}
