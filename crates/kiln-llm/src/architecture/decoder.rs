//! The decoder that most architectures are: blocks of attention and of a gated feed-forward network, each with a root-mean-square
//! norm before it, after it or both, and added to what it reads.

use kiln::graph::TensorId;
use kiln::op::{Attention, AttentionOperands, Matmul, QuantMatmul, Rope, WriteRows};
use kiln::{Batch, DType, Data, Engine, Record, State, Tensor};

use super::adapters::ActiveAdapters;
use super::weights::{Layer, LowRank, Projection, Weights};
use super::{Gate, HeadNorms};
use crate::config::{Config, LayerKind};
use crate::{Error, Result};

/// Tokens at once from which on queries are rounded to the type of a cache of 16 bits.
const MANY: usize = 64;

/// What beside the weights a graph is recorded of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recorded<'a> {
    /// The adapters of a session.
    pub(crate) adapters: Option<&'a ActiveAdapters>,
    /// The one layer that is computed, of rows that are given, instead of all of them, of tokens.
    pub(crate) layer: Option<usize>,
}

/// The graph of some tokens up to what the last block gives, recorded once: what differs from one execution to the next is data.
/// Rows that are left over are computed and not kept.
#[derive(Debug)]
pub(crate) struct Forward<'e> {
    batch: Batch<'e>,
    rows: usize,
    tokens: TensorId,
    positions: TensorId,
    /// The rows of the caches that keys and values are written to.
    written: TensorId,
    /// How many rows of the caches there are.
    length: TensorId,
    /// What adapters are multiplied by.
    scales: Vec<TensorId>,
    /// What a graph of one layer reads, `[rows, width]`.
    given: Option<TensorId>,
    /// What the last block gives, `[rows, width]`.
    out: TensorId,
}

impl<'e> Forward<'e> {
    /// Records the graph of this many tokens of a context of `context`, which the caches have room for.
    pub(crate) fn record(
        engine: &'e Engine,
        config: &Config,
        weights: &Weights,
        of: Recorded<'_>,
        caches: &[[State; 2]],
        context: usize,
        rows: usize,
    ) -> Result<Self> {
        let mut batch = engine.batch();
        let adapted = of.adapters.map(|adapters| adapters.record(&mut batch, &weights.layers)).transpose()?;
        let (layers, scales) = match &adapted {
            Some((layers, scales)) => (layers, scales.clone()),
            None => (&weights.layers, Vec::new()),
        };
        let [tokens, positions, written] = [0, 0, WriteRows::SKIPPED].map(|first| vec![first; rows]);
        let [tokens, positions, written] = [
            batch.upload_indices(&tokens, &[rows])?,
            batch.upload_indices(&positions, &[rows])?,
            batch.upload_indices(&written, &[rows])?,
        ];
        let length = batch.upload_indices(&[0], &[1])?;
        let rotations = weights.rotations.iter();
        let rotations = rotations.map(|rotary| (rotary.op, rotary.factors(context).map(|by| batch.import(by))));
        let inputs = Inputs { rotations: rotations.collect(), config, context, rows, positions, written, length };
        let given = match of.layer {
            Some(_) => Some(batch.upload(&vec![0.0; rows * config.width], &[rows, config.width])?),
            None => None,
        };
        let mut x = match given {
            Some(given) => given,
            None => {
                let embedding = batch.import(&weights.embedding);
                let x = batch.gather(embedding, tokens)?;
                scaled(&mut batch, x, config.scales.embedding)?
            }
        };
        let all = layers.iter().zip(&config.layers).zip(caches).enumerate();
        for (_, ((layer, &kind), caches)) in all.filter(|(i, _)| of.layer.is_none_or(|layer| layer == *i)) {
            x = inputs.attention(&mut batch, layer, kind, caches, x)?;
            x = inputs.feed_forward(&mut batch, layer, x)?;
        }
        Ok(Self { batch, rows, tokens, positions, written, length, scales, given, out: x })
    }

    /// What the one layer that it was recorded of gives for rows that follow `before` others.
    pub(crate) fn through_layer(&mut self, hidden: &[f32], width: usize, before: usize) -> Result<Vec<f32>> {
        let count = hidden.len() / width;
        self.set(&vec![0; count], before)?;
        if let Some(given) = self.given {
            let mut rows = hidden.to_vec();
            rows.resize(self.rows * width, 0.0);
            self.batch.set(given, &rows)?;
        }
        self.batch.execute(&[self.out])?;
        let mut rows = self.batch.read(self.out)?;
        rows.truncate(count * width);
        Ok(rows)
    }

