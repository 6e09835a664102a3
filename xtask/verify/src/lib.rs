//! Every case of every operation against the f64 reference: what `cargo xtask bench` and the steps `release` and `devices` of
//! `cargo xtask test` run.
//!
//! The library depends on the CPU kernels alone, so that the step `release` compiles nothing else in the release profile. The program of
//! measurements brings the backends of GPUs.

use std::collections::BTreeMap;

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

/// A backend that runs cases.
pub trait Backend {
    /// Its name in tables.
    fn name(&self) -> String;

    /// Runs a case and compares the results with the expected ones. Returns the accuracy and the bound that held, or `None` if the
    /// backend has no kernel for the operation.
    ///
    /// # Errors
    /// An error of the backend, or the first result beyond the bound, in words.
    fn compare(&self, case: &Case, expectation: &Expectation<'_>) -> Result<Option<(Accuracy, Bound)>, String>;
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

    fn compare(&self, case: &Case, expectation: &Expectation<'_>) -> Result<Option<(Accuracy, Bound)>, String> {
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

/// Runs cases on backends, and calls `ran` with the name of the operation after each case. Returns a row for each operation and backend
/// that ran one.
pub fn run(cases: &[Case], backends: &[Box<dyn Backend>], mut ran: impl FnMut(&'static str)) -> Vec<Row> {
    let mut rows = BTreeMap::<(usize, usize), Row>::new();
    let mut order = Vec::<&'static str>::new();
    for case in cases {
        let op = case.op.name();
        let position = order.iter().position(|&o| o == op).unwrap_or_else(|| {
            order.push(op);
            order.len() - 1
        });
        let expectation = Expectation::of(case);
        for (number, backend) in backends.iter().enumerate() {
            let row = rows.entry((position, number)).or_insert_with(|| Row {
                op,
                backend: backend.name(),
                bound: words(case.op.contract().bound),
                worst: 0.0,
                share: 0.0,
                cases: 0,
                compared: 0,
                failures: 0,
                failure: None,
            });
            row.cases += 1;
            match expectation.as_ref().map_err(Clone::clone).and_then(|e| backend.compare(case, e)) {
                // It runs on another backend.
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
        ran(op);
    }
    rows.into_values().filter(|row| row.cases > 0).collect()
}

/// A bound in words. Bounds that grow with the extents are shown for the smallest ones; each case is compared with its
/// own.
fn words(bound: Bound) -> String {
    match bound {
        Bound::Magnitude(n) if n.fract() != 0.0 => Bound::Magnitude((n * 10.0).round() / 10.0).to_string(),
        bound => bound.to_string(),
    }
}
