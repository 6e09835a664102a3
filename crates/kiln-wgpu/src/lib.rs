//! The operations of kiln on any GPU, through wgpu: Vulkan, Metal, DX12, and WebGPU in browsers.
//!
//! Design choices:
//!
//! - An operation is lowered to dispatches of kernels from kiln-shaders (`lower/`), which is all that is particular to it.
//!   A recorded graph becomes a plan: dispatches on memory that is named but not there. An executable is a plan with its
//!   kernels compiled, its memory taken and everything bound; running it again makes nothing anew.
//! - Memory comes from a pool of the device and goes back to it when it is dropped.
//! - Whatever is asked of a device is asked in error scopes; what they catch is a typed [`kiln_ir::Error`]. A device that
//!   is lost stays lost and says so; the host keeps everything that it sent.
//! - Asynchronous first: functions that end in `_async` exist everywhere. Natively each has a form that waits; in a browser,
//!   whose one thread must not wait, there is none.
//! - A driver in software is used only when it is asked for.
//! - Unsafe code stands in one module, `trusted`: where wgpu takes our word instead of checking.
#![deny(unsafe_code)]

#[cfg(not(target_arch = "wasm32"))]
mod absent;
mod adapters;
mod backend;
mod batch;
#[cfg(target_arch = "wasm32")]
mod browser;
mod cooperative;
mod device;
#[cfg(not(target_arch = "wasm32"))]
mod device_pool;
mod direct;
mod execute;
mod host_copy;
mod interop;
pub mod limits;
mod lower;
mod matmul_cache;
mod memory;
pub mod numerics;
mod options;
#[cfg(not(target_arch = "wasm32"))]
mod pipeline_cache;
mod pipelines;
mod plan;
mod planner;
mod profile;
mod readbacks;
#[cfg(not(target_arch = "wasm32"))]
mod retired;
pub mod runtime;
mod statistics;
mod tensor;
mod tiled;
mod trusted;
mod uploads;
mod wait;

#[cfg(not(target_arch = "wasm32"))]
pub use absent::AbsentApi;
pub use adapters::{ADAPTER_VARIABLE, AdapterChoice, AdapterInfo, AdapterKind};
pub use backend::GpuBackend;
pub use batch::{BufferId, GpuCommandBatch};
pub use device::GpuDevice;
#[cfg(not(target_arch = "wasm32"))]
pub use device_pool::{GpuDevicePool, Lent};
pub use matmul_cache::GpuMatmulCache;
pub use options::DeviceOptions;
pub use profile::{GpuProfile, KernelTime};
pub use statistics::Statistics;
pub use tensor::{GpuOperation, GpuTensor};
pub use tiled::TiledOp;
/// The version of wgpu that buffers are shared through.
pub use wgpu;
