//! The step `release` of `cargo xtask test`: every case of every operation on every instruction set of this machine, as the optimiser
//! of the release profile has compiled the kernels.

use std::process::ExitCode;

use xtask_verify::{cases, instruction_sets, run};

fn main() -> ExitCode {
    let rows = run(&cases(|_| true), &instruction_sets(), |_| {});
    let failures =
        rows.iter().filter_map(|row| Some(format!("{} on {}: {}", row.op, row.backend, row.failure.as_ref()?)));
    let failures: Vec<String> = failures.collect();
    failures.iter().for_each(|failure| println!("{failure}"));
    let ran: usize = rows.iter().map(|row| row.cases).sum();
    println!("{ran} cases, failures in {} rows of {}", failures.len(), rows.len());
    if ran > 0 && failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
