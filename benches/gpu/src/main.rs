//! kiln on a GPU, beside its peers and a copy within the memory of the device: one table.
//!
//! Design choices:
//!
//! - Contenders take turns, sample by sample, on the same random data; the median counts.
//! - What a contender computes is compared with f64 before it is timed.
//! - A sample is about 25 ms of calls, one after another. Resident: one wait for the device at its end. Host to host: each
//!   call ends when its result is read.
//! - What kiln should reach is said for one device, an H200, and printed beside any.
//! - Peers are features, off by default. One that has no such operation has a dash.

#[cfg(feature = "burn")]
mod burn;
mod case;
mod contender;
mod host;
mod kiln;
mod random;
mod start;
mod table;
#[cfg(feature = "trueno")]
mod trueno;
mod turns;

use std::process::ExitCode;

use clap::Parser;

use case::{Case, Data};
use contender::{Contender, Ready};
use kiln::Kiln;
use turns::Effort;

/// An error, as a sentence.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const EXAMPLES: &str = "\
Examples:
  cargo run --release --features burn,trueno                                 every case, beside both peers
  cargo run --release -- --quick --size-limit 1 --adapter llvmpipe           a trial on a driver in software
  cargo run --release -- sum softmax --json                                  some cases, one JSON object a figure";

/// kiln on a GPU, beside its peers and the limit of the device.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Arguments {
    /// Only cases whose name contains one of these.
    filter: Vec<String>,
    /// Fewer samples.
    #[arg(long)]
    quick: bool,
    /// Halves cases until no tensor of theirs is larger than this many MiB. The targets for kiln are not shown for
    /// them.
    #[arg(long, value_name = "MIB")]
    size_limit: Option<u64>,
    /// A part of the adapter's name, or its index; else the one that KILN_ADAPTER names, or the best.
    #[arg(long)]
    adapter: Option<String>,
    /// One JSON object for each figure instead of a table.
    #[arg(long)]
    json: bool,
    /// Opens a device, runs an operation, and prints the seconds of both: the case `start` runs this.
    #[arg(long, value_name = "CONTENDER", hide = true)]
    start: Option<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The contenders by name, kiln first.
const NAMES: &[&str] = &[
    "kiln",
    #[cfg(feature = "burn")]
    "burn",
    #[cfg(feature = "trueno")]
    "trueno",
];

fn open(name: &str, adapter: Option<&str>) -> Result<Box<dyn Contender>> {
    match name {
        "kiln" => Ok(Box::new(Kiln::open(adapter)?)),
        #[cfg(feature = "burn")]
        "burn" => Ok(Box::new(burn::Burn::open(adapter)?)),
        #[cfg(feature = "trueno")]
        "trueno" => Ok(Box::new(trueno::Trueno::open(adapter)?)),
        _ => Err(format!("no contender is named {name}").into()),
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let adapter = arguments.adapter.as_deref();
    if let Some(name) = &arguments.start {
        println!("{}", serde_json::to_string(&start::here(|| open(name, adapter))?)?);
        return Ok(ExitCode::SUCCESS);
    }
    let kiln = Kiln::open(adapter)?;
    // All on the same adapter, by its name.
    let adapter = kiln.name();
    let adapter = Some(adapter.as_str());
    let table = table::Table::new(arguments.json, kiln.describe(), NAMES);
    let mut peers: Vec<Box<dyn Contender>> = Vec::new();
    for name in &NAMES[1..] {
        match open(name, adapter) {
            Ok(peer) => peers.push(peer),
            Err(why) => eprintln!("  without {name}: {why}"),
        }
    }
    let effort = if arguments.quick { Effort::QUICK } else { Effort::FULL };
    let wants = |name: &str| arguments.filter.is_empty() || arguments.filter.iter().any(|f| name.contains(f.as_str()));
    let (mut wrong, mut measured) = (0, Vec::new());
    for whole in case::ALL {
        let case = whole.within(arguments.size_limit.map(|mib| mib << 20));
        // Halved, two cases may be one.
        if measured.contains(&case) || !wants(&case.name()) {
            continue;
        }
        measured.push(case);
        let wanted = (case == *whole).then(|| whole.wanted());
        wrong += measure(&kiln, &peers, &case, wanted, effort, &table)?;
        kiln.trim();
    }
    let [open, result] = ["start: device open", "start: first result"];
    if wants(open) || wants(result) {
        let starts = start::measure(NAMES, adapter, effort);
        let of = |of: fn(&start::Start) -> f64| starts.iter().map(|start| start.as_ref().map(of)).collect::<Vec<_>>();
        table.row(open, case::Work::Time, None, &of(|start| start.device), None);
        table.row(result, case::Work::Time, None, &of(|start| start.result), Some(0.15));
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures one case and prints its row; returns how many contenders computed a wrong result.
fn measure(
    kiln: &Kiln,
    peers: &[Box<dyn Contender>],
    case: &Case,
    wanted: Option<f64>,
    effort: Effort,
    table: &table::Table,
) -> Result<usize> {
    let data = Data::random(case)?;
    let mut wrong = 0;
    let mut ready: Vec<(usize, Box<dyn Ready + '_>)> = Vec::new();
    let contenders = std::iter::once(kiln as &dyn Contender).chain(peers.iter().map(|peer| &**peer));
    for contender in contenders {
        let position = NAMES.iter().position(|name| *name == contender.name()).unwrap_or(0);
        let made = contender.ready(case, &data).and_then(|made| {
            let Some(mut made) = made else { return Ok(None) };
            made.run()?;
            made.wait()?;
            Ok(Some((data.difference(case, &made.result()?), made)))
        });
        match made {
            Ok(Some((None, made))) => ready.push((position, made)),
            Ok(Some((Some(difference), _))) => {
                wrong += 1;
                eprintln!("  {}: {} computes something else: {difference}", case.name(), contender.name());
            }
            Ok(None) => {}
            Err(why) => eprintln!("  {}: without {}: {why}", case.name(), contender.name()),
        }
    }
    let mut copy = case.copied().map(|bytes| kiln.copy(bytes)).transpose()?;
    let limited = copy.is_some();
    let mut runs: Vec<&mut dyn Ready> = ready.iter_mut().map(|(_, ready)| &mut **ready as &mut dyn Ready).collect();
    runs.extend(copy.iter_mut().map(|copy| copy as &mut dyn Ready));
    let seconds = turns::compare(&mut runs, effort)?;
    let limit = if limited { seconds.last().copied() } else { None };
    let mut all = vec![None; NAMES.len()];
    for ((position, _), seconds) in ready.iter().zip(seconds) {
        all[*position] = Some(seconds);
    }
    table.row(&case.name(), case.work(), limit, &all, wanted);
    Ok(wrong)
}
