//! The decoder of most architectures: blocks of attention and of a gated feed-forward network, each with a root-mean-square
//! norm before it, after it or both, and a residual connection around it.

use kiln::graph::TensorId;
use kiln::op::{Attention, Rope, WriteRows};
use kiln::waiting::Waiting;
use kiln::{Batch, Data, Engine, Problem, Record, Residency, State, Tensor};

use super::HeadNorms;
use super::adapters::ActiveAdapters;
use super::cached::{Attended, Cached, Following, Heads};
use super::candidates::Ranked;
use super::logits::logits;
use super::outcome::{ArrivingToken, Outcome};
use super::products::{norm, projected, scaled};
use super::projection::Projection;
use super::weights::{Layer, Weights};
#[cfg(not(browser_gpu))]
use crate::Error;
use crate::Result;
use crate::config::{Config, LayerKind};
use crate::placement::Placing;
use crate::sampling::DeviceChoice;

/// The parameters of a recorded graph in addition to the weights.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recorded<'a> {
    /// The adapters of a session.
    pub(crate) adapters: Option<&'a ActiveAdapters>,
    /// Records only this layer, applied to given rows, instead of all layers applied to tokens.
    pub(crate) layer: Option<usize>,
    /// Where layers run; `None` lets the engine decide.
    pub(crate) placing: Option<&'a Placing>,
}

/// The graph from some tokens to the output of the last block, recorded once: whatever changes between executions is
/// data. Unused rows are computed and discarded.
#[derive(Debug)]
pub(crate) struct Forward<'e> {
    batch: Batch<'e>,
    rows: usize,
    tokens: TensorId,
    following: Following,
    /// The inputs with the scales of adapters.
    scales: Vec<TensorId>,
    /// The input of a graph of one layer, `[rows, width]`.
    given: Option<TensorId>,
    /// The output of the last block, `[rows, width]`.
    out: TensorId,
}

impl<'e> Forward<'e> {
    /// Records the graph of this many tokens for a context of `context` tokens, which must fit the caches.
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
        let following = Following { positions, written, length: batch.upload_indices(&[0], &[1])? };
        let placing = of.placing.cloned().unwrap_or_default();
        let inputs = Inputs::new(&mut batch, config, weights, context, rows, Cached::Following(following), placing);
        let (x, given, computed) = match of.layer {
            None => (inputs.embedded(&mut batch, weights, tokens)?, None, 0..layers.len()),
            Some(layer) => {
                let given = batch.upload(&vec![0.0; rows * config.width], &[rows, config.width])?;
                (given, Some(given), layer..layer + 1)
            }
        };
        let out = inputs.blocks(&mut batch, &layers[computed.clone()], computed.start, caches, x)?;
        Ok(Self { batch, rows, tokens, following, scales, given, out })
    }

    /// The output of the single recorded layer for rows that follow `before` others.
    #[cfg(not(browser_gpu))]
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

    /// Updates the scales of the adapters that it was recorded with.
    pub(crate) fn set_adapters(&mut self, adapters: &ActiveAdapters) -> Result<()> {
        for (&id, scales) in self.scales.iter().zip(adapters.patterns()) {
            self.batch.set(id, &scales)?;
        }
        Ok(())
    }

    /// Sets tokens that follow `before` others.
    fn set(&mut self, tokens: &[u32], before: usize) -> Result<()> {
        let ids = self.filled(tokens.iter().copied(), 0);
        self.batch.set_data(self.tokens, Data::U32(&ids))?;
        self.set_places(tokens.len(), before)
    }

    /// A number for each row: these, then `rest`.
    fn filled(&self, of: impl Iterator<Item = u32>, rest: u32) -> Vec<u32> {
        of.chain(std::iter::repeat(rest)).take(self.rows).collect()
    }

    /// Sets the places of this many tokens that follow `before` others.
    fn set_places(&mut self, count: usize, before: usize) -> Result<()> {
        let places = before as u32..(before + count) as u32;
        let positions = self.filled(places.clone(), places.start);
        let written = self.filled(places.clone(), WriteRows::SKIPPED);
        self.batch.set_data(self.following.positions, Data::U32(&positions))?;
        self.batch.set_data(self.following.written, Data::U32(&written))?;
        self.batch.set_data(self.following.length, Data::U32(&[places.end]))?;
        Ok(())
    }
}

/// The graph of some tokens and of the prediction after the last of them.
#[derive(Debug)]
pub(crate) struct Step<'e> {
    forward: Forward<'e>,
    /// The row whose logits are computed.
    last: TensorId,
    outcome: Outcome,
}

impl<'e> Step<'e> {
    /// Updates the scales of the adapters that it was recorded with.
    pub(crate) fn set_adapters(&mut self, adapters: &ActiveAdapters) -> Result<()> {
        self.forward.set_adapters(adapters)
    }

