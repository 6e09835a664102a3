//! The backends and GPUs that an engine cannot use, with the reasons.

use std::fmt;

use kiln_ir::Error;
use kiln_route::Backend;

use crate::gpus::Gpu;

/// A backend or a GPU that an engine cannot use, with the reason. Displays as one line.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Absent {
    /// The backend.
    pub backend: Backend,
    /// The placement of a GPU that was lost or failed; `None` if the engine has no placement of this backend.
    pub place: Option<String>,
    /// The reason.
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
