//! Copies between the memory of the host and memory that a device has mapped.

use std::sync::atomic::{AtomicBool, Ordering};

use kiln_device::host_copy::{self, PART};

/// Maximum number of threads: writes cross the bus, which two threads saturate, and waking more takes as long as it
/// saves.
const MOST_THREADS: usize = 4;

/// Writes bytes, each at its own offset, into a buffer that is mapped for writing; returns `false` if it is not mapped.
/// Pads their last word with zeros.
pub(crate) fn write<'a>(all: impl IntoIterator<Item = (&'a [u8], u64)>, buffer: &wgpu::Buffer) -> bool {
    let failed = AtomicBool::new(false);
    let parts = all.into_iter().flat_map(|(bytes, offset)| bytes.chunks(PART).zip((offset..).step_by(PART)));
    let parts: Vec<(&[u8], u64)> = parts.collect();
    let bytes = parts.iter().map(|part| part.0.len()).sum();
    host_copy::share(bytes, parts, MOST_THREADS, |(part, from)| {
        let size = (part.len() as u64).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let Ok(mut mapped) = buffer.get_mapped_range_mut(from..from + size) else {
            return failed.store(true, Ordering::Relaxed);
        };
        mapped.slice(..part.len()).copy_from_slice(part);
        mapped.slice(part.len()..).fill(0);
    });
    !failed.into_inner()
}

/// Reads as many bytes of mapped memory as both slices have.
pub(crate) fn read(from: &[u8], to: &mut [u8]) {
    host_copy::copy(from, to, MOST_THREADS);
}
