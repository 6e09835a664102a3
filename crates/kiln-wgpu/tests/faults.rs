//! What goes wrong on a device: typed errors, host data intact, everything else still usable.

mod support;

use kiln_core::op::{Elementwise, Matmul};
use kiln_core::{Error, Operand, Operations, Record};
use kiln_wgpu::{AdapterChoice, GpuBackend, GpuCommandBatch, GpuDevice};

#[test]
fn a_device_that_is_destroyed_says_so_and_another_can_be_opened() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let host = [1.0, 2.0, 3.0];
    let x = batch.upload(&host, &[3]).unwrap();
    let y = batch.exp(x).unwrap();
    batch.execute().unwrap();
    let tensor = batch.tensor(y).unwrap();
    device.destroy();
    assert!(device.is_lost());
    let lost = |error: Option<Error>| matches!(error, Some(Error::DeviceLost { .. }));
    assert!(lost(batch.read(y).err()));
    assert!(lost(batch.execute().err()));
    assert!(lost(batch.set(x, &host).err()));
    assert!(lost(batch.upload(&host, &[3]).err()));
    assert!(lost(tensor.read().err()));
    assert!(lost(device.run(&Elementwise::relu().into(), &[&tensor]).err()));
    assert!(lost(GpuBackend::on(device).relu(&host).err()));
    let Some(again) = support::device() else { return };
    assert_eq!(GpuBackend::on(again).scale(&host, 2.0).unwrap(), [2.0, 4.0, 6.0]);
}

#[test]
fn a_device_destroyed_while_it_works_is_an_error() {
    let Some(device) = support::device() else { return };
    let n = 1 << 22;
    let mut batch = GpuCommandBatch::new(device.clone());
    let mut y = batch.upload(&vec![0.5; n], &[n]).unwrap();
    for _ in 0..40 {
        y = batch.tanh(y).unwrap();
        // Each a result of its own, so that the work is long.
        batch.mish(y).unwrap();
    }
    let other = device.clone();
    let ender = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        other.destroy();
    });
    // It may have been done just before.
    match batch.execute() {
        Ok(()) | Err(Error::DeviceLost { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    ender.join().unwrap();
    assert!(matches!(batch.execute(), Err(Error::DeviceLost { .. })));
}

#[test]
fn more_than_the_device_has_is_an_error_and_the_device_goes_on() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    // An outer product of two vectors: small operands, a result beyond any buffer.
    let n = 1 << 20;
    let x = device.upload(&Operand::f32(&vec![1.0; n], &[n, 1]).unwrap()).unwrap();
    let y = x.reshape(&[1, n]).unwrap();
    let refused = device.run(&Matmul::default().into(), &[&x, &y]).unwrap_err();
    assert!(matches!(refused, Error::Limit { .. } | Error::OutOfMemory { .. } | Error::Overflow { .. }), "{refused}");
    assert_eq!(backend.scale(&[1.0], 3.0).unwrap(), [3.0]);
}

#[test]
fn an_index_outside_of_its_table_is_found_on_the_device() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device);
    let table = batch.upload(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let indices = batch.upload_indices(&[1, 0, 7, 9], &[4]).unwrap();
    let rows = batch.gather(table, indices).unwrap();
    let Err(Error::Index { position, index, bound, .. }) = batch.run(&[rows]) else { panic!("no such row") };
    assert_eq!((position, index, bound), (2, 7, 2));
    assert!(batch.execute().is_err(), "also when nothing is read");
    // The tables are still there.
    assert_eq!(batch.read(table).unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn two_threads_on_one_device_and_ten_devices_in_one_process() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let backend = &backend;
            scope.spawn(move || {
                for i in 0..50 {
                    let factor = (thread * 100 + i) as f32;
                    let n = 100 + i;
                    assert_eq!(backend.scale(&vec![1.0; n], factor).unwrap(), vec![factor; n]);
                }
            });
        }
    });
    let devices: Vec<GpuDevice> = (0..10).filter_map(|_| support::device()).collect();
    for (i, device) in devices.into_iter().enumerate() {
        assert_eq!(GpuBackend::on(device).scale(&[1.0], i as f32).unwrap(), [i as f32]);
    }
}

#[test]
fn work_in_flight_may_be_dropped() {
    let Some(device) = support::device() else { return };
    for _ in 0..10 {
        let mut batch = GpuCommandBatch::new(device.clone());
        let x = batch.upload(&vec![0.5; 1 << 16], &[1 << 16]).unwrap();
        batch.mish(x).unwrap();
        batch.execute().unwrap();
    }
    device.trim();
    assert_eq!(GpuBackend::on(device).scale(&[1.0], 3.0).unwrap(), [3.0]);
}

#[test]
fn an_adapter_that_is_not_there_is_named_with_those_that_are() {
    let missing = GpuDevice::open(&AdapterChoice::Name("no such adapter".into())).unwrap_err();
    assert!(matches!(&missing, Error::Unavailable { what, .. } if what.contains("no such adapter")), "{missing}");
    assert!(matches!(GpuDevice::open(&AdapterChoice::Index(1000)), Err(Error::Unavailable { .. })));
    let lazy = GpuBackend::with_adapter(AdapterChoice::Index(1000));
    assert!(matches!(lazy.relu(&[1.0]), Err(Error::Unavailable { .. })));
    assert!(matches!(lazy.relu(&[1.0]), Err(Error::Unavailable { .. })), "each time the same");
}
