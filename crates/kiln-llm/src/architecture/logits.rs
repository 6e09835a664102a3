//! The logits of the next tokens.

use kiln::graph::TensorId;
use kiln::op::{AllReduce, Select};
use kiln::{Batch, Record, Tensor};

use super::products::{norm, product, scaled};
use super::weights::Weights;
use crate::Result;
use crate::config::Config;

/// The logits for rows of the last block's output.
pub(super) fn logits(batch: &mut Batch<'_>, x: TensorId, config: &Config, weights: &Weights) -> Result<TensorId> {
    let x = norm(batch, x, Some(&weights.norm), config.eps)?;
    let logits = product(batch, x, &weights.head)?;
    let logits = gathered(batch, logits, weights.owned_logits.as_ref())?;
    let logits = scaled(batch, logits, config.scales.logits)?;
    let Some(cap) = config.caps.logits else { return Ok(logits) };
    let logits = batch.scale(logits, 1.0 / cap)?;
    let logits = batch.tanh(logits)?;
    Ok(batch.scale(logits, cap)?)
}

/// The columns that the devices of a group compute, as many on each, side by side: a sum of rows that are 0 outside of the own columns.
fn gathered(batch: &mut Batch<'_>, own: TensorId, owned: Option<&Tensor>) -> Result<TensorId> {
    let Some(owned) = owned else { return Ok(own) };
    let (devices, columns) = (owned.shape().rows(), owned.shape().columns());
    let rows = batch.shape(own)?.rows();
    let owned = batch.import(owned);
    let own = batch.reshape(own, &[rows, 1, columns])?;
    let repeated = batch.broadcast_to(own, &[rows, devices, columns])?;
    let zero = batch.upload(&[0.0], &[])?;
    let own = batch.record(Select, &[owned, repeated, zero])?;
    let all = batch.reshape(own, &[rows, devices * columns])?;
    Ok(batch.record(AllReduce, &[all])?)
}
