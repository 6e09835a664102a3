//! `kiln-llm tokenize`.

use std::io::Write;

use kiln_llm::{Encoding, Tokenizer};

use crate::Result;

/// Prints the tokens of a text: each in a line with its text in the file, or only the numbers.
pub(crate) fn run(
    tokenizer: &Tokenizer,
    text: &str,
    encoding: Encoding,
    ids: bool,
    out: &mut impl Write,
) -> Result<()> {
    let tokens = tokenizer.encode_with(text, encoding);
    if ids {
        let numbers: Vec<String> = tokens.iter().map(u32::to_string).collect();
        writeln!(out, "{}", numbers.join(" "))?;
        return Ok(());
    }
    for token in tokens {
        writeln!(out, "{token:>7} {:?}", String::from_utf8_lossy(tokenizer.token(token).unwrap_or_default()))?;
    }
    Ok(())
}
