//! The time of each kernel, by the clock of the device.

mod support;

use kiln_ir::op::{Matmul, Softmax};
use kiln_ir::{Error, Operand, Record, f16};
use kiln_wgpu::{GpuCommandBatch, GpuDevice, GpuDeviceOptions};

/// A device that measures. Where the adapter has no clock it has to say so, and the test is left out.
fn device(options: GpuDeviceOptions) -> Option<GpuDevice> {
    support::device_where(&options.profile(), |error| match error {
        Error::Unavailable { what, reason } => what == "the time of each kernel" && reason.contains("no timestamps"),
        _ => false,
    })
}

fn names(batch: &GpuCommandBatch) -> Vec<String> {
    batch.profile().unwrap().kernels.iter().map(|kernel| kernel.name.clone()).collect()
}

#[test]
fn every_kernel_of_the_last_execution_has_a_time() {
    for options in [GpuDeviceOptions::new(), GpuDeviceOptions::new().plain()] {
        let Some(device) = device(options) else { return };
        let mut batch = GpuCommandBatch::new(device);
        let n = 300;
        let x = batch.upload(&vec![0.5; n * n], &[n, n]).unwrap();
        let product = batch.matmul(x, x).unwrap();
        let y = batch.softmax(product).unwrap();
        assert!(matches!(batch.profile(), Err(Error::Parameter { .. })), "nothing ran");
        batch.prepare(&[y]).unwrap();
        assert!(matches!(batch.profile(), Err(Error::Parameter { .. })), "nothing ran");
        let results = batch.run(&[y]).unwrap();
        assert!((results[0].as_data().f32()[7] - 1.0 / n as f32).abs() < 1e-6);
        let profile = batch.profile().unwrap();
        assert_eq!(profile, batch.profile().unwrap(), "it stays");
        let kernels = &profile.kernels;
        assert!(kernels.iter().any(|kernel| kernel.name == "matmul" && kernel.grid[0] > 1), "{profile}");
        assert_eq!(kernels.last().map(|kernel| kernel.name.as_str()), Some("softmax"), "{profile}");
        assert!(profile.nanoseconds() > 0.0 && kernels.iter().all(|kernel| kernel.nanoseconds >= 0.0), "{profile}");
        assert!(profile.nanoseconds() < 600e9, "{profile}");
        let table = profile.to_string();
        assert_eq!(table.lines().count(), kernels.len() + 2, "{table}");
        assert!(table.starts_with("kernel") && table.contains("total"), "{table}");

        let z = batch.relu(x).unwrap();
        batch.execute(&[z]).unwrap();
        assert_eq!(names(&batch), ["elementwise"]);
        batch.execute(&[x]).unwrap();
        assert_eq!(names(&batch), [""; 0], "there is nothing to compute");
    }
}

#[test]
fn more_workgroups_than_one_dimension_has_are_folded() {
    let Some(device) = device(GpuDeviceOptions::new()) else { return };
    let mut batch = GpuCommandBatch::new(device);
    // One workgroup for each of many small matrices.
    let n = 65_536 + 11;
    let x: Vec<f32> = (0..6 * n).map(|i| i as f32).collect();
    let x = batch.upload(&x, &[n, 2, 3]).unwrap();
    let y = batch.transpose(x).unwrap();
    let turned = batch.run(&[y]).unwrap();
    for (matrix, got) in turned[0].as_data().f32().chunks_exact(6).enumerate() {
        assert_eq!(got, [0, 3, 1, 4, 2, 5].map(|i| (6 * matrix + i) as f32));
    }
    let profile = batch.profile().unwrap();
    let [across, down, _] = profile.kernels[0].grid;
    assert!(down == 2 && across <= 65_535 && (across * down) as usize >= n, "{profile}");
}

#[test]
fn products_go_through_the_kernel_that_is_made_for_them() {
    for options in [GpuDeviceOptions::new(), GpuDeviceOptions::new().plain()] {
        let Some(device) = device(options) else { return };
        let cooperative = device.has_cooperative_matrices();
        let kernels = |a: &Operand<'_>, b: &Operand<'_>| {
            let (a, b) = (device.upload(a).unwrap(), device.upload(b).unwrap());
            let mut product = device.prepare(&Matmul::default().into(), &[&a, &b]).unwrap();
            product.run().unwrap();
            product.profile().unwrap().kernels.iter().map(|kernel| kernel.name.clone()).collect::<Vec<_>>()
        };
        let (single, half) = (vec![0.5; 256 * 256], vec![f16::ONE; 256 * 256]);
        let singles = |dims: [usize; 2]| Operand::f32(&single[..dims[0] * dims[1]], &dims).unwrap();
        let halves = |dims: [usize; 2]| Operand::elements(&half[..dims[0] * dims[1]], &dims).unwrap();
        let square = [256, 256];
        let tiled = if cooperative { "matmul_cooperative" } else { "matmul" };
        assert!(kernels(&halves(square), &halves(square)).contains(&tiled.to_owned()), "{}", device.adapter());
        // Rows that are not whole vectors, and f32, have no cooperative kernel.
        for names in [kernels(&halves([256, 250]), &halves([250, 250])), kernels(&singles(square), &singles(square))] {
            assert!(
                names.iter().any(|name| name == "matmul") && names.iter().all(|name| name != "matmul_cooperative"),
                "{names:?}"
            );
        }
        // A few vectors are limited by the memory bandwidth.
        for names in [kernels(&singles([1, 256]), &singles(square)), kernels(&singles(square), &singles([256, 1]))] {
            assert!(
                names.iter().any(|name| name.starts_with("matvec")) && names.iter().all(|name| name != "matmul"),
                "{names:?}"
            );
        }
    }
}

#[test]
fn kernels_of_several_submissions_are_all_there() {
    let Some(device) = device(GpuDeviceOptions::new()) else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let mut y = batch.upload(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    for _ in 0..1200 {
        y = batch.transpose(y).unwrap();
    }
    let before = device.statistics();
    batch.run(&[y]).unwrap();
    assert_eq!((device.statistics() - before).submissions, 3);
    let profile = batch.profile().unwrap();
    assert_eq!(profile.kernels.len(), 1200);
    assert!(profile.kernels.iter().all(|kernel| kernel.name == "transpose" && kernel.nanoseconds < 60e9));
    // Each kernel was timed; only software drivers need measurable time for every kernel.
    if device.adapter().kind == kiln_wgpu::AdapterKind::Software {
        for piece in profile.kernels.chunks(512) {
            assert!(piece.iter().any(|kernel| kernel.nanoseconds > 0.0));
        }
    }
}

#[test]
fn an_operation_tells_its_times_too() {
    let Some(device) = device(GpuDeviceOptions::new()) else { return };
    let x = device.upload(&Operand::f32(&[1.0; 64], &[8, 8]).unwrap()).unwrap();
    let mut softmax = device.prepare(&Softmax.into(), &[&x]).unwrap();
    assert!(matches!(softmax.profile(), Err(Error::Parameter { .. })));
    softmax.run().unwrap();
    assert_eq!(softmax.profile().unwrap().kernels.len(), 1);
    device.destroy();
    assert!(matches!(softmax.profile(), Err(Error::DeviceLost { .. })));
}

#[test]
fn a_device_that_was_not_asked_to_measure_says_so() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device);
    let x = batch.upload(&[1.0], &[1]).unwrap();
    let y = batch.relu(x).unwrap();
    batch.run(&[y]).unwrap();
    let refused = batch.profile().unwrap_err();
    assert!(
        matches!(&refused, Error::Unavailable { reason, .. } if reason.contains("`profile` in its options")),
        "{refused}"
    );
}
