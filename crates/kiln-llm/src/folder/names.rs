//! The names of tensors in folders, by their names in GGUF files.

use crate::architecture::MODULES;
use crate::architecture::Norms;

/// Parts of layer tensor names that differ between GGUF files and folders.
const PARTS: &[(&str, &str)] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The names of the parts of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpertNames {
    router: &'static str,
    /// The module that contains the experts.
    experts: &'static str,
    /// Gate, up and down.
    matrices: [&'static str; 3],
    /// Whether a tensor has the matrices of all experts, and gate and up are one tensor; otherwise experts are numbered.
    are_packed: bool,
}

/// The outputs of a packed tensor of all experts that a matrix has: every `step`-th from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) first: usize,
    pub(super) step: usize,
}

/// The ends of the names of the tensors that together are a packed tensor in MXFP4: the nibbles, and the scales.
pub(super) const MXFP4_PARTS: [&str; 2] = ["_blocks", "_scales"];

impl ExpertNames {
    pub(super) const QWEN3_MOE: Self = Self {
        router: "mlp.gate",
        experts: "mlp.experts",
        matrices: ["gate_proj", "up_proj", "down_proj"],
        are_packed: false,
    };
    pub(super) const MIXTRAL: Self = Self {
        router: "block_sparse_moe.gate",
        experts: "block_sparse_moe.experts",
        matrices: ["w1", "w3", "w2"],
        are_packed: false,
    };
    pub(super) const GPT_OSS: Self = Self {
        router: "mlp.router",
        experts: "mlp.experts",
        matrices: ["gate_up_proj", "gate_up_proj", "down_proj"],
        are_packed: true,
    };

    /// The name of a tensor of a layer: the `weight` or `bias` of `ffn_gate_inp`, of `ffn_up.7` of an expert, or of
    /// `ffn_up_exps`.
    fn of(&self, part: &str, kind: &str) -> Option<String> {
        if part == "ffn_gate_inp" {
            return Some(format!("{}.{kind}", self.router));
        }
        let (part, expert) = if self.are_packed { (part.strip_suffix("_exps")?, "") } else { part.split_once('.')? };
        let matrices = ["ffn_gate", "ffn_up", "ffn_down"].into_iter().zip(self.matrices);
        let (_, matrix) = matrices.into_iter().find(|(ours, _)| *ours == part)?;
        let experts = self.experts;
        match (self.are_packed, kind) {
            (false, _) => Some(format!("{experts}.{expert}.{matrix}.{kind}")),
            (true, "weight") => Some(format!("{experts}.{matrix}")),
            (true, _) => Some(format!("{experts}.{matrix}_{kind}")),
        }
    }

    /// The outputs that the tensor of this part of a layer has of the packed one.
    fn packed(&self, part: &str) -> Option<Packed> {
        let (first, step) = match part {
            "ffn_gate_exps" => (0, 2),
            "ffn_up_exps" => (1, 2),
            "ffn_down_exps" => (0, 1),
            _ => return None,
        };
        self.are_packed.then_some(Packed { first, step })
    }
}

