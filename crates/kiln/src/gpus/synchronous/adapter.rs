//! Adapters of wgpu, by their labels.

use std::path::Path;

use kiln_ir::graph::TensorId;
use kiln_ir::op::Op;
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Operations, Record, Result};
use kiln_route::Backend;
use kiln_wgpu::{AdapterChoice, AdapterKind, DeviceOptions, GpuBackend, GpuCommandBatch, GpuDevice};

use super::Gpu;
use super::device::{Again, Device, Recording, on_tensors};

/// An adapter.
#[derive(Debug)]
pub(super) struct Adapter {
    /// The label that the adapter has to have: another one may stand there, whose label contains this.
    label: String,
    backend: GpuBackend,
}

/// The adapter with this label.
pub(super) fn named(label: &str, folder: Option<&Path>) -> Gpu {
    let options = DeviceOptions::new();
    let options = match folder {
        Some(folder) => options.pipeline_folder(folder),
        None => options,
    };
    let backend = GpuBackend::with_choice(AdapterChoice::Name(label.to_owned())).with_options(options);
    Gpu::new(label.to_owned(), Backend::Gpu, Adapter { label: label.to_owned(), backend })
}

/// The adapter that is meant.
pub(super) fn chosen(choice: &AdapterChoice, folder: Option<&Path>) -> Result<Gpu> {
    Ok(named(&GpuDevice::find(choice)?.label, folder))
}

/// Every GPU that is no software, once; or why there is none.
pub(super) fn hardware(folder: Option<&Path>) -> Result<Vec<Gpu>> {
    let adapters = GpuDevice::list_adapters().into_iter().filter(|adapter| adapter.kind != AdapterKind::Software);
    let gpus: Vec<Gpu> = adapters.map(|adapter| named(&adapter.label, folder)).collect();
    if gpus.is_empty() {
        // Of nothing at all not even software is found, which says why.
        let software = GpuDevice::find(&AdapterChoice::Any)?;
        let reason = format!("{} is software, which is used only when it is asked for", software.label);
        return Err(Error::Unavailable { what: "a GPU".into(), reason });
    }
    Ok(gpus)
}

impl Adapter {
    pub(super) fn device(&self) -> Result<&GpuDevice> {
        let device = self.backend.device()?;
        let found = &device.adapter().label;
        if *found != self.label {
            return Err(Error::Unavailable { what: self.label.clone(), reason: format!("{found} stands there now") });
        }
        Ok(device)
    }
}

impl Device for Adapter {
    fn open(&self) -> Result<()> {
        self.device().map(drop)
    }

    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.open()?;
        self.backend.run_into(op, inputs, outputs)
    }

    on_tensors!();

    fn batch(&self) -> Result<Box<dyn Recording>> {
        Ok(Box::new(GpuCommandBatch::new(self.device()?.clone())))
    }
}

impl Recording for GpuCommandBatch {
    fn upload(&mut self, operand: &Operand<'_>) -> Result<TensorId> {
        self.upload_operand(operand)
    }

    fn set(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
        self.set_data(id, data)
    }

    fn record(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        self.record_all(op, inputs)
    }

    fn run(&mut self, wanted: &[TensorId]) -> Result<Vec<Buffer>> {
        GpuCommandBatch::run(self, wanted)
    }
}
