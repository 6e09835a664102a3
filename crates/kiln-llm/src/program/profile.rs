//! `kiln-llm bench --profile`.

use std::collections::HashMap;
use std::io::Write;

use kiln::KernelProfile;
use kiln_llm::{Model, Sampler, SequenceOptions, SequencesOptions};

use crate::Result;
use crate::program::input::Input;
use crate::program::options::ExecutionOptions;

/// The options of the command.
pub(crate) struct Profile {
    /// Tokens of the prompt; 0 skips it.
    pub(crate) prompt: usize,
    /// 0 skips the token after it.
    pub(crate) tokens: usize,
    /// Tokens in the context before.
    pub(crate) depth: usize,
    /// Numbers of sequences: the profile is of a step of each number then.
    pub(crate) batches: Vec<usize>,
    pub(crate) execution: ExecutionOptions,
}

/// Launches of one kernel.
#[derive(Default)]
struct Launches {
    count: usize,
    nanoseconds: f64,
}

/// Prints the kernels of the last part of a prompt, and those of a token, or those of a step of several sequences, slowest first.
pub(crate) fn run(input: Input, options: &Profile, out: &mut impl Write) -> Result<()> {
    let engine = options.execution.timed_engine()?;
    let model = options.execution.model(input, &engine)?;
    for &batch in &options.batches {
        step(&model, options, batch, out)?;
    }
    if !options.batches.is_empty() {
        return Ok(());
    }
    let context = options.depth.saturating_add(options.prompt).saturating_add(3);
    let mut session = options.execution.session(&model, Some(context))?;
    let after_prompt = options.depth.saturating_add(options.prompt);
    let tests = [("prompt", options.prompt, options.depth), ("decode", options.tokens.min(1), after_prompt)];
    for (test, count, depth) in tests {
        if count == 0 {
            continue;
        }
        // The first run compiles and allocates, and is not counted.
        for _ in 0..2 {
            session.truncate(0);
            session.push(&model.arbitrary_tokens(0, depth))?;
            if depth > 0 {
                session.logits()?;
            }
            session.push(&model.arbitrary_tokens(0, count))?;
            session.sample(&Sampler::greedy())?;
        }
        print(test, count, depth, &session.profile()?, out)?;
    }
    Ok(())
}

/// Prints the kernels of a step of several sequences.
fn step(model: &Model<'_>, options: &Profile, batch: usize, out: &mut impl Write) -> Result<()> {
    // The first step compiles and allocates, and is not counted.
    const STEPS: usize = 2;
    let prompt = options.prompt.max(1);
    let (context, cache) = (Some(prompt.saturating_add(STEPS + 1)), options.execution.cache()?);
    let mut sequences = model.sequences(SequencesOptions { most: batch, context, cache })?;
    for sequence in 0..batch {
        let options = SequenceOptions { sampler: Sampler::greedy(), most: STEPS + 1, ignore_end: true };
        sequences.add(&model.arbitrary_tokens(sequence + 1, prompt), options)?;
    }
    for _ in 0..STEPS {
        sequences.step()?;
    }
    print("step", batch, prompt, &sequences.profile()?, out)
}

fn print(test: &str, tokens: usize, depth: usize, profile: &KernelProfile, out: &mut impl Write) -> Result<()> {
    let mut all: HashMap<&str, Launches> = HashMap::new();
    for kernel in &profile.kernels {
        let launches = all.entry(&kernel.name).or_default();
        launches.count += 1;
        launches.nanoseconds += kernel.nanoseconds;
    }
    let mut all: Vec<(&str, Launches)> = all.into_iter().collect();
    all.sort_by(|(a, x), (b, y)| y.nanoseconds.total_cmp(&x.nanoseconds).then(a.cmp(b)));
    let (total, width) = (profile.nanoseconds(), all.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(6));
    writeln!(out, "{test} of {tokens} at depth {depth}: {} launches", profile.kernels.len())?;
    writeln!(out, "{:width$} {:>8} {:>10} {:>12} {:>7}", "kernel", "launches", "us each", "us", "share")?;
    for (name, Launches { count, nanoseconds }) in all {
        let (each, us) = (nanoseconds / count as f64 / 1e3, nanoseconds / 1e3);
        let share = if total > 0.0 { 100.0 * nanoseconds / total } else { 0.0 };
        writeln!(out, "{name:width$} {count:>8} {each:>10.2} {us:>12.1} {share:>6.1}%")?;
    }
    writeln!(out, "{:width$} {:>8} {:>10} {:>12.1}\n", "total", profile.kernels.len(), "", total / 1e3)?;
    Ok(out.flush()?)
}
