//! The driver: everything that is unsafe, in types that are not.
//!
//! What is owned here (contexts, memory, modules, graphs, events) gives itself back when it is dropped and keeps the
//! context alive that it belongs to. Errors in giving back are logged through `tracing`: no caller is left to return them to.
#![allow(unsafe_code)]

mod context;
mod event;
pub(crate) mod exchange;
mod graph;
mod library;
mod mapping;
mod memory;
mod module;
mod nvml;
mod tensor_map;

pub(crate) use context::{Context, Facts, submit_together};
pub(crate) use event::Event;
pub(crate) use graph::CapturedGraph;
pub(crate) use library::Driver;
pub use library::{CudaVersion, DriverProblem, OLDEST_DRIVER};
pub(crate) use memory::{DeviceMemory, PinnedMemory, Span};
pub(crate) use module::{Begins, Function, Image, compile};
pub use nvml::Readings;
pub(crate) use nvml::readings;
