//! The tests that need no process of their own, in one program: each program would compile the test driver, and much of the crate for
//! it, again. `cargo test -p kiln-device --test all faults` runs those of one file.
#![cfg(not(target_arch = "wasm32"))]

mod backend;
mod batch;
#[cfg(feature = "reference")]
mod conformance;
mod device_pool;
mod faults;
mod group;
mod matmul_cache;
mod memory;
mod pool_batch;
mod pool_callers;
mod state;
mod support;
mod tensor;
