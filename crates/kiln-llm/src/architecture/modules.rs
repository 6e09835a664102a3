//! The names of the projections that adapters may change.

/// The projections that adapters may change, by their names in GGUF files: the separate ones of a layer, then
/// `attn_qkv`, which stacks queries, keys and values. `ffn_up` may stack gate and up.
pub(crate) const MODULES: [&str; 8] =
    ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_qkv"];

/// The projections of a layer that adapters change, by their names in GGUF files.
pub(super) const ADAPTED: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
