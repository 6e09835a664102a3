//! The results for rows of a graph: logits, the likeliest tokens, or the likeliest token.

use kiln::graph::TensorId;
use kiln::waiting::{Arriving, Waiting};
use kiln::{Batch, Buffer, Record};

use super::Weights;
use super::candidates::{Candidates, Ranked, checked};
use super::drawing::Drawing;
use super::logits::logits;
use crate::config::Config;
use crate::sampling::{DeviceChoice, Draw};
use crate::{Error, Result};

/// Candidate counts are rounded up to multiples of this, so that samplers with similar counts share a graph.
const COUNTED_BY: usize = 8;

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
    drawings: Vec<Drawing>,
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
    pub(super) fn of(batch: &mut Batch<'_>, logits: TensorId, [rows, vocabulary]: [usize; 2]) -> Result<Self> {
        let (greatest, most) = (batch.argmax_axis(logits, 1)?, batch.max_axis(logits, 1)?);
        Ok(Self { rows, vocabulary, logits, greatest, most, candidates: Vec::new(), drawings: Vec::new() })
    }

    /// The wanted tensors for the likeliest token.
    pub(super) fn greatest_wanted(&self) -> [TensorId; 2] {
        [self.greatest, self.most]
    }

    /// Executes, and returns the logits of all rows.
    pub(super) async fn logits(&self, batch: &mut Batch<'_>, waiting: Waiting) -> Result<Vec<f32>> {
        match batch.run_waiting(&[self.logits], waiting).await?.pop() {
            Some(Buffer::F32(logits)) => Ok(logits),
            _ => Err(Error::model("logits", "they have another type than f32")),
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
        Ok(likeliest(&results, rows))
    }

    /// Begins an execution, and returns the results that [`likeliest`] takes as they arrive. The device also writes the likeliest token of
    /// each row to the input `tokens`. `None` if nothing was computed: see [`Batch::begin_waiting`].
    pub(super) async fn begin_likeliest(
        &self,
        batch: &mut Batch<'_>,
        tokens: TensorId,
        waiting: Waiting,
    ) -> Result<Option<Arriving<Vec<Buffer>>>> {
        Ok(batch.begin_waiting(&self.greatest_wanted(), [self.greatest, tokens], waiting).await?)
    }

    /// Begins an execution of a graph of one row, and returns the token of this choice as it arrives. The device also writes that token to
    /// the input `tokens`. `None` if nothing was computed: see [`Batch::begin_waiting`].
    pub(super) async fn begin(
        &mut self,
        batch: &mut Batch<'_>,
        tokens: TensorId,
        choice: DeviceChoice,
        waiting: Waiting,
    ) -> Result<Option<ArrivingToken>> {
        let (begun, candidates) = match choice {
            DeviceChoice::Likeliest => (self.begin_likeliest(batch, tokens, waiting).await?, None),
            DeviceChoice::Drawn(draw) => {
                let drawing = self.drawing(batch, draw)?;
                let (token, candidates) = (drawing.token(), drawing.candidates());
                let wanted: Vec<TensorId> = candidates.wanted().chain([token]).collect();
                (batch.begin_waiting(&wanted, [token, tokens], waiting).await?, Some(candidates))
            }
        };
        Ok(begun.map(|results| ArrivingToken { results, choice, candidates }))
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
        let found = self.found(batch, count)?;
        let wanted: Vec<TensorId> = found.wanted().collect();
        let results = batch.run_waiting(&wanted, waiting).await?;
        Ok(rows.iter().map(|&row| found.of_row(row, &results)).collect())
    }

    /// The drawing for these settings, recorded if it is missing.
    pub(super) fn drawing(&mut self, batch: &mut Batch<'_>, draw: Draw) -> Result<&Drawing> {
        let count = draw.count.min(self.vocabulary);
        let at = match self.drawings.iter().position(|drawing| drawing.count() == count) {
            Some(at) => at,
            None => {
                let candidates = self.found(batch, count)?;
                self.drawings.push(Drawing::record(batch, candidates, count)?);
                self.drawings.len() - 1
            }
        };
        self.drawings[at].set(batch, draw)?;
        Ok(&self.drawings[at])
    }

    /// At least the `count` likeliest tokens, recorded if they are missing.
    fn found(&mut self, batch: &mut Batch<'_>, count: usize) -> Result<Candidates> {
        let count = count.next_multiple_of(COUNTED_BY).min(self.vocabulary);
        if let Some(found) = self.candidates.iter().find(|candidates| candidates.count == count) {
            return Ok(*found);
        }
        let recorded = Candidates::record(batch, self.logits, [self.rows, self.vocabulary], count)?;
        self.candidates.push(recorded);
        Ok(recorded)
    }
}

/// The likeliest token of each of these rows, or an error if its logits are not numbers.
pub(super) fn likeliest(results: &[Buffer], rows: &[usize]) -> Vec<Result<u32>> {
    let (tokens, most) = (results[0].as_data().u32(), results[1].as_data().f32());
    rows.iter().map(|&row| checked(tokens[row], most[row], tokens[row])).collect()
}

/// The token that a GPU chooses, on its way to the host.
pub(crate) struct ArrivingToken {
    results: Arriving<Vec<Buffer>>,
    choice: DeviceChoice,
    /// The candidates among which it was drawn, unless it is the likeliest token.
    candidates: Option<Candidates>,
}

/// A token that a GPU has chosen.
pub(crate) struct ChosenToken {
    /// The token. If it was drawn, in f32, the host decides whether it is the right one.
    pub(crate) token: u32,
    /// The candidates among which it was drawn; `None` for the likeliest token.
    pub(crate) candidates: Option<Ranked>,
}

impl ArrivingToken {
    /// Whether it has what another choice needs: the likeliest token, or enough candidates.
    pub(crate) fn serves(&self, choice: DeviceChoice) -> bool {
        match (self.choice, choice) {
            (DeviceChoice::Likeliest, DeviceChoice::Likeliest) => true,
            (DeviceChoice::Drawn(draw), DeviceChoice::Drawn(wanted)) => draw.count >= wanted.count,
            _ => false,
        }
    }

    /// Waits for the token.
    ///
    /// # Errors
    /// [`Error::NotANumber`] if a logit is; [`Error::Kiln`].
    pub(crate) async fn arrive(self) -> Result<ChosenToken> {
        let results = self.results.await?;
        match self.candidates {
            Some(candidates) => {
                let ranked = candidates.of_row(0, &results)?;
                let token = results[results.len() - 1].as_data().u32()[0];
                Ok(ChosenToken { token, candidates: Some(ranked) })
            }
            None => Ok(ChosenToken { token: likeliest(&results, &[0]).remove(0)?, candidates: None }),
        }
    }
}

impl std::fmt::Debug for ArrivingToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ArrivingToken")
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
