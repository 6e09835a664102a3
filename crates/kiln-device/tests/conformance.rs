//! The conformance suite on the test device: that the device is right, and that the suite can fail.

use kiln_device::conformance::{Subnormals, check};
use kiln_ir::graph::FusionLimits;
use kiln_ir::op::Op;

use crate::support::{HostDevice, HostOptions, device};

/// The operations whose cases are small enough for the f64 reference, twice.
fn is_quick(op: &Op) -> bool {
    match cfg!(miri) {
        true => matches!(op, Op::Transpose(_)),
        false => match op {
            Op::Elementwise(op) => ["add", "fma", "gelu"].contains(&op.kind().name()),
            Op::Convolve2d(_) | Op::ConvolveTranspose2d(_) | Op::Attention(_) => false,
            _ => true,
        },
    }
}

fn conforms(device: &HostDevice, wanted: impl Fn(&Op) -> bool) -> Result<(), String> {
    check(device, Subnormals::Kept, 1, Op::bound, wanted)
}

#[test]
fn the_test_device_conforms() {
    conforms(&device(), is_quick).unwrap();
}

#[test]
fn it_conforms_in_its_direct_form_and_without_fusion() {
    let options = HostOptions { direct: true, fusion: FusionLimits::NONE, ..HostOptions::default() };
    let wanted =
        |op: &Op| matches!(op, Op::Transpose(_)) || !cfg!(miri) && matches!(op, Op::Gather(_) | Op::Softmax(_));
    conforms(&HostDevice::new(options), wanted).unwrap();
}

#[test]
fn wrong_numbers_are_reported_by_operation() {
    let device = HostDevice::new(HostOptions { wrong: Some("transpose"), ..HostOptions::default() });
    let wanted = |op: &Op| matches!(op, Op::Transpose(_)) || !cfg!(miri) && matches!(op, Op::Gather(_));
    let report = conforms(&device, wanted).unwrap_err();
    assert!(report.starts_with("transpose: ") && report.contains("off by"), "{report}");
    assert!(!report.contains("gather"), "{report}");
}

#[test]
fn errors_and_losses_are_reported() {
    let device = HostDevice::new(HostOptions { unsupported: Some("transpose"), ..HostOptions::default() });
    let report = conforms(&device, |op| matches!(op, Op::Transpose(_))).unwrap_err();
    assert!(report.contains("no kernel"), "{report}");
    device.lose();
    let report = conforms(&device, |op| matches!(op, Op::Transpose(_))).unwrap_err();
    assert!(report.contains("unplugged"), "{report}");
}

#[test]
fn a_suite_without_cases_fails() {
    assert_eq!(conforms(&device(), |_| false).unwrap_err(), "no case ran");
}
