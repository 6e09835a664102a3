//! A plan with its memory, compiled and bound: what runs again and again without anything being made anew.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_ir::graph::TensorId;
use kiln_ir::{Error, Result};

use crate::GpuDevice;
use crate::memory::Region;
use crate::pipelines::Pipeline;
use crate::plan::{Dispatch, Fault, Location, Plan, Slice};
use crate::profile::{GpuProfile, Timestamps};
use crate::readbacks::{Group, Readback, groups};
use crate::wait::Waiting;

/// Dispatches in one submission. A longer plan is cut, so that the device is never kept from others for long: in a browser
/// from drawing the page.
const DISPATCHES_A_SUBMISSION: usize = if cfg!(target_arch = "wasm32") { 32 } else { 256 };

/// Bytes from the two words that report one kind of fault to the next: where another binding can begin on every device.
const FAULT_BYTES: u64 = 256;

/// A plan, compiled, with its memory.
#[derive(Debug)]
pub(crate) struct Executable {
    device: GpuDevice,
    inputs: HashMap<TensorId, Region>,
    /// The wanted tensors and their bytes, in the order in which they were asked for.
    results: Vec<(Region, u64)>,
    /// What is between them. Nobody else may have it while the plan can run again.
    intermediates: Vec<Region>,
    steps: Vec<Prepared>,
    faults: Option<(Region, Vec<Fault>)>,
    /// The clock of the kernels, where the device measures them.
    timestamps: Option<Timestamps>,
}

/// A dispatch with everything that it needs.
#[derive(Debug)]
struct Prepared {
    name: &'static str,
    pipeline: Arc<Pipeline>,
    bindings: wgpu::BindGroup,
    params: Vec<u8>,
    groups: [u32; 3],
}

impl Executable {
    /// Compiles a plan and takes its memory. Inputs and results whose places are given lie there, the others are taken too.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::OutOfMemory`], [`Error::DeviceLost`]; [`Error::Driver`] for a kernel that it refuses.
    pub(crate) async fn new(device: &GpuDevice, plan: &Plan, given: &HashMap<TensorId, Region>) -> Result<Self> {
        let pipelines = device.pipelines(plan.dispatches.iter().map(|dispatch| &dispatch.code)).await?;
        let bytes = plan.slots.iter().chain(&plan.scratch).sum::<u64>() + plan.results.iter().map(|r| r.1).sum::<u64>();
        device.scoped("preparing a batch", bytes, || Self::prepare(device, plan, pipelines, given)).await
    }

    fn prepare(
        device: &GpuDevice,
        plan: &Plan,
        pipelines: Vec<Arc<Pipeline>>,
        given: &HashMap<TensorId, Region>,
    ) -> Result<Self> {
        let take = |bytes: u64| device.take(bytes).map(Region::from);
        let mut inputs = HashMap::new();
        for &(id, bytes) in &plan.inputs {
            let region = match given.get(&id) {
                Some(region) => region.clone(),
                None => take(bytes)?,
            };
            inputs.insert(id, region);
        }
        let slots = plan.slots.iter().map(|&bytes| take(bytes)).collect::<Result<Vec<_>>>()?;
        let scratch = plan.scratch.iter().map(|&bytes| take(bytes)).collect::<Result<Vec<_>>>()?;
        let mut made: HashMap<TensorId, Region> = HashMap::new();
        for &(location, bytes) in &plan.results {
            if let Location::Result(id) = location
                && !made.contains_key(&id)
            {
                let region = match given.get(&id) {
                    Some(region) => region.clone(),
                    None => take(bytes)?,
                };
                made.insert(id, region);
            }
        }
        let faults = match &plan.faults[..] {
            [] => None,
            faults => Some((take(FAULT_BYTES * faults.len() as u64)?, faults.to_vec())),
        };
        let find = |location: Location| match location {
            Location::Input(id) => inputs.get(&id),
            Location::Result(id) => made.get(&id),
            Location::Slot(slot) => slots.get(slot),
            Location::Scratch(number) => scratch.get(number),
            Location::Fault(_) => faults.as_ref().map(|(region, _)| region),
        };
        let missing = || Error::ForeignTensor { index: usize::MAX };

        let steps = bind(device, &plan.dispatches, pipelines, |at| find(at).ok_or_else(missing))?;
        let results = plan.results.iter().map(|&(at, bytes)| Ok((find(at).ok_or_else(missing)?.clone(), bytes)));
        let results = results.collect::<Result<_>>()?;
        let intermediates = slots.into_iter().chain(scratch).collect();
        let clock = || Timestamps::new(&device.inner.device, steps.len(), DISPATCHES_A_SUBMISSION);
        let timestamps = device.inner.profiling.then(clock);
        Ok(Self { device: device.clone(), inputs, results, intermediates, steps, faults, timestamps })
    }

