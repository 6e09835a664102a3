//! The shared parts of every bench: the command line, one process a thread count, the table and the JSON lines.

use std::process::{Command, exit};

use clap::Parser;
use kiln_simd::ceilings::Pass;
use kiln_simd::{Isa, Simd};
use serde::Serialize;

use crate::ceilings::Limits;
use crate::measure::Run;
use crate::{Effort, Sampler, Timing};

/// Measures kiln beside its peers and prints one row a case: rates, the ratio to the best peer, and the limit.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run only cases whose name contains one of these.
    filter: Vec<String>,
    /// Numbers of threads; each runs in a process of its own, with the peers limited to the same number.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    /// Only these sizes (n of a matrix product, elements of an array).
    #[arg(long, value_delimiter = ',')]
    size: Vec<usize>,
    /// The instruction set that kiln uses; the best of the machine if not given.
    #[arg(long)]
    isa: Option<String>,
    /// Only contenders whose name contains one of these (kiln always runs).
    #[arg(long, value_delimiter = ',')]
    peer: Vec<String>,
    /// Fewer samples.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a figure instead of the table.
    #[arg(long)]
    json: bool,
    /// `cargo bench` passes it; it has no effect here.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Variables that limit the threads of the peers.
const THREAD_VARIABLES: [&str; 5] =
    ["MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS", "MATMUL_NUM_THREADS"];
/// Set in the process that measures.
const INSIDE: &str = "KILN_BENCH_INSIDE";

/// The work of a case, which turns a time into a rate.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// Floating-point operations: GFLOP/s.
    Flops(f64),
    /// Bytes touched: GB/s.
    Bytes(f64),
    /// Elements: nanoseconds an element, the less the better.
    Elements(f64),
    /// Calls: nanoseconds a call, the less the better.
    Calls,
}

impl Work {
    fn unit(self) -> &'static str {
        match self {
            Self::Flops(_) => "GFLOP/s",
            Self::Bytes(_) => "GB/s",
            Self::Elements(_) => "ns/element",
            Self::Calls => "ns",
        }
    }

    fn value(self, seconds: f64) -> f64 {
        match self {
            Self::Flops(n) | Self::Bytes(n) => n / seconds * 1e-9,
            Self::Elements(n) => seconds / n * 1e9,
            Self::Calls => seconds * 1e9,
        }
    }
}

/// Someone who can do the work of a case.
pub struct Contender<'a, S> {
    name: String,
    run: Run<'a, S>,
    exact: bool,
}

impl<'a, S> Contender<'a, S> {
    /// A contender. The first of a case is kiln.
    pub fn new(name: impl Into<String>, run: impl FnMut(&mut S) + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run), exact: true }
    }

    /// One that solves an easier problem (a lower accuracy, other special values): its results are not compared.
    #[must_use]
    pub fn approximate(self) -> Self {
        Self { exact: false, ..self }
    }
}

/// One line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    bench: &'a str,
    case: &'a str,
    threads: usize,
    isa: &'a str,
    contender: &'a str,
    unit: &'a str,
    value: f64,
    /// Time of this contender over the time of kiln.
    kiln_is_faster_by: f64,
    clean: usize,
    samples: usize,
    /// Whether to take fewer samples.
    quick: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<f64>,
}

/// A bench that runs.
pub struct Suite {
    name: &'static str,
    arguments: Arguments,
    simd: Simd,
    sampler: Sampler,
    limits: Limits,
    header: Vec<String>,
}

impl Suite {
    /// Reads the command line. Returns only in the process that measures: the first process starts one for each
    /// number of threads, since most peers read theirs from the environment once.
    pub fn start(name: &'static str) -> Self {
        let arguments = Arguments::parse();
        let inside = std::env::var(INSIDE).ok().and_then(|n| n.parse().ok());
        let Some(threads) = inside else {
            exit(arguments.threads.iter().map(|&n| measure_in_a_process(n)).max().unwrap_or(0));
        };
        let simd = match &arguments.isa {
            Some(name) => Isa::from_name(name).and_then(Simd::with_isa),
            None => Simd::new(),
        };
        let simd = simd.unwrap_or_else(|e| {
            eprintln!("{name}: {e}");
            exit(2)
        });
        let simd = simd.with_threads(threads);
        let sampler = Sampler::new(Simd::with_isa(Isa::best()).unwrap_or(simd).with_threads(threads));
        let effort = if arguments.quick { Effort::QUICK } else { Effort::FULL };
        let limits = Limits::new(simd, effort);
        let suite = Self { name, arguments, simd, sampler, limits, header: Vec::new() };
        suite.say(&format!("{name}: {} thread{}, {}", threads, if threads == 1 { "" } else { "s" }, simd.isa()));
        suite
    }

    /// The instruction set and threads that kiln runs on.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// The number of threads of this process.
    pub fn threads(&self) -> usize {
        self.simd.threads()
    }

    /// The sizes to measure: those of the command line, else these.
    pub fn sizes(&self, default: &[usize]) -> Vec<usize> {
        if self.arguments.size.is_empty() { default.to_vec() } else { self.arguments.size.clone() }
    }

    /// Whether a case is asked for.
    pub fn wants(&self, case: &str) -> bool {
        self.arguments.filter.is_empty() || self.arguments.filter.iter().any(|f| case.contains(f.as_str()))
    }

    /// Says something that is not a figure.
    pub fn say(&self, line: &str) {
        if self.arguments.json { eprintln!("{line}") } else { println!("{line}") }
    }

