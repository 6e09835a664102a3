//! The models of random weights as folders of Hugging Face.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln::{bf16, f16};
use serde_json::{Map, Value, json};

use super::random_model::{CONTEXT, EPS, FFN, HEADS, KV_HEADS, Kind, RandomModel, VOCABULARY};

/// A folder that is removed when it is dropped.
pub(crate) struct TemporaryFolder(pub(crate) PathBuf);

impl TemporaryFolder {
    pub(crate) fn new(name: &str) -> Self {
        let path = super::temporary(name);
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
    /// Whether packed experts are in MXFP4.
    pub(crate) mxfp4: bool,
}

pub(crate) const PLAIN: Form = Form { dtype: "F32", files: 1, prefix: "model.", plus_one: false, mxfp4: false };

/// The magnitudes that four bits encode in MXFP4; the fourth bit is the sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// The scale of all blocks: numbers between -1.5 and 1.5 become multiples of it.
const SCALE: f32 = 0.25;

/// The four bits of the nearest number of MXFP4 times [`SCALE`].
fn code(x: f32) -> u8 {
    let far = |i: &usize| (E2M1[*i] * SCALE - x.abs()).abs();
    let nearest = (0..8).min_by(|a, b| far(a).total_cmp(&far(b))).unwrap();
    nearest as u8 | u8::from(x < 0.0) << 3
}

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

/// Whether a tensor of an expert is in a tensor of all of them.
fn is_packed(kind: &Kind, name: &str) -> bool {
    kind.name == "gpt-oss" && name.contains(".ffn_") && !name.contains("ffn_gate_inp")
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
            ("gpt-oss", None) => "mlp.router".to_owned(),
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
        "attn_sinks" => return Some(format!("{prefix}layers.{layer}.self_attn.sinks")),
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

/// The name, type, extents and bytes of a tensor.
pub(crate) type FolderTensor = (String, &'static str, Vec<usize>, Vec<u8>);

/// A safetensors file.
pub(crate) fn safetensors(tensors: &[FolderTensor]) -> Vec<u8> {
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
            "hidden_size": self.kind.width,
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
            let coded = form.mxfp4 && is_packed(&self.kind, name) && name.ends_with(".weight");
            for x in data {
                *x = match coded {
                    true => (E2M1[usize::from(code(*x) & 7)] * SCALE).copysign(*x),
                    false => rounded(*x - shift, form.dtype) + shift,
                };
            }
        }
    }

    /// The experts of gpt-oss as folders have them: outputs of gate and up alternate; floats have inputs first.
    fn packed(&self, form: Form) -> Vec<FolderTensor> {
        // By the layer and the matrix: gate, up and down of each expert, with their biases.
        type Matrices<'m> = Vec<(&'m [usize], &'m [f32])>;
        let mut experts: BTreeMap<(&str, &str, &str), Matrices<'_>> = BTreeMap::new();
        for (name, dims, data) in self.tensors.iter().filter(|(name, ..)| is_packed(&self.kind, name)) {
            let parts: Vec<&str> = name.split('.').collect();
            experts.entry((parts[1], parts[4], parts[2])).or_default().push((dims, data));
        }
        let mut packed = Vec::new();
        for ((layer, kind, part), matrices) in &experts {
            // Gate is written with up.
            let (step, theirs, others) = match *part {
                "ffn_gate" => (2, "gate_up_proj", &experts[&(*layer, *kind, "ffn_up")]),
                "ffn_down" => (1, "down_proj", matrices),
                _ => continue,
            };
            let name = format!("{}layers.{layer}.mlp.experts.{theirs}", form.prefix);
            let (count, outputs) = (matrices.len(), step * matrices[0].0[0]);
            // An element of an expert, by its output among all.
            let inputs = matrices[0].0.get(1).copied().unwrap_or(1);
            let at = |expert: usize, output: usize, input: usize| {
                let (_, data) = if output.is_multiple_of(step) { matrices[expert] } else { others[expert] };
                data[output / step * inputs + input]
            };
            let mut bytes = Vec::new();
            if *kind == "bias" {
                for (expert, output) in (0..count).flat_map(|expert| (0..outputs).map(move |output| (expert, output))) {
                    bytes.extend(encode(at(expert, output, 0), form.dtype));
                }
                packed.push((format!("{name}_bias"), form.dtype, vec![count, outputs], bytes));
            } else if form.mxfp4 {
                for (expert, output) in (0..count).flat_map(|expert| (0..outputs).map(move |output| (expert, output))) {
                    let code = |input: usize| code(at(expert, output, input));
                    bytes.extend((0..inputs).step_by(2).map(|input| code(input) | code(input + 1) << 4));
                }
                let shape = vec![count, outputs, inputs / 32, 16];
                packed.push((format!("{name}_blocks"), "U8", shape.clone(), bytes));
                // 2^-2 is SCALE.
                packed.push((
                    format!("{name}_scales"),
                    "U8",
                    shape[..3].to_vec(),
                    vec![125; count * outputs * inputs / 32],
                ));
            } else {
                for (expert, input) in (0..count).flat_map(|expert| (0..inputs).map(move |input| (expert, input))) {
                    bytes.extend((0..outputs).flat_map(|output| encode(at(expert, output, input), form.dtype)));
                }
                packed.push((name, form.dtype, vec![count, inputs, outputs], bytes));
            }
        }
        packed
    }

    /// The tensors of a folder.
    pub(crate) fn folder_tensors(&self, form: Form) -> Vec<FolderTensor> {
        let apart = self.tensors.iter().filter(|(name, ..)| !is_packed(&self.kind, name));
        let tensors = apart.filter_map(|(name, dims, data)| {
            let theirs = name_of(&self.kind, name, form.prefix)?;
            let shift = if form.plus_one && name.ends_with("norm.weight") { 1.0 } else { 0.0 };
            let bytes = data.iter().flat_map(|x| encode(x - shift, form.dtype)).collect();
            Some((theirs, form.dtype, dims.clone(), bytes))
        });
        tensors.chain(self.packed(form)).collect()
    }

    /// Saves it as a folder. `config` is its config.json.
    pub(crate) fn save_folder(&self, name: &str, config: &Value, form: Form) -> TemporaryFolder {
        let folder = TemporaryFolder::new(name);
        folder.write("config.json", config.to_string());
        folder.write("tokenizer.json", tokenizer().to_string());
        let mut files = vec![Vec::new(); form.files];
        let mut index = Map::new();
        let file_name = |i: usize| format!("model-{:05}-of-{:05}.safetensors", i + 1, form.files);
        for (i, tensor) in self.folder_tensors(form).into_iter().enumerate() {
            index.insert(tensor.0.clone(), file_name(i % form.files).into());
            files[i % form.files].push(tensor);
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
