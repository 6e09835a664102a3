#![doc = include_str!("../README.md")]
//!
//! | module | what it holds |
//! |---|---|
//! | [`plan`], [`lower`] | from a graph to launches of kernels on named memory |
//! | [`memory`] | the pool, regions of allocations |
//! | `executable`, `prepared`, `batch`, `backend`, `tensor`, `view`, `state` | compiled plans, and the types that users hold |
//! | `group` | several devices that work as one |
//! | `device_pool`, `pool_batch`, `submission_queue`, `turns` | several devices that share work, and how callers share a device |
//! | [`waiting`] | blocking and asynchronous forms of one body |
//! | [`host_copy`], [`store`] | copies by several threads; files of compiled code |
//! | `cut` | operations cut into parts that do not depend on one another |
//! | `conformance` (feature `reference`) | the suite that every backend runs |
//!
//! Conventions: memory is freed when its last owner is dropped. Work of a device is ordered by submission. Every method that
//! waits for a device has an asynchronous form; natively it also has one that blocks.
//!
//! The files `driver`, `lower` and `plan` import one another: a driver lowers operations to plans, and both lowering and plans are
//! generic over the driver.
#![forbid(unsafe_code)]

mod backend;
mod batch;
#[cfg(feature = "reference")]
pub mod conformance;
#[cfg(not(target_arch = "wasm32"))]
#[doc(hidden)] // for kiln
pub mod cut;
mod device;
#[cfg(not(target_arch = "wasm32"))]
mod device_pool;
mod driver;
mod executable;
mod group;
pub mod host_copy;
mod location;
pub mod lower;
mod matmul_cache;
pub mod memory;
pub mod plan;
#[cfg(not(target_arch = "wasm32"))]
mod pool_batch;
mod prepared;
mod profile;
mod ready;
mod runner;
mod state;
mod statistics;
#[doc(hidden)] // for the device crates
pub mod store;
#[cfg(not(target_arch = "wasm32"))]
mod submission_queue;
mod tensor;
#[cfg(not(target_arch = "wasm32"))]
mod turns;
mod view;
pub mod waiting;

pub use backend::Backend;
pub use batch::Batch;
pub use device::bodies;
#[cfg(not(target_arch = "wasm32"))]
pub use device_pool::{DevicePool, Lent};
pub use driver::{Driver, Read, RegionOf, Shared};
pub use executable::Executable;
pub use group::{Group, GroupMemory, GroupProgram, GroupStep, GroupTarget};
pub use location::{Fault, Location, Value};
pub use lower::{Lower, Lowering};
pub use matmul_cache::MatmulCache;
pub use memory::{MemoryUse, Region, size_class};
pub use plan::{Bindings, Plan};
#[cfg(not(target_arch = "wasm32"))]
pub use pool_batch::{PoolBatch, PoolTensor};
pub use prepared::Prepared;
pub use profile::{KernelTime, Profile};
pub use runner::GraphRunner;
pub use state::State;
pub use statistics::{Counters, Statistics};
pub use tensor::Tensor;

/// A tensor of a batch. Other batches refuse it.
pub type BufferId = kiln_ir::graph::TensorId;
