//! `cargo xtask exhaustive`: every f32 through every element-wise operation of one operand, and the hardest quotients of
//! every divisor beside random ones, on every instruction set of this machine, against the f64 reference.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};
use kiln_ir::op::reference::hard::{SIGNIFICANDS, hard_quotients};
use kiln_ir::op::reference::{Random, error_of};
use kiln_ir::op::{Bound, Elementwise, ElementwiseKind, Op, Operation};
use kiln_ir::{DataMut, Operand};
use kiln_simd::{Isa, Operations, Simd};

/// The operations and instruction sets to compare.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these operations (may be given several times).
    #[arg(long, value_name = "NAME")]
    op: Vec<String>,
    /// Only these instruction sets (may be given several times).
    #[arg(long, value_name = "NAME")]
    isa: Vec<String>,
    /// Only every STRIDE-th f32 (significand, of divisors), in the order of their bits. Take a prime: a power of two sees
    /// few mantissas.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    stride: u64,
    /// Threads.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// The parameters of operations that have some.
const PARAMS: [f32; 2] = [-0.75, 1.5];

/// The operands of an operation.
#[derive(Clone, Copy)]
enum Source {
    /// The one operand is every f32.
    EveryNumber,
    /// Each divisor of 24 bits with the dividends that give the hardest quotients, and random pairs of any two f32.
    Quotients,
}

impl Source {
    /// The sweep of an operation, if it has one.
    fn of(kind: ElementwiseKind) -> Option<Self> {
        match kind {
            ElementwiseKind::Div => Some(Self::Quotients),
            _ => (kind.arity() == 1).then_some(Self::EveryNumber),
        }
    }

    /// Steps of the sweep.
    fn steps(self) -> u64 {
        match self {
            Self::EveryNumber => 1 << 32,
            Self::Quotients => SIGNIFICANDS.len() as u64,
        }
    }

    /// Steps that a thread takes at a time: with the results and the reference they stay in its cache.
    fn chunk(self) -> u64 {
        match self {
            // A kernel may treat the vectors of a group in different ways. Because the chunks are not a power of two,
            // the same significand moves from one place of a group to another as its exponent grows.
            Self::EveryNumber => (1 << 14) + 16,
            Self::Quotients => 1 << 9,
        }
    }

    /// Appends the operands of some steps.
    fn extend(self, [a, b]: &mut [Vec<f32>; 2], steps: impl Iterator<Item = u64>) {
        match self {
            Self::EveryNumber => a.extend(steps.map(|step| f32::from_bits(step as u32))),
            Self::Quotients => {
                for step in steps {
                    hard_quotients(SIGNIFICANDS.start + step as u32, 9, |x, y| {
                        a.push(x);
                        b.push(y);
                    });
                    let mut random = Random::new(step);
                    for _ in 0..24 {
                        let bits = random.bits();
                        a.push(f32::from_bits(bits as u32));
                        b.push(f32::from_bits((bits >> 32) as u32));
                    }
                }
            }
        }
    }
}

/// The worst result of one operation on one instruction set; zeros where every result was correctly rounded.
#[derive(Clone, Copy, Default)]
struct Worst {
    error: f64,
    at: [f32; 2],
    /// Results beyond the bound, of another class, or zeros of the wrong sign.
    failures: u64,
    first_failure: [f32; 2],
}

impl Worst {
    fn merge(&mut self, other: &Self) {
        if other.error > self.error {
            (self.error, self.at) = (other.error, other.at);
        }
        if self.failures == 0 {
            self.first_failure = other.first_failure;
        }
        self.failures += other.failures;
    }

    /// Takes in the results of a chunk; `rounded` holds the exact values as f32.
    fn see_all(&mut self, bound: Bound, operands: &[Vec<f32>; 2], got: &[f32], exact: &[f64], rounded: &[f32]) {
        const BLOCK: usize = 16;
        for (block, (got, rounded)) in got.chunks(BLOCK).zip(rounded.chunks(BLOCK)).enumerate() {
            // Most results are the exact ones rounded, off by half a unit at most: found without a branch for each.
            let apart = |(i, (g, r)): (usize, (&f32, &f32))| u32::from(g.to_bits() != r.to_bits()) << i;
            let mut left: u32 = got.iter().zip(rounded).enumerate().map(apart).sum();
            while left != 0 {
                let i = left.trailing_zeros() as usize;
                let at = block * BLOCK + i;
                let x = operands.each_ref().map(|x| x.get(at).copied().unwrap_or(f32::NAN));
                self.see(bound, x, got[i], exact[at]);
                left &= left - 1;
            }
        }
    }

    /// Takes in one result that is not the exact one rounded.
    fn see(&mut self, bound: Bound, operands: [f32; 2], got: f32, exact: f64) {
        let allowed = match bound {
            Bound::Exact => 0.0,
            Bound::Ulp(n) | Bound::Magnitude(n) => n,
        };
        let error = error_of(bound, got, exact, exact.abs());
        if let Some(error) = error.filter(|&e| e > self.error) {
            (self.error, self.at) = (error, operands);
        }
        let rounded = exact as f32;
        let wrong_zero = got == 0.0 && rounded == 0.0 && got.is_sign_negative() != rounded.is_sign_negative();
        if wrong_zero || error.is_none_or(|e| e > allowed) {
            if self.failures == 0 {
                self.first_failure = operands;
            }
            self.failures += 1;
        }
    }
}

