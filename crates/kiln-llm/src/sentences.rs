//! Settings of embeddings: pooling, and limits of texts.

/// The pooling of the rows of a text's tokens into its embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean of all rows, including those of `[CLS]` and `[SEP]`.
    Mean,
    /// The row of the first token, `[CLS]`.
    Cls,
    /// The row of the last token.
    Last,
}

/// Settings of files for turning texts into embeddings, in addition to the configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sentences {
    pub(crate) pooling: Pooling,
    /// Maximum tokens of a text.
    pub(crate) max_tokens: usize,
    /// Whether texts are converted to lower case before they are tokenized.
    pub(crate) lower_case: bool,
}
