//! The graph of an encoder for some texts.

use kiln::graph::TensorId;
use kiln::op::{Attention, AttentionOperands};
use kiln::waiting::{WAITING, wait};
use kiln::{Batch, Data, Engine, Record};

use super::Config;
use super::weights::{Layer, LayerNorm, Weights};
use crate::architecture::products::projected;
use crate::architecture::projection::Projection;
use crate::{Pooling, Result};

/// The graph that computes the embeddings of some texts, recorded once: tokens, lengths and pooling are data.
#[derive(Debug)]
pub(crate) struct Pass<'e> {
    batch: Batch<'e>,
    texts: usize,
    /// Maximum tokens of a text.
    length: usize,
    tokens: TensorId,
    /// Number of tokens of each text.
    lengths: TensorId,
    /// The weight of each token of a text in its embedding, `[texts, 1, length]`.
    shares: TensorId,
    /// The embeddings, `[texts, 1, width]`.
    out: TensorId,
}

impl<'e> Pass<'e> {
    /// Records the graph of this many texts of at most `length` tokens each; `length` must not exceed the positions.
    pub(crate) fn record(
        engine: &'e Engine,
        config: &Config,
        weights: &Weights,
        texts: usize,
        length: usize,
    ) -> Result<Self> {
        let mut batch = engine.batch();
        let rows = texts * length;
        let tokens = batch.upload_indices(&vec![0; rows], &[rows])?;
        let lengths = batch.upload_indices(&vec![0; texts], &[texts])?;
        let shares = batch.upload(&vec![0.0; rows], &[texts, 1, length])?;
        let every: Vec<u32> = (0..texts).flat_map(|_| 0..length as u32).collect();
        let positions = batch.upload_indices(&every, &[rows])?;
        let first = batch.upload_indices(&[0], &[1])?;

        let [table, by_position, by_type] =
            [&weights.tokens, &weights.positions, &weights.types].map(|t| batch.import(t));
        let x = batch.gather(table, tokens)?;
        let by_position = batch.gather(by_position, positions)?;
        let by_type = batch.gather(by_type, first)?;
        let by_type = batch.reshape(by_type, &[config.width])?;
        let x = batch.add(x, by_position)?;
        let x = batch.add(x, by_type)?;
        let blocks = Blocks { config, texts, length, lengths };
        let mut x = blocks.norm(&mut batch, x, &weights.norm)?;
        for layer in &weights.layers {
            x = blocks.attention(&mut batch, layer, x)?;
            x = blocks.feed_forward(&mut batch, layer, x)?;
        }
        let x = batch.reshape(x, &[texts, length, config.width])?;
        let out = batch.matmul(shares, x)?;
        Ok(Self { batch, texts, length, tokens, lengths, shares, out })
    }

    /// The number of texts, and the maximum number of tokens of each.
    pub(crate) fn extents(&self) -> [usize; 2] {
        [self.texts, self.length]
    }

    /// The embeddings of the texts, concatenated. Each text has at least one token.
    pub(crate) fn embeddings(&mut self, texts: &[&[u32]], pooling: Pooling) -> Result<Vec<f32>> {
        let mut tokens = vec![0; self.texts * self.length];
        let mut shares = vec![0.0; self.texts * self.length];
        for (i, text) in texts.iter().enumerate() {
            let row = i * self.length;
            tokens[row..row + text.len()].copy_from_slice(text);
            let shares = &mut shares[row..row + text.len()];
            match pooling {
                Pooling::Mean => shares.fill(1.0 / text.len() as f32),
                Pooling::Cls => shares[0] = 1.0,
                Pooling::Last => shares[text.len() - 1] = 1.0,
            }
        }
        let lengths: Vec<u32> = texts.iter().map(|text| text.len() as u32).collect();
        self.batch.set_data(self.tokens, Data::U32(&tokens))?;
        self.batch.set_data(self.lengths, Data::U32(&lengths))?;
        self.batch.set(self.shares, &shares)?;
        let results = wait(self.batch.run_waiting(&[self.out], WAITING))?;
        Ok(results[0].as_data().f32().to_vec())
    }
}

/// Inputs that the blocks of one graph share.
struct Blocks<'c> {
    config: &'c Config,
    texts: usize,
    length: usize,
    lengths: TensorId,
}

impl Blocks<'_> {
    /// `norm(x + O attention(Q x, K x, V x))` for x `[texts length, width]`. A token sees the tokens of its own text,
    /// up to that text's length.
    fn attention(&self, batch: &mut Batch<'_>, layer: &Layer, x: TensorId) -> Result<TensorId> {
        let [q, k, v] =
            [self.heads(batch, x, &layer.q)?, self.heads(batch, x, &layer.k)?, self.heads(batch, x, &layer.v)?];
        let of = AttentionOperands { lengths: Some(self.lengths), ..AttentionOperands::default() };
        let out = batch.attention_with(q, k, v, of, Attention::full())?;
        let out = batch.permute(out, &[0, 2, 1, 3])?;
        let out = batch.reshape(out, &[self.texts * self.length, self.config.width])?;
        let out = projected(batch, out, &layer.output)?;
        let sum = batch.add(x, out)?;
        self.norm(batch, sum, &layer.attention_norm)
    }

    /// `norm(x + D gelu(U x))`.
    fn feed_forward(&self, batch: &mut Batch<'_>, layer: &Layer, x: TensorId) -> Result<TensorId> {
        let up = projected(batch, x, &layer.up)?;
        let up = batch.gelu(up)?;
        let down = projected(batch, up, &layer.down)?;
        let sum = batch.add(x, down)?;
        self.norm(batch, sum, &layer.ffn_norm)
    }

    /// A projection of rows, `[texts, heads, length, head]`.
    fn heads(&self, batch: &mut Batch<'_>, x: TensorId, by: &Projection) -> Result<TensorId> {
        let Config { heads, width, .. } = *self.config;
        let x = projected(batch, x, by)?;
        let x = batch.reshape(x, &[self.texts, self.length, heads, width / heads])?;
        Ok(batch.permute(x, &[0, 2, 1, 3])?)
    }

    fn norm(&self, batch: &mut Batch<'_>, x: TensorId, by: &LayerNorm) -> Result<TensorId> {
        let [weight, bias] = [&by.weight, &by.bias].map(|t| batch.import(t));
        Ok(batch.layer_norm(x, weight, bias, self.config.eps)?)
    }
}
