//! Calibrates this machine in memory and prints what the decisions cost against the best place, measured:
//! `cargo run --release --example regret`. `-- --worst 20` also prints the problems that cost most, `--every 10` judges every tenth
//! problem alone, `--only quant_matmul` those of one operation, `--record FILE` keeps profile and times, to replay the decisions on
//! another machine, `--precision int8` rounds products, and `--shared` also measures large operations that the CPU and a GPU may
//! compute together.

use std::process::ExitCode;

use kiln::regret::{GraphRow, Policy, evaluate, shared};
use kiln::{Effort, Engine, Error, Precision, Result, grid};

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
    let value = |name: &str| std::env::args_os().skip_while(|argument| argument != name).nth(1);
    let number = |name: &str| value(name).and_then(|n| n.to_str()?.parse().ok());
    let (worst, every) = (number("--worst").unwrap_or(0), number("--every").unwrap_or(1).max(1));
    let (only, precision) = (value("--only"), value("--precision"));
    let precision = precision.map_or(Ok(Precision::Contract), |name| name.to_string_lossy().parse())?;
    let mut engine = Engine::builder().without_profile().precision(precision).build()?;
    println!("{}", engine.calibrate(Effort::Quick, &mut |_| ())?);
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    let problems = grid::evaluation()?.into_iter().filter(|(probe, _)| wanted(probe.op.name()));
    let problems: Vec<_> = problems.step_by(every).collect();
    let report = evaluate(&engine, &problems, Effort::Quick, &mut |_| ())?;
    println!("measured in {:.1} s\n{report}\n", report.took.as_secs_f64());
    if let Some(file) = value("--record") {
        let written = std::fs::write(&file, report.recording(&engine).to_json());
        written.map_err(|e| Error::Unavailable { what: file.display().to_string(), reason: e.to_string() })?;
    }
    if std::env::args_os().any(|argument| argument == "--shared") {
        for row in shared(&engine)? {
            let (alone, seconds) = (row.alone * 1e3, row.seconds * 1e3);
            let how = if row.is_shared { "shared" } else { "not shared" };
            println!(
                "{}: {} {alone:.1} ms, engine {seconds:.1} ms ({how}), {:.2} x",
                row.problem,
                row.alone_on,
                alone / seconds
            );
        }
    }
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
    let mut graphs: Vec<&GraphRow> = report.graphs.iter().collect();
    graphs.sort_by(|a, b| b.regret().total_cmp(&a.regret()));
    for row in graphs.into_iter().take(worst) {
        let (planned, predicted) = (row.planned * 1e6, row.planned_predicted * 1e6);
        println!("{:5.1}%  {}, {} segments", row.regret() * 100.0, row.graph, row.segments);
        println!("       planned    {planned:12.3} µs, predicted {predicted:12.3} µs");
        for (device, (seconds, predicted)) in row.seconds.iter().zip(&row.predicted).enumerate() {
            let name = if device == 0 { "CPU".to_owned() } else { format!("GPU {}", device - 1) };
            println!("       {name:10} {:12.3} µs, predicted {:12.3} µs", seconds * 1e6, predicted * 1e6);
        }
    }
    Ok(())
}
