//! `kiln-llm bench`.

use std::io::Write;
use std::num::NonZeroUsize;
use std::time::Instant;

use kiln_llm::Sampler;

use crate::Result;
use crate::program::input::Input;
use crate::program::options::ExecutionOptions;

/// What is measured.
pub(crate) struct Bench {
    pub(crate) prompt: usize,
    pub(crate) tokens: usize,
    pub(crate) depth: usize,
    pub(crate) repetitions: NonZeroUsize,
    pub(crate) execution: ExecutionOptions,
}

/// Measures a prompt and tokens one by one, each after as many tokens as the depth says, and prints a line for each: the mean of all
/// repetitions and their standard deviation. One repetition that is not counted goes first.
pub(crate) fn run(input: Input, options: &Bench, out: &mut impl Write) -> Result<()> {
    let engine = options.execution.engine()?;
    let model = input.model(&engine)?;
    let context = options.depth + options.prompt.max(options.tokens) + 1;
    let mut session = options.execution.session(&model, Some(context))?;
    // Tokens that differ, from the beginning of the vocabulary to its end.
    let any = |count: usize| -> Vec<u32> { (0..count).map(|i| (i * 7919 % model.vocabulary()) as u32).collect() };
    let before = any(options.depth);
    writeln!(out, "{:<8} {:>8} {:>8} {:>14}", "test", "tokens", "depth", "tokens/s")?;
    for (test, count) in [("prompt", options.prompt), ("decode", options.tokens)] {
        if count == 0 {
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
                session.push(&any(count))?;
                session.sample(&Sampler::greedy())?;
            } else {
                session.push(&any(1))?;
                for _ in 0..count {
                    session.sample(&Sampler::greedy())?;
                }
            }
            if repetition > 0 {
                rates.push(count as f64 / started.elapsed().as_secs_f64());
            }
        }
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64;
        let rate = format!("{mean:.1} ± {:.1}", variance.sqrt());
        writeln!(out, "{test:<8} {count:>8} {:>8} {rate:>14}", options.depth)?;
        out.flush()?;
    }
    Ok(())
}
