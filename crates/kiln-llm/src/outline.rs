//! Models without their weights, for plans.

use std::path::Path;

use kiln::Engine;

use crate::model::Parts;
use crate::{DeviceLayers, Folder, MemoryPlan, Model, Result, SessionOptions};

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
#[derive(Debug)]
pub struct ModelOutline<'e>(Model<'e>);

impl<'e> ModelOutline<'e> {
    /// Opens the model that [`Model::load`] would load, without its weights.
    ///
    /// # Errors
    /// The errors of [`Model::load`], except those of elements that cannot be used.
    pub fn load(engine: &'e Engine, path: impl AsRef<Path>) -> Result<Self> {
        match path.as_ref().is_dir() {
            true => Self::from_folder(engine, Folder::open(path)?),
            false => Self::from_gguf(engine, kiln_gguf::Model::open(path)?),
        }
    }

    /// Makes the outline of an open file.
    ///
    /// # Errors
    /// The errors of [`ModelOutline::load`].
    pub fn from_gguf(engine: &'e Engine, file: kiln_gguf::Model) -> Result<Self> {
        Self::of(engine, Parts::of_gguf(file)?)
    }

    /// Makes the outline of an open folder.
    ///
    /// # Errors
    /// The errors of [`ModelOutline::load`].
    pub fn from_folder(engine: &'e Engine, folder: Folder) -> Result<Self> {
        Self::of(engine, Parts::of_folder(folder)?)
    }

    fn of(engine: &'e Engine, parts: Parts) -> Result<Self> {
        Model::of(engine, parts.without_copies()).map(Self)
    }

    /// Sets which layers run on a GPU in plans that are made from now on.
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
