//! The decoder that most architectures are: blocks of attention and of a gated feed-forward network, each behind a root-mean-square
//! norm and added to what it reads.

use kiln::graph::TensorId;
use kiln::op::{Attention, AttentionOperands, Matmul, QuantMatmul, Rope, WriteRows};
use kiln::{Batch, DType, Data, Engine, Record, State, Tensor};

use crate::config::Config;
use crate::weights::Source;
use crate::{Error, Result};

/// The weights of a model. Matrices are `[outputs, inputs]`, as files have them.
#[derive(Debug)]
pub(crate) struct Weights {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    /// What the angles of rotations are divided by.
    rope_factors: Option<Tensor>,
}

/// A matrix, and what is added to its product.
#[derive(Debug)]
struct Projection {
    weight: Tensor,
    bias: Option<Tensor>,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Tensor,
    q: Projection,
    k: Projection,
    v: Projection,
    /// Norms of the heads of queries and of keys.
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    output: Projection,
    ffn_norm: Tensor,
    gate: Projection,
    up: Projection,
    down: Projection,
}

impl Weights {
    /// Reads the weights, whose shapes must be what the configuration says.
    ///
    /// # Errors
    /// [`Error::File`] for a missing tensor or one of a type that kiln does not compute with, [`Error::Model`] for one of another
    /// shape.
    pub(crate) fn load(source: &Source, config: &Config) -> Result<Self> {
        let Config { vocabulary, width, ffn, heads, kv_heads, head, value_head, .. } = *config;
        let layers = (0..config.layers).map(|i| {
            let name = |part: &str| format!("blk.{i}.{part}");
            let projection = |part: &str, outputs: usize, inputs: usize| {
                let weight = source.tensor(&name(&format!("{part}.weight")), &[outputs, inputs])?;
                let bias = source.find(&name(&format!("{part}.bias")), &[outputs])?;
                Ok::<_, Error>(Projection { weight, bias })
            };
            Ok(Layer {
                attention_norm: source.tensor(&name("attn_norm.weight"), &[width])?,
                q: projection("attn_q", heads * head, width)?,
                k: projection("attn_k", kv_heads * head, width)?,
                v: projection("attn_v", kv_heads * value_head, width)?,
                q_norm: source.find(&name("attn_q_norm.weight"), &[head])?,
                k_norm: source.find(&name("attn_k_norm.weight"), &[head])?,
                output: projection("attn_output", width, heads * value_head)?,
                ffn_norm: source.tensor(&name("ffn_norm.weight"), &[width])?,
                gate: projection("ffn_gate", ffn, width)?,
                up: projection("ffn_up", ffn, width)?,
                down: projection("ffn_down", width, ffn)?,
            })
        });
        let embedding = source.tensor("token_embd.weight", &[vocabulary, width])?;
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            norm: source.tensor("output_norm.weight", &[width])?,
            // Small models multiply with the embedding again.
            head: source.find("output.weight", &[vocabulary, width])?.unwrap_or_else(|| embedding.clone()),
            embedding,
            rope_factors: source.find("rope_freqs.weight", &[config.rotated / 2])?,
        })
    }
}

/// The graph of some tokens, recorded once: what differs from one execution to the next is data. Rows that are left over are
/// computed and not kept.
#[derive(Debug)]
pub(crate) struct Step<'e> {
    batch: Batch<'e>,
    rows: usize,
    tokens: TensorId,
    positions: TensorId,
    /// The rows of the caches that keys and values are written to.
    written: TensorId,
    /// How many rows of the caches there are.
    length: TensorId,
    /// The row whose logits are computed.
    last: TensorId,
    logits: TensorId,
    /// The likeliest token and its logit, which is NaN where any logit is.
    greatest: TensorId,
    most: TensorId,
}

impl<'e> Step<'e> {
    /// Records the graph of this many tokens.
    pub(crate) fn record(
        engine: &'e Engine,
        config: &Config,
        weights: &Weights,
        caches: &[[State; 2]],
        rows: usize,
    ) -> Result<Self> {
        let mut batch = engine.batch();
        let [tokens, positions, written] = [0, 0, WriteRows::SKIPPED].map(|first| vec![first; rows]);
        let [tokens, positions, written] = [
            batch.upload_indices(&tokens, &[rows])?,
            batch.upload_indices(&positions, &[rows])?,
            batch.upload_indices(&written, &[rows])?,
        ];
        let [length, last] = [batch.upload_indices(&[0], &[1])?, batch.upload_indices(&[0], &[1])?];
        let inputs = Inputs {
            config,
            rows,
            positions,
            written,
            length,
            rope_factors: weights.rope_factors.as_ref().map(|factors| batch.import(factors)),
        };
        let embedding = batch.import(&weights.embedding);
        let mut x = batch.gather(embedding, tokens)?;
        for (layer, caches) in weights.layers.iter().zip(caches) {
            x = inputs.attention(&mut batch, layer, caches, x)?;
            x = inputs.feed_forward(&mut batch, layer, x)?;
        }
        let x = batch.gather(x, last)?;
        let x = norm(&mut batch, x, &weights.norm, config.eps)?;
        let logits = product(&mut batch, x, &weights.head)?;
        let (greatest, most) = (batch.argmax_axis(logits, 1)?, batch.max_axis(logits, 1)?);
        Ok(Self { batch, rows, tokens, positions, written, length, last, logits, greatest, most })
    }

    /// How many tokens it takes at most.
    pub(crate) fn rows(&self) -> usize {
        self.rows
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
        self.batch.set_data(self.last, Data::U32(&[tokens.len() as u32 - 1]))?;
        Ok(())
    }