/// The same for norms, whose names depend on where an architecture has norms.
const fn norms(of: Norms) -> &'static [(&'static str, &'static str)] {
    match of {
        // The norm before the feed-forward network has two names in GGUF files.
        Norms::Before => &[
            ("attn_norm", "input_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
        ],
        Norms::After => {
            &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")]
        }
        Norms::Around => &[
            ("attn_norm", "input_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
    }
}

/// The prefixes of a decoder's names: for text models, and for models of texts and images in older and newer files.
const PREFIXES: [&str; 3] = ["model.", "language_model.model.", "model.language_model."];

/// The prefixes of unused tensors: the image encoders.
const IMAGES: [&str; 4] =
    ["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];

/// The naming scheme of a folder's tensors.
#[derive(Debug, Clone, Copy)]
pub(super) enum Names {
    Decoder(DecoderNames),
    Encoder(EncoderNames),
}

impl Names {
    /// The folder's name of a tensor, from its name in GGUF files. `None` for tensors that folders do not have.
    pub(super) fn of(&self, name: &str) -> Option<String> {
        match self {
            Self::Decoder(names) => names.of(name),
            Self::Encoder(names) => names.of(name),
        }
    }

    /// Whether a tensor has no effect, so that it may remain unread.
    pub(super) fn is_idle(&self, name: &str) -> bool {
        match self {
            Self::Decoder(names) => names.is_idle(name),
            Self::Encoder(names) => names.is_idle(name),
        }
    }

    /// Which outputs of a packed tensor a tensor has, by its name in GGUF files.
    pub(super) fn packed(&self, name: &str) -> Option<Packed> {
        let Self::Decoder(DecoderNames { experts: Some(experts), .. }) = self else { return None };
        let (part, _) = name.rsplit_once('.')?;
        experts.packed(part.strip_prefix("blk.")?.split_once('.')?.1)
    }
}

/// The names of a decoder.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecoderNames {
    /// One of [`PREFIXES`].
    pub(super) prefix: &'static str,
    pub(super) norms: Norms,
    /// Whether gate and up are one tensor.
    pub(super) fused: bool,
    /// Whether the embedding is the head.
    pub(super) tied: bool,
    /// For layers whose feed-forward parts are mixtures.
    pub(super) experts: Option<ExpertNames>,
}

impl DecoderNames {
    /// The prefix of this folder's names.
    pub(super) fn prefix(has: impl Fn(&str) -> bool) -> &'static str {
        PREFIXES.into_iter().find(|prefix| has(&format!("{prefix}embed_tokens.weight"))).unwrap_or(PREFIXES[0])
    }

    /// The name of the head.
    fn head(&self) -> String {
        let prefix = self.prefix.strip_suffix("model.").filter(|prefix| *prefix == "language_model.");
        format!("{}lm_head.", prefix.unwrap_or_default())
    }

    fn of(&self, name: &str) -> Option<String> {
        let (part, kind) = name.rsplit_once('.')?;
        let prefix = self.prefix;
        match part {
            "token_embd" => return Some(format!("{prefix}embed_tokens.{kind}")),
            "output_norm" => return Some(format!("{prefix}norm.{kind}")),
            "output" => return (!self.tied).then(|| format!("{}{kind}", self.head())),
            _ => {}
        }
        let (layer, part) = part.strip_prefix("blk.")?.split_once('.')?;
        if let Some(theirs) = self.experts.and_then(|experts| experts.of(part, kind)) {
            return Some(format!("{prefix}layers.{layer}.{theirs}"));
        }
        let theirs = match part {
            // It has no `.weight` at the end.
            "attn_sinks" => return Some(format!("{prefix}layers.{layer}.self_attn.sinks")),
            "ffn_up" if self.fused => "mlp.gate_up_proj",
            "ffn_up" => "mlp.up_proj",
            _ => PARTS.iter().chain(norms(self.norms)).find(|(ours, _)| *ours == part)?.1,
        };
        Some(format!("{prefix}layers.{layer}.{theirs}.{kind}"))
    }

    /// Tensors of images, a head that equals the embedding, and frequencies that follow from the base.
    fn is_idle(&self, name: &str) -> bool {
        IMAGES.iter().any(|images| name.starts_with(images))
            || name.ends_with(".rotary_emb.inv_freq")
            || self.tied && name == format!("{}weight", self.head())
    }
}

/// Whether a tensor is a part of a packed tensor in MXFP4, by its name.
pub(super) fn is_mxfp4_part(name: &str) -> bool {
    let part = MXFP4_PARTS.iter().find_map(|end| name.strip_suffix(end));
    part.and_then(|part| part.rsplit_once(".mlp.experts."))
        .is_some_and(|(_, matrix)| ExpertNames::GPT_OSS.matrices.contains(&matrix))
}

/// The layer's digits and the GGUF name of the projection, from a decoder module's name in transformers.
pub(crate) fn adapted_module(module: &str) -> Option<(&str, &'static str)> {
    let module = PREFIXES.into_iter().find_map(|prefix| module.strip_prefix(prefix)?.strip_prefix("layers."))?;
    let (layer, part) = module.split_once('.')?;
    // A matrix that stacks gate and up has the name of up in GGUF files.
    let ours = match part {
        "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
        _ => PARTS.iter().find(|(ours, theirs)| *theirs == part && MODULES.contains(ours))?.0,
    };
    Some((layer, ours))
}

/// Parts of an encoder's names, in the model and in layers.
const ENCODER: &[(&str, &str)] = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
];
const ENCODER_PARTS: &[(&str, &str)] = &[
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];

/// The names of an encoder.
#[derive(Debug, Clone, Copy)]
pub(super) struct EncoderNames {
    /// Their prefix: empty, or `bert.` in a model with a head.
    prefix: &'static str,
    /// Whether norms are named `gamma` and `beta`, as in files of the first years.
    greek: bool,
}

