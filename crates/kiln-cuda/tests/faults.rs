//! Faults: each is a typed error, and everything else stays usable.

mod support;

use std::path::Path;

use kiln_cuda::{CudaBackend, CudaCommandBatch, CudaDevice, CudaDeviceOptions};
use kiln_ir::op::{Elementwise, Matmul};
use kiln_ir::{Data, Error, Operand, Operations, Record};

#[test]
fn a_device_that_is_lost_says_so_and_another_can_be_opened() {
    let Some(device) = support::device() else { return };
    let x = device.upload(&Operand::vector(&[1.0, 2.0])).unwrap();
    let mut batch = CudaCommandBatch::new(device.clone());
    let input = batch.import(&x).unwrap();
    let y = batch.neg(input).unwrap();
    let backend = CudaBackend::on(device.clone());
    assert_eq!(backend.neg(&[1.0]).unwrap(), [-1.0]);
    device.destroy();
    assert!(device.is_lost());
    let lost = |error: Error| assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    lost(x.read().unwrap_err());
    lost(batch.run(&[y]).unwrap_err());
    lost(device.finish().unwrap_err());
    lost(device.upload(&Operand::vector(&[1.0])).unwrap_err());
    lost(device.run(&Elementwise::neg().into(), &[&x]).unwrap_err());
    lost(backend.neg(&[1.0]).unwrap_err());
    drop((x, batch, backend, device));
    let device = support::device().unwrap();
    assert_eq!(CudaBackend::on(device).neg(&[1.0]).unwrap(), [-1.0]);
}

#[test]
fn no_memory_is_an_error_after_which_everything_goes_on() {
    let Some(device) = support::device() else { return };
    let mut batch = CudaCommandBatch::new(device.clone());
    let x = batch.upload(&[1.0, 2.0, 3.0], &[3]).unwrap();
    let doubled = batch.scale(x, 2.0).unwrap();
    // An outer product that exceeds the memory of any device.
    let column = batch.upload(&vec![1.0; 1 << 20], &[1 << 20, 1]).unwrap();
    let row = batch.upload(&vec![1.0; 1 << 20], &[1, 1 << 20]).unwrap();
    let huge = batch.matmul(column, row).unwrap();
    match batch.execute(&[huge]) {
        Err(Error::OutOfMemory { bytes }) => assert!(bytes >= 1 << 42, "{bytes}"),
        other => panic!("{other:?}"),
    }
    assert!(!device.is_lost());
    assert_eq!(batch.run(&[doubled]).unwrap()[0].as_data().f32(), [2.0, 4.0, 6.0]);
}

#[test]
fn an_index_outside_of_its_table_is_an_error_and_the_next_run_goes_well() {
    let Some(device) = support::device() else { return };
    let backend = CudaBackend::on(device.clone());
    let table: Vec<f32> = (0..12).map(|i| i as f32).collect();
    for (indices, position, index) in
        [(vec![0, 3, 1, 9], 1, 3), ([vec![2; 1000], vec![u32::MAX]].concat(), 1000, u32::MAX)]
    {
        let error = backend.gather(&table, 4, &indices).unwrap_err();
        assert_eq!(error, Error::Index { op: "gather", position, index: index as usize, bound: 3 });
    }
    assert_eq!(backend.gather(&table, 4, &[2, 0]).unwrap(), [8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0]);
    let mut batch = CudaCommandBatch::new(device);
    let x = batch.upload(&table, &[3, 4]).unwrap();
    let chosen = batch.upload_indices(&[1, 5], &[2]).unwrap();
    let rows = batch.gather(x, chosen).unwrap();
    let sum = batch.sum(rows).unwrap();
    assert!(matches!(batch.execute(&[sum]), Err(Error::Index { position: 1, index: 5, .. })));
    assert!(batch.read(sum).is_err(), "nothing was computed");
    batch.set_data(chosen, Data::U32(&[1, 2])).unwrap();
    for _ in 0..3 {
        assert_eq!(batch.run(&[sum]).unwrap()[0].as_data().f32(), [60.0]);
    }
}

#[test]
fn tensors_of_another_device_are_refused() {
    let (Some(one), Some(other)) = (support::device(), support::device()) else { return };
    let x = one.upload(&Operand::vector(&[1.0])).unwrap();
    assert!(matches!(other.run(&Elementwise::neg().into(), &[&x]), Err(Error::Unavailable { .. })));
    assert!(matches!(CudaCommandBatch::new(other).import(&x), Err(Error::Unavailable { .. })));
}

#[test]
fn shapes_that_do_not_fit_are_refused_before_anything_runs() {
    let Some(device) = support::device() else { return };
    let x = device.upload(&Operand::vector(&[1.0, 2.0])).unwrap();
    assert!(matches!(device.run(&Matmul::default().into(), &[&x, &x]), Err(Error::Shape { .. })));
    assert_eq!(device.compiled_kernels(), 0);
}

#[test]
fn a_device_that_is_not_there_is_no_device() {
    let Ok(devices) = CudaDevice::list() else { return };
    let beyond = devices.len() as u32;
    assert!(matches!(CudaDevice::open(beyond, &CudaDeviceOptions::new()), Err(Error::Unavailable { .. })));
}

/// Compiled kernels outlive the process in files; what is damaged is made anew, and what cannot be written does no harm.
#[test]
fn compiled_kernels_are_kept_and_damage_is_mended() {
    let folder = std::env::temp_dir().join(format!("kiln-cuda-{}", std::process::id()));
    let open = |folder: &Path| support::device_with(&CudaDeviceOptions::new().kernel_folder(folder));
    let Some(device) = open(&folder) else { return };
    let run = |device| assert_eq!(CudaBackend::on(device).scale(&[1.0, 2.0], 3.0).unwrap(), [3.0, 6.0]);
    run(device);
    let files = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let [file] = &files()[..] else { panic!("{:?}", files()) };
    let whole = std::fs::read(file).unwrap();
    let written = std::fs::metadata(file).unwrap().modified().unwrap();
    run(open(&folder).unwrap());
    assert_eq!(std::fs::metadata(file).unwrap().modified().unwrap(), written, "what is whole is used as it is");
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    for bytes in [&damaged[..], &whole[..100], b""] {
        std::fs::write(file, bytes).unwrap();
        run(open(&folder).unwrap());
        assert_eq!(std::fs::read(file).unwrap(), whole);
    }
    // A file with the name of the folder.
    run(open(&file.join("folder")).unwrap());
    std::fs::remove_dir_all(folder).unwrap();
}
