//! Uploads that are left to the browser: the memory of another process has to be written, which it does by itself.

use super::by_queue;
use kiln_device::Counters;

/// The way of a device's uploads. All that is submitted goes through this.
#[derive(Debug, Default)]
pub(crate) struct Uploads {}

impl Uploads {
    /// Writes bytes into a buffer from `offset` on, up to whole words: after all that was submitted before, and before all
    /// that is submitted later.
    pub(crate) fn write(
        &self,
        (_, queue): (&wgpu::Device, &wgpu::Queue),
        _: &Counters,
        at: (&wgpu::Buffer, u64),
        bytes: &[u8],
    ) {
        by_queue(queue, at, bytes);
    }

    /// Submits commands, after all uploads before them.
    pub(crate) fn submit(&self, queue: &wgpu::Queue, commands: Option<wgpu::CommandBuffer>) {
        // What was written without commands after it goes with the next that are submitted, or with none.
        queue.submit(commands);
    }

    /// Gives the buffers that are not in use back to the driver: the browser keeps none.
    pub(crate) fn clear(&self) {}
}
