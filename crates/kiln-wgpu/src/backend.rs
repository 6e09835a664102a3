//! Operations on slices of the host: sent to a device, run, and read back.

use std::sync::{Mutex, OnceLock, PoisonError};

use kiln_core::graph::TensorId;
use kiln_core::op::{Op, check, types_of};
use kiln_core::{DataMut, Operand, Operations, Result, TensorType};

use crate::GpuDevice;
use crate::adapters::AdapterChoice;
use crate::execute::{Executable, write};
use crate::options::DeviceOptions;
use crate::plan::Plan;
use crate::runtime::block_on;
use crate::tensor::copy_to;
use crate::wait::Waiting;

/// Operations that are kept ready, and the bytes that they may hold.
const MOST_KEPT: usize = 64;
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
    kept: Mutex<Vec<Kept>>,
}

/// An operation that is ready to run.
#[derive(Debug)]
struct Kept {
    op: Op,
    types: Vec<TensorType>,
    inputs: Vec<TensorId>,
    executable: Executable,
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
    fn ready(&self, op: &Op, types: &[TensorType]) -> Result<Kept> {
        let device = self.device()?;
        device.check_alive()?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|kept| kept.op == *op && kept.types == types) {
            return Ok(kept.remove(at));
        }
        drop(kept);
        let (inputs, plan) = Plan::of_operation(op, types, device.inner.target())?;
        let executable = block_on(Executable::new(device, &plan, &std::collections::HashMap::new()))?;
        Ok(Kept { op: *op, types: types.to_vec(), inputs, executable })
    }

    /// Keeps what was used for the next time, the last used last.
    fn keep(&self, used: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(used);
        while kept.len() > 1
            && (kept.len() > MOST_KEPT || kept.iter().map(|kept| kept.executable.bytes()).sum::<u64>() > MOST_BYTES)
        {
            kept.remove(0);
        }
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
        self.keep(ready);
        Ok(())
    }
}