    /// Uses the adapters that it was recorded with as they are chosen now.
    pub(crate) fn set_adapters(&mut self, adapters: &ActiveAdapters) -> Result<()> {
        for (&id, scales) in self.scales.iter().zip(adapters.patterns()) {
            self.batch.set(id, &scales)?;
        }
        Ok(())
    }

    /// Computes tokens that follow `before` others.
    fn set(&mut self, tokens: &[u32], before: usize) -> Result<()> {
        let filled = |of: &mut dyn Iterator<Item = u32>, rest: u32| -> Vec<u32> {
            of.chain(std::iter::repeat(rest)).take(self.rows).collect()
        };
        let places = before as u32..(before + tokens.len()) as u32;
        let ids = filled(&mut tokens.iter().copied(), 0);
        let positions = filled(&mut places.clone(), places.start);
        let written = filled(&mut places.clone(), WriteRows::SKIPPED);
        self.batch.set_data(self.tokens, Data::U32(&ids))?;
        self.batch.set_data(self.positions, Data::U32(&positions))?;
        self.batch.set_data(self.written, Data::U32(&written))?;
        self.batch.set_data(self.length, Data::U32(&[places.end]))?;
        Ok(())
    }
}

/// The logits of rows that the last block gives.
fn logits(batch: &mut Batch<'_>, x: TensorId, config: &Config, weights: &Weights) -> Result<TensorId> {
    let x = norm(batch, x, Some(&weights.norm), config.eps)?;
    let logits = product(batch, x, &weights.head)?;
    let logits = scaled(batch, logits, config.scales.logits)?;
    let Some(cap) = config.caps.logits else { return Ok(logits) };
    let logits = batch.scale(logits, 1.0 / cap)?;
    let logits = batch.tanh(logits)?;
    Ok(batch.scale(logits, cap)?)
}

/// The graph of some tokens, and of what follows the last of them.
#[derive(Debug)]
pub(crate) struct Step<'e> {
    forward: Forward<'e>,
    /// The row whose logits are computed.
    last: TensorId,
    logits: TensorId,
    /// The likeliest token and its logit, which is NaN where any logit is.
    greatest: TensorId,
    most: TensorId,
}

impl<'e> Step<'e> {
    /// Uses the adapters that it was recorded with as they are chosen now.
    pub(crate) fn set_adapters(&mut self, adapters: &ActiveAdapters) -> Result<()> {
        self.forward.set_adapters(adapters)
    }

    /// Records what follows the last token.
    pub(crate) fn record(mut forward: Forward<'e>, config: &Config, weights: &Weights) -> Result<Self> {
        let batch = &mut forward.batch;
        let last = batch.upload_indices(&[0], &[1])?;
        let x = batch.gather(forward.out, last)?;
        let logits = logits(batch, x, config, weights)?;
        let (greatest, most) = (batch.argmax_axis(logits, 1)?, batch.max_axis(logits, 1)?);
        Ok(Self { forward, last, logits, greatest, most })
    }

    /// How many tokens it takes at most.
    pub(crate) fn rows(&self) -> usize {
        self.forward.rows
    }

    /// Computes tokens that follow `before` others.
    fn set(&mut self, tokens: &[u32], before: usize) -> Result<()> {
        self.forward.set(tokens, before)?;
        Ok(self.forward.batch.set_data(self.last, Data::U32(&[tokens.len() as u32 - 1]))?)
    }

    /// Adds tokens that follow `before` others to the caches.
    pub(crate) fn extend(&mut self, tokens: &[u32], before: usize) -> Result<()> {
        self.set(tokens, before)?;
        Ok(self.forward.batch.execute(&[])?)
    }

    /// The same, and the logits of what follows the last of them.
    pub(crate) fn logits(&mut self, tokens: &[u32], before: usize) -> Result<Vec<f32>> {
        self.set(tokens, before)?;
        self.forward.batch.execute(&[self.logits])?;
        Ok(self.forward.batch.read(self.logits)?)
    }

    /// The same, and the likeliest token to follow.
    pub(crate) fn greatest(&mut self, tokens: &[u32], before: usize) -> Result<u32> {
        self.set(tokens, before)?;
        // On a GPU in one submission, with one wait.
        let results = self.forward.batch.run(&[self.greatest, self.most])?;
        let token = results[0].as_data().u32()[0];
        match results[1].as_data().f32()[0].is_nan() {
            true => Err(Error::NotANumber { token: token as usize }),
            false => Ok(token),
        }
    }

