//! Models: weights, vocabulary and what they compute.

use std::collections::HashMap;
use std::path::Path;

use kiln::{Engine, Tensor};
use kiln_gguf::Metadata;

use crate::architecture::Weights;
#[cfg(feature = "chat")]
use crate::chat::{ChatTemplate, Templates};
use crate::config::Config;
#[cfg(not(browser_gpu))]
use crate::placement::{self, Asked};
use crate::weights::Source;
use crate::{AdaptedModel, Adapter, DeviceLayers, Error, Folder, Result, Session, SessionOptions, Tokenizer};
#[cfg(not(browser_gpu))]
use crate::{MemoryPlan, Sequences, SequencesOptions};

/// The message for an adapter in place of a model.
pub(crate) const NO_MODEL: &str =
    "a model is needed here, which adapters are used with: Model::with_adapters, or `kiln-llm run MODEL --lora FILE`";

/// A language model on an engine.
///
/// Its weights share the bytes of their file. Where a device runs them, they are copied there once, whatever the number of
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
struct Parts {
    config: Config,
    tokenizer: Tokenizer,
    #[cfg(feature = "chat")]
    templates: Templates,
    source: Source,
}

impl Parts {
    fn of_gguf(file: kiln_gguf::Model) -> Result<Self> {
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

    fn of_folder(folder: Folder) -> Result<Self> {
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
}

/// The devices that an engine forces everything to: those of a group, or 1.
fn devices_of(engine: &Engine) -> Result<usize> {
    match engine.router().forced() {
        Some(place) => Ok(engine.devices_of(&engine.places()[place].name)?),
        None => Ok(1),
    }
}

impl<'e> Model<'e> {
    /// Loads a GGUF file, of a model in several files the first (`NAME-00001-of-0000N.gguf`), or a [`Folder`].
    ///
    /// On an engine that forces a group of devices ([`EngineBuilder::cuda_group`](kiln::EngineBuilder)), heads and elements of
    /// feed-forward networks are divided over them, and each holds its share of the weights, keys and values.
    ///
    /// The files are mapped into memory: they must not change while the model lives. [`Model::from_gguf`] and [`Model::from_folder`]
    /// take ones that were read.
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

    fn of(engine: &'e Engine, parts: Parts) -> Result<Self> {
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

    /// Says which layers run on a GPU in sessions that are made from now on.
    pub fn place_layers(&mut self, layers: DeviceLayers) {
        self.device_layers = layers;
    }

    /// The memory that a session would take on each device, and where its layers would run. Nothing is allocated.
    ///
    /// # Errors
    /// The errors of [`Session::new`].
    #[cfg(not(browser_gpu))]
    pub fn memory_plan(&self, options: SessionOptions) -> Result<MemoryPlan> {
        let context = Session::context_of(self, options)?;
        let asked = Asked { context, cache: options.cache, sequences: 1, adapters: None };
        Ok(placement::plan(self, asked)?.1)
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

    /// The number of tokens of its vocabulary, which is the length of a vector of logits.
    pub fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    /// A new, empty sequence of tokens.
    ///
    /// # Errors
    /// The errors of [`Session::new`].
    pub fn session(&self, options: SessionOptions) -> Result<Session<'_>> {
        Session::new(self, options)
    }

    /// Room for several sequences of tokens.
    ///
    /// # Errors
    /// The errors of [`Sequences::new`].
    #[cfg(not(browser_gpu))]
    pub fn sequences(&self, options: SequencesOptions) -> Result<Sequences<'_>> {
        Sequences::new(self, options)
    }

    /// The model with adapters, whose sessions switch between them from one step to the next.
    ///
    /// The matrices of all adapters are stacked beside the weights: a step reads those of adapters that are not used, too, and multiplies
    /// them by 0. So it costs what one adapter of the sum of their ranks costs, and a switch costs nothing but the keys and values of the
    /// tokens so far. Sessions of [`Model::session`] are free of all of it.
    ///
    /// # Errors
    /// [`Error::AdapterArchitecture`](crate::Error::AdapterArchitecture) for an adapter of another architecture,
    /// [`Error::AdapterShape`](crate::Error::AdapterShape) for one whose matrices do not fit, [`Error::Adapter`](crate::Error::Adapter)
    /// for layers that the model does not have, and for an adapter that is given twice.
    pub fn with_adapters<'a>(&self, adapters: impl IntoIterator<Item = &'a Adapter>) -> Result<AdaptedModel<'_>> {
        let adapters: Vec<Adapter> = adapters.into_iter().cloned().collect();
        AdaptedModel::new(self, &adapters)
    }
}

/// A model without its weights: their types and extents, for a plan of the memory that [`Model`] takes.
///
/// A file is mapped and its tensors are not read, except vectors such as norms. Matrices that [`Model::load`] would copy, such as those of
/// experts in folders, are not copied. Only an engine that forces a group of devices reads matrices, to divide them.
///
/// ```no_run
/// # fn main() -> kiln_llm::Result<()> {
/// # let engine = kiln::Engine::new()?;
/// use kiln_llm::{ModelOutline, SessionOptions};
///
/// let outline = ModelOutline::load(&engine, "model.gguf")?;
/// println!("{}", outline.memory_plan(SessionOptions { context: Some(32_768), ..SessionOptions::default() })?);
/// # Ok(())
/// # }
/// ```
#[cfg(not(browser_gpu))]
#[derive(Debug)]
pub struct ModelOutline<'e>(Model<'e>);

#[cfg(not(browser_gpu))]
impl<'e> ModelOutline<'e> {
    /// The outline of what [`Model::load`] loads.
    ///
    /// # Errors
    /// The errors of [`Model::load`], except those of elements that cannot be used.
    pub fn load(engine: &'e Engine, path: impl AsRef<Path>) -> Result<Self> {
        match path.as_ref().is_dir() {
            true => Self::from_folder(engine, Folder::open(path)?),
            false => Self::from_gguf(engine, kiln_gguf::Model::open(path)?),
        }
    }

    /// The outline of an open file.
    ///
    /// # Errors
    /// The errors of [`ModelOutline::load`].
    pub fn from_gguf(engine: &'e Engine, file: kiln_gguf::Model) -> Result<Self> {
        Self::of(engine, Parts::of_gguf(file)?)
    }

    /// The outline of an open folder.
    ///
    /// # Errors
    /// The errors of [`ModelOutline::load`].
    pub fn from_folder(engine: &'e Engine, folder: Folder) -> Result<Self> {
        Self::of(engine, Parts::of_folder(folder)?)
    }

    fn of(engine: &'e Engine, parts: Parts) -> Result<Self> {
        let source = parts.source.without_copies();
        Model::of(engine, Parts { source, ..parts }).map(Self)
    }

    /// Says which layers run on a GPU in plans that are made from now on.
    pub fn place_layers(&mut self, layers: DeviceLayers) {
        self.0.place_layers(layers);
    }

    /// The plan of [`Model::memory_plan`].
    ///
    /// # Errors
    /// The errors of [`Model::memory_plan`].
    pub fn memory_plan(&self, options: SessionOptions) -> Result<MemoryPlan> {
        self.0.memory_plan(options)
    }
}
