//! Errors of work on GPUs, with the GPU that failed.

use kiln_ir::Error;

use super::Gpu;
use crate::Engine;

/// An error of work on a GPU, and the GPU that failed. It may be another GPU than the one that computes, because another one may hold
/// an operand. An error without a GPU is caused by the caller or by data on the host, and would occur on every device.
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

    /// The error for callers who cannot use another device. (`From` would leave `?` without a type in closures all over the crate.)
    pub(crate) fn error(self) -> Error {
        self.error
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { gpu: None, error }
    }
}

impl Engine {
    /// Returns the placement to exclude after an error, so that the work runs on another device: that of the failed GPU, which is excluded
    /// permanently if it is lost. `None` if the error is to be returned: it concerns no GPU of this engine, or a GPU that was excluded
    /// before and holds the only copy of an operand, or a placement is forced.
    pub(crate) fn exclude_after(&self, fault: &Fault, excluded: &[usize]) -> Option<usize> {
        let gpu = fault.gpu.as_ref()?;
        let place = self.cpu.len() + self.position(gpu)?;
        let can_go_on = self.router.forced().is_none() && !excluded.contains(&place) && gpu.failed(&fault.error);
        can_go_on.then_some(place)
    }
}
