//! The cases of every operation on every instruction set and every GPU, against the f64 reference.

use std::collections::BTreeSet;
use std::path::Path;

use kiln_cuda::{CudaBackend, CudaDevice, DeviceOptions};
use kiln_ir::op::Bound;
use kiln_ir::op::reference::{Accuracy, Case, check, conform_within};
use kiln_ir::{Buffer, Data, Error, Operand, Operations, TensorType};
use kiln_wgpu::{AdapterChoice, GpuBackend, numerics};
use xtask_verify::{Backend, Expectation, Row};

/// Of the cases of a quick run, instruction sets take all and GPUs every one of this number: their kernels take longer to compile than to run.
const SAMPLE: usize = 16;

/// Verifies the operations that `wants` accepts on every backend of this machine. Kernels of CUDA are kept in a folder.
pub(super) fn run(quick: bool, folder: &Path, wants: impl Fn(&str) -> bool) -> Vec<Row> {
    let cases = xtask_verify::cases(wants);
    let sample: Vec<Case> = sampled(&cases, if quick { SAMPLE } else { 1 });
    let bar = super::bar(cases.len() + sample.len());
    let ran = |op| {
        bar.set_message(op);
        bar.inc(1);
    };
    let mut rows = xtask_verify::run(&cases, &xtask_verify::instruction_sets(), ran);
    rows.extend(xtask_verify::run(&sample, &devices(folder), ran));
    bar.finish_and_clear();
    rows
}

/// What a reader has to know of the cases that GPUs ran.
pub(super) fn sample(quick: bool, rows: &[Row]) -> Option<String> {
    let on = |gpu: bool| rows.iter().filter(move |row| row.backend.contains(' ') == gpu);
    let most = on(false).map(|row| &row.backend).max()?;
    let of = |backend: &str| rows.iter().filter(|row| row.backend == backend).map(|row| row.cases).sum::<usize>();
    let gpus: BTreeSet<&str> = on(true).map(|row| row.backend.as_str()).collect();
    let counts: Vec<String> = gpus.into_iter().map(|gpu| format!("{gpu} ran {}", of(gpu))).collect();
    let all = of(most);
    (quick && !counts.is_empty())
        .then(|| format!("Of {all} cases {}: without --quick GPUs run all.", counts.join(" and ")))
}

/// The first case of each operation, and every one of `step` in all.
fn sampled(cases: &[Case], step: usize) -> Vec<Case> {
    let first = |index: usize| index == 0 || cases[index - 1].op.name() != cases[index].op.name();
    let taken = (0..cases.len()).filter(|&index| index.is_multiple_of(step) || first(index));
    taken.map(|index| cases[index].clone()).collect()
}

/// Every GPU, through wgpu and through CUDA.
fn devices(folder: &Path) -> Vec<Box<dyn Backend>> {
    let gpu = |index| Gpu { backend: GpuBackend::with_choice(AdapterChoice::Index(index)), index };
    let gpus = super::find::adapters().into_iter().map(|adapter| Box::new(gpu(adapter.index)) as Box<dyn Backend>);
    let cuda = |info: kiln_cuda::DeviceInfo| {
        // A device that does not open gives its error for every case.
        let device = CudaDevice::open(info.ordinal, &DeviceOptions::new().kernel_folder(folder));
        let backend = device.map_or_else(|_| CudaBackend::with_choice(info.ordinal), CudaBackend::on);
        Cuda { backend, name: super::find::cuda_name(&info) }
    };
    let devices = super::find::cuda_devices().into_iter().map(|info| Box::new(cuda(info)) as Box<dyn Backend>);
    gpus.chain(devices).collect()
}

/// A GPU through wgpu.
struct Gpu {
    backend: GpuBackend,
    /// The index of its adapter.
    index: usize,
}

impl Backend for Gpu {
    fn name(&self) -> String {
        format!("gpu {}", self.index)
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
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.name.clone()
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

    #[test]
    #[ignore = "needs a GPU: cargo xtask test --only devices"]
    fn every_operation_keeps_its_contract_on_every_gpu() {
        let folder = std::env::temp_dir().join("kiln-verify");
        let devices = devices(&folder);
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