    /// Where an input lies.
    pub(crate) fn input(&self, id: TensorId) -> Option<&Region> {
        self.inputs.get(&id)
    }

    /// Where the wanted tensors lie, and their bytes.
    pub(crate) fn results(&self) -> &[(Region, u64)] {
        &self.results
    }

    /// Bytes of all the memory that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.inputs.values().map(|region| region.bytes).sum::<u64>() + self.computed_bytes()
    }

    /// Bytes of what it computes: results and what is between them.
    pub(crate) fn computed_bytes(&self) -> u64 {
        let results = self.results.iter().map(|(region, _)| region);
        results.chain(&self.intermediates).map(|region| region.bytes).sum()
    }

    /// How long each kernel of the last execution took.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the device does not measure, [`Error::Parameter`] where nothing ran yet,
    /// [`Error::DeviceLost`].
    pub(crate) async fn profile(&self, waiting: Waiting) -> Result<GpuProfile> {
        let timestamps = self.timestamps.as_ref().ok_or_else(|| Error::Unavailable {
            what: "the time of each kernel".into(),
            reason: "the device was opened without `DeviceOptions::profile`".into(),
        })?;
        self.device.check_alive()?;
        let kernels = self.steps.iter().map(|step| (step.name, step.groups));
        timestamps.read(&self.device, kernels, waiting).await
    }

    /// Runs the plan, and shows `see` the bytes of the results at these positions: in one submission and one reading, or as
    /// few as the largest buffer of the device allows.
    ///
    /// # Errors
    /// [`Error::Index`] for faults in the data, [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`].
    pub(crate) async fn run(
        &mut self,
        read: &[usize],
        waiting: Waiting,
        mut see: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let device = self.device.clone();
        // Faults first, then the results.
        let faults = self.faults.as_ref().map_or(0, |(_, faults)| FAULT_BYTES * faults.len() as u64);
        let sizes = read.iter().map(|&position| self.results[position].1);
        for (number, group) in groups(faults, sizes, device.inner.limits.max_buffer_size).iter().enumerate() {
            let sent = device.scoped("a batch", group.bytes, || {
                let to = (group.bytes > 0).then(|| Readback::new(&device, group.bytes));
                let copies = to.as_ref().map(|to| Copies { to, group, read });
                match (number, copies) {
                    (0, copies) => self.submit(copies),
                    (_, Some(copies)) => self.submit_copies(copies),
                    (_, None) => {}
                }
                Ok(to)
            });
            let Some(from) = sent.await? else { continue };
            let seen = from.see(waiting, |bytes| {
                let faults = self.faults.as_ref().filter(|_| number == 0);
                if let Some(fault) = faults.and_then(|(_, faults)| first_fault(faults, bytes)) {
                    return Err(fault);
                }
                group.places.iter().for_each(|place| see(read[place.number], place.of(bytes)));
                Ok(())
            });
            seen.await??;
        }
        Ok(())
    }

    /// Runs the plan so many times, and reads nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`], [`Error::Driver`].
    pub(crate) async fn repeat(&mut self, times: usize) -> Result<()> {
        let device = self.device.clone();
        let repeated = || {
            (0..times).for_each(|_| self.submit(None));
            Ok(())
        };
        device.scoped("a batch", 0, repeated).await
    }

    /// Submits the plan, and after it copies of results.
    pub(crate) fn submit(&mut self, copies: Option<Copies<'_>>) {
        let device = self.device.inner.clone();
        if let Some((region, faults)) = &self.faults {
            device.write(region, &vec![0xff; FAULT_BYTES as usize * faults.len()]);
        }
        let encoder = || device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pieces = self.steps.chunks(DISPATCHES_A_SUBMISSION).enumerate().peekable();
        let mut last = encoder();
        while let Some((number, piece)) = pieces.next() {
            match &self.timestamps {
                Some(timestamps) => encode_timed(&mut last, piece, number * DISPATCHES_A_SUBMISSION, timestamps),
                None => encode(&mut last, piece),
            }
            if pieces.peek().is_some() {
                device.submit(std::mem::replace(&mut last, encoder()).finish());
            }
        }
        if let Some(timestamps) = &mut self.timestamps {
            timestamps.submitted();
        }
        if let Some(copies) = copies {
            if let Some((region, faults)) = &self.faults {
                let bytes = FAULT_BYTES * faults.len() as u64;
                last.copy_buffer_to_buffer(region.raw(), region.offset, copies.to.raw(), 0, bytes);
            }
            copies.encode(&mut last, &self.results);
        }
        device.submit(last.finish());
        let submissions = self.steps.len().div_ceil(DISPATCHES_A_SUBMISSION).max(1);
        device.counters.submitted(submissions, self.steps.len());
    }

    /// Submits copies of results alone.
    fn submit_copies(&self, copies: Copies<'_>) {
        let device = &self.device.inner;
        let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        copies.encode(&mut encoder, &self.results);
        device.submit(encoder.finish());
        device.counters.submitted(1, 0);
    }
}