    /// Records the prediction after the last token.
    pub(crate) fn record(mut forward: Forward<'e>, config: &Config, weights: &Weights) -> Result<Self> {
        let batch = &mut forward.batch;
        let last = batch.upload_indices(&[0], &[1])?;
        let x = batch.gather(forward.out, last)?;
        let outcome = Outcome::record(batch, x, 1, config, weights)?;
        Ok(Self { forward, last, outcome })
    }

    /// Maximum number of tokens.
    pub(crate) fn rows(&self) -> usize {
        self.forward.rows
    }

    /// Sets tokens that follow `before` others.
    fn set(&mut self, tokens: &[u32], before: usize) -> Result<()> {
        self.forward.set(tokens, before)?;
        Ok(self.forward.batch.set_data(self.last, Data::U32(&[tokens.len() as u32 - 1]))?)
    }

    /// Adds tokens that follow `before` others to the caches.
    pub(crate) async fn extend(&mut self, tokens: &[u32], before: usize, waiting: Waiting) -> Result<()> {
        self.set(tokens, before)?;
        Ok(self.forward.batch.execute_waiting(&[], waiting).await?)
    }

    /// The same, and the logits of the prediction after the last of them.
    pub(crate) async fn logits(&mut self, tokens: &[u32], before: usize, waiting: Waiting) -> Result<Vec<f32>> {
        self.set(tokens, before)?;
        self.outcome.logits(&mut self.forward.batch, waiting).await
    }

    /// The same, and the `count` likeliest next tokens with their logits.
    pub(crate) async fn candidates(
        &mut self,
        tokens: &[u32],
        before: usize,
        count: usize,
        waiting: Waiting,
    ) -> Result<Ranked> {
        self.set(tokens, before)?;
        self.outcome.candidates(&mut self.forward.batch, count, &[0], waiting).await?.remove(0)
    }

    /// The same, and the likeliest next token.
    pub(crate) async fn greatest(&mut self, tokens: &[u32], before: usize, waiting: Waiting) -> Result<u32> {
        self.set(tokens, before)?;
        self.outcome.greatest(&mut self.forward.batch, &[0], waiting).await?.remove(0)
    }

    /// Begins to choose the token after one that follows `before` others, in a graph of one row. Without a token it is the
    /// result of the last execution, which must have been begun in this way, and may still run. `None` if nothing was computed: see
    /// [`Batch::begin_waiting`].
    pub(crate) async fn begin(
        &mut self,
        token: Option<u32>,
        before: usize,
        choice: DeviceChoice,
        waiting: Waiting,
    ) -> Result<Option<ArrivingToken>> {
        match token {
            Some(token) => self.set(&[token], before)?,
            // The row whose logits are computed is the only one, and set already.
            None => self.forward.set_places(1, before)?,
        }
        self.outcome.begin(&mut self.forward.batch, self.forward.tokens, choice, waiting).await
    }

    /// The time of each kernel of the last execution.
    #[cfg(not(browser_gpu))]
    pub(crate) fn profile(&self) -> Result<kiln::KernelProfile> {
        Ok(self.forward.batch.profile()?)
    }

    /// Predicted seconds on each placement of an engine, if everything ran there with resident inputs.
    pub(crate) fn predicted(&self, engine: &Engine) -> Result<Vec<f64>> {
        let problem = Problem::graph(self.forward.batch.graph())?;
        let decision = engine.router().decide(&problem, &Residency::everywhere());
        Ok(decision.predictions().map(|prediction| prediction.seconds).collect())
    }

    /// The bytes that computing the likeliest next token takes at a placement in addition to weights and caches.
    #[cfg(not(browser_gpu))]
    pub(crate) fn planned_bytes(&self, place: &str) -> Result<u64> {
        Ok(self.forward.batch.planned_bytes(&self.outcome.greatest_wanted(), place)?)
    }

    /// Explains where a token is computed, and why.
    pub(crate) fn explain(&self) -> Result<kiln::Explanation> {
        Ok(self.forward.batch.explain(&self.outcome.greatest_wanted())?)
    }
}

/// The graph of some tokens, and of the probability of the token after each.
#[derive(Debug)]
pub(crate) struct Scoring<'e> {
    forward: Forward<'e>,
    vocabulary: usize,
    /// For each row the following token, as an index into the probabilities of all rows.
    following: TensorId,
    /// ln p of these tokens, `[rows, 1]`.
    scores: TensorId,
}

impl<'e> Scoring<'e> {
    /// Updates the scales of the adapters that it was recorded with.
    pub(crate) fn set_adapters(&mut self, adapters: &ActiveAdapters) -> Result<()> {
        self.forward.set_adapters(adapters)
    }

    /// Records the probabilities of the following tokens.
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

    /// Maximum number of tokens.
    pub(crate) fn rows(&self) -> usize {
        self.forward.rows
    }

