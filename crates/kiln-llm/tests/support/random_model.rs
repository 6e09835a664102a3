//! Small models of random weights, as files and as numbers, and what exact arithmetic computes with them.

use std::collections::HashMap;
use std::path::PathBuf;

use kiln::QuantFormat;
use kiln_gguf::{TensorKind, ToValue, Writer};

/// The extents of the models, chosen so that no two are equal where that could hide an exchange.
pub(crate) const VOCABULARY: usize = 12;
pub(crate) const WIDTH: usize = 24;
pub(crate) const FFN: usize = 40;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const EPS: f32 = 1e-5;
/// Tokens that the models are made for.
pub(crate) const CONTEXT: u32 = 1000;

/// Where norms of queries and keys are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum QkNorms {
    None,
    Head,
    Row,
}

/// The tensors that divide angles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Divisors {
    None,
    Freqs,
    /// Short and long ones, and whether the long ones are used.
    ByContext(bool),
}

/// How angles are scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scaling {
    None,
    Linear(f64),
    /// Factor, turns of the fast and of the slow end, original context.
    Yarn(f64, f64, f64, f64),
    /// The same with ends between pairs.
    ExactYarn(f64, f64, f64, f64),
}

/// The activation of the gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Gate {
    Silu,
    GeluTanh,
    /// That of gpt-oss.
    Clamped,
}

/// Experts of each layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Experts {
    pub(crate) count: usize,
    pub(crate) used: usize,
    pub(crate) ffn: usize,
    /// Whether the weights of the chosen ones are divided by their sum.
    pub(crate) normalised: bool,
    pub(crate) scale: f64,
    /// Whether a file has a tensor for each expert, as those of 2023 do.
    pub(crate) apart: bool,
    /// Whether the router and every expert have biases.
    pub(crate) biases: bool,
}

/// A value of a key of the architecture.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Key {
    Count(u32),
    Number(f32),
    Text(&'static str),
    Truth(bool),
    Truths(&'static [bool]),
}

/// What tells the models apart: what they compute, and below which keys a file says so. The reference knows nothing of the keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) head: usize,
    pub(crate) rotated: usize,
    pub(crate) interleaved: bool,
    pub(crate) biases: bool,
    /// Whether each query head has a logit without a value.
    pub(crate) sinks: bool,
    pub(crate) fused: bool,
    pub(crate) norms_before: bool,
    pub(crate) norms_after: bool,
    /// The name of the norm before the feed-forward network.
    pub(crate) ffn_norm: &'static str,
    pub(crate) qk_norms: QkNorms,
    pub(crate) gate: Gate,
    pub(crate) tied: bool,
    pub(crate) theta: f32,
    pub(crate) divisors: Divisors,
    pub(crate) scaling: Scaling,
    pub(crate) magnitude: f64,
    pub(crate) rotates: fn(usize) -> bool,
    pub(crate) window: Option<u32>,
    pub(crate) windowed: fn(usize) -> bool,
    /// The base of layers with a window, whose angles are not scaled.
    pub(crate) local_theta: Option<f64>,
    pub(crate) embedding_scale: f64,
    pub(crate) residual_scale: f64,
    pub(crate) logit_scale: f64,
    /// What scores are multiplied by, unless it is 1/√head.
    pub(crate) score_scale: Option<f64>,
    pub(crate) score_cap: Option<f64>,
    pub(crate) logit_cap: Option<f64>,
    pub(crate) experts: Option<Experts>,
    pub(crate) keys: &'static [(&'static str, Key)],
}

pub(crate) const LLAMA: Kind = Kind {
    name: "llama",
    layers: 2,
    width: WIDTH,
    head: 6,
    rotated: 6,
    interleaved: true,
    biases: false,
    sinks: false,
    fused: false,
    norms_before: true,
    norms_after: false,
    ffn_norm: "ffn_norm",
    qk_norms: QkNorms::None,
    gate: Gate::Silu,
    tied: false,
    theta: 10_000.0,
    divisors: Divisors::None,
    scaling: Scaling::None,
    magnitude: 1.0,
    rotates: |_| true,
    window: None,
    windowed: |_| true,
    local_theta: None,
    embedding_scale: 1.0,
    residual_scale: 1.0,
    logit_scale: 1.0,
    score_scale: None,
    score_cap: None,
    logit_cap: None,
    experts: None,
    keys: &[],
};

