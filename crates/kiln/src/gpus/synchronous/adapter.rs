//! Adapters of wgpu, by their names.

use std::path::Path;

use kiln_core::graph::TensorId;
use kiln_core::op::Op;
use kiln_core::{Buffer, Data, DataMut, Operand, Operations, Record, Result};
use kiln_route::Backend;
use kiln_wgpu::runtime::block_on;
use kiln_wgpu::{AdapterChoice, AdapterInfo, AdapterKind, DeviceOptions, GpuBackend, GpuCommandBatch, GpuDevice};

use super::Gpu;
use super::device::{Again, Device, Recording, on_tensors};

/// An adapter.
#[derive(Debug)]
pub(super) struct Adapter(GpuBackend);

/// The adapter of this name.
pub(super) fn named(name: &str, folder: Option<&Path>) -> Gpu {
    let options = DeviceOptions::new();
    let options = match folder {
        Some(folder) => options.pipeline_folder(folder),
        None => options,
    };
    let backend = GpuBackend::with_adapter(AdapterChoice::Name(name.to_owned())).with_options(options);
    Gpu::new(name.to_owned(), Backend::Gpu, Adapter(backend))
}

/// The adapter that is meant.
pub(super) fn chosen(choice: &AdapterChoice, folder: Option<&Path>) -> Result<Gpu> {
    Ok(named(&GpuDevice::find(choice)?.name, folder))
}

/// Every adapter that is no software, each name once.
pub(super) fn hardware(folder: Option<&Path>) -> Vec<Gpu> {
    let mut names: Vec<String> = Vec::new();
    for AdapterInfo { name, kind, .. } in GpuDevice::list_adapters() {
        if kind != AdapterKind::Software && !names.contains(&name) {
            names.push(name);
        }
    }
    names.iter().map(|name| named(name, folder)).collect()
}

impl Adapter {
    pub(super) fn device(&self) -> Result<&GpuDevice> {
        self.0.device()
    }
}

impl Device for Adapter {
    fn open(&self) -> Result<()> {
        self.device().map(drop)
    }

    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.0.run_into(op, inputs, outputs)
    }

    on_tensors!();

    fn batch(&self) -> Result<Box<dyn Recording>> {
        Ok(Box::new(GpuCommandBatch::new(self.device()?.clone())))
    }
}

impl Recording for GpuCommandBatch {
    fn upload(&mut self, operand: &Operand<'_>) -> Result<TensorId> {
        block_on(self.upload_async(operand))
    }

    fn set(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
        block_on(self.set_async(id, data))
    }

    fn record(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        self.record_all(op, inputs)
    }

    fn run(&mut self, wanted: &[TensorId]) -> Result<Vec<Buffer>> {
        GpuCommandBatch::run(self, wanted)
    }
}
