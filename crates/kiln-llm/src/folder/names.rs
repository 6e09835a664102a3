//! The names of tensors in folders, by their names in GGUF files.

use crate::architecture::Norms;

/// Parts of names that differ: of a layer, in GGUF files and in folders.
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

/// The same of norms, which depend on where an architecture has norms.
const fn norms(of: Norms) -> &'static [(&'static str, &'static str)] {
    match of {
        Norms::Before => &[("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")],
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

/// What the decoder's names begin with: of a model of texts, and of texts and images in older and newer files.
pub(super) const PREFIXES: [&str; 3] = ["model.", "language_model.model.", "model.language_model."];

/// What the names of tensors of parts begin with that are not computed: those that see images.
const IMAGES: [&str; 4] =
    ["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];

/// How a folder names its tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// One of [`PREFIXES`].
    pub(super) prefix: &'static str,
    pub(super) norms: Norms,
    /// Whether gate and up are one tensor.
    pub(super) fused: bool,
    /// Whether the embedding is the head.
    pub(super) tied: bool,
}

impl Names {
    /// The name of the head.
    fn head(&self) -> String {
        let prefix = self.prefix.strip_suffix("model.").filter(|prefix| *prefix == "language_model.");
        format!("{}lm_head.", prefix.unwrap_or_default())
    }

    /// The folder's name of a tensor, from its name in GGUF files. `None` for tensors that folders do not have.
    pub(super) fn of(&self, name: &str) -> Option<String> {
        let (part, kind) = name.rsplit_once('.')?;
        let prefix = self.prefix;
        match part {
            "token_embd" => return Some(format!("{prefix}embed_tokens.{kind}")),
            "output_norm" => return Some(format!("{prefix}norm.{kind}")),
            "output" => return (!self.tied).then(|| format!("{}{kind}", self.head())),
            _ => {}
        }
        let (layer, part) = part.strip_prefix("blk.")?.split_once('.')?;
        let theirs = match part {
            "ffn_up" if self.fused => "mlp.gate_up_proj",
            "ffn_up" => "mlp.up_proj",
            _ => PARTS.iter().chain(norms(self.norms)).find(|(ours, _)| *ours == part)?.1,
        };
        Some(format!("{prefix}layers.{layer}.{theirs}.{kind}"))
    }

    /// Whether a tensor changes nothing: of images, a head that is the embedding, or frequencies that follow from the base.
    pub(super) fn is_idle(&self, name: &str) -> bool {
        IMAGES.iter().any(|images| name.starts_with(images))
            || name.ends_with(".rotary_emb.inv_freq")
            || self.tied && name == format!("{}weight", self.head())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_transformers() {
        let llama = Names { prefix: "model.", norms: Norms::Before, fused: false, tied: false };
        let gemma = Names { prefix: "language_model.model.", norms: Norms::Around, fused: false, tied: true };
        let phi = Names { fused: true, ..llama };
        let olmo = Names { norms: Norms::After, ..llama };
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
            (olmo, "blk.1.attn_norm.weight", None),
            (olmo, "blk.1.post_attention_norm.weight", Some("model.layers.1.post_attention_layernorm.weight")),
        ] {
            assert_eq!(names.of(ours).as_deref(), theirs, "{ours}");
        }
        assert!(gemma.is_idle("language_model.lm_head.weight") && gemma.is_idle("vision_tower.a"));
        assert!(!llama.is_idle("lm_head.weight") && llama.is_idle("model.layers.0.self_attn.rotary_emb.inv_freq"));
    }
}
