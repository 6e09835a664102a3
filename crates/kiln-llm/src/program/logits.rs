//! `kiln-llm logits`.

use std::io::Write;

use crate::Result;
use crate::program::input::Input;
use crate::program::options::ExecutionOptions;

/// The options of the command.
pub(crate) struct Logits {
    pub(crate) tokens: Vec<u32>,
    pub(crate) top: usize,
    pub(crate) json: bool,
    pub(crate) context: Option<usize>,
    pub(crate) execution: ExecutionOptions,
}

/// Prints the logits after the tokens: all of them as JSON, or the likeliest tokens, each in a line with its logit and
/// its text.
pub(crate) fn run(input: Input, options: &Logits, out: &mut impl Write) -> Result<()> {
    let engine = options.execution.engine()?;
    let model = options.execution.model(input, &engine)?;
    let mut session = options.execution.session(&model, options.context)?;
    session.push(&options.tokens)?;
    let logits = session.logits()?;
    if options.json {
        if let Some(token) = logits.iter().position(|logit| logit.is_infinite()) {
            return Err(format!("the logit of token {token} is infinite, which JSON cannot represent").into());
        }
        writeln!(out, "{}", serde_json::json!({ "tokens": options.tokens, "logits": logits }))?;
        return Ok(());
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Equal logits are ordered by token.
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    for token in order.into_iter().take(options.top) {
        let text = model.tokenizer().token(token as u32).unwrap_or_default();
        writeln!(out, "{token:>7} {:>12.6} {:?}", logits[token], String::from_utf8_lossy(text))?;
    }
    Ok(())
}
