//! Operations on slices of the host: sent to a device, run, and read back.

use std::collections::HashMap;
use std::sync::OnceLock;

use kiln_ir::op::{Op, check, types_of};
use kiln_ir::ready::{Ready, ReadyOperations};
use kiln_ir::{DataMut, Operand, Operations, Result, TensorType};

use crate::CudaDevice;
use crate::direct;
use crate::execute::Executable;
use crate::options::DeviceOptions;
use crate::plan::Plan;

/// Bytes that operations may hold that are kept ready.
const MOST_BYTES: u64 = 1 << 30;

/// Runs operations on slices of the host on a GPU of NVIDIA. They are the methods of [`Operations`].
///
/// Nothing happens before the first operation, which opens the device. An operation that ran before on operands of the
/// same types finds its kernels compiled and its memory taken.
#[derive(Debug, Default)]
pub struct CudaBackend {
    ordinal: u32,
    options: DeviceOptions,
    device: OnceLock<Result<CudaDevice>>,
    kept: ReadyOperations<Executable>,
}

impl CudaBackend {
    /// A backend on the first device.
    pub fn new() -> Self {
        Self::default()
    }

    /// A backend on the device with this number.
    pub fn with_device(ordinal: u32) -> Self {
        Self { ordinal, ..Self::default() }
    }

    /// Opens the device with these options, unless it is open.
    pub fn with_options(self, options: DeviceOptions) -> Self {
        Self { options, ..self }
    }

    /// A backend on a device that is open.
    pub fn on(device: CudaDevice) -> Self {
        Self { device: OnceLock::from(Ok(device)), ..Self::default() }
    }

    /// The device, opened if it was not.
    ///
    /// # Errors
    /// As [`CudaDevice::open`], each time the same.
    pub fn device(&self) -> Result<&CudaDevice> {
        self.device.get_or_init(|| CudaDevice::open(self.ordinal, &self.options)).as_ref().map_err(Clone::clone)
    }

    /// What is kept of this operation, taken out for as long as it is in use.
    fn ready(&self, op: &Op, types: &[TensorType]) -> Result<Ready<Executable>> {
        let device = self.device()?;
        device.check_alive()?;
        if let Some(ready) = self.kept.take(op, types) {
            return Ok(ready);
        }
        let (inputs, plan) = Plan::of_operation(op, types, device.inner.hardware)?;
        let executable = Executable::new(device, plan, &HashMap::new())?;
        Ok(Ready { op: *op, types: types.to_vec(), inputs, executable })
    }
}

impl Operations for CudaBackend {
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        kiln_ir::for_operation!(op, op => check(op, inputs, outputs))?;
        if let Some(function) = direct::takes(op, inputs, outputs)
            && let [DataMut::F32(out)] = outputs
        {
            let device = self.device()?;
            device.check_alive()?;
            return direct::run(device, function, inputs, out);
        }
        let mut ready = self.ready(op, &types_of(inputs))?;
        let device = self.device()?;
        for (id, input) in ready.inputs.iter().zip(inputs) {
            if let Some(region) = ready.executable.input(*id) {
                device.inner.staging.upload(input.data().as_bytes(), region)?;
            }
        }
        let mut bytes: Vec<&mut [u8]> = outputs.iter_mut().map(DataMut::as_bytes).collect();
        ready.executable.run(&mut bytes)?;
        self.kept.keep(ready, MOST_BYTES, Executable::bytes);
        Ok(())
    }
}
