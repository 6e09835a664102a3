//! `cargo xtask publish`: packs the crates for the registry, and compiles the README's example against the packed copies.
//!
//! Nothing is uploaded. A file that a crate includes from outside its folder, a dependency without a version or an example that needs
//! the workspace fails here.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::Value;

use crate::Result;

/// What to check.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Compile every packed crate with all devices; otherwise `kiln` with its default features and what it needs.
    #[arg(long)]
    all: bool,
}

/// Packs and checks.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies inside of the workspace")?;
    let crates = published(root)?;
    pack(root, &crates)?;
    execute(&mut check(root, &crates, arguments.all)?)?;
    let names: Vec<String> = crates.iter().map(|package| format!("-p {}", package.name)).collect();
    println!("to publish them, in the order of their dependencies: cargo publish {}", names.join(" "));
    Ok(ExitCode::SUCCESS)
}

/// A crate that goes to the registry.
pub(crate) struct Package {
    pub(crate) name: String,
    version: String,
    /// Its manifest, from the root of the workspace.
    pub(crate) manifest: String,
}

/// The crates of the workspace for the registry. Each must have the fields that the registry and its readers need.
///
/// # Errors
/// The first field that a crate lacks.
pub(crate) fn published(root: &Path) -> Result<Vec<Package>> {
    let mut command = Command::new("cargo");
    let output = command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut crates = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        // `publish = false` is an empty list of registries.
        if package["publish"].as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        let name = text(&package["name"]);
        for field in ["description", "license", "repository", "readme", "rust_version"] {
            if text(&package[field]).is_empty() {
                return Err(format!("{name}: Cargo.toml has no {field}").into());
            }
        }
        for field in ["categories", "keywords"] {
            if package[field].as_array().is_none_or(Vec::is_empty) {
                return Err(format!("{name}: Cargo.toml has no {field}").into());
            }
        }
        if package["metadata"]["docs"]["rs"].is_null() {
            return Err(format!("{name}: Cargo.toml has no [package.metadata.docs.rs]").into());
        }
        let manifest = text(&package["manifest_path"]);
        let manifest = Path::new(&manifest).strip_prefix(root)?.to_string_lossy().into_owned();
        crates.push(Package { name, version: text(&package["version"]), manifest });
    }
    Ok(crates)
}

const FOLDER: &str = "target/kiln/package";

/// The crates that `kiln` needs with its default features. Cargo would look for a missing one in the registry.
const ALONE: &[&str] = &["kiln", "kiln-device", "kiln-files", "kiln-ir", "kiln-route", "kiln-simd"];

/// Packs the crates and unpacks them into folders `NAME-VERSION`.
///
/// # Errors
/// What cargo or tar refuses.
pub(crate) fn pack(root: &Path, crates: &[Package]) -> Result<()> {
    let folder = root.join(FOLDER);
    let mut cargo = Command::new("cargo");
    cargo.args(["package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir"]).arg(&folder).current_dir(root);
    for package in crates {
        cargo.args(["-p", &package.name]);
    }
    execute(&mut cargo)?;
    for Package { name, version, .. } in crates {
        let unpacked = folder.join(format!("{name}-{version}"));
        if unpacked.exists() {
            std::fs::remove_dir_all(&unpacked)?;
        }
        let archive = folder.join("package").join(format!("{name}-{version}.crate"));
        execute(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder))?;
    }
    Ok(())
}

/// Writes a program that depends on the packed crates as on those of the registry: it holds the example of the README. The command
/// that checks it shares the compiled dependencies of the workspace.
///
/// # Errors
/// A README without an example; files that cannot be written.
pub(crate) fn check(root: &Path, crates: &[Package], all: bool) -> Result<Command> {
    let folder = root.join(FOLDER);
    let mut manifest = String::from(
        "[package]\nname = \"consumer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n",
    );
    for Package { name, version, .. } in crates {
        let features = match name.as_str() {
            "kiln" if all => r#""cuda", "gpu", "ndarray""#,
            "kiln-llm" if all => r#""cuda", "gpu""#,
            "kiln" => "",
            _ if all => "",
            _ => continue,
        };
        writeln!(manifest, "{name} = {{ version = \"{version}\", features = [{features}] }}")?;
    }
    manifest.push_str("\n[patch.crates-io]\n");
    for Package { name, version, .. } in crates.iter().filter(|package| all || ALONE.contains(&package.name.as_str())) {
        writeln!(manifest, "{name} = {{ path = \"../{name}-{version}\" }}")?;
    }
    let consumer = folder.join("consumer");
    write(&consumer.join("Cargo.toml"), manifest)?;
    // The versions in the lock file of the workspace, so that cargo does not ask the registry.
    std::fs::copy(root.join("Cargo.lock"), consumer.join("Cargo.lock"))?;
    let kiln = crates.iter().find(|package| package.name == "kiln").ok_or("kiln is not published")?;
    let readmes =
        [("main", root.join("README.md")), ("packed", folder.join(format!("kiln-{}/README.md", kiln.version)))];
    for (program, page) in readmes {
        let page = std::fs::read_to_string(&page)?;
        let (_, example) = page.split_once("```rust\n").ok_or("the README has no example")?;
        let (example, _) = example.split_once("```").ok_or("the example of the README does not end")?;
        let path = if program == "main" { "src/main.rs".to_owned() } else { format!("src/bin/{program}.rs") };
        write(&consumer.join(path), example)?;
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["check", "--target-dir"]).arg(root.join("target")).current_dir(consumer);
    Ok(cargo)
}

/// Writes a file, with its folder.
fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, contents));
    written.map_err(|error| format!("{}: {error}", path.display()).into())
}

fn execute(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{command:?} did not start: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}