    /// Where a token is computed, and why.
    pub(crate) fn explain(&self) -> Result<kiln::Explanation> {
        Ok(self.forward.batch.explain(&[self.greatest, self.most])?)
    }
}

/// The graph of some tokens, and of how probable it is that others follow each of them.
#[derive(Debug)]
pub(crate) struct Scoring<'e> {
    forward: Forward<'e>,
    vocabulary: usize,
    /// For each row the token that follows, as its place among all probabilities of all rows.
    following: TensorId,
    /// ln p of these, `[rows, 1]`.
    scores: TensorId,
}

impl<'e> Scoring<'e> {
    /// Uses the adapters that it was recorded with as they are chosen now.
    pub(crate) fn set_adapters(&mut self, adapters: &ActiveAdapters) -> Result<()> {
        self.forward.set_adapters(adapters)
    }

    /// Records the probabilities of the tokens that follow each.
    pub(crate) fn record(mut forward: Forward<'e>, config: &Config, weights: &Weights) -> Result<Self> {
        let (vocabulary, rows) = (config.vocabulary, forward.rows);
        let batch = &mut forward.batch;
        let following = batch.upload_indices(&vec![0; rows], &[rows])?;
        let logits = logits(batch, forward.out, config, weights)?;
        let all = batch.log_softmax(logits)?;
        let all = batch.reshape(all, &[rows * vocabulary, 1])?;
        let scores = batch.gather(all, following)?;
        Ok(Self { forward, vocabulary, following, scores })
    }

    /// How many tokens it takes at most.
    pub(crate) fn rows(&self) -> usize {
        self.forward.rows
    }

    /// Adds tokens that follow `before` others to the caches, and returns for each ln p of the one in `following`.
    pub(crate) fn scores(&mut self, tokens: &[u32], before: usize, following: &[u32]) -> Result<Vec<f32>> {
        self.forward.set(tokens, before)?;
        let of_row = |row: usize| following.get(row).map_or(0, |&token| (row * self.vocabulary) as u32 + token);
        let places: Vec<u32> = (0..self.forward.rows).map(of_row).collect();
        self.forward.batch.set_data(self.following, Data::U32(&places))?;
        self.forward.batch.execute(&[self.scores])?;
        let mut scores = self.forward.batch.read(self.scores)?;
        scores.truncate(tokens.len());
        match scores.iter().position(|score| score.is_nan()) {
            Some(row) => Err(Error::NotANumber { token: following[row] as usize }),
            None => Ok(scores),
        }
    }
}

/// What the blocks of one graph share.
struct Inputs<'c> {
    config: &'c Config,
    /// The tokens that there is room for.
    context: usize,
    rows: usize,
    positions: TensorId,
    written: TensorId,
    length: TensorId,
    /// Rotations and their factors.
    rotations: Vec<(Rope, Option<TensorId>)>,
}

