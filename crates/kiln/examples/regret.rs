//! Calibrates this machine in memory and prints what the decisions cost against the best place, measured:
//! `cargo run --release --example regret`. `-- --worst 20` also prints the problems that cost most.

use std::process::ExitCode;

use kiln::regret::{Policy, evaluate};
use kiln::{Effort, Engine, Result, grid};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("regret: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let worst = arguments.iter().skip_while(|a| *a != "--worst").nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut engine = Engine::builder().without_profile().build()?;
    println!("{}", engine.calibrate(Effort::Quick, &mut |_| ())?);
    let report = evaluate(&engine, &grid::evaluation()?, Effort::Quick, &mut |_| ())?;
    println!("measured in {:.1} s\n{report}\n", report.took.as_secs_f64());
    for row in report.worst(Policy::Router, worst) {
        let chosen = row.chosen[Policy::Router as usize];
        let held_out = if row.held_out { "held out" } else { "" };
        println!("{:5.1}%  {} {held_out}", row.regret(Policy::Router) * 100.0, row.problem);
        for (i, place) in report.places.iter().enumerate() {
            let mark = if i == chosen { "->" } else { "" };
            println!(
                "    {mark:2} {place:10} {:12.3} µs, predicted {:12.3} µs",
                row.seconds[i] * 1e6,
                row.predicted[i] * 1e6
            );
        }
    }
    Ok(())
}
