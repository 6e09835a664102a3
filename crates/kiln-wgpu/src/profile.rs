//! How long each kernel of an execution took, by the clock of the device.

use std::fmt;

use kiln_ir::{Error, Result};

use crate::GpuDevice;
use crate::readbacks::Readback;
use crate::wait::Waiting;

/// One kernel of an execution.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// What it is called.
    pub name: &'static str,
    /// Workgroups that ran, in each dimension.
    pub workgroups: [u32; 3],
    /// How long it ran, in nanoseconds.
    pub nanoseconds: f64,
}

/// The kernels of an execution in the order in which they ran, and how long each took. Displays as a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuProfile {
    /// The kernels.
    pub kernels: Vec<KernelTime>,
}

impl GpuProfile {
    /// The time of all kernels, in nanoseconds; what passed between them is not in it.
    pub fn nanoseconds(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.nanoseconds).sum()
    }
}

impl fmt::Display for GpuProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.nanoseconds();
        let width = self.kernels.iter().map(|kernel| kernel.name.len()).chain(["kernel".len()]).max().unwrap_or(0);
        writeln!(f, "{:width$}  {:>16}  {:>12}  {:>6}", "kernel", "workgroups", "us", "share")?;
        for KernelTime { name, workgroups: [x, y, z], nanoseconds } in &self.kernels {
            let share = if total > 0.0 { 100.0 * nanoseconds / total } else { 0.0 };
            let workgroups = format!("{x} x {y} x {z}");
            writeln!(f, "{name:width$}  {workgroups:>16}  {:>12.3}  {share:>5.1}%", nanoseconds / 1e3)?;
        }
        write!(f, "{:width$}  {:>16}  {:>12.3}", "total", "", total / 1e3)
    }
}

/// Bytes of a timestamp.
const BYTES: u64 = wgpu::QUERY_SIZE as u64;

/// The clock of an executable: a time before and after each of its dispatches.
#[derive(Debug)]
pub(crate) struct Timestamps {
    /// For one submission after the other.
    queries: wgpu::QuerySet,
    /// Those of all dispatches.
    resolved: wgpu::Buffer,
    /// Whether an execution wrote them.
    written: bool,
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
            written: false,
        }
    }

    /// What the pass of this dispatch of a submission writes.
    pub(crate) fn of_pass(&self, number: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        let first = 2 * number as u32;
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        }
    }

    /// Keeps what the `count` dispatches of a submission wrote; `before` came in earlier ones, a multiple of what a
    /// submission has.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder, before: usize, count: usize) {
        encoder.resolve_query_set(&self.queries, 0..2 * count as u32, &self.resolved, 2 * BYTES * before as u64);
    }

    /// Takes note that an execution was submitted.
    pub(crate) fn submitted(&mut self) {
        self.written = true;
    }

    /// The times of the last execution, of these kernels and workgroups.
    ///
    /// # Errors
    /// [`Error::Parameter`] where nothing ran yet, [`Error::DeviceLost`].
    pub(crate) async fn read(
        &self,
        device: &GpuDevice,
        kernels: impl Iterator<Item = (&'static str, [u32; 3])>,
        waiting: Waiting,
    ) -> Result<GpuProfile> {
        if !self.written {
            return Err(Error::Parameter { op: "profile", reason: "nothing was executed yet".into() });
        }
        let (inner, bytes) = (&device.inner, self.resolved.size());
        let copied = device.scoped("the times of kernels", bytes, || {
            let to = Readback::new(device, bytes);
            let mut encoder = inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(&self.resolved, 0, to.raw(), 0, bytes);
            inner.submit(encoder.finish());
            inner.counters.submitted(1, 0);
            Ok(to)
        });
        let period = f64::from(device.inner.queue.get_timestamp_period());
        let ticks = |words: &[u8]| words.try_into().map_or(0, u64::from_le_bytes);
        let times = |bytes: &[u8]| {
            let pairs = bytes.chunks_exact(2 * BYTES as usize).map(|pair| pair.split_at(BYTES as usize));
            let timed = kernels.zip(pairs).map(|((name, workgroups), (begin, end))| KernelTime {
                name,
                workgroups,
                nanoseconds: ticks(end).saturating_sub(ticks(begin)) as f64 * period,
            });
            timed.collect()
        };
        let kernels = copied.await?.see(waiting, times).await?;
        Ok(GpuProfile { kernels })
    }
}
