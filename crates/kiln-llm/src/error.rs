//! The errors of this crate.

use std::path::{Path, PathBuf};

use crate::{Bytes, MemoryPlan, SequenceId};

/// The result of the functions of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. Its message says what was expected, what was found and, where possible, what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model file is damaged or incomplete.
    #[error(transparent)]
    File(#[from] kiln_gguf::Error),
    /// A file of a folder is damaged or incomplete, or requests unsupported features.
    #[error("{}: {reason}", path.display())]
    Folder {
        /// The file, or the folder where a file is missing.
        path: PathBuf,
        /// The defect, with the tensor or the key, and what was expected.
        reason: String,
    },
    /// A tokenizer.json is not JSON, or does not have the structure of such files.
    #[error("tokenizer.json: {}", printable(.0))]
    Json(#[from] serde_json::Error),
    /// The model has an unsupported kind of tokenizer.
    #[error("the tokenizer {found:?} is not supported; supported are {supported}")]
    UnsupportedTokenizer {
        /// The kind in the file.
        found: String,
        /// The supported kinds.
        supported: &'static str,
    },
    /// An operation or a device failed.
    #[error(transparent)]
    Kiln(#[from] kiln::Error),
    /// The model has an unsupported architecture.
    #[error("the architecture {found:?} is not supported; supported are {supported}")]
    UnsupportedArchitecture {
        /// The architecture in the file.
        found: String,
        /// The supported architectures.
        supported: String,
    },
    /// The model is an encoder, but a decoder is required.
    #[error(
        "{architecture} models are encoders: they give texts embeddings and do not continue them. Load it as an EmbeddingModel, or \
         run `kiln-llm embed`"
    )]
    NotADecoder {
        /// The architecture of the model.
        architecture: &'static str,
    },
    /// The model is a decoder, but an encoder is required.
    #[error(
        "{architecture} models are decoders: they continue texts, and kiln does not compute embeddings with them. Embeddings come from \
         encoders: {supported}"
    )]
    NotAnEncoder {
        /// The architecture of the model.
        architecture: &'static str,
        /// The supported encoders.
        supported: String,
    },
    /// The model contradicts itself, or requests unsupported features.
    #[error("{what}: {reason}")]
    Model {
        /// The part of it.
        what: &'static str,
        /// The defect, and what was expected.
        reason: String,
    },
    /// An adapter is damaged, requests unsupported features, or cannot be used here.
    #[error("the adapter {adapter}: {reason}")]
    Adapter {
        /// Its path or given name.
        adapter: String,
        /// The defect, and what was expected.
        reason: String,
    },
    /// An adapter is for models of another architecture.
    #[error("the adapter {adapter} is for models of the architecture {found:?}, and the model is of {model:?}")]
    AdapterArchitecture {
        /// Its path or given name.
        adapter: String,
        /// The architecture that the adapter names.
        found: String,
        /// The architecture of the model.
        model: &'static str,
    },
    /// The matrices of an adapter do not match a projection of the model.
    #[error(
        "the adapter {adapter} does not fit the model: of layer {layer}, {projection} it maps {found:?} and the model {expected:?} \
         (inputs, outputs). It was made for a model of another size"
    )]
    AdapterShape {
        /// Its path or given name.
        adapter: String,
        /// The number of the layer, from 0 on.
        layer: usize,
        /// The projection's name in GGUF files.
        projection: &'static str,
        /// The inputs and outputs of the adapter.
        found: [usize; 2],
        /// Those of the model.
        expected: [usize; 2],
    },
    /// A session does not fit the memory of the GPU that is to run its layers.
    #[error("{}", out_of_memory(plan, *largest))]
    OutOfMemory {
        /// The memory that it would take.
        plan: Box<MemoryPlan>,
        /// The largest context that fits, if any.
        largest: Option<usize>,
    },
    /// A session is full.
    #[error("{asked} tokens do not fit a context of {context}: make a session with a larger one, or truncate it")]
    ContextFull {
        /// The maximum number of tokens of the session.
        context: usize,
        /// The number of tokens that it would have.
        asked: usize,
    },
    /// The maximum number of sequences is reached.
    #[error(
        "the maximum of {most} sequences is reached: wait until one ends, remove one, or allow more \
         (SequencesOptions::most)"
    )]
    SequencesFull {
        /// The maximum number of sequences.
        most: usize,
    },
    /// The sequence does not exist.
    #[error("sequence {sequence} is unknown: it has ended, was removed, or belongs to another `Sequences`")]
    UnknownSequence {
        /// The requested sequence.
        sequence: SequenceId,
    },
    /// The next token of one of several sequences cannot be computed.
    #[error("sequence {sequence}: {source}")]
    Sequence {
        /// The sequence.
        sequence: SequenceId,
        /// The reason.
        source: Box<Error>,
    },
    /// A text has no tokens, or too many for the model.
    #[error(
        "text {text}, counted from 0, has {tokens} tokens, 1 to {most} are possible: leave out one without tokens, and shorten a longer \
         one or have it truncated (EmbeddingOptions::truncate, `kiln-llm embed --truncate`)"
    )]
    TextLength {
        /// The index of the text among the given ones, from 0.
        text: usize,
        /// Its number of tokens, including those that the model adds.
        tokens: usize,
        /// The maximum of the model or of the options.
        most: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} is not one of the {vocabulary} tokens of the model")]
    Token {
        /// The token.
        token: u32,
        /// The number of tokens of the model.
        vocabulary: usize,
    },
    /// A parameter of a sampler is invalid, or excludes every token.
    #[error("the sampler's {parameter}: {reason}")]
    Sampler {
        /// The field of [`crate::Sampler`].
        parameter: &'static str,
        /// What was found and what is expected.
        reason: String,
    },
    /// The model computed logits that are not numbers: its weights contain some, or the numbers overflow.
    #[error("the logit of token {token} is not a number: the weights are damaged, or their numbers overflow")]
    NotANumber {
        /// The first token.
        token: usize,
    },
    /// The embedding of a text has elements that are not finite: the weights contain some, or the numbers overflow.
    #[error(
        "the embedding of text {text}, counted from 0, is not finite: the weights are damaged, or their numbers overflow"
    )]
    NotFinite {
        /// The index of the text among the given ones, from 0.
        text: usize,
    },
    /// A chat template is not valid, failed, or refuses a conversation.
    #[cfg(feature = "chat")]
    #[error("the chat template failed: {reason}")]
    Template {
        /// The reason, with the line if it is known.
        reason: String,
    },
    /// The model has no chat template, or not the named one.
    #[cfg(feature = "chat")]
    #[error(
        "the model has no chat template {wanted:?} ({found} was found): give one that fits the model, with ChatTemplate::new or \
         `kiln-llm chat --template FILE`; a model that was not trained to chat is continued by `kiln-llm run`"
    )]
    MissingTemplate {
        /// The name.
        wanted: String,
        /// The existing names.
        found: String,
    },
    /// The vocabulary contradicts itself.
    #[error("the vocabulary is not valid: {what}: {reason}")]
    Vocabulary {
        /// The key, or the part of the file.
        what: &'static str,
        /// The defect, and what was expected.
        reason: String,
    },
}

