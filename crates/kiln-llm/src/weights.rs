//! Weights as tensors that share the bytes of their file.

use std::ops::Range;
use std::sync::Arc;

use kiln::{Shape, Tensor};
use kiln_gguf::Model;

use crate::{Error, Result};

/// Where the weights of a model come from.
#[derive(Debug)]
pub(crate) struct Source {
    model: Arc<Model>,
}

/// The bytes of one tensor, which keep their file open.
struct Bytes {
    model: Arc<Model>,
    /// The file among those of a split model, and the bytes in it.
    file: usize,
    at: Range<usize>,
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.model.files()[self.file].bytes()[self.at.clone()]
    }
}

impl Source {
    pub(crate) fn new(model: Model) -> Self {
        Self { model: Arc::new(model) }
    }

    /// The tensor of this name, outermost extent first.
    ///
    /// # Errors
    /// [`Error::File`] where the file has no such tensor, or kiln does not compute with its type; [`Error::Model`] where its extents
    /// differ.
    pub(crate) fn tensor(&self, name: &str, dims: &[usize]) -> Result<Tensor> {
        let view = self.model.tensor(name)?;
        let ty = view.info().tensor_type()?;
        if ty.shape != Shape::new(dims)? {
            return Err(Error::model("weights", format!("{name} is {}, the metadata ask for {dims:?}", ty.shape)));
        }
        // Elements that begin where their type cannot are refused here, with the name.
        view.operand()?;
        let has = |file: &kiln_gguf::Gguf<'_>| file.tensor(name).is_ok();
        let file = self.model.files().iter().position(has).unwrap_or(0);
        let start = view.info().offset();
        let bytes = Bytes { model: self.model.clone(), file, at: start..start + view.bytes().len() };
        Ok(Tensor::from_shared(Arc::new(bytes), ty.dtype, dims)?)
    }

    /// The tensor of this name where the file has one.
    ///
    /// # Errors
    /// As [`Source::tensor`], but for one that is missing.
    pub(crate) fn find(&self, name: &str, dims: &[usize]) -> Result<Option<Tensor>> {
        match self.model.tensor(name) {
            Err(kiln_gguf::Error::MissingTensor { .. }) => Ok(None),
            _ => self.tensor(name, dims).map(Some),
        }
    }
}
