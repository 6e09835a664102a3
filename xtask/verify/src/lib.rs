//! Every case of every operation against the f64 reference: what `cargo xtask bench` and the steps `release` and `devices` of
//! `cargo xtask test` run.
//!
//! The library depends on the CPU kernels alone, so that the step `release` compiles nothing else in the release profile. The program of
//! measurements brings the backends of GPUs.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kiln_ir::op::reference::{Accuracy, Case, Expected, check};
use kiln_ir::op::{Bound, all_cases};
use kiln_ir::{Buffer, Data, Operand, TensorType};
use kiln_simd::{Isa, Operations, Simd};

/// The result of one operation on one backend.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Row {
    /// The name of the operation.
    pub op: &'static str,
    /// The name of the backend.
    pub backend: String,
    /// The bound in words.
    pub bound: String,
    /// Every how many cases one ran, see [`Backend::step`].
    pub step: usize,
    /// The worst error seen, in the unit of the bound.
    pub worst: f64,
    /// The worst error as a share of what its bound allows; 0 where results have to be exact.
    pub share: f64,
    /// Cases that ran.
    pub cases: usize,
    /// Elements compared.
    pub compared: usize,
    /// Cases that broke the contract.
    pub failures: usize,
    /// The first failure.
    pub failure: Option<String>,
}

/// A backend that runs cases, several at once.
pub trait Backend: Sync {
    /// Its name in tables.
    fn name(&self) -> String;

    /// Every how many cases it runs one. It always runs the first case of an operation.
    fn step(&self) -> usize {
        1
    }

    /// Runs a case and compares the results with the expected ones. Returns the accuracy and the bound that held, or `None` if the
    /// backend has no kernel for the operation.
    ///
    /// # Errors
    /// An error of the backend, or the first result beyond the bound, in words.
    fn compare(&self, case: &Case, expectation: &Expectation<'_>) -> Outcome;
}

/// The expected results of a case, which are computed once for all backends.
pub struct Expectation<'a> {
    /// The operands.
    pub operands: Vec<Operand<'a>>,
    /// The results of the f64 reference.
    pub expected: Vec<Expected>,
    /// The bound of the contract.
    pub bound: Bound,
}

impl<'a> Expectation<'a> {
    fn of(case: &'a Case) -> Result<Self, String> {
        let of = || -> kiln_ir::Result<Self> {
            let operands = case.operands()?;
            let types: Vec<TensorType> = operands.iter().map(Operand::ty).collect();
            Ok(Self { expected: case.op.reference(&operands)?, bound: case.op.bound(&types)?, operands })
        };
        of().map_err(|e| e.to_string())
    }
}

/// An instruction set of this machine.
struct Cpu(Isa);

impl Backend for Cpu {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn compare(&self, case: &Case, expectation: &Expectation<'_>) -> Outcome {
        let Expectation { operands, expected, bound } = expectation;
        let run = || Simd::with_isa(self.0)?.run(&case.op, operands);
        let got = run().map_err(|e| e.to_string())?;
        let got: Vec<Data<'_>> = got.iter().map(Buffer::as_data).collect();
        Ok(Some((check(*bound, expected, &got)?, *bound)))
    }
}

/// Every instruction set of this machine.
pub fn instruction_sets() -> Vec<Box<dyn Backend>> {
    Isa::available().map(|isa| Box::new(Cpu(isa)) as Box<dyn Backend>).collect()
}

/// The cases of operations that `wants` accepts by name.
pub fn cases(wants: impl Fn(&str) -> bool) -> Vec<Case> {
    all_cases().into_iter().filter(|case| wants(case.op.name())).collect()
}

/// The result of a case on a backend: see [`Backend::compare`].
type Outcome = Result<Option<(Accuracy, Bound)>, String>;

/// Runs cases on backends, on all threads of this machine, and calls `ran` with the name of the operation after each case. Returns a row
/// for each operation and backend that ran one.
pub fn run(cases: &[Case], backends: &[Box<dyn Backend>], ran: impl Fn(&'static str) + Sync) -> Vec<Row> {
    let mut rows = BTreeMap::<(usize, usize), Row>::new();
    let mut order = Vec::<&'static str>::new();
    for (case, outcomes) in cases.iter().zip(outcomes(cases, backends, ran)) {
        let op = case.op.name();
        let position = order.iter().position(|&o| o == op).unwrap_or_else(|| {
            order.push(op);
            order.len() - 1
        });
        for (number, (backend, outcome)) in backends.iter().zip(outcomes).enumerate() {
            let row = rows.entry((position, number)).or_insert_with(|| Row {
                op,
                backend: backend.name(),
                bound: words(case.op.contract().bound),
                step: backend.step(),
                worst: 0.0,
                share: 0.0,
                cases: 0,
                compared: 0,
                failures: 0,
                failure: None,
            });
            row.cases += 1;
            match outcome {
                // It runs on another backend, or is in no sample.
                Ok(None) => row.cases -= 1,
                Ok(Some((accuracy, bound))) => {
                    let share = match bound {
                        Bound::Exact => 0.0,
                        Bound::Ulp(n) | Bound::Magnitude(n) => accuracy.worst / n,
                    };
                    row.worst = row.worst.max(accuracy.worst);
                    row.share = row.share.max(share);
                    row.compared += accuracy.compared;
                }
                Err(why) => {
                    row.failures += 1;
                    row.failure.get_or_insert(format!("{case}: {why}"));
                }
            }
        }
    }
    rows.into_values().filter(|row| row.cases > 0).collect()
}

/// The outcome of each case on each backend. Threads take the next case in turns: the f64 reference runs on one thread, and devices
/// compile kernels for several cases at once.
fn outcomes(cases: &[Case], backends: &[Box<dyn Backend>], ran: impl Fn(&'static str) + Sync) -> Vec<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(index) else { return done };
            let first = index == 0 || cases[index - 1].op.name() != case.op.name();
            let expectation = Expectation::of(case);
            let compare = |backend: &dyn Backend| {
                let runs = first || index.is_multiple_of(backend.step());
                if runs { backend.compare(case, expectation.as_ref().map_err(Clone::clone)?) } else { Ok(None) }
            };
            done.push((index, backends.iter().map(|backend| compare(backend.as_ref())).collect()));
            ran(case.op.name());
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(cases.len());
    let mut done: Vec<(usize, Vec<Outcome>)> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let joined = others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        work().into_iter().chain(joined.flatten()).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, outcomes)| outcomes).collect()
}

/// A bound in words. Bounds that grow with the extents are shown for the smallest ones; each case is compared with its
/// own.
fn words(bound: Bound) -> String {
    match bound {
        Bound::Magnitude(n) if n.fract() != 0.0 => Bound::Magnitude((n * 10.0).round() / 10.0).to_string(),
        bound => bound.to_string(),
    }
}
