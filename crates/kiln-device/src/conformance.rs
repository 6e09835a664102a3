//! The conformance suite of a backend: every case of every operation against the f64 reference.

use std::collections::BTreeMap;

use kiln_ir::op::reference::{Accuracy, conform_within};
use kiln_ir::op::{Bound, Op, all_cases};
use kiln_ir::{Operations, Result, TensorType};

use crate::backend::Backend;
use crate::driver::Driver;

/// How the numerics of a device differ from the contract of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subnormals {
    /// It keeps them.
    Kept,
    /// It may take them for zeros anywhere, as WGSL allows.
    MayFlush,
}

/// Runs the cases of the wanted operations on a device and prints the worst error of each operation. The environment variable
/// `KILN_OP` narrows it to one operation; with `KILN_SAMPLE=n` every n-th case of each operation runs, from its first on.
///
/// # Errors
/// What failed: for each operation the number of cases and the first reason. Also when no case ran.
pub fn check<D: Driver>(
    device: &D,
    subnormals: Subnormals,
    bound: impl Fn(&Op, &[TensorType]) -> Result<Bound>,
    wanted: impl Fn(&Op) -> bool,
) -> std::result::Result<(), String> {
    println!("on {}", device.label());
    let backend = Backend::on(device.clone());
    let only = std::env::var("KILN_OP").ok().filter(|name| !name.is_empty());
    let mut failures = BTreeMap::<&str, (usize, String)>::new();
    let mut worst = BTreeMap::<&str, Accuracy>::new();
    let wanted = |op: &Op| only.as_deref().map_or_else(|| wanted(op), |name| name == op.name());
    let flushes = subnormals == Subnormals::MayFlush;
    let sample = std::env::var("KILN_SAMPLE").ok().and_then(|n| n.parse::<usize>().ok()).unwrap_or(1).max(1);
    let mut cases = BTreeMap::<&str, usize>::new();
    for case in all_cases().iter().filter(|case| wanted(&case.op)) {
        let number = cases.entry(case.op.name()).or_default();
        *number += 1;
        if !(*number - 1).is_multiple_of(sample) {
            continue;
        }
        match conform_within(case, &bound, flushes, |op, inputs| backend.run(op, inputs)) {
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
    if worst.is_empty() && failures.is_empty() {
        return Err("no case ran".into());
    }
    let report: Vec<String> = failures.iter().map(|(op, (n, why))| format!("{op}: {n} cases, first: {why}")).collect();
    if report.is_empty() { Ok(()) } else { Err(report.join("\n")) }
}