/// The message of [`Error::OutOfMemory`]: the part that does not fit, and the options that help.
fn out_of_memory(plan: &MemoryPlan, largest: Option<usize>) -> String {
    let part = plan.parts.iter().find(|part| !part.fits());
    let what = part.map_or_else(String::new, |part| {
        let there = Bytes(part.capacity.unwrap_or_default());
        format!("{} are needed on {}, but only {there} may be used there", Bytes(part.bytes()), part.place)
    });
    let context = match largest {
        Some(largest) => format!("a context of up to {largest} tokens fits (SessionOptions::context, --ctx)"),
        None => "even the shortest context does not fit".to_owned(),
    };
    format!("{what}: {context}, and layers may run on the CPU (Model::place_layers, --layers)\n{plan}")
}

/// A message without control characters, which would direct the terminal that it is printed on: parsers quote what they found.
pub(crate) fn printable(message: impl std::fmt::Display) -> String {
    message.to_string().chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl Error {
    /// A [`Error::UnsupportedArchitecture`].
    pub(crate) fn unsupported_architecture(found: &str, supported: String) -> Self {
        Self::UnsupportedArchitecture { found: found.escape_debug().to_string(), supported }
    }

    /// A [`Error::Model`].
    pub(crate) fn model(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Model { what, reason: reason.into() }
    }

    /// A [`Error::Adapter`].
    pub(crate) fn adapter(name: &str, reason: impl Into<String>) -> Self {
        Self::Adapter { adapter: name.escape_debug().to_string(), reason: reason.into() }
    }

    /// A [`Error::Folder`].
    pub(crate) fn folder(path: &Path, reason: impl Into<String>) -> Self {
        Self::Folder { path: path.to_owned(), reason: reason.into() }
    }

    /// A [`Error::Sampler`].
    pub(crate) fn sampler(parameter: &'static str, reason: impl Into<String>) -> Self {
        Self::Sampler { parameter, reason: reason.into() }
    }

    /// A [`Error::Vocabulary`].
    pub(crate) fn vocabulary(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Vocabulary { what, reason: reason.into() }
    }
}
