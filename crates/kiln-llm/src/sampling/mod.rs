//! Sampling: chooses the next token.

mod candidates;
mod dry;
mod mirostat;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use candidates::Candidates;
pub use dry::SequenceBreakers;
pub use mirostat::Surprises;

use crate::{Error, Result};

/// Chooses the next token from the logits and the tokens so far.
///
/// The steps are those of llama.cpp, in its order. First logits change: `logit_bias`, then the repetition, frequency and presence
/// penalties, then DRY. Then `top_n_sigma`, `top_k`, `typical_p`, `top_p`, `min_p` and XTC exclude tokens; each computes
/// probabilities, at a temperature of 1, over the tokens that earlier steps kept. Last, logits are divided by the temperature, and a
/// token is drawn. Two settings skip steps:
///
/// - A temperature of 0 chooses the likeliest token after the penalties.
/// - `mirostat_tau` replaces the steps that exclude tokens by Mirostat 2, which follows the temperature.
///
/// Every default except those of `temperature`, `top_k`, `top_p` and `min_p` turns its step off. The random number of a token depends
/// only on the seed and the position, so equal logits and equal earlier tokens give equal tokens, however the text was computed.
/// Mirostat also depends on which of the earlier tokens were drawn: see [`Surprises`].
///
/// ```
/// use kiln_llm::Sampler;
///
/// let sampler = Sampler { temperature: 1.0, repeat_penalty: 1.1, logit_bias: vec![(3, f32::NEG_INFINITY)], ..Sampler::default() };
/// assert!(sampler.check(32000).is_ok());
/// assert!(Sampler { top_p: 0.0, ..sampler }.check(32000).is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    /// Divides logits: 0 chooses the likeliest token, 1 draws from the probabilities of the model, and more makes rare tokens
    /// likelier.
    pub temperature: f32,
    /// Half the width of the range of a temperature that follows the entropy H of the n tokens that are left:
    /// `low + (high - low) (H / ln n)^dynatemp_exponent`, where `low` is `max(0, temperature - dynatemp_range)` and `high` is
    /// `temperature + dynatemp_range`. 0 keeps the temperature constant. A temperature of 0 stays 0.
    pub dynatemp_range: f32,
    /// The exponent of the dynamic temperature, from 0.
    pub dynatemp_exponent: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the likeliest tokens whose probabilities first reach this sum, above 0; 1 keeps all.
    pub top_p: f32,
    /// Excludes tokens less likely than this times the likeliest; 0 keeps all, and 1 is the greatest value.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2022): keeps the tokens whose information `-ln p` is closest to the entropy, until
    /// their probabilities exceed this sum, above 0; 1 keeps all.
    pub typical_p: f32,
    /// Top-nσ (Tang et al. 2024): keeps tokens whose logits are at most this many standard deviations of all logits below the
    /// greatest; 0 keeps all.
    pub top_n_sigma: f32,
    /// XTC, "exclude top choices": the probability, for each token, that all but the least likely of the tokens with at least
    /// `xtc_threshold` are excluded. 0 turns it off.
    pub xtc_probability: f32,
    /// The least probability of a top choice, from 0 to 1. Above 0.5 at most one token reaches it, so nothing is excluded.
    pub xtc_threshold: f32,
    /// Repetition penalty (Keskar et al. 2019): divides the positive logits, and multiplies the others, of tokens among the last
    /// `repeat_last_n`. 1 turns it off, and less than 1, above 0, makes repetitions likelier.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of a token once for each time that it occurs among the last `repeat_last_n` tokens. 0 turns it off,
    /// and a negative number makes repetitions likelier.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of a token that occurs among the last `repeat_last_n` tokens. 0 turns it off, and a negative number
    /// makes repetitions likelier.
    pub presence_penalty: f32,
    /// The number of recent tokens for the three penalties above, including the prompt: 0 turns them off, and [`usize::MAX`] means all.
    pub repeat_last_n: usize,
    /// DRY, "don't repeat yourself": a token that would continue a repetition of n tokens, n at least `dry_allowed_length`, has its
    /// logit lowered by `dry_multiplier * dry_base^(n - dry_allowed_length)`. 0 turns it off.
    pub dry_multiplier: f32,
    /// The base of DRY's penalty, from 1.
    pub dry_base: f32,
    /// The length in tokens from which DRY penalises repetitions.
    pub dry_allowed_length: usize,
    /// The number of tokens that DRY looks back, including the prompt: 0 turns it off, and [`usize::MAX`] means all.
    pub dry_last_n: usize,
    /// The sequences at which repetitions end for DRY.
    pub dry_breakers: SequenceBreakers,
    /// Numbers that are added to the logits of tokens: -∞ forbids a token. Several for one token add up.
    pub logit_bias: Vec<(u32, f32)>,
    /// Mirostat 2 (Basu et al. 2021): the surprise in bits, `-log2 p`, that drawn tokens have on average. 0 turns it off.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate, from 0: the factor by which one token's surprise moves the limit of the next one's.
    pub mirostat_eta: f32,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: usize::MAX,
            dry_breakers: SequenceBreakers::default(),
            logit_bias: Vec::new(),
            mirostat_tau: 0.0,
            mirostat_eta: 0.1,
            seed: 0,
        }
    }
}

