//! The tokens that may still be drawn, and the steps that exclude some of them. Every step keeps at least one.

/// Tokens with their logits. All steps except [`Candidates::top_n_sigma`] and [`Candidates::top_k`] require them in
/// order: greatest logit first, equal logits ordered by token.
pub(super) struct Candidates(Vec<(u32, f64)>);

fn order(a: &(u32, f64), b: &(u32, f64)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

impl Candidates {
    /// The tokens whose logits are above -∞.
    pub(super) fn new(logits: impl Iterator<Item = (u32, f64)>) -> Self {
        Self(logits.filter(|&(_, logit)| logit > f64::NEG_INFINITY).collect())
    }

    /// The likeliest token and its logit; `None` without candidates.
    pub(super) fn likeliest(&self) -> Option<(u32, f64)> {
        self.0.iter().copied().min_by(order)
    }

    pub(super) fn sort(&mut self) {
        self.0.sort_unstable_by(order);
    }

    /// Keeps logits of at least the greatest minus `n` standard deviations; 0 keeps all.
    pub(super) fn top_n_sigma(&mut self, n: f64) {
        if n == 0.0 {
            return;
        }
        let count = self.0.len() as f64;
        let mean = self.0.iter().map(|(_, logit)| logit).sum::<f64>() / count;
        let variance = self.0.iter().map(|(_, logit)| (logit - mean).powi(2)).sum::<f64>() / count;
        let greatest = self.0.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
        let least = greatest - n * variance.sqrt();
        self.0.retain(|&(_, logit)| logit >= least);
    }

    /// Keeps the `k` likeliest, or all for 0, and sorts them.
    pub(super) fn top_k(&mut self, k: usize) {
        if k > 0 && k < self.0.len() {
            self.0.select_nth_unstable_by(k - 1, order);
            self.0.truncate(k);
        }
        self.sort();
    }

    /// Keeps the tokens whose information is closest to the entropy, until their probabilities exceed `p`.
    pub(super) fn typical_p(&mut self, p: f64) {
        if p >= 1.0 {
            return;
        }
        let probabilities = self.probabilities();
        let entropy = entropy(&probabilities);
        let distance = |i: usize| (-probabilities[i].ln() - entropy).abs();
        let mut closest: Vec<usize> = (0..probabilities.len()).collect();
        closest.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
        let mut sum = 0.0;
        let exceeds = |&i: &usize| {
            sum += probabilities[i];
            sum > p
        };
        let kept = closest.iter().position(exceeds).map_or(closest.len(), |last| last + 1);
        closest.truncate(kept);
        closest.sort_unstable();
        self.0 = closest.into_iter().map(|i| self.0[i]).collect();
    }

    /// Keeps the likeliest tokens whose probabilities reach `p`.
    pub(super) fn top_p(&mut self, p: f64) {
        if p >= 1.0 {
            return;
        }
        let mut sum = 0.0;
        let last = self.probabilities().into_iter().position(|probability| {
            sum += probability;
            sum >= p
        });
        self.0.truncate(last.map_or(self.0.len(), |last| last + 1));
    }

    /// Excludes tokens whose probability is less than `p` times that of the first.
    pub(super) fn min_p(&mut self, p: f64) {
        let greatest = self.0[0].1;
        let kept = self.0.partition_point(|(_, logit)| (logit - greatest).exp() >= p);
        self.0.truncate(kept.max(1));
    }

    /// Excludes the tokens with a probability of at least `threshold`, except the last of them.
    pub(super) fn exclude_top_choices(&mut self, threshold: f64) {
        let top = self.probabilities().partition_point(|&probability| probability >= threshold);
        self.0.drain(..top.saturating_sub(1));
    }

    /// Excludes tokens whose surprise in bits is above `limit`, except the first.
    pub(super) fn surprise_at_most(&mut self, limit: f64) {
        let kept = self.probabilities().partition_point(|probability| -probability.log2() <= limit);
        self.0.truncate(kept.max(1));
    }

    /// The entropy relative to its maximum for this many tokens, from 0 to 1; `None` for a single token.
    pub(super) fn evenness(&self) -> Option<f64> {
        let greatest = (self.0.len() as f64).ln();
        (self.0.len() > 1).then(|| (entropy(&self.probabilities()) / greatest).clamp(0.0, 1.0))
    }

    /// Divides logits by a temperature. 0 keeps only the likeliest token.
    pub(super) fn scale(&mut self, temperature: f64) {
        if temperature == 0.0 {
            self.0.truncate(1);
        }
        let greatest = self.0[0].1;
        for (_, logit) in &mut self.0 {
            // Subtracts the greatest logit, which changes no probability: otherwise tiny temperatures would make
            // infinities whose difference is NaN.
            *logit = if *logit == greatest { 0.0 } else { (*logit - greatest) / temperature };
        }
    }

    /// The softmax of the logits.
    fn probabilities(&self) -> Vec<f64> {
        let greatest = self.0[0].1;
        let mut weights: Vec<f64> = self.0.iter().map(|(_, logit)| (logit - greatest).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
        weights
    }

    /// The tokens with their probabilities, without those that are 0 in f64.
    pub(super) fn into_probabilities(self) -> Vec<(u32, f64)> {
        let probabilities = self.probabilities();
        let tokens = self.0.into_iter().map(|(token, _)| token);
        tokens.zip(probabilities).filter(|&(_, probability)| probability > 0.0).collect()
    }
}

/// In nats.
fn entropy(probabilities: &[f64]) -> f64 {
    let information = |&p: &f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    probabilities.iter().map(information).sum()
}
