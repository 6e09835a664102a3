//! The models of random weights as folders of Hugging Face.

use std::path::{Path, PathBuf};

use kiln::{bf16, f16};
use serde_json::{Map, Value, json};

use super::random_model::{CONTEXT, EPS, FFN, HEADS, KV_HEADS, Kind, RandomModel, VOCABULARY, WIDTH};

/// A folder that is removed when it is dropped.
pub(crate) struct TemporaryFolder(pub(crate) PathBuf);

impl TemporaryFolder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kiln-llm-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }

    /// Changes a file of JSON.
    pub(crate) fn change(&self, name: &str, by: impl FnOnce(&mut Value)) {
        let mut json = serde_json::from_slice(&std::fs::read(self.0.join(name)).unwrap()).unwrap();
        by(&mut json);
        self.write(name, json.to_string());
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

impl AsRef<Path> for TemporaryFolder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

/// How a model is saved.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    /// F32, F16 or BF16.
    pub(crate) dtype: &'static str,
    pub(crate) files: usize,
    pub(crate) prefix: &'static str,
    /// Whether norms have weights w for factors of 1 + w.
    pub(crate) plus_one: bool,
}

pub(crate) const PLAIN: Form = Form { dtype: "F32", files: 1, prefix: "model.", plus_one: false };

pub(crate) fn encode(x: f32, dtype: &str) -> Vec<u8> {
    match dtype {
        "F16" => f16::from_f32(x).to_le_bytes().to_vec(),
        "BF16" => bf16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

pub(crate) fn rounded(x: f32, dtype: &str) -> f32 {
    match dtype {
        "F16" => f16::from_f32(x).to_f32(),
        "BF16" => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// The name that transformers gives a tensor; `None` for factors, which are in its configuration.
fn name_of(kind: &Kind, name: &str, prefix: &str) -> Option<String> {
    let (stem, suffix) = name.rsplit_once('.').unwrap();
    let plain = match stem {
        "token_embd" => Some("embed_tokens"),
        "output_norm" => Some("norm"),
        "output" => return Some("lm_head.weight".into()),
        _ => None,
    };
    if let Some(plain) = plain {
        return Some(format!("{prefix}{plain}.{suffix}"));
    }
    let (layer, part) = stem.strip_prefix("blk.")?.split_once('.').unwrap();
    if kind.experts.is_some() && part.starts_with("ffn_") && part != "ffn_norm" {
        let theirs = match (kind.name, part.split_once('.')) {
            ("qwen3moe", None) => "mlp.gate".to_owned(),
            (_, None) => "block_sparse_moe.gate".to_owned(),
            ("qwen3moe", Some((part, expert))) => format!("mlp.experts.{expert}.{}_proj", &part[4..]),
            (_, Some((part, expert))) => {
                let matrix = match part {
                    "ffn_gate" => "w1",
                    "ffn_down" => "w2",
                    _ => "w3",
                };
                format!("block_sparse_moe.experts.{expert}.{matrix}")
            }
        };
        return Some(format!("{prefix}layers.{layer}.{theirs}.{suffix}"));
    }
    let part = match part {
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if kind.fused => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "attn_norm" => "input_layernorm",
        "post_attention_norm" => "post_attention_layernorm",
        // If a norm also follows attention, this one has another name.
        "ffn_norm" if kind.norms_after => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        other => panic!("{other}"),
    };
    Some(format!("{prefix}layers.{layer}.{part}.{suffix}"))
}

/// A safetensors file.
pub(crate) fn safetensors(tensors: &[(String, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let (mut data, mut at) = (Vec::new(), 0);
    for (name, dtype, shape, bytes) in tensors {
        let end = at + bytes.len();
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}));
        data.extend_from_slice(bytes);
        at = end;
    }
    let header = Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// A tokenizer of ten tokens in `tokenizer.json`.
pub(crate) fn tokenizer() -> Value {
    json!({
        "added_tokens": [
            {"id": 1, "content": "<s>", "special": true},
            {"id": 2, "content": "</s>", "special": true},
        ],
        "normalizer": null,
        "pre_tokenizer":
            {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "<0xC3>": 3, "<0xA4>": 4, "\u{2581}": 5, "a": 6, "b": 7, "ab": 8,
                "\u{2581}ab": 9},
            "merges": ["a b", "\u{2581} ab"]},
    })
}

impl RandomModel {
    /// What config.json says of every model.
    pub(crate) fn config(&self, model_type: &str, own: Value) -> Value {
        let mut config = json!({
            "model_type": model_type,
            "hidden_size": WIDTH,
            "intermediate_size": FFN,
            "num_hidden_layers": self.kind.layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": self.kind.head,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": EPS,
            "rope_theta": self.kind.theta,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": self.kind.tied,
            "eos_token_id": 2,
        });
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        config
    }

    /// Rounds the weights to what files of this form hold.
    pub(crate) fn round(&mut self, form: Form) {
        for (name, _, data) in &mut self.tensors {
            let shift = if form.plus_one && name.ends_with("norm.weight") { 1.0 } else { 0.0 };
            data.iter_mut().for_each(|x| *x = rounded(*x - shift, form.dtype) + shift);
        }
    }

    /// Saves it as a folder. `config` is its config.json.
    pub(crate) fn save_folder(&self, name: &str, config: &Value, form: Form) -> TemporaryFolder {
        let folder = TemporaryFolder::new(name);
        folder.write("config.json", config.to_string());
        folder.write("tokenizer.json", tokenizer().to_string());
        let mut files = vec![Vec::new(); form.files];
        let mut index = Map::new();
        let file_name = |i: usize| format!("model-{:05}-of-{:05}.safetensors", i + 1, form.files);
        for (i, (name, dims, data)) in self.tensors.iter().enumerate() {
            let Some(theirs) = name_of(&self.kind, name, form.prefix) else { continue };
            let shift = if form.plus_one && name.ends_with("norm.weight") { 1.0 } else { 0.0 };
            let bytes = data.iter().flat_map(|x| encode(x - shift, form.dtype)).collect();
            index.insert(theirs.clone(), file_name(i % form.files).into());
            files[i % form.files].push((theirs, form.dtype, dims.clone(), bytes));
        }
        if form.files == 1 {
            folder.write("model.safetensors", safetensors(&files[0]));
        } else {
            for (i, tensors) in files.iter().enumerate() {
                folder.write(&file_name(i), safetensors(tensors));
            }
            let index = json!({"metadata": {"total_size": 0}, "weight_map": index});
            folder.write("model.safetensors.index.json", index.to_string());
        }
        folder
    }
}
