//! `kiln-llm bench`.

use std::io::Write;
use std::num::NonZeroUsize;
use std::time::Instant;

use kiln_llm::{Model, Sampler, SequenceOptions, SequencesOptions};
use serde::Serialize;

use crate::Result;
use crate::program::input::Input;
use crate::program::options::{ExecutionOptions, tell};

/// The options of a measurement.
pub(crate) struct Bench {
    pub(crate) prompt: usize,
    pub(crate) tokens: usize,
    pub(crate) depth: usize,
    /// Numbers of simultaneous sequences. If empty, a single sequence is measured.
    pub(crate) batches: Vec<usize>,
    pub(crate) repetitions: NonZeroUsize,
    pub(crate) json: bool,
    pub(crate) execution: ExecutionOptions,
}

/// Tokens per second: the mean of all repetitions and their standard deviation.
#[derive(Debug, Clone, Copy, Serialize)]
struct Rate {
    mean: f64,
    deviation: f64,
}

impl Rate {
    fn of(rates: &[f64]) -> Self {
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64;
        Self { mean, deviation: variance.sqrt() }
    }

    fn in_words(self) -> String {
        format!("{:.1} ± {:.1}", self.mean, self.deviation)
    }
}

/// The tests of one sequence.
#[derive(Serialize)]
struct Single {
    test: &'static str,
    tokens: usize,
    depth: usize,
    tokens_per_second: Rate,
}

/// The tests of several sequences.
#[derive(Serialize)]
struct Batched {
    batch: usize,
    /// Tokens of the prompt of each sequence, and tokens that each generates.
    prompt: usize,
    tokens: usize,
    /// Prompt tokens per second of prompt processing, generated tokens per second of generation, and all tokens per
    /// second.
    prompt_tokens_per_second: Rate,
    decode_tokens_per_second: Rate,
    tokens_per_second: Rate,
}

/// Measures a prompt and single tokens at the given depth, or several sequences at once, and prints a line or an object
/// for each test. The first repetition is not counted.
pub(crate) fn run(input: Input, options: &Bench, out: &mut impl Write) -> Result<()> {
    let engine = options.execution.engine()?;
    let model = options.execution.model(input, &engine)?;
    match options.batches.is_empty() {
        true => single(&model, options, out),
        false => batched(&model, options, out),
    }
}

/// Distinct tokens that cycle through the vocabulary; each text begins with its own token.
pub(crate) fn any(model: &Model<'_>, text: usize, count: usize) -> Vec<u32> {
    (0..count).map(|i| ((text * 31 + i * 7919) % model.vocabulary()) as u32).collect()
}

fn single(model: &Model<'_>, options: &Bench, out: &mut impl Write) -> Result<()> {
    let context = options.depth + options.prompt.max(options.tokens) + 1;
    let mut session = options.execution.session(model, Some(context))?;
    let before = any(model, 0, options.depth);
    let mut all = Vec::new();
    if !options.json {
        writeln!(out, "{:<8} {:>8} {:>8} {:>14}", "test", "tokens", "depth", "tokens/s")?;
    }
    for (test, tokens) in [("prompt", options.prompt), ("decode", options.tokens)] {
        if tokens == 0 {
            continue;
        }
        let mut rates = Vec::with_capacity(options.repetitions.get());
        for repetition in 0..=options.repetitions.get() {
            session.truncate(0);
            session.push(&before)?;
            if !before.is_empty() {
                session.logits()?;
            }
            let started = Instant::now();
            if test == "prompt" {
                session.push(&any(model, 0, tokens))?;
                session.sample(&Sampler::greedy())?;
            } else {
                session.push(&any(model, 0, 1))?;
                // As a text is generated, but not ended by any token.
                for _ in 1..tokens {
                    session.sample_and_begin(&Sampler::greedy())?;
                }
                session.sample(&Sampler::greedy())?;
            }
            if repetition > 0 {
                rates.push(tokens as f64 / started.elapsed().as_secs_f64());
            }
        }
        let measured = Single { test, tokens, depth: options.depth, tokens_per_second: Rate::of(&rates) };
        if !options.json {
            let rate = measured.tokens_per_second.in_words();
            writeln!(out, "{test:<8} {tokens:>8} {:>8} {rate:>14}", options.depth)?;
            out.flush()?;
        }
        all.push(measured);
    }
    if options.json { print(&all, out) } else { Ok(()) }
}

fn batched(model: &Model<'_>, options: &Bench, out: &mut impl Write) -> Result<()> {
    let &Bench { prompt, tokens, json, .. } = options;
    if prompt == 0 || tokens == 0 {
        return Err("--batch measures prompts and the tokens that follow them: -p and -n must be 1 or more".into());
    }
    let mut all = Vec::new();
    if !json {
        let [prompt, decode, both] = ["prompt tokens/s", "decode tokens/s", "all tokens/s"];
        writeln!(out, "{:>5} {:>8} {:>8} {prompt:>20} {decode:>20} {both:>20}", "batch", "prompt", "tokens")?;
    }
    for &batch in &options.batches {
        let (context, cache) = (Some(prompt + tokens + 1), options.execution.cache()?);
        let mut sequences = model.sequences(SequencesOptions { most: batch, context, cache })?;
        tell(sequences.memory_plan());
        let mut rates = [const { Vec::new() }; 3];
        for repetition in 0..=options.repetitions.get() {
            let started = Instant::now();
            for sequence in 0..batch {
                let options = SequenceOptions { sampler: Sampler::greedy(), most: tokens, ignore_end: true };
                // Prompts differ from their first token on, also between repetitions, so that no computed prefix is
                // reused.
                sequences.add(&any(model, repetition * batch + sequence + 1, prompt), options)?;
            }
            let read = started.elapsed().as_secs_f64();
            while !sequences.is_empty() {
                sequences.step()?;
            }
            let both = started.elapsed().as_secs_f64();
            if repetition > 0 {
                let counts = [batch * prompt, batch * tokens, batch * (prompt + tokens)];
                for ((rates, count), seconds) in rates.iter_mut().zip(counts).zip([read, both - read, both]) {
                    rates.push(count as f64 / seconds);
                }
            }
        }
        let [prompt_tokens_per_second, decode_tokens_per_second, tokens_per_second] =
            rates.map(|rates| Rate::of(&rates));
        let measured =
            Batched { batch, prompt, tokens, prompt_tokens_per_second, decode_tokens_per_second, tokens_per_second };
        if !json {
            let [read, decoded, both] =
                [prompt_tokens_per_second, decode_tokens_per_second, tokens_per_second].map(Rate::in_words);
            writeln!(out, "{batch:>5} {prompt:>8} {tokens:>8} {read:>20} {decoded:>20} {both:>20}")?;
            out.flush()?;
        }
        all.push(measured);
    }
    if json { print(&all, out) } else { Ok(()) }
}

/// Prints an array of objects.
fn print(measured: &[impl Serialize], out: &mut impl Write) -> Result<()> {
    serde_json::to_writer_pretty(&mut *out, measured)?;
    Ok(writeln!(out)?)
}