impl EncoderNames {
    /// The naming scheme of a folder with these tensors.
    pub(super) fn of_tensors(has: impl Fn(&str) -> bool) -> Self {
        let names = |prefix| Self { prefix, greek: has(&format!("{prefix}embeddings.LayerNorm.gamma")) };
        let (plain, inner) = (names(""), names("bert."));
        if has(&inner.embedding()) { inner } else { plain }
    }

    /// The name of the embedding of tokens.
    pub(super) fn embedding(&self) -> String {
        format!("{}embeddings.word_embeddings.weight", self.prefix)
    }

    fn of(&self, name: &str) -> Option<String> {
        let (part, kind) = name.rsplit_once('.')?;
        let theirs = |table: &[(&'static str, &'static str)], part: &str| {
            table.iter().find(|(ours, _)| *ours == part).map(|&(_, theirs)| theirs)
        };
        let part = match part.strip_prefix("blk.").and_then(|part| part.split_once('.')) {
            Some((layer, part)) => format!("encoder.layer.{layer}.{}", theirs(ENCODER_PARTS, part)?),
            None => theirs(ENCODER, part)?.to_owned(),
        };
        let kind = match kind {
            "weight" if self.greek && part.ends_with("LayerNorm") => "gamma",
            "bias" if self.greek && part.ends_with("LayerNorm") => "beta",
            kind => kind,
        };
        Some(format!("{}{part}.{kind}", self.prefix))
    }

    /// Tensors of heads that embeddings do not pass through, and the position numbers.
    fn is_idle(&self, name: &str) -> bool {
        let inner = name.strip_prefix(self.prefix);
        inner.is_some_and(|name| name.starts_with("pooler.")) || is_position_ids(name) || name.starts_with("cls.")
    }
}

