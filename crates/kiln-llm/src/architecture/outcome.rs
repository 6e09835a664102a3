//! What follows rows of a graph: logits, the likeliest tokens, or the likeliest one.

use kiln::graph::TensorId;
use kiln::op::{Arithmetic, IntegerFunction};
use kiln::waiting::{Arriving, Waiting};
use kiln::{Batch, Buffer, Record};

use super::Weights;
use super::logits::logits;
use crate::config::Config;
use crate::{Error, Result};

/// Number of parts into which a large vocabulary is divided to find the likeliest tokens of all parts at once.
const PARTS: usize = 64;

/// Minimum size of a large vocabulary.
const LARGE: usize = 8192;

/// Candidate counts are rounded up to multiples of this, so that samplers with similar counts share a graph.
const COUNTED_BY: usize = 8;

/// Tokens with their logits, greatest logit first; equal logits are ordered by token.
pub(crate) type Ranked = Vec<(u32, f32)>;

/// The logits of rows, and the results that are computed from them on the device.
#[derive(Debug)]
pub(super) struct Outcome {
    rows: usize,
    vocabulary: usize,
    logits: TensorId,
    /// The likeliest token of each row and its logit, which is NaN if any logit of the row is.
    greatest: TensorId,
    most: TensorId,
    /// Recorded when first requested.
    candidates: Vec<Candidates>,
}

/// The likeliest tokens of each row.
#[derive(Debug, Clone, Copy)]
struct Candidates {
    count: usize,
    /// `[rows, count]`, greatest first.
    values: TensorId,
    /// The token, or the index among the candidates of all parts.
    indices: TensorId,
    /// The tokens within their parts, `[rows, count, 1]`, if the vocabulary is divided.
    within: Option<TensorId>,
}

impl Outcome {
    /// Records the logits for rows of the last block's output.
    pub(super) fn record(
        batch: &mut Batch<'_>,
        x: TensorId,
        rows: usize,
        config: &Config,
        weights: &Weights,
    ) -> Result<Self> {
        let logits = logits(batch, x, config, weights)?;
        Self::of(batch, logits, [rows, config.vocabulary])
    }

    /// Records the results that are computed from logits.
    fn of(batch: &mut Batch<'_>, logits: TensorId, [rows, vocabulary]: [usize; 2]) -> Result<Self> {
        let (greatest, most) = (batch.argmax_axis(logits, 1)?, batch.max_axis(logits, 1)?);
        Ok(Self { rows, vocabulary, logits, greatest, most, candidates: Vec::new() })
    }

    /// The wanted tensors for the likeliest token.
    pub(super) fn greatest_wanted(&self) -> [TensorId; 2] {
        [self.greatest, self.most]
    }

    /// Executes, and returns the logits of all rows.
    pub(super) async fn logits(&self, batch: &mut Batch<'_>, waiting: Waiting) -> Result<Vec<f32>> {
        match batch.run_waiting(&[self.logits], waiting).await?.pop() {
            Some(Buffer::F32(logits)) => Ok(logits),
            _ => Err(Error::model("logits", "they are not of f32")),
        }
    }

    /// Executes, and returns the likeliest token of each of these rows, or an error if its logits are not numbers.
    pub(super) async fn greatest(
        &self,
        batch: &mut Batch<'_>,
        rows: &[usize],
        waiting: Waiting,
    ) -> Result<Vec<Result<u32>>> {
        // On a GPU this is one submission with one wait.
        let results = batch.run_waiting(&self.greatest_wanted(), waiting).await?;
        let (tokens, most) = (results[0].as_data().u32(), results[1].as_data().f32());
        Ok(rows.iter().map(|&row| checked(tokens[row], most[row], tokens[row])).collect())
    }

    /// Begins an execution of a graph of one row, and returns its likeliest token as it arrives. The device also writes that token to
    /// the input `tokens`. `None` if nothing was computed: see [`Batch::begin_waiting`].
    pub(super) async fn begin(
        &self,
        batch: &mut Batch<'_>,
        tokens: TensorId,
        waiting: Waiting,
    ) -> Result<Option<ArrivingToken>> {
        let begun = batch.begin_waiting(&self.greatest_wanted(), [self.greatest, tokens], waiting).await?;
        Ok(begun.map(ArrivingToken))
    }

