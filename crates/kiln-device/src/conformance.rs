//! The conformance suite of a backend: every case of every operation against the f64 reference.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kiln_ir::op::reference::{Accuracy, conform_within};
use kiln_ir::op::{Bound, Gather, IndexAdd, MatmulByExpert, Op, Operation, Scatter, WriteRows, all_cases};
use kiln_ir::{Buffer, DType, Data, Error, Operand, Operations, QuantFormat, Record, Result, Shape, TensorType};

use crate::backend::Backend;
use crate::batch::Batch;
use crate::driver::Driver;
use crate::state::State;

/// The handling of subnormal numbers by a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subnormals {
    /// It preserves subnormal numbers.
    Kept,
    /// It may flush them to zero anywhere, as WGSL allows.
    MayFlush,
}

/// The number in the environment variable `KILN_SAMPLE`: tests with many cases run every n-th of them. At least 1, which means
/// every case.
pub fn sample() -> usize {
    std::env::var("KILN_SAMPLE").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// Runs the cases of the wanted operations on a device and prints the worst error of each operation. The environment variable
/// `KILN_OP` narrows it to one operation.
///
/// With `KILN_SAMPLE=n` in the environment every `n * share`-th case of each operation runs, from the `share`-th on, and a quarter as
/// many of attention and of quantised products, where almost every case has a kernel of its own: a driver in software takes a
/// second to compile one. Variants of a device that share most kernels take shares of 1, 2 and 4, and so different cases. Without the variable every case runs.
///
/// # Errors
/// The failures: for each operation the number of cases and the first reason. Also when no case ran at all, or of an operation.
pub fn check<D: Driver>(
    device: &D,
    subnormals: Subnormals,
    share: usize,
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
    let sample = sample();
    let first = if sample == 1 { 0 } else { share - 1 };
    let step_of = |op: &Op| match op {
        _ if sample == 1 => 1,
        Op::Attention(_) | Op::QuantMatmul(_) | Op::MatmulByExpert(_) => 4 * sample * share,
        _ => sample * share,
    };
    let mut cases = BTreeMap::<&str, usize>::new();
    let mut took = BTreeMap::<&str, Duration>::new();
    for case in all_cases().iter().filter(|case| wanted(&case.op)) {
        let number = cases.entry(case.op.name()).or_default();
        *number += 1;
        if (*number - 1) % step_of(&case.op) != first {
            continue;
        }
        let began = Instant::now();
        let outcome = conform_within(case, &bound, flushes, |op, inputs| backend.run(op, inputs));
        *took.entry(case.op.name()).or_default() += began.elapsed();
        match outcome {
            Ok(accuracy) => {
                let seen = worst.entry(case.op.name()).or_default();
                *seen = seen.merge(accuracy);
            }
            Err(why) => failures.entry(case.op.name()).or_insert((0, why)).0 += 1,
        }
    }
    for (&name, &number) in &cases {
        if !worst.contains_key(name) && !failures.contains_key(name) {
            failures.insert(name, (0, format!("KILN_SAMPLE skips all of its {number} cases; lower it")));
        }
    }
    for op in [Op::from(Gather), Scatter.into(), IndexAdd.into()] {
        if wanted(&op)
            && let Err(why) = stray_indices_are_reported(&backend, op)
        {
            failures.entry(op.name()).or_insert((0, why)).0 += 1;
        }
    }
    let experts = Op::from(MatmulByExpert);
    if wanted(&experts)
        && let Err(why) = stray_experts_are_reported(&backend)
    {
        failures.entry(experts.name()).or_insert((0, why)).0 += 1;
    }
    let write = Op::from(WriteRows);
    if wanted(&write)
        && let Err(why) = stray_positions_are_reported(device)
    {
        failures.entry(write.name()).or_insert((0, why)).0 += 1;
    }
    for (name, accuracy) in &worst {
        let took = took.get(name).copied().unwrap_or_default();
        println!("{name}: worst {:.3} of {} elements, {took:.1?}", accuracy.worst, accuracy.compared);
    }
    if worst.is_empty() && failures.is_empty() {
        return Err("no case ran".into());
    }
    let report: Vec<String> = failures.iter().map(|(op, (n, why))| format!("{op}: {n} cases, first: {why}")).collect();
    if report.is_empty() { Ok(()) } else { Err(report.join("\n")) }
}

/// Writes rows to a state with two positions out of range: the error must name the first of them, and the state must
/// not change; valid positions must be written before and after. Rows have 0 to 300 columns, and there are 4 to 700 of
/// them.
fn stray_positions_are_reported<D: Driver>(device: &D) -> std::result::Result<(), String> {
    const ROWS: usize = 900;
    let check = |columns: usize, count: usize| -> Result<Option<String>> {
        let ones = vec![1.0; 2 * ROWS * columns];
        let state = State::upload(device, &Operand::f32(&ones, &[2, ROWS, columns])?)?;
        let mut batch = Batch::new(device.clone());
        let held = batch.state(&state)?;
        let rows = vec![2.0; 2 * count * columns];
        let rows = batch.upload(&rows, &[2, count, columns])?;
        let mut positions: Vec<u32> = (0..count as u32).map(|i| ROWS as u32 - 1 - i).collect();
        let at = batch.upload_indices(&positions, &[count])?;
        batch.write_rows(held, rows, at)?;
        batch.execute(&[])?;
        let written = state.read()?;
        let sum: f32 = written.as_data().f32().iter().sum();
        if sum != (2 * columns * (ROWS + count)) as f32 {
            return Ok(Some(format!("the rows add up to {sum}")));
        }
        (positions[count / 2], positions[count - 1]) = (ROWS as u32, u32::MAX - 1);
        positions[0] = 0;
        batch.set_data(at, Data::U32(&positions))?;
        let expected = Error::Index { op: WriteRows.name(), position: count / 2, index: ROWS, bound: ROWS };
        match batch.execute(&[]) {
            Err(found) if found == expected => {}
            found => return Ok(Some(format!("{found:?}, not {expected}"))),
        }
        Ok((state.read()? != written).then(|| "a row was written beside the error".into()))
    };
    for columns in [1, 3, 4, 300, 0] {
        for count in [4, 700] {
            let failed = |why: String| Err(format!("{count} rows of {columns} columns: {why}"));
            match check(columns, count) {
                Ok(None) => {}
                Ok(Some(why)) => return failed(why),
                Err(error) => return failed(error.to_string()),
            }
        }
    }
    Ok(())
}

/// Multiplies with two expert indices out of range: the error must name the first of them, and valid indices must
/// succeed before and after. There are 2 to 900 indices, and f32, quantised and empty weights.
fn stray_experts_are_reported<D: Driver>(backend: &Backend<D>) -> std::result::Result<(), String> {
    const EXPERTS: usize = 5;
    let check = |dtype: DType, [n, k]: [usize; 2], rows: usize| -> Result<Option<String>> {
        let x = vec![1.0; rows * k];
        let x = Operand::f32(&x, &[rows, k])?;
        let weights = TensorType::of(dtype, Shape::new(&[EXPERTS, n, k])?)?;
        let zeros = Buffer::zeros(&weights)?;
        let weights = Operand::new(zeros.as_data(), weights.shape)?;
        let mut indices = vec![EXPERTS as u32 - 1; 2 * rows];
        let run = |indices: &[u32]| {
            let indices = Operand::new(Data::U32(indices), Shape::new(&[rows, 2])?)?;
            backend.run(&Op::from(MatmulByExpert), &[x, weights, indices])
        };
        run(&indices)?;
        (indices[rows], indices[2 * rows - 1]) = (EXPERTS as u32, u32::MAX);
        let position = rows.min(2 * rows - 1);
        let index = indices[position] as usize;
        let expected = Error::Index { op: MatmulByExpert.name(), position, index, bound: EXPERTS };
        match run(&indices) {
            Err(found) if found == expected => {}
            found => return Ok(Some(format!("{found:?}, not {expected}"))),
        }
        run(&vec![0; 2 * rows])?;
        Ok(None)
    };
    for dtype in [DType::F32, DType::Blocks(QuantFormat::Q8_0)] {
        for (dims, rows) in [([3, 32], 1), ([3, 32], 450), ([0, 32], 4), ([3, 0], 4)] {
            let failed = |why: String| Err(format!("{rows} rows, {dtype:?} of {dims:?}: {why}"));
            match check(dtype, dims, rows) {
                Ok(None) => {}
                Ok(Some(why)) => return failed(why),
                Err(error) => return failed(error.to_string()),
            }
        }
    }
    Ok(())
}

/// Selects rows with two indices outside of the table: the error must name the first of them, and the operation with
/// valid indices must succeed before and after. Tables have 0 to 300 columns, and there are 4 to 20 000 indices.
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