/// Mixtral. Its experts are as wide as networks without experts.
pub(crate) const MIXTRAL: Kind = Kind {
    experts: Some(Experts { count: 5, used: 2, ffn: FFN, normalised: true, scale: 1.0, apart: false, biases: false }),
    keys: &[("expert_count", Key::Count(5)), ("expert_used_count", Key::Count(2))],
    ..LLAMA
};

pub(crate) const QWEN3_MOE: Kind = Kind {
    name: "qwen3moe",
    tied: false,
    experts: Some(Experts { count: 7, used: 3, ffn: 20, normalised: true, scale: 1.0, apart: false, biases: false }),
    keys: &[
        ("expert_count", Key::Count(7)),
        ("expert_used_count", Key::Count(3)),
        ("expert_feed_forward_length", Key::Count(20)),
    ],
    ..QWEN3
};

/// As Llama 3.2: factors of angles, and the embedding is the head.
pub(crate) const LLAMA3: Kind = Kind { tied: true, theta: 500_000.0, divisors: Divisors::Freqs, ..LLAMA };

pub(crate) const QWEN2: Kind = Kind { name: "qwen2", interleaved: false, biases: true, theta: 1e6, ..LLAMA };

/// Heads whose size is not the width divided by their number.
pub(crate) const QWEN3: Kind = Kind {
    name: "qwen3",
    head: 8,
    rotated: 8,
    interleaved: false,
    qk_norms: QkNorms::Head,
    tied: true,
    theta: 1e6,
    ..LLAMA
};

/// A window in every other layer, from the first on.
pub(crate) const GEMMA2: Kind = Kind {
    name: "gemma2",
    layers: 4,
    head: 8,
    rotated: 8,
    interleaved: false,
    norms_after: true,
    gate: Gate::GeluTanh,
    tied: true,
    window: Some(3),
    windowed: |i| i % 2 == 0,
    embedding_scale: 4.898_979_485_566_356,
    score_cap: Some(2.0),
    logit_cap: Some(3.0),
    keys: &[("attn_logit_softcapping", Key::Number(2.0)), ("final_logit_softcapping", Key::Number(3.0))],
    ..LLAMA
};

/// As its model of 27B, which scales scores otherwise, without the keys of caps: 50 and 30.
pub(crate) const GEMMA2_LARGE: Kind = Kind {
    layers: 46,
    score_scale: Some(0.408_248_290_463_863),
    score_cap: Some(50.0),
    logit_cap: Some(30.0),
    keys: &[],
    ..GEMMA2
};

/// Five layers with a window of each six; the others are scaled by 8.
pub(crate) const GEMMA3: Kind = Kind {
    name: "gemma3",
    layers: 7,
    theta: 1e6,
    qk_norms: QkNorms::Head,
    scaling: Scaling::Linear(8.0),
    windowed: |i| i != 5,
    local_theta: Some(10_000.0),
    score_cap: None,
    logit_cap: None,
    keys: &[("rope.scaling.type", Key::Text("linear")), ("rope.scaling.factor", Key::Number(8.0))],
    ..GEMMA2
};

/// Like OLMo 3: scaled in the fourth layer, which has no window.
pub(crate) const OLMO2: Kind = Kind {
    name: "olmo2",
    layers: 5,
    head: 16,
    rotated: 16,
    interleaved: false,
    norms_before: false,
    norms_after: true,
    qk_norms: QkNorms::Row,
    scaling: Scaling::Yarn(8.0, 32.0, 1.0, 2048.0),
    magnitude: 1.207_944_154_167_983_6,
    window: Some(4),
    windowed: |i| i != 3,
    local_theta: Some(10_000.0),
    keys: &[
        ("rope.scaling.type", Key::Text("yarn")),
        ("rope.scaling.factor", Key::Number(8.0)),
        ("rope.scaling.original_context_length", Key::Count(2048)),
    ],
    ..LLAMA
};

