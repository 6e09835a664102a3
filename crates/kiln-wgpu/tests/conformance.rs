//! Every case of every operation on a GPU, against the f64 reference. `KILN_OP=name` narrows it to one operation.

mod support;

use std::collections::BTreeMap;

use kiln_core::Operations;
use kiln_core::op::{all_cases, reference};
use kiln_wgpu::{GpuBackend, GpuDevice, numerics};

#[test]
fn every_operation_keeps_its_contract() {
    support::device().into_iter().for_each(conforms);
}

/// The variants of the kernels for browsers.
#[test]
fn every_operation_keeps_its_contract_in_plain_webgpu() {
    support::plain_device().into_iter().for_each(conforms);
}

fn conforms(device: GpuDevice) {
    println!("on {}", device.adapter());
    let backend = GpuBackend::on(device);
    let only = std::env::var("KILN_OP").ok();
    let mut failures = BTreeMap::<&str, (usize, String)>::new();
    let mut worst = BTreeMap::<&str, reference::Accuracy>::new();
    for case in all_cases().iter().filter(|case| only.as_deref().is_none_or(|name| name == case.op.name())) {
        match reference::conform_within(case, numerics::bound, true, |op, inputs| backend.run(op, inputs)) {
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
