//! Limits of time and memory that a program sets.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use kiln_device::waiting::Waiting;
use kiln_ir::op::total_bytes;
use kiln_ir::{Result, TensorType};
use kiln_route::Residency;

use super::Engine;
#[cfg(not(browser_gpu))]
use crate::gpus::{WAITING, wait};

/// Limits of time and memory for each operation and each batch; see [`EngineBuilder::budget`](crate::EngineBuilder::budget).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Maximum predicted seconds. Work that exceeds them still runs, but logs a warning with the plan through `tracing`: once for each
    /// operation and its shapes, and for batches once for each number of steps and types of results.
    pub seconds: f64,
    /// Maximum bytes of operands, results and intermediate results on a GPU. Work that needs more runs on the CPU, unless a GPU is
    /// forced or operations are pinned to it.
    pub device_bytes: u64,
}

impl Default for Budget {
    /// No limits.
    fn default() -> Self {
        Self { seconds: f64::INFINITY, device_bytes: u64::MAX }
    }
}

/// The limits, and which violations were logged already.
#[derive(Debug, Default)]
pub(crate) struct Budgeted {
    budget: Budget,
    logged: Mutex<HashSet<String>>,
}

impl Budgeted {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, logged: Mutex::default() }
    }

    /// The limits.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn budget(&self) -> Budget {
        self.budget
    }

    /// Whether the time is limited.
    pub(crate) fn limits_time(&self) -> bool {
        self.budget.seconds < f64::INFINITY
    }

    /// Logs that something takes longer than the limit, once for each question. Only then is the plan formatted.
    pub(crate) fn check(&self, seconds: f64, question: impl FnOnce() -> String, plan: impl FnOnce() -> String) {
        if seconds <= self.budget.seconds {
            return;
        }
        if self.logged.lock().unwrap_or_else(PoisonError::into_inner).insert(question()) {
            let most = self.budget.seconds;
            tracing::warn!("predicted to take {seconds:.3e} s, but the budget is {most:.3e} s: {}", plan());
        }
    }
}

/// The state of a device's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Unused bytes, if the driver reports them, as that of CUDA does. They include the bytes that the engine keeps for its next
    /// allocations.
    pub free: Option<u64>,
    /// Bytes that a batch may hold there: [`Budget::device_bytes`], if it is limited.
    pub limit: Option<u64>,
    /// Sizes of allocations are multiples of this many bytes; 0 on the host.
    pub granularity: u64,
}

impl DeviceMemory {
    /// Returns the maximum bytes that the allocation of a tensor of this many bytes takes: up to an eighth more, so that similar sizes
    /// can share memory.
    pub fn allocation(&self, bytes: u64) -> u64 {
        if self.granularity == 0 { bytes } else { kiln_device::size_class(bytes, self.granularity) }
    }
}

impl Engine {
    /// Returns the state of the memory of the device whose placement has this name, which is opened if necessary. For the host all fields
    /// are empty.
    ///
    /// # Errors
    /// [`Error::Unavailable`](kiln_ir::Error::Unavailable) if no placement has this name;
    /// [`Error::DeviceLost`](kiln_ir::Error::DeviceLost),
    /// [`Error::Driver`](kiln_ir::Error::Driver).
    pub async fn device_memory_async(&self, place: &str) -> Result<DeviceMemory> {
        self.device_memory_waiting(place, Waiting::Elsewhere).await
    }

    /// Returns the state of the memory of the device whose placement has this name, which is opened if necessary. For the host all fields
    /// are empty.
    ///
    /// # Errors
    /// The errors of [`Engine::device_memory_async`].
    #[cfg(not(browser_gpu))]
    pub fn device_memory(&self, place: &str) -> Result<DeviceMemory> {
        wait(self.device_memory_waiting(place, WAITING))
    }

    async fn device_memory_waiting(&self, place: &str, waiting: Waiting) -> Result<DeviceMemory> {
        let Some(position) = self.device_named(place)? else { return Ok(DeviceMemory::default()) };
        let limit = Some(self.budgeted.budget.device_bytes).filter(|&most| most != u64::MAX);
        let gpu = &self.gpus[position];
        let (free, granularity) = gpu.memory(waiting).await?;
        let pooled = gpu.memory_use().unwrap_or_default().pooled;
        Ok(DeviceMemory { free: free.map(|free| free.saturating_add(pooled)), limit, granularity })
    }

    /// Excludes the GPUs if operands and results of these types are more bytes than a GPU may hold.
    pub(crate) fn within_budget_of<'t>(
        &self,
        residency: Residency,
        types: impl Iterator<Item = &'t TensorType>,
    ) -> Residency {
        self.within_budget(residency, || total_bytes(types.map(|ty| ty.bytes() as u64)))
    }

    /// Excludes the GPUs if the work needs more bytes than a GPU may hold.
    pub(crate) fn within_budget(&self, residency: Residency, bytes: impl FnOnce() -> u64) -> Residency {
        let most = self.budgeted.budget.device_bytes;
        // A forced placement runs everything.
        if most == u64::MAX || self.router.forced().is_some() || bytes() <= most {
            return residency;
        }
        (self.cpu.len()..self.places().len()).fold(residency, Residency::barred)
    }
}