/// Fused projections, four of six elements rotated by long factors.
pub(crate) const PHI3: Kind = Kind {
    name: "phi3",
    rotated: 4,
    interleaved: false,
    fused: true,
    divisors: Divisors::ByContext(true),
    magnitude: 1.25,
    window: Some(5),
    keys: &[
        ("rope.dimension_count", Key::Count(4)),
        ("rope.scaling.original_context_length", Key::Count(600)),
        ("rope.scaling.attn_factor", Key::Number(1.25)),
    ],
    ..LLAMA
};

/// Biases of everything, sinks, a clamped gate, and a ramp of angles that ends between pairs. Matrices of experts have whole
/// blocks of MXFP4.
pub(crate) const GPT_OSS: Kind = Kind {
    name: "gpt-oss",
    layers: 3,
    width: 32,
    head: 24,
    rotated: 24,
    interleaved: false,
    biases: true,
    sinks: true,
    ffn_norm: "post_attention_norm",
    gate: Gate::Clamped,
    theta: 150_000.0,
    scaling: Scaling::ExactYarn(32.0, 32.0, 1.0, 4096.0),
    magnitude: 1.346_573_590_279_972_7,
    window: Some(4),
    windowed: |i| i % 2 == 0,
    experts: Some(Experts { count: 6, used: 4, ffn: 64, normalised: true, scale: 1.0, apart: false, biases: true }),
    keys: &[
        ("expert_count", Key::Count(6)),
        ("expert_used_count", Key::Count(4)),
        ("expert_feed_forward_length", Key::Count(64)),
        ("rope.scaling.type", Key::Text("yarn")),
        ("rope.scaling.factor", Key::Number(32.0)),
        ("rope.scaling.original_context_length", Key::Count(4096)),
    ],
    ..LLAMA
};

