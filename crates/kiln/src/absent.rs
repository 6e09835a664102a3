//! The kinds of execution and the GPUs that an engine cannot use, and why.

use std::fmt;

use kiln_ir::Error;
use kiln_route::Backend;

use crate::gpus::Gpu;

/// A kind of execution, or a GPU, that an engine cannot use. Displays as a line.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Absent {
    /// The kind of execution.
    pub backend: Backend,
    /// The place of a GPU that was lost or failed; `None` where no place is of this kind.
    pub place: Option<String>,
    /// Why.
    pub reason: Error,
}

impl Absent {
    /// An entry for a GPU that has failed.
    pub(crate) fn gpu(gpu: &Gpu, reason: &Error) -> Self {
        Self { backend: gpu.kind(), place: Some(gpu.name().to_owned()), reason: reason.clone() }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.reason),
            None => write!(f, "{}: {}", self.backend, self.reason),
        }
    }
}
