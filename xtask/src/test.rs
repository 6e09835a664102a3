//! `cargo xtask test`.

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run only steps whose name contains this.
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
}

/// Runs the steps in order.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies inside of the workspace")?;
    let steps: [(&str, &[&str]); 3] = [
        ("format", &["fmt", "--all", "--check"]),
        ("clippy", &["clippy", "--workspace", "--exclude", "kiln-benches", "--all-targets", "--", "-D", "warnings"]),
        ("test", &["test", "--workspace", "--exclude", "kiln-benches"]),
    ];
    for (name, command) in steps {
        if arguments.only.as_deref().is_none_or(|only| name.contains(only)) {
            println!("{name}: cargo {}", command.join(" "));
            if !Command::new("cargo").args(command).current_dir(root).status()?.success() {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
