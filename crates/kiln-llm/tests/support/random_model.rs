//! Small models of random weights, as files and as numbers, and what exact arithmetic computes with them.

use std::collections::HashMap;
use std::path::PathBuf;

use kiln_gguf::{TensorKind, ToValue, Writer};

/// The extents of the models, chosen so that no two are equal where that could hide an exchange.
pub(crate) const VOCABULARY: usize = 12;
const WIDTH: usize = 24;
const FFN: usize = 40;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const EPS: f32 = 1e-5;

/// What tells the architectures apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    head: usize,
    interleaved: bool,
    biases: bool,
    head_norms: bool,
    tied: bool,
    theta: f32,
    rope_factors: bool,
}

pub(crate) const KINDS: [Kind; 4] = [
    Kind {
        name: "llama",
        head: 6,
        interleaved: true,
        biases: false,
        head_norms: false,
        tied: false,
        theta: 10_000.0,
        rope_factors: false,
    },
    // As Llama 3.2: factors of angles, and the embedding is the head.
    Kind {
        name: "llama",
        head: 6,
        interleaved: true,
        biases: false,
        head_norms: false,
        tied: true,
        theta: 500_000.0,
        rope_factors: true,
    },
    Kind {
        name: "qwen2",
        head: 6,
        interleaved: false,
        biases: true,
        head_norms: false,
        tied: false,
        theta: 1e6,
        rope_factors: false,
    },
    // Heads whose size is not the width divided by their number.
    Kind {
        name: "qwen3",
        head: 8,
        interleaved: false,
        biases: false,
        head_norms: true,
        tied: true,
        theta: 1e6,
        rope_factors: false,
    },
];

/// A model: tensors by name, as `[rows, columns]` or `[n]`.
pub(crate) struct RandomModel {
    pub(crate) kind: Kind,
    pub(crate) tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    /// Keys that tests add or replace.
    pub(crate) keys: Vec<(String, Box<dyn ToValue>)>,
}

