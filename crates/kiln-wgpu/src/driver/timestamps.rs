//! The time of each kernel of an execution, by the clock of the device.

use kiln_device::waiting::Waiting;
use kiln_device::{KernelTime, Profile};
use kiln_ir::Result;

use super::downloads::Readback;
use crate::GpuDevice;

/// Bytes of a timestamp.
const BYTES: u64 = wgpu::QUERY_SIZE as u64;

/// The timestamps of an executable: one before and one after each of its dispatches.
#[derive(Debug)]
pub(crate) struct Timestamps {
    /// Reused for each submission.
    queries: wgpu::QuerySet,
    /// The timestamps of all dispatches.
    resolved: wgpu::Buffer,
}

impl Timestamps {
    /// For `dispatches` in submissions of at most `at_once`.
    pub(crate) fn new(device: &wgpu::Device, dispatches: usize, at_once: usize) -> Self {
        Self {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("times"),
                ty: wgpu::QueryType::Timestamp,
                count: 2 * dispatches.clamp(1, at_once) as u32,
            }),
            resolved: device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("times"),
                size: 2 * BYTES * dispatches.max(1) as u64,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            }),
        }
    }

    /// The timestamps that the pass of this dispatch of a submission writes.
    pub(crate) fn of_pass(&self, number: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        let first = 2 * number as u32;
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        }
    }

    /// Resolves the timestamps of the `count` dispatches of a submission; `before` dispatches were in earlier ones, a
    /// multiple of the dispatches of a submission.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder, before: usize, count: usize) {
        encoder.resolve_query_set(&self.queries, 0..2 * count as u32, &self.resolved, 2 * BYTES * before as u64);
    }

    /// The times of the last execution, for these kernels and workgroups.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`].
    pub(crate) async fn read(
        &self,
        device: &GpuDevice,
        kernels: impl Iterator<Item = (&'static str, [u32; 3])>,
        waiting: Waiting,
    ) -> Result<Profile> {
        let (inner, bytes) = (&device.inner, self.resolved.size());
        let copied = device.scoped_work("the times of kernels", bytes, || {
            let to = Readback::new(device, bytes);
            let mut encoder = inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(&self.resolved, 0, to.raw(), 0, bytes);
            inner.submit(encoder.finish());
            inner.shared.counters.submitted(1, 0);
            Ok(to)
        });
        let period = f64::from(device.inner.queue.get_timestamp_period());
        let ticks = |words: &[u8]| words.try_into().map_or(0, u64::from_le_bytes);
        let times = |bytes: &[u8]| {
            let pairs = bytes.chunks_exact(2 * BYTES as usize).map(|pair| pair.split_at(BYTES as usize));
            let timed = kernels.zip(pairs).map(|((name, grid), (begin, end))| KernelTime {
                name: name.to_owned(),
                grid,
                resident_blocks: None,
                nanoseconds: ticks(end).saturating_sub(ticks(begin)) as f64 * period,
            });
            timed.collect()
        };
        let kernels = copied.await?.see(waiting, times).await?;
        Ok(Profile { kernels })
    }
}