    /// Adds tokens that follow `before` others to the caches.
    pub(crate) fn extend(&mut self, tokens: &[u32], before: usize) -> Result<()> {
        self.set(tokens, before)?;
        Ok(self.batch.execute(&[])?)
    }

    /// The same, and the logits of what follows the last of them.
    pub(crate) fn logits(&mut self, tokens: &[u32], before: usize) -> Result<Vec<f32>> {
        self.set(tokens, before)?;
        self.batch.execute(&[self.logits])?;
        Ok(self.batch.read(self.logits)?)
    }

    /// The same, and the likeliest token to follow.
    pub(crate) fn greatest(&mut self, tokens: &[u32], before: usize) -> Result<u32> {
        self.set(tokens, before)?;
        // On a GPU in one submission, with one wait.
        let results = self.batch.run(&[self.greatest, self.most])?;
        let token = results[0].as_data().u32()[0];
        match results[1].as_data().f32()[0].is_nan() {
            true => Err(Error::NotANumber { token: token as usize }),
            false => Ok(token),
        }
    }

    /// Where a token is computed, and why.
    pub(crate) fn explain(&self) -> Result<kiln::Explanation> {
        Ok(self.batch.explain(&[self.greatest, self.most])?)
    }
}

/// What the blocks of one graph share.
struct Inputs<'c> {
    config: &'c Config,
    rows: usize,
    positions: TensorId,
    written: TensorId,
    length: TensorId,
    rope_factors: Option<TensorId>,
}

impl Inputs<'_> {
    /// `x + O attention(Q h, K h, V h)`, h the norm of x, of heads with rotated queries and keys.
    fn attention(&self, batch: &mut Batch<'_>, layer: &Layer, caches: &[State; 2], x: TensorId) -> Result<TensorId> {
        let Config { heads, kv_heads, head, value_head, eps, .. } = *self.config;
        let h = norm(batch, x, &layer.attention_norm, eps)?;
        let q = self.heads(batch, h, &layer.q, heads, head)?;
        let k = self.heads(batch, h, &layer.k, kv_heads, head)?;
        let v = self.heads(batch, h, &layer.v, kv_heads, value_head)?;
        let q = self.rotated(batch, q, layer.q_norm.as_ref())?;
        let k = self.rotated(batch, k, layer.k_norm.as_ref())?;
        let [keys, values] = [0, 1].map(|i| batch.state(&caches[i]));
        let keys = batch.write_rows(keys, k, self.written)?;
        let values = batch.write_rows(values, v, self.written)?;
        let of = AttentionOperands {
            positions: Some(self.positions),
            lengths: Some(self.length),
            ..AttentionOperands::default()
        };
        let out = batch.attention_with(q, keys, values, of, Attention::causal().scaled(self.config.scale))?;
        let out = batch.permute(out, &[1, 0, 2])?;
        let out = batch.reshape(out, &[self.rows, heads * value_head])?;
        let out = projected(batch, out, &layer.output)?;
        Ok(batch.add(x, out)?)
    }

    /// `x + D (silu(G h) ∘ U h)`, h the norm of x.
    fn feed_forward(&self, batch: &mut Batch<'_>, layer: &Layer, x: TensorId) -> Result<TensorId> {
        let h = norm(batch, x, &layer.ffn_norm, self.config.eps)?;
        let gate = projected(batch, h, &layer.gate)?;
        let up = projected(batch, h, &layer.up)?;
        let product = batch.swiglu(gate, up)?;
        let down = projected(batch, product, &layer.down)?;
        Ok(batch.add(x, down)?)
    }

    /// A projection of rows, `[heads, rows, size]`.
    fn heads(
        &self,
        batch: &mut Batch<'_>,
        h: TensorId,
        by: &Projection,
        heads: usize,
        size: usize,
    ) -> Result<TensorId> {
        let x = projected(batch, h, by)?;
        let x = batch.reshape(x, &[self.rows, heads, size])?;
        Ok(batch.permute(x, &[1, 0, 2])?)
    }

    /// Heads of queries or keys, normalised where the model does that, at their positions.
    fn rotated(&self, batch: &mut Batch<'_>, x: TensorId, by: Option<&Tensor>) -> Result<TensorId> {
        let Config { rope, rotated, theta, eps, .. } = *self.config;
        let x = by.map_or(Ok(x), |weight| norm(batch, x, weight, eps))?;
        let op = Rope { theta: theta.into(), style: rope, rotated: Some(rotated), ..Rope::default() };
        let operands: Vec<TensorId> = [x, self.positions].into_iter().chain(self.rope_factors).collect();
        Ok(batch.record(op, &operands)?)
    }
}

fn norm(batch: &mut Batch<'_>, x: TensorId, weight: &Tensor, eps: f32) -> Result<TensorId> {
    let weight = batch.import(weight);
    Ok(batch.rms_norm(x, weight, eps)?)
}

fn product(batch: &mut Batch<'_>, x: TensorId, weight: &Tensor) -> Result<TensorId> {
    let w = batch.import(weight);
    Ok(match weight.dtype() {
        DType::Blocks(format) => batch.record(QuantMatmul { format }, &[x, w])?,
        _ => batch.matmul_with(x, w, Matmul { transpose_b: true, ..Matmul::default() })?,
    })
}

fn projected(batch: &mut Batch<'_>, x: TensorId, by: &Projection) -> Result<TensorId> {
    let y = product(batch, x, &by.weight)?;
    match &by.bias {
        Some(bias) => {
            let bias = batch.import(bias);
            Ok(batch.add(y, bias)?)
        }
        None => Ok(y),
    }
}
