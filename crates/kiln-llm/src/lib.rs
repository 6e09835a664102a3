//! Language models on kiln. So far: tokenizers, and the program `kiln-llm`, which looks into model files.
#![forbid(unsafe_code)]

mod error;
mod tokenizer;
mod unicode;

pub use error::{Error, Result};
pub use tokenizer::{Decoder, Encoding, SpecialTokens, TokenKind, Tokenizer};
