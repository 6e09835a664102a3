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

/// Limits for each operation and each batch, see [`EngineBuilder::budget`](crate::EngineBuilder::budget).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Seconds that it may be predicted to take. More are logged as a warning through `tracing`, with the plan, once for each
    /// operation and its shapes, and for batches once for each number of steps and types of results.
    pub seconds: f64,
    /// Bytes of operands, results and what is between them that a GPU may hold for it. No GPU is given more, unless it is forced or
    /// operations are pinned to it; the work then runs on the CPU.
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

    /// Whether there is a limit of time.
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
            tracing::warn!("predicted to take {seconds:.3e} s where the budget is {most:.3e} s: {}", plan());
        }
    }
}

/// What is known of the memory of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that nobody uses, where the driver says so: that of CUDA does. Those that the engine keeps for its next allocations are
    /// among them.
    pub free: Option<u64>,
    /// Bytes that a batch may hold there: [`Budget::device_bytes`], where there is such a limit.
    pub limit: Option<u64>,
    /// What sizes of allocations are multiples of; 0 on the host.
    pub granularity: u64,
}

impl DeviceMemory {
    /// Bytes that the allocation of a tensor of this many bytes takes at most: up to an eighth more, so that like sizes share memory.
    pub fn allocation(&self, bytes: u64) -> u64 {
        if self.granularity == 0 { bytes } else { kiln_device::size_class(bytes, self.granularity) }
    }
}

impl Engine {
    /// What is known of the memory of the device at the place of this name, which is opened if it was not. Of the memory of the host
    /// nothing is known.
    ///
    /// # Errors
    /// [`Error::Unavailable`](kiln_ir::Error::Unavailable) when there is no such place; [`Error::DeviceLost`](kiln_ir::Error::DeviceLost),
    /// [`Error::Driver`](kiln_ir::Error::Driver).
    pub async fn device_memory_async(&self, place: &str) -> Result<DeviceMemory> {
        self.device_memory_waiting(place, Waiting::Elsewhere).await
    }

    /// What is known of the memory of the device at the place of this name, which is opened if it was not. Of the memory of the host
    /// nothing is known.
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
        // A forced place runs everything.
        if most == u64::MAX || self.router.forced().is_some() || bytes() <= most {
            return residency;
        }
        (self.cpu.len()..self.places().len()).fold(residency, Residency::barred)
    }
}
