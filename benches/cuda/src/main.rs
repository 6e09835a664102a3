//! kiln on a GPU of NVIDIA, beside cuBLAS, cuBLASLt and a copy within the memory of the device: one table.
//!
//! Design choices:
//!
//! - How contenders take turns, what a sample is and how the table looks is that of `benches/gpu`, whose files these are.
//! - What a contender computes is compared with f64 before it is timed.
//! - cuBLAS and cuBLASLt are looked for when the program runs, and every figure of theirs is of the same process and data.

#[path = "../../gpu/src/contender.rs"]
mod contender;
#[path = "../../gpu/src/random.rs"]
mod random;
#[path = "../../gpu/src/start.rs"]
mod start;
#[path = "../../gpu/src/table.rs"]
mod table;
#[path = "../../gpu/src/turns.rs"]
mod turns;

mod case;
mod cublas;
mod cublaslt;
mod kiln;

use std::process::ExitCode;

use clap::Parser;

use case::{Case, Data};
use contender::{Contender, Ready};
use cublas::Cublas;
use cublaslt::CublasLt;
use kiln::Kiln;
use turns::Effort;

/// An error, as a sentence.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const EXAMPLES: &str = "\
Examples:
  cargo run --release                              every case; LD_LIBRARY_PATH names the folder of libcublas.so
  cargo run --release -- matmul --quick            some cases, fewer samples
  cargo run --release -- softmax sum --json        one JSON object a figure";

/// kiln on a GPU of NVIDIA, beside cuBLAS and the limit of the device.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Arguments {
    /// Only cases whose name contains one of these.
    filter: Vec<String>,
    /// Fewer samples.
    #[arg(long)]
    quick: bool,
    /// This many samples of each contender.
    #[arg(long, value_name = "COUNT")]
    samples: Option<usize>,
    /// The number of the device.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// One JSON object for each figure instead of a table.
    #[arg(long)]
    json: bool,
    /// Opens the device, runs an operation, and prints the seconds of both: the case `start` runs this.
    #[arg(long, value_name = "CONTENDER", hide = true)]
    start: Option<String>,
    /// The cases by name, and nothing else.
    #[arg(long)]
    list: bool,
}

/// The contenders by name, kiln first.
const NAMES: &[&str] = &["kiln", "cuBLAS", "cuBLASLt"];

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let wants =
        |case: &Case| arguments.filter.is_empty() || arguments.filter.iter().any(|f| case.name().contains(f.as_str()));
    let cases: Vec<Case> = case::all().into_iter().filter(wants).collect();
    if arguments.list {
        cases.iter().for_each(|case| println!("{}", case.name()));
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.start.is_some() {
        let open = || Ok(Box::new(Kiln::open_one(arguments.device)?) as Box<dyn Contender>);
        println!("{}", serde_json::to_string(&start::here(open)?)?);
        return Ok(ExitCode::SUCCESS);
    }
    let kiln = Kiln::open(arguments.device)?;
    let table = table::Table::new(arguments.json, kiln.describe(), NAMES);
    let cublas = Cublas::open(arguments.device).map_err(|why| eprintln!("  without cuBLAS: {why}")).ok();
    let cublaslt = CublasLt::open(arguments.device).map_err(|why| eprintln!("  without cuBLASLt: {why}")).ok();
    let peers = [
        cublas.as_ref().map(|cublas| cublas as &dyn Contender),
        cublaslt.as_ref().map(|cublaslt| cublaslt as &dyn Contender),
    ];
    let effort = if arguments.quick { Effort::QUICK } else { Effort::FULL };
    let effort = Effort { samples: arguments.samples.unwrap_or(effort.samples).max(1), ..effort };
    let mut wrong = 0;
    for case in &cases {
        match measure(&kiln, peers, case, effort, &table) {
            Ok(found) => wrong += found,
            Err(why) => {
                wrong += 1;
                eprintln!("  {}: {why}", case.name());
            }
        }
        kiln.trim();
    }
    let [open, result] = ["start: device open", "start: first result"];
    if arguments.filter.is_empty() || arguments.filter.iter().any(|f| open.contains(f.as_str())) {
        let starts = start::measure(&NAMES[..1], None, effort);
        let of = |of: fn(&start::Start) -> f64| vec![starts[0].as_ref().map(of), None, None];
        table.row(open, case::Work::Time, None, &of(|start| start.device), None);
        table.row(result, case::Work::Time, None, &of(|start| start.result), None);
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures one case and prints its row; returns how many contenders computed a wrong result.
fn measure(
    kiln: &Kiln,
    peers: [Option<&dyn Contender>; 2],
    case: &Case,
    effort: Effort,
    table: &table::Table,
) -> Result<usize> {
    let data = Data::random(case)?;
    let mut wrong = 0;
    let mut ready: Vec<(usize, Box<dyn Ready + '_>)> = Vec::new();
    let contenders = [Some(kiln as &dyn Contender)].into_iter().chain(peers);
    for (position, contender) in contenders.enumerate() {
        let Some(contender) = contender else { continue };
        let Some(mut made) = contender.ready(case, &data)? else { continue };
        made.run()?;
        made.wait()?;
        match data.difference(case, &made.result()?) {
            None => ready.push((position, made)),
            Some(difference) => {
                wrong += 1;
                eprintln!("  {}: {} computes something else: {difference}", case.name(), contender.name());
            }
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
    table.row(&case.name(), case.work(), limit, &all, None);
    Ok(wrong)
}
