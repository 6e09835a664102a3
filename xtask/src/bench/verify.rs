//! Every case of every operation on every instruction set and every GPU, against the f64 reference.

use std::collections::BTreeMap;

use kiln_cuda::CudaBackend;
use kiln_ir::op::reference::{Accuracy, Case, Expected, check, conform_within};
use kiln_ir::op::{Bound, all_cases};
use kiln_ir::{Buffer, Data, Error, Operand, TensorType};
use kiln_simd::{Isa, Operations, Simd};
use kiln_wgpu::{AdapterChoice, GpuBackend, numerics};
use serde::Serialize;

/// The result of one operation on one backend.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) op: &'static str,
    /// The instruction set, `gpu` and the index of the adapter, or `cuda` and the number of the device.
    pub(crate) backend: String,
    /// The bound in words.
    pub(crate) bound: String,
    /// The worst error seen, in the unit of the bound.
    pub(crate) worst: f64,
    /// The worst error as a share of what its bound allows; 0 where results have to be exact.
    pub(crate) share: f64,
    pub(crate) cases: usize,
    /// Elements compared.
    pub(crate) compared: usize,
    pub(crate) failures: usize,
    /// The first failure.
    pub(crate) failure: Option<String>,
}

/// Verifies the operations that `wants` accepts.
pub(crate) fn run(wants: impl Fn(&str) -> bool) -> Vec<Row> {
    let cases: Vec<_> = all_cases().into_iter().filter(|case| wants(case.op.name())).collect();
    let bar = super::bar(cases.len());
    let backends = Backend::all();
    let mut rows = BTreeMap::<(usize, usize), Row>::new();
    let mut order = Vec::<&'static str>::new();
    for case in &cases {
        let op = case.op.name();
        bar.set_message(op);
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
            match expectation.as_ref().map_err(Clone::clone).and_then(|e| e.compare(case, backend)) {
                // It runs on another place.
                Ok(None) => row.cases -= 1,
                Ok(Some((accuracy, share))) => {
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
        bar.inc(1);
    }
    bar.finish_and_clear();
    rows.into_values().filter(|row| row.cases > 0).collect()
}

/// The backend that runs cases.
enum Backend {
    Cpu(Isa),
    /// A GPU and the index of its adapter.
    Gpu(GpuBackend, usize),
    /// A device of CUDA and its name.
    Cuda(CudaBackend, String),
}

impl Backend {
    fn all() -> Vec<Self> {
        let gpu = |index| Self::Gpu(GpuBackend::with_choice(AdapterChoice::Index(index)), index);
        let gpus = super::find::adapters().into_iter().map(|adapter| gpu(adapter.index));
        let cuda = |info: kiln_cuda::DeviceInfo| {
            Self::Cuda(CudaBackend::with_choice(info.ordinal), super::find::cuda_name(&info))
        };
        let devices = super::find::cuda_devices().into_iter().map(cuda);
        Isa::available().map(Self::Cpu).chain(gpus).chain(devices).collect()
    }

    fn name(&self) -> String {
        match self {
            Self::Cpu(isa) => isa.name().to_owned(),
            Self::Gpu(_, index) => format!("gpu {index}"),
            Self::Cuda(_, name) => name.clone(),
        }
    }
}

/// The expected result of a case: computed once, compared with the result of every instruction set.
struct Expectation<'a> {
    operands: Vec<Operand<'a>>,
    expected: Vec<Expected>,
    bound: Bound,
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

    /// How close a backend comes, and which share of the bound that is; none where it has no kernel for the operation.
    fn compare(&self, case: &Case, backend: &Backend) -> Result<Option<(Accuracy, f64)>, String> {
        let types: Vec<TensorType> = self.operands.iter().map(Operand::ty).collect();
        let (accuracy, bound) = match backend {
            Backend::Cpu(isa) => {
                let run = || Simd::with_isa(*isa)?.run(&case.op, &self.operands);
                let got = run().map_err(|e| e.to_string())?;
                let got: Vec<Data<'_>> = got.iter().map(Buffer::as_data).collect();
                (check(self.bound, &self.expected, &got)?, self.bound)
            }
            Backend::Gpu(gpu, _) => {
                let bound = || numerics::bound_on(gpu.device()?, &case.op, &types);
                let bound = bound().map_err(|e: Error| e.to_string())?;
                (conform_within(case, |_, _| Ok(bound), true, |op, inputs| gpu.run(op, inputs))?, bound)
            }
            Backend::Cuda(cuda, _) => {
                let bound = || kiln_cuda::numerics::bound_on(cuda.device()?, &case.op, &types);
                let bound = bound().map_err(|e: Error| e.to_string())?;
                let got = match cuda.run(&case.op, &self.operands) {
                    Err(Error::Unsupported { .. }) => return Ok(None),
                    got => got.map_err(|e| e.to_string())?,
                };
                let got: Vec<Data<'_>> = got.iter().map(Buffer::as_data).collect();
                (check(bound, &self.expected, &got)?, bound)
            }
        };
        let share = match bound {
            Bound::Exact => 0.0,
            Bound::Ulp(n) | Bound::Magnitude(n) => accuracy.worst / n,
        };
        Ok(Some((accuracy, share)))
    }
}

/// A bound in words. Bounds that grow with the extents are shown for the smallest ones; each case is compared with its
/// own.
fn words(bound: Bound) -> String {
    match bound {
        Bound::Magnitude(n) if n.fract() != 0.0 => Bound::Magnitude((n * 10.0).round() / 10.0).to_string(),
        bound => bound.to_string(),
    }
}