pub(crate) const KINDS: [Kind; 24] = [
    LLAMA,
    LLAMA3,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    PHI3,
    // Biases of fused projections, and a context that does not exceed the original one.
    Kind {
        rotated: 6,
        biases: true,
        divisors: Divisors::ByContext(false),
        magnitude: 1.0,
        window: None,
        keys: &[("rope.scaling.type", Key::Text("longrope"))],
        ..PHI3
    },
    Kind {
        name: "granite",
        tied: true,
        embedding_scale: 12.0,
        residual_scale: 0.25,
        logit_scale: 0.125,
        score_scale: Some(0.25),
        keys: &[
            ("embedding_scale", Key::Number(12.0)),
            ("residual_scale", Key::Number(0.25)),
            ("logit_scale", Key::Number(8.0)),
            ("attention.scale", Key::Number(0.25)),
        ],
        ..LLAMA
    },
    // Positions only through the mask.
    Kind { name: "granite", rotates: |_| false, keys: &[("rope.scaling.finetuned", Key::Truth(false))], ..LLAMA },
    Kind { name: "smollm3", layers: 5, tied: true, rotates: |i| i != 3, ..LLAMA },
    OLMO2,
    // Like Mistral 7B.
    Kind { window: Some(4), ..LLAMA },
    // Scaling without a type, as in files of 2023.
    Kind { scaling: Scaling::Linear(4.0), keys: &[("rope.scale_linear", Key::Number(4.0))], ..LLAMA },
    // A factor that is not a power of two.
    Kind {
        scaling: Scaling::Linear(2.5),
        magnitude: 1.5,
        keys: &[
            ("rope.scaling.type", Key::Text("linear")),
            ("rope.scaling.factor", Key::Number(2.5)),
            ("rope.scaling.attn_factor", Key::Number(1.5)),
        ],
        ..QWEN3
    },
    Kind {
        head: 16,
        rotated: 16,
        scaling: Scaling::Yarn(4.0, 16.0, 2.0, 1000.0),
        magnitude: 0.75,
        keys: &[
            ("rope.scaling.type", Key::Text("yarn")),
            ("rope.scaling.factor", Key::Number(4.0)),
            ("rope.scaling.yarn_beta_fast", Key::Number(16.0)),
            ("rope.scaling.yarn_beta_slow", Key::Number(2.0)),
            ("rope.scaling.yarn_attn_factor", Key::Number(0.75)),
        ],
        ..LLAMA
    },
    // A magnitude that cancels out.
    Kind {
        scaling: Scaling::Yarn(4.0, 32.0, 1.0, 300.0),
        magnitude: 1.0,
        keys: &[
            ("rope.scaling.type", Key::Text("yarn")),
            ("rope.scaling.factor", Key::Number(4.0)),
            ("rope.scaling.original_context_length", Key::Count(300)),
            ("rope.scaling.yarn_log_multiplier", Key::Number(1.0)),
        ],
        ..QWEN2
    },
    GPT_OSS,
    // Ends of the ramp at whole pairs, every layer with a window, and fewer biases.
    Kind {
        layers: 2,
        biases: false,
        scaling: Scaling::Yarn(32.0, 32.0, 1.0, 4096.0),
        windowed: |_| true,
        experts: Some(Experts {
            count: 6,
            used: 4,
            ffn: 64,
            normalised: true,
            scale: 1.0,
            apart: false,
            biases: false,
        }),
        keys: &[
            ("expert_count", Key::Count(6)),
            ("expert_used_count", Key::Count(4)),
            ("expert_feed_forward_length", Key::Count(64)),
            ("attention.sliding_window_pattern", Key::Count(0)),
            ("rope.scaling.type", Key::Text("yarn")),
            ("rope.scaling.factor", Key::Number(32.0)),
            ("rope.scaling.original_context_length", Key::Count(4096)),
            ("rope.scaling.yarn_truncate", Key::Truth(true)),
        ],
        ..GPT_OSS
    },
    // Windows if the file states them.
    Kind {
        layers: 3,
        window: Some(3),
        windowed: |i| i == 1,
        keys: &[("attention.sliding_window_pattern", Key::Truths(&[false, true, false]))],
        ..QWEN3
    },
    MIXTRAL,
    QWEN3_MOE,
    // A tensor for each expert, and all experts for every token.
    Kind {
        experts: Some(Experts {
            count: 4,
            used: 4,
            ffn: FFN,
            normalised: true,
            scale: 1.0,
            apart: true,
            biases: false,
        }),
        keys: &[("expert_count", Key::Count(4)), ("expert_used_count", Key::Count(4))],
        ..MIXTRAL
    },
    // Probabilities over all experts, and a scale.
    Kind {
        experts: Some(Experts {
            count: 7,
            used: 1,
            ffn: 20,
            normalised: false,
            scale: 2.5,
            apart: false,
            biases: false,
        }),
        keys: &[
            ("expert_count", Key::Count(7)),
            ("expert_used_count", Key::Count(1)),
            ("expert_feed_forward_length", Key::Count(20)),
            ("expert_weights_norm", Key::Truth(false)),
            ("expert_weights_scale", Key::Number(2.5)),
        ],
        ..QWEN3_MOE
    },
];

/// A model: tensors by name, as `[rows, columns]` or `[n]`.
pub(crate) struct RandomModel {
    pub(crate) kind: Kind,
    pub(crate) tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    /// Keys that tests add or replace.
    pub(crate) keys: Vec<(String, Box<dyn ToValue>)>,
    /// Whether files have the matrices of experts in MXFP4.
    pub(crate) mxfp4: bool,
}

