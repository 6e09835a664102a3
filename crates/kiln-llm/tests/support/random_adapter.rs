//! Adapters of random matrices for the random models, as files of both kinds, and the models that they are merged into.

use kiln_gguf::{TensorKind, Writer};
use serde_json::{Value, json};

use super::random_folder::{encode, rounded, safetensors};
use super::random_model::{FFN, HEADS, KV_HEADS, Kind, RandomModel};

/// Names of projections in GGUF files, and in files of transformers.
const NAMES: [(&str, &str); 7] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
const FUSED: [(&str, &str); 4] = [
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// `x (Bᵀ Aᵀ)` for one projection of a layer.
pub(crate) struct Pair {
    pub(crate) layer: usize,
    pub(crate) name: &'static str,
    theirs: &'static str,
    pub(crate) rank: usize,
    /// `[rank, inputs]`.
    pub(crate) a: Vec<f32>,
    /// `[outputs, rank]`, with the rows of queries and keys in the order of the GGUF file of the model.
    pub(crate) b: Vec<f32>,
}

pub(crate) struct RandomAdapter {
    kind: Kind,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) alpha: f32,
    dtype: &'static str,
}

impl RandomAdapter {
    /// Pairs for all projections whose names `wanted` holds, those of the file of the model.
    pub(crate) fn new(
        kind: Kind,
        seed: u32,
        rank: usize,
        dtype: &'static str,
        wanted: impl Fn(usize, &str) -> bool,
    ) -> Self {
        let mut random = super::random(seed);
        let mut pairs = Vec::new();
        let (q, kv) = (HEADS * kind.head, KV_HEADS * kind.head);
        for layer in 0..kind.layers {
            for &(name, theirs) in if kind.fused { &FUSED[..] } else { &NAMES } {
                let (outputs, inputs) = match name {
                    "attn_q" => (q, kind.width),
                    "attn_k" | "attn_v" => (kv, kind.width),
                    "attn_qkv" => (q + 2 * kv, kind.width),
                    "attn_output" => (kind.width, q),
                    "ffn_up" if kind.fused => (2 * FFN, kind.width),
                    "ffn_down" => (kind.width, FFN),
                    _ => (FFN, kind.width),
                };
                let mut matrix = |n: usize| (0..n).map(|_| rounded(random(0.4), dtype)).collect();
                let (a, b) = (matrix(rank * inputs), matrix(outputs * rank));
                if wanted(layer, name) {
                    pairs.push(Pair { layer, name, theirs, rank, a, b });
                }
            }
        }
        Self { kind, pairs, alpha: 3.0 * rank as f32, dtype }
    }

    /// Adds the adapter to the weights of a model, `scale` times.
    pub(crate) fn merge(&self, model: &mut RandomModel, scale: f64) {
        for pair in &self.pairs {
            let factor = scale * f64::from(self.alpha) / pair.rank as f64;
            let name = format!("blk.{}.{}.weight", pair.layer, pair.name);
            let (_, dims, data) = model.tensors.iter_mut().find(|(known, ..)| *known == name).unwrap();
            let inputs = dims[1];
            for (at, w) in data.iter_mut().enumerate() {
                let (row, column) = (at / inputs, at % inputs);
                let of = |i: usize| f64::from(pair.b[row * pair.rank + i]) * f64::from(pair.a[i * inputs + column]);
                *w = (f64::from(*w) + factor * (0..pair.rank).map(of).sum::<f64>()) as f32;
            }
        }
    }

    /// The bytes of a GGUF file.
    pub(crate) fn gguf(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.set("general.type", &"adapter").unwrap();
        writer.set("general.architecture", &self.kind.name).unwrap();
        writer.set("adapter.type", &"lora").unwrap();
        writer.set("adapter.lora.alpha", &self.alpha).unwrap();
        let kind = match self.dtype {
            "F16" => TensorKind::F16,
            "BF16" => TensorKind::Bf16,
            _ => TensorKind::F32,
        };
        let bytes = |data: &[f32]| data.iter().flat_map(|&x| encode(x, self.dtype)).collect::<Vec<u8>>();
        let tensors: Vec<_> = self
            .pairs
            .iter()
            .flat_map(|pair| {
                let name = |side: &str| format!("blk.{}.{}.weight.lora_{side}", pair.layer, pair.name);
                let (inputs, outputs) = (pair.a.len() / pair.rank, pair.b.len() / pair.rank);
                [
                    (name("a"), [inputs as u64, pair.rank as u64], bytes(&pair.a)),
                    (name("b"), [pair.rank as u64, outputs as u64], bytes(&pair.b)),
                ]
            })
            .collect();
        for (name, extents, bytes) in &tensors {
            writer.tensor(name, kind, extents, bytes).unwrap();
        }
        let mut file = Vec::new();
        writer.write(&mut file).unwrap();
        file
    }

    /// What PEFT writes to `adapter_config.json`.
    pub(crate) fn peft_config(&self) -> Value {
        json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "random", "bias": "none",
            "r": self.pairs[0].rank, "lora_alpha": self.alpha, "lora_dropout": 0.0, "use_rslora": false, "use_dora": false,
            "fan_in_fan_out": false, "modules_to_save": null, "rank_pattern": {}, "alpha_pattern": {},
            "target_modules": ["q_proj", "v_proj"], "layers_to_transform": null, "inference_mode": true,
        })
    }

    /// What PEFT writes to `adapter_model.safetensors`. Its rows of queries and keys are those of transformers.
    pub(crate) fn peft_weights(&self) -> Vec<u8> {
        let bytes = |data: &[f32]| data.iter().flat_map(|&x| encode(x, self.dtype)).collect::<Vec<u8>>();
        let tensors: Vec<_> = self
            .pairs
            .iter()
            .flat_map(|pair| {
                let name = |side: &str| {
                    format!("base_model.model.model.layers.{}.{}.lora_{side}.weight", pair.layer, pair.theirs)
                };
                let (inputs, outputs) = (pair.a.len() / pair.rank, pair.b.len() / pair.rank);
                let b = match pair.name {
                    "attn_q" | "attn_k" if self.kind.interleaved => halves(&pair.b, pair.rank, self.kind.head),
                    _ => pair.b.clone(),
                };
                [
                    (name("A"), self.dtype, vec![pair.rank, inputs], bytes(&pair.a)),
                    (name("B"), self.dtype, vec![outputs, pair.rank], bytes(&b)),
                ]
            })
            .collect();
        safetensors(&tensors)
    }
}

/// Rows of heads whose neighbours are rotated, as heads whose halves are.
fn halves(b: &[f32], rank: usize, head: usize) -> Vec<f32> {
    let mut out = vec![0.0; b.len()];
    for (heads, out) in b.chunks_exact(head * rank).zip(out.chunks_exact_mut(head * rank)) {
        for pair in 0..head / 2 {
            for side in 0..2 {
                let (from, to) = (2 * pair + side, side * head / 2 + pair);
                out[to * rank..][..rank].copy_from_slice(&heads[from * rank..][..rank]);
            }
        }
    }
    out
}
