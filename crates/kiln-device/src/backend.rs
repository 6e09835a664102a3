//! Operations on slices of the host: uploaded to a device, run, and read back.

use std::collections::HashMap;
use std::sync::OnceLock;

#[cfg(not(target_arch = "wasm32"))]
use kiln_ir::Operations;
use kiln_ir::op::{Call, Op, OwnedCall, check_outputs};
use kiln_ir::{Buffer, DataMut, Error, Operand, Result, TensorType};

use crate::driver::Driver;
use crate::executable::Executable;
use crate::plan::Plan;
use crate::ready::{Ready, ReadyOperations};
use crate::tensor::write;
use crate::waiting::Waiting;
#[cfg(not(target_arch = "wasm32"))]
use crate::waiting::block_on;

/// Runs operations on slices of the host on a device: any of them with [`Backend::run_async`], and natively as the methods of
/// [`kiln_ir::Operations`].
///
/// The first operation opens the device. An operation that ran before on operands of the same types finds its kernels compiled
/// and its memory allocated.
#[derive(Debug)]
pub struct Backend<D: Driver> {
    choice: D::Choice,
    options: D::Options,
    device: OnceLock<Result<D>>,
    kept: ReadyOperations<Runner<D>>,
}

impl<D: Driver> Default for Backend<D> {
    fn default() -> Self {
        let (device, kept) = (OnceLock::new(), ReadyOperations::default());
        Self { choice: D::Choice::default(), options: D::Options::default(), device, kept }
    }
}

/// The form of a compiled operation.
#[derive(Debug)]
enum Runner<D: Driver> {
    /// Operands and results are copied to and from device memory.
    Copied(Box<Executable<D>>),
    /// Kernels access memory that the host can map.
    Direct(D::Direct),
}

impl<D: Driver> Runner<D> {
    fn bytes(&self) -> u64 {
        match self {
            Self::Copied(executable) => executable.bytes(),
            Self::Direct(direct) => D::direct_bytes(direct),
        }
    }
}

impl<D: Driver> Backend<D> {
    /// A backend on the default device.
    pub fn new() -> Self {
        Self::default()
    }

    /// A backend on a device of choice.
    pub fn with_choice(choice: D::Choice) -> Self {
        Self { choice, ..Self::default() }
    }

    /// Opens the device with these options, unless it is open.
    #[must_use]
    pub fn with_options(self, options: D::Options) -> Self {
        Self { options, ..self }
    }

    /// A backend on a device that is open.
    pub fn on(device: D) -> Self {
        Self { device: OnceLock::from(Ok(device)), ..Self::default() }
    }

    /// The device if it was opened.
    pub fn opened(&self) -> Option<&D> {
        self.device.get().and_then(|device| device.as_ref().ok())
    }

    /// The device, opened if it was not.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Unavailable`] if the device does not exist, [`kiln_ir::Error::Driver`]; the same error each time.
    pub async fn device_async(&self) -> Result<&D> {
        let device = match self.device.get() {
            Some(device) => device,
            None => {
                let opened = D::open_device(&self.choice, &self.options, Waiting::Elsewhere).await;
                // Another caller may have opened it in the meantime.
                self.device.get_or_init(|| opened)
            }
        };
        device.as_ref().map_err(Clone::clone)
    }