/// Compares, prints a table and fails where a bound is broken.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let named = |name: &str, list: &[String]| list.is_empty() || list.iter().any(|n| n == name);
    for name in &arguments.isa {
        Isa::from_name(name)?;
    }
    let kinds = ElementwiseKind::ALL.iter().filter(|k| Source::of(**k).is_some());
    if let Some(name) = arguments.op.iter().find(|name| !kinds.clone().any(|k| k.name() == **name)) {
        let names: Vec<_> = kinds.map(|k| k.name()).collect();
        return Err(format!("no operation that can be swept is named {name:?}; the names are {names:?}").into());
    }
    let isas: Vec<Isa> = Isa::available().filter(|isa| named(isa.name(), &arguments.isa)).collect();
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    println!("{:<12} {:<8} {:>10} {:>16} {:>8} {:>12}", "operation", "isa", "worst", "at", "bound", "beyond it");
    let written = |x: [f32; 2], kind: ElementwiseKind| {
        x[..kind.arity()].iter().map(|x| format!("{x:e}")).collect::<Vec<_>>().join(", ")
    };
    let mut sound = true;
    for &kind in kinds.filter(|k| named(k.name(), &arguments.op)) {
        let op = kind.with_params(PARAMS);
        let bound = op.contract().bound;
        for (isa, worst) in isas.iter().zip(compare(op, &isas, arguments.stride, threads)?) {
            let (error, at) = if worst.error == 0.0 {
                ("rounded".to_owned(), String::new())
            } else {
                (format!("{:.3} ULP", worst.error), written(worst.at, kind))
            };
            print!("{:<12} {:<8} {error:>10} {at:>16} {bound:>8}", kind.name(), isa.name());
            println!(
                " {:>12}{}",
                worst.failures,
                if worst.failures > 0 {
                    format!("  first {}", written(worst.first_failure, kind))
                } else {
                    String::new()
                }
            );
            sound &= worst.failures == 0;
        }
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The worst of an operation on each instruction set.
fn compare(op: Elementwise, isas: &[Isa], stride: u64, threads: usize) -> Result<Vec<Worst>, kiln_ir::Error> {
    let simds = isas.iter().map(|&isa| Ok(Simd::with_isa(isa)?.with_threads(1))).collect::<Result<Vec<_>, _>>()?;
    let Some(source) = Source::of(op.kind()) else { return Ok(Vec::new()) };
    let steps = source.steps().div_ceil(stride);
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template("{prefix:12} {wide_bar} {percent:>3} % {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(op.name());
    let next = AtomicU64::new(0);
    let total = Mutex::new(Ok(vec![Worst::default(); isas.len()]));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let result = worker(op, source, &simds, stride, steps, &next, &bar);
                let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                match (&mut *total, result) {
                    (Ok(total), Ok(seen)) => total.iter_mut().zip(&seen).for_each(|(t, s)| t.merge(s)),
                    (total, Err(error)) => *total = Err(error),
                    (Err(_), _) => {}
                }
            });
        }
    });
    bar.finish_and_clear();
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Takes chunks until none are left.
fn worker(
    op: Elementwise,
    source: Source,
    simds: &[Simd],
    stride: u64,
    steps: u64,
    next: &AtomicU64,
    bar: &ProgressBar,
) -> Result<Vec<Worst>, kiln_ir::Error> {
    let bound = op.contract().bound;
    let as_op = Op::from(op);
    let mut seen = vec![Worst::default(); simds.len()];
    let (mut exact, mut rounded, mut got) = (Vec::new(), Vec::new(), Vec::new());
    let mut operands = [Vec::new(), Vec::new()];
    loop {
        let start = next.fetch_add(source.chunk(), Ordering::Relaxed);
        if start >= steps {
            return Ok(seen);
        }
        let range = start..steps.min(start + source.chunk());
        operands.iter_mut().for_each(Vec::clear);
        source.extend(&mut operands, range.clone().map(|i| i * stride));
        let n = operands[0].len();
        exact.clear();
        op.kind().exact(n, |o, i| f64::from(operands[o][i]), op.params(), |value, _| exact.push(value));
        rounded.clear();
        rounded.extend(exact.iter().map(|&e| e as f32));
        got.resize(n, 0.0);
        let inputs = operands.each_ref().map(|x| Operand::vector(x));
        for (simd, seen) in simds.iter().zip(&mut seen) {
            simd.run_into(&as_op, &inputs[..op.kind().arity()], &mut [DataMut::F32(&mut got)])?;
            seen.see_all(bound, &operands, &got, &exact, &rounded);
        }
        bar.inc(range.end - range.start);
    }
}
