//! Uploads through mapped buffers that are used again and again.
//!
//! The host writes into a buffer that it has mapped; a copy from there is recorded, and rides along with the next
//! submission, before its commands. When the device is done with it the buffer is mapped again. So an upload is ordered as
//! what is submitted before and after it, makes nothing anew, and is no submission of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host_copy;
use crate::statistics::Counters;

/// The least size of a buffer: small uploads share one.
const LEAST_BYTES: u64 = 1 << 18;
/// Larger uploads are left to wgpu, which makes a buffer for each: beside the copy that costs little. So are all in browsers,
/// where the memory of another process has to be written.
const MOST_BYTES: u64 = if cfg!(target_arch = "wasm32") { 0 } else { 32 << 20 };
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
        (device, queue): (&wgpu::Device, &wgpu::Queue),
        counters: &Counters,
        (target, offset): (&wgpu::Buffer, u64),
        bytes: &[u8],
    ) {
        let size = (bytes.len() as u64).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        if size == 0 {
            return;
        }
        let mut pending = self.pending();
        if MOST_BYTES.checked_sub(size).is_some()
            && let Some((source, from)) = self.room(&mut pending, device, counters, size)
            && host_copy::write([(bytes, from)], &source)
        {
            let encoder = || device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("uploads") });
            let copies = pending.copies.get_or_insert_with(encoder);
            copies.copy_buffer_to_buffer(&source, from, target, offset, size);
            if pending.sources.iter().map(wgpu::Buffer::size).sum::<u64>() >= MOST_PENDING {
                self.submit_pending(&mut pending, queue, None);
            }
            return;
        }
        // The queue writes before the commands of a submission: what was to be copied before has to be done then.
        self.submit_pending(&mut pending, queue, None);
        let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
        queue.write_buffer(target, offset, words);
        if !rest.is_empty() {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            queue.write_buffer(target, offset + words.len() as u64, &word);
        }
    }

    /// A mapped buffer with room for `size` bytes, and where they begin.
    fn room(
        &self,
        pending: &mut Pending,
        device: &wgpu::Device,
        counters: &Counters,
        size: u64,
    ) -> Option<(wgpu::Buffer, u64)> {
        let from = pending.used.next_multiple_of(ALIGNMENT);
        if let Some(last) = pending.sources.last().filter(|last| from + size <= last.size()) {
            pending.used = from + size;
            return Some((last.clone(), from));
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
        Some((buffer, 0))
    }

    /// Submits commands, after the copies of all uploads before them.
    pub(crate) fn submit(&self, queue: &wgpu::Queue, commands: Option<wgpu::CommandBuffer>) {
        self.submit_pending(&mut self.pending(), queue, commands);
    }

    fn submit_pending(&self, pending: &mut Pending, queue: &wgpu::Queue, commands: Option<wgpu::CommandBuffer>) {
        let Pending { copies, sources, .. } = std::mem::take(pending);
        if copies.is_none() && commands.is_none() {
            return;
        }
        sources.iter().for_each(wgpu::Buffer::unmap);
        queue.submit(copies.map(wgpu::CommandEncoder::finish).into_iter().chain(commands));
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
