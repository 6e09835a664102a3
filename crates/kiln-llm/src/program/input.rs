//! The input of a command: a GGUF file or a folder, of a model or of an adapter.

use std::path::Path;

use kiln::Engine;
use kiln_llm::{Adapter, EmbeddingModel, Folder, Model, ModelOutline, Result, Tokenizer};

/// An open model, or an adapter.
pub(crate) enum Input {
    Gguf(kiln_gguf::Model),
    Folder(Folder),
    /// An adapter in a PEFT folder.
    Adapter(Adapter),
}

impl Input {
    /// Maps the files of a model, or reads them.
    pub(crate) fn open(path: &Path, read: bool) -> Result<Self> {
        let has = |name: &str| path.join(name).exists();
        if has("adapter_config.json") && !has("config.json") {
            return Ok(Self::Adapter(Adapter::load(path)?));
        }
        Ok(match (path.is_dir(), read) {
            (true, false) => Self::Folder(Folder::open(path)?),
            (true, true) => Self::Folder(Folder::read(path)?),
            (false, false) => Self::Gguf(kiln_gguf::Model::open(path)?),
            (false, true) => Self::Gguf(kiln_gguf::Model::read(path)?),
        })
    }

    pub(crate) fn model(self, engine: &Engine) -> crate::Result<Model<'_>> {
        Ok(match self {
            Self::Gguf(file) => Model::from_gguf(engine, file)?,
            Self::Folder(folder) => Model::from_folder(engine, folder)?,
            Self::Adapter(adapter) => return Err(no_model(&adapter)),
        })
    }

    pub(crate) fn outline(self, engine: &Engine) -> crate::Result<ModelOutline<'_>> {
        Ok(match self {
            Self::Gguf(file) => ModelOutline::from_gguf(engine, file)?,
            Self::Folder(folder) => ModelOutline::from_folder(engine, folder)?,
            Self::Adapter(adapter) => return Err(no_model(&adapter)),
        })
    }

    pub(crate) fn embedding_model(self, engine: &Engine) -> crate::Result<EmbeddingModel<'_>> {
        Ok(match self {
            Self::Gguf(file) => EmbeddingModel::from_gguf(engine, file)?,
            Self::Folder(folder) => EmbeddingModel::from_folder(engine, folder)?,
            Self::Adapter(adapter) => return Err(no_model(&adapter)),
        })
    }

    /// The GGUF file, for commands that take no other format.
    pub(crate) fn gguf(self) -> crate::Result<kiln_gguf::Model> {
        match self {
            Self::Gguf(file) => Ok(file),
            Self::Folder(_) | Self::Adapter(_) => Err("a GGUF file is needed here, not a folder".into()),
        }
    }

    pub(crate) fn tokenizer(&self) -> crate::Result<Tokenizer> {
        Ok(match self {
            Self::Gguf(file) => Tokenizer::from_gguf(file.metadata())?,
            Self::Folder(folder) => folder.tokenizer()?,
            Self::Adapter(adapter) => return Err(no_model(adapter)),
        })
    }
}

/// The message for an adapter in place of a model.
fn no_model(adapter: &Adapter) -> Box<dyn std::error::Error> {
    format!("{} is an adapter, and a model is needed here: give it with --lora", adapter.name()).into()
}
