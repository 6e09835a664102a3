//! `kiln-llm embed`.

use std::io::{self, BufRead, Write};

use kiln_llm::{EmbeddingOptions, Pooling};
use serde_json::json;

use crate::Result;
use crate::program::input::Input;
use crate::program::options::DeviceOption;

/// The texts to embed, and the output format.
pub(crate) struct Embed {
    /// If empty, the lines of standard input.
    pub(crate) texts: Vec<String>,
    pub(crate) options: EmbeddingOptions,
    pub(crate) json: bool,
    pub(crate) similarity: bool,
    pub(crate) device: DeviceOption,
}

/// The kinds of pooling, by their names in the command.
pub(crate) const POOLINGS: [(&str, Pooling); 3] =
    [("mean", Pooling::Mean), ("cls", Pooling::Cls), ("last", Pooling::Last)];

/// Prints the embedding of each text in a line, or all as JSON, or the cosines of all pairs.
pub(crate) fn run(input: Input, embed: Embed, out: &mut impl Write) -> Result<()> {
    let engine = embed.device.engine()?;
    let mut model = input.embedding_model(&engine)?;
    let texts = match embed.texts.is_empty() {
        true => {
            let lines = io::stdin().lock().lines().collect::<io::Result<Vec<_>>>();
            lines.map_err(|error| format!("the standard input: {error}"))?
        }
        false => embed.texts,
    };
    let embeddings = model.embed_with(&texts, embed.options)?;
    let cosines = || -> Vec<Vec<f32>> {
        let cosine =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32;
        embeddings.iter().map(|a| embeddings.iter().map(|b| cosine(a, b)).collect()).collect()
    };
    match (embed.json, embed.similarity) {
        (true, true) => writeln!(out, "{}", json!({ "texts": texts, "similarity": cosines() }))?,
        (true, false) => writeln!(out, "{}", json!({ "texts": texts, "embeddings": embeddings }))?,
        (false, true) => print(&cosines(), |x| format!("{x:7.4}"), out)?,
        (false, false) => print(&embeddings, |x| x.to_string(), out)?,
    }
    Ok(())
}

/// Prints rows of numbers, one per line.
fn print(rows: &[Vec<f32>], number: impl Fn(f32) -> String, out: &mut impl Write) -> Result<()> {
    for row in rows {
        let row: Vec<String> = row.iter().map(|&x| number(x)).collect();
        writeln!(out, "{}", row.join(" "))?;
    }
    Ok(())
}
