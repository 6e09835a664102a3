//! Architectures: what a model computes, one row each.
//!
//! Most decoders are one block with options: [`decoder`] records it. Biases, norms of query and key heads and the frequency factors
//! of rotations are used where a file has such tensors. A row says what no tensor shows.

mod decoder;

pub(crate) use decoder::{Step, Weights};
use kiln::op::RopeStyle;

/// What the name of an architecture says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Architecture {
    /// The value of `general.architecture`.
    pub(crate) name: &'static str,
    /// Which elements of queries and keys are rotated together.
    pub(crate) rope: RopeStyle,
}

/// The architectures that kiln runs.
const ALL: &[Architecture] = &[
    // Llama 1 to 3.2, Mistral 7B, SmolLM, SmolLM2, TinyLlama.
    Architecture { name: "llama", rope: RopeStyle::Interleaved },
    // Biases of queries, keys and values.
    Architecture { name: "qwen2", rope: RopeStyle::HalfSplit },
    // Queries and keys normalised head by head.
    Architecture { name: "qwen3", rope: RopeStyle::HalfSplit },
];

impl Architecture {
    /// The architecture of this name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|known| known.name == name)
    }

    /// The names of all, for messages.
    pub(crate) fn names() -> String {
        ALL.iter().map(|known| known.name).collect::<Vec<_>>().join(", ")
    }
}
