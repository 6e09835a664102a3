//! The fuzz targets of kiln: each is a function of bytes that must return, whatever the bytes are.
//!
//! A target panics if kiln breaks a promise: if it panics itself, reads other data than was written, or computes a result beyond
//! its bound. The same functions run in two ways:
//!
//! - `tests/fixed.rs` runs each on a fixed number of mutated seeds, the same ones on every machine. It is part of the test command.
//! - `libfuzzer/` runs them guided by coverage, with a nightly compiler and cargo-fuzz.
//!
//! docs/reliability.md lists the targets, their cases, and what was found.
//!
//! | module | what it holds |
//! |---|---|
//! | `targets` | one file for each target: its seeds and its function |
//! | `mutate` | [`mutated`]: the bytes of a case |
//! | `parts` | several files in one sequence of bytes |
#![forbid(unsafe_code)]

mod mutate;
mod parts;
mod targets;

// Vocabularies, models and files that the tests of other crates make.
#[path = "../../crates/kiln-gguf/tests/support/mod.rs"]
mod gguf_files;
#[path = "../../crates/kiln-llm/tests/support/mod.rs"]
mod model_files;

pub use mutate::mutated;
#[cfg(feature = "gpu")]
pub use targets::graphs::on_a_gpu as graphs_on_a_gpu;

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name, for tests and for libfuzzer.
    pub name: &'static str,
    /// The function that takes the bytes.
    pub run: fn(&[u8]),
    /// Inputs that are valid, from which others are made.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The cases of a run in the test command: about two seconds.
    pub cases: u64,
    /// The bytes of memory that a case may take beside 64 times its input.
    pub memory: usize,
}

const MIB: usize = 1 << 20;

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "gguf", run: targets::gguf::run, seeds: targets::gguf::seeds, cases: 100_000, memory: MIB },
    Target {
        name: "tokenizers",
        run: targets::tokenizers::run,
        seeds: targets::tokenizers::seeds,
        cases: 40_000,
        memory: MIB,
    },
    Target {
        name: "adapters",
        run: targets::adapters::run,
        seeds: targets::adapters::seeds,
        cases: 20_000,
        memory: MIB,
    },
    // A session has room for 64 tokens of a model that may have any extents that its weights justify.
    Target { name: "models", run: targets::models::run, seeds: targets::models::seeds, cases: 2_000, memory: 64 * MIB },
    Target {
        name: "folders",
        run: targets::folders::run,
        seeds: targets::folders::seeds,
        cases: 2_000,
        memory: 64 * MIB,
    },
    // The prompt itself may have a megabyte, and values that are not printed are limited by the steps alone.
    Target {
        name: "templates",
        run: targets::templates::run,
        seeds: targets::templates::seeds,
        cases: 5_000,
        memory: 64 * MIB,
    },
    Target {
        name: "profiles",
        run: targets::profiles::run,
        seeds: targets::profiles::seeds,
        cases: 5_000,
        memory: 4 * MIB,
    },
    // An image may have 36 million pixels, which take 1 GiB.
    Target {
        name: "images",
        run: targets::images::run,
        seeds: targets::images::seeds,
        cases: 5_000,
        memory: 1024 * MIB,
    },
    Target { name: "ptx", run: targets::ptx::run, seeds: targets::ptx::seeds, cases: 2_000, memory: 64 * MIB },
    Target { name: "graphs", run: targets::graphs::run, seeds: targets::graphs::seeds, cases: 1_000, memory: 64 * MIB },
];

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
