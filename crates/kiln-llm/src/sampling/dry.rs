//! DRY: penalties for tokens that would continue a repetition.

use std::collections::HashMap;

use super::Sampler;
use crate::{Error, Result, Tokenizer};

/// Sequences of tokens at which repetitions end for DRY.
///
/// The names in a dialogue and the marks of a list must repeat, so tokens before such a sequence do not count as repeated. The default
/// is an empty set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SequenceBreakers {
    /// Sorted and not empty.
    sequences: Vec<Vec<u32>>,
}

impl SequenceBreakers {
    /// The default texts of llama.cpp.
    pub const TEXTS: [&'static str; 4] = ["\n", ":", "\"", "*"];

    /// Makes breakers from tokens.
    ///
    /// # Errors
    /// [`Error::Sampler`] for an empty sequence, which would end repetitions everywhere.
    pub fn from_tokens(sequences: impl IntoIterator<Item = Vec<u32>>) -> Result<Self> {
        let mut sequences: Vec<Vec<u32>> = sequences.into_iter().collect();
        sequences.sort_unstable();
        sequences.dedup();
        match sequences.first() {
            Some(first) if first.is_empty() => {
                Err(Error::sampler("dry_breakers", "an empty sequence would end repetitions everywhere; leave it out"))
            }
            _ => Ok(Self { sequences }),
        }
    }

    /// Makes breakers from texts: all tokens that contain one of them, and tokens that end with the beginning of one, followed by the
    /// tokens of the rest.
    ///
    /// # Errors
    /// [`Error::Sampler`] for an empty text, and for one of more than 1024 bytes.
    pub fn from_texts<T: AsRef<str>>(tokenizer: &Tokenizer, texts: &[T]) -> Result<Self> {
        /// Maximum bytes of a text: the rest after each of its characters is tokenized.
        const MOST: usize = 1024;
        let texts = || texts.iter().map(AsRef::as_ref);
        if texts().any(str::is_empty) {
            return Err(Error::sampler("dry_breakers", "an empty text would end repetitions everywhere; leave it out"));
        }
        if let Some(long) = texts().map(str::len).find(|&len| len > MOST) {
            return Err(Error::sampler("dry_breakers", format!("a text of {long} bytes; at most {MOST} are possible")));
        }
        // Each split of each text into two parts, with the tokens of the second.
        let cuts: Vec<(&[u8], Vec<u32>)> = texts()
            .flat_map(|text| text.char_indices().skip(1).map(move |(at, _)| text.split_at(at)))
            .map(|(begin, rest)| (begin.as_bytes(), tokenizer.encode_inside(rest)))
            .collect();
        let mut sequences = Vec::new();
        let mut piece = Vec::new();
        for token in 0..tokenizer.len() as u32 {
            piece.clear();
            tokenizer.piece(token, false, &mut piece);
            let contains = |text: &str| piece.windows(text.len()).any(|window| window == text.as_bytes());
            if texts().any(contains) {
                sequences.push(vec![token]);
            }
            let ending = cuts.iter().filter(|(begin, _)| piece.ends_with(begin));
            sequences.extend(ending.map(|(_, rest)| [&[token], &rest[..]].concat()));
        }
        Self::from_tokens(sequences)
    }

    /// The greatest token number in all sequences.
    pub(super) fn greatest(&self) -> Option<u32> {
        self.sequences.iter().flatten().copied().max()
    }

    /// The length of the longest sequence at the beginning of these tokens.
    fn longest(&self, tokens: &[u32]) -> Option<usize> {
        let first = tokens.first()?;
        let begin = self.sequences.partition_point(|sequence| sequence[0] < *first);
        let candidates = self.sequences[begin..].iter().take_while(|sequence| sequence[0] == *first);
        candidates.filter(|sequence| tokens.starts_with(sequence)).map(Vec::len).max()
    }

    fn has(&self, token: u32) -> bool {
        self.sequences.binary_search_by(|sequence| sequence[..].cmp(&[token])).is_ok()
    }
}

impl Sampler {
    /// Applies DRY's penalty to tokens that would continue a repetition in `recent`. Breakers of one token have no
    /// penalty.
    pub(super) fn penalize_repetitions(&self, logits: &mut [f64], recent: &[u32]) {
        let n = recent.len();
        // Repetitions begin after the last breaker.
        let breaker = (0..n).rev().find_map(|at| Some(at + self.dry_breakers.longest(&recent[at..])?));
        let longest = n - breaker.unwrap_or(0);
        if longest < self.dry_allowed_length {
            return;
        }
        let mut lengths: HashMap<u32, usize> = HashMap::new();
        for (back, repeated) in repetitions(recent) {
            let (token, repeated) = (recent[n - back], repeated.min(longest));
            if repeated >= self.dry_allowed_length {
                let length = lengths.entry(token).or_default();
                *length = repeated.max(*length);
            }
        }
        for (token, length) in lengths {
            if let (Some(logit), false) = (logits.get_mut(token as usize), self.dry_breakers.has(token)) {
                let exponent = (length - self.dry_allowed_length) as f64;
                let penalty = f64::from(self.dry_multiplier) * f64::from(self.dry_base).powf(exponent);
                // Finite, so that a long repetition is still possible if it is the only candidate.
                *logit -= penalty.min(f32::MAX.into());
            }
        }
    }
}

/// For each number of steps back from the end, from 1: how many tokens before that position equal those at the end.
/// This is the Z-algorithm (Gusfield 1997) on the reversed tokens, in linear time.
pub(super) fn repetitions(tokens: &[u32]) -> impl Iterator<Item = (usize, usize)> {
    let n = tokens.len();
    let reversed = |i: usize| tokens[n - 1 - i];
    let mut lengths = vec![0; n];
    // The match that ends last: the values inside it follow from their counterparts at the beginning.
    let (mut begin, mut end) = (0, 0);
    for i in 1..n {
        let mut length = if i < end { lengths[i - begin].min(end - i) } else { 0 };
        while i + length < n && reversed(length) == reversed(i + length) {
            length += 1;
        }
        if i + length > end {
            (begin, end) = (i, i + length);
        }
        lengths[i] = length;
    }
    lengths.into_iter().enumerate().skip(1)
}
