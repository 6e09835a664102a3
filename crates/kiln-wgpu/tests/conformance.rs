//! Every case of every operation on a GPU, against the f64 reference. `KILN_OP=name` narrows it to one operation.

mod support;

use kiln_device::conformance::{self, Subnormals};
use kiln_ir::TensorType;
use kiln_ir::op::{Elementwise, Op};
use kiln_wgpu::{GpuDevice, GpuDeviceOptions, numerics};

#[test]
fn every_operation_keeps_its_contract() {
    support::device().into_iter().for_each(|device| conforms(device, 1, |_| true));
}

/// The variants of the kernels for browsers.
#[test]
fn every_operation_keeps_its_contract_in_plain_webgpu() {
    let device = support::device_with(&GpuDeviceOptions::new().plain());
    device.into_iter().for_each(|device| conforms(device, 2, |_| true));
}

/// The kernels that else go without, with checks. Of the element-wise functions, which have one frame, one.
#[test]
fn every_operation_keeps_its_contract_with_all_checks() {
    let device = support::device_with(&GpuDeviceOptions::new().checks());
    let one = |op: &Op| !matches!(op, Op::Elementwise(op) if *op != Elementwise::add());
    device.into_iter().for_each(|device| conforms(device, 4, one));
}

fn conforms(device: GpuDevice, share: usize, wanted: impl Fn(&Op) -> bool) {
    let bound = |op: &Op, inputs: &[TensorType]| numerics::bound_on(&device, op, inputs);
    conformance::check(&device, Subnormals::MayFlush, share, bound, wanted).unwrap();
}