/// Whether a tensor of an encoder contains position numbers: unused integers, not weights.
pub(super) fn is_position_ids(name: &str) -> bool {
    matches!(name, "embeddings.position_ids" | "bert.embeddings.position_ids")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_transformers() {
        let llama = DecoderNames { prefix: "model.", norms: Norms::Before, fused: false, tied: false, experts: None };
        let gemma = DecoderNames { prefix: "language_model.model.", norms: Norms::Around, tied: true, ..llama };
        let phi = DecoderNames { fused: true, ..llama };
        let olmo = DecoderNames { norms: Norms::After, ..llama };
        let [qwen, mixtral, gpt] = [ExpertNames::QWEN3_MOE, ExpertNames::MIXTRAL, ExpertNames::GPT_OSS]
            .map(|experts| DecoderNames { experts: Some(experts), ..llama });
        for (names, ours, theirs) in [
            (llama, "token_embd.weight", Some("model.embed_tokens.weight")),
            (llama, "output.weight", Some("lm_head.weight")),
            (llama, "output_norm.weight", Some("model.norm.weight")),
            (llama, "blk.11.attn_q.bias", Some("model.layers.11.self_attn.q_proj.bias")),
            (llama, "blk.0.ffn_norm.weight", Some("model.layers.0.post_attention_layernorm.weight")),
            (llama, "blk.0.ffn_up.weight", Some("model.layers.0.mlp.up_proj.weight")),
            (llama, "blk.0.post_ffw_norm.weight", None),
            (llama, "rope_freqs.weight", None),
            (phi, "blk.0.ffn_up.weight", Some("model.layers.0.mlp.gate_up_proj.weight")),
            (gemma, "output.weight", None),
            (gemma, "blk.1.ffn_norm.weight", Some("language_model.model.layers.1.pre_feedforward_layernorm.weight")),
            (qwen, "blk.2.ffn_gate_inp.weight", Some("model.layers.2.mlp.gate.weight")),
            (qwen, "blk.2.ffn_down.11.weight", Some("model.layers.2.mlp.experts.11.down_proj.weight")),
            (mixtral, "blk.2.ffn_gate_inp.weight", Some("model.layers.2.block_sparse_moe.gate.weight")),
            (mixtral, "blk.2.ffn_up.0.weight", Some("model.layers.2.block_sparse_moe.experts.0.w3.weight")),
            (mixtral, "blk.2.ffn_gate_exps.weight", None),
            (llama, "blk.2.ffn_gate_inp.weight", None),
            (gpt, "blk.2.ffn_gate_inp.bias", Some("model.layers.2.mlp.router.bias")),
            (gpt, "blk.2.ffn_up_exps.weight", Some("model.layers.2.mlp.experts.gate_up_proj")),
            (gpt, "blk.2.ffn_gate_exps.bias", Some("model.layers.2.mlp.experts.gate_up_proj_bias")),
            (gpt, "blk.2.ffn_down_exps.weight", Some("model.layers.2.mlp.experts.down_proj")),
            (gpt, "blk.2.attn_sinks.weight", Some("model.layers.2.self_attn.sinks")),
            (gpt, "blk.2.post_attention_norm.weight", Some("model.layers.2.post_attention_layernorm.weight")),
            (olmo, "blk.1.attn_norm.weight", None),
            (olmo, "blk.1.post_attention_norm.weight", Some("model.layers.1.post_attention_layernorm.weight")),
        ] {
            assert_eq!(names.of(ours).as_deref(), theirs, "{ours}");
        }
        for (module, expected) in [
            ("model.layers.3.self_attn.q_proj", Some(("3", "attn_q"))),
            ("model.layers.0.mlp.gate_up_proj", Some(("0", "ffn_up"))),
            ("model.language_model.layers.12.mlp.down_proj", Some(("12", "ffn_down"))),
            ("model.layers.0.self_attn.q_norm", None),
            ("model.embed_tokens", None),
            ("layers.0.mlp.down_proj", None),
        ] {
            assert_eq!(adapted_module(module), expected, "{module}");
        }
        assert!(gemma.is_idle("language_model.lm_head.weight") && gemma.is_idle("vision_tower.a"));
        for (name, expected) in [
            ("blk.0.ffn_gate_exps.weight", Some(Packed { first: 0, step: 2 })),
            ("blk.11.ffn_up_exps.bias", Some(Packed { first: 1, step: 2 })),
            ("blk.0.ffn_down_exps.weight", Some(Packed { first: 0, step: 1 })),
            ("blk.0.ffn_gate_inp.weight", None),
            ("output.weight", None),
        ] {
            assert_eq!(Names::Decoder(gpt).packed(name), expected, "{name}");
            assert_eq!(Names::Decoder(qwen).packed(name), None, "{name}");
        }
        assert!(is_mxfp4_part("model.layers.0.mlp.experts.gate_up_proj_blocks"));
        assert!(!is_mxfp4_part("model.layers.0.mlp.down_proj_blocks"));
        assert!(!llama.is_idle("lm_head.weight") && llama.is_idle("model.layers.0.self_attn.rotary_emb.inv_freq"));
    }

    #[test]
    fn names_of_encoders_are_those_of_transformers() {
        let names = |all: &'static [&'static str]| EncoderNames::of_tensors(|name| all.contains(&name));
        let plain = names(&["embeddings.word_embeddings.weight", "embeddings.LayerNorm.weight"]);
        let inner = names(&["bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.gamma"]);
        assert_eq!(names(&[]).embedding(), "embeddings.word_embeddings.weight");
        for (names, ours, theirs) in [
            (plain, "token_embd.weight", Some("embeddings.word_embeddings.weight")),
            (plain, "token_embd_norm.bias", Some("embeddings.LayerNorm.bias")),
            (plain, "blk.11.attn_q.bias", Some("encoder.layer.11.attention.self.query.bias")),
            (plain, "blk.0.layer_output_norm.weight", Some("encoder.layer.0.output.LayerNorm.weight")),
            (plain, "blk.0.ffn_gate.weight", None),
            (plain, "blk.0.token_embd.weight", None),
            (plain, "attn_q.weight", None),
            (plain, "output", None),
            (inner, "token_types.weight", Some("bert.embeddings.token_type_embeddings.weight")),
            (inner, "token_embd_norm.weight", Some("bert.embeddings.LayerNorm.gamma")),
            (inner, "blk.3.attn_output_norm.bias", Some("bert.encoder.layer.3.attention.output.LayerNorm.beta")),
            (inner, "blk.3.attn_output.bias", Some("bert.encoder.layer.3.attention.output.dense.bias")),
        ] {
            assert_eq!(names.of(ours).as_deref(), theirs, "{ours}");
        }
        for (names, name, expected) in [
            (plain, "pooler.dense.weight", true),
            (plain, "bert.pooler.dense.weight", false),
            (inner, "bert.pooler.dense.weight", true),
            (inner, "cls.predictions.bias", true),
            (inner, "bert.embeddings.position_ids", true),
            (inner, "classifier.weight", false),
        ] {
            assert_eq!(names.is_idle(name), expected, "{name}");
        }
    }
}
