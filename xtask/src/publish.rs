//! `cargo xtask publish`: publishes the crates without uploading them, compiles the packed copies, and does what a new user does:
//! `cargo add kiln` and the README's example, from a registry that has the packed copies.
//!
//! A file that a crate includes from outside its folder, a dependency without a version or an example that needs the workspace fails
//! here.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;

use crate::Result;

/// Packs and checks.
pub(crate) fn run() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the folder of xtask has no parent")?;
    let crates = published(root)?;
    for mut command in commands(root, &crates)? {
        execute(&mut command)?;
    }
    let names: Vec<String> = crates.iter().map(|package| format!("-p {}", package.name)).collect();
    println!("to publish them, which cargo does in the order of their dependencies: cargo publish {}", names.join(" "));
    Ok(ExitCode::SUCCESS)
}

/// A crate that goes to the registry.
pub(crate) struct Package {
    pub(crate) name: String,
    version: String,
    /// Its manifest, from the root of the workspace.
    pub(crate) manifest: String,
}

impl Package {
    /// The name of the folder in the packed archive.
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
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

/// The commands that check the crates, in their order: each needs what those before it have written.
///
/// # Errors
/// A README without an example; files that cannot be written.
pub(crate) fn commands(root: &Path, crates: &[Package]) -> Result<Vec<Command>> {
    let folder = root.join(FOLDER);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let registry = folder.join("registry");
    std::fs::create_dir_all(&registry)?;
    let command = |of: &Path, program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).current_dir(of);
        command
    };
    let cargo = |of: &Path, words: &[&str]| command(of, "cargo", words);
    let mut publish = vec!["publish", "--quiet", "--dry-run", "--no-verify", "--allow-dirty", "--target-dir", FOLDER];
    publish.extend(crates.iter().flat_map(|package| ["-p", &package.name]));
    let mut commands = vec![cargo(root, &publish)];
    for package in crates {
        let name = package.folder();
        let archive = format!("package/tmp-crate/{name}.crate");
        commands.push(command(&folder, "tar", &["-xzf", &archive, "-C", "registry"]));
        // A registry in a folder has a file of checksums in each package.
        write(&registry.join(name).join(".cargo-checksum.json"), "{\"files\":{}}")?;
    }
    let example = example_of(&root.join("README.md"))?;
    let consumer = |name: &str, all: bool| -> Result<PathBuf> {
        let consumer = folder.join(name);
        write(&consumer.join("Cargo.toml"), manifest(crates, all)?)?;
        write(&consumer.join("src/main.rs"), &example)?;
        write(&consumer.join("src/bin/packed.rs"), example_of(&root.join("crates/kiln/README.md"))?)?;
        // The versions in the lock file of the workspace, so that cargo does not ask the registry.
        std::fs::copy(root.join("Cargo.lock"), consumer.join("Cargo.lock"))?;
        Ok(consumer)
    };
    // Dependencies are those that the step `clippy` has compiled.
    commands.push(cargo(&consumer("consumer", true)?, &["check", "--quiet", "--target-dir", "../../.."]));
    // The other packages that `kiln` needs come into the registry, too.
    let vendor = ["vendor", "--quiet", "--versioned-dirs", "--no-delete", "../registry"];
    commands.push(cargo(&consumer("alone", false)?, &vendor));
    let user = folder.join("user");
    let manifest = "[package]\nname = \"user\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n";
    write(&user.join("Cargo.toml"), manifest)?;
    write(&user.join("src/main.rs"), &example)?;
    let replaced = "[source.crates-io]\nreplace-with = \"packed\"\n\n[source.packed]\ndirectory = \"../registry\"\n";
    write(&user.join(".cargo/config.toml"), replaced)?;
    commands.push(cargo(&user, &["add", "--quiet", "--offline", "kiln"]));
    let mut run = cargo(&user, &["run", "--quiet", "--offline"]);
    // Debug information takes a third of the time.
    run.env("CARGO_PROFILE_DEV_DEBUG", "false");
    commands.push(run);
    Ok(commands)
}

/// The manifest of a program that depends on the packed crates as on those of the registry: on all of them with all devices, or on
/// `kiln` with its default features.
fn manifest(crates: &[Package], all: bool) -> Result<String> {
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
    for package in crates.iter().filter(|package| all || ALONE.contains(&package.name.as_str())) {
        writeln!(manifest, "{} = {{ path = \"../registry/{}\" }}", package.name, package.folder())?;
    }
    Ok(manifest)
}

/// The first example of a page.
fn example_of(page: &Path) -> Result<String> {
    let text = std::fs::read_to_string(page)?;
    let (_, example) = text.split_once("```rust\n").ok_or_else(|| format!("{} has no example", page.display()))?;
    let (example, _) =
        example.split_once("```").ok_or_else(|| format!("the example of {} does not end", page.display()))?;
    Ok(example.to_owned())
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
