//! Which GPU an error is of.

use kiln_ir::Error;

use super::Gpu;

/// An error of work on a GPU, and the GPU that failed. That need not be the one that was to compute: another one may hold an operand.
/// An error without a GPU is of the caller or of elements that no GPU has, and cannot be avoided on another device.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) gpu: Option<Gpu>,
    pub(crate) error: Error,
}

impl Fault {
    /// Names the GPU whose work failed.
    pub(crate) fn of(gpu: &Gpu) -> impl Fn(Error) -> Self + '_ {
        |error| Self { gpu: Some(gpu.clone()), error }
    }

    /// The error for callers who cannot use another device.
    pub(crate) fn error(self) -> Error {
        self.error
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { gpu: None, error }
    }
}
