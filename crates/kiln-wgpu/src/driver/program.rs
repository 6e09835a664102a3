//! Dispatches that are compiled and bound to memory, their submission, and the readback of results.

use std::sync::Arc;

use kiln_device::{Bindings, Profile, Read};
use kiln_ir::{Error, Result};

use super::downloads::{Group, Readback, groups};
use super::mapped;
use super::pipelines::Pipeline;
use super::timestamps::Timestamps;
use crate::plan::{Dispatch, Slice};
use crate::{GpuDevice, Region};
use kiln_device::waiting::{Arriving, Waiting};

/// Maximum dispatches in one submission. Longer plans are split, so that other work is not delayed for long: in a
/// browser, drawing the page. Measured on an H100: a token of a model of 8 billion weights, 362 dispatches, takes 1.5 % longer in two
/// submissions than in one.
const DISPATCHES_A_SUBMISSION: usize = if cfg!(target_arch = "wasm32") { 64 } else { 512 };

/// A plan's dispatches, compiled and bound.
#[derive(Debug)]
pub struct Program {
    steps: Vec<Bound>,
    /// The timestamps of the kernels, if the device times them.
    timestamps: Option<Timestamps>,
}

/// A dispatch with all its bindings.
#[derive(Debug)]
struct Bound {
    name: &'static str,
    pipeline: Arc<Pipeline>,
    bindings: wgpu::BindGroup,
    params: Vec<u8>,
    groups: [u32; 3],
}

/// Regions that are copied to the host after a program, or without one.
type Reads<'a, 'b> = &'a mut [Read<'b, wgpu::Buffer>];

impl Program {
    pub(super) fn new(device: &GpuDevice, steps: &[Dispatch], memory: &Bindings<wgpu::Buffer>) -> Result<Self> {
        let steps = bind(device, steps, memory)?;
        let clock = || Timestamps::new(&device.inner.device, steps.len(), DISPATCHES_A_SUBMISSION);
        let timestamps = device.inner.profiling.then(clock);
        Ok(Self { steps, timestamps })
    }

    /// Submits the program.
    pub(super) fn submit(&self, device: &GpuDevice, faults: Option<&Region>) -> Result<()> {
        submit_with(device, &[(self, faults)], None).map(drop)
    }

    /// The time of each kernel of the last run.
    pub(super) async fn times(&self, device: &GpuDevice, waiting: Waiting) -> Result<Profile> {
        let kernels = self.steps.iter().map(|step| (step.name, step.groups));
        match &self.timestamps {
            Some(timestamps) => timestamps.read(device, kernels, waiting).await,
            None => Ok(Profile::default()),
        }
    }
}

/// A program and the words of its faults.
pub(super) type Submitted<'p> = (&'p Program, Option<&'p Region>);