impl Inputs<'_> {
    /// `x + s P O attention(Q h, K h, V h)`, h the norm of x, P the norm of what is added and s its scale where there are such, of heads
    /// with rotated queries and keys.
    fn attention(
        &self,
        batch: &mut Batch<'_>,
        layer: &Layer,
        kind: LayerKind,
        caches: &[State; 2],
        x: TensorId,
    ) -> Result<TensorId> {
        let Config { heads, kv_heads, head, value_head, eps, scales, caps, .. } = *self.config;
        let h = norm(batch, x, layer.attention_norm.as_ref(), eps)?;
        let q = self.heads(batch, h, &layer.q, [heads, head], layer.q_norm.as_ref())?;
        let k = self.heads(batch, h, &layer.k, [kv_heads, head], layer.k_norm.as_ref())?;
        let v = self.heads(batch, h, &layer.v, [kv_heads, value_head], None)?;
        let q = self.rotated(batch, q, kind)?;
        let k = self.rotated(batch, k, kind)?;
        // Tensor cores take queries of the type of the keys. Where the cache is rounded to 16 bits, rounding many queries costs no
        // more than that did; of a few, scores cost nothing beside reading the cache.
        let narrow = matches!(caches[0].dtype(), DType::F16 | DType::Bf16) && self.rows >= MANY;
        let q = if narrow { batch.cast(q, caches[0].dtype())? } else { q };
        let [keys, values] = [0, 1].map(|i| batch.state(&caches[i]));
        let keys = batch.write_rows(keys, k, self.written)?;
        let values = batch.write_rows(values, v, self.written)?;
        let of = AttentionOperands {
            positions: Some(self.positions),
            lengths: Some(self.length),
            ..AttentionOperands::default()
        };
        let mut op = Attention::causal().scaled(scales.scores);
        // A window that never hides a key leaves attention what it is without one.
        if let Some(window) = kind.window.filter(|&window| (window as usize) < self.context) {
            op = op.windowed(window);
        }
        if let Some(cap) = caps.scores {
            op = op.capped(cap);
        }
        let out = batch.attention_with(q, keys, values, of, op)?;
        let out = batch.permute(out, &[1, 0, 2])?;
        let out = batch.reshape(out, &[self.rows, heads * value_head])?;
        let out = projected(batch, out, &layer.output)?;
        self.added(batch, x, out, layer.attention_post_norm.as_ref())
    }

    /// `x + s P D (g(G h) ∘ U h)`, h the norm of x, g the activation, P the norm of what is added and s its scale where there are such.
    fn feed_forward(&self, batch: &mut Batch<'_>, layer: &Layer, x: TensorId) -> Result<TensorId> {
        let h = norm(batch, x, layer.ffn_norm.as_ref(), self.config.eps)?;
        let gate = projected(batch, h, &layer.gate)?;
        let up = projected(batch, h, &layer.up)?;
        let product = match self.config.architecture.gate {
            Gate::Silu => batch.swiglu(gate, up)?,
            Gate::GeluTanh => batch.geglu_tanh(gate, up)?,
        };
        let down = projected(batch, product, &layer.down)?;
        self.added(batch, x, down, layer.ffn_post_norm.as_ref())
    }

    /// What a part of a block gives, added to what it read.
    fn added(&self, batch: &mut Batch<'_>, x: TensorId, out: TensorId, by: Option<&Tensor>) -> Result<TensorId> {
        let out = norm(batch, out, by, self.config.eps)?;
        let out = scaled(batch, out, self.config.scales.residual)?;
        Ok(batch.add(x, out)?)
    }

    /// A projection of rows, `[heads, rows, size]`, normalised where the model does that.
    fn heads(
        &self,
        batch: &mut Batch<'_>,
        h: TensorId,
        by: &Projection,
        [heads, size]: [usize; 2],
        normed: Option<&Tensor>,
    ) -> Result<TensorId> {
        let Config { architecture, eps, .. } = *self.config;
        let (whole, each) = match architecture.head_norms {
            Some(HeadNorms::Row) => (normed, None),
            _ => (None, normed),
        };
        let x = projected(batch, h, by)?;
        let x = norm(batch, x, whole, eps)?;
        let x = batch.reshape(x, &[self.rows, heads, size])?;
        let x = batch.permute(x, &[1, 0, 2])?;
        norm(batch, x, each, eps)
    }

    /// Heads of queries or keys at their positions.
    fn rotated(&self, batch: &mut Batch<'_>, x: TensorId, kind: LayerKind) -> Result<TensorId> {
        let Some((op, factors)) = kind.rotation.and_then(|at| self.rotations.get(at)) else { return Ok(x) };
        let operands: Vec<TensorId> = [x, self.positions].into_iter().chain(*factors).collect();
        Ok(batch.record(*op, &operands)?)
    }
}

/// The root-mean-square norm of rows where there are weights for it.
fn norm(batch: &mut Batch<'_>, x: TensorId, weight: Option<&Tensor>, eps: f32) -> Result<TensorId> {
    let Some(weight) = weight else { return Ok(x) };
    let weight = batch.import(weight);
    Ok(batch.rms_norm(x, weight, eps)?)
}

fn scaled(batch: &mut Batch<'_>, x: TensorId, by: f32) -> Result<TensorId> {
    Ok(if by == 1.0 { x } else { batch.scale(x, by)? })
}

fn product(batch: &mut Batch<'_>, x: TensorId, weight: &Tensor) -> Result<TensorId> {
    let w = batch.import(weight);
    Ok(match weight.dtype() {
        DType::Blocks(format) => batch.record(QuantMatmul { format }, &[x, w])?,
        _ => batch.matmul_with(x, w, Matmul { transpose_b: true, ..Matmul::default() })?,
    })
}

pub(super) fn projected(batch: &mut Batch<'_>, x: TensorId, by: &Projection) -> Result<TensorId> {
    let mut y = product(batch, x, &by.weight)?;
    if let Some(LowRank { a, b, scales }) = &by.low_rank {
        let h = product(batch, x, a)?;
        let h = batch.mul(h, *scales)?;
        let h = product(batch, h, b)?;
        y = batch.add(y, h)?;
    }
    match &by.bias {
        Some(bias) => {
            let bias = batch.import(bias);
            Ok(batch.add(y, bias)?)
        }
        None => Ok(y),
    }
}
