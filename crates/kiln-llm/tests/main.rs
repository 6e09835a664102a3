//! The tests that need neither a GPU nor files of models, in one program: each program would compile the random models and link the
//! backends again. `cargo test -p kiln-llm --test all forward` runs those of one file.
#![cfg(not(target_arch = "wasm32"))]

mod bad_input;
#[cfg(feature = "chat")]
mod chat;
#[cfg(all(feature = "program", feature = "chat"))]
mod chat_program;
mod embeddings;
mod folders;
mod forward;
mod json;
#[cfg(feature = "program")]
mod program;
mod quantize;
mod stream;
mod support;
mod throughput;
mod tokenizers;
