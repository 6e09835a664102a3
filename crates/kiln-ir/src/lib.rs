#![doc = include_str!("../README.md")]
//!
//! | module | what it holds |
//! |---|---|
//! | [`op`] | every operation: shape rule, cost, contract, reference and test cases |
//! | `methods` | [`Operations`] on slices and [`Record`] on tensors, generated from tables; [`signatures`] of all operations |
//! | [`named`] | parameters of operations for languages with named parameters |
//! | [`graph`] | recorded operations, and the schedule in which they run |
//! | `shape`, `layout` | [`Shape`], [`TensorType`]; [`TensorView`] and reductions by tiles |
//! | `dtype`, `data` | [`DType`]; [`Element`], [`Data`], [`Buffer`] and [`Operand`]: elements of any type |
//! | [`quant`] | the quantised formats: [`QuantFormat`], their decoders and quantisers |
//! | `error` | [`Error`] |
//!
//! Design choices:
//!
//! - An operation is defined once, here: name, formula, shape rule, cost, numerics contract, and (feature
//!   `reference`) its meaning in plain f64 with the cases that every backend is tested on. See [`op`].
//! - [`op::Op`] is a closed set, generated from one list of types. Backends implement their own kernel trait for each
//!   type and dispatch through [`for_operation!`], so that a missing kernel does not compile.
//! - The methods that users call are defined once, here: [`Operations`] on slices for every backend, [`Record`] on
//!   tensors for every recording. They come from tables; element-wise operations are rows of [`elementwise_table!`].
//! - Every [`Shape`] is valid: its constructor checks for overflow.
//! - Errors only where the caller can be wrong in a way the types cannot exclude. Nothing here panics on user input.
//! - Everything is a pure function: the crate imports no other crate of kiln, and uses no threads, clocks, locks, files or logs.
#![forbid(unsafe_code)]

mod data;
mod dtype;
mod error;
pub mod graph;
mod layout;
mod methods;
pub mod named;
pub mod op;
mod precision;
pub mod quant;
mod shape;

pub use data::{Buffer, Data, DataMut, Element, Operand, narrow, reserve, widen, zeros};
pub use dtype::{Bool, DType, Kind};
pub use error::{Error, Result};
/// The elements of [`DType::Bf16`] and [`DType::F16`].
pub use half::{bf16, f16};
pub use layout::{
    MaxOp, MemoryLayout, MinOp, PartitionView, ReduceOp, SumOp, TILE_SIZE, TensorView, TileInfo, TileIterator,
    tiled_max_2d, tiled_min_2d, tiled_reduce_2d, tiled_reduce_partial, tiled_sum_2d,
};
pub use methods::{AsyncOperations, Operations, Record, signatures};
pub use precision::Precision;
pub use quant::QuantFormat;
pub use shape::{MAX_RANK, Shape, TensorType};
