//! `cargo xtask bench` and `cargo xtask exhaustive`: the commands that need the backends.

mod bench;
mod exhaustive;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An error, as a sentence for the user of the command.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Measures kiln.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, long_about = None, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Calibrates this machine, verifies and measures every operation on it, and writes a report.
    Bench(bench::Arguments),
    /// Compares every element-wise operation of one operand with the f64 reference, for every f32.
    Exhaustive(exhaustive::Arguments),
}

/// Creates or replaces a file and its directory in one step. A path that is not a file, such as a pipe or a device, is written to.
///
/// # Errors
/// The message of the system, with the path.
fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let written = || {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            std::fs::create_dir_all(directory)?;
        }
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return std::fs::write(path, contents);
        }
        kiln_files::replace(path, |file| file.write_all(contents.as_ref()))
    };
    written().map_err(|error: std::io::Error| format!("{}: {error}", path.display()).into())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Exhaustive(arguments) => exhaustive::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_that_names_the_file() {
        let error = super::write(std::path::Path::new("/dev/full"), "a report").unwrap_err().to_string();
        assert!(error.starts_with("/dev/full: "), "{error}");
    }
}
