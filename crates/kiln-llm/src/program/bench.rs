//! `kiln-llm bench`.

use std::io::{self, Write};
use std::num::NonZeroUsize;

use kiln_llm::{Model, SequencesOptions};
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

fn single(model: &Model<'_>, options: &Bench, out: &mut impl Write) -> Result<()> {
    let context = options.depth.saturating_add(options.prompt.max(options.tokens)).saturating_add(1);
    let mut session = options.execution.session(model, Some(context))?;
    let mut all = Vec::new();
    if !options.json {
        writeln!(out, "{:<8} {:>8} {:>8} {:>14}", "test", "tokens", "depth", "tokens/s")?;
    }
    for (test, tokens) in [("prompt", options.prompt), ("decode", options.tokens)] {
        if tokens == 0 {
            continue;
        }
        let mut rates = Vec::new();
        for repetition in 0..=options.repetitions.get() {
            let time = match test {
                "prompt" => session.time_prompt(options.depth, tokens)?,
                _ => session.time_decode(options.depth, tokens)?,
            };
            if repetition > 0 {
                rates.push(tokens as f64 / time.as_secs_f64());
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
        let context = Some(prompt.saturating_add(tokens).saturating_add(1));
        let cache = options.execution.cache()?;
        let mut sequences = model.sequences(SequencesOptions { most: batch, context, cache })?;
        tell(sequences.memory_plan());
        let mut rates = [const { Vec::new() }; 3];
        for repetition in 0..=options.repetitions.get() {
            let time = sequences.time(batch, prompt, tokens, repetition)?;
            if repetition > 0 {
                let counts = [batch * prompt, batch * tokens, batch * (prompt + tokens)];
                let times = [time.prompts, time.decode, time.prompts + time.decode];
                for ((rates, count), time) in rates.iter_mut().zip(counts).zip(times) {
                    rates.push(count as f64 / time.as_secs_f64());
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
    // As an error of output, which a closed pipe is not.
    serde_json::to_writer_pretty(&mut *out, measured).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}
