//! The values of `model_type` in a `config.json`, and what each means.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// The layers with a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Windows {
    None,
    /// Every layer has the window of the file, or else this one, if any.
    All(Option<u32>),
    /// With `use_sliding_window` the layers of `layer_types`, or those from `max_window_layers` on.
    Switched,
    /// With `use_sliding_window` every layer, with the file's number of keys or else this one.
    SwitchedAll(u32),
    /// The layers that `layer_types` names, or else all except each n-th; n, and the default of the window.
    Pattern(usize, u32),
}

/// The meaning of a `model_type`, and the defaults of optional keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    pub(super) model_type: &'static str,
    /// The value of `general.architecture`.
    pub(super) architecture: &'static str,
    pub(super) tied: bool,
    pub(super) windows: Windows,
    pub(super) eps: f64,
    pub(super) theta: f64,
    /// Elements of a head. `None`: the width divided by the heads.
    pub(super) head: Option<u32>,
    /// Gemma: GELU, norms of 1 + w, scores scaled by a key.
    pub(super) is_gemma: bool,
    /// Caps of scores and of logits.
    pub(super) caps: [Option<f32>; 2],
    pub(super) has_multipliers: bool,
    pub(super) has_no_rope_layers: bool,
    /// Heads of queries and of keys, and tokens of the context.
    pub(super) sizes: Option<[u32; 3]>,
    pub(super) mixture: Mixture,
}

/// The keys about experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mixture {
    None,
    /// All layers have experts, whose weights are normalised.
    Mixtral,
    /// Some layers may be without experts, experts have their own extent, and a key states whether weights are normalised.
    Qwen3,
    /// All layers have experts, which may be quantised in MXFP4, with a clamped activation.
    GptOss,
}

const LLAMA: Family = Family {
    model_type: "llama",
    architecture: "llama",
    tied: false,
    windows: Windows::None,
    eps: 1e-6,
    theta: 10_000.0,
    head: None,
    is_gemma: false,
    caps: [None; 2],
    has_multipliers: false,
    has_no_rope_layers: false,
    sizes: None,
    mixture: Mixture::None,
};

const GEMMA2: Family = Family {
    model_type: "gemma2",
    architecture: "gemma2",
    tied: true,
    windows: Windows::Pattern(2, 4096),
    head: Some(256),
    is_gemma: true,
    caps: [Some(50.0), Some(30.0)],
    ..LLAMA
};

const GEMMA3: Family = Family {
    model_type: "gemma3_text",
    architecture: "gemma3",
    windows: Windows::Pattern(6, 4096),
    theta: 1e6,
    caps: [None; 2],
    // Files of models with images omit them.
    sizes: Some([8, 4, 131_072]),
    ..GEMMA2
};

const GPT_OSS: Family = Family {
    model_type: "gpt_oss",
    architecture: "gpt-oss",
    windows: Windows::Pattern(2, 128),
    eps: 1e-5,
    theta: 150_000.0,
    head: Some(64),
    sizes: Some([64, 8, 131_072]),
    mixture: Mixture::GptOss,
    ..LLAMA
};

/// The rotations of gpt-oss if a file does not state them.
pub(super) static GPT_OSS_ROPE: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let rope = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096});
    rope.as_object().cloned().unwrap_or_default()
});

/// The numbers in the activation of gpt-oss, by their keys; other values are refused.
pub(super) const GPT_OSS_GATE: [(&str, f64); 2] = [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)];

const OLMO2: Family = Family { model_type: "olmo2", architecture: "olmo2", eps: 1e-5, ..LLAMA };

/// The decoders.
pub(super) const DECODERS: &[Family] = &[
    LLAMA,
    Family { model_type: "mistral", windows: Windows::All(Some(4096)), ..LLAMA },
    Family { model_type: "qwen2", architecture: "qwen2", windows: Windows::Switched, ..LLAMA },
    Family { model_type: "qwen3", architecture: "qwen3", windows: Windows::Switched, head: Some(128), ..LLAMA },
    Family {
        model_type: "qwen3_moe",
        architecture: "qwen3moe",
        windows: Windows::SwitchedAll(4096),
        mixture: Mixture::Qwen3,
        ..LLAMA
    },
    Family {
        model_type: "mixtral",
        windows: Windows::All(None),
        eps: 1e-5,
        theta: 1e6,
        mixture: Mixture::Mixtral,
        ..LLAMA
    },
    GEMMA2,
    GEMMA3,
    Family { model_type: "gemma3", ..GEMMA3 },
    Family { model_type: "phi3", architecture: "phi3", windows: Windows::All(None), eps: 1e-5, ..LLAMA },
    Family { model_type: "granite", architecture: "granite", has_multipliers: true, ..LLAMA },
    Family {
        model_type: "smollm3",
        architecture: "smollm3",
        tied: true,
        windows: Windows::Switched,
        theta: 2e6,
        has_no_rope_layers: true,
        ..LLAMA
    },
    OLMO2,
    Family { model_type: "olmo3", windows: Windows::Pattern(4, 4096), ..OLMO2 },
    GPT_OSS,
];

/// The decoder that a `model_type` names.
pub(super) fn decoder(model_type: &str) -> Option<&'static Family> {
    DECODERS.iter().find(|family| family.model_type == model_type)
}

/// All values of `model_type` of decoders, for messages.
pub(super) fn decoders() -> String {
    DECODERS.iter().map(|family| family.model_type).collect::<Vec<_>>().join(", ")
}

/// Values of `model_type` of encoders, which are also the names of their architectures.
const ENCODERS: &[&str] = &["bert"];

/// The encoder that a `model_type` names.
pub(super) fn encoder(model_type: &str) -> Option<&'static str> {
    ENCODERS.iter().copied().find(|known| *known == model_type)
}

/// All values of `model_type` of encoders, for messages.
pub(super) fn encoders() -> String {
    ENCODERS.join(", ")
}
