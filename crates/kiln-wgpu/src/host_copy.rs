//! Copies between the memory of the host and memory that a device has mapped: large ones by several threads, since one
//! alone reaches a fraction of what the memory gives. The threads are kept: to start some for each copy takes as long as
//! copying a megabyte. They do nothing else, so that a copy never waits for work of others.

use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(target_arch = "wasm32"))]
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes that a thread copies at a time, whole words.
const PART: usize = 1 << 18;
/// For each so many bytes a thread is worth waking.
#[cfg(not(target_arch = "wasm32"))]
const BYTES_A_THREAD: usize = 1 << 19;
/// More threads than these gain nothing: what is written goes over the bus, which two fill, and to wake more takes as long as
/// they save.
#[cfg(not(target_arch = "wasm32"))]
const MOST_THREADS: usize = 4;

/// Writes bytes, each from their own place on, into a buffer that is mapped for writing; `false` where it is not. Their last
/// word is filled up with zeros.
pub(crate) fn write<'a>(all: impl IntoIterator<Item = (&'a [u8], u64)>, buffer: &wgpu::Buffer) -> bool {
    let failed = AtomicBool::new(false);
    let parts = all.into_iter().flat_map(|(bytes, offset)| bytes.chunks(PART).zip((offset..).step_by(PART)));
    let parts: Vec<(&[u8], u64)> = parts.collect();
    share(parts.iter().map(|part| part.0.len()).sum(), parts, |(part, from)| {
        let size = (part.len() as u64).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let Ok(mut mapped) = buffer.get_mapped_range_mut(from..from + size) else {
            return failed.store(true, Ordering::Relaxed);
        };
        mapped.slice(..part.len()).copy_from_slice(part);
        mapped.slice(part.len()..).fill(0);
    });
    !failed.into_inner()
}

/// Reads bytes of mapped memory, as many as both have.
pub(crate) fn read(from: &[u8], to: &mut [u8]) {
    let bytes = from.len().min(to.len());
    let parts = from[..bytes].chunks(PART).zip(to[..bytes].chunks_mut(PART)).collect();
    share(bytes, parts, |(from, to)| to.copy_from_slice(from));
}

/// The threads that help; none where there is one processor, or none can be started.
#[cfg(not(target_arch = "wasm32"))]
fn helpers() -> Option<&'static rayon::ThreadPool> {
    static HELPERS: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    let start = || {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = processors.min(MOST_THREADS) - 1;
        let named = rayon::ThreadPoolBuilder::new().thread_name(|number| format!("kiln-gpu-copy {number}"));
        // Zero would ask for as many as there are processors.
        let pool = (threads > 0).then(|| named.num_threads(threads).build())?;
        pool.inspect_err(|error| tracing::debug!("no threads to copy with: {error}")).ok()
    };
    HELPERS.get_or_init(start).as_ref()
}

/// Does the work of all parts, of so many bytes. The caller works too.
#[cfg(not(target_arch = "wasm32"))]
fn share<P: Send>(bytes: usize, parts: Vec<P>, work: impl Fn(P) + Sync) {
    let threads = bytes.div_ceil(BYTES_A_THREAD).min(MOST_THREADS);
    // A thread of a pool takes up other work of its pool while it waits, which may want a lock that it holds here.
    let alone = threads < 2 || rayon::current_thread_index().is_some();
    let Some(helpers) = (if alone { None } else { helpers() }) else {
        return parts.into_iter().for_each(work);
    };
    let parts = Mutex::new(parts);
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let take_turns = || {
        while let Some(part) = next() {
            work(part);
        }
    };
    helpers.in_place_scope(|scope| {
        (1..threads).for_each(|_| scope.spawn(|_| take_turns()));
        take_turns();
    });
}

/// A browser has one thread.
#[cfg(target_arch = "wasm32")]
fn share<P>(_: usize, parts: Vec<P>, work: impl Fn(P)) {
    parts.into_iter().for_each(work);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_whatever_the_length() {
        for bytes in [0, 1, 7, PART - 1, PART, PART + 1, 5 * PART + 3] {
            let from: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8 + 1).collect();
            let mut to = vec![0; bytes + 2];
            read(&from, &mut to);
            assert!(to[..bytes] == from && to[bytes..] == [0, 0], "{bytes}");
        }
    }
}
