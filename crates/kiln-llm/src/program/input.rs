//! What a command is given: a GGUF file or a folder.

use std::path::Path;

use kiln::Engine;
use kiln_llm::{EmbeddingModel, Folder, Model, Result, Tokenizer};

/// A model that is open.
pub(crate) enum Input {
    Gguf(kiln_gguf::Model),
    Folder(Folder),
}

impl Input {
    /// Maps the files of a model, or reads them.
    pub(crate) fn open(path: &Path, read: bool) -> Result<Self> {
        Ok(match (path.is_dir(), read) {
            (true, false) => Self::Folder(Folder::open(path)?),
            (true, true) => Self::Folder(Folder::read(path)?),
            (false, false) => Self::Gguf(kiln_gguf::Model::open(path)?),
            (false, true) => Self::Gguf(kiln_gguf::Model::read(path)?),
        })
    }

    pub(crate) fn model(self, engine: &Engine) -> Result<Model<'_>> {
        match self {
            Self::Gguf(file) => Model::from_gguf(engine, file),
            Self::Folder(folder) => Model::from_folder(engine, folder),
        }
    }

    pub(crate) fn embedding_model(self, engine: &Engine) -> Result<EmbeddingModel<'_>> {
        match self {
            Self::Gguf(file) => EmbeddingModel::from_gguf(engine, file),
            Self::Folder(folder) => EmbeddingModel::from_folder(engine, folder),
        }
    }

    /// The GGUF file, for what is done to no others.
    pub(crate) fn gguf(self) -> crate::Result<kiln_gguf::Model> {
        match self {
            Self::Gguf(file) => Ok(file),
            Self::Folder(_) => Err("a GGUF file is needed here, not a folder".into()),
        }
    }

    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        match self {
            Self::Gguf(file) => Tokenizer::from_gguf(file.metadata()),
            Self::Folder(folder) => folder.tokenizer(),
        }
    }
}
