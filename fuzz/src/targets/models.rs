//! GGUF files of models, loaded whole and in parts: their weights, and a token that they compute.

use kiln_llm::{Loader, Model, SessionOptions};

use super::{engine, message};
use crate::model_files::random_model::{GEMMA3, KINDS, Kind, RandomModel};

/// Small models of random weights, with one layer each but where windows and rotations differ by layer.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let kinds = KINDS.iter().filter(|kind| kind.layers <= GEMMA3.layers);
    kinds.enumerate().map(|(at, kind)| file(*kind, &format!("fuzz-{at}"))).collect()
}

fn file(kind: Kind, name: &str) -> Vec<u8> {
    let layers = if kind.layers == 2 { 1 } else { kind.layers };
    let path = RandomModel::new(Kind { layers, ..kind }).save(name);
    let bytes = std::fs::read(&path).expect("it was just written");
    std::fs::remove_file(path).expect("it was just written");
    bytes
}

/// Loads a model in one piece and in several, which must agree, and computes what follows a text.
pub(crate) fn run(bytes: &[u8]) {
    let whole = loaded([bytes].into_iter(), bytes.len());
    let piece = 1 + bytes.iter().take(256).fold(0usize, |sum, &byte| sum + usize::from(byte)) % 3000;
    let pieces = loaded(bytes.chunks(piece), bytes.len());
    assert_eq!(whole.is_ok(), pieces.is_ok(), "{:?} and {:?}", whole.as_ref().err(), pieces.as_ref().err());
    match whole {
        Ok(model) => step(&model),
        Err(error) => message(error),
    }
}

fn loaded<'b>(pieces: impl Iterator<Item = &'b [u8]>, bytes: usize) -> kiln_llm::Result<Model<'static>> {
    let mut loader = Loader::new(bytes as u64);
    for piece in pieces {
        loader.push(piece)?;
    }
    loader.finish(engine())
}

/// Computes the logits after a text: as many as there are tokens, or an error.
pub(super) fn step(model: &Model<'_>) {
    let options = SessionOptions { context: Some(64), ..SessionOptions::default() };
    let logits = || -> kiln_llm::Result<Vec<f32>> {
        let mut session = model.session(options)?;
        session.push(&[1, 6, 7])?;
        session.logits()
    };
    match logits() {
        Ok(logits) => assert_eq!(logits.len(), model.vocabulary()),
        Err(error) => message(error),
    }
}
