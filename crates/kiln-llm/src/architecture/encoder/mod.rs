//! Encoders: models whose tokens see one another, and which compute embeddings of texts.
//!
//! BERT: the embeddings of a token, of its position and of its type are added and normalised; then each block adds the outputs of
//! attention and of a feed-forward network to its input, and normalises each sum.

mod pass;
mod weights;

use kiln_gguf::Metadata;
pub(crate) use pass::Pass;
pub(crate) use weights::Weights;

use super::{Architecture, encoder_named, encoder_names};
use crate::config::{MOST_LAYERS, MOST_ROWS};
use crate::keys::Keys;
use crate::{Error, Pooling, Result};

/// The configuration of an encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Config {
    pub(crate) architecture: &'static str,
    pub(crate) layers: usize,
    /// Elements of a token's row.
    pub(crate) width: usize,
    /// Elements between the two products of the feed-forward network.
    pub(crate) ffn: usize,
    pub(crate) heads: usize,
    pub(crate) vocabulary: usize,
    /// Number of position embeddings, which is the maximum number of tokens of a text.
    pub(crate) positions: usize,
    pub(crate) eps: f32,
    pub(crate) pooling: Pooling,
}

impl Config {
    /// Reads the configuration of an encoder from its metadata and the number of rows of its embedding.
    ///
    /// # Errors
    /// [`Error::NotAnEncoder`] and [`Error::UnsupportedArchitecture`]; [`Error::File`] for missing keys and keys of
    /// another type; [`Error::Model`] for numbers that contradict one another or request unsupported features.
    pub(crate) fn read(metadata: Metadata<'_>, vocabulary: usize) -> Result<Self> {
        let name: &str = metadata.get("general.architecture")?;
        let architecture = encoder_named(name).ok_or_else(|| match Architecture::named(name) {
            Some(decoder) => Error::NotAnEncoder { architecture: decoder.name, supported: encoder_names() },
            None => Error::unsupported_architecture(name, encoder_names()),
        })?;
        let keys = Keys::new(metadata, architecture);
        let config = Self {
            architecture,
            layers: keys.count("block_count")?,
            width: keys.count("embedding_length")?,
            ffn: keys.count("feed_forward_length")?,
            heads: keys.count("attention.head_count")?,
            vocabulary,
            positions: keys.count("context_length")?,
            eps: keys.positive("attention.layer_norm_epsilon")?.unwrap_or(1e-12),
            pooling: pooling(&keys)?,
        };
        config.check(&keys)?;
        Ok(config)
    }

    fn check(&self, keys: &Keys<'_>) -> Result<()> {
        let refused = |reason: String| Err(keys.refused(reason));
        let Self { layers, width, ffn, heads, positions, .. } = *self;
        if layers == 0 || layers > MOST_LAYERS {
            return refused(format!("{layers} layers; 1 to {MOST_LAYERS} are expected"));
        }
        let counts = [
            ("embedding_length", width),
            ("feed_forward_length", ffn),
            ("attention.head_count", heads),
            ("the vocabulary", self.vocabulary),
            ("context_length", positions),
        ];
        if let Some((what, _)) = counts.iter().find(|&&(_, count)| count == 0) {
            return refused(format!("{what} is zero"));
        }
        if let Some(large) = [width, ffn, positions].into_iter().find(|&extent| extent > MOST_ROWS) {
            return refused(format!("a matrix of {large} rows; at most {MOST_ROWS} are expected"));
        }
        if !width.is_multiple_of(heads) {
            return refused(format!("{heads} heads do not share a width of {width} evenly"));
        }
        if keys.find_truth("attention.causal")? == Some(true) {
            return refused("attention to earlier tokens alone (attention.causal) is not supported".to_owned());
        }
        for (name, computed) in [
            ("attention.head_count_kv", heads),
            ("attention.key_length", width / heads),
            ("attention.value_length", width / heads),
        ] {
            if let Some(found) = keys.find_count(name)?.filter(|&found| found != computed) {
                return refused(format!("{name} is {found}, only {computed} is supported here"));
            }
        }
        Ok(())
    }
}

/// How the rows of tokens are pooled into the embedding of a text: `pooling_type`, by default the mean.
fn pooling(keys: &Keys<'_>) -> Result<Pooling> {
    let name = "pooling_type";
    match keys.find_count(name)? {
        None | Some(0 | 1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::Cls),
        Some(3) => Ok(Pooling::Last),
        Some(4) => Err(keys.refused(format!("{name} is 4: models that rank texts are not supported"))),
        Some(other) => Err(keys.refused(format!("{name} is {other}; 0 to 3 are supported"))),
    }
}
