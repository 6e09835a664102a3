//! Idle buffers for downloads, which are reused.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of idle buffers, and their total bytes, unless there is only one.
const MOST_BUFFERS: usize = 16;
const MOST_BYTES: u64 = 256 << 20;

/// Idle, unmapped readback buffers of a device; most recently used last.
#[derive(Debug, Default)]
pub(crate) struct Readbacks(Mutex<Vec<wgpu::Buffer>>);

impl Readbacks {
    fn free(&self) -> MutexGuard<'_, Vec<wgpu::Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle buffer of this size.
    pub(super) fn take(&self, size: u64) -> Option<wgpu::Buffer> {
        let mut free = self.free();
        let at = free.iter().rposition(|buffer| buffer.size() == size)?;
        Some(free.remove(at))
    }

    /// Adds an idle buffer, and returns the least recently used ones beyond the maximum to the driver.
    pub(super) fn keep(&self, buffer: wgpu::Buffer) {
        let mut free = self.free();
        free.push(buffer);
        let held = |free: &[wgpu::Buffer]| free.iter().map(wgpu::Buffer::size).sum::<u64>();
        while free.len() > 1 && (free.len() > MOST_BUFFERS || held(&free) > MOST_BYTES) {
            free.remove(0);
        }
    }

    /// Returns the buffers to the driver.
    pub(crate) fn clear(&self) {
        self.free().clear();
    }
}
