//! Memory of a device: buffers that are given back when they are dropped, and used again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::statistics::Counters;

/// Buffers are whole vectors of four words: kernels may read and write them as such.
const GRAIN: u64 = 16;

/// Free memory beyond this is given back to the driver.
const MOST_FREE: u64 = 1 << 30;

/// Buffers of a device that nobody uses, by size.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    by_size: BTreeMap<u64, Vec<wgpu::Buffer>>,
    bytes: u64,
}

/// A buffer of a pool. What it holds at first is anything.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    buffer: wgpu::Buffer,
    pool: Weak<Pool>,
}

impl DeviceBuffer {
    /// A buffer that no pool takes back.
    pub(crate) fn unpooled(buffer: wgpu::Buffer) -> Self {
        Self { buffer, pool: Weak::new() }
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

/// The part of a buffer that a tensor lies in: all of it, or, for a view, from a place on where a binding can begin.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) buffer: Arc<DeviceBuffer>,
    /// Its first byte.
    pub(crate) offset: u64,
    /// Its bytes, whole vectors of four words.
    pub(crate) bytes: u64,
}

impl From<DeviceBuffer> for Region {
    fn from(buffer: DeviceBuffer) -> Self {
        Self { offset: 0, bytes: buffer.raw().size(), buffer: Arc::new(buffer) }
    }
}

impl Region {
    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        self.buffer.raw()
    }

    /// The part for a tensor of `bytes` bytes from a byte of this on; `None` where no binding can begin there.
    pub(crate) fn part(&self, offset: u64, bytes: u64, limits: &wgpu::Limits) -> Option<Self> {
        let offset = self.offset + offset;
        let alignment = u64::from(limits.min_storage_buffer_offset_alignment).max(GRAIN);
        // Buffers are whole vectors, so there is room for the last one.
        let fits = bytes > 0 && offset.is_multiple_of(alignment);
        fits.then(|| Self { buffer: self.buffer.clone(), offset, bytes: bytes.next_multiple_of(GRAIN) })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        let size = self.buffer.size();
        if free.bytes + size <= MOST_FREE {
            free.bytes += size;
            // Work in flight that still uses it comes before whatever the next owner submits.
            free.by_size.entry(size).or_default().push(self.buffer.clone());
        }
    }
}

/// The size of the buffer for so many bytes: an eighth too large at most, so that like sizes share buffers.
pub(crate) fn size_class(bytes: u64) -> u64 {
    let bytes = bytes.max(GRAIN);
    let step = (bytes.next_power_of_two() / 16).max(GRAIN);
    bytes.next_multiple_of(step)
}

impl Pool {
    /// A buffer of at least so many bytes, for kernels to read and write.
    pub(crate) fn take(self: &Arc<Self>, device: &wgpu::Device, counters: &Counters, bytes: u64) -> DeviceBuffer {
        let size = size_class(bytes);
        let reused = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let buffer = free.by_size.get_mut(&size).and_then(Vec::pop);
            if buffer.is_some() {
                free.bytes -= size;
            }
            buffer
        };
        let buffer = reused.unwrap_or_else(|| {
            use wgpu::BufferUsages as Usages;
            counters.storage_buffers.add(1);
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage: Usages::STORAGE | Usages::COPY_SRC | Usages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        DeviceBuffer { buffer, pool: Arc::downgrade(self) }
    }

    /// Gives all free buffers back to the driver.
    pub(crate) fn clear(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) = Free::default();
    }
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn sizes_are_whole_vectors_and_waste_little() {
        for bytes in [0, 1, 16, 17, 100, 1000, 4097, 1 << 20, (1 << 20) + 1, 3_000_000_001] {
            let size = size_class(bytes);
            assert!(size >= bytes.max(16) && size.is_multiple_of(16), "{bytes} -> {size}");
            assert!(size <= bytes.max(16) + bytes / 8 + 16, "{bytes} -> {size}");
        }
    }
}
