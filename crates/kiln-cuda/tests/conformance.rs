//! Every case of every operation, against the f64 reference. `KILN_OP=name` narrows it to one operation.

mod support;

use std::collections::BTreeMap;

use kiln_cuda::{CudaBackend, numerics};
use kiln_ir::op::{Op, all_cases, reference};
use kiln_ir::{Operations, TensorType};

#[test]
fn every_operation_keeps_its_contract() {
    let Some(device) = support::device() else { return };
    println!("on {}", device.info());
    let backend = CudaBackend::on(device.clone());
    let bound = |op: &Op, inputs: &[TensorType]| numerics::bound_on(&device, op, inputs);
    let only = std::env::var("KILN_OP").ok();
    let mut failures = BTreeMap::<&str, (usize, String)>::new();
    let mut worst = BTreeMap::<&str, reference::Accuracy>::new();
    let wanted = |op: &Op| only.as_deref().is_none_or(|name| name == op.name());
    for case in all_cases().iter().filter(|case| wanted(&case.op)) {
        match reference::conform_within(case, bound, false, |op, inputs| backend.run(op, inputs)) {
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
