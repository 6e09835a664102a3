//! Running the commands of a step.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::programs::Program;
use crate::{Result, processor};

/// The outcome of a step.
pub(super) enum Outcome {
    /// Everything held; a note for the table.
    Passed(String),
    /// Something did not hold.
    Failed(String),
    /// It cannot run here.
    Skipped {
        /// The missing tool or condition.
        reason: String,
        /// Commands that bring it.
        remedy: Vec<String>,
    },
}

impl Outcome {
    /// Passed, without a note.
    pub(super) const OK: Self = Self::Passed(String::new());
}

impl From<Result<()>> for Outcome {
    fn from(result: Result<()>) -> Self {
        match result {
            Ok(()) => Self::OK,
            Err(why) => Self::Failed(why.to_string()),
        }
    }
}

/// Tests counted in the output of cargo.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Tests that passed.
    pub(super) passed: usize,
    /// Tests that failed.
    pub(super) failed: usize,
    /// Tests that are marked to be ignored.
    pub(super) skipped: usize,
}

impl Counts {
    /// The sum of two.
    pub(super) fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    /// The counts of a line such as `test result: ok. 12 passed; 0 failed; 1 ignored; ...`.
    fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
        let mut counts = Self::default();
        for field in fields.split("; ") {
            let (number, what) = field.split_once(' ')?;
            let slot = match what {
                "passed" => &mut counts.passed,
                "failed" => &mut counts.failed,
                "ignored" => &mut counts.skipped,
                _ => continue,
            };
            *slot = number.parse().ok()?;
        }
        Some(counts)
    }
}

/// Runs commands in the workspace and counts the tests that they report.
pub(super) struct Runner {
    root: PathBuf,
    counts: Counts,
    /// The reasons of skipped tests: lines that begin with [`SKIPPED`].
    skips: Vec<String>,
    programs: Option<Vec<Program>>,
    /// The file into which commands write, if not to the terminal.
    log: Option<File>,
}

/// The beginning of the line that a test prints if it cannot run on this machine.
const SKIPPED: &str = "skipped: ";

