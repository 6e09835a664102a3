//! Tokens per second: the tests of `kiln-llm bench`, which follow those of llama.cpp (`llama-bench` and
//! `llama-batched-bench`).

use std::time::{Duration, Instant};

use crate::{Model, Result, Sampler, SequenceOptions, Sequences, Session, TokenWork};

/// The times of several sequences; see [`Sequences::time`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchTime {
    /// Computing all prompts except their last tokens, one prompt after another.
    pub prompts: Duration,
    /// Generating all tokens, a step for a token of each sequence.
    pub decode: Duration,
}

impl Model<'_> {
    /// Returns tokens for benchmarks: different ones that cycle through the vocabulary. Each `text` begins with another token, as
    /// long as the vocabulary is large enough.
    pub fn arbitrary_tokens(&self, text: usize, count: usize) -> Vec<u32> {
        (0..count).map(|i| ((text * 31 + i * 7919) % self.vocabulary()) as u32).collect()
    }

    /// Returns the work of one token.
    pub fn token_work(&self) -> TokenWork {
        self.weights.token_work()
    }
}

impl Session<'_> {
    /// Empties the session, computes `depth` arbitrary tokens, and returns the time that a prompt of `tokens` more takes, with the
    /// choice of the token after it. The first call also compiles and allocates.
    ///
    /// # Errors
    /// The errors of [`Session::push`] and [`Session::sample`].
    pub fn time_prompt(&mut self, depth: usize, tokens: usize) -> Result<Duration> {
        let prompt = self.model.arbitrary_tokens(0, tokens);
        self.replace_all(depth)?;
        let started = Instant::now();
        self.push(&prompt)?;
        self.sample(&Sampler::greedy())?;
        Ok(started.elapsed())
    }

    /// Empties the session, computes `depth` arbitrary tokens, and returns the time of generating `tokens` more, one by one, the
    /// likeliest each time. Tokens that end a text do not end it. The first call also compiles and allocates.
    ///
    /// # Errors
    /// The errors of [`Session::push`] and [`Session::sample`].
    pub fn time_decode(&mut self, depth: usize, tokens: usize) -> Result<Duration> {
        let first = self.model.arbitrary_tokens(0, 1);
        self.replace_all(depth)?;
        let started = Instant::now();
        self.push(&first)?;
        for _ in 1..tokens {
            self.sample_and_begin(&Sampler::greedy())?;
        }
        self.sample(&Sampler::greedy())?;
        Ok(started.elapsed())
    }

    /// Replaces all tokens by arbitrary ones, whose keys and values are computed.
    fn replace_all(&mut self, depth: usize) -> Result<()> {
        let before = self.model.arbitrary_tokens(0, depth);
        self.truncate(0);
        self.push(&before)?;
        if !before.is_empty() {
            self.logits()?;
        }
        Ok(())
    }
}

impl Sequences<'_> {
    /// Returns the time that `count` sequences take, each with a prompt of `prompt` arbitrary tokens and `tokens` that are generated
    /// after it, the likeliest each time. The set must be empty before, and is empty afterwards. Another `round` has other prompts, so
    /// that no tokens of an earlier round are reused. The first call also compiles and allocates.
    ///
    /// # Errors
    /// The errors of [`Sequences::add`] and [`Sequences::step`].
    pub fn time(&mut self, count: usize, prompt: usize, tokens: usize, round: usize) -> Result<BatchTime> {
        let started = Instant::now();
        for sequence in 0..count {
            let options = SequenceOptions { sampler: Sampler::greedy(), most: tokens, ignore_end: true };
            // Prompts differ from their first token on.
            let prompt = self.model.arbitrary_tokens(round * count + sequence + 1, prompt);
            self.add(&prompt, options)?;
        }
        let prompts = started.elapsed();
        while !self.is_empty() {
            self.step()?;
        }
        Ok(BatchTime { prompts, decode: started.elapsed() - prompts })
    }
}
