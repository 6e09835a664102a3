//! Models: their configuration, weights and vocabulary.

use std::collections::HashMap;
use std::path::Path;

use kiln::{Engine, Tensor};
use kiln_gguf::Metadata;

use crate::architecture::Weights;
#[cfg(feature = "chat")]
use crate::chat::{ChatTemplate, Templates};
use crate::config::Config;
use crate::tensor_source::Source;
use crate::{DeviceLayers, Error, Folder, Result, Tokenizer};

/// The message for an adapter in place of a model.
pub(crate) const NO_MODEL: &str =
    "a model is needed here, not an adapter: see Model::with_adapters, or `kiln-llm run MODEL --lora FILE`";

/// A language model on an engine.
///
/// Its weights share the bytes of their file. They are copied once to each device that uses them, whatever the number of
/// sessions.
#[derive(Debug)]
pub struct Model<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) config: Config,
    pub(crate) weights: Weights,
    pub(crate) device_layers: DeviceLayers,
    /// The devices of a group that its weights are divided over, or 1.
    pub(crate) devices: usize,
    tokenizer: Tokenizer,
    #[cfg(feature = "chat")]
    templates: Templates,
}

/// The parts of a model from any kind of file.
pub(crate) struct Parts {
    config: Config,
    tokenizer: Tokenizer,
    #[cfg(feature = "chat")]
    templates: Templates,
    source: Source,
}

impl Parts {
    pub(crate) fn of_gguf(file: kiln_gguf::Model) -> Result<Self> {
        if matches!(file.metadata().get("general.type"), Ok("adapter")) {
            let path = file.paths().first().map_or_else(String::new, |path| path.display().to_string());
            return Err(Error::adapter(&path, NO_MODEL));
        }
        let embedding = file.tensor("token_embd.weight")?;
        let rows = embedding.info().extents().get(1).map_or(0, |&rows| rows as usize);
        Ok(Self {
            config: Config::read(file.metadata(), rows)?,
            tokenizer: Tokenizer::from_gguf(file.metadata())?,
            #[cfg(feature = "chat")]
            templates: Templates::from_gguf(file.metadata())?,
            source: Source::new(file),
        })
    }

    pub(crate) fn of_folder(folder: Folder) -> Result<Self> {
        let tokenizer = folder.tokenizer();
        #[cfg(feature = "chat")]
        let templates = folder.templates();
        // Reports an unsupported architecture before other errors.
        let (config, weights) = folder.into_parts()?;
        Ok(Self {
            config,
            tokenizer: tokenizer?,
            #[cfg(feature = "chat")]
            templates: templates?,
            source: Source::of_folder(weights),
        })
    }

    /// The same without the elements of matrices that loading would copy.
    #[cfg(not(browser_gpu))]
    pub(crate) fn without_copies(self) -> Self {
        Self { source: self.source.without_copies(), ..self }
    }
}

/// The devices that an engine forces everything to: those of a group, or 1.
fn devices_of(engine: &Engine) -> Result<usize> {
    match engine.router().forced() {
        Some(place) => Ok(engine.devices_of(&engine.places()[place].name)?),
        None => Ok(1),
    }
}

impl<'e> Model<'e> {
    /// Loads a GGUF file, or a [`Folder`]. For a model in several files, name the first (`NAME-00001-of-0000N.gguf`).
    ///
    /// On an engine that forces a group of devices ([`EngineBuilder::cuda_group`](kiln::EngineBuilder)), heads and elements of
    /// feed-forward networks are divided over them, and each holds its share of the weights, keys and values.
    ///
    /// The files are mapped into memory: they must not change while the model lives. [`Model::from_gguf`] and [`Model::from_folder`]
    /// also accept files that were read into memory.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for a file that is not valid or lacks something, [`Error::Folder`](crate::Error::Folder)
    /// for one of a folder, [`Error::NotADecoder`](crate::Error::NotADecoder),
    /// [`Error::UnsupportedArchitecture`](crate::Error::UnsupportedArchitecture),
    /// [`Error::UnsupportedTokenizer`](crate::Error::UnsupportedTokenizer), [`Error::Model`](crate::Error::Model) where metadata and
    /// weights contradict one another.
    pub fn load(engine: &'e Engine, path: impl AsRef<Path>) -> Result<Self> {
        match path.as_ref().is_dir() {
            true => Self::from_folder(engine, Folder::open(path)?),
            false => Self::from_gguf(engine, kiln_gguf::Model::open(path)?),
        }
    }

    /// Loads a model from an open file.
    ///
    /// # Errors
    /// The errors of [`Model::load`].
    pub fn from_gguf(engine: &'e Engine, file: kiln_gguf::Model) -> Result<Self> {
        Self::of(engine, Parts::of_gguf(file)?)
    }

    /// Loads a model from an open folder.
    ///
    /// # Errors
    /// The errors of [`Model::load`].
    pub fn from_folder(engine: &'e Engine, folder: Folder) -> Result<Self> {
        Self::of(engine, Parts::of_folder(folder)?)
    }

    /// A model from tensors by their names in GGUF files.
    pub(crate) fn of_tensors(
        engine: &'e Engine,
        metadata: Metadata<'_>,
        config: Config,
        tensors: HashMap<String, Tensor>,
    ) -> Result<Self> {
        let parts = Parts {
            config,
            tokenizer: Tokenizer::from_gguf(metadata)?,
            #[cfg(feature = "chat")]
            templates: Templates::from_gguf(metadata)?,
            source: Source::of_tensors(tensors),
        };
        Self::of(engine, parts)
    }

    /// A model from the parts of a file.
    ///
    /// # Errors
    /// The errors of [`Model::load`].
    pub(crate) fn of(engine: &'e Engine, parts: Parts) -> Result<Self> {
        let Parts { config, tokenizer, source, .. } = parts;
        tokenizer.check_rows(config.vocabulary)?;
        let weights = Weights::load(&source, &config)?;
        let devices = devices_of(engine)?;
        let (config, weights) = match devices {
            1 => (config, weights),
            _ => (config.divided(devices)?, weights.divided(devices)?),
        };
        Ok(Self {
            engine,
            config,
            weights,
            devices,
            device_layers: DeviceLayers::default(),
            tokenizer,
            #[cfg(feature = "chat")]
            templates: parts.templates,
        })
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Sets which layers run on a GPU in sessions that are made from now on.
    pub fn place_layers(&mut self, layers: DeviceLayers) {
        self.device_layers = layers;
    }

    /// Returns the chat template with this name in the file, or the default one.
    ///
    /// # Errors
    /// [`Error::MissingTemplate`](crate::Error::MissingTemplate), [`Error::Template`](crate::Error::Template) if it is not valid.
    #[cfg(feature = "chat")]
    pub fn chat_template(&self, name: Option<&str>) -> Result<ChatTemplate> {
        ChatTemplate::new(self.templates.get(name)?, &self.tokenizer)
    }

    /// The context length of the model in tokens.
    pub fn context(&self) -> usize {
        self.config.context
    }

    /// The number of tokens of its vocabulary, which is the length of a vector of logits.
    pub fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }
}
