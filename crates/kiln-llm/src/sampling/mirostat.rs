//! Mirostat 2: a limit of surprise that follows the surprise of the tokens drawn so far.

use super::Sampler;

/// The surprise of each token that Mirostat drew, by its position: the only state of a [`Sampler`].
///
/// Other tokens, such as those of prompts, have no surprise. Sessions keep a value of this type with their tokens, so that
/// truncating a session and sampling again gives the same tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surprises {
    /// The position of each token, and the sum of the surprises up to it.
    sums: Vec<(usize, f64)>,
}

impl Surprises {
    /// Forgets the tokens from this position on.
    pub fn truncate(&mut self, position: usize) {
        self.sums.truncate(self.count(position));
    }

    /// Appends a token. Its surprise is in bits.
    pub(super) fn record(&mut self, position: usize, surprise: f64) {
        let before = self.sums.last().map_or(0.0, |&(_, sum)| sum);
        self.sums.push((position, before + surprise));
    }

    /// The number of recorded tokens before a position.
    fn count(&self, position: usize) -> usize {
        self.sums.partition_point(|&(at, _)| at < position)
    }
}

impl Sampler {
    /// The maximum surprise of a token at a position, in bits. It begins as 2 τ, and each drawn token with the surprise
    /// s lowers it by η (s - τ).
    pub(super) fn mirostat_limit(&self, surprises: &Surprises, position: usize) -> f64 {
        let [tau, eta] = [self.mirostat_tau, self.mirostat_eta].map(f64::from);
        let count = surprises.count(position);
        let sum = count.checked_sub(1).map_or(0.0, |last| surprises.sums[last].1);
        2.0 * tau - eta * (sum - count as f64 * tau)
    }
}
