//! The decoder that most architectures are: blocks of attention and of a gated feed-forward network, each with a root-mean-square
//! norm before it, after it or both, and added to what it reads.

use kiln::graph::TensorId;
use kiln::op::{Attention, AttentionOperands, Matmul, QuantMatmul, Rope, WriteRows};
use kiln::{Batch, DType, Data, Engine, Record, State, Tensor};

use super::HeadNorms;
use super::weights::{Layer, Projection, Weights};
use crate::config::{Config, LayerKind};
use crate::{Error, Result};

/// Tokens at once from which on queries are rounded to the type of a cache of 16 bits.
const MANY: usize = 64;

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
    /// What the last block gives, `[rows, width]`.
    out: TensorId,
}

impl<'e> Forward<'e> {
    /// Records the graph of this many tokens of a context of `context`, which the caches have room for.
    pub(crate) fn record(
        engine: &'e Engine,
        config: &Config,
        weights: &Weights,
        caches: &[[State; 2]],
        context: usize,
        rows: usize,
    ) -> Result<Self> {
        let mut batch = engine.batch();
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
        let embedding = batch.import(&weights.embedding);
        let x = batch.gather(embedding, tokens)?;
        let mut x = scaled(&mut batch, x, config.scales.embedding)?;
        for ((layer, &kind), caches) in weights.layers.iter().zip(&config.layers).zip(caches) {
            x = inputs.attention(&mut batch, layer, kind, caches, x)?;
            x = inputs.feed_forward(&mut batch, layer, x)?;
        }
        Ok(Self { batch, rows, tokens, positions, written, length, out: x })
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

    /// `x + s P F(h)`, h the norm of x, F the feed-forward part, P the norm of what is added and s its scale where there are such.
    fn feed_forward(&self, batch: &mut Batch<'_>, layer: &Layer, x: TensorId) -> Result<TensorId> {
        let h = norm(batch, x, layer.ffn_norm.as_ref(), self.config.eps)?;
        let out = layer.ffn.record(batch, self.config, h)?;
        self.added(batch, x, out, layer.ffn_post_norm.as_ref())
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

pub(super) fn scaled(batch: &mut Batch<'_>, x: TensorId, by: f32) -> Result<TensorId> {
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
    let y = product(batch, x, &by.weight)?;
    match &by.bias {
        Some(bias) => {
            let bias = batch.import(bias);
            Ok(batch.add(y, bias)?)
        }
        None => Ok(y),
    }
}