/// Results that are copied to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copies<'a> {
    to: &'a Readback,
    group: &'a Group,
    /// The positions of all that is read.
    read: &'a [usize],
}

impl Copies<'_> {
    fn encode(&self, encoder: &mut wgpu::CommandEncoder, results: &[(Region, u64)]) {
        for place in self.group.places.iter().filter(|place| place.bytes > 0) {
            let (region, _) = &results[self.read[place.number]];
            encoder.copy_buffer_to_buffer(region.raw(), region.offset, self.to.raw(), place.start, place.words());
        }
    }
}

fn encode(encoder: &mut wgpu::CommandEncoder, steps: &[Prepared]) {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    steps.iter().for_each(|step| step.dispatch(&mut pass));
}

/// The same with a pass for each step, which is what can be measured; `before` steps were in earlier submissions.
fn encode_timed(encoder: &mut wgpu::CommandEncoder, steps: &[Prepared], before: usize, timestamps: &Timestamps) {
    for (number, step) in steps.iter().enumerate() {
        let timestamp_writes = Some(timestamps.of_pass(number));
        step.dispatch(&mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes }));
    }
    timestamps.resolve(encoder, before, steps.len());
}

impl Prepared {
    fn dispatch(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline.raw);
        pass.set_bind_group(0, &self.bindings, &[]);
        if self.pipeline.immediates && !self.params.is_empty() {
            pass.set_immediates(0, &self.params);
        }
        let [x, y, z] = self.groups;
        pass.dispatch_workgroups(x, y, z);
    }
}

