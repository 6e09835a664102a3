//! What a backend offers for the GPU behind a place.

use std::any::Any;
use std::fmt::Debug;

use kiln_ir::graph::TensorId;
use kiln_ir::op::Op;
use kiln_ir::{Buffer, Data, DataMut, Operand, Result};

/// Something on a device that can be done again and again; each time it is waited for.
pub(super) type Again = Box<dyn FnMut() -> Result<()>>;

/// The device behind a place, as its backend has it. Nothing is opened before it is used.
pub(super) trait Device: Any + Debug + Send + Sync {
    /// Opens it, if it was not.
    fn open(&self) -> Result<()>;

    /// Runs an operation from host to host.
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()>;

    /// The operation on operands that lie on the device; its results stay there.
    fn resident(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Again>;

    /// Reading a tensor that lies on the device.
    fn reading(&self, operand: &Operand<'_>) -> Result<Again>;

    /// An empty batch.
    fn batch(&self) -> Result<Box<dyn Recording>>;
}

/// [`Device::resident`] and [`Device::reading`] of a device that has, as those of every backend do, `upload`, `prepare` and
/// `finish`.
#[cfg(all(any(feature = "gpu", feature = "cuda"), not(target_arch = "wasm32")))]
macro_rules! on_tensors {
    () => {
        fn resident(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Again> {
            let device = self.device()?.clone();
            let tensors = inputs.iter().map(|input| device.upload(input)).collect::<Result<Vec<_>>>()?;
            let mut operation = device.prepare(op, &tensors.iter().collect::<Vec<_>>())?;
            Ok(Box::new(move || {
                operation.run()?;
                device.finish()
            }))
        }

        fn reading(&self, operand: &Operand<'_>) -> Result<Again> {
            let tensor = self.device()?.upload(operand)?;
            Ok(Box::new(move || tensor.read().map(drop)))
        }
    };
}
#[cfg(all(any(feature = "gpu", feature = "cuda"), not(target_arch = "wasm32")))]
pub(super) use on_tensors;

/// A batch of a backend.
pub(super) trait Recording: Debug + Send + Sync {
    /// Copies an operand to the device.
    fn upload(&mut self, operand: &Operand<'_>) -> Result<TensorId>;

    /// Sends the elements of an uploaded tensor anew.
    fn set(&mut self, id: TensorId, data: Data<'_>) -> Result<()>;

    /// Records an operation.
    fn record(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>>;

    /// Computes these tensors and reads them, in their order.
    fn run(&mut self, wanted: &[TensorId]) -> Result<Vec<Buffer>>;
}