impl Runner {
    /// A runner for the workspace that this program was built from.
    pub(super) fn new() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the folder of xtask has no parent")?;
        Ok(Self { root: root.to_owned(), counts: Counts::default(), skips: Vec::new(), programs: None, log: None })
    }

    /// A runner whose commands write into an unnamed file.
    pub(super) fn logging() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("kiln-xtask-{}.log", std::process::id()));
        let log = File::options().read(true).append(true).create(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Self { log: Some(log), ..Self::new()? })
    }

    /// The output of the commands in that file.
    pub(super) fn log(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if let Some(log) = &mut self.log {
            log.rewind()?;
            log.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// Prints a line where commands write.
    pub(super) fn say(&self, line: &str) -> Result<()> {
        match &self.log {
            // One write: lines of commands come in between.
            Some(log) => {
                let mut log: &File = log;
                log.write_all(format!("{line}\n").as_bytes())?;
            }
            None => println!("{line}"),
        }
        Ok(())
    }

    /// The root of the workspace.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The counts since the last call.
    pub(super) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Takes the reasons of the tests that were skipped since the last call. Tests print them only with `--nocapture`.
    pub(super) fn take_skips(&mut self) -> Vec<String> {
        std::mem::take(&mut self.skips)
    }

    /// A command with its words separated by blanks, in the root of the workspace, without the caller's environment variables
    /// of kiln.
    pub(super) fn command(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or("true"));
        command.args(words).current_dir(&self.root);
        for name in ["KILN_ADAPTER", "KILN_ISA", "KILN_OP", "KILN_BLESS", "KILN_PTXAS", "RUSTFLAGS"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command line with environment variables; its output goes on to the terminal.
    pub(super) fn run_with(&mut self, line: &str, variables: &[(&str, &str)]) -> Result<()> {
        let mut command = self.command(line);
        command.envs(variables.iter().copied());
        let shown: String = variables.iter().map(|(name, value)| format!("{name}={value:?} ")).collect();
        // The table at the end has no room for the variables.
        self.say(&format!("$ {shown}{line}"))?;
        self.execute(&mut command, line)
    }

    /// Runs a command, and prints the time that it took; errors name it as `shown`.
    pub(super) fn execute(&mut self, command: &mut Command, shown: &str) -> Result<()> {
        if let Some(log) = &self.log {
            command.stderr(log.try_clone()?);
        }
        let began = Instant::now();
        let mut child =
            command.stdout(Stdio::piped()).spawn().map_err(|error| format!("`{shown}` did not start: {error}"))?;
        let pipe = child.stdout.take().ok_or("the command has no output pipe")?;
        let mut failed_tests = 0;
        // The lock keeps what else is printed out of the output of a command.
        let mut out: Box<dyn Write> = match &self.log {
            Some(log) => Box::new(log.try_clone()?),
            None => Box::new(std::io::stdout().lock()),
        };
        // Bytes, not text: a test may print anything.
        for line in BufReader::new(pipe).split(b'\n') {
            let line = line?;
            out.write_all(&[&line[..], b"\n"].concat())?;
            let text = String::from_utf8_lossy(&line);
            self.skips.extend(text.split_once(SKIPPED).map(|(_, why)| why.to_owned()));
            if let Some(counts) = Counts::parse(&text) {
                self.counts = self.counts.add(counts);
                failed_tests += counts.failed;
            }
        }
        drop(out);
        let status = processor::wait(&mut child)?;
        self.say(&format!("{:.1} s", began.elapsed().as_secs_f64()))?;
        match (status.success(), failed_tests) {
            (true, 0) => Ok(()),
            (_, 0) => Err(format!("`{shown}` ended with {status}").into()),
            (_, n) => Err(format!("`{shown}`: {n} tests failed").into()),
        }
    }

    /// The tests and examples, which are built when they are first asked for.
    pub(super) fn programs(&mut self) -> Result<&[Program]> {
        const LINE: &str = "cargo test --workspace --exclude kiln-benches --features kiln-llm/cuda,kiln-llm/gpu,kiln/ndarray --no-run \
                            --message-format json-render-diagnostics";
        if self.programs.is_none() {
            self.say(&format!("$ {LINE}"))?;
            let mut child = self.command(LINE).stdout(Stdio::piped()).spawn()?;
            let mut messages = Vec::new();
            child.stdout.take().ok_or("the command has no output pipe")?.read_to_end(&mut messages)?;
            let status = processor::wait(&mut child)?;
            if !status.success() {
                return Err(format!("`{LINE}` ended with {status}").into());
            }
            self.programs = Some(Program::all(&String::from_utf8_lossy(&messages))?);
        }
        Ok(self.programs.as_deref().unwrap_or_default())
    }

    /// Runs one of them in its folder.
    pub(super) fn run_program(
        &mut self,
        program: &Program,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<()> {
        let line = program.file.to_string_lossy();
        let shown: String = variables.iter().map(|(name, value)| format!("{name}={value:?} ")).collect();
        self.say(&format!("\n$ {shown}{line} {}", arguments.join(" ")))?;
        let mut command = self.command(&line);
        command.args(arguments).envs(variables.iter().copied()).current_dir(&program.folder);
        self.execute(&mut command, &format!("{} {}", program.package(), program.name))
    }

    /// Runs the tests of all programs that are wanted, even after one failed.
    pub(super) fn test(
        &mut self,
        wanted: impl Fn(&Program) -> bool,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<()> {
        let tests: Vec<_> = self.programs()?.iter().filter(|p| !p.example && wanted(p)).cloned().collect();
        if tests.is_empty() {
            return Err("this step selects no test".into());
        }
        let before = self.counts.passed;
        let run = |test: &Program| self.run_program(test, arguments, variables).err().map(|error| error.to_string());
        let errors: Vec<String> = tests.iter().filter_map(run).collect();
        // A name that no ignored test has any more.
        let ran_none = arguments.contains(&"--ignored") && self.counts.passed == before;
        match (errors.is_empty(), ran_none) {
            (false, _) => Err(errors.join("; ").into()),
            (true, true) => Err(format!("no test ran with {}", arguments.join(" ")).into()),
            (true, false) => Ok(()),
        }
    }

    /// The standard output of a command; `None` if it does not start or fails.
    pub(super) fn output(&self, line: &str) -> Option<String> {
        let output = self.command(line).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn result_lines_of_cargo_and_of_wasm_bindgen_are_counted() {
        let counts = |passed, failed, skipped| Some(Counts { passed, failed, skipped });
        let cargo = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(Counts::parse(cargo), counts(12, 0, 1));
        let wasm = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 filtered out; finished in 1.81s";
        assert_eq!(Counts::parse(wasm), counts(1, 2, 0));
        assert_eq!(Counts::parse("test result of something else"), None);
    }
}
