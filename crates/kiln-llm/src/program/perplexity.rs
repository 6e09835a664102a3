//! `kiln-llm perplexity`.

use std::io::{IsTerminal, Write};

use crate::Result;
use crate::program::input::Input;
use crate::program::options::ExecutionOptions;

/// The options of the command.
pub(crate) struct Perplexity {
    pub(crate) text: String,
    /// Tokens of a part, at least 4.
    pub(crate) context: usize,
    /// Maximum number of parts.
    pub(crate) chunks: Option<usize>,
    pub(crate) execution: ExecutionOptions,
}

/// Divides a text into parts of `context` tokens, and scores the second half of each given the preceding tokens of the
/// part. Follows llama.cpp, so that results are comparable: the model's first token (BOS) replaces the first one of a
/// part.
pub(crate) fn run(input: Input, options: &Perplexity, out: &mut impl Write) -> Result<()> {
    let engine = options.execution.engine()?;
    let model = options.execution.model(input, &engine)?;
    let context = options.context;
    let mut tokens = model.tokenizer().encode(&options.text);
    let all = tokens.len() / context;
    if all == 0 {
        let reason = format!("the text has {} tokens, and a part of {context} is needed", tokens.len());
        return Err(format!("{reason}: take a longer one, or a smaller --ctx").into());
    }
    let (first, _) = model.tokenizer().around();
    let chunks = options.chunks.map_or(all, |chunks| chunks.min(all));
    let mut session = options.execution.session(&model, Some(context))?;
    let shown = std::io::stderr().is_terminal();
    // Sums of -ln p and of its square.
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0usize);
    for (number, part) in tokens.chunks_exact_mut(context).take(chunks).enumerate() {
        if let Some(first) = first {
            part[0] = first;
        }
        let (before, scored) = part.split_at(context / 2 + 1);
        session.truncate(0);
        session.push(before)?;
        for score in session.score(scored)? {
            let loss = -f64::from(score);
            sum += loss;
            squares += loss * loss;
            count += 1;
        }
        if shown {
            eprint!("\r{} of {chunks} parts, perplexity {:.4} ", number + 1, (sum / count as f64).exp());
        }
    }
    if shown {
        eprintln!();
    }
    let mean = sum / count as f64;
    // The standard error of the mean, propagated through the exponential.
    let variance = (squares / count as f64 - mean * mean).max(0.0);
    let error = (variance / count.saturating_sub(1).max(1) as f64).sqrt() * mean.exp();
    writeln!(out, "perplexity {:.4} ± {error:.4} of {count} tokens in {chunks} parts of {context}", mean.exp())?;
    Ok(())
}
