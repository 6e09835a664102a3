//! `cargo xtask bench`: finds the instruction sets and devices of this machine, calibrates, verifies, measures operations and language
//! models, filters an image, evaluates the router, and reports the results.
//!
//! Each step is a module that returns plain data; [`report`] turns the data into a table, a page and a JSON file.

mod example_image;
mod find;
mod gpus;
mod measure;
mod models;
mod numbers;
mod operations;
mod report;
mod routing;
mod verify;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use kiln::Engine;
use serde::Serialize;

use crate::Result;

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench --quick             a first look, under two minutes; open target/kiln/report.html
  cargo xtask bench --only matmul,exp   verify and measure these alone
  cargo xtask bench --image cat.jpg     with your image in the report
  cargo xtask bench --model chat.gguf --only 'language models'
                                        tokens a second of your model on every device, and nothing else

  KILN_ADAPTER=llvmpipe cargo xtask bench    measure this adapter, here a software driver, and no other

  To write docs/measurements.md with other libraries beside kiln:
    cargo bench -p kiln-benches --bench gemm -- --threads 1,2 --json > gemm.json
    cargo xtask bench --quick --write-docs --peers gemm.json

Run nothing else on the machine meanwhile. To use only some cores: taskset -c 2,3 cargo xtask ...";

/// Calibrates this machine, verifies and measures every operation on it, and writes a report.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Fewer sizes and samples: under two minutes on two cores.
    #[arg(long)]
    quick: bool,
    /// The folder for report.html and report.json.
    #[arg(long, value_name = "DIR", default_value = "target/kiln")]
    out: PathBuf,
    /// Verify and measure only operations whose name contains one of these, without a calibration; `language models`
    /// measures those.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// The image to filter, PNG or JPEG, instead of the one in the repository.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// A language model to measure, a GGUF file or a folder of safetensors; may be given several times. Without one,
    /// models of the shape of SmolLM2-135M with random weights are written to DIR: in Q8_0 and F16, with --quick in Q8_0
    /// alone. Each processes a prompt of 512 tokens and generates 128, then 64 for each of 4 and 16 sequences at once;
    /// with --quick, which leaves models out unless they are named here or in --only, a prompt of 64 and 16 tokens of one
    /// sequence, and no test begins 4 seconds after the first.
    #[arg(long, value_name = "FILE")]
    model: Vec<PathBuf>,
    /// Also write the page of measurements: docs/measurements.md if no file is named. Rows of this machine whose figures moved by less
    /// than 10 % (25 % where they carry the mark of a disturbed one) stay.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/measurements.md")]
    write_docs: Option<PathBuf>,
    /// The output of `cargo bench -p kiln-benches ... -- --json`, for the part of that page about peers; one file or
    /// several.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "write_docs")]
    peers: Vec<PathBuf>,
}

impl Arguments {
    /// Whether to measure an operation.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }
}

/// The results of a run.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    /// The command that made it.
    command: String,
    /// Seconds since 1970, UTC.
    when: u64,
    quick: bool,
    machine: find::Machine,
    backends: Vec<find::Backend>,
    calibration: Option<routing::Calibration>,
    accuracy: Vec<xtask_verify::Row>,
    limits: Vec<measure::Limit>,
    measurements: Vec<measure::Series>,
    /// None where no adapter is in use.
    gpus: Option<gpus::Gpus>,
    language_models: Option<models::Models>,
    image: Option<example_image::Filtered>,
    routing: Option<routing::Routing>,
    /// Seconds that the run took.
    seconds: f64,
}

