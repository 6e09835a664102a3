//! The feed-forward part of a block: a gated network, or a mixture of experts, which are several networks that a router chooses from
//! for each token.

use kiln::graph::TensorId;
use kiln::op::{AllReduce, Matmul};
use kiln::{Batch, Record, Tensor};

use super::Gate;
use super::products::{projected, scaled};
use super::projection::{Matrices, Parts, Projection};
use crate::Result;
use crate::config::{Config, Experts};

/// The weights of a feed-forward part.
#[derive(Debug, Clone)]
pub(super) enum FeedForward {
    /// `D (g(G h) ∘ U h)`, g the activation.
    Gated(Box<Gated>),
    /// `Σ pₑ Dₑ (g(Gₑ h) ∘ Uₑ h)` over the experts e that the router selects, p their weights.
    Mixture(Box<Mixture>),
}

/// The matrices G, U and D of a gated network.
#[derive(Debug, Clone)]
pub(super) struct Gated {
    pub(super) gate: Projection,
    pub(super) up: Projection,
    pub(super) down: Projection,
}

/// The weights of a mixture of experts.
#[derive(Debug, Clone)]
pub(super) struct Mixture {
    /// Computes a score for each expert, `[experts, width]`.
    pub(super) router: Projection,
    pub(super) gate: Matrices,
    pub(super) up: Matrices,
    pub(super) down: Matrices,
    pub(super) of: Experts,
    /// Whether each device of a group has some of the elements between the two products of every expert.
    pub(super) is_divided: bool,
}

/// The clamp of [`Gate::ClampedSilu`], and the factor in its logistic function.
const CLAMP: f32 = 7.0;
const STEEPNESS: f32 = 1.702;

impl FeedForward {
    /// Reads the weights of a layer.
    ///
    /// # Errors
    /// The errors of [`Weights::load`](super::Weights::load).
    pub(super) fn load(parts: &Parts<'_>, config: &Config) -> Result<Self> {
        let Config { width, ffn, experts, .. } = *config;
        if let Some(of) = experts {
            return Ok(Self::Mixture(Box::new(Mixture {
                router: parts.projection("ffn_gate_inp", of.count, width)?,
                gate: parts.experts("ffn_gate", [of.count, of.ffn, width])?,
                up: parts.experts("ffn_up", [of.count, of.ffn, width])?,
                down: parts.experts("ffn_down", [of.count, width, of.ffn])?,
                of,
                is_divided: false,
            })));
        }
        let is_fused = parts.rows("ffn_up") == Some(2 * ffn) && !parts.has("ffn_gate");
        let [gate, up] = match is_fused {
            true => [0..ffn, ffn..2 * ffn].map(|rows| parts.cut("ffn_up", rows, 2 * ffn, width)),
            false => ["ffn_gate", "ffn_up"].map(|part| parts.projection(part, ffn, width)),
        };
        let down = parts.projection("ffn_down", width, ffn)?;
        Ok(Self::Gated(Box::new(Gated { gate: gate?, up: up?, down })))
    }

    /// Its tensors, each with the share of its elements that one token is computed with.
    pub(super) fn shares(&self) -> Vec<(&Tensor, f64)> {
        match self {
            Self::Gated(gated) => {
                let Gated { gate, up, down } = &**gated;
                [gate, up, down].into_iter().flat_map(Projection::tensors).map(|tensor| (tensor, 1.0)).collect()
            }
            Self::Mixture(mixture) => {
                let Mixture { router, gate, up, down, of, is_divided: _ } = &**mixture;
                let experts =
                    [gate, up, down].into_iter().flat_map(|Matrices { weight, bias }| [Some(weight), bias.as_ref()]);
                let share = of.used as f64 / of.count as f64;
                let experts = experts.flatten().map(|tensor| (tensor, share));
                router.tensors().map(|tensor| (tensor, 1.0)).chain(experts).collect()
            }
        }
    }

    /// Records its output for rows h, `[rows, width]`.
    pub(super) fn record(&self, batch: &mut Batch<'_>, config: &Config, h: TensorId) -> Result<TensorId> {
        match self {
            Self::Gated(by) => {
                let (gate, up) = (projected(batch, h, &by.gate)?, projected(batch, h, &by.up)?);
                let product = gated(batch, config.architecture.gate, gate, up)?;
                projected(batch, product, &by.down)
            }
            Self::Mixture(mixture) => {
                let Mixture { router, gate, up, down, of, is_divided } = &**mixture;
                let (weights, chosen) = of.route(batch, router, h)?;
                let (gate, up) = (gate.chosen(batch, h, chosen)?, up.chosen(batch, h, chosen)?);
                let product = gated(batch, config.architecture.gate, gate, up)?;
                // Here each expert of a token has a row of its own.
                let down = down.chosen(batch, product, chosen)?;
                let rows = batch.shape(h)?.rows();
                let weights = batch.reshape(weights, &[rows, 1, of.used])?;
                let sum = batch.matmul_with(weights, down, Matmul::default())?;
                let sum = batch.reshape(sum, &[rows, config.width])?;
                let sum = if *is_divided { batch.record(AllReduce, &[sum])? } else { sum };
                scaled(batch, sum, of.scale)
            }
        }
    }
}

impl Matrices {
    /// The products of rows x with the matrices of the experts that were chosen for them, with their biases.
    fn chosen(&self, batch: &mut Batch<'_>, x: TensorId, chosen: TensorId) -> Result<TensorId> {
        let weight = batch.import(&self.weight);
        let product = batch.matmul_by_expert(x, weight, chosen)?;
        let Some(bias) = &self.bias else { return Ok(product) };
        let bias = batch.import(bias);
        let bias = batch.gather(bias, chosen)?;
        Ok(batch.add(product, bias)?)
    }
}

impl Experts {
    /// The weights and the indices of the experts that are selected for each row, `[rows, used]`, greatest weight
    /// first.
    fn route(&self, batch: &mut Batch<'_>, router: &Projection, h: TensorId) -> Result<(TensorId, TensorId)> {
        let scores = projected(batch, h, router)?;
        if self.normalised {
            // Probabilities are divided by the sum of the selected ones, which equals the softmax of the selected
            // scores.
            let (scores, chosen) = batch.top_k(scores, self.used)?;
            return Ok((batch.softmax(scores)?, chosen));
        }
        let probabilities = batch.softmax(scores)?;
        Ok(batch.top_k(probabilities, self.used)?)
    }
}

/// `g(gate) ∘ up`, or the formula of [`Gate::ClampedSilu`].
fn gated(batch: &mut Batch<'_>, by: Gate, gate: TensorId, up: TensorId) -> Result<TensorId> {
    Ok(match by {
        Gate::Silu => batch.swiglu(gate, up)?,
        Gate::GeluTanh => batch.geglu_tanh(gate, up)?,
        Gate::ClampedSilu => {
            // Element-wise functions, which become one step.
            let gate = batch.clip(gate, f32::MIN, CLAMP)?;
            let up = batch.clip(up, -CLAMP, CLAMP)?;
            let open = batch.scale(gate, STEEPNESS)?;
            let open = batch.sigmoid(open)?;
            let product = batch.mul(gate, open)?;
            batch.fma(product, up, product)?
        }
    })
}
