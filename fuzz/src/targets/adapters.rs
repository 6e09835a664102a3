//! Adapters: GGUF files, and `adapter_config.json` with safetensors.

use kiln_gguf::Gguf;
use kiln_llm::Adapter;

use super::message;
use crate::model_files::random_adapter::RandomAdapter;
use crate::model_files::random_model::{LLAMA, PHI3};
use crate::parts;

/// An adapter of both kinds of files, for separate and for fused projections.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let of = |kind, dtype| {
        let adapter = RandomAdapter::new(kind, 7, 2, dtype, |layer, name| layer == 0 && name != "ffn_gate");
        let peft = parts::join(&[adapter.peft_config().to_string().as_bytes(), &adapter.peft_weights()]);
        [adapter.gguf(), peft]
    };
    [of(LLAMA, "F16"), of(PHI3, "F32")].concat()
}

/// Reads an adapter and lists what it changes.
pub(crate) fn run(bytes: &[u8]) {
    let adapter = if bytes.starts_with(b"GGUF") {
        let Ok(file) = Gguf::parse(bytes) else { return };
        Adapter::from_gguf("adapter", &file)
    } else {
        let [config, weights] = parts::split(bytes);
        let Ok(config) = std::str::from_utf8(config) else { return };
        Adapter::from_peft("adapter", config, weights)
    };
    match adapter {
        Ok(adapter) => assert!(adapter.modules().all(|module| module.rank <= bytes.len())),
        Err(error) => message(error),
    }
}
