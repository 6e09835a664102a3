//! Uploads through mapped buffers that are used again and again.
//!
//! The host writes into a buffer that it has mapped; a copy from there is recorded, and rides along with the next
//! submission, before its commands. When the device is done with it the buffer is mapped again. So an upload is ordered as
//! what is submitted before and after it, makes nothing anew, and is no submission of its own. A large one goes part by
//! part, each submitted by itself: the device copies one while the host writes the next, and their buffers take turns.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::mapped;
use super::by_queue;
use kiln_device::Counters;

/// The least size of a buffer: small uploads share one.
const LEAST_BYTES: u64 = 1 << 18;
/// What is larger goes in parts of so much: for the processor some hundred microseconds of work, beside which a submission
/// is little.
const PART: usize = 8 << 20;
/// This many parts of one upload may be on their way.
const MOST_PARTS: usize = 6;
/// So much is copied at most before something has to be submitted.
const MOST_PENDING: u64 = 64 << 20;
/// Buffers that wait to be used again hold at most so much.
const MOST_FREE: u64 = 64 << 20;
/// Where one upload can begin in a buffer after another: mapped ranges begin at such places.
const ALIGNMENT: u64 = 8;

/// The way of a device's uploads. All that is submitted goes through this.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    /// Held while anything is submitted, so that no submission overtakes the copies before it.
    pending: Mutex<Pending>,
    /// Mapped buffers that nobody uses. Callbacks of the device take this lock: nothing may be asked of the device under it.
    free: Arc<Mutex<Vec<wgpu::Buffer>>>,
}

/// What the next submission begins with.
#[derive(Debug, Default)]
struct Pending {
    copies: Option<wgpu::CommandEncoder>,
    /// The buffers that are copied from; uploads go on in the last one, as long as there is room.
    sources: Vec<wgpu::Buffer>,
    /// Bytes of the last one that are taken.
    used: u64,
}

impl Uploads {
    /// Writes bytes into a buffer from `offset` on, up to whole words: after all that was submitted before, and before all
    /// that is submitted later.
    pub(crate) fn write(
        &self,
        on @ (device, queue): (&wgpu::Device, &wgpu::Queue),
        counters: &Counters,
        (target, offset): (&wgpu::Buffer, u64),
        bytes: &[u8],
    ) {
        if bytes.len() <= PART {
            self.write_part(&mut self.pending(), on, counters, (target, offset), bytes);
            return;
        }
        // An error of polling is one of the device, which is seen where results are waited for.
        let poll = |how| drop(device.poll(how));
        let mut sent = VecDeque::new();
        for (part, at) in bytes.chunks(PART).zip((offset..).step_by(PART)) {
            if sent.len() == MOST_PARTS {
                poll(wgpu::PollType::Wait { submission_index: sent.pop_front(), timeout: None });
            }
            {
                let mut pending = self.pending();
                self.write_part(&mut pending, on, counters, (target, at), part);
                sent.extend(self.submit_pending(&mut pending, queue, None));
            }
            // Not under the lock: what is called back may want to submit something.
            poll(wgpu::PollType::Poll);
        }
    }

    fn write_part(
        &self,
        pending: &mut Pending,
        (device, queue): (&wgpu::Device, &wgpu::Queue),
        counters: &Counters,
        at @ (target, offset): (&wgpu::Buffer, u64),
        bytes: &[u8],
    ) {
        let size = (bytes.len() as u64).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        if size == 0 {
            return;
        }
        let (source, from) = self.room(pending, device, counters, size);
        if !mapped::write([(bytes, from)], &source) {
            // The queue writes before the commands of a submission: what was to be copied before has to be done then.
            self.submit_pending(pending, queue, None);
            return by_queue(queue, at, bytes);
        }
        let encoder = || device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("uploads") });
        let copies = pending.copies.get_or_insert_with(encoder);
        copies.copy_buffer_to_buffer(&source, from, target, offset, size);
        if pending.sources.iter().map(wgpu::Buffer::size).sum::<u64>() >= MOST_PENDING {
            self.submit_pending(pending, queue, None);
        }
    }

    /// A mapped buffer with room for `size` bytes, and where they begin.
    fn room(
        &self,
        pending: &mut Pending,
        device: &wgpu::Device,
        counters: &Counters,
        size: u64,
    ) -> (wgpu::Buffer, u64) {
        let from = pending.used.next_multiple_of(ALIGNMENT);
        if let Some(last) = pending.sources.last().filter(|last| from + size <= last.size()) {
            pending.used = from + size;
            return (last.clone(), from);
        }
        let wanted = size.next_power_of_two().max(LEAST_BYTES);
        let free = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.iter().position(|buffer| buffer.size() == wanted).map(|at| free.swap_remove(at))
        };
        let buffer = free.unwrap_or_else(|| {
            counters.upload_buffers.add(1);
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("uploads"),
                size: wanted,
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            })
        });
        pending.sources.push(buffer.clone());
        pending.used = size;
        (buffer, 0)
    }

    /// Submits commands, after the copies of all uploads before them.
    pub(crate) fn submit(&self, queue: &wgpu::Queue, commands: Option<wgpu::CommandBuffer>) {
        self.submit_pending(&mut self.pending(), queue, commands);
    }

    fn submit_pending(
        &self,
        pending: &mut Pending,
        queue: &wgpu::Queue,
        commands: Option<wgpu::CommandBuffer>,
    ) -> Option<wgpu::SubmissionIndex> {
        let Pending { copies, sources, .. } = std::mem::take(pending);
        if copies.is_none() && commands.is_none() {
            return None;
        }
        sources.iter().for_each(wgpu::Buffer::unmap);
        let submission = queue.submit(copies.map(wgpu::CommandEncoder::finish).into_iter().chain(commands));
        for source in sources {
            let (free, buffer) = (self.free.clone(), source.clone());
            source.map_async(wgpu::MapMode::Write, .., move |mapped| {
                let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
                let held: u64 = free.iter().map(wgpu::Buffer::size).sum();
                // Of a device that is lost nothing can be mapped.
                if mapped.is_ok() && held + buffer.size() <= MOST_FREE {
                    free.push(buffer);
                }
            });
        }
        Some(submission)
    }

    /// Gives the buffers that are not in use back to the driver.
    pub(crate) fn clear(&self) {
        let free = std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner));
        drop(free);
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
