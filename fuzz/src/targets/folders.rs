//! Models in folders: configuration, vocabulary and safetensors.

use std::sync::atomic::{AtomicUsize, Ordering};

use kiln_llm::{EmbeddingModel, Folder, Model, ModelKind};
use serde_json::json;

use super::{engine, message, models, tokenizers};
use crate::model_files::random_bert::{self, RandomBert};
use crate::model_files::random_folder::{PLAIN, TemporaryFolder};
use crate::model_files::random_model::{Kind, LLAMA, MIXTRAL, PHI3, QWEN3, RandomModel};
use crate::parts;

/// The files that a folder is made of here.
const FILES: [&str; 4] = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];

/// Small models of random weights, with one layer each, and an encoder.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let rope = json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0});
    let decoder = |kind: Kind, model_type: &str, own| {
        let random = RandomModel::new(Kind { layers: 1, ..kind });
        files(&random.save_folder(&format!("fuzz-seed-{model_type}"), &random.config(model_type, own), PLAIN))
    };
    let encoder = RandomBert::new().save_folder("fuzz-seed-bert", random_bert::PLAIN);
    vec![
        decoder(LLAMA, "llama", json!({"rope_scaling": rope})),
        decoder(QWEN3, "qwen3", json!({"use_sliding_window": true, "sliding_window": 3, "max_window_layers": 1})),
        decoder(PHI3, "phi3", json!({"partial_rotary_factor": 1.0, "original_max_position_embeddings": 32})),
        decoder(MIXTRAL, "mixtral", json!({"num_local_experts": 5, "num_experts_per_tok": 2})),
        files(&encoder),
    ]
}

/// The files of a folder as one sequence of bytes.
fn files(folder: &TemporaryFolder) -> Vec<u8> {
    let read = FILES.map(|name| std::fs::read(folder.as_ref().join(name)).unwrap_or_default());
    parts::join(&read.each_ref().map(|file| &file[..]))
}

/// Opens a folder of these files, and computes something with its model.
pub(crate) fn run(bytes: &[u8]) {
    // Several threads may run a target at once.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let folder = TemporaryFolder::new(&format!("fuzz-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let parts = parts::split::<4>(bytes);
    for (name, part) in FILES.into_iter().zip(parts) {
        if !part.is_empty() {
            folder.write(name, part);
        }
    }
    if let Err(error) = exercise(&folder, parts[3]) {
        message(error);
    }
}

/// Computes something with a folder and its file of weights.
fn exercise(path: &TemporaryFolder, weights: &[u8]) -> kiln_llm::Result<()> {
    let folder = Folder::read(path)?;
    // A valid file is the length of its header, the header, and the tensors, without gaps.
    let header = weights.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let tensors: usize = folder.tensors().map(|tensor| tensor.bytes).sum();
    assert_eq!(8 + header + tensors, weights.len());
    folder.config().for_each(|(_, value)| drop(value));
    if let Ok(tokenizer) = folder.tokenizer() {
        tokenizers::round_trip(&tokenizer, "ab \u{e4}");
    }
    match folder.kind()? {
        ModelKind::Decoder => models::step(&Model::from_folder(engine(), folder)?),
        ModelKind::Encoder => {
            let mut model = EmbeddingModel::from_folder(engine(), folder)?;
            let dimensions = model.dimensions();
            assert!(model.embed(&["ab", ""])?.iter().all(|embedding| embedding.len() == dimensions));
        }
    }
    Ok(())
}