/// Runs all steps.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let start = Instant::now();
    // Names of the user are checked before minutes are spent.
    if !arguments.only.is_empty() && !names().iter().any(|name| arguments.wants(name)) {
        let all = names().into_iter().collect::<Vec<_>>().join("; ");
        return Err(format!("no operation is named {}; the names are {all}", arguments.only.join(" or ")).into());
    }
    models::check(&arguments.model)?;
    let peers = report::docs::read_peers(&arguments.peers)?;
    std::fs::create_dir_all(&arguments.out).map_err(|e| format!("--out {}: {e}", arguments.out.display()))?;
    let shown = example_image::Source::open(arguments.image.as_deref(), &arguments.out)?;
    let machine = find::machine();
    let backends = find::backends();
    report::table::heading("Instruction sets and devices");
    report::table::machine(&machine, &backends);

    // The adapters that the calibration finds by itself, or the one that the environment names: such a calibration
    // stays out of the profile by which other programs decide.
    let named = find::adapters().into_iter().filter(|adapter| adapter.kind == kiln_wgpu::AdapterKind::Software);
    let choices: Vec<_> = named.map(|adapter| kiln_wgpu::AdapterChoice::Name(adapter.label)).collect();
    let own_profile = (!choices.is_empty()).then(|| arguments.out.join("profile.json"));
    let settings = || match &own_profile {
        None => Engine::builder(),
        Some(profile) => Engine::builder().profile_file(profile),
    };
    let mut engine = choices.into_iter().fold(settings(), kiln::EngineBuilder::adapter).build()?;
    let whole = arguments.only.is_empty();

    let mut calibration = None;
    if whole {
        report::table::heading("Calibration");
        calibration = Some(routing::calibrate(&mut engine, arguments.quick)?);
        for absent in engine.absent() {
            println!("without {absent}");
        }
    }

    let (mut accuracy, mut limits, mut measurements) = (Vec::new(), Vec::new(), Vec::new());
    let (mut of_cpu, mut gpus) = (None, None);
    if operation_names().iter().any(|name| arguments.wants(name)) {
        report::table::heading("Verification against the f64 reference");
        accuracy = verify::run(arguments.quick, |name| arguments.wants(name));
        report::table::accuracy(&accuracy);
        if let Some(sample) = verify::sample(&accuracy) {
            println!("  {sample}");
        }

        report::table::heading("Measurement");
        (limits, measurements, of_cpu) = measure::run(arguments.quick, |name| arguments.wants(name))?;
        report::table::measurements(&limits, &measurements);

        if !find::adapters().is_empty() || !find::cuda_devices().is_empty() {
            report::table::heading("GPUs beside the CPU");
            gpus = gpus::run(arguments.quick, |name| arguments.wants(name))?;
            gpus.iter().for_each(report::table::gpus);
        }
    }

    let mut language_models = None;
    // A quick run of everything has no time for them.
    let has_time = !arguments.quick || !whole;
    if arguments.wants(models::NAME) && has_time || !arguments.model.is_empty() {
        report::table::heading("Language models");
        let measured = models::run(&arguments.model, arguments.quick, &arguments.out, of_cpu, &settings)?;
        report::table::models(&measured);
        language_models = Some(measured);
    }

    let (mut image, mut routes) = (None, None);
    if whole {
        report::table::heading("Image filter");
        image = Some(example_image::run(&engine, &shown)?);
        report::table::heading("Routing");
        routes = Some(routing::judge(&engine, arguments.quick)?);
    }

    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        command: command(arguments),
        when: std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        quick: arguments.quick,
        machine,
        backends,
        calibration,
        accuracy,
        limits,
        measurements,
        gpus,
        language_models,
        image,
        routing: routes,
        seconds: start.elapsed().as_secs_f64(),
    };
    let html = arguments.out.join("report.html");
    crate::write(&html, report::html::page(&report)?)?;
    crate::write(&arguments.out.join("report.json"), serde_json::to_string_pretty(&report)?)?;
    report::table::heading("Done");
    println!("  {:.0} s; the report is {}", report.seconds, html.display());
    if let Some(path) = &arguments.write_docs {
        let earlier = if path.exists() { std::fs::read_to_string(path)? } else { String::new() };
        let page = report::steady::steady(&report::docs::page(&report, &peers)?, &earlier);
        crate::write(path, page + report::docs::other_machines(&earlier))?;
        println!("  wrote {}", path.display());
    }
    let broken: usize = report.accuracy.iter().map(|row| row.failures).sum();
    if broken > 0 {
        println!("  {broken} cases break the numerics contract; the first of each operation is above");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The names that `--only` is compared with.
fn names() -> BTreeSet<&'static str> {
    operation_names().into_iter().chain([models::NAME]).collect()
}

/// The names of all operations.
fn operation_names() -> BTreeSet<&'static str> {
    let verified = kiln_ir::op::all_cases().iter().map(|case| case.op.name()).collect::<BTreeSet<_>>();
    verified.into_iter().chain(operations::ALL.iter().map(|measured| measured.name)).collect()
}

/// The command line that a user would type for the same figures: without paths of this machine.
fn command(arguments: &Arguments) -> String {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut words = vec!["cargo xtask bench".to_owned()];
    words.extend(arguments.quick.then(|| "--quick".to_owned()));
    if !arguments.only.is_empty() {
        let names = arguments.only.join(",");
        words.push(if names.contains(' ') { format!("--only '{names}'") } else { format!("--only {names}") });
    }
    words.extend(arguments.image.as_ref().map(|image| format!("--image {}", name(image))));
    words.extend(arguments.model.iter().map(|model| format!("--model {}", name(model))));
    words.extend(arguments.write_docs.as_ref().map(|_| "--write-docs".to_owned()));
    if !arguments.peers.is_empty() {
        words.push(format!("--peers {}", arguments.peers.iter().map(name).collect::<Vec<_>>().join(" ")));
    }
    words.join(" ")
}

/// A bar for `total` steps; hidden unless the output is a terminal, as indicatif decides.
fn bar(total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    if let Ok(style) = ProgressStyle::with_template("  {bar:40} {pos:>5}/{len:<5} {eta:>4} left  {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
