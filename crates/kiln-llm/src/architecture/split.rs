//! Weights divided over the devices of a group: tensor parallelism.
//!
//! Each device has some heads of every layer, and some of the elements between the two products of its feed-forward network. So
//! rows of the matrices Q, K, V, G and U are divided, and columns of O and D, whose products are then summed over the devices. Each
//! device computes the logits of some tokens, and receives those of the others. Everything else is on all devices. The source is
//! Shoeybi et al. 2019, Megatron-LM, section 3.

use kiln::waiting::wait;
use kiln::{Bool, Buffer, DType, Tensor, TensorType};

use super::HeadNorms;
use super::feed_forward::{FeedForward, Gated, Mixture};
use super::projection::{Matrices, Projection};
use super::weights::{Layer, Weights};
use crate::config::{Config, Experts};
use crate::{Error, Result};

impl Config {
    /// Returns the configuration of the part that each of this many devices computes.
    ///
    /// # Errors
    /// [`Error::Model`] where heads or elements cannot be divided evenly, and for norms of all heads together.
    pub(crate) fn divided(&self, devices: usize) -> Result<Self> {
        let refused = |reason: String| Err(Error::model(self.architecture.name, reason));
        if self.architecture.head_norms == Some(HeadNorms::Row) {
            return refused("the norms of all heads of a token together cannot be divided over devices".into());
        }
        let of_expert = self.experts.map_or(self.ffn, |experts| experts.ffn);
        let counts = [
            ("heads of keys", self.kv_heads),
            ("heads", self.heads),
            ("elements of the feed-forward network", of_expert),
        ];
        if let Some((what, count)) = counts.into_iter().find(|(_, count)| !count.is_multiple_of(devices)) {
            return refused(format!("{count} {what} cannot be divided evenly over {devices} devices"));
        }
        Ok(Self {
            heads: self.heads / devices,
            kv_heads: self.kv_heads / devices,
            ffn: self.ffn / devices,
            experts: self.experts.map(|experts| Experts { ffn: experts.ffn / devices, ..experts }),
            ..self.clone()
        })
    }
}

impl Weights {
    /// The weights divided over this many devices, each matrix a tensor of parts.
    ///
    /// # Errors
    /// [`Error::Model`] where blocks of a quantised matrix would be cut; [`Error::Kiln`] where there is no memory for the parts,
    /// which are copies where columns are divided.
    pub(crate) fn divided(self, devices: usize) -> Result<Self> {
        let layer = |layer: Layer| layer.divided(devices);
        let layers = self.layers.into_iter().map(layer).collect::<Result<_>>()?;
        let vocabulary = self.head.shape().dims()[0];
        if !vocabulary.is_multiple_of(devices) {
            return Ok(Self { layers, ..self });
        }
        let columns = vocabulary / devices;
        let owned = |device: usize| {
            let owned: Vec<Bool> = (0..vocabulary).map(|token| Bool::from(token / columns == device)).collect();
            Tensor::from_elements(&owned, &[devices, columns])
        };
        let owned_logits = Some(Tensor::from_parts((0..devices).map(owned).collect::<kiln::Result<_>>()?)?);
        let head = divided(&self.head, 0, devices)?;
        Ok(Self { layers, head, owned_logits, is_tied: false, ..self })
    }
}

impl Layer {
    fn divided(self, devices: usize) -> Result<Self> {
        let rows = |projection: Projection| projection.rows(devices);
        Ok(Self {
            q: rows(self.q)?,
            k: rows(self.k)?,
            v: rows(self.v)?,
            output: self.output.columns(devices)?,
            sinks: self.sinks.map(|sinks| divided(&sinks, 0, devices)).transpose()?,
            ffn: match self.ffn {
                FeedForward::Gated(gated) => {
                    let Gated { gate, up, down } = *gated;
                    let (gate, up, down) = (rows(gate)?, rows(up)?, down.columns(devices)?);
                    FeedForward::Gated(Box::new(Gated { gate, up, down }))
                }
                FeedForward::Mixture(mixture) => FeedForward::Mixture(Box::new(Mixture {
                    gate: mixture.gate.rows(devices)?,
                    up: mixture.up.rows(devices)?,
                    down: mixture.down.columns(devices)?,
                    is_divided: true,
                    ..*mixture
                })),
            },
            ..self
        })
    }
}

