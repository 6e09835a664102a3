//! Uploads through mapped buffers that are reused.
//!
//! The host writes into a mapped buffer and records a copy from it, which the next submission runs before its commands.
//! When the device has finished the copy, the buffer is mapped again. So an upload is ordered with the submissions before
//! and after it, reuses its buffer, and needs no submission of its own. A large upload is split into parts, each with a
//! submission of its own: the device copies one part while the host writes the next, and their buffers take turns.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::lost::{Lost, poll_or_lose};
use super::super::mapped;
use super::by_queue;
use kiln_device::Counters;

/// Minimum size of a buffer: small uploads share one.
const LEAST_BYTES: u64 = 1 << 18;
/// Larger uploads are split into parts of this size: some hundred microseconds of work for the processor, compared with
/// which a submission costs little.
const PART: usize = 8 << 20;
/// Maximum number of parts of one upload in flight.
const MOST_PARTS: usize = 6;
/// Maximum bytes of copies before a submission is forced.
const MOST_PENDING: u64 = 64 << 20;
/// Maximum bytes of idle buffers.
const MOST_FREE: u64 = 64 << 20;
/// The alignment of uploads in a buffer: mapped ranges must begin at multiples of it.
const ALIGNMENT: u64 = 8;

/// Uploads to a device. All submissions use this.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    /// Held during submissions, so that no submission precedes earlier copies.
    pending: Mutex<Pending>,
    /// Idle, mapped buffers. Callbacks of the device take this lock, so the device must not be called while it is held.
    free: Arc<Mutex<Vec<wgpu::Buffer>>>,
}

/// The commands at the beginning of the next submission.
#[derive(Debug, Default)]
struct Pending {
    copies: Option<wgpu::CommandEncoder>,
    /// The source buffers; uploads continue in the last one while it has room.
    sources: Vec<wgpu::Buffer>,
    /// Used bytes of the last one.
    used: u64,
}

impl Uploads {
    /// Writes bytes into a buffer at `offset`, padded to whole words: after all earlier submissions, and before all
    /// later ones.
    pub(crate) fn write(
        &self,
        on @ (device, queue): (&wgpu::Device, &wgpu::Queue),
        lost: &Lost,
        counters: &Counters,
        (target, offset): (&wgpu::Buffer, u64),
        bytes: &[u8],
    ) {
        if bytes.len() <= PART {
            self.write_part(&mut self.pending(), on, counters, (target, offset), bytes);
            return;
        }
        // A loss is recorded, and `scoped_work` of the upload returns it.
        let poll = |how| {
            poll_or_lose(lost, || device.poll(how));
        };
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
            // Without the lock, because callbacks may submit something.
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
            // The queue writes before the commands of a submission, so earlier copies must be submitted first.
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

    /// A mapped buffer with room for `size` bytes, and their offset.
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

    /// Submits commands after the copies of all earlier uploads.
    pub(crate) fn submit(
        &self,
        queue: &wgpu::Queue,
        commands: Option<wgpu::CommandBuffer>,
    ) -> Option<wgpu::SubmissionIndex> {
        self.submit_pending(&mut self.pending(), queue, commands)
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
                // Buffers of a lost device cannot be mapped.
                if mapped.is_ok() && held + buffer.size() <= MOST_FREE {
                    free.push(buffer);
                }
            });
        }
        Some(submission)
    }

    /// Returns idle buffers to the driver.
    pub(crate) fn clear(&self) {
        let free = std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner));
        drop(free);
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
