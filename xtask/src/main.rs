//! Everything a person runs: `cargo xtask --help` lists it.
//!
//! A subcommand is a module with an `Arguments` struct and a function `run`, and one row in [`Command`].

mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// kiln: what a person runs.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Formatting, lints, documentation and every test on every instruction set and target that can run here.
    Test(test::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