impl RandomModel {
    pub(crate) fn new(kind: Kind) -> Self {
        let mut random = super::random(0x1234_5678);
        let mut tensors = Vec::new();
        let mut add = |name: String, dims: &[usize], size: f32, around: f32| {
            let data = (0..dims.iter().product()).map(|_| around + random(size)).collect();
            tensors.push((name, dims.to_vec(), data));
        };
        add("token_embd.weight".into(), &[VOCABULARY, kind.width], 1.0, 0.0);
        for i in 0..kind.layers {
            let name = |part: &str| format!("blk.{i}.{part}");
            let (q, kv) = (HEADS * kind.head, KV_HEADS * kind.head);
            for (part, there) in [
                ("attn_norm", kind.norms_before),
                ("post_attention_norm", kind.norms_after),
                (kind.ffn_norm, kind.norms_before),
                ("post_ffw_norm", kind.norms_after),
            ] {
                if there {
                    add(name(&format!("{part}.weight")), &[kind.width], 0.5, 1.0);
                }
            }
            let apart = [
                ("attn_q", q, kind.width),
                ("attn_k", kv, kind.width),
                ("attn_v", kv, kind.width),
                ("ffn_gate", FFN, kind.width),
                ("ffn_up", FFN, kind.width),
            ];
            let fused = [("attn_qkv", q + 2 * kv, kind.width), ("ffn_up", 2 * FFN, kind.width)];
            let projections = if kind.fused { &fused[..] } else { &apart };
            let last = [("attn_output", kind.width, q), ("ffn_down", kind.width, FFN)];
            for &(part, rows, columns) in projections.iter().chain(&last) {
                if kind.experts.is_some() && part.starts_with("ffn_") {
                    continue;
                }
                add(name(&format!("{part}.weight")), &[rows, columns], 0.4, 0.0);
                let biased = match part {
                    "attn_q" | "attn_k" | "attn_v" | "attn_qkv" | "ffn_down" => kind.biases,
                    "attn_output" => kind.biases && kind.sinks,
                    _ => false,
                };
                if biased {
                    add(name(&format!("{part}.bias")), &[rows], 0.5, 0.0);
                }
            }
            if kind.sinks {
                add(name("attn_sinks.weight"), &[HEADS], 2.0, 0.0);
            }
            if let Some(experts) = kind.experts {
                // Scores far apart, so that rounding never selects another expert.
                add(name("ffn_gate_inp.weight"), &[experts.count, kind.width], 2.0, 0.0);
                if experts.biases {
                    add(name("ffn_gate_inp.bias"), &[experts.count], 0.5, 0.0);
                }
                for (part, rows, columns) in [
                    ("ffn_gate", experts.ffn, kind.width),
                    ("ffn_up", experts.ffn, kind.width),
                    ("ffn_down", kind.width, experts.ffn),
                ] {
                    for expert in 0..experts.count {
                        // Large enough that some gates and ups are clamped.
                        let size = if kind.gate == Gate::Clamped && part != "ffn_down" { 1.5 } else { 0.4 };
                        add(name(&format!("{part}.{expert}.weight")), &[rows, columns], size, 0.0);
                    }
                    for expert in (0..experts.count).filter(|_| experts.biases) {
                        add(name(&format!("{part}.{expert}.bias")), &[rows], 0.5, 0.0);
                    }
                }
            }
            if kind.qk_norms != QkNorms::None {
                let of = |heads: usize| if kind.qk_norms == QkNorms::Row { heads * kind.head } else { kind.head };
                add(name("attn_q_norm.weight"), &[of(HEADS)], 0.5, 1.0);
                add(name("attn_k_norm.weight"), &[of(KV_HEADS)], 0.5, 1.0);
            }
        }
        add("output_norm.weight".into(), &[kind.width], 0.5, 1.0);
        if !kind.tied {
            add("output.weight".into(), &[VOCABULARY, kind.width], 0.4, 0.0);
        }
        let pairs = kind.rotated / 2;
        match kind.divisors {
            Divisors::None => {}
            Divisors::Freqs => add("rope_freqs.weight".into(), &[pairs], 0.9, 2.0),
            Divisors::ByContext(_) => {
                add("rope_factors_short.weight".into(), &[pairs], 0.3, 1.5);
                add("rope_factors_long.weight".into(), &[pairs], 0.9, 3.0);
            }
        }
        Self { kind, tensors, keys: Vec::new(), mxfp4: false }
    }

    /// Sets a key of the metadata.
    pub(crate) fn with(mut self, key: &str, value: impl ToValue + 'static) -> Self {
        self.keys.retain(|(known, _)| known != key);
        self.keys.push((key.to_owned(), Box::new(value)));
        self
    }

