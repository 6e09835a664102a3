#![doc = include_str!("../README.md")]
//!
//! What has the wrong type does not compile: there is no sum of a `u32` and an `f32`,
//!
//! ```compile_fail
//! # kiln_ptx::PtxKernel::new("wrong", [32, 1, 1], |k| {
//! let x = k.tid_x() + k.constant(1.0f32);
//! # });
//! ```
//!
//! and a value cannot leave its kernel:
//!
//! ```compile_fail
//! let mut kept = None;
//! kiln_ptx::PtxKernel::new("one", [32, 1, 1], |k| kept = Some(k.tid_x()));
//! ```
//!
//! The kernels are in [`kernels`]. Each is a value that says how it is configured; [`Kernel::emit_ptx`] writes it, and its
//! `launch` turns extents into a [`Launch`], complete but for addresses.
//!
//! Design choices:
//!
//! - Instructions come from one table, [`instruction_table!`]: their types, the least version of PTX and the least target.
//!   The methods of [`Builder`], their documentation, what a text asks for and the tests are generated from it. Loads,
//!   stores and branches, whose text is more than a name and operands, are methods of their own.
//! - Values are typed by Rust's scalars and know their builder, so that arithmetic is written with operators.
//! - Text is written in one pass into one buffer: operands write themselves, and what of a line is known at compile time
//!   is stored as it is. Nothing is optimised here: registers are allocated and common expressions found by the driver,
//!   which does it anyway.
//! - `.version` and `.target` are the lowest that serve what was used, so that old drivers take the text.
//! - Every rounding is said (`.rn`): the driver contracts no product and sum, and results are those of IEEE 754.
//! - Kernels take extents when they are launched, not when they are written: one text serves every shape.
//! - What runs by itself is a type of its own while it runs: [`Sums`] become [`Running`] when products are added to them,
//!   and there is no way to read those.
//! - Nothing here knows a driver. What a launch needs is data, the descriptions of tensors too.
#![forbid(unsafe_code)]

mod builder;
mod kernel;
pub mod kernels;
mod layout;
mod ptx_type;
pub mod table;
mod target;
mod text;
mod together;
mod types;

pub use builder::{
    Builder, Consumer, Descriptor, Fragment, Global, Lanes, Pipeline, Pointer, Producer, Running, Shared,
    SharedCluster, Space, Sums, TensorBox, TensorParameter, Value, Variable, VectorWidth, operands,
};
pub use kernel::{Argument, Kernel, Launch, Name, Parameter, ParameterKind, PtxKernel, PtxModule, TensorMap};
pub use layout::{BlockOrder, MatrixBlocks, Panels};
pub use ptx_type::PtxType;
pub use target::{Gate, Target, Version};
pub use together::Together;
pub use types::{Bf16, Byte, F16, Operand, Scalar};
