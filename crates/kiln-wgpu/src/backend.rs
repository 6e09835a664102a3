//! Operations on slices of the host: sent to a device, run, and read back.

use std::collections::HashMap;
use std::sync::OnceLock;

#[cfg(not(target_arch = "wasm32"))]
use kiln_ir::Operations;
use kiln_ir::op::{Op, check, types_of};
use kiln_ir::ready::{Ready, ReadyOperations};
use kiln_ir::{Buffer, DataMut, Operand, Result, TensorType};

use crate::GpuDevice;
use crate::adapters::AdapterChoice;
use crate::direct::{self, Direct};
use crate::execute::{Executable, write};
use crate::options::DeviceOptions;
use crate::plan::Plan;
#[cfg(not(target_arch = "wasm32"))]
use crate::runtime::block_on;
use crate::tensor::copy_to;
use crate::wait::Waiting;

/// Bytes that operations may hold that are kept ready.
const MOST_BYTES: u64 = 256 << 20;

/// Runs operations on slices of the host on a GPU: any of them with [`GpuBackend::run_async`], and natively as the methods of
/// [`kiln_ir::Operations`].
///
/// Nothing happens before the first operation, which opens the device. An operation that ran before on operands of the
/// same types finds its kernels compiled and its memory taken.
#[derive(Debug, Default)]
pub struct GpuBackend {
    choice: AdapterChoice,
    options: DeviceOptions,
    device: OnceLock<Result<GpuDevice>>,
    kept: ReadyOperations<Way>,
}

/// How an operation runs that is ready.
#[derive(Debug)]
enum Way {
    /// Operands and results are copied to and from the memory of the device.
    Copied(Executable),
    /// They lie where the host sees them.
    Direct(Direct),
}

impl Way {
    fn bytes(&self) -> u64 {
        match self {
            Self::Copied(executable) => executable.bytes(),
            Self::Direct(direct) => direct.bytes(),
        }
    }
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
    /// As [`GpuDevice::new_async`], each time the same.
    pub async fn device_async(&self) -> Result<&GpuDevice> {
        let device = match self.device.get() {
            Some(device) => device,
            None => {
                let opened = GpuDevice::open_with_async(&self.choice, &self.options).await;
                // Unless someone else opened it meanwhile.
                self.device.get_or_init(|| opened)
            }
        };
        device.as_ref().map_err(Clone::clone)
    }

    /// Runs any operation and returns its results.
    ///
    /// # Errors
    /// As [`GpuDevice::run_async`], and errors of opening the device.
    pub async fn run_async(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Vec<Buffer>> {
        let mut results = op.infer(&types_of(inputs))?.iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
        self.run_into_async(op, inputs, &mut outputs).await?;
        Ok(results)
    }

    /// Runs any operation into slices of the caller.
    ///
    /// # Errors
    /// As [`GpuBackend::run_async`]; [`kiln_ir::Error::Length`] and [`kiln_ir::Error::Type`] for outputs that do not fit.
    pub async fn run_into_async(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.run_with(op, inputs, outputs, Waiting::Elsewhere).await
    }

    async fn run_with(
        &self,
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &mut [DataMut<'_>],
        waiting: Waiting,
    ) -> Result<()> {
        kiln_ir::for_operation!(op, op => check(op, inputs, outputs))?;
        let device = self.device_async().await?;
        let mut ready = self.ready(device, op, &types_of(inputs)).await?;
        let wanted: Vec<usize> = (0..outputs.len()).collect();
        let see = |position: usize, stored: &[u8]| copy_to(stored, &mut outputs[position]);
        match &mut ready.executable {
            Way::Direct(direct) => {
                let operands = inputs.iter().map(|input| input.data().as_bytes());
                direct.run(device, operands, waiting, see).await?;
            }
            Way::Copied(executable) => {
                let sent: u64 = inputs.iter().map(|input| input.ty().bytes() as u64).sum();
                let upload = device.scoped("an upload", sent, || {
                    for (id, input) in ready.inputs.iter().zip(inputs) {
                        if let Some(region) = executable.input(*id) {
                            write(device, region, input.data().as_bytes());
                        }
                    }
                    Ok(())
                });
                upload.await?;
                executable.run(&wanted, waiting, see).await?;
            }
        }
        self.kept.keep(ready, MOST_BYTES, Way::bytes);
        Ok(())
    }

    /// What is kept of this operation, taken out for as long as it is in use.
    async fn ready(&self, device: &GpuDevice, op: &Op, types: &[TensorType]) -> Result<Ready<Way>> {
        device.check_alive()?;
        if let Some(ready) = self.kept.take(op, types) {
            return Ok(ready);
        }
        let (inputs, plan) = Plan::of_operation(op, types, device.inner.target())?;
        let executable = match direct::takes(device, &plan) {
            true => Way::Direct(Direct::new(device, &plan, &inputs).await?),
            false => Way::Copied(Executable::new(device, &plan, &HashMap::new()).await?),
        };
        Ok(Ready { op: *op, types: types.to_vec(), inputs, executable })
    }
}

/// The same for those who wait.
#[cfg(not(target_arch = "wasm32"))]
impl GpuBackend {
    /// As [`GpuBackend::device_async`].
    ///
    /// # Errors
    /// As there.
    pub fn device(&self) -> Result<&GpuDevice> {
        self.device.get_or_init(|| GpuDevice::open_with(&self.choice, &self.options)).as_ref().map_err(Clone::clone)
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Operations for GpuBackend {
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        // Several threads that come first open one device.
        self.device()?;
        block_on(self.run_with(op, inputs, outputs, Waiting::Here))
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))] // devices are waited for
mod tests {
    use kiln_ir::{Error, Operations};

    use super::GpuBackend;
    use crate::adapters::{AdapterChoice, LISTINGS};

    #[test]
    fn nothing_happens_before_the_first_operation() {
        let listings = LISTINGS.get();
        let none = GpuBackend::with_adapter(AdapterChoice::Index(1000));
        let any = GpuBackend::with_adapter(AdapterChoice::Any);
        assert!(GpuBackend::new().device.get().is_none() && any.device.get().is_none());
        assert_eq!(LISTINGS.get(), listings);
        let refused = none.relu(&[1.0]);
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        assert!(LISTINGS.get() > listings && none.device.get().is_some());
        match any.relu(&[-1.0, 2.0]) {
            Ok(y) => assert_eq!(y, [0.0, 2.0]),
            Err(why) => assert!(!std::env::var("KILN_REQUIRE").is_ok_and(|names| names.contains("wgpu")), "{why}"),
        }
    }
}
