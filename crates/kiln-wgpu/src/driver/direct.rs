//! Element-wise work from host to host in mapped memory, without copies on the device: the host writes operands where the
//! kernel reads them, and reads results where it wrote them.
//!
//! Memory that a device and the host both see is slower for one of the two. That does not matter if everything is accessed
//! once, and it saves commands and the waits between them, which take most of the time of a small operation: `add` from host
//! to host in benches/gpu.

use std::collections::HashMap;

use kiln_ir::graph::TensorId;
use kiln_ir::{Error, Result};

use super::mapped;
use crate::plan::{Code, Dispatch};
use crate::{GpuDevice, Region};
use kiln_device::waiting::Waiting;
use kiln_device::{Driver, Executable, Location};

type Plan = kiln_device::Plan<GpuDevice>;

/// The device features that this requires.
pub(crate) const FEATURES: wgpu::Features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;

/// Maximum bytes of operands and results together: larger sizes were not measured.
const MOST_BYTES: u64 = 16 << 20;

/// Whether a plan should use mapped memory: it has a single element-wise kernel, which accesses everything once, and
/// few bytes.
pub(crate) fn takes(device: &GpuDevice, plan: &Plan) -> bool {
    let tensors = plan.inputs.iter().map(|input| input.1).chain(plan.results.iter().map(|result| result.1));
    let elementwise = matches!(&plan.steps[..], [Dispatch { code: Code::Chain(_), .. }]);
    let written = plan.results.iter().all(|result| matches!(result.0, Location::Result(_)));
    device.inner.direct && elementwise && written && tensors.sum::<u64>() <= MOST_BYTES
}

/// A plan whose operands and results are in memory that host and device share.
#[derive(Debug)]
pub struct Direct {
    executable: Executable<GpuDevice>,
    /// Mapped for writing unless the plan runs.
    operands: Region,
    /// The offset of each operand.
    starts: Vec<u64>,
    results: HostResults,
}

impl Direct {
    /// Compiles a plan for these operands and allocates its memory.
    ///
    /// # Errors
    /// The errors of [`Executable::new`].
    pub(crate) async fn new(device: &GpuDevice, plan: Plan, operands: &[TensorId]) -> Result<Self> {
        let bytes_of = |id: &TensorId| plan.inputs.iter().find(|input| input.0 == *id).map_or(0, |input| input.1);
        let (starts, bytes) = laid_out(device, operands.iter().map(bytes_of));
        let region = memory(device, bytes, wgpu::BufferUsages::MAP_WRITE).await?;
        let part =
            |(id, &start): (&TensorId, &u64)| Some((*id, region.part(start, bytes_of(id), device.view_alignment())?));
        let mut given: HashMap<_, _> = operands.iter().zip(&starts).filter_map(part).collect();
        let results = HostResults::new(device, &plan, &mut given).await?;
        let executable = Executable::new(device, plan, &given).await?;
        Ok(Self { executable, operands: region, starts, results })
    }

    /// Bytes of its memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.operands.bytes() + self.results.region.bytes()
    }

    /// Runs the plan on these operands, and copies out each result. After an error it cannot run again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`].
    pub(crate) async fn run(
        &mut self,
        device: &GpuDevice,
        operands: &[&[u8]],
        outputs: &mut [&mut [u8]],
        waiting: Waiting,
    ) -> Result<()> {
        let buffer = self.operands.memory()?;
        let program = self.executable.program();
        let run = device.scoped_work("an operation", 0, || {
            if !mapped::write(operands.iter().copied().zip(self.starts.iter().copied()), buffer) {
                let (device, message) = (device.adapter().name.clone(), "the buffer is not mapped".into());
                return Err(Error::Driver { what: "writing to device memory".into(), device, message });
            }
            buffer.unmap();
            program.submit(device, None)
        });
        run.await?;
        // Requested before the results are read, because both wait for the same work.
        buffer.map_async(wgpu::MapMode::Write, .., |_| {});
        self.results.read(device, outputs, waiting).await
    }
}

/// Results of a plan in memory that the host reads.
#[derive(Debug)]
pub struct HostResults {
    region: Region,
    /// The offset of each result, and its bytes.
    places: Vec<(u64, u64)>,
}

impl HostResults {
    /// Allocates memory for the results of a plan, and adds it to `given`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub(crate) async fn new(device: &GpuDevice, plan: &Plan, given: &mut HashMap<TensorId, Region>) -> Result<Self> {
        let (mut starts, bytes) = laid_out(device, plan.results.iter().map(|result| result.1));
        for (position, result) in plan.results.iter().enumerate() {
            // A tensor that is wanted twice has one location.
            let first = plan.results.iter().position(|other| other.0 == result.0);
            starts[position] = starts[first.unwrap_or(position)];
        }
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_SRC;
        let region = memory(device, bytes, usage).await?;
        for (&(at, bytes), &start) in plan.results.iter().zip(&starts) {
            if let (Location::Result(id), Some(part)) = (at, region.part(start, bytes, device.view_alignment())) {
                given.entry(id).or_insert(part);
            }
        }
        let places = starts.into_iter().zip(plan.results.iter().map(|result| result.1)).collect();
        Ok(Self { region, places })
    }

    /// Copies out each result after all earlier submissions are done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub(crate) async fn read(&self, device: &GpuDevice, outputs: &mut [&mut [u8]], waiting: Waiting) -> Result<()> {
        let buffer = self.region.memory()?;
        let view = device.map(buffer, self.region.bytes(), waiting).await?;
        for (&(start, bytes), out) in self.places.iter().zip(outputs) {
            mapped::read(&view[start as usize..(start + bytes) as usize], out);
        }
        drop(view);
        buffer.unmap();
        Ok(())
    }
}

/// Memory that kernels use and the host maps. Memory that the host writes is mapped initially.
async fn memory(device: &GpuDevice, bytes: u64, usage: wgpu::BufferUsages) -> Result<Region> {
    let buffer = || {
        device.inner.shared.counters.storage_buffers.add(1);
        let descriptor = wgpu::BufferDescriptor {
            label: Some("memory of host and device"),
            size: bytes,
            usage: usage | wgpu::BufferUsages::STORAGE,
            mapped_at_creation: usage.contains(wgpu::BufferUsages::MAP_WRITE),
        };
        Ok(Region::unpooled(device.inner.device.create_buffer(&descriptor), bytes))
    };
    device.scoped_work("allocating memory", bytes, buffer).await
}

/// The offsets of tensors of these sizes in one buffer, and the total bytes.
fn laid_out(device: &GpuDevice, bytes: impl Iterator<Item = u64>) -> (Vec<u64>, u64) {
    let alignment = u64::from(device.inner.target.limits.min_storage_buffer_offset_alignment).max(16);
    let mut end = 0;
    let starts = bytes.map(|bytes| {
        let start = end;
        end += bytes.next_multiple_of(alignment);
        start
    });
    (starts.collect(), end.max(alignment))
}
