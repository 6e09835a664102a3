//! Models: weights, vocabulary and what they compute.

use std::path::Path;

use kiln::Engine;

use crate::architecture::Weights;
#[cfg(feature = "chat")]
use crate::chat::{ChatTemplate, Templates};
use crate::config::Config;
use crate::weights::Source;
use crate::{Result, Session, SessionOptions, Tokenizer};

/// A language model on an engine.
///
/// Its weights share the bytes of their file. Where a device runs them, they are copied there once, whatever the number of
/// sessions.
#[derive(Debug)]
pub struct Model<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) config: Config,
    pub(crate) weights: Weights,
    tokenizer: Tokenizer,
    #[cfg(feature = "chat")]
    templates: Templates,
}

impl<'e> Model<'e> {
    /// Loads a GGUF file; of a model in several files the first (`NAME-00001-of-0000N.gguf`).
    ///
    /// The file is mapped into memory: it must not change while the model lives. [`Model::from_gguf`] takes one that was read.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for a file that is not valid or lacks something,
    /// [`Error::UnsupportedArchitecture`](crate::Error::UnsupportedArchitecture),
    /// [`Error::UnsupportedTokenizer`](crate::Error::UnsupportedTokenizer), [`Error::Model`](crate::Error::Model) where metadata and
    /// weights contradict one another.
    pub fn load(engine: &'e Engine, path: impl AsRef<Path>) -> Result<Self> {
        Self::from_gguf(engine, kiln_gguf::Model::open(path)?)
    }

    /// Loads a model from an open file.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_gguf(engine: &'e Engine, file: kiln_gguf::Model) -> Result<Self> {
        let config = Config::read(&file)?;
        let tokenizer = Tokenizer::from_gguf(file.metadata())?;
        if tokenizer.len() > config.vocabulary {
            let reason = format!("{} tokens have only {} rows of embeddings", tokenizer.len(), config.vocabulary);
            return Err(crate::Error::model("the vocabulary", reason));
        }
        #[cfg(feature = "chat")]
        let templates = Templates::from_gguf(file.metadata())?;
        let weights = Weights::load(&Source::new(file), &config)?;
        Ok(Self {
            engine,
            config,
            weights,
            tokenizer,
            #[cfg(feature = "chat")]
            templates,
        })
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template of this name in the file, or its default one.
    ///
    /// # Errors
    /// [`Error::MissingTemplate`](crate::Error::MissingTemplate), [`Error::Template`](crate::Error::Template) where it is not valid.
    #[cfg(feature = "chat")]
    pub fn chat_template(&self, name: Option<&str>) -> Result<ChatTemplate> {
        ChatTemplate::new(self.templates.get(name)?, &self.tokenizer)
    }

    /// The number of tokens that the model was made for.
    pub fn context(&self) -> usize {
        self.config.context
    }

    /// The number of tokens that it tells apart: a vector of logits is as long.
    pub fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    /// A new, empty sequence of tokens.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn session(&self, options: SessionOptions) -> Result<Session<'_>> {
        Session::new(self, options)
    }
}