    /// Adds tokens that follow `before` others to the caches, and returns ln p of the token in `following` after each.
    #[cfg(not(browser_gpu))]
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

/// Inputs that the blocks of one graph share.
pub(super) struct Inputs<'c> {
    config: &'c Config,
    /// Tokens that fit the caches.
    context: usize,
    rows: usize,
    cached: Cached,
    /// Rotations and their factors.
    rotations: Vec<(Rope, Option<TensorId>)>,
    placing: Placing,
}

impl<'c> Inputs<'c> {
    pub(super) fn new(
        batch: &mut Batch<'_>,
        config: &'c Config,
        weights: &Weights,
        context: usize,
        rows: usize,
        cached: Cached,
        placing: Placing,
    ) -> Self {
        let rotations = weights.rotations.iter();
        let rotations = rotations.map(|rotary| (rotary.op, rotary.factors(context).map(|by| batch.import(by))));
        Self { rotations: rotations.collect(), config, context, rows, cached, placing }
    }

    /// The embeddings of tokens, `[rows, width]`.
    pub(super) fn embedded(&self, batch: &mut Batch<'_>, weights: &Weights, tokens: TensorId) -> Result<TensorId> {
        self.placing.pin_embedding(batch)?;
        let embedding = batch.import(&weights.embedding);
        let x = batch.gather(embedding, tokens)?;
        scaled(batch, x, self.config.scales.embedding)
    }

    /// Records the blocks of layers, beginning with layer `first` of the model, and returns the output of the last.
    /// Operations recorded afterwards run where the head does.
    pub(super) fn blocks(
        &self,
        batch: &mut Batch<'_>,
        layers: &[Layer],
        first: usize,
        caches: &[[State; 2]],
        mut x: TensorId,
    ) -> Result<TensorId> {
        let kinds = self.config.layers.iter().zip(caches).skip(first);
        for (number, (layer, (&kind, caches))) in layers.iter().zip(kinds).enumerate() {
            self.placing.pin_layer(batch, first + number)?;
            x = self.attention(batch, layer, kind, caches, x)?;
            x = self.feed_forward(batch, layer, x)?;
        }
        self.placing.pin_head(batch)?;
        Ok(x)
    }

    /// `x + s P O attention(Q h, K h, V h)` with rotated queries and keys, where h is the norm of x; the norm P and the
    /// scale s of the summand are optional.
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
        let q = self.rotated(batch, q, kind, Heads::Queries)?;
        let k = self.rotated(batch, k, kind, Heads::Keys)?;
        let mut op = Attention::causal().scaled(scales.scores);
        // A window that never hides a key has no effect on attention.
        if let Some(window) = kind.window.filter(|&window| (window as usize) < self.context) {
            op = op.windowed(window);
        }
        if let Some(cap) = caps.scores {
            op = op.capped(cap);
        }
        let sinks = layer.sinks.as_ref().map(|sinks| batch.import(sinks));
        let of = Attended { q, k, v, sinks };
        let out = self.cached.attention(batch, of, caches, op, self.rows, self.config)?;
        let out = projected(batch, out, &layer.output)?;
        self.added(batch, x, out, layer.attention_post_norm.as_ref())
    }

    /// `x + s P F(h)`, where h is the norm of x and F the feed-forward part; the norm P and the scale s of the summand
    /// are optional.
    fn feed_forward(&self, batch: &mut Batch<'_>, layer: &Layer, x: TensorId) -> Result<TensorId> {
        let h = norm(batch, x, layer.ffn_norm.as_ref(), self.config.eps)?;
        let out = layer.ffn.record(batch, self.config, h)?;
        self.added(batch, x, out, layer.ffn_post_norm.as_ref())
    }

    /// Adds the output of a part of a block to the part's input.
    fn added(&self, batch: &mut Batch<'_>, x: TensorId, out: TensorId, by: Option<&Tensor>) -> Result<TensorId> {
        let out = norm(batch, out, by, self.config.eps)?;
        let out = scaled(batch, out, self.config.scales.residual)?;
        Ok(batch.add(x, out)?)
    }

    /// A projection of rows in the layout of [`Cached::heads`], normalised if the model does that.
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
        let x = self.cached.heads(batch, x, [self.rows, heads, size])?;
        norm(batch, x, each, eps)
    }

    /// Heads of queries or keys at their positions.
    fn rotated(&self, batch: &mut Batch<'_>, x: TensorId, kind: LayerKind, of: Heads) -> Result<TensorId> {
        let Some((op, factors)) = kind.rotation.and_then(|at| self.rotations.get(at)) else { return Ok(x) };
        let operands: Vec<TensorId> = [x, self.cached.positions(of)].into_iter().chain(*factors).collect();
        Ok(batch.record(*op, &operands)?)
    }
}