/// Submits programs one after the other, with the copies to the host in their last command buffer.
fn submit_with(
    device: &GpuDevice,
    programs: &[Submitted<'_>],
    copies: Option<Copies<'_>>,
) -> Result<Option<wgpu::SubmissionIndex>> {
    let inner = &device.inner;
    for words in programs.iter().filter_map(|(_, faults)| *faults) {
        inner.write(words, &vec![0xff; words.bytes() as usize])?;
    }
    let encoder = || inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut last = encoder();
    let (mut encoded, mut submissions, mut dispatches) = (0, 1, 0);
    for (program, _) in programs {
        for (number, piece) in program.steps.chunks(DISPATCHES_A_SUBMISSION).enumerate() {
            if encoded + piece.len() > DISPATCHES_A_SUBMISSION {
                inner.submit(std::mem::replace(&mut last, encoder()).finish());
                submissions += 1;
                encoded = 0;
            }
            match &program.timestamps {
                Some(timestamps) => encode_timed(&mut last, piece, number * DISPATCHES_A_SUBMISSION, timestamps),
                None => encode(&mut last, piece),
            }
            encoded += piece.len();
            dispatches += piece.len();
        }
    }
    if let Some(copies) = copies {
        copies.encode(&mut last)?;
    }
    let submission = inner.submit(last.finish());
    inner.shared.counters.submitted(submissions, dispatches);
    Ok(submission)
}

/// Submits a program, and begins to copy the first bytes of regions to the host, which the returned future waits for.
/// `None`, and nothing is submitted, if they do not fit one buffer.
pub(super) async fn begin(
    device: &GpuDevice,
    program: Submitted<'_>,
    reads: Vec<(Region, u64)>,
    waiting: Waiting,
) -> Result<Option<Arriving<Vec<Vec<u8>>>>> {
    let mut groups = groups(reads.iter().map(|read| read.1), device.inner.target.limits.max_buffer_size);
    let Some(group) = groups.pop().filter(|group| groups.is_empty() && group.bytes > 0) else { return Ok(None) };
    let sent = device.scoped_work("a batch", group.bytes, || {
        let to = Readback::new(device, group.bytes);
        let from = |number: usize| &reads[number].0;
        let submission = submit_with(device, &[program], Some(Copies { to: &to, group: &group, from: &from }))?;
        // Begun now: a browser would complete a later mapping after all that is submitted until then.
        let mapped = to.begin();
        Ok((to, mapped, submission))
    });
    let (to, mapped, submission) = sent.await?;
    Ok(Some(Box::pin(async move {
        let copy = |bytes: &[u8]| group.places.iter().map(|place| place.of(bytes).to_vec()).collect();
        to.see_mapped(mapped, submission, waiting, copy).await
    })))
}

/// Submits programs one after the other, and copies regions to the host, with one submission and one mapping, or as few as the
/// number of dispatches and the largest buffer of the device allow.
pub(super) async fn run(
    device: &GpuDevice,
    programs: &[Submitted<'_>],
    reads: Reads<'_, '_>,
    waiting: Waiting,
) -> Result<()> {
    let sizes = reads.iter().map(|read| read.to.len() as u64);
    for (number, group) in groups(sizes, device.inner.target.limits.max_buffer_size).iter().enumerate() {
        let programs = if number == 0 { programs } else { &[] };
        if programs.is_empty() && group.bytes == 0 {
            continue;
        }
        let sent = device.scoped_work("a batch", group.bytes, || {
            let to = (group.bytes > 0).then(|| Readback::new(device, group.bytes));
            let from = |number: usize| &reads[number].from;
            let copies = to.as_ref().map(|to| Copies { to, group, from: &from });
            match copies {
                Some(copies) if programs.is_empty() => copies.submit(device)?,
                copies => {
                    submit_with(device, programs, copies)?;
                }
            }
            Ok(to)
        });
        let Some(from) = sent.await? else { continue };
        let copy = |bytes: &[u8]| {
            group.places.iter().for_each(|place| mapped::read(place.of(bytes), reads[place.number].to));
        };
        from.see(waiting, copy).await?;
    }
    Ok(())
}

/// Regions that are copied to a readback buffer.
#[derive(Clone, Copy)]
struct Copies<'a> {
    to: &'a Readback,
    group: &'a Group,
    /// The region of each read; the group contains some of them.
    from: &'a dyn Fn(usize) -> &'a Region,
}

impl Copies<'_> {
    fn encode(&self, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        for place in self.group.places.iter().filter(|place| place.bytes > 0) {
            let from = (self.from)(place.number);
            encoder.copy_buffer_to_buffer(from.memory()?, from.offset(), self.to.raw(), place.start, place.words());
        }
        Ok(())
    }

    fn submit(&self, device: &GpuDevice) -> Result<()> {
        let inner = &device.inner;
        let mut encoder = inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.encode(&mut encoder)?;
        inner.submit(encoder.finish());
        inner.shared.counters.submitted(1, 0);
        Ok(())
    }
}

fn encode(encoder: &mut wgpu::CommandEncoder, steps: &[Bound]) {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    steps.iter().for_each(|step| step.dispatch(&mut pass));
}

/// The same with a pass for each step, because only passes can be timed; `before` steps were in earlier submissions.
fn encode_timed(encoder: &mut wgpu::CommandEncoder, steps: &[Bound], before: usize, timestamps: &Timestamps) {
    for (number, step) in steps.iter().enumerate() {
        let timestamp_writes = Some(timestamps.of_pass(number));
        step.dispatch(&mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes }));
    }
    timestamps.resolve(encoder, before, steps.len());
}

impl Bound {
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

/// Binds dispatches to memory. Their kernels must be compiled.
fn bind(device: &GpuDevice, dispatches: &[Dispatch], memory: &Bindings<wgpu::Buffer>) -> Result<Vec<Bound>> {
    let inner = &device.inner;
    let pipelines = dispatches.iter().map(|dispatch| device.pipeline(&dispatch.code)).collect::<Result<Vec<_>>>()?;
    // The parameters of a plan are constant: if they are not immediates, one buffer holds those of all dispatches.
    let alignment = u64::from(inner.target.limits.min_uniform_buffer_offset_alignment).max(16);
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
        inner.shared.counters.storage_buffers.add(1);
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
        let regions = dispatch.buffers.iter().map(|slice| memory.find(slice.at)).collect::<Result<Vec<_>>>()?;
        let mut entries = Vec::with_capacity(dispatch.buffers.len() + 1);
        for ((number, slice), region) in (0..).zip(&dispatch.buffers).zip(&regions) {
            let resource = wgpu::BindingResource::Buffer(binding(device, slice, region)?);
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
        inner.shared.counters.bind_groups.add(1);
        let params = bytemuck::cast_slice(&dispatch.params).to_vec();
        steps.push(Bound { name: dispatch.code.name(), pipeline, bindings, params, groups: dispatch.groups });
    }
    Ok(steps)
}

/// The part of a buffer that is bound for a kernel.
///
/// # Errors
/// [`Error::Limit`] if it exceeds the maximum binding.
fn binding<'a>(device: &GpuDevice, slice: &Slice, region: &'a Region) -> Result<wgpu::BufferBinding<'a>> {
    let Slice { offset, bytes, .. } = *slice;
    let limit = device.inner.target.limits.max_storage_buffer_binding_size;
    if bytes > limit {
        let device = device.adapter().name.clone();
        return Err(Error::Limit { what: "bytes that one kernel can see", device, asked: bytes, limit });
    }
    let size = std::num::NonZero::new(bytes);
    Ok(wgpu::BufferBinding { buffer: region.memory()?, offset: region.offset() + offset, size })
}
