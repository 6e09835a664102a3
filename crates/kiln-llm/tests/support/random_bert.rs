//! A small BERT of random weights, as a file, as a folder and as numbers, and what exact arithmetic computes with it.

use std::collections::HashMap;
use std::path::PathBuf;

use kiln_gguf::{TensorKind, ToValue, Writer};
use serde_json::{Value, json};

use super::random_folder::{TemporaryFolder, encode, rounded, safetensors};

/// The extents, chosen so that no two are equal where that could hide an exchange. There are more rows than tokens.
pub(crate) const VOCABULARY: usize = 13;
pub(crate) const WIDTH: usize = 24;
const FFN: usize = 40;
const HEADS: usize = 4;
const LAYERS: usize = 3;
/// No power of two, which texts would be filled up to.
pub(crate) const POSITIONS: usize = 37;
const TYPES: usize = 2;
/// Another one than that of files without the key.
const EPS: f32 = 0.01;

/// How a folder is saved.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    /// F32, F16 or BF16.
    pub(crate) dtype: &'static str,
    pub(crate) prefix: &'static str,
    /// Whether norms have `gamma` and `beta`.
    pub(crate) greek: bool,
}

pub(crate) const PLAIN: Form = Form { dtype: "F32", prefix: "", greek: false };

/// Rows of tokens that become an embedding.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rows {
    All,
    First,
    Last,
}

/// A model: tensors by the names of GGUF files, as `[rows, columns]` or `[n]`.
pub(crate) struct RandomBert {
    pub(crate) tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    /// Keys of the file that tests add or replace.
    keys: Vec<(String, Box<dyn ToValue>)>,
}

impl RandomBert {
    pub(crate) fn new() -> Self {
        let mut random = super::random(0x9e37_79b9);
        let mut tensors = Vec::new();
        let mut add = |name: String, dims: &[usize], size: f32, around: f32| {
            let data = (0..dims.iter().product()).map(|_| around + random(size)).collect();
            tensors.push((name, dims.to_vec(), data));
        };
        for (name, rows) in [("token_embd", VOCABULARY), ("position_embd", POSITIONS), ("token_types", TYPES)] {
            add(format!("{name}.weight"), &[rows, WIDTH], 1.0, 0.0);
        }
        let layer = |i: usize, part: &str| format!("blk.{i}.{part}");
        let mut norms = vec!["token_embd_norm".to_owned()];
        for i in 0..LAYERS {
            for (part, rows, columns) in [
                ("attn_q", WIDTH, WIDTH),
                ("attn_k", WIDTH, WIDTH),
                ("attn_v", WIDTH, WIDTH),
                ("attn_output", WIDTH, WIDTH),
                ("ffn_up", FFN, WIDTH),
                ("ffn_down", WIDTH, FFN),
            ] {
                add(layer(i, part) + ".weight", &[rows, columns], 0.4, 0.0);
                add(layer(i, part) + ".bias", &[rows], 0.5, 0.0);
            }
            norms.extend(["attn_output_norm", "layer_output_norm"].map(|part| layer(i, part)));
        }
        for name in norms {
            add(name.clone() + ".weight", &[WIDTH], 0.5, 1.0);
            add(name + ".bias", &[WIDTH], 0.5, 0.0);
        }
        Self { tensors, keys: Vec::new() }
    }

