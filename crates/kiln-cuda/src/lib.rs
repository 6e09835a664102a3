#![doc = include_str!("../README.md")]
//!
//! The device layer is that of [`kiln_device`]; this crate is its driver for CUDA and the lowering of operations.
//!
//! | module | what it holds |
//! |---|---|
//! | `driver/` | the calls of NVIDIA's driver, and owners of its handles: nearly all unsafe code |
//! | `device/` | the device in terms of these: compiled kernels, staging of copies, captured programs |
//! | `lower/` | each operation as launches of kernels from kiln-ptx |
//! | [`numerics`] | where the error bounds of tensor cores differ from the contract |
//! | `by_hand`, [`device_copy`] | kernels of the user, a bandwidth test |
//!
//! - The build needs no CUDA toolkit, and a program needs only the driver. The driver's library is loaded at its first use; if
//!   it is missing, broken or too old, the result is a [`DriverProblem`], never a panic.
//! - A program that runs again is captured as a graph of the driver, which launches all of its kernels in one call.
//! - All work of a device runs on one stream, in the order of submission. So memory can be reused as soon as the host
//!   releases it, and the host waits only for results.
//! - Products of f16 run on tensor cores from compute capability 8.0 on, on Hopper by warp groups; those of f32 only if the caller
//!   allows a lower precision ([`Precision`](kiln_ir::Precision)). Products that those kernels do not support run on the FP32 units.
//! - A launch is checked against the kernel: number and types of the arguments, the device and alignment of the buffers.
//! - If the options name a folder, compiled code is kept in files there. Its key is the PTX text, the device and the driver.
//! - Unsafe code is in `driver`: calls of the driver, and access to the memory that it returns; and in `by_hand`, whose two unsafe functions
//!   ([`CudaDevice::prepare_kernel`], [`CudaKernel::new`]) make the author of another kernel responsible for it.
#![deny(unsafe_code)]

mod by_hand;
mod device;
pub mod device_copy;
mod driver;
mod lower;
pub mod numerics;
mod plan;

pub use by_hand::{CudaKernel, CudaLaunch, WriteKernel};
pub use device::{CudaDevice, CudaDeviceOptions, DeviceInfo};
pub use driver::{CudaVersion, DriverProblem, OLDEST_DRIVER, Readings};
pub use kiln_device::{BufferId, KernelTime, MemoryUse, Statistics};
/// The builder that kernels are written with.
pub use kiln_ptx as ptx;

/// Runs operations on slices of the host on an NVIDIA GPU.
pub type CudaBackend = kiln_device::Backend<CudaDevice>;
/// Operations recorded now and run together on an NVIDIA GPU.
pub type CudaCommandBatch = kiln_device::Batch<CudaDevice>;
/// Several NVIDIA GPUs, and work shared among them.
pub type CudaDevicePool = kiln_device::DevicePool<CudaDevice>;
/// Operations recorded once that run on any NVIDIA GPU of a pool.
pub type CudaPoolBatch = kiln_device::PoolBatch<CudaDevice>;
/// A tensor that each NVIDIA GPU of a pool has in its memory.
pub type CudaPoolTensor = kiln_device::PoolTensor<CudaDevice>;
/// Named weights on an NVIDIA GPU, and their products with data of the host.
pub type CudaMatmulCache = kiln_device::MatmulCache<CudaDevice>;
/// An operation on tensors of an NVIDIA GPU, ready to run.
pub type CudaOperation = kiln_device::Prepared<CudaDevice>;
/// The kernels of an execution and how long each took.
pub type CudaProfile = kiln_device::Profile;
/// A tensor in the memory of an NVIDIA GPU.
pub type CudaTensor = kiln_device::Tensor<CudaDevice>;

pub(crate) type Region = kiln_device::Region<driver::DeviceMemory>;

/// The bytes of a region, beginning at `offset`.
///
/// # Errors
/// [`kiln_ir::Error::View`] if there are fewer.
pub(crate) fn span(region: &Region, offset: u64, bytes: u64) -> kiln_ir::Result<driver::Span<'_>> {
    let within = offset.checked_add(bytes).is_some_and(|end| end <= region.bytes());
    let found = if within { region.memory()?.span(region.offset() + offset, bytes) } else { None };
    found.ok_or_else(|| kiln_ir::Error::View {
        what: "a tensor on a device",
        reason: format!("{bytes} bytes from byte {offset} on were requested; it has {} bytes", region.bytes()),
    })
}
