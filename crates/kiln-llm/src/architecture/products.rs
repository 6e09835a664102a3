//! Products with weights, and norms.

use kiln::graph::TensorId;
use kiln::op::{AllReduce, Matmul, QuantMatmul};
use kiln::{Batch, DType, Record, Tensor};

use super::projection::{LowRank, Projection};
use crate::Result;

/// The root-mean-square norm of rows if there are weights for it, else the rows.
pub(super) fn norm(batch: &mut Batch<'_>, x: TensorId, weight: Option<&Tensor>, eps: f32) -> Result<TensorId> {
    let Some(weight) = weight else { return Ok(x) };
    let weight = batch.import(weight);
    Ok(batch.rms_norm(x, weight, eps)?)
}

pub(super) fn scaled(batch: &mut Batch<'_>, x: TensorId, by: f32) -> Result<TensorId> {
    Ok(if by == 1.0 { x } else { batch.scale(x, by)? })
}

pub(super) fn product(batch: &mut Batch<'_>, x: TensorId, weight: &Tensor) -> Result<TensorId> {
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
    if by.is_divided {
        y = batch.record(AllReduce, &[y])?;
    }
    match &by.bias {
        Some(bias) => {
            let bias = batch.import(bias);
            Ok(batch.add(y, bias)?)
        }
        None => Ok(y),
    }
}
