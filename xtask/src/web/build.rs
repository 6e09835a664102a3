//! Building the page.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{execute, folder};
use crate::Result;

/// The builds of the module: its folder, and the flags of the compiler. A page loads the first that its browser takes.
const BUILDS: [(&str, &str); 2] = [("simd128", "-C target-feature=+simd128"), ("scalar", "")];

/// The build for those who want no GPU: in no folder of the page, measured alone.
const WITHOUT_WEBGPU: &str = "simd128-without-webgpu";

/// The most bytes that a module of the page may have, as it is and compressed.
const MOST: (u64, u64) = (2_500_000, 800_000);

/// Pictures of the examples that the page shows.
const PICTURE: &str = "crates/kiln/examples/image_filter/astronaut.png";

/// Builds everything that the page loads into target/web.
pub(super) fn build(root: &Path) -> Result<()> {
    for (name, flags) in BUILDS {
        module(root, flags, &[], &folder(root).join(name))?;
    }
    let small = ["--no-default-features"];
    module(root, BUILDS[0].1, &small, &root.join("target/kiln/web").join(WITHOUT_WEBGPU))?;
    for entry in std::fs::read_dir(root.join("crates/kiln-web/page"))? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder(root).join(entry.file_name()))?;
    }
    std::fs::copy(root.join(PICTURE), folder(root).join("astronaut.png"))?;
    println!("built {}", folder(root).display());
    Ok(())
}

/// Builds one module with its bindings into a folder, optimised where wasm-opt is there.
fn module(root: &Path, flags: &str, options: &[&str], out: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", flags);
    cargo.args(["build", "--package", "kiln-web", "--profile", "web", "--target", "wasm32-unknown-unknown"]);
    execute(cargo.args(options))?;
    std::fs::create_dir_all(out)?;
    let built = root.join("target/wasm32-unknown-unknown/web/kiln_web.wasm");
    let mut bindgen = Command::new("wasm-bindgen");
    bindgen.args(["--target", "web", "--remove-name-section", "--remove-producers-section", "--out-dir"]);
    execute(bindgen.arg(out).arg(built)).map_err(|error| {
        format!("{error}; `cargo install wasm-bindgen-cli --version V`, with the V of wasm-bindgen in Cargo.lock, installs it")
    })?;
    let there = Command::new("wasm-opt").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        println!("wasm-opt is not there (Debian has it in the package binaryen): the module stays as it is");
        return Ok(());
    }
    let (wasm, smaller) = (out.join("kiln_web_bg.wasm"), out.join("smaller.wasm"));
    let mut optimiser = Command::new("wasm-opt");
    optimiser.args(["-O3", "--enable-simd", "--enable-bulk-memory", "--enable-sign-ext", "--enable-mutable-globals"]);
    optimiser.args(["--enable-nontrapping-float-to-int", "--enable-reference-types", "--enable-multivalue"]);
    execute(optimiser.arg(&wasm).arg("-o").arg(&smaller))?;
    std::fs::rename(smaller, wasm)?;
    Ok(())
}

/// Tells how large the modules are, and fails where one is too large.
pub(super) fn check_sizes(root: &Path) -> Result<()> {
    let mut modules: Vec<_> = BUILDS.iter().map(|(name, _)| (*name, folder(root).join(name), Some(MOST))).collect();
    // Told, not judged.
    modules.push((WITHOUT_WEBGPU, root.join("target/kiln/web").join(WITHOUT_WEBGPU), None));
    println!("{:24} {:>10} {:>10}", "module", "bytes", "gzip -9");
    for (name, folder, limits) in modules {
        let wasm = folder.join("kiln_web_bg.wasm");
        let bytes = std::fs::metadata(&wasm).map_err(|error| format!("{}: {error}", wasm.display()))?.len();
        // A program that every system with cargo has, but for Windows: what cannot be measured is not judged.
        let compressed =
            Command::new("gzip").args(["-9", "-c"]).arg(&wasm).output().ok().filter(|out| out.status.success());
        let compressed = compressed.map(|out| out.stdout.len() as u64);
        println!("{name:24} {bytes:>10} {:>10}", compressed.map_or("-".into(), |bytes| bytes.to_string()));
        let Some((most, most_compressed)) = limits else { continue };
        if bytes > most || compressed.is_some_and(|bytes| bytes > most_compressed) {
            return Err(format!("{name}: at most {most} bytes and {most_compressed} compressed are allowed").into());
        }
    }
    Ok(())
}
