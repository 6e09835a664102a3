//! The table of architectures: properties that neither the tensors nor the keys of a file show.

use kiln::op::RopeStyle;
use kiln_gguf::Metadata;

use crate::{Error, Result};

/// The kind of a model, which determines the type of this crate that loads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// Predicts the next token: [`Model`](crate::Model).
    Decoder,
    /// Computes embeddings of texts: [`EmbeddingModel`](crate::EmbeddingModel).
    Encoder,
}

impl ModelKind {
    /// Returns the kind of the model in a GGUF file with these metadata.
    ///
    /// # Errors
    /// [`Error::UnsupportedArchitecture`]; [`Error::File`] where the file does not name its architecture.
    pub fn of_gguf(metadata: Metadata<'_>) -> Result<Self> {
        let name: &str = metadata.get("general.architecture")?;
        match (Architecture::named(name), encoder_named(name)) {
            (Some(_), _) => Ok(Self::Decoder),
            (None, Some(_)) => Ok(Self::Encoder),
            (None, None) => {
                let supported = format!("{}, {}", Architecture::names(), encoder_names());
                Err(Error::unsupported_architecture(name, supported))
            }
        }
    }
}

/// The properties that the name of an architecture determines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Architecture {
    /// The value of `general.architecture`.
    pub(crate) name: &'static str,
    /// The elements of queries and keys that are rotated together.
    pub(crate) rope: RopeStyle,
    /// The operands of a block's norms.
    pub(crate) norms: Norms,
    /// The name of the norm of the input of the feed-forward network.
    pub(crate) ffn_norm: &'static str,
    /// The norms of queries and keys that every file has. If `None`, norms of single heads are applied if the file has
    /// them.
    pub(crate) head_norms: Option<HeadNorms>,
    /// The activation of the gate.
    pub(crate) gate: Gate,
    pub(crate) mixture: Mixture,
    /// Whether embeddings are multiplied by the square root of the width.
    pub(crate) scaled_embedding: bool,
    /// The number of layers of the one model whose scores are scaled by `1/√(width / heads)` instead of `1/√head`.
    pub(crate) scaled_by_width: Option<usize>,
    /// The caps of files without the keys.
    pub(crate) caps: Caps,
    /// The windows of keys.
    pub(crate) windows: Windows,
    /// Whether each head has a learned logit that takes part in the softmax of scores without a value.
    pub(crate) has_sinks: bool,
    /// Whether the ramp of YaRN begins and ends at whole pairs in files without the key.
    pub(crate) has_whole_ramp: bool,
    /// With n, layers n - 1, 2n - 1 and so on, counted from 0, do not rotate queries and keys.
    pub(crate) unrotated: Option<usize>,
    /// Whether `rope.scaling.finetuned = false` means that no layer rotates.
    pub(crate) may_not_rotate: bool,
}

/// What the norms of a block are applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norms {
    /// The inputs of attention and of the feed-forward network.
    Before,
    /// Their outputs, before they are added.
    After,
    /// Both.
    Around,
}

/// The normalisation of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    /// Each head separately, all with the same weights.
    Head,
    /// All heads of a token together.
    Row,
}

/// The activation of the gate of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// `(u + 1) g σ(1.702 g)` with the gate g clamped to at most 7, and up u to -7 to 7.
    ClampedSilu,
}

/// Whether feed-forward parts are mixtures of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mixture {
    Never,
    /// A key of the file states the number of experts.
    Counted,
    Always,
}

/// Caps: a number x with the cap c becomes `c tanh(x / c)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Caps {
    /// The cap of attention scores.
    pub(crate) scores: Option<f32>,
    pub(crate) logits: Option<f32>,
}

/// The layers that see only the last keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Windows {
    /// The number of keys for files without the key.
    pub(crate) keys: Option<usize>,
    /// With n, every layer has a window except layers n - 1, 2n - 1 and so on; 0 means every layer. `None`: the file
    /// states which.
    pub(crate) pattern: Option<usize>,
    pub(crate) rope: WindowRope,
}

/// The rotation of queries and keys in layers with a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum WindowRope {
    /// Like other layers.
    Same,
    /// With unscaled angles. The base is the key `rope.freq_base_swa`, or that of the other layers.
    Unscaled,
    /// With unscaled angles. The base is that key, or this value.
    Base(f32),
}

/// Llama. Other rows name the differences.
const PLAIN: Architecture = Architecture {
    name: "llama",
    rope: RopeStyle::Interleaved,
    norms: Norms::Before,
    ffn_norm: "ffn_norm",
    head_norms: None,
    gate: Gate::Silu,
    mixture: Mixture::Never,
    scaled_embedding: false,
    scaled_by_width: None,
    caps: Caps { scores: None, logits: None },
    windows: Windows { keys: None, pattern: None, rope: WindowRope::Same },
    has_sinks: false,
    has_whole_ramp: true,
    unrotated: None,
    may_not_rotate: false,
};

/// The decoders that kiln runs.
const ALL: &[Architecture] = &[
    // Llama 1 to 3.2, Mistral 7B, Mixtral, SmolLM, SmolLM2, TinyLlama. Mistral has a window in every layer.
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
    // Phi-3, Phi-3.5 and Phi-4. They have a window in every layer, which llama.cpp ignores.
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
    Architecture {
        name: "gpt-oss",
        rope: RopeStyle::HalfSplit,
        ffn_norm: "post_attention_norm",
        gate: Gate::ClampedSilu,
        mixture: Mixture::Always,
        windows: Windows { keys: Some(128), pattern: Some(2), rope: WindowRope::Same },
        has_sinks: true,
        has_whole_ramp: false,
        ..PLAIN
    },
];

/// The encoders that kiln runs, by the values of `general.architecture`.
const ENCODERS: &[&str] = &["bert"];

/// The architecture name, if it is that of an encoder.
pub(super) fn encoder_named(name: &str) -> Option<&'static str> {
    ENCODERS.iter().copied().find(|known| *known == name)
}

/// The names of all encoders, for messages.
pub(crate) fn encoder_names() -> String {
    ENCODERS.join(", ")
}

impl Architecture {
    /// The decoder with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|known| known.name == name)
    }

    /// The decoder with this name.
    ///
    /// # Errors
    /// [`Error::NotADecoder`] for the name of an encoder, [`Error::UnsupportedArchitecture`] for an unknown one.
    pub(crate) fn find(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| match encoder_named(name) {
            Some(architecture) => Error::NotADecoder { architecture },
            None => Error::unsupported_architecture(name, Self::names()),
        })
    }

    /// All names, for messages.
    fn names() -> String {
        ALL.iter().map(|known| known.name).collect::<Vec<_>>().join(", ")
    }
}
