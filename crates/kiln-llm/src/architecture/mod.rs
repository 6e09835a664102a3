//! Architectures: what a model computes, one row each.
//!
//! Decoders continue texts, and encoders, which [`encoder`] describes, give them embeddings.
//!
//! Most decoders are one block with options: [`decoder`] records it. Biases, fused projections, norms of query and key heads and the
//! frequency factors of rotations are used where a file has such tensors, and scales, caps and windows where it has such keys. A
//! row says what neither shows.

mod adapters;
mod cached;
mod decoder;
pub(crate) mod encoder;
mod feed_forward;
mod outcome;
mod rope;
mod rows;
mod weights;

pub(crate) use adapters::{ActiveAdapters, AdapterSet};
pub(crate) use decoder::{Forward, Recorded, Scoring, Step};
use kiln::op::RopeStyle;
use kiln_gguf::Metadata;
pub(crate) use outcome::Ranked;
pub(crate) use rope::Rotation;
pub(crate) use rows::{Copying, Layout, Row, Rows};
pub(crate) use weights::Weights;

use crate::{Error, Result};

/// What a model computes, and so the type of this crate that loads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// What follows a text: [`Model`](crate::Model).
    Decoder,
    /// Embeddings of texts: [`EmbeddingModel`](crate::EmbeddingModel).
    Encoder,
}

impl ModelKind {
    /// The kind of the model in a GGUF file with these metadata.
    ///
    /// # Errors
    /// [`Error::UnsupportedArchitecture`]; [`Error::File`] where the file does not name its architecture.
    pub fn of_gguf(metadata: Metadata<'_>) -> Result<Self> {
        let name: &str = metadata.get("general.architecture")?;
        match (Architecture::named(name), encoder::find(name)) {
            (Some(_), _) => Ok(Self::Decoder),
            (None, Some(_)) => Ok(Self::Encoder),
            (None, None) => {
                let supported = format!("{}, {}", Architecture::names(), encoder::names());
                Err(Error::unsupported_architecture(name, supported))
            }
        }
    }
}

/// What the name of an architecture says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Architecture {
    /// The value of `general.architecture`.
    pub(crate) name: &'static str,
    /// Which elements of queries and keys are rotated together.
    pub(crate) rope: RopeStyle,
    /// What the norms of a block are applied to.
    pub(crate) norms: Norms,
    /// The norms of queries and keys that every file has. Without one they are used, head by head, where a file has them.
    pub(crate) head_norms: Option<HeadNorms>,
    /// The activation of the gate.
    pub(crate) gate: Gate,
    pub(crate) mixture: Mixture,
    /// Whether embeddings are multiplied by the square root of the width.
    pub(crate) scaled_embedding: bool,
    /// The number of layers of the one model whose scores are scaled by `1/√(width / heads)` and not by `1/√head`.
    pub(crate) scaled_by_width: Option<usize>,
    /// The caps of files that name none.
    pub(crate) caps: Caps,
    /// The windows of keys.
    pub(crate) windows: Windows,
    /// With n, layers n - 1, 2n - 1 and so on, counted from 0, do not rotate queries and keys.
    pub(crate) unrotated: Option<usize>,
    /// Whether `rope.scaling.finetuned = false` says that no layer rotates.
    pub(crate) may_not_rotate: bool,
}

/// What the norms of a block are applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norms {
    /// What attention and the feed-forward network read.
    Before,
    /// What they give, before it is added.
    After,
    /// Both.
    Around,
}

/// How queries and keys are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    /// Each head by itself, all by the same weights.
    Head,
    /// All heads of a token together.
    Row,
}

/// The activation of the gate of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Silu,
    /// GELU by its approximation with tanh.
    GeluTanh,
}

/// Whether feed-forward parts are mixtures of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mixture {
    Never,
    /// Where a file says how many experts there are.
    Counted,
    Always,
}

/// Caps c of numbers x: `c tanh(x / c)` takes the place of each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Caps {
    /// Of scores of attention.
    pub(crate) scores: Option<f32>,
    pub(crate) logits: Option<f32>,
}