    /// Writes it to a file of this name among the temporary ones.
    pub(crate) fn save(&self, name: &str) -> PathBuf {
        let arch = self.kind.name;
        let of = |key: &str| format!("{arch}.{key}");
        let mut keys: Vec<(String, Box<dyn ToValue>)> = vec![
            ("general.architecture".into(), Box::new(arch)),
            (of("block_count"), Box::new(self.kind.layers as u32)),
            (of("context_length"), Box::new(CONTEXT)),
            (of("embedding_length"), Box::new(self.kind.width as u32)),
            (of("feed_forward_length"), Box::new(FFN as u32)),
            (of("attention.head_count"), Box::new(HEADS as u32)),
            (of("attention.head_count_kv"), Box::new(KV_HEADS as u32)),
            (of("attention.key_length"), Box::new(self.kind.head as u32)),
            (of("attention.value_length"), Box::new(self.kind.head as u32)),
            (of("attention.layer_norm_rms_epsilon"), Box::new(EPS)),
            (of("rope.freq_base"), Box::new(self.kind.theta)),
        ];
        if let Some(window) = self.kind.window {
            keys.push((of("attention.sliding_window"), Box::new(window)));
        }
        for &(key, value) in self.kind.keys {
            let value: Box<dyn ToValue> = match value {
                Key::Count(n) => Box::new(n),
                Key::Number(x) => Box::new(x),
                Key::Text(text) => Box::new(text),
                Key::Truth(truth) => Box::new(truth),
                Key::Truths(truths) => Box::new(truths.to_vec()),
            };
            keys.push((of(key), value));
        }
        keys.extend(super::spm().into_entries());
        let mut writer = Writer::new();
        let replaced = |key: &str| self.keys.iter().any(|(known, _)| known == key);
        for (key, value) in keys.iter().filter(|(key, _)| !replaced(key)).chain(&self.keys) {
            writer.set(key, &**value).unwrap();
        }
        let tensors = self.stacked();
        let encoded = tensors.iter().map(|(name, _, data)| {
            if self.mxfp4 && name.ends_with("_exps.weight") {
                let format = QuantFormat::Mxfp4;
                let mut blocks = vec![0; data.len() / format.block_len() * format.block_bytes()];
                format.encode(data, &mut blocks).unwrap();
                return (TensorKind::Mxfp4, blocks);
            }
            (TensorKind::F32, data.iter().flat_map(|x| x.to_le_bytes()).collect())
        });
        let encoded: Vec<(TensorKind, Vec<u8>)> = encoded.collect();
        for ((name, dims, _), (kind, bytes)) in tensors.iter().zip(&encoded) {
            let extents: Vec<u64> = dims.iter().rev().map(|&n| n as u64).collect();
            writer.tensor(name, *kind, &extents, bytes).unwrap();
        }
        let path = super::temporary(&format!("{name}.gguf"));
        writer.save(&path).unwrap();
        path
    }

