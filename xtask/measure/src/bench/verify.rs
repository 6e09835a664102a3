//! The cases of every operation on every instruction set and every GPU, against the f64 reference.

use std::collections::BTreeMap;

use kiln_cuda::{CudaBackend, CudaDevice, CudaDeviceOptions};
use kiln_ir::op::Bound;
use kiln_ir::op::reference::{Accuracy, Case, check, conform_within};
use kiln_ir::{Buffer, Data, Error, Operand, Operations, TensorType};
use kiln_wgpu::{AdapterChoice, GpuBackend, numerics};
use xtask_verify::{Backend, Expectation, Row};

/// GPUs run every this many-th case in a quick run: their kernels take longer to compile than to run.
const SAMPLE: usize = 16;

/// The folder that keeps kernels of CUDA for the next run; only its owner writes to it.
const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kiln/kernels");

/// Verifies the operations that `wants` accepts on every backend of this machine.
pub(super) fn run(quick: bool, wants: impl Fn(&str) -> bool) -> Vec<Row> {
    let mut backends = xtask_verify::instruction_sets();
    backends.extend(devices(if quick { SAMPLE } else { 1 }));
    let cases = xtask_verify::cases(wants);
    let bar = super::bar(cases.len());
    let rows = xtask_verify::run(&cases, &backends, |op| {
        bar.set_message(op);
        bar.inc(1);
    });
    bar.finish_and_clear();
    rows
}

/// The note about backends that ran a sample of the cases.
pub(super) fn sample(rows: &[Row]) -> Option<String> {
    let mut of = BTreeMap::<&str, (usize, usize)>::new();
    for row in rows {
        let (cases, step) = of.entry(&row.backend).or_default();
        (*cases, *step) = (*cases + row.cases, row.step);
    }
    let all = of.values().map(|(cases, _)| cases).max()?;
    let sampled = of.iter().filter(|(_, (_, step))| *step > 1);
    let counts: Vec<String> = sampled.map(|(backend, (cases, _))| format!("{backend} ran {cases}")).collect();
    (!counts.is_empty()).then(|| format!("Of {all} cases {}: without --quick GPUs run all.", counts.join(" and ")))
}

/// Every GPU, through wgpu and through CUDA.
fn devices(step: usize) -> Vec<Box<dyn Backend>> {
    let gpu = |index| Gpu { backend: GpuBackend::with_choice(AdapterChoice::Index(index)), index, step };
    let gpus = super::find::adapters().into_iter().map(|adapter| Box::new(gpu(adapter.index)) as Box<dyn Backend>);
    let cuda = |info: kiln_cuda::DeviceInfo| {
        // A device that does not open gives its error for every case.
        let device = CudaDevice::open(info.ordinal, &CudaDeviceOptions::new().kernel_folder(KERNELS));
        let backend = device.map_or_else(|_| CudaBackend::with_choice(info.ordinal), CudaBackend::on);
        Cuda { backend, name: super::find::cuda_name(&info), step }
    };
    let devices = super::find::cuda_devices().into_iter().map(|info| Box::new(cuda(info)) as Box<dyn Backend>);
    gpus.chain(devices).collect()
}

/// A GPU through wgpu.
struct Gpu {
    backend: GpuBackend,
    /// The index of its adapter.
    index: usize,
    step: usize,
}

impl Backend for Gpu {
    fn name(&self) -> String {
        format!("gpu {}", self.index)
    }

    fn step(&self) -> usize {
        self.step
    }

    fn compare(&self, case: &Case, expectation: &Expectation<'_>) -> Result<Option<(Accuracy, Bound)>, String> {
        let bound = || numerics::bound_on(self.backend.device()?, &case.op, &types(expectation));
        let bound = bound().map_err(|e: Error| e.to_string())?;
        Ok(Some((conform_within(case, |_, _| Ok(bound), true, |op, inputs| self.backend.run(op, inputs))?, bound)))
    }
}

/// A device of CUDA.
struct Cuda {
    backend: CudaBackend,
    name: String,
    step: usize,
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn step(&self) -> usize {
        self.step
    }

    fn compare(&self, case: &Case, expectation: &Expectation<'_>) -> Result<Option<(Accuracy, Bound)>, String> {
        let bound = || kiln_cuda::numerics::bound_on(self.backend.device()?, &case.op, &types(expectation));
        let bound = bound().map_err(|e: Error| e.to_string())?;
        let got = match self.backend.run(&case.op, &expectation.operands) {
            Err(Error::Unsupported { .. }) => return Ok(None),
            got => got.map_err(|e| e.to_string())?,
        };
        let got: Vec<Data<'_>> = got.iter().map(Buffer::as_data).collect();
        Ok(Some((check(bound, &expectation.expected, &got)?, bound)))
    }
}

fn types(expectation: &Expectation<'_>) -> Vec<TensorType> {
    expectation.operands.iter().map(Operand::ty).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend whose results are right, with its step.
    struct Right(&'static str, usize);

    impl Backend for Right {
        fn name(&self) -> String {
            self.0.to_owned()
        }

        fn step(&self) -> usize {
            self.1
        }

        fn compare(&self, _: &Case, _: &Expectation<'_>) -> Result<Option<(Accuracy, Bound)>, String> {
            Ok(Some((Accuracy::default(), Bound::Exact)))
        }
    }

    #[test]
    fn a_sample_has_the_first_case_of_each_operation_and_its_readers_know_its_size() {
        let mut cases = xtask_verify::cases(|op| op == "relu");
        let relus = cases.len();
        cases.extend(xtask_verify::cases(|op| op == "abs"));
        let backends: [Box<dyn Backend>; 2] = [Box::new(Right("all", 1)), Box::new(Right("some", 7))];
        let rows = xtask_verify::run(&cases, &backends, |_| {});
        let ran = |op: &str, backend: &str| {
            rows.iter().find(|row| row.op == op && row.backend == backend).map_or(0, |row| row.cases)
        };
        assert_eq!((ran("relu", "all"), ran("abs", "all")), (relus, cases.len() - relus));
        assert_eq!(ran("relu", "some"), relus.div_ceil(7));
        let later = (relus..cases.len()).filter(|&index| index == relus || index.is_multiple_of(7)).count();
        assert_eq!(ran("abs", "some"), later);
        let all = cases.len();
        let said = sample(&rows).unwrap();
        assert!(said.starts_with(&format!("Of {all} cases some ran {}:", relus.div_ceil(7) + later)), "{said}");
        assert_eq!(sample(&xtask_verify::run(&cases, &backends[..1], |_| {})), None);
    }

    #[test]
    #[ignore = "needs a GPU: cargo xtask test --only devices"]
    fn every_operation_keeps_its_contract_on_every_gpu() {
        let devices = devices(1);
        if devices.is_empty() {
            println!("skipped: this machine has no GPU");
            return;
        }
        let rows = xtask_verify::run(&xtask_verify::cases(|_| true), &devices, |_| {});
        let failures: Vec<_> =
            rows.iter().filter_map(|row| Some((row.op, &row.backend, row.failure.as_ref()?))).collect();
        assert!(failures.is_empty(), "{failures:#?}");
        assert!(!rows.is_empty(), "no case ran");
    }
}