/// The valid numbers of a parameter, and their description.
type Rule = (fn(f32) -> bool, &'static str);

const FINITE: Rule = (f32::is_finite, "a finite number");
const FROM_0: Rule = (|x| x.is_finite() && x >= 0.0, "a finite number from 0");
const FROM_1: Rule = (|x| x.is_finite() && x >= 1.0, "a finite number from 1");
const POSITIVE: Rule = (|x| x.is_finite() && x > 0.0, "a finite number above 0");
const SHARE: Rule = (|x| (0.0..=1.0).contains(&x), "a number from 0 to 1");
const POSITIVE_SHARE: Rule = (|x| x > 0.0 && x <= 1.0, "a number above 0 and at most 1");

/// Maximum number of candidates that a device finds for a sampler.
const MOST_CANDIDATES: usize = 128;

/// The purpose of a random number: each has its own sequence.
#[derive(Clone, Copy)]
enum Purpose {
    Token,
    Xtc,
}

/// A choice of a token that a device can make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum DeviceChoice {
    /// The likeliest one.
    Likeliest,
    /// Draws it.
    Drawn(Draw),
}

/// The parameters of drawing a token among the likeliest: see the fields of [`Sampler`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Draw {
    /// The number of likeliest tokens that it is drawn among.
    pub(crate) count: usize,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) temperature: f32,
    /// The random number.
    pub(crate) at: f32,
}