/// Binds dispatches.
fn bind<'a>(
    device: &GpuDevice,
    dispatches: &[Dispatch],
    pipelines: Vec<Arc<Pipeline>>,
    find: impl Fn(Location) -> Result<&'a Region>,
) -> Result<Vec<Prepared>> {
    let inner = &device.inner;
    // Parameters never change for a plan: where they are no immediates, one buffer holds those of all dispatches.
    let alignment = u64::from(inner.limits.min_uniform_buffer_offset_alignment).max(16);
    let mut arena: Vec<u8> = Vec::new();
    let mut offsets = Vec::with_capacity(dispatches.len());
    for (dispatch, pipeline) in dispatches.iter().zip(&pipelines) {
        offsets.push(arena.len() as u64);
        if !pipeline.immediates {
            arena.extend_from_slice(bytemuck::cast_slice(&dispatch.params));
            arena.resize(arena.len().next_multiple_of(alignment as usize), 0);
        }
    }
    let uniforms = (!arena.is_empty()).then(|| {
        inner.counters.storage_buffers.add(1);
        let buffer = inner.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("parameters"),
            size: arena.len() as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        inner.queue.write_buffer(&buffer, 0, &arena);
        buffer
    });

    let mut steps = Vec::with_capacity(dispatches.len());
    for ((dispatch, pipeline), offset) in dispatches.iter().zip(pipelines).zip(offsets) {
        let mut entries = Vec::with_capacity(dispatch.buffers.len() + 1);
        for (number, slice) in (0..).zip(&dispatch.buffers) {
            let resource = wgpu::BindingResource::Buffer(binding(device, slice, find(slice.at)?)?);
            entries.push(wgpu::BindGroupEntry { binding: number, resource });
        }
        if let Some(uniforms) = uniforms.as_ref().filter(|_| !pipeline.immediates && !dispatch.params.is_empty()) {
            let size = std::num::NonZero::new((4 * dispatch.params.len() as u64).next_multiple_of(16));
            let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: uniforms, offset, size });
            entries.push(wgpu::BindGroupEntry { binding: dispatch.buffers.len() as u32, resource });
        }
        let bindings = inner.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(dispatch.code.name()),
            layout: &pipeline.layout,
            entries: &entries,
        });
        inner.counters.bind_groups.add(1);
        let params = bytemuck::cast_slice(&dispatch.params).to_vec();
        steps.push(Prepared { name: dispatch.code.name(), pipeline, bindings, params, groups: dispatch.groups });
    }
    Ok(steps)
}

/// The part of a buffer that a kernel sees.
///
/// # Errors
/// [`Error::Limit`] where it is larger than a binding can be.
fn binding<'a>(device: &GpuDevice, slice: &Slice, region: &'a Region) -> Result<wgpu::BufferBinding<'a>> {
    let (offset, bytes) = match slice.at {
        Location::Fault(number) => (FAULT_BYTES * number as u64, FAULT_BYTES),
        _ => (slice.offset, slice.bytes.unwrap_or(region.bytes - slice.offset)),
    };
    let limit = device.inner.limits.max_storage_buffer_binding_size;
    if bytes > limit {
        let device = device.adapter().name.clone();
        return Err(Error::Limit { what: "bytes that one kernel can see", device, asked: bytes, limit });
    }
    let size = std::num::NonZero::new(bytes);
    Ok(wgpu::BufferBinding { buffer: region.raw(), offset: region.offset + offset, size })
}

/// The first fault that a run reported.
fn first_fault(faults: &[Fault], staged: &[u8]) -> Option<Error> {
    faults.iter().zip(staged.chunks_exact(FAULT_BYTES as usize)).find_map(|(fault, words)| {
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        (word(0) != u32::MAX).then(|| Error::Index {
            op: fault.op,
            position: word(0) as usize,
            index: word(4) as usize,
            bound: fault.bound,
        })
    })
}

/// Writes the elements of a tensor into its buffer, before all that is submitted later.
pub(crate) fn write(device: &GpuDevice, region: &Region, bytes: &[u8]) {
    device.inner.counters.uploaded(bytes.len());
    device.inner.write(region, bytes);
}
