#![doc = include_str!("../README.md")]
//!
//! Entry points: [`Simd`] has the methods of [`Operations`] on slices; [`Isa`] names an instruction set; [`PackedB`] and
//! [`PackedKernels`] are weights in the order in which products read them; the module [`ceilings`] measures the machine.
//!
//! Source map, for contributors (modules without a link are private):
//!
//! | module | what it holds |
//! |---|---|
//! | `vector` | the trait `Vector` and one implementation of it for each instruction set: all intrinsics |
//! | `simd`, `operations` | [`Simd`], and the dispatch of every operation to its kernel |
//! | `elementwise`, `fused`, `math` | element-wise functions, and chains of them in one pass |
//! | `reduce`, `rows`, `cumsum`, `sort` | reductions, softmax and norms, prefix sums, sorting |
//! | `matmul`, `experts`, `conv`, `attention` | matrix products, and operations built on them |
//! | `pooling`, `resize` | pooling and resizing of images |
//! | `cast`, `compare`, `arithmetic`, `gather`, `scatter`, `rope`, `topk`, `transpose`, `shape`, `write_rows`, `custom` | the other operations |
//! | `quant` | quantised weights: decoding, fitting, products |
//! | `threads`, `hand_over`, `sync`, `scratch` | splitting work over threads, the handover to helpers, scratch memory |
//! | [`ceilings`] | the bandwidth and arithmetic peaks of the machine, measured |
//!
//! Design choices:
//!
//! - Algorithms are generic over a vector of f32 lanes and compiled for every instruction set; only the vector module has
//!   intrinsics. A new instruction set is one implementation of `Vector` and one row of its table.
//! - Everything is computed through [`Simd`], an instruction set and a thread limit. The operations, their checks and the
//!   methods on slices come from kiln-ir: `use kiln_simd::Operations`.
//! - Tails are masked or padded vectors that run the same formula as the body, so a value does not depend on its index.
//! - Sums run in a fixed tree of 64 virtual lanes, multiply then add: the same bits on every instruction set and for
//!   any number of threads. Work is split by the problem alone.
//! - Every call computes in the default floating-point state and restores that of the caller; see `float_state.rs`.
//! - Several threads run only if they are faster; the cutoffs are constants with the measurement beside them.
//! - Unsafe code is in the vector module and the kernels, each block with its reason.

mod arithmetic;
mod array;
mod attention;
mod cast;
pub mod ceilings;
mod compare;
mod conv;
mod cumsum;
mod custom;
mod elementwise;
mod experts;
mod float_state;
mod fused;
mod gather;
#[cfg(all(feature = "parallel", not(target_arch = "wasm32")))]
mod hand_over;
mod math;
mod matmul;
mod operations;
mod pooling;
mod quant;
mod reduce;
mod resize;
mod rope;
mod rows;
mod scatter;
mod scratch;
mod shape;
mod simd;
mod sort;
#[cfg(all(feature = "parallel", not(target_arch = "wasm32")))]
mod sync;
mod threads;
mod tile;
mod topk;
mod transpose;
mod vector;
mod wait;
mod write_rows;

pub use conv::PackedKernels;
pub use kiln_ir::Operations;
pub use matmul::PackedB;
pub use simd::Simd;
pub use vector::Isa;