impl RandomModel {
    pub(crate) fn new(kind: Kind) -> Self {
        let mut state = 0x1234_5678_u32;
        let mut random = |size: f32| {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state as f32 / u32::MAX as f32 - 0.5) * 2.0 * size
        };
        let mut tensors = Vec::new();
        let mut add = |name: String, dims: &[usize], size: f32, around: f32| {
            let data = (0..dims.iter().product()).map(|_| around + random(size)).collect();
            tensors.push((name, dims.to_vec(), data));
        };
        add("token_embd.weight".into(), &[VOCABULARY, WIDTH], 1.0, 0.0);
        for i in 0..LAYERS {
            let name = |part: &str| format!("blk.{i}.{part}");
            let (q, kv) = (HEADS * kind.head, KV_HEADS * kind.head);
            add(name("attn_norm.weight"), &[WIDTH], 0.5, 1.0);
            for (part, rows, columns) in [
                ("attn_q", q, WIDTH),
                ("attn_k", kv, WIDTH),
                ("attn_v", kv, WIDTH),
                ("attn_output", WIDTH, q),
                ("ffn_gate", FFN, WIDTH),
                ("ffn_up", FFN, WIDTH),
                ("ffn_down", WIDTH, FFN),
            ] {
                add(name(&format!("{part}.weight")), &[rows, columns], 0.4, 0.0);
                if kind.biases && matches!(part, "attn_q" | "attn_k" | "attn_v") {
                    add(name(&format!("{part}.bias")), &[rows], 0.5, 0.0);
                }
            }
            if kind.head_norms {
                add(name("attn_q_norm.weight"), &[kind.head], 0.5, 1.0);
                add(name("attn_k_norm.weight"), &[kind.head], 0.5, 1.0);
            }
            add(name("ffn_norm.weight"), &[WIDTH], 0.5, 1.0);
        }
        add("output_norm.weight".into(), &[WIDTH], 0.5, 1.0);
        if !kind.tied {
            add("output.weight".into(), &[VOCABULARY, WIDTH], 0.4, 0.0);
        }
        if kind.rope_factors {
            add("rope_freqs.weight".into(), &[kind.head / 2], 0.9, 2.0);
        }
        Self { kind, tensors, keys: Vec::new() }
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
            (of("block_count"), Box::new(LAYERS as u32)),
            (of("context_length"), Box::new(1000u32)),
            (of("embedding_length"), Box::new(WIDTH as u32)),
            (of("feed_forward_length"), Box::new(FFN as u32)),
            (of("attention.head_count"), Box::new(HEADS as u32)),
            (of("attention.head_count_kv"), Box::new(KV_HEADS as u32)),
            (of("attention.key_length"), Box::new(self.kind.head as u32)),
            (of("attention.value_length"), Box::new(self.kind.head as u32)),
            (of("attention.layer_norm_rms_epsilon"), Box::new(EPS)),
            (of("rope.freq_base"), Box::new(self.kind.theta)),
        ];
        keys.extend(super::spm().into_entries());
        let mut writer = Writer::new();
        let replaced = |key: &str| self.keys.iter().any(|(known, _)| known == key);
        for (key, value) in keys.iter().filter(|(key, _)| !replaced(key)).chain(&self.keys) {
            writer.set(key, &**value).unwrap();
        }
        let bytes: Vec<Vec<u8>> =
            self.tensors.iter().map(|(_, _, data)| data.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
        for ((name, dims, _), bytes) in self.tensors.iter().zip(&bytes) {
            let extents: Vec<u64> = dims.iter().rev().map(|&n| n as u64).collect();
            writer.tensor(name, TensorKind::F32, &extents, bytes).unwrap();
        }
        let path = std::env::temp_dir().join(format!("kiln-llm-{}-{name}.gguf", std::process::id()));
        writer.save(&path).unwrap();
        path
    }

    /// The logits after each of these tokens, by exact arithmetic.
    pub(crate) fn reference(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
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
        let mut x: Vec<Vec<f64>> = tokens
            .iter()
            .map(|&token| of("token_embd.weight").unwrap()[token as usize * WIDTH..][..WIDTH].to_vec())
            .collect();
        for layer in 0..LAYERS {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let h: Vec<Vec<f64>> = x.iter().map(|x| norm(x, of(&name("attn_norm.weight")).unwrap())).collect();
            let heads = |part: &str, rotated: bool| -> Vec<Vec<Vec<f64>>> {
                let by = of(&name(&format!("{part}_norm.weight")));
                let each = |(position, h): (usize, &Vec<f64>)| {
                    let all = times(&name(part), h);
                    let split = all.chunks_exact(self.kind.head).map(|head| {
                        let head = by.map_or_else(|| head.to_vec(), |by| norm(head, by));
                        if rotated { self.rotate(&head, position, of("rope_freqs.weight")) } else { head }
                    });
                    split.collect()
                };
                h.iter().enumerate().map(each).collect()
            };
            let (q, k, v) = (heads("attn_q", true), heads("attn_k", true), heads("attn_v", false));
            for (position, row) in x.iter_mut().enumerate() {
                let mut all = Vec::new();
                for head in 0..HEADS {
                    let shared = head / (HEADS / KV_HEADS);
                    let scale = (self.kind.head as f64).sqrt();
                    let score = |j: usize| dot(&q[position][head], &k[j][shared]) / scale;
                    let scores: Vec<f64> = (0..=position).map(score).collect();
                    let greatest = scores.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| (s - greatest).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    for c in 0..self.kind.head {
                        all.push((0..=position).map(|j| weights[j] / total * v[j][shared][c]).sum());
                    }
                }
                let out = times(&name("attn_output"), &all);
                row.iter_mut().zip(out).for_each(|(x, out)| *x += out);
                let h = norm(row, of(&name("ffn_norm.weight")).unwrap());
                let (gate, up) = (times(&name("ffn_gate"), &h), times(&name("ffn_up"), &h));
                let product: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let down = times(&name("ffn_down"), &product);
                row.iter_mut().zip(down).for_each(|(x, down)| *x += down);
            }
        }
        let head = if self.kind.tied { "token_embd" } else { "output" };
        x.iter().map(|x| times(head, &norm(x, of("output_norm.weight").unwrap()))).collect()
    }

    fn rotate(&self, x: &[f64], position: usize, factors: Option<&[f64]>) -> Vec<f64> {
        let (d, mut y) = (x.len(), x.to_vec());
        for i in 0..d / 2 {
            let angle = position as f64 * f64::from(self.kind.theta).powf(-2.0 * i as f64 / d as f64)
                / factors.map_or(1.0, |factors| factors[i]);
            let (a, b) = if self.kind.interleaved { (2 * i, 2 * i + 1) } else { (i, i + d / 2) };
            y[a] = x[a] * angle.cos() - x[b] * angle.sin();
            y[b] = x[a] * angle.sin() + x[b] * angle.cos();
        }
        y
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = dot(x, x) / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| x / (mean + f64::from(EPS)).sqrt() * w).collect()
}