    /// The tensors as a file has them: the matrices of all experts are one.
    fn stacked(&self) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        let mut stacked: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
        for (name, dims, data) in &self.tensors {
            let parts: Vec<&str> = name.split('.').collect();
            let ([_, layer, part, _, suffix], Some(Experts { apart: false, .. })) = (&parts[..], self.kind.experts)
            else {
                stacked.push((name.clone(), dims.clone(), data.clone()));
                continue;
            };
            let whole = format!("blk.{layer}.{part}_exps.{suffix}");
            match stacked.last_mut().filter(|(name, ..)| *name == whole) {
                Some((_, dims, all)) => {
                    dims[0] += 1;
                    all.extend(data);
                }
                None => stacked.push((whole, [&[1], &dims[..]].concat(), data.clone())),
            }
        }
        stacked
    }

    /// The logits after each of these tokens, by exact arithmetic.
    pub(crate) fn reference(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let kind = &self.kind;
        let weights: HashMap<&str, Vec<f64>> = self
            .tensors
            .iter()
            .map(|(name, _, data)| (&**name, data.iter().map(|&x| f64::from(x)).collect()))
            .collect();
        let of = |name: &str| weights.get(name).map(Vec::as_slice);
        let times = |name: &str, x: &[f64]| -> Vec<f64> {
            let w = of(&format!("{name}.weight")).unwrap();
            let rows = w.chunks_exact(x.len());
            let bias = of(&format!("{name}.bias"));
            rows.enumerate().map(|(i, row)| dot(row, x) + bias.map_or(0.0, |bias| bias[i])).collect()
        };
        let normed = |name: &str, x: &[f64]| of(&format!("{name}.weight")).map_or(x.to_vec(), |by| norm(x, by));
        let mut x: Vec<Vec<f64>> = tokens
            .iter()
            .map(|&token| &of("token_embd.weight").unwrap()[token as usize * kind.width..][..kind.width])
            .map(|row| row.iter().map(|x| x * kind.embedding_scale).collect())
            .collect();
        for layer in 0..kind.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let window = kind.window.filter(|_| (kind.windowed)(layer));
            let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
            for (position, x) in x.iter().enumerate() {
                let h = normed(&name("attn_norm"), x);
                let mut all = if kind.fused {
                    times(&name("attn_qkv"), &h)
                } else {
                    [times(&name("attn_q"), &h), times(&name("attn_k"), &h), times(&name("attn_v"), &h)].concat()
                };
                let values = all.split_off((HEADS + KV_HEADS) * kind.head);
                let keys = all.split_off(HEADS * kind.head);
                for (into, all, part) in [(&mut q, all, "attn_q_norm"), (&mut k, keys, "attn_k_norm")] {
                    let all = if kind.qk_norms == QkNorms::Row { normed(&name(part), &all) } else { all };
                    let heads = all.chunks_exact(kind.head).map(|head| {
                        let head =
                            if kind.qk_norms == QkNorms::Head { normed(&name(part), head) } else { head.to_vec() };
                        let local = kind.local_theta.filter(|_| window.is_some());
                        if (kind.rotates)(layer) { self.rotate(&head, position, local, &of) } else { head }
                    });
                    into.push(heads.collect::<Vec<_>>());
                }
                v.push(values.chunks_exact(kind.head).map(<[f64]>::to_vec).collect::<Vec<_>>());
            }
            for (position, row) in x.iter_mut().enumerate() {
                let first = window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
                let mut all = Vec::new();
                for head in 0..HEADS {
                    let shared = head / (HEADS / KV_HEADS);
                    let scale = kind.score_scale.unwrap_or(1.0 / (kind.head as f64).sqrt());
                    let score = |j: usize| capped(scale * dot(&q[position][head], &k[j][shared]), kind.score_cap);
                    let scores: Vec<f64> = (first..=position).map(score).collect();
                    let greatest = scores.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| (s - greatest).exp()).collect();
                    let sink = of(&name("attn_sinks.weight")).map_or(0.0, |sinks| (sinks[head] - greatest).exp());
                    let total: f64 = weights.iter().sum::<f64>() + sink;
                    for c in 0..kind.head {
                        all.push((first..=position).map(|j| weights[j - first] / total * v[j][shared][c]).sum());
                    }
                }
                let out = times(&name("attn_output"), &all);
                let out = if kind.norms_after { normed(&name("post_attention_norm"), &out) } else { out };
                row.iter_mut().zip(out).for_each(|(x, out)| *x += kind.residual_scale * out);
                let h = normed(&name(kind.ffn_norm), row);
                let gated = |gate: f64, up: f64| match kind.gate {
                    Gate::Silu => silu(gate) * up,
                    Gate::GeluTanh => gelu_tanh(gate) * up,
                    Gate::Clamped => {
                        let gate = gate.min(7.0);
                        gate / (1.0 + (-1.702 * gate).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
                    }
                };
                let network = |suffix: &str| {
                    let part = |part: &str| name(&format!("{part}{suffix}"));
                    let (gate, up) = if kind.fused {
                        let mut both = times(&part("ffn_up"), &h);
                        let up = both.split_off(FFN);
                        (both, up)
                    } else {
                        (times(&part("ffn_gate"), &h), times(&part("ffn_up"), &h))
                    };
                    let product: Vec<f64> = gate.iter().zip(&up).map(|(&g, &u)| gated(g, u)).collect();
                    times(&part("ffn_down"), &product)
                };
                let out = match kind.experts {
                    None => network(""),
                    Some(experts) => {
                        let scores = times(&name("ffn_gate_inp"), &h);
                        let total: f64 = scores.iter().map(|s| s.exp()).sum();
                        let mut chosen: Vec<usize> = (0..experts.count).collect();
                        chosen.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
                        chosen.truncate(experts.used);
                        let of_chosen: f64 = chosen.iter().map(|&e| scores[e].exp() / total).sum();
                        let by = experts.scale / if experts.normalised { of_chosen } else { 1.0 };
                        let mut sum = vec![0.0; kind.width];
                        for e in chosen {
                            let weight = scores[e].exp() / total * by;
                            sum.iter_mut().zip(network(&format!(".{e}"))).for_each(|(sum, x)| *sum += weight * x);
                        }
                        sum
                    }
                };
                let down = normed(&name("post_ffw_norm"), &out);
                row.iter_mut().zip(down).for_each(|(x, down)| *x += kind.residual_scale * down);
            }
        }
        let head = if kind.tied { "token_embd" } else { "output" };
        let logits = x.iter().map(|x| times(head, &normed("output_norm", x)));
        logits.map(|row| row.into_iter().map(|x| capped(x * kind.logit_scale, kind.logit_cap)).collect()).collect()
    }

    /// A head at a position; one of a layer with a window by the base of those.
    fn rotate<'w>(
        &self,
        x: &[f64],
        position: usize,
        local: Option<f64>,
        of: &impl Fn(&str) -> Option<&'w [f64]>,
    ) -> Vec<f64> {
        let (kind, mut y) = (&self.kind, x.to_vec());
        let n = kind.rotated;
        let divisors = match kind.divisors {
            Divisors::None => None,
            Divisors::Freqs => of("rope_freqs.weight"),
            Divisors::ByContext(false) => of("rope_factors_short.weight"),
            Divisors::ByContext(true) => of("rope_factors_long.weight"),
        };
        for i in 0..n / 2 {
            let theta = local.unwrap_or(f64::from(kind.theta));
            let mut turn = theta.powf(-2.0 * i as f64 / n as f64);
            let mut magnitude = 1.0;
            if local.is_none() {
                magnitude = kind.magnitude;
                turn /= divisors.map_or(1.0, |divisors| divisors[i]);
                turn = match kind.scaling {
                    Scaling::None => turn,
                    Scaling::Linear(factor) => turn / factor,
                    Scaling::Yarn(factor, fast, slow, original) | Scaling::ExactYarn(factor, fast, slow, original) => {
                        // The index of the pair that makes this many turns in the original context.
                        let at = |turns: f64| {
                            (original / (turns * std::f64::consts::TAU)).ln() / theta.ln() * n as f64 / 2.0
                        };
                        let (low, high) = match kind.scaling {
                            Scaling::ExactYarn(..) => (at(fast).max(0.0), at(slow)),
                            _ => (at(fast).floor().max(0.0), at(slow).ceil()),
                        };
                        let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        interpolated * turn / factor + (1.0 - interpolated) * turn
                    }
                };
            }
            let angle = position as f64 * turn;
            let (a, b) = if kind.interleaved { (2 * i, 2 * i + 1) } else { (i, i + n / 2) };
            y[a] = magnitude * (x[a] * angle.cos() - x[b] * angle.sin());
            y[b] = magnitude * (x[a] * angle.sin() + x[b] * angle.cos());
        }
        y
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

fn capped(x: f64, cap: Option<f64>) -> f64 {
    cap.map_or(x, |cap| cap * (x / cap).tanh())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = dot(x, x) / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| x / (mean + f64::from(EPS)).sqrt() * w).collect()
}
