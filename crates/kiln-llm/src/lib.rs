//! Language models on kiln. So far: tokenizers, and the program `kiln-llm`, which looks into model files.
//!
//! Take this crate for the tokens of a model: it needs nothing of kiln but the reader of model files, and without the feature
//! `program` (on by default) no parser of command lines.
//!
//! ```no_run
//! use kiln_llm::Tokenizer;
//!
//! # fn main() -> kiln_llm::Result<()> {
//! let model = kiln_gguf::Model::open("model.gguf")?;
//! let tokenizer = Tokenizer::from_gguf(model.metadata())?;
//! let tokens = tokenizer.encode("Once upon a time");
//! println!("{tokens:?} are {:?}", tokenizer.decode(&tokens));
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | what it holds |
//! |---|---|
//! | `tokenizer` | [`Tokenizer`]: from texts to tokens and back |
//! | `tokenizer/gguf`, `json` | tokenizers from the metadata of GGUF files, and from `tokenizer.json` |
//! | `tokenizer/spm`, `bpe`, `wordpiece`, `unigram` | how each kind cuts texts; `merge` is what the first two share |
//! | `tokenizer/pretokenize` | how each family of byte-pair encoding splits texts into words |
//! | `tokenizer/special` | tokens that are recognised before anything else, and tokens that end a generation |
//! | `tokenizer/vocabulary`, `hash` | the tokens, and the token of a text |
//! | `tokenizer/decode` | [`Decoder`]: text from tokens as they come |
//! | `unicode` | classes of characters, and characters without accents, from generated tables |
//! | `error` | [`Error`]: what was expected, what was found, what to do |
//!
//! Texts are tokenized as they are: they are not brought to a normal form of Unicode, which llama.cpp does not do either. BERT and
//! unigram tokenizers map characters as their files say.
#![forbid(unsafe_code)]

mod error;
mod tokenizer;
mod unicode;

pub use error::{Error, Result};
pub use tokenizer::{Decoder, Encoding, SpecialTokens, TokenKind, Tokenizer};