    /// Sets a key of the metadata of the file.
    pub(crate) fn with(mut self, key: &str, value: impl ToValue + 'static) -> Self {
        self.keys.retain(|(known, _)| known != key);
        self.keys.push((key.to_owned(), Box::new(value)));
        self
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut (String, Vec<usize>, Vec<f32>) {
        self.tensors.iter_mut().find(|(known, ..)| known == name).expect("a tensor of the model")
    }

    /// Writes it to a file of this name among the temporary ones.
    pub(crate) fn save(&self, name: &str) -> PathBuf {
        let mut keys: Vec<(String, Box<dyn ToValue>)> = vec![
            ("general.architecture".into(), Box::new("bert")),
            ("bert.block_count".into(), Box::new(LAYERS as u32)),
            ("bert.context_length".into(), Box::new(POSITIONS as u32)),
            ("bert.embedding_length".into(), Box::new(WIDTH as u32)),
            ("bert.feed_forward_length".into(), Box::new(FFN as u32)),
            ("bert.attention.head_count".into(), Box::new(HEADS as u32)),
            ("bert.attention.layer_norm_epsilon".into(), Box::new(EPS)),
            ("bert.attention.causal".into(), Box::new(false)),
        ];
        keys.extend(super::wordpiece().into_entries());
        let replaced = |key: &str| self.keys.iter().any(|(known, _)| known == key);
        let mut writer = Writer::new();
        for (key, value) in keys.iter().filter(|(key, _)| !replaced(key)).chain(&self.keys) {
            writer.set(key, &**value).unwrap();
        }
        let bytes: Vec<Vec<u8>> =
            self.tensors.iter().map(|(_, _, data)| data.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
        for ((name, dims, _), bytes) in self.tensors.iter().zip(&bytes) {
            let extents: Vec<u64> = dims.iter().rev().map(|&n| n as u64).collect();
            writer.tensor(name, TensorKind::F32, &extents, bytes).unwrap();
        }
        let path = super::temporary(&format!("{name}.gguf"));
        writer.save(&path).unwrap();
        path
    }

    /// Rounds the weights to what files of this type hold.
    pub(crate) fn round(&mut self, dtype: &str) {
        self.tensors.iter_mut().flat_map(|(_, _, data)| data).for_each(|x| *x = rounded(*x, dtype));
    }

    /// Saves it as a folder of transformers, with a head that embeddings do not pass through.
    pub(crate) fn save_folder(&self, name: &str, form: Form) -> TemporaryFolder {
        let folder = TemporaryFolder::new(name);
        folder.write("config.json", config().to_string());
        folder.write("tokenizer.json", tokenizer().to_string());
        let mut tensors = vec![
            (format!("{}embeddings.position_ids", form.prefix), "I64", vec![1, POSITIONS], vec![0; 8 * POSITIONS]),
            (format!("{}pooler.dense.bias", form.prefix), "F32", vec![WIDTH], vec![0; 4 * WIDTH]),
        ];
        tensors.extend(self.tensors.iter().map(|(name, dims, data)| {
            let bytes = data.iter().flat_map(|&x| encode(x, form.dtype)).collect();
            (name_of(name, form), form.dtype, dims.clone(), bytes)
        }));
        folder.write("model.safetensors", safetensors(&tensors));
        folder
    }

    /// The embedding of a text of these tokens, of its own length, by exact arithmetic.
    pub(crate) fn reference(&self, tokens: &[u32], rows: Rows) -> Vec<f64> {
        let weights: HashMap<&str, Vec<f64>> = self
            .tensors
            .iter()
            .map(|(name, _, data)| (&**name, data.iter().map(|&x| f64::from(x)).collect()))
            .collect();
        let of = |name: &str| &weights[name][..];
        let row = |name: &str, i: usize| &of(name)[i * WIDTH..(i + 1) * WIDTH];
        let projected = |name: &str, x: &[f64]| -> Vec<f64> {
            let rows = of(&format!("{name}.weight")).chunks_exact(x.len());
            rows.zip(of(&format!("{name}.bias"))).map(|(row, bias)| dot(row, x) + bias).collect()
        };
        let normed = |name: &str, x: &[f64]| -> Vec<f64> {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let by = of(&format!("{name}.weight")).iter().zip(of(&format!("{name}.bias")));
            let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
            x.iter().zip(by).map(|(x, (weight, bias))| (x - mean) * scale * weight + bias).collect()
        };
        let sum = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };

        let mut x: Vec<Vec<f64>> = Vec::new();
        for (position, &token) in tokens.iter().enumerate() {
            let both = sum(row("token_embd.weight", token as usize), row("position_embd.weight", position));
            x.push(normed("token_embd_norm", &sum(&both, row("token_types.weight", 0))));
        }
        let head = WIDTH / HEADS;
        for layer in 0..LAYERS {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let [q, k, v] = ["attn_q", "attn_k", "attn_v"]
                .map(|part| x.iter().map(|x| projected(&name(part), x)).collect::<Vec<_>>());
            for (i, x) in x.iter_mut().enumerate() {
                let mut all = Vec::new();
                for at in (0..HEADS).map(|h| h * head..(h + 1) * head) {
                    let scores = k.iter().map(|k| dot(&q[i][at.clone()], &k[at.clone()]) / (head as f64).sqrt());
                    let shares: Vec<f64> = scores.map(f64::exp).collect();
                    let total: f64 = shares.iter().sum();
                    all.extend(at.map(|c| shares.iter().zip(&v).map(|(share, v)| share / total * v[c]).sum::<f64>()));
                }
                let h = normed(&name("attn_output_norm"), &sum(x, &projected(&name("attn_output"), &all)));
                let up: Vec<f64> = projected(&name("ffn_up"), &h).into_iter().map(gelu).collect();
                *x = normed(&name("layer_output_norm"), &sum(&h, &projected(&name("ffn_down"), &up)));
            }
        }
        match rows {
            Rows::All => (0..WIDTH).map(|c| x.iter().map(|x| x[c]).sum::<f64>() / x.len() as f64).collect(),
            Rows::First => x.swap_remove(0),
            Rows::Last => x.pop().expect("a token"),
        }
    }
}

/// The config.json.
fn config() -> Value {
    json!({
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS,
        "layer_norm_eps": EPS,
        "vocab_size": VOCABULARY,
        "type_vocab_size": TYPES,
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "pad_token_id": 0,
    })
}

/// The vocabulary of [`super::wordpiece`] in `tokenizer.json`.
fn tokenizer() -> Value {
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "special": true});
    let place = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    json!({
        "truncation": {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [special(0, "[PAD]"), special(1, "[UNK]"), special(2, "[CLS]"), special(3, "[SEP]")],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [place("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, place("[SEP]")],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "un": 4, "##able": 5, "cafe": 6, ",": 7, "\u{4e2d}": 8}},
    })
}

/// The name that transformers gives a tensor.
fn name_of(name: &str, form: Form) -> String {
    let (stem, suffix) = name.rsplit_once('.').unwrap();
    let theirs = match stem.strip_prefix("blk.").map(|rest| rest.split_once('.').unwrap()) {
        None => match stem {
            "token_embd" => "embeddings.word_embeddings".to_owned(),
            "position_embd" => "embeddings.position_embeddings".to_owned(),
            "token_types" => "embeddings.token_type_embeddings".to_owned(),
            "token_embd_norm" => "embeddings.LayerNorm".to_owned(),
            other => other.to_owned(),
        },
        Some((layer, part)) => {
            let part = match part {
                "attn_q" => "attention.self.query",
                "attn_k" => "attention.self.key",
                "attn_v" => "attention.self.value",
                "attn_output" => "attention.output.dense",
                "attn_output_norm" => "attention.output.LayerNorm",
                "ffn_up" => "intermediate.dense",
                "ffn_down" => "output.dense",
                "layer_output_norm" => "output.LayerNorm",
                other => other,
            };
            format!("encoder.layer.{layer}.{part}")
        }
    };
    let suffix = match suffix {
        "weight" if form.greek && theirs.ends_with("LayerNorm") => "gamma",
        "bias" if form.greek && theirs.ends_with("LayerNorm") => "beta",
        suffix => suffix,
    };
    format!("{}{theirs}.{suffix}", form.prefix)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn gelu(x: f64) -> f64 {
    let z = x / std::f64::consts::SQRT_2;
    0.5 * x * (1.0 + erf(z))
}

/// By a series without cancellation: `2/√π e^(-x²) Σ 2ⁿ x^(2n+1) / (1 · 3 · … · (2n+1))`.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}
