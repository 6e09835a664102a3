#![doc = include_str!("../README.md")]
//!
//! Entry points: an [`Engine`] (from [`Engine::new`] or [`Engine::builder`]) has the methods of [`Operations`] on slices;
//! [`Engine::tensors`] has those of [`Record`] on a [`Tensor`]; [`Engine::batch`] returns a [`Batch`], which records operations
//! and runs them together. The modules [`op`] and [`graph`] are operations as data and recorded graphs, [`regret`] evaluates decisions, and
//! [`prelude`] has the names that most programs need.
//!
//! Source map, for contributors (these modules are private; the crate exports their public items at its root):
//!
//! | module | what it holds |
//! |---|---|
//! | `engine` | [`Engine`] and its builder |
//! | `tensor`, `state` | [`Tensor`]: elements on the host, on GPUs or both; [`State`]: a tensor that batches change in place |
//! | `batch` | [`Batch`]: operations recorded now and run together |
//! | `packed` | [`PackedMatrix`], [`PackedKernels`]: weights in the order in which products read them |
//! | `calibrate` | [`Engine::calibrate`], and the evaluation of decisions ([`regret`]) |
//! | `gpus`, `machine`, `absent` | devices and their names, and the reasons for excluding others ([`Absent`]) |
//!
//! Design choices:
//!
//! - An [`Engine`] holds the placements of the machine: each instruction set with a number of threads, and each GPU whose
//!   backend is compiled in. Every operation is a method on slices; kiln-ir checks it, kiln-route chooses its placement, and
//!   the backend of the placement runs it.
//! - The router predicts the placement of an operation from a calibration of this machine ([`Engine::calibrate`]). You can see
//!   it ([`Engine::explain`]) or force it ([`EngineBuilder::force`]). Without a calibration built-in constants decide.
//! - If a GPU fails, its work runs on the next best placement. A batch is placed step by step: its segments run on the CPU and on
//!   GPUs, at once if they do not depend on one another.
//! - In a browser with WebGPU (feature `gpu-wasm`) nothing can block: an engine is made, runs operations and executes batches
//!   with functions that end in `_async`, and the methods of [`Operations`] are futures there (`AsyncOperations`); blocking
//!   functions do not exist.
//! - Results do not depend on the number of threads; sums and inner products do not depend on the instruction set either.
//! - No argument of a caller causes a panic; every failure is an [`Error`]. A profile that cannot be used is ignored:
//!   it is reported through `tracing` and in [`Engine::profile_status`].
#![forbid(unsafe_code)]

mod absent;
mod batch;
#[cfg(target_arch = "wasm32")]
mod browser;
mod calibrate;
mod engine;
mod gpus;
mod machine;
#[cfg(feature = "ndarray")]
mod ndarray;
mod packed;
#[cfg(any(target_arch = "wasm32", test))]
mod repeats;
#[cfg(not(browser_gpu))]
mod runs;
mod state;
mod tensor;

pub use absent::Absent;
pub use batch::Batch;
#[cfg(not(browser_gpu))]
pub use calibrate::Progress;
pub use calibrate::grid::{self, Probe};
#[cfg(not(browser_gpu))]
pub use calibrate::regret::{self, RegretReport};
pub use calibrate::{CalibrationReport, Effort};
pub use engine::{Budget, DeviceMemory, Engine, EngineBuilder, ProfileStatus};
pub use kiln_device::{KernelTime, MemoryUse, Profile as KernelProfile};
#[cfg(target_arch = "wasm32")]
pub use kiln_ir::AsyncOperations;
pub use kiln_ir::{
    Bool, Buffer, DType, Data, DataMut, Element, Error, MAX_RANK, Operand, Operations, Precision, QuantFormat, Record,
    Result, Shape, TensorType, bf16, f16, graph, op,
};
/// Views of tensors, and reductions of matrices by tiles.
pub use kiln_ir::{
    MaxOp, MemoryLayout, MinOp, PartitionView, ReduceOp, SumOp, TILE_SIZE, TensorView, TileInfo, TileIterator,
    tiled_max_2d, tiled_min_2d, tiled_reduce_2d, tiled_reduce_partial, tiled_sum_2d,
};
pub use kiln_route::{
    Backend, BackendSelector, Cpus, Decision, ElementwisePath, ExplainedSegment, Explanation, Link, LinkPath,
    MAX_MEMORIES, MAX_PLACES, Machine, Memory, Observed, OpComplexity, Place, Prediction, Problem, Profile,
    ProfileProblem, RecordedProblem, Recording, Residency, Roofline, Router, Transfer,
};
pub use kiln_simd::{Isa, Simd};
pub use packed::{PackedKernels, PackedMatrix};
pub use state::State;
pub use tensor::{SharedBytes, Tensor, Tensors};

/// Waiting in both forms, blocking and asynchronous, for dependent crates that write waiting code once.
#[doc(hidden)]
pub mod waiting {
    pub use kiln_device::waiting::{Arriving, Waiting};

    pub use crate::gpus::{WAITING, wait};
}

#[cfg(feature = "ndarray")]
pub use crate::ndarray::Arrays;

/// The backend of GPUs through wgpu, for direct use without an engine: devices, their tensors, batches on one device.
#[cfg(any(feature = "gpu", feature = "gpu-wasm"))]
pub use kiln_wgpu as gpu;

/// A minimal runtime for futures, for programs without one.
#[cfg(any(feature = "gpu", feature = "gpu-wasm"))]
pub use kiln_wgpu::runtime;

/// The backend of NVIDIA's GPUs through the CUDA driver, for direct use without an engine: devices, their tensors, batches on
/// one device.
#[cfg(native_cuda)]
pub use kiln_cuda as cuda;

/// The names that most programs need. `Result` and `Error` are left out: they would hide those of the standard library.
///
/// The names of the modules `gpu` and `cuda` begin with `Gpu` and `Cuda` here, so both may be used side by side.
///
/// ```
/// use kiln::prelude::*;
///
/// fn main() -> kiln::Result<()> {
///     let engine = Engine::new()?;
///     let x = Tensor::from_slice(&[1.0, -2.0], &[2])?;
///     assert_eq!(engine.tensors().relu(&x)?.to_vec()?, [1.0, 0.0]);
///     assert_eq!(engine.relu(&[1.0, -2.0])?, [1.0, 0.0]);
///     Ok(())
/// }
/// ```
pub mod prelude {
    #[cfg(target_arch = "wasm32")]
    pub use crate::AsyncOperations;
    pub use crate::{
        Batch, DType, Data, Element, Engine, Isa, Operand, Operations, QuantFormat, Record, Shape, State, Tensor,
        TensorType,
    };
    #[cfg(native_cuda)]
    pub use kiln_cuda::{CudaBackend, CudaCommandBatch, CudaDevice, CudaDeviceOptions, CudaKernel, CudaTensor};
    #[cfg(any(feature = "gpu", feature = "gpu-wasm"))]
    pub use kiln_wgpu::{GpuBackend, GpuCommandBatch, GpuDevice, GpuDeviceOptions, GpuTensor, WgslKernel};
}

/// The user pages, whose code is compiled and run as doctests. A packed crate lacks them.
#[cfg(all(doctest, pages))]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide.md")]
    struct Guide;
    #[cfg(feature = "gpu")]
    #[doc = include_str!("../../../docs/gpu.md")]
    struct Gpu;
    #[cfg(feature = "cuda")]
    #[doc = include_str!("../../../docs/cuda.md")]
    struct Cuda;
}
