#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | what it holds |
//! |---|---|
//! | `types` | [`TensorKind`]: every type of tensors, one row each; which of them kiln computes with |
//! | `metadata` | [`Metadata`], [`Value`], [`Array`]: keys with typed values, decoded as they are read |
//! | `reader` | [`Gguf`], [`TensorInfo`], [`TensorView`]: one file, validated when it is opened; [`Header`] of one that is being downloaded; [`Bytes`] of files of other formats |
//! | `map` | the memory map, the one place with unsafe code |
//! | `split` | [`Model`]: a file or all files of a split model |
//! | `writer` | [`Writer`]: files from metadata and borrowed tensors |
//! | `error` | [`Error`]: what was expected, what was found, what to do |
//!
//! # What is validated
//!
//! A file that was opened is sound: every count was checked against the bytes that are left before memory was allocated for it,
//! extents and bytes were multiplied with checks for overflow, rows are whole blocks, tensors are aligned, inside of the file and do not
//! overlap, and keys and names are unique UTF-8. Values of strings may be any bytes, as tokens are; `get::<&str>` checks them.
//!
//! Versions 2 and 3 are read. Big-endian files are refused with an error of their own, and so are arrays of arrays, which no known file
//! has. Gaps between tensors are allowed.
#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("kiln-gguf borrows little-endian tensors as they are and needs a little-endian machine");

mod error;
#[cfg(not(target_arch = "wasm32"))]
mod map;
mod metadata;
mod reader;
mod split;
mod types;
mod writer;

pub use error::{Error, Result};
pub use metadata::{Array, FromValue, Metadata, Value, ValueKind};
pub use reader::{Bytes, Gguf, Header, TensorInfo, TensorView};
pub use split::Model;
pub use types::TensorKind;
pub use writer::{ToElement, ToValue, Writer};
