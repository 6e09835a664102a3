//! Building the page.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{execute, folder};
use crate::Result;

/// A build of the module.
struct Build {
    /// Its folder.
    name: &'static str,
    /// Flags of the compiler.
    flags: &'static str,
    /// Options of cargo.
    options: &'static [&'static str],
    /// The most bytes that it may have, as it is and compressed.
    most: (u64, u64),
}

const VECTORS: &str = "-C target-feature=+simd128";

/// The compiler makes no vectors of its own there: a comparison and a choice would become a relaxed minimum, in which NaN may
/// become either operand.
const RELAXED_VECTORS: &str = "-C target-feature=+relaxed-simd -C no-vectorize-loops -C no-vectorize-slp";

/// The modules that pages load. The page of operations loads the first one that the browser supports; a browser without vectors has
/// no WebGPU either, which came years later.
const OF_THE_PAGE: [Build; 4] = [
    Build { name: "relaxed-simd", flags: RELAXED_VECTORS, options: &[], most: (2_698_000, 914_000) },
    Build { name: "simd128", flags: VECTORS, options: &[], most: (2_725_000, 916_500) },
    MODELS,
    Build {
        name: "scalar",
        flags: "",
        options: &["--no-default-features", "--features", "verify"],
        most: (1_720_000, 594_000),
    },
];

/// The module that `models.js` loads, and the page of operations does not. It shares all crates but the last ones with the build
/// before it: the conformance suite is compiled for both, and left out here because nothing calls it.
const MODELS: Build = Build {
    name: "models",
    flags: VECTORS,
    options: &["--no-default-features", "--features", "models,webgpu,kiln-ir/reference"],
    most: (3_198_000, 1_122_000),
};

/// For those who want no GPU: in no folder of the page.
const WITHOUT_WEBGPU: Build = Build {
    name: "simd128-without-webgpu",
    flags: VECTORS,
    options: &["--no-default-features", "--features", "operations"],
    most: (1_620_000, 522_000),
};

/// Images of the examples that the page shows.
const IMAGE: &str = "crates/kiln/examples/image_filter/astronaut.png";

/// Builds everything that the page loads into target/web.
pub(super) fn build(root: &Path) -> Result<()> {
    for build in &OF_THE_PAGE {
        module(root, build, &folder(root).join(build.name))?;
    }
    for entry in std::fs::read_dir(root.join("crates/kiln-web/page"))? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder(root).join(entry.file_name()))?;
    }
    std::fs::copy(root.join(IMAGE), folder(root).join("astronaut.png"))?;
    println!("built {}", folder(root).display());
    Ok(())
}

/// Builds the module for those who want no GPU.
pub(super) fn build_without_webgpu(root: &Path) -> Result<()> {
    module(root, &WITHOUT_WEBGPU, &without_webgpu(root))
}

fn without_webgpu(root: &Path) -> PathBuf {
    root.join("target/kiln/web").join(WITHOUT_WEBGPU.name)
}

/// Builds one module with its bindings into a folder.
fn module(root: &Path, build: &Build, out: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).env_remove("RUSTFLAGS").env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", build.flags);
    cargo.args(["build", "--package", "kiln-web", "--profile", "web", "--target", "wasm32-unknown-unknown"]);
    // Where it goes is said here, whatever the environment says.
    cargo.args(["--target-dir", "target"]);
    execute(cargo.args(build.options))?;
    std::fs::create_dir_all(out)?;
    let built = root.join("target/wasm32-unknown-unknown/web/kiln_web.wasm");
    let mut bindgen = Command::new("wasm-bindgen");
    bindgen.args(["--target", "web", "--remove-name-section", "--remove-producers-section", "--out-dir"]);
    execute(bindgen.arg(out).arg(built)).map_err(|error| {
        format!("{error}; `cargo install wasm-bindgen-cli --version V`, with the V of wasm-bindgen in Cargo.lock, installs it").into()
    })
}

/// Tells how large the modules are, and fails where one is too large.
pub(super) fn check_sizes(root: &Path) -> Result<()> {
    let of_the_page = OF_THE_PAGE.iter().map(|build| (build, folder(root).join(build.name)));
    let without_webgpu = (&WITHOUT_WEBGPU, without_webgpu(root));
    println!("{:24} {:>10} {:>10}", "module", "bytes", "gzip -9");
    // The last one is not built for tests.
    for (build, folder) in of_the_page.chain(without_webgpu.1.exists().then_some(without_webgpu)) {
        let wasm = folder.join("kiln_web_bg.wasm");
        let bytes = std::fs::metadata(&wasm).map_err(|error| format!("{}: {error}", wasm.display()))?.len();
        // A program that every system with cargo has, but for Windows: what cannot be measured is not judged.
        let compressed =
            Command::new("gzip").args(["-9", "-c"]).arg(&wasm).output().ok().filter(|out| out.status.success());
        let compressed = compressed.map(|out| out.stdout.len() as u64);
        println!("{:24} {bytes:>10} {:>10}", build.name, compressed.map_or("-".into(), |bytes| bytes.to_string()));
        let (most, most_compressed) = build.most;
        if bytes > most || compressed.is_some_and(|bytes| bytes > most_compressed) {
            let name = build.name;
            return Err(format!("{name}: at most {most} bytes and {most_compressed} compressed are allowed").into());
        }
    }
    Ok(())
}
