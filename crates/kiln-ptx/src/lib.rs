#![doc = include_str!("../README.md")]
//!
//! Operands of wrong types do not compile, such as the sum of a `u32` and an `f32`,
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
//! The kernels are in [`kernels`]. Each is a value with a configuration; [`Kernel::emit_ptx`] writes its text, and its
//! `launch` turns extents into a [`Launch`], which lacks only addresses.
//!
//! Source map (modules without a link are private; the crate exports their public items at its root):
//!
//! | module | what it holds |
//! |---|---|
//! | [`kernels`] | kiln's kernels, a module for each family |
//! | `kernel` | [`PtxKernel`], [`PtxModule`], the trait [`Kernel`], and [`Launch`] |
//! | `together` | [`Together`]: several launches of one kernel as one launch |
//! | `builder` | [`Builder`]: values, memory, control flow, pipelines and the sums of tensor cores |
//! | [`table`] | the table of instructions, from which methods of [`Builder`] are generated |
//! | `types`, `ptx_type` | Rust types for the types of PTX, and operands; [`PtxType`] |
//! | `layout` | [`Panels`]: matrices in shared memory, for asynchronous copies and tensor cores |
//! | `target` | [`Version`], [`Target`], and the requirements of a text ([`Gate`]) |
//! | `text` | the buffer into which a kernel is written |
//!
//! Design choices:
//!
//! - Instructions come from one table, [`instruction_table!`]: their types, the least version of PTX and the least target.
//!   The methods of [`Builder`], their documentation, the requirements of a text and the tests are generated from it. Loads,
//!   stores and branches, whose text is more than a name and operands, are separate methods.
//! - Values are typed by Rust's scalars and know their builder, so that arithmetic is written with operators.
//! - Text is written in one pass into one buffer: operands write themselves, and the parts of a line that are known at compile
//!   time are constants. The builder does not optimise: the driver allocates registers and finds common expressions anyway.
//! - `.version` and `.target` are the lowest that the used instructions need, so that old drivers accept the text.
//! - Every rounding is explicit (`.rn`): the driver does not contract a product and a sum, and results are those of IEEE 754.
//! - Kernels take extents when they are launched, not when they are written: one text serves every shape.
//! - Asynchronous work has a type of its own while it runs: [`Sums`] become [`Running`] when products are added to them, and
//!   those cannot be read.
//! - The crate does not depend on a driver. All that a launch needs is data, including the descriptions of tensors.
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
