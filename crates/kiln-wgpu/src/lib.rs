#![doc = include_str!("../README.md")]
//!
//! The device layer is that of [`kiln_device`]; this crate is its driver for wgpu and the lowering of operations.
//!
//! | module | what it holds |
//! |---|---|
//! | `driver/` | adapters, opening, uploads, readbacks, pipelines, submission |
//! | `lower/` | each operation as dispatches of kernels from kiln-shaders |
//! | [`numerics`] | where the error bounds of GPUs differ from the contract |
//! | `interop`, `tiled`, [`device_copy`] | buffers shared with other wgpu code, tiled reductions, a bandwidth test |
//!
//! - Every request to the device is made within error scopes; caught errors become a typed [`kiln_ir::Error`]. A lost device
//!   stays lost, and every later call returns an error; the host keeps everything that it sent.
//! - Functions that end in `_async` exist everywhere. Natively each also has a blocking form; in a browser, whose only thread
//!   must not block, only the async forms exist.
//! - A software driver is used only on request.
//! - Unsafe code is in one module, `trusted`, for the functions of wgpu that trust their caller instead of checking.
#![deny(unsafe_code)]

pub mod device_copy;
mod driver;
mod interop;
mod lower;
pub mod numerics;
mod plan;
pub mod runtime;
mod tiled;
mod trusted;

#[cfg(not(target_arch = "wasm32"))]
pub use driver::AbsentApi;
pub use driver::{ADAPTER_VARIABLE, AdapterChoice, AdapterInfo, AdapterKind, GpuDevice, GpuDeviceOptions};
pub use kiln_device::{BufferId, KernelTime, MemoryUse, Statistics};
pub use lower::{WgslKernel, WgslLaunch};
pub use tiled::TiledOp;
/// The version of wgpu that buffers are shared through.
pub use wgpu;

/// Runs operations on slices of the host on a GPU.
pub type GpuBackend = kiln_device::Backend<GpuDevice>;
/// Operations recorded now and run together on a GPU.
pub type GpuCommandBatch = kiln_device::Batch<GpuDevice>;
/// Several GPUs, and work shared among them.
#[cfg(not(target_arch = "wasm32"))]
pub type GpuDevicePool = kiln_device::DevicePool<GpuDevice>;
/// Operations recorded once that run on any GPU of a pool.
#[cfg(not(target_arch = "wasm32"))]
pub type GpuPoolBatch = kiln_device::PoolBatch<GpuDevice>;
/// A tensor that each GPU of a pool has in its memory.
#[cfg(not(target_arch = "wasm32"))]
pub type GpuPoolTensor = kiln_device::PoolTensor<GpuDevice>;
/// Named weights on a GPU, and their products with data of the host.
pub type GpuMatmulCache = kiln_device::MatmulCache<GpuDevice>;
/// An operation on tensors of a GPU, ready to run.
pub type GpuOperation = kiln_device::Prepared<GpuDevice>;
/// The kernels of an execution and how long each took.
pub type GpuProfile = kiln_device::Profile;
/// A tensor in the memory of a GPU.
pub type GpuTensor = kiln_device::Tensor<GpuDevice>;

pub(crate) type Region = kiln_device::Region<wgpu::Buffer>;
