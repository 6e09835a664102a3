//! The operations of kiln on NVIDIA GPUs: kernels that kiln-ptx writes, run through the driver alone.
//!
//! ```no_run
//! use kiln_ir::{Operations, Record};
//! use kiln_cuda::{CudaBackend, CudaCommandBatch, CudaDevice};
//!
//! # fn main() -> kiln_ir::Result<()> {
//! let sum = CudaBackend::new().add(&[1.0, 2.0], &[10.0, 20.0])?;
//! assert_eq!(sum, [11.0, 22.0]);
//!
//! let mut batch = CudaCommandBatch::new(CudaDevice::new()?);
//! let x = batch.upload(&[1.0, -2.0, 3.0], &[3])?;
//! let y = batch.scale(x, 2.0)?;
//! let y = batch.relu(y)?;
//! assert_eq!(batch.run(&[y])?[0].as_data().f32(), [2.0, 0.0, 6.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Design choices:
//!
//! - Nothing of CUDA is needed to build, and nothing but the driver to run. Its library is looked for when it is first asked
//!   for; that it is absent, broken or too old is a [`DriverProblem`], never a panic.
//! - An operation is lowered to launches of kernels (`lower/`), which is all that is particular to it. A recorded graph becomes
//!   a plan: launches on memory that is named but not there. An executable is a plan with its kernels compiled and its
//!   memory taken; one that runs again is captured as a graph of the driver, which takes all of its launches in one call.
//! - Everything runs on one stream of a device, in the order in which it was asked for. So memory can be used anew as soon
//!   as the host lets go of it, and nothing has to be waited for but results.
//! - Products of f16 run on the tensor cores of Hopper; those of f32 only where less than their contract is asked for
//!   ([`InputPrecision`]). What those kernels do not take runs on the units for f32.
//! - A launch is checked against the kernel: number and types of the arguments, the device and alignment of the buffers.
//! - Compiled code is kept in files where a folder for them is given, by the text that it was made from, the device and the
//!   driver.
//! - Unsafe code stands in one module, `driver`: calls of the driver, and what it gives out. Whoever launches a kernel of their
//!   own ([`CudaDevice::prepare_kernel`]) vouches for it.
#![deny(unsafe_code)]

mod backend;
mod batch;
mod by_hand;
mod device;
mod direct;
mod driver;
mod execute;
mod kernels;
pub mod limits;
mod lower;
mod memory;
pub mod numerics;
mod options;
mod plan;
mod planner;
mod profile;
mod staging;
mod tensor;

pub use backend::CudaBackend;
pub use batch::{BufferId, CudaCommandBatch};
pub use by_hand::CudaLaunch;
pub use device::{CudaDevice, DeviceInfo};
pub use driver::{CudaVersion, DriverProblem, OLDEST_DRIVER, Readings};
pub use options::{DeviceOptions, InputPrecision};
pub use profile::{CudaProfile, KernelTime};
pub use tensor::{CudaOperation, CudaTensor};
