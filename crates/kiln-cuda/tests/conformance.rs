//! Every case of every operation, against the f64 reference. `KILN_OP=name` narrows it to one operation.

mod support;

use kiln_cuda::numerics;
use kiln_device::conformance::{self, Subnormals};
use kiln_ir::TensorType;
use kiln_ir::op::Op;

#[test]
fn every_operation_keeps_its_contract() {
    let Some(device) = support::device() else { return };
    let bound = |op: &Op, inputs: &[TensorType]| numerics::bound_on(&device, op, inputs);
    conformance::check(&device, Subnormals::Kept, 1, bound, |_| true).unwrap();
}
