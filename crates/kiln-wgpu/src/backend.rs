//! Operations on slices of the host: sent to a device, run, and read back.

use std::sync::OnceLock;

use kiln_core::op::{Op, check, types_of};
use kiln_core::ready::{Ready, ReadyOperations};
use kiln_core::{DataMut, Operand, Operations, Result, TensorType};

use crate::GpuDevice;
use crate::adapters::AdapterChoice;
use crate::execute::{Executable, write};
use crate::options::DeviceOptions;
use crate::plan::Plan;
use crate::runtime::block_on;
use crate::tensor::copy_to;
use crate::wait::Waiting;

/// Bytes that operations may hold that are kept ready.
const MOST_BYTES: u64 = 256 << 20;

/// Runs operations on slices of the host on a GPU. They are the methods of [`Operations`].
///
/// Nothing happens before the first operation, which opens the device. An operation that ran before on operands of the
/// same types finds its kernels compiled and its memory taken.
#[derive(Debug, Default)]
pub struct GpuBackend {
    choice: AdapterChoice,
    options: DeviceOptions,
    device: OnceLock<Result<GpuDevice>>,
    kept: ReadyOperations<Executable>,
}

impl GpuBackend {
    /// A backend on the device that [`GpuDevice::new`] would open.
    pub fn new() -> Self {
        Self::default()
    }

    /// A backend on an adapter of choice.
    pub fn with_adapter(choice: AdapterChoice) -> Self {
        Self { choice, ..Self::default() }
    }

    /// Opens the device with these options, unless it is open.
    pub fn with_options(self, options: DeviceOptions) -> Self {
        Self { options, ..self }
    }

    /// A backend on a device that is open.
    pub fn on(device: GpuDevice) -> Self {
        Self { device: OnceLock::from(Ok(device)), ..Self::default() }
    }

    /// The device, opened if it was not.
    ///
    /// # Errors
    /// As [`GpuDevice::new`], each time the same.
    pub fn device(&self) -> Result<&GpuDevice> {
        self.device.get_or_init(|| GpuDevice::open_with(&self.choice, &self.options)).as_ref().map_err(Clone::clone)
    }

    /// What is kept of this operation, taken out for as long as it is in use.
    fn ready(&self, op: &Op, types: &[TensorType]) -> Result<Ready<Executable>> {
        let device = self.device()?;
        device.check_alive()?;
        if let Some(ready) = self.kept.take(op, types) {
            return Ok(ready);
        }
        let (inputs, plan) = Plan::of_operation(op, types, device.inner.target())?;
        let executable = block_on(Executable::new(device, &plan, &std::collections::HashMap::new()))?;
        Ok(Ready { op: *op, types: types.to_vec(), inputs, executable })
    }
}

impl Operations for GpuBackend {
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        kiln_core::for_operation!(op, op => check(op, inputs, outputs))?;
        let mut ready = self.ready(op, &types_of(inputs))?;
        let device = self.device()?;
        let sent: u64 = inputs.iter().map(|input| input.ty().bytes() as u64).sum();
        let upload = device.scoped("an upload", sent, || {
            for (id, input) in ready.inputs.iter().zip(inputs) {
                if let Some(region) = ready.executable.input(*id) {
                    write(device, region, input.data().as_bytes());
                }
            }
            Ok(())
        });
        block_on(upload)?;
        let wanted: Vec<usize> = (0..outputs.len()).collect();
        let done = ready.executable.run(&wanted, Waiting::Here, |position, stored| {
            copy_to(stored, &mut outputs[position]);
        });
        block_on(done)?;
        self.kept.keep(ready, MOST_BYTES, Executable::bytes);
        Ok(())
    }
}
