//! Devices of CUDA, by their numbers and names.

use std::path::Path;

use kiln_cuda::{CudaBackend, CudaCommandBatch, CudaDevice, DeviceInfo, DeviceOptions, DriverProblem};
use kiln_ir::graph::TensorId;
use kiln_ir::op::Op;
use kiln_ir::{Buffer, Data, DataMut, Error, Operand, Operations, Record, Result};
use kiln_route::Backend;

use super::Gpu;
use super::device::{Again, Device, Recording, on_tensors};

/// A device of CUDA.
#[derive(Debug)]
pub(super) struct Cuda {
    /// The name that the device with this number has to have: numbers change when a device is added.
    name: String,
    backend: CudaBackend,
}

/// The place of a device: `cuda 0: NVIDIA H200`.
fn place(info: &DeviceInfo) -> String {
    format!("cuda {}: {}", info.ordinal, info.name)
}

/// The device whose place has this name. What is no such name is the name of a device that is not there.
pub(super) fn named(name: &str, folder: Option<&Path>) -> Gpu {
    let parts = name.strip_prefix("cuda ").and_then(|rest| rest.split_once(": "));
    let ordinal = parts.and_then(|(ordinal, _)| ordinal.parse().ok()).unwrap_or(u32::MAX);
    let options = DeviceOptions::new();
    let options = match folder {
        Some(folder) => options.kernel_folder(folder),
        None => options,
    };
    let backend = CudaBackend::with_choice(ordinal).with_options(options);
    Gpu::new(name.to_owned(), Backend::Cuda, Cuda { name: name.to_owned(), backend })
}

/// The device with this number.
pub(super) fn chosen(ordinal: u32, folder: Option<&Path>) -> Result<Gpu> {
    let devices = CudaDevice::list().map_err(DriverProblem::into_error)?;
    let found = devices.iter().find(|info| info.ordinal == ordinal).ok_or_else(|| Error::Unavailable {
        what: format!("CUDA device {ordinal}"),
        reason: format!("there are {}", devices.iter().map(place).collect::<Vec<_>>().join(", ")),
    })?;
    Ok(named(&place(found), folder))
}

/// Every device, or why there is none.
pub(super) fn hardware(folder: Option<&Path>) -> Result<Vec<Gpu>> {
    let devices = CudaDevice::list().map_err(DriverProblem::into_error)?;
    if devices.is_empty() {
        let reason = "no device of the driver answers".into();
        return Err(Error::Unavailable { what: "CUDA".into(), reason });
    }
    Ok(devices.iter().map(|info| named(&place(info), folder)).collect())
}

impl Cuda {
    pub(super) fn device(&self) -> Result<&CudaDevice> {
        let device = self.backend.device()?;
        let found = place(device.info());
        if found != self.name {
            return Err(Error::Unavailable { what: self.name.clone(), reason: format!("{found} stands there now") });
        }
        Ok(device)
    }
}

impl Device for Cuda {
    fn open(&self) -> Result<()> {
        self.device().map(drop)
    }

    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.open()?;
        self.backend.run_into(op, inputs, outputs)
    }

    on_tensors!();

    fn batch(&self) -> Result<Box<dyn Recording>> {
        Ok(Box::new(CudaCommandBatch::new(self.device()?.clone())))
    }
}

impl Recording for CudaCommandBatch {
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
        CudaCommandBatch::run(self, wanted)
    }
}
