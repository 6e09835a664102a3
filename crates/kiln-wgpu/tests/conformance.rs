//! Every case of every operation on a GPU, against the f64 reference. `KILN_OP=name` narrows it to one operation.

mod support;

use std::collections::BTreeMap;

use kiln_ir::op::{Elementwise, Op, all_cases, reference};
use kiln_ir::{Operations, TensorType};
use kiln_wgpu::{DeviceOptions, GpuBackend, GpuDevice, numerics};

#[test]
fn every_operation_keeps_its_contract() {
    support::device().into_iter().for_each(|device| conforms(device, |_| true));
}

/// The variants of the kernels for browsers.
#[test]
fn every_operation_keeps_its_contract_in_plain_webgpu() {
    let device = support::device_with(&DeviceOptions::new().plain());
    device.into_iter().for_each(|device| conforms(device, |_| true));
}

/// The kernels that else go without, with checks. Of the element-wise functions, which have one frame, one.
#[test]
fn every_operation_keeps_its_contract_with_all_checks() {
    let device = support::device_with(&DeviceOptions::new().checks());
    let one = |op: &Op| !matches!(op, Op::Elementwise(op) if *op != Elementwise::add());
    device.into_iter().for_each(|device| conforms(device, one));
}

fn conforms(device: GpuDevice, wanted: impl Fn(&Op) -> bool) {
    println!("on {}", device.adapter());
    let backend = GpuBackend::on(device.clone());
    let bound = |op: &Op, inputs: &[TensorType]| numerics::bound_on(&device, op, inputs);
    let only = std::env::var("KILN_OP").ok();
    let mut failures = BTreeMap::<&str, (usize, String)>::new();
    let mut worst = BTreeMap::<&str, reference::Accuracy>::new();
    let wanted = |op: &Op| only.as_deref().map_or_else(|| wanted(op), |name| name == op.name());
    for case in all_cases().iter().filter(|case| wanted(&case.op)) {
        match reference::conform_within(case, bound, true, |op, inputs| backend.run(op, inputs)) {
            Ok(accuracy) => {
                let seen = worst.entry(case.op.name()).or_default();
                *seen = seen.merge(accuracy);
            }
            Err(why) => failures.entry(case.op.name()).or_insert((0, why)).0 += 1,
        }
    }
    for (name, accuracy) in &worst {
        println!("{name}: worst {:.3} of {} elements", accuracy.worst, accuracy.compared);
    }
    let report: Vec<String> = failures.iter().map(|(op, (n, why))| format!("{op}: {n} cases, first: {why}")).collect();
    assert!(report.is_empty(), "{}", report.join("\n"));
    assert!(!worst.is_empty(), "no case ran");
}
