//! The methods of an open device that are the same for every backend.

use kiln_ir::op::Op;
use kiln_ir::{Operand, Result, TensorType};

use crate::driver::Driver;
use crate::memory::MemoryUse;
use crate::prepared::{Prepared, compile_ahead, plans};
use crate::statistics::Statistics;
use crate::tensor::Tensor;
use crate::waiting::Waiting;

/// The bodies of the methods that `device_methods!` gives to a driver.
#[doc(hidden)]
pub mod bodies {
    use super::*;

    pub async fn upload<D: Driver>(device: &D, operand: &Operand<'_>) -> Result<Tensor<D>> {
        Tensor::upload(device, operand).await
    }

    pub async fn run<D: Driver>(
        device: &D,
        op: &Op,
        inputs: &[&Tensor<D>],
        waiting: Waiting,
    ) -> Result<Vec<Tensor<D>>> {
        let mut operation = Prepared::new(device, op, inputs).await?;
        operation.run_waiting(waiting).await?;
        Ok(operation.results())
    }

    pub async fn prepare<D: Driver>(device: &D, op: &Op, inputs: &[&Tensor<D>]) -> Result<Prepared<D>> {
        Prepared::new(device, op, inputs).await
    }

    pub async fn compile<D: Driver>(device: &D, operations: &[(Op, &[TensorType])]) -> Result<()> {
        compile_ahead(device, plans(device, operations)).await
    }

    /// [`compile`] without the operations that the device cannot run.
    pub async fn compile_supported<D: Driver>(device: &D, operations: &[(Op, &[TensorType])]) -> Result<()> {
        compile_ahead(device, plans(device, operations).filter(Result::is_ok)).await
    }

    pub fn trim<D: Driver>(device: &D) {
        device.shared().pool.clear();
        device.trim_staging();
    }

    pub fn statistics<D: Driver>(device: &D) -> Statistics {
        device.shared().counters.read()
    }

    pub fn memory_use<D: Driver>(device: &D) -> MemoryUse {
        device.shared().pool.memory_use()
    }
}

/// Defines the methods that the handle of every device has: `upload`, `run`, `prepare`, `compile_ahead`, `finish`,
/// `trim`, `is_lost`, `statistics`, `memory_use`. A macro, because inherent methods need no trait in scope.
#[macro_export]
macro_rules! device_methods {
    ($device:ty) => {
        impl $device {
            $crate::blocking_and_async! {
                /// Copies a tensor to the device.
                ///
                /// # Errors
                /// [`kiln_ir::Error::Limit`] where it is too large for the device, [`kiln_ir::Error::OutOfMemory`],
                /// [`kiln_ir::Error::DeviceLost`].
                pub fn upload, upload_async(&self, _waiting, operand: &kiln_ir::Operand<'_>) -> kiln_ir::Result<$crate::Tensor<$device>> {
                    $crate::bodies::upload(self, operand).await
                }
                /// Runs an operation on tensors of this device; its results stay there. It does not wait for the device, unless
                /// its data can be at fault.
                ///
                /// # Errors
                /// The errors of the shape rule; [`kiln_ir::Error::Unavailable`] for a tensor of another device;
                /// [`kiln_ir::Error::Index`] for an index outside of its table; [`kiln_ir::Error::Unsupported`],
                /// [`kiln_ir::Error::Limit`], [`kiln_ir::Error::OutOfMemory`], [`kiln_ir::Error::DeviceLost`].
                pub fn run, run_async(&self, waiting, op: &kiln_ir::op::Op, inputs: &[&$crate::Tensor<$device>])
                    -> kiln_ir::Result<Vec<$crate::Tensor<$device>>> {
                    $crate::bodies::run(self, op, inputs, waiting).await
                }
                /// Makes an operation on tensors of this device ready to run, again and again.
                ///
                /// # Errors
                /// The errors of `run`.
                pub fn prepare, prepare_async(&self, _waiting, op: &kiln_ir::op::Op, inputs: &[&$crate::Tensor<$device>])
                    -> kiln_ir::Result<$crate::Prepared<$device>> {
                    $crate::bodies::prepare(self, op, inputs).await
                }
                /// Compiles the kernels of operations on operands of these types, so that their first runs compile none.
                ///
                /// # Errors
                /// The errors of the shape rules; [`kiln_ir::Error::Unsupported`], [`kiln_ir::Error::Limit`],
                /// [`kiln_ir::Error::Driver`], [`kiln_ir::Error::DeviceLost`].
                pub fn compile_ahead, compile_ahead_async(&self, _waiting,
                    operations: &[(kiln_ir::op::Op, &[kiln_ir::TensorType])]) -> kiln_ir::Result<()> {
                    $crate::bodies::compile(self, operations).await
                }
                /// Waits until all submitted work is done.
                ///
                /// # Errors
                /// [`kiln_ir::Error::DeviceLost`].
                pub fn finish, finish_async(&self, waiting) -> kiln_ir::Result<()> {
                    $crate::Driver::wait(self, waiting).await
                }
            }

            /// Returns memory that is not in use to the driver.
            pub fn trim(&self) {
                $crate::bodies::trim(self);
            }

            /// Whether the device is lost.
            pub fn is_lost(&self) -> bool {
                $crate::Driver::check_alive(self).is_err()
            }

            /// Counts of the work of the device since it was opened.
            pub fn statistics(&self) -> $crate::Statistics {
                $crate::bodies::statistics(self)
            }

            /// The device memory that is in use.
            pub fn memory_use(&self) -> $crate::MemoryUse {
                $crate::bodies::memory_use(self)
            }
        }
    };
}