    /// The blocking form of [`Backend::device_async`]. If several threads come first, one opens the device.
    ///
    /// # Errors
    /// The errors of [`Backend::device_async`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn device(&self) -> Result<&D> {
        let open = || block_on(D::open_device(&self.choice, &self.options, Waiting::Here));
        self.device.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// Runs any operation and returns its results.
    ///
    /// # Errors
    /// The errors of the shape rule, of the data, of opening the device and of the device.
    pub async fn run_async(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Vec<Buffer>> {
        let call = OwnedCall::new(op, inputs)?;
        let call = call.as_call();
        let mut results = call.outputs().iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
        self.run_call_waiting(&call, &mut outputs, Waiting::Elsewhere).await?;
        Ok(results)
    }

    /// Runs any operation into slices of the caller.
    ///
    /// # Errors
    /// The errors of [`Backend::run_async`]; [`kiln_ir::Error::Length`] and [`kiln_ir::Error::Type`] for outputs that do not fit.
    pub async fn run_into_async(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let call = OwnedCall::new(op, inputs)?;
        self.run_call_waiting(&call.as_call(), outputs, Waiting::Elsewhere).await
    }

    /// [`Backend::run_into_async`] for a call whose shapes are inferred, and for callers that state who drives the device.
    ///
    /// # Errors
    /// The errors of the data, of opening the device and of the device; [`kiln_ir::Error::Arity`], [`kiln_ir::Error::Length`] and
    /// [`kiln_ir::Error::Type`] for outputs that do not fit.
    pub async fn run_call_waiting(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>], waiting: Waiting) -> Result<()> {
        let (op, inputs) = (call.op(), call.inputs());
        check_outputs(op.name(), call.outputs(), outputs)?;
        let device = match waiting {
            #[cfg(not(target_arch = "wasm32"))]
            Waiting::Here => self.device()?,
            Waiting::Elsewhere => self.device_async().await?,
        };
        let mut ready = self.ready(device, op, call.types()).await?;
        let counters = &device.shared().counters;
        match &mut ready.executable {
            Runner::Direct(direct) => {
                let inputs: Vec<&[u8]> = inputs.iter().map(|input| input.data().as_bytes()).collect();
                inputs.iter().for_each(|bytes| counters.uploaded(bytes.len()));
                let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(DataMut::as_bytes).collect();
                device.run_direct(direct, &inputs, &mut outputs, waiting).await?;
            }
            Runner::Copied(executable) => {
                let sent: u64 = inputs.iter().map(|input| input.ty().bytes() as u64).sum();
                let upload = || {
                    for (id, input) in ready.inputs.iter().zip(inputs) {
                        if let Some(region) = executable.input(*id) {
                            write(device, region, input.data().as_bytes())?;
                        }
                    }
                    Ok(())
                };
                device.scoped("an upload", sent, upload).await?;
                let reads = outputs.iter_mut().map(DataMut::as_bytes).enumerate().collect();
                executable.run(reads, waiting).await?;
            }
        }
        self.kept.keep(ready, D::MOST_READY_BYTES, Runner::bytes);
        Ok(())
    }

    /// Takes the compiled operation out of the cache while it is in use, and compiles it if it is missing.
    async fn ready(&self, device: &D, op: &Op, types: &[TensorType]) -> Result<Ready<Runner<D>>> {
        device.check_alive()?;
        if let Some(ready) = self.kept.take(op, types) {
            return Ok(ready);
        }
        match self.make_ready(device, op, types).await {
            // Clears the cache to make room.
            Err(Error::OutOfMemory { .. }) if self.kept.clear() => {
                crate::bodies::trim(device);
                self.make_ready(device, op, types).await
            }
            made => made,
        }
    }

    async fn make_ready(&self, device: &D, op: &Op, types: &[TensorType]) -> Result<Ready<Runner<D>>> {
        let (inputs, plan) = Plan::of_operation(op, types, device.target())?;
        let executable = match device.is_direct(op, types, &plan) {
            true => Runner::Direct(device.make_direct(op, plan, &inputs).await?),
            false => Runner::Copied(Box::new(Executable::new(device, plan, &HashMap::new()).await?)),
        };
        Ok(Ready { op: *op, types: types.to_vec(), inputs, executable })
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl<D: Driver> Operations for Backend<D> {
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        Call::with(op, inputs, |call| self.run_call(call, outputs))
    }

    fn run_call(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        block_on(self.run_call_waiting(call, outputs, Waiting::Here))
    }
}
