//! `cargo xtask test`: everything that has to hold before a change is merged, one step after another.
//!
//! A step is one row in `steps::all`. It passes, fails, or is skipped with the reason and the commands that would correct
//! it; with `CI=true` in the environment the step runs those commands instead. Later steps run after a failure, too, so one
//! run reports every problem. Steps that keep one processor busy for minutes run one after another on a second thread, in parallel with
//! the steps that follow them in the table: the first of them from the beginning, those that need cargo's main folder after the build.

mod dependencies;
mod isa;
mod programs;
mod run;
mod steps;
mod tools;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use run::{Outcome, Runner};
use steps::Step;

use crate::{Result, processor};

/// The names of the steps that run on every machine; those of instruction sets depend on its processor.
pub(crate) fn step_names() -> std::collections::BTreeSet<String> {
    steps::all().into_iter().map(|step| step.name).filter(|name| !isa::NAMES.contains(&name.as_str())).collect()
}

/// The steps to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave out the steps that take minutes.
    #[arg(long)]
    quick: bool,
    /// Run only steps whose name contains this; may be given several times.
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// A skip of a step whose name contains this is a failure; may be given several times, `all` means every step.
    #[arg(long, value_name = "STEP")]
    require: Vec<String>,
    /// Print the steps and end.
    #[arg(long)]
    list: bool,
}

/// One line of the table at the end.
struct Row {
    name: String,
    outcome: Outcome,
    tests: run::Counts,
    took: Duration,
    /// The time of processors that its commands took.
    spent: Duration,
}

/// Runs the steps in order and prints a table of them.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let steps = steps::all();
    let named = |names: &[String], step: &str| names.iter().any(|name| step.contains(name.as_str()));
    for name in arguments.only.iter().chain(arguments.require.iter().filter(|name| *name != "all")) {
        if !steps.iter().any(|step| step.name.contains(name.as_str())) {
            return Err(format!("no step is called {name:?}; `cargo xtask test --list` prints them").into());
        }
    }
    let chosen = steps.iter().filter(|step| {
        if arguments.only.is_empty() { !arguments.quick || step.quick } else { named(&arguments.only, &step.name) }
    });
    let chosen: Vec<&Step> = chosen.collect();
    if arguments.list {
        for step in chosen {
            println!("{:<20} {}{}", step.name, step.what, if step.quick { "" } else { " (not with --quick)" });
        }
        return Ok(ExitCode::SUCCESS);
    }

    let start = Instant::now();
    let mut runner = Runner::new()?;
    let required = |step: &str| named(&arguments.require, step) || arguments.require.iter().any(|name| name == "all");
    let rows = std::thread::scope(|scope| -> Result<_> {
        let (send, steps_beside) = std::sync::mpsc::channel::<&Step>();
        let (ended, rows_beside) = std::sync::mpsc::channel();
        scope.spawn(move || {
            for step in steps_beside {
                // Errors as text: those of this program cannot go from one thread to another.
                let row = run_beside(step, required(&step.name)).map_err(|error| error.to_string());
                if ended.send(row).is_err() {
                    break;
                }
            }
        });
        let (mut rows, mut beside) = (Vec::new(), Vec::<Row>::new());
        for step in &chosen {
            if step.beside {
                println!("\n=== {}: runs beside what follows", step.name);
                send.send(step).map_err(|_| "the steps beside others have ended")?;
                continue;
            }
            if let Some(name) = step.after.filter(|name| chosen.iter().any(|step| step.name == *name)) {
                while beside.iter().all(|row| row.name != name) {
                    beside.push(rows_beside.recv()??);
                }
            }
            println!("\n=== {}: {}", step.name, step.what);
            let row = run_step(step, required(&step.name), &mut runner);
            println!("{}", row.line());
            rows.push(row);
        }
        // Now the thread ends after the last step.
        drop(send);
        rows.extend(beside);
        for row in rows_beside {
            rows.push(row?);
        }
        Ok(rows)
    })?;
    Ok(report(&rows, start.elapsed()))
}

/// Runs a step that is a failure if it is skipped although it is required.
fn run_step(step: &Step, required: bool, runner: &mut Runner) -> Row {
    let began = Instant::now();
    processor::take();
    let outcome = match (step.run)(runner) {
        Outcome::Skipped { reason, remedy } if required => {
            Outcome::Failed(format!("required, but {}", with_remedy(&reason, &remedy)))
        }
        outcome => outcome,
    };
    let (took, spent) = (began.elapsed(), processor::take());
    Row { name: step.name.clone(), outcome, tests: runner.take_counts(), took, spent }
}

/// Runs a step while others run, and prints what its commands have written in one piece.
fn run_beside(step: &Step, required: bool) -> Result<Row> {
    let mut runner = Runner::logging()?;
    let row = run_step(step, required, &mut runner);
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n=== {}: {}", step.name, step.what)?;
    out.write_all(&runner.log()?)?;
    writeln!(out, "{}", row.line())?;
    Ok(row)
}

fn with_remedy(reason: &str, remedy: &[String]) -> String {
    if remedy.is_empty() { reason.to_owned() } else { format!("{reason}; run: {}", remedy.join(" && ")) }
}

impl Row {
    /// The tests of the step; a step without tests counts as one.
    fn counts(&self) -> run::Counts {
        let mut counts = self.tests;
        match self.outcome {
            // A command that failed without a failed test did not get as far as counting it.
            Outcome::Failed(_) if counts.failed == 0 => counts.failed = 1,
            Outcome::Skipped { .. } => counts.skipped += 1,
            Outcome::Passed(_) if counts == run::Counts::default() => counts.passed = 1,
            _ => {}
        }
        counts
    }

    fn line(&self) -> String {
        let (word, note) = match &self.outcome {
            Outcome::Passed(note) => ("pass", note.clone()),
            Outcome::Failed(why) => ("FAIL", why.clone()),
            Outcome::Skipped { reason, remedy } => ("skip", with_remedy(reason, remedy)),
        };
        let tests = match self.tests.passed + self.tests.failed {
            0 => String::new(),
            n => format!("{n} tests"),
        };
        let [took, spent] = [self.took, self.spent].map(|time| time.as_secs_f64());
        format!("{word}  {:<20} {took:>7.1} s {spent:>7.1} s  {tests:>10}  {note}", self.name).trim_end().to_owned()
    }
}

/// Prints the table; the last line has the sums.
fn report(rows: &[Row], took: Duration) -> ExitCode {
    println!("\n=== result: seconds, and those of processors that commands took");
    rows.iter().for_each(|row| println!("{}", row.line()));
    let sum = rows.iter().map(Row::counts).fold(run::Counts::default(), run::Counts::add);
    println!(
        "\n{} passed, {} failed, {} skipped in {} steps, {} min {:02} s",
        sum.passed,
        sum.failed,
        sum.skipped,
        rows.len(),
        took.as_secs() / 60,
        took.as_secs() % 60
    );
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
