//! The placement of a model's layers, and the plan of their memory, which is made before anything is allocated.

mod memory_plan;
mod placing;
#[cfg(not(browser_gpu))]
mod planner;

use kiln::{Backend, DType, Place};
pub use memory_plan::{Bytes, MemoryPlan, PlannedPart};
pub use placing::DeviceLayers;
pub(crate) use placing::Placing;
#[cfg(not(browser_gpu))]
pub(crate) use planner::plan;

use crate::architecture::ActiveAdapters;
use crate::{Model, Result};

/// The requested session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// Tokens per sequence.
    pub(crate) context: usize,
    pub(crate) cache: DType,
    /// Number of sequences with keys and values.
    pub(crate) sequences: usize,
    pub(crate) adapters: Option<&'a ActiveAdapters>,
}

/// Whether no layer runs on a GPU, as far as that is decided.
pub(crate) fn is_on_cpu(model: &Model<'_>, plan: Option<&MemoryPlan>) -> bool {
    let Some(plan) = plan else { return !has_gpus(model) };
    let gpus: Vec<&Place> = model.engine.places().iter().filter(|place| is_gpu(place)).collect();
    plan.parts.iter().all(|part| gpus.iter().all(|gpu| gpu.name != part.place))
}

/// Whether an engine has a GPU: without one every layer runs on the CPU.
fn has_gpus(model: &Model<'_>) -> bool {
    model.engine.places().iter().any(is_gpu)
}

/// Returns the placement of a model's layers, and, if the engine has GPUs, the memory plan.
///
/// # Errors
/// The errors of [`plan`].
#[cfg(not(browser_gpu))]
pub(crate) fn placed<'m>(model: &'m Model<'m>, asked: Asked<'m>) -> Result<(Placing, Option<MemoryPlan>)> {
    if has_gpus(model) || matches!(model.device_layers, DeviceLayers::Fitting | DeviceLayers::Last(1..)) {
        return plan(model, asked).map(|(placing, plan)| (placing, Some(plan)));
    }
    Ok((Placing::default(), None))
}

/// A page has one GPU, which does not report its memory: if there is one, everything runs there.
#[cfg(browser_gpu)]
pub(crate) fn placed<'m>(_: &'m Model<'m>, _: Asked<'m>) -> Result<(Placing, Option<MemoryPlan>)> {
    Ok((Placing::default(), None))
}

fn is_gpu(place: &Place) -> bool {
    matches!(place.backend, Backend::Gpu | Backend::Cuda)
}
