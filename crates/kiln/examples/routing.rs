//! Prints where operations go over their sizes, and why.
//!
//! `cargo run --release --example routing`: decides by the profile of this machine, or by built-in constants where it was
//! not calibrated. `-- --calibrate` measures the machine first (about half a minute, twice as long beside a GPU).

use std::io::IsTerminal;
use std::process::ExitCode;

use kiln::op::{Elementwise, Matmul, Op, Reduce, Reduction};
use kiln::{Effort, Engine, Problem, Residency, Result, Shape, TensorType};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("routing: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut engine = Engine::new()?;
    if std::env::args_os().skip(1).any(|argument| argument == "--calibrate") {
        // Shows the progress in one line of a terminal; a file or a pipe gets only the report.
        let shown = std::io::stderr().is_terminal();
        let report = engine.calibrate(Effort::Quick, &mut |progress| {
            if shown {
                eprint!("\rcalibrating {:3}/{} {:16}", progress.done + 1, progress.total, progress.what);
            }
        })?;
        eprintln!("{}{report}", if shown { "\r" } else { "" });
    }
    println!("{}\nprofile: {}\n", engine.machine(), engine.profile_status());

    let vector = |n: usize| Ok(TensorType::f32(Shape::new(&[n])?));
    let square = |n: usize| Ok(TensorType::f32(Shape::new(&[n, n])?));
    println!("{:22} {:>12}  {:12} {:>12}", "operation", "size", "place", "predicted");
    for power in (4..=24).step_by(2) {
        let x = vector(1 << power)?;
        print_row(&engine, Elementwise::add().into(), &[x, x])?;
    }
    for power in (4..=24).step_by(2) {
        print_row(&engine, Elementwise::tanh().into(), &[vector(1 << power)?])?;
    }
    for power in (4..=24).step_by(2) {
        print_row(&engine, Reduce::all(Reduction::Sum).into(), &[vector(1 << power)?])?;
    }
    for n in [4, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048] {
        print_row(&engine, Matmul::default().into(), &[square(n)?, square(n)?])?;
    }

    println!("\nOne decision in full:\n");
    println!("{}", engine.explain(Matmul::default(), &[square(512)?, square(512)?])?);
    Ok(())
}

fn print_row(engine: &Engine, op: Op, inputs: &[TensorType]) -> Result<()> {
    let problem = Problem::new(&op, inputs)?;
    let decision = engine.router().decide(&problem, &Residency::host());
    let size = inputs.first().map_or(String::new(), |ty| ty.shape.to_string());
    let unsure = if decision.is_unsure() { "unsure" } else { "" };
    let micros = decision.seconds() * 1e6;
    println!("{:22} {size:>12}  {:12} {micros:>9.2} µs  {unsure}", op.name(), decision.place().name);
    Ok(())
}