/// Which layers see the last keys alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Windows {
    /// The number of keys where a file names none.
    pub(crate) keys: Option<usize>,
    /// With n, every layer has a window but layers n - 1, 2n - 1 and so on; 0: every layer. `None`: the file says which.
    pub(crate) pattern: Option<usize>,
    pub(crate) rope: WindowRope,
}

/// How layers with a window rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum WindowRope {
    /// As the others.
    Same,
    /// By unscaled angles. The base is the key `rope.freq_base_swa`, or that of the other layers.
    Unscaled,
    /// By unscaled angles. The base is that key, or this.
    Base(f32),
}

/// Llama. Rows name what differs.
const PLAIN: Architecture = Architecture {
    name: "llama",
    rope: RopeStyle::Interleaved,
    norms: Norms::Before,
    head_norms: None,
    gate: Gate::Silu,
    mixture: Mixture::Never,
    scaled_embedding: false,
    scaled_by_width: None,
    caps: Caps { scores: None, logits: None },
    windows: Windows { keys: None, pattern: None, rope: WindowRope::Same },
    unrotated: None,
    may_not_rotate: false,
};

/// The decoders that kiln runs.
const ALL: &[Architecture] = &[
    // Llama 1 to 3.2, Mistral 7B, Mixtral, SmolLM, SmolLM2, TinyLlama. Mistral's window is one of every layer.
    Architecture { windows: Windows { pattern: Some(0), ..PLAIN.windows }, mixture: Mixture::Counted, ..PLAIN },
    // Biases of queries, keys and values.
    Architecture { name: "qwen2", rope: RopeStyle::HalfSplit, ..PLAIN },
    // Queries and keys normalised head by head.
    Architecture { name: "qwen3", rope: RopeStyle::HalfSplit, head_norms: Some(HeadNorms::Head), ..PLAIN },
    Architecture {
        name: "qwen3moe",
        rope: RopeStyle::HalfSplit,
        head_norms: Some(HeadNorms::Head),
        mixture: Mixture::Always,
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        rope: RopeStyle::HalfSplit,
        norms: Norms::Around,
        gate: Gate::GeluTanh,
        scaled_embedding: true,
        // 27B.
        scaled_by_width: Some(46),
        caps: Caps { scores: Some(50.0), logits: Some(30.0) },
        windows: Windows { keys: Some(4096), pattern: Some(2), rope: WindowRope::Same },
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        rope: RopeStyle::HalfSplit,
        norms: Norms::Around,
        head_norms: Some(HeadNorms::Head),
        gate: Gate::GeluTanh,
        scaled_embedding: true,
        // 27B.
        scaled_by_width: Some(62),
        windows: Windows { keys: None, pattern: Some(6), rope: WindowRope::Base(10_000.0) },
        ..PLAIN
    },
    // Phi-3, Phi-3.5 and Phi-4. Their windows are ones of every layer; llama.cpp leaves them out.
    Architecture {
        name: "phi3",
        rope: RopeStyle::HalfSplit,
        windows: Windows { pattern: Some(0), ..PLAIN.windows },
        ..PLAIN
    },
    // Granite 3 and later without experts or recurrent layers.
    Architecture { name: "granite", may_not_rotate: true, ..PLAIN },
    Architecture { name: "smollm3", unrotated: Some(4), ..PLAIN },
    // OLMo 2 and 3.
    Architecture {
        name: "olmo2",
        rope: RopeStyle::HalfSplit,
        norms: Norms::After,
        head_norms: Some(HeadNorms::Row),
        windows: Windows { keys: None, pattern: Some(4), rope: WindowRope::Unscaled },
        ..PLAIN
    },
];

impl Architecture {
    /// The decoder of this name.
    fn named(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|known| known.name == name)
    }

    /// The decoder of this name.
    ///
    /// # Errors
    /// [`Error::NotADecoder`] for the name of an encoder, [`Error::UnsupportedArchitecture`] for one that kiln does not have.
    pub(crate) fn find(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| match encoder::find(name) {
            Some(architecture) => Error::NotADecoder { architecture },
            None => Error::unsupported_architecture(name, Self::names()),
        })
    }

    /// The names of all, for messages.
    fn names() -> String {
        ALL.iter().map(|known| known.name).collect::<Vec<_>>().join(", ")
    }
}