    /// Executes, and returns at least the `count` likeliest tokens of each of these rows, or an error if its logits are
    /// not numbers.
    pub(super) async fn candidates(
        &mut self,
        batch: &mut Batch<'_>,
        count: usize,
        rows: &[usize],
        waiting: Waiting,
    ) -> Result<Vec<Result<Ranked>>> {
        let count = count.next_multiple_of(COUNTED_BY).min(self.vocabulary);
        let found = match self.candidates.iter().find(|candidates| candidates.count == count) {
            Some(found) => *found,
            None => {
                let recorded = self.record_candidates(batch, count)?;
                self.candidates.push(recorded);
                recorded
            }
        };
        let wanted: Vec<TensorId> = [found.values, found.indices].into_iter().chain(found.within).collect();
        let results = batch.run_waiting(&wanted, waiting).await?;
        let (values, indices) = (results[0].as_data().f32(), results[1].as_data().u32());
        let within = results.get(2).map(|within| within.as_data().u32());
        let part = (self.vocabulary / PARTS) as u32;
        let of_row = |&row: &usize| {
            let token = |at: usize| match within {
                Some(within) => indices[at] / count as u32 * part + within[at],
                None => indices[at],
            };
            let candidates = (row * count..(row + 1) * count).map(|at| (token(at), values[at])).collect::<Ranked>();
            // NaN is first.
            let (first, greatest) = candidates[0];
            checked(candidates, greatest, first)
        };
        Ok(rows.iter().map(of_row).collect())
    }

    /// Records the likeliest tokens. For a large vocabulary they are chosen from the likeliest of each part: a device
    /// that scans a row once for each candidate then scans short rows, many at once.
    fn record_candidates(&self, batch: &mut Batch<'_>, count: usize) -> Result<Candidates> {
        let Self { rows, vocabulary, logits, .. } = *self;
        if vocabulary < LARGE || !vocabulary.is_multiple_of(PARTS) || vocabulary / PARTS < count {
            let (values, indices) = batch.top_k(logits, count)?;
            return Ok(Candidates { count, values, indices, within: None });
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
        let within = batch.gather(tokens, at)?;
        Ok(Candidates { count, values, indices, within: Some(within) })
    }
}

/// The likeliest token of an execution on a GPU, on its way to the host.
pub(crate) struct ArrivingToken(Arriving<Vec<Buffer>>);

impl ArrivingToken {
    /// Waits for the token.
    ///
    /// # Errors
    /// [`Error::NotANumber`] if a logit is; [`Error::Kiln`].
    pub(crate) async fn arrive(self) -> Result<u32> {
        let results = self.0.await?;
        let (tokens, most) = (results[0].as_data().u32(), results[1].as_data().f32());
        checked(tokens[0], most[0], tokens[0])
    }
}

impl std::fmt::Debug for ArrivingToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ArrivingToken")
    }
}

/// Returns `found` if the greatest logit is a number, otherwise an error that names a token.
fn checked<T>(found: T, greatest: f32, token: u32) -> Result<T> {
    match greatest.is_nan() {
        true => Err(Error::NotANumber { token: token as usize }),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use kiln::waiting::{WAITING, wait};

    use super::*;

    #[test]
    fn candidates_are_the_likeliest_tokens_in_order() {
        let engine = kiln::Engine::builder().without_profile().build().unwrap();
        // Small vocabularies, large divided ones, and large ones that are not divided or whose parts are shorter than
        // the count.
        for (vocabulary, counts) in
            [(12, &[1, 5, 12, 128][..]), (8192, &[1, 40, 125, 128, 137]), (8193, &[40]), (49152, &[1, 40, 128])]
        {
            let rows = 3;
            // Many equal logits in all parts.
            let logit = |at: usize| ((at * 7919) % 5003 % 317) as f32 - (at % vocabulary / 997) as f32;
            let mut logits: Vec<f32> = (0..rows * vocabulary).map(logit).collect();
            logits[vocabulary + 3] = f32::NEG_INFINITY;
            let mut batch = engine.batch();
            let uploaded = batch.upload(&logits, &[rows, vocabulary]).unwrap();
            let mut outcome = Outcome::of(&mut batch, uploaded, [rows, vocabulary]).unwrap();
            for &count in counts {
                let found = wait(outcome.candidates(&mut batch, count, &[2, 0], WAITING)).unwrap();
                for (row, found) in [2, 0].into_iter().zip(found) {
                    let of_row = &logits[row * vocabulary..][..vocabulary];
                    let mut expected: Vec<(u32, f32)> = (0u32..).zip(of_row.iter().copied()).collect();
                    // Stable, so equal ones stay in order.
                    expected.sort_by(|a, b| b.1.total_cmp(&a.1));
                    let found = found.unwrap();
                    assert!(found.len() >= count.min(vocabulary));
                    assert_eq!(found, expected[..found.len()], "{count} of {vocabulary}, row {row}");
                }
                let greatest = wait(outcome.greatest(&mut batch, &[1], WAITING)).unwrap().remove(0).unwrap() as usize;
                let most = logits[vocabulary..][..vocabulary].iter().copied().fold(f32::MIN, f32::max);
                assert_eq!(logits[vocabulary..][..vocabulary].iter().position(|&logit| logit == most), Some(greatest));
            }
            logits[2 * vocabulary - 1] = f32::NAN;
            batch.set(uploaded, &logits).unwrap();
            let found = wait(outcome.candidates(&mut batch, 9, &[1, 0], WAITING)).unwrap();
            let token = vocabulary - 1;
            assert!(matches!(&found[0], Err(Error::NotANumber { token: found }) if *found == token), "{vocabulary}");
            assert!(found[1].is_ok());
        }
    }
}
