//! Which GPU an error is of.

use kiln_ir::Error;

use super::Gpu;
use crate::Engine;

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
    /// The place to leave out after an error, so that work goes on elsewhere: that of the GPU that failed, which is given up if nothing
    /// more can run there. `None` if the error is to be returned: it is of no GPU of this engine, or of one that was left out already and
    /// holds an operand alone, or a place is forced.
    pub(crate) fn exclude_after(&self, fault: &Fault, excluded: &[usize]) -> Option<usize> {
        let gpu = fault.gpu.as_ref()?;
        let place = self.cpu.len() + self.position(gpu)?;
        let can_go_on = self.router.forced().is_none() && !excluded.contains(&place) && gpu.failed(&fault.error);
        can_go_on.then_some(place)
    }
}
