//! What can go wrong with models.

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Every variant says what was expected, what was found and, where a person can do something, what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model file is damaged, or lacks something.
    #[error(transparent)]
    File(#[from] kiln_gguf::Error),
    /// A tokenizer.json is not JSON, or not of the form of such files.
    #[error("tokenizer.json: {0}")]
    Json(#[from] serde_json::Error),
    /// The model has a tokenizer of a kind that kiln does not have.
    #[error("the tokenizer {found:?} is not supported, {supported} are")]
    UnsupportedTokenizer {
        /// What the file names.
        found: String,
        /// What is supported.
        supported: &'static str,
    },
    /// The vocabulary contradicts itself.
    #[error("the vocabulary is not valid: {what}: {reason}")]
    Vocabulary {
        /// The key, or the part of the file.
        what: &'static str,
        /// What is wrong and what was expected.
        reason: String,
    },
}

impl Error {
    /// A [`Error::Vocabulary`].
    pub(crate) fn vocabulary(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Vocabulary { what, reason: reason.into() }
    }
}