impl Projection {
    /// Each device computes some of the outputs.
    fn rows(self, devices: usize) -> Result<Self> {
        let bias = self.bias.map(|bias| divided(&bias, 0, devices)).transpose()?;
        Ok(Self { weight: divided(&self.weight, 0, devices)?, bias, ..self })
    }

    /// Each device multiplies some of the inputs; the bias is added to the sum.
    fn columns(self, devices: usize) -> Result<Self> {
        Ok(Self { weight: divided(&self.weight, 1, devices)?, is_divided: true, ..self })
    }
}

impl Matrices {
    /// Each device computes some of the outputs of every expert.
    fn rows(self, devices: usize) -> Result<Self> {
        let bias = self.bias.map(|bias| divided(&bias, 1, devices)).transpose()?;
        Ok(Self { weight: divided(&self.weight, 1, devices)?, bias })
    }

    /// Each device multiplies some of the inputs of every expert. The first adds the biases, so that the sum over the devices has
    /// them once.
    fn columns(self, devices: usize) -> Result<Self> {
        let once = |bias: Tensor| {
            let ty = TensorType::of(bias.dtype(), bias.shape())?;
            let zeros = || Tensor::from_buffer(Buffer::zeros(&ty)?, ty.shape.dims());
            let others = (1..devices).map(|_| zeros());
            Tensor::from_parts(std::iter::once(Ok(bias)).chain(others).collect::<kiln::Result<_>>()?)
        };
        Ok(Self { weight: divided(&self.weight, 2, devices)?, bias: self.bias.map(once).transpose()? })
    }
}

/// A tensor of parts: an even share of the indices of dimension `axis` for each device.
fn divided(whole: &Tensor, axis: usize, devices: usize) -> Result<Tensor> {
    let dims = whole.shape().dims().to_vec();
    let share = dims[axis] / devices;
    if let DType::Blocks(format) = whole.dtype()
        && axis + 1 == dims.len()
        && !share.is_multiple_of(format.block_len())
    {
        let reason = format!(
            "{} columns of {} in blocks of {} cannot be divided over {devices} devices",
            dims[axis],
            format.name(),
            format.block_len()
        );
        return Err(Error::model("weights", reason));
    }
    if axis == 0 {
        let parts = (0..devices).map(|at| whole.slice(at * share..(at + 1) * share));
        return Ok(Tensor::from_parts(parts.collect::<kiln::Result<_>>()?)?);
    }
    // They are on the host, unless the program moved them.
    let elements = wait(whole.to_buffer_async())?;
    let bytes = elements.as_data().as_bytes();
    // Each device takes a run of every entry of the dimensions before `axis`, whose elements lie together.
    let entries: usize = dims[..axis].iter().product();
    let of_entry = bytes.len().checked_div(entries).unwrap_or(0);
    let run = of_entry / devices;
    let mut part_dims = dims;
    part_dims[axis] = share;
    let shape = kiln::Shape::new(&part_dims)?;
    let part = |at: usize| {
        let mut part = Buffer::zeros(&TensorType::of(whole.dtype(), shape)?)?;
        let mut into = part.as_mut();
        let runs = into.as_bytes().chunks_exact_mut(run.max(1));
        for (entry, to) in runs.enumerate() {
            to.copy_from_slice(&bytes[entry * of_entry + at * run..][..run]);
        }
        Tensor::from_buffer(part, shape.dims())
    };
    Ok(Tensor::from_parts((0..devices).map(part).collect::<kiln::Result<_>>()?)?)
}
