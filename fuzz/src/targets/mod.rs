//! The targets.

pub(crate) mod adapters;
pub(crate) mod folders;
pub(crate) mod gguf;
pub(crate) mod graphs;
pub(crate) mod images;
pub(crate) mod models;
pub(crate) mod profiles;
pub(crate) mod ptx;
pub(crate) mod templates;
pub(crate) mod tokenizers;

use std::sync::OnceLock;

use kiln::{Engine, Isa};

/// An engine on the CPU with one instruction set, since results are the same bits for every number of threads alone. It reads no profile
/// of this machine.
fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        Engine::builder().without_profile().instruction_set(Isa::best()).build().expect("a CPU is there")
    })
}

/// Checks a message: it is not empty, and no bytes of the file direct a terminal.
#[track_caller]
fn message(error: impl std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}