impl Sampler {
    /// Returns a sampler that always chooses the likeliest token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether it always chooses the token with the greatest logit of the model: the temperature is 0, and no setting changes logits. A
    /// device can find this token without the host.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && self.logit_bias.is_empty() && !self.has_penalties() && !self.has_dry()
    }

    fn has_penalties(&self) -> bool {
        let changes = self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        changes && self.repeat_last_n > 0
    }

    fn has_dry(&self) -> bool {
        self.dry_multiplier != 0.0 && self.dry_last_n > 0
    }

    fn has_mirostat(&self) -> bool {
        self.mirostat_tau > 0.0 && self.temperature > 0.0
    }

    /// Checks all fields against a vocabulary of this many tokens. Every function that samples calls it.
    ///
    /// # Errors
    /// [`Error::Sampler`] for a number outside of its range; [`Error::Token`] for a biased token or a token of a sequence breaker that
    /// the vocabulary does not have.
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        let rules: [(&'static str, f32, Rule); 16] = [
            ("temperature", self.temperature, FROM_0),
            ("dynatemp_range", self.dynatemp_range, FROM_0),
            ("dynatemp_exponent", self.dynatemp_exponent, FROM_0),
            ("top_p", self.top_p, POSITIVE_SHARE),
            ("min_p", self.min_p, SHARE),
            ("typical_p", self.typical_p, POSITIVE_SHARE),
            ("top_n_sigma", self.top_n_sigma, FROM_0),
            ("xtc_probability", self.xtc_probability, SHARE),
            ("xtc_threshold", self.xtc_threshold, SHARE),
            ("repeat_penalty", self.repeat_penalty, POSITIVE),
            ("frequency_penalty", self.frequency_penalty, FINITE),
            ("presence_penalty", self.presence_penalty, FINITE),
            ("dry_multiplier", self.dry_multiplier, FROM_0),
            ("dry_base", self.dry_base, FROM_1),
            ("mirostat_tau", self.mirostat_tau, FROM_0),
            ("mirostat_eta", self.mirostat_eta, FROM_0),
        ];
        if let Some((parameter, found, (_, expected))) = rules.into_iter().find(|(_, x, (valid, _))| !valid(*x)) {
            return Err(Error::sampler(parameter, format!("{found} was given, {expected} is expected")));
        }
        if let Some((token, addend)) = self.logit_bias.iter().find(|(_, x)| x.is_nan() || *x == f32::INFINITY) {
            let reason = format!("{addend} was given for token {token}, a finite number or -inf is expected");
            return Err(Error::sampler("logit_bias", reason));
        }
        let tokens = self.logit_bias.iter().map(|&(token, _)| token).chain(self.dry_breakers.greatest());
        match tokens.max() {
            Some(token) if token as usize >= vocabulary => Err(Error::Token { token, vocabulary }),
            _ => Ok(()),
        }
    }

    /// The number of likeliest tokens that it chooses among, if it needs no other logits and the number is small: a device
    /// then finds the candidates, and the other logits are not downloaded.
    pub(crate) fn candidates(&self) -> Option<usize> {
        if self.is_greedy() {
            return Some(1);
        }
        let needs_all = !self.logit_bias.is_empty()
            || self.has_penalties()
            || self.has_dry()
            || self.has_mirostat()
            || self.top_n_sigma != 0.0;
        Some(self.top_k).filter(|k| !needs_all && (1..=MOST_CANDIDATES).contains(k))
    }

    /// The choice of a device for the token at a position; `None` if a device cannot choose it with these settings.
    pub(crate) fn on_device(&self, position: usize) -> Option<DeviceChoice> {
        if self.is_greedy() {
            return Some(DeviceChoice::Likeliest);
        }
        let is_simple = self.temperature > 0.0
            && self.dynatemp_range == 0.0
            && self.typical_p >= 1.0
            && self.xtc_probability == 0.0;
        let count = self.candidates().filter(|_| is_simple)?;
        let Self { top_p, min_p, temperature, .. } = *self;
        Some(DeviceChoice::Drawn(Draw {
            count,
            top_p,
            min_p,
            temperature,
            at: self.draw(position, Purpose::Token) as f32,
        }))
    }

    /// Chooses the token that follows `tokens`, and records its surprise if Mirostat is on.
    ///
    /// # Errors
    /// The errors of [`Sampler::probabilities`].
    pub fn choose(&self, logits: &[f32], tokens: &[u32], surprises: &mut Surprises) -> Result<u32> {
        let left = self.probabilities(logits, tokens, surprises)?;
        Ok(self.drawn(&left, tokens, surprises))
    }

    /// Chooses like [`Sampler::choose`], from the likeliest tokens and their logits; at least as many as
    /// [`Sampler::candidates`] returns.
    ///
    /// # Errors
    /// [`Error::Sampler`] if every logit is -∞.
    pub(crate) fn choose_among(
        &self,
        candidates: &[(u32, f32)],
        tokens: &[u32],
        surprises: &mut Surprises,
    ) -> Result<u32> {
        let left = Candidates::new(candidates.iter().map(|&(token, logit)| (token, f64::from(logit) + 0.0)));
        let left = self.narrowed(left, tokens, surprises)?;
        Ok(self.drawn(&left, tokens, surprises))
    }

    /// Draws one of these tokens by their probabilities.
    fn drawn(&self, left: &[(u32, f64)], tokens: &[u32], surprises: &mut Surprises) -> u32 {
        let mut at = self.draw(tokens.len(), Purpose::Token);
        let reaches = |&(_, probability): &(u32, f64)| {
            let reaches = at < probability;
            at -= probability;
            reaches
        };
        // Rounding may make the sum of the probabilities less than 1.
        let chosen = left.iter().position(reaches).unwrap_or(left.len() - 1);
        let (token, probability) = left[chosen];
        surprises.truncate(tokens.len());
        if self.has_mirostat() {
            surprises.record(tokens.len(), -probability.log2());
        }
        token
    }

    /// Returns the tokens that may follow `tokens`, at least one, with the probabilities of choosing them. The likeliest comes first;
    /// equal ones are ordered by token. Logits that are not numbers are never chosen.
    ///
    /// # Errors
    /// The errors of [`Sampler::check`], and [`Error::Sampler`] if every token is forbidden.
    pub fn probabilities(&self, logits: &[f32], tokens: &[u32], surprises: &Surprises) -> Result<Vec<(u32, f64)>> {
        self.check(logits.len())?;
        // Turns -0 into 0, so that equal logits are ordered by token.
        let mut logits: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) + 0.0).collect();
        for &(token, addend) in &self.logit_bias {
            logits[token as usize] += f64::from(addend);
        }
        if self.has_penalties() {
            self.penalize(&mut logits, last(tokens, self.repeat_last_n));
        }
        if self.has_dry() {
            self.penalize_repetitions(&mut logits, last(tokens, self.dry_last_n));
        }
        self.narrowed(Candidates::new((0u32..).zip(logits)), tokens, surprises)
    }

    /// The candidates that no step excludes, with their probabilities.
    fn narrowed(&self, mut left: Candidates, tokens: &[u32], surprises: &Surprises) -> Result<Vec<(u32, f64)>> {
        let Some((likeliest, greatest)) = left.likeliest() else {
            return Err(Error::sampler("logit_bias", "every logit is -inf or not a number; forbid fewer tokens"));
        };
        if greatest.is_infinite() || self.temperature == 0.0 {
            return Ok(vec![(likeliest, 1.0)]);
        }
        if self.has_mirostat() {
            left.sort();
            self.scale(&mut left);
            left.surprise_at_most(self.mirostat_limit(surprises, tokens.len()));
        } else {
            left.top_n_sigma(self.top_n_sigma.into());
            left.top_k(self.top_k);
            left.typical_p(self.typical_p.into());
            left.top_p(self.top_p.into());
            left.min_p(self.min_p.into());
            if self.draw(tokens.len(), Purpose::Xtc) < f64::from(self.xtc_probability) {
                left.exclude_top_choices(self.xtc_threshold.into());
            }
            self.scale(&mut left);
        }
        Ok(left.into_probabilities())
    }

    /// Applies the penalties to tokens that occur in `recent`.
    fn penalize(&self, logits: &mut [f64], recent: &[u32]) {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for &token in recent {
            *counts.entry(token).or_default() += 1;
        }
        let [repeat, frequency, presence] =
            [self.repeat_penalty, self.frequency_penalty, self.presence_penalty].map(f64::from);
        for (token, count) in counts {
            // Callers may pass tokens that the logits do not cover.
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
                *logit -= f64::from(count) * frequency + presence;
            }
        }
    }

    /// Divides logits by the temperature, which depends on their entropy if it is dynamic.
    fn scale(&self, left: &mut Candidates) {
        let [temperature, range] = [self.temperature, self.dynatemp_range].map(f64::from);
        match left.evenness() {
            Some(evenness) if range > 0.0 => {
                let (low, high) = ((temperature - range).max(0.0), temperature + range);
                left.scale(low + (high - low) * evenness.powf(self.dynatemp_exponent.into()));
            }
            _ => left.scale(temperature),
        }
    }

    /// A number in `[0, 1)` for a position: SplitMix64 (Steele et al. 2014) of the seed and the position.
    fn draw(&self, position: usize, purpose: Purpose) -> f64 {
        let seed = match purpose {
            Purpose::Token => self.seed,
            // Any constant that gives a different seed.
            Purpose::Xtc => self.seed ^ 0x5851_f42d_4c95_7f2d,
        };
        let mut z = seed.wrapping_add((position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The last `n` tokens, or all if there are fewer.
fn last(tokens: &[u32], n: usize) -> &[u32] {
    &tokens[tokens.len().saturating_sub(n)..]
}
