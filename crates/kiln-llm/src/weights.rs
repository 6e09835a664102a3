//! Weights as tensors that share the bytes of their file.

use std::sync::Arc;

use kiln::{Shape, Tensor};
use kiln_gguf::Model;

use crate::{Error, Result};

/// Where the weights of a model come from.
#[derive(Debug)]
pub(crate) struct Source {
    file: Arc<Model>,
}

/// The bytes of one tensor, which keep their file open.
struct Bytes {
    file: Arc<Model>,
    name: String,
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        // The tensor was found when this was made.
        self.file.tensor(&self.name).map_or(&[], |tensor| tensor.bytes())
    }
}

impl Source {
    pub(crate) fn new(file: Model) -> Self {
        Self { file: Arc::new(file) }
    }

    /// The tensor of this name, outermost extent first.
    ///
    /// # Errors
    /// [`Error::File`] where there is none or kiln does not compute with its type, [`Error::Model`] where it has other extents.
    pub(crate) fn tensor(&self, name: &str, dims: &[usize]) -> Result<Tensor> {
        let view = self.file.tensor(name)?;
        let ty = view.info().tensor_type()?;
        if ty.shape != Shape::new(dims)? {
            return Err(Error::model("weights", format!("{name} is {}, the metadata ask for {dims:?}", ty.shape)));
        }
        // Elements that begin where their type cannot are refused here, with the name.
        view.operand()?;
        let bytes = Bytes { file: self.file.clone(), name: name.to_owned() };
        Ok(Tensor::from_shared(Arc::new(bytes), ty.dtype, dims)?)
    }

    /// The tensor of this name where the file has one.
    ///
    /// # Errors
    /// As [`Source::tensor`], but for one that is missing.
    pub(crate) fn find(&self, name: &str, dims: &[usize]) -> Result<Option<Tensor>> {
        match self.file.tensor(name) {
            Err(kiln_gguf::Error::MissingTensor { .. }) => Ok(None),
            _ => self.tensor(name, dims).map(Some),
        }
    }
}
