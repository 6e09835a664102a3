//! `kiln-llm quantize`.

use std::io::{IsTerminal, Write};
use std::path::Path;

use kiln::Engine;
use kiln_gguf::Model;
use kiln_llm::{Conversion, Quantization, Recipe};

use crate::Result;
use crate::program::inspect::{plain, size};

/// Writes a model in other types. Prints the new type of each tensor, and shows the progress on a terminal.
pub(crate) fn run(model: &Model, to: &Path, recipe: Recipe, again: bool, out: &mut impl Write) -> Result<()> {
    let quantization = Quantization::new(model, recipe, again)?;
    let conversions = quantization.conversions();
    let engine = Engine::new()?;
    for conversion in conversions {
        let (before, after) = (size(conversion.bytes), size(conversion.bytes_after));
        let name = plain(&conversion.name);
        match conversion.from == conversion.to {
            true => writeln!(out, "{:<6}           {before:>10}               {name}", conversion.from)?,
            false => {
                writeln!(out, "{:<6} to {:<6} {before:>10} to {after:>10}  {name}", conversion.from, conversion.to)?
            }
        }
    }
    out.flush()?;
    let shown = std::io::stderr().is_terminal();
    let count = conversions.len();
    let saturated = quantization.save(&engine, to, &|number| {
        if shown {
            eprint!("\r{} of {count} tensors", number + 1);
        }
    })?;
    if shown {
        eprintln!();
    }
    if saturated > 0 {
        writeln!(
            out,
            "{saturated} blocks have elements too large for their new type: these elements are reduced in the new file"
        )?;
    }
    let total = |bytes: fn(&Conversion) -> u64| conversions.iter().map(bytes).sum::<u64>();
    let elements = total(|conversion| conversion.elements).max(1);
    let (before, after) = (total(|conversion| conversion.bytes), total(|conversion| conversion.bytes_after));
    let bits = after as f64 * 8.0 / elements as f64;
    writeln!(out, "{to:?}: {} to {}, {bits:.2} bits a weight", size(before), size(after))?;
    Ok(())
}
