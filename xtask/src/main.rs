//! The commands for developers and for measuring a machine: `cargo xtask --help` lists them.
//!
//! A subcommand is a module with an `Arguments` struct and a function `run`, and one row in [`Command`]. This program is compiled before
//! the first test runs, so it depends on few crates; the commands that need the backends are in the package `xtask-measure`.

mod docs;
mod measure;
mod pages;
mod processor;
mod publish;
mod test;
mod web;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An error, as a sentence for the user of the command.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Tests, measures and builds kiln. `cargo xtask COMMAND --help` says more about each command.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, long_about = None, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Calibrates this machine, verifies and measures every operation on it, and writes a report.
    Bench(measure::Arguments),
    /// Checks formatting, lints and documentation, and runs every test on every instruction set and target that can run here.
    Test(test::Arguments),
    /// Writes docs/numerics.md and the table in README.md from the tables of operations.
    Docs(docs::Arguments),
    /// Packs the crates for the registry, and compiles the README's example against the packed copies. Uploads nothing.
    Publish,
    /// Builds kiln for browsers and its page into target/web, serves it, and tests it in Chromium, Firefox and Node.
    Web(web::Arguments),
    /// Compares every element-wise operation of one operand with the f64 reference, for every f32.
    Exhaustive(measure::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(arguments) => measure::run("bench", &arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Docs(arguments) => docs::run(&arguments),
        Command::Publish => publish::run(),
        Command::Web(arguments) => web::run(&arguments),
        Command::Exhaustive(arguments) => measure::run("exhaustive", &arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
