//! Uploads in a browser, through the queue: the browser copies the data to the process that owns the device.

use super::super::lost::Lost;
use super::by_queue;
use kiln_device::Counters;

/// Uploads to a device. All submissions use this.
#[derive(Debug, Default)]
pub(crate) struct Uploads {}

impl Uploads {
    /// Writes bytes into a buffer at `offset`, padded to whole words: after all earlier submissions, and before all
    /// later ones.
    pub(crate) fn write(
        &self,
        (_, queue): (&wgpu::Device, &wgpu::Queue),
        _: &Lost,
        _: &Counters,
        at: (&wgpu::Buffer, u64),
        bytes: &[u8],
    ) {
        by_queue(queue, at, bytes);
    }

    /// Submits commands after all earlier uploads.
    pub(crate) fn submit(
        &self,
        queue: &wgpu::Queue,
        commands: Option<wgpu::CommandBuffer>,
    ) -> Option<wgpu::SubmissionIndex> {
        // Pending writes are submitted with the next commands, or alone.
        Some(queue.submit(commands))
    }

    /// Returns idle buffers to the driver: here the browser owns all.
    pub(crate) fn clear(&self) {}
}
