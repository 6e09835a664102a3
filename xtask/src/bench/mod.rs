//! kiln's main job on a machine: find what is there, calibrate, verify, measure, filter a picture, judge the router,
//! and report all of it.
//!
//! Each step is a module that returns plain data; [`report`] turns the data into a table, a page and a JSON file.

mod find;
mod measure;
mod operations;
mod picture;
mod report;
mod routing;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use kiln::Engine;
use serde::Serialize;

use crate::Result;

/// Finds, calibrates, verifies, measures and pictures this machine; writes report.html and report.json.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Fewer sizes and samples: under two minutes on two cores.
    #[arg(long)]
    quick: bool,
    /// Where report.html and report.json are written.
    #[arg(long, value_name = "DIR", default_value = "target/kiln")]
    out: PathBuf,
    /// Only operations whose name contains one of these; verifies and measures, and leaves the rest out.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// The picture to filter, PNG or JPEG.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Also writes docs/performance.md from this run.
    #[arg(long)]
    write_docs: bool,
    /// JSON lines of `cargo bench -p kiln-benches ... -- --json`, for the peers' part of docs/performance.md.
    #[arg(long, value_name = "FILE", requires = "write_docs")]
    peers: Vec<PathBuf>,
}

impl Arguments {
    /// Whether an operation is asked for.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }
}

/// Everything that a run found out.
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
    accuracy: Vec<verify::Row>,
    limits: Vec<measure::Limit>,
    measurements: Vec<measure::Series>,
    picture: Option<picture::Filtered>,
    routing: Option<routing::Routing>,
    /// Seconds that the run took.
    seconds: f64,
}

/// Runs all steps.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let start = Instant::now();
    let machine = find::machine();
    let backends = find::backends();
    report::table::heading("What is here");
    report::table::machine(&machine, &backends);

    let mut engine = Engine::builder().profile_file(arguments.out.join("profile.json")).build()?;
    std::fs::create_dir_all(&arguments.out)?;
    let whole = arguments.only.is_empty();

    let mut calibration = None;
    if whole {
        report::table::heading("Calibration");
        calibration = Some(routing::calibrate(&mut engine, arguments.quick)?);
    }

    report::table::heading("Verification against the f64 reference");
    let accuracy = verify::run(|name| arguments.wants(name));
    report::table::accuracy(&accuracy);

    report::table::heading("Measurement");
    let (limits, measurements) = measure::run(arguments.quick, |name| arguments.wants(name))?;
    report::table::measurements(&limits, &measurements);

    let (mut picture, mut routes) = (None, None);
    if whole {
        report::table::heading("Picture");
        picture = Some(picture::run(&engine, arguments.picture.as_deref())?);
        report::table::heading("Routing");
        routes = Some(routing::judge(&engine, arguments.quick)?);
    }

    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        command: command(),
        when: std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        quick: arguments.quick,
        machine,
        backends,
        calibration,
        accuracy,
        limits,
        measurements,
        picture,
        routing: routes,
        seconds: start.elapsed().as_secs_f64(),
    };
    let html = arguments.out.join("report.html");
    std::fs::write(&html, report::html::page(&report)?)?;
    std::fs::write(arguments.out.join("report.json"), serde_json::to_string_pretty(&report)?)?;
    if arguments.write_docs {
        report::docs::write(&report, &arguments.peers)?;
    }
    report::table::heading("Done");
    println!("{:.0} s; the report is {}", report.seconds, html.display());
    let broken: usize = report.accuracy.iter().map(|row| row.failures).sum();
    if broken > 0 {
        println!("{broken} cases break the numerics contract; the first of each operation is above");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The command line as a person would type it.
fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("cargo xtask {}", arguments.join(" "))
}

/// A bar for `total` steps; silent where nobody looks, as indicatif decides by the terminal.
fn bar(total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    if let Ok(style) = ProgressStyle::with_template("  {bar:40} {pos}/{len} {msg} ({eta} left)") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
