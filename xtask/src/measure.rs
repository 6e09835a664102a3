//! The commands of the package `xtask-measure`, which is compiled when one of them is first run.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::Result;

/// The arguments of that program, `--help` included.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Its options; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

/// Runs a command, in the folder of the caller.
pub(crate) fn run(command: &str, arguments: &Arguments) -> Result<ExitCode> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("measure/Cargo.toml");
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--release", "--manifest-path"]).arg(manifest);
    let status = cargo.args(["--", command]).args(&arguments.options).status();
    let status = status.map_err(|error| format!("`cargo run -p xtask-measure` did not start: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
