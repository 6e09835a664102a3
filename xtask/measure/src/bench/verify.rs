//! Every case of every operation on every instruction set and every GPU, against the f64 reference.

use kiln_cuda::CudaBackend;
use kiln_ir::op::Bound;
use kiln_ir::op::reference::{Accuracy, Case, check, conform_within};
use kiln_ir::{Buffer, Data, Error, Operand, Operations, TensorType};
use kiln_wgpu::{AdapterChoice, GpuBackend, numerics};
use xtask_verify::{Backend, Expectation, Row};

/// Verifies the operations that `wants` accepts on every backend of this machine.
pub(super) fn run(wants: impl Fn(&str) -> bool) -> Vec<Row> {
    let mut backends = xtask_verify::instruction_sets();
    backends.extend(devices());
    let cases = xtask_verify::cases(wants);
    let bar = super::bar(cases.len());
    let rows = xtask_verify::run(&cases, &backends, |op| {
        bar.set_message(op);
        bar.inc(1);
    });
    bar.finish_and_clear();
    rows
}

/// Every GPU, through wgpu and through CUDA.
fn devices() -> Vec<Box<dyn Backend>> {
    let gpu = |index| Gpu { backend: GpuBackend::with_choice(AdapterChoice::Index(index)), index };
    let gpus = super::find::adapters().into_iter().map(|adapter| Box::new(gpu(adapter.index)) as Box<dyn Backend>);
    let cuda = |info: kiln_cuda::DeviceInfo| Cuda {
        backend: CudaBackend::with_choice(info.ordinal),
        name: super::find::cuda_name(&info),
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
        let devices = devices();
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