    /// Says that a peer does not take part, and why.
    pub fn absent(&self, peer: &str, reason: &str) {
        self.say(&format!("  without {peer}: {reason}"));
    }

    /// The peak of arithmetic in floating-point operations a second.
    pub fn peak(&mut self) -> f64 {
        self.limits.peak(&mut self.sampler)
    }

    /// The memory bandwidth of a pass over arrays of `n` elements, in bytes a second.
    pub fn bandwidth(&mut self, pass: Pass, n: usize) -> f64 {
        self.limits.bandwidth(&mut self.sampler, pass, n)
    }

    /// Measures one case and prints its row. `out` finds the result in the state, for comparing what the contenders
    /// computed; `limit` is the least number of seconds that the machine allows.
    pub fn case<S>(
        &mut self,
        case: &str,
        work: Work,
        limit: Option<f64>,
        state: &mut S,
        out: impl Fn(&mut S) -> &mut [f32],
        contenders: Vec<Contender<'_, S>>,
    ) {
        let peers = &self.arguments.peer;
        let wanted = |name: &str| peers.is_empty() || peers.iter().any(|p| name.contains(p.as_str()));
        let mut contenders = contenders;
        let mut index = 0;
        contenders.retain(|c| (std::mem::replace(&mut index, 1) == 0) || wanted(&c.name));
        let mut first: Vec<f32> = Vec::new();
        for c in &mut contenders {
            out(state).fill(f32::NAN);
            (c.run)(state);
            let got = out(state);
            if first.is_empty() {
                first = got.to_vec();
            } else if c.exact
                && let Some(difference) = disagreement(&first, got)
            {
                println!("  {case}: {} computes something else than kiln: {difference}", c.name);
            }
        }
        let (names, mut runs): (Vec<String>, Vec<Run<'_, S>>) = contenders.into_iter().map(|c| (c.name, c.run)).unzip();
        let effort = if self.arguments.quick { Effort::QUICK } else { Effort::FULL };
        let timings = self.sampler.compare(state, &mut runs, effort);
        self.print(case, work, limit, &names, &timings);
    }

    fn print(&mut self, case: &str, work: Work, limit: Option<f64>, names: &[String], timings: &[Timing]) {
        let ours = timings[0].seconds;
        if self.arguments.json {
            for (name, timing) in names.iter().zip(timings) {
                let line = Line {
                    bench: self.name,
                    case,
                    threads: self.simd.threads(),
                    isa: self.simd.isa().name(),
                    contender: name,
                    unit: work.unit(),
                    value: work.value(timing.seconds),
                    kiln_is_faster_by: timing.seconds / ours,
                    clean: timing.clean,
                    samples: timing.taken,
                    quick: self.arguments.quick,
                    limit: limit.map(|l| work.value(l)),
                };
                println!("{}", serde_json::to_string(&line).unwrap_or_default());
            }
            return;
        }
        let mut header = vec![work.unit().to_string()];
        header.extend(names.iter().cloned());
        if self.header != header {
            let columns: String = names.iter().map(|n| format!("{n:>11}")).collect();
            println!("\n{:<24}{columns}  {:<22} {:>9}", work.unit(), "kiln / best peer", "limit");
            self.header = header;
        }
        let columns: String = timings
            .iter()
            .map(|t| {
                format!("{:>11}", format!("{}{}", rate(work.value(t.seconds)), if t.is_certain() { "" } else { "~" }))
            })
            .collect();
        let best = names.iter().zip(timings).skip(1).min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
        let ratio = best.map_or(String::new(), |(name, t)| format!("{:.2} of {name}", t.seconds / ours));
        let limit = limit.map_or(String::new(), |l| format!("{} {:>3.0} %", rate(work.value(l)), 100.0 * l / ours));
        println!("{case:<24}{columns}  {ratio:<22} {limit:>9}");
    }
}

/// Three significant digits.
fn rate(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// The first difference of two results beyond single precision and another order of summation.
fn disagreement(ours: &[f32], theirs: &[f32]) -> Option<String> {
    if ours.len() != theirs.len() {
        return Some(format!("{} elements, not {}", theirs.len(), ours.len()));
    }
    let scale = ours.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let (at, difference) = ours
        .iter()
        .zip(theirs)
        .map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() })
        .enumerate()
        .find(|(_, d)| d.is_nan() || *d > 2e-3 * scale)?;
    Some(format!("element {at}: {} where kiln has {}, off by {difference}", theirs[at], ours[at]))
}

/// Runs this bench again in a process whose peers use `threads` threads; its exit code.
fn measure_in_a_process(threads: usize) -> i32 {
    let run = || -> std::io::Result<i32> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).env(INSIDE, threads.to_string());
        for variable in THREAD_VARIABLES {
            command.env(variable, threads.to_string());
        }
        // OpenBLAS spins for 2^26 cycles by default, OpenMP of GNU (oneDNN and MKL here) for 300 000 pauses of 40 to
        // 140 cycles: longer than the pause between samples, so that the next contender would have one core less. A
        // millisecond is enough for calls that follow one another.
        command.env("OPENBLAS_THREAD_TIMEOUT", "20").env("GOMP_SPINCOUNT", "20000");
        if std::env::var_os("MKL_THREADING_LAYER").is_none() {
            command.env("MKL_THREADING_LAYER", if threads == 1 { "SEQUENTIAL" } else { "GNU" });
        }
        Ok(command.status()?.code().unwrap_or(1))
    };
    run().unwrap_or_else(|e| {
        eprintln!("cannot run this bench again for {threads} threads: {e}");
        1
    })
}
