//! The likeliest tokens of rows of logits.

use kiln::graph::TensorId;
use kiln::op::{Arithmetic, IntegerFunction};
use kiln::{Batch, Buffer, Record};

use crate::{Error, Result};

/// Number of parts into which a large vocabulary is divided to find the likeliest tokens of all parts at once.
pub(super) const PARTS: usize = 64;

/// Minimum size of a large vocabulary.
const LARGE: usize = 8192;

/// Tokens with their logits, greatest logit first; equal logits are ordered by token.
pub(crate) type Ranked = Vec<(u32, f32)>;

/// The likeliest tokens of each row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidates {
    pub(super) count: usize,
    /// `[rows, count]`, greatest first.
    pub(super) values: TensorId,
    /// The token, or the index among the candidates of all parts.
    pub(super) indices: TensorId,
    pub(super) parts: Option<Parts>,
}

/// The parts into which a large vocabulary is divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// The tokens within their parts, `[rows, count, 1]`.
    pub(super) within: TensorId,
    /// Tokens of a part.
    pub(super) length: usize,
}

impl Parts {
    /// The first token of the part that has a candidate, of `count` of each part.
    pub(super) fn first(&self, index: u32, count: usize) -> u32 {
        index / count as u32 * self.length as u32
    }
}

impl Candidates {
    /// Records the likeliest tokens. For a large vocabulary they are chosen from the likeliest of each part: a device
    /// that scans a row once for each candidate then scans short rows, many at once.
    pub(super) fn record(
        batch: &mut Batch<'_>,
        logits: TensorId,
        [rows, vocabulary]: [usize; 2],
        count: usize,
    ) -> Result<Self> {
        if vocabulary < LARGE || !vocabulary.is_multiple_of(PARTS) || vocabulary / PARTS < count {
            let (values, indices) = batch.top_k(logits, count)?;
            return Ok(Self { count, values, indices, parts: None });
        }
        let parts = batch.reshape(logits, &[rows * PARTS, vocabulary / PARTS])?;
        let (values, tokens) = batch.top_k(parts, count)?;
        let values = batch.reshape(values, &[rows, PARTS * count])?;
        // Equal logits stay in order: lower parts come first, and lower tokens within a part.
        let (values, indices) = batch.top_k(values, count)?;
        let first: Vec<u32> = (0..rows * count).map(|at| (at / count * PARTS * count) as u32).collect();
        let first = batch.upload_indices(&first, &[rows, count])?;
        let at = batch.record(Arithmetic { function: IntegerFunction::Add }, &[indices, first])?;
        let tokens = batch.reshape(tokens, &[rows * PARTS * count, 1])?;
        let parts = Parts { within: batch.gather(tokens, at)?, length: vocabulary / PARTS };
        Ok(Self { count, values, indices, parts: Some(parts) })
    }

    /// The tensors to read.
    pub(super) fn wanted(&self) -> impl Iterator<Item = TensorId> {
        [self.values, self.indices].into_iter().chain(self.parts.map(|parts| parts.within))
    }

    /// The candidates of a row of what was read, or an error if its logits are not numbers.
    pub(super) fn of_row(&self, row: usize, read: &[Buffer]) -> Result<Ranked> {
        let (values, indices) = (read[0].as_data().f32(), read[1].as_data().u32());
        let token = |at: usize| match self.parts {
            Some(parts) => parts.first(indices[at], self.count) + read[2].as_data().u32()[at],
            None => indices[at],
        };
        let ranked: Ranked = (row * self.count..(row + 1) * self.count).map(|at| (token(at), values[at])).collect();
        // NaN is first.
        let (first, greatest) = ranked[0];
        checked(ranked, greatest, first)
    }
}

/// Returns `found` if the greatest logit is a number, otherwise an error that names a token.
pub(super) fn checked<T>(found: T, greatest: f32, token: u32) -> Result<T> {
    match greatest.is_nan() {
        true => Err(Error::NotANumber { token: token as usize }),
        false => Ok(found),
    }
}
