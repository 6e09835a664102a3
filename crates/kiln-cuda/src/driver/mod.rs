//! Safe types around the calls of NVIDIA's driver.
//!
//! Contexts, memory, modules, graphs and events release themselves when they are dropped, and keep the context alive that
//! they belong to. Errors of a release are logged through `tracing`, because a drop cannot return them.
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
