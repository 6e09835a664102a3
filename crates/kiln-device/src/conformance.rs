//! The conformance suite of a backend: every case of every operation against the f64 reference.

use std::collections::BTreeMap;

use kiln_ir::op::reference::{Accuracy, conform_within};
use kiln_ir::op::{Bound, Gather, IndexAdd, Op, Scatter, all_cases};
use kiln_ir::{Data, Error, Operand, Operations, Result, Shape, TensorType};

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
    for op in [Op::from(Gather), Scatter.into(), IndexAdd.into()] {
        if wanted(&op)
            && let Err(why) = stray_indices_are_reported(&backend, op)
        {
            failures.entry(op.name()).or_insert((0, why)).0 += 1;
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

/// Chooses rows with two indices outside of the table: the error must name the first of them, and the operation with sound indices
/// must succeed before and after. Tables have 0 to 300 columns, and there are 4 to 20 000 indices.
fn stray_indices_are_reported<D: Driver>(backend: &Backend<D>, op: Op) -> std::result::Result<(), String> {
    const ROWS: usize = 5;
    for columns in [3, 4, 300, 0] {
        let table = vec![1.0; ROWS * columns];
        let shape = Shape::new(&[ROWS, columns]).map_err(|e| e.to_string())?;
        let table = Operand::new(Data::F32(&table), shape).map_err(|e| e.to_string())?;
        for count in [4, 700, 20_000] {
            let mut indices = vec![ROWS as u32 - 1; count];
            let run = |indices: &[u32]| {
                let indices = Operand::new(Data::U32(indices), Shape::new(&[count])?)?;
                let source = vec![1.0; count * columns];
                let source = Operand::new(Data::F32(&source), Shape::new(&[count, columns])?)?;
                let operands = [table, indices, source];
                backend.run(&op, if matches!(op, Op::Gather(_)) { &operands[..2] } else { &operands })
            };
            run(&indices).map_err(|e| format!("{count} rows of {columns} columns: {e}"))?;
            (indices[count / 2], indices[count - 1]) = (ROWS as u32, u32::MAX);
            let expected = Error::Index { op: op.name(), position: count / 2, index: ROWS, bound: ROWS };
            match run(&indices) {
                Err(found) if found == expected => {}
                Err(found) => return Err(format!("{count} rows of {columns} columns: {found}, not {expected}")),
                Ok(_) => return Err(format!("{count} rows of {columns} columns: no error, not {expected}")),
            }
        }
    }
    Ok(())
}
