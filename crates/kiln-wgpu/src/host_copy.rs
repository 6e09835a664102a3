//! Copies between the memory of the host and memory that a device has mapped: large ones by several threads, since one
//! alone reaches a fraction of what the memory gives.

use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(target_arch = "wasm32"))]
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes that a thread copies at a time, whole words: starting one takes as long as copying a third of them.
const PART: usize = 1 << 20;
/// More threads than these gain nothing.
#[cfg(not(target_arch = "wasm32"))]
const MOST_THREADS: usize = 4;

/// Writes bytes from this place on into a buffer that is mapped for writing; `false` where it is not. The last word is filled
/// up with zeros.
pub(crate) fn write(bytes: &[u8], buffer: &wgpu::Buffer, offset: u64) -> bool {
    let failed = AtomicBool::new(false);
    let places = (offset..).step_by(PART);
    share(bytes.chunks(PART).zip(places).collect(), |(part, from)| {
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
    share(from[..bytes].chunks(PART).zip(to[..bytes].chunks_mut(PART)).collect(), |(from, to)| {
        to.copy_from_slice(from)
    });
}

/// Does the work of all parts. The caller works too: where no thread can be started, alone.
#[cfg(not(target_arch = "wasm32"))]
fn share<P: Send>(parts: Vec<P>, work: impl Fn(P) + Sync) {
    // The system takes longer to tell than a small copy does.
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    if parts.len() < 2 {
        return parts.into_iter().for_each(work);
    }
    let threads = *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    let others = parts.len().min(threads).min(MOST_THREADS) - 1;
    let parts = Mutex::new(parts);
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let take_turns = || {
        while let Some(part) = next() {
            work(part);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..others {
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, take_turns) {
                tracing::debug!("no thread to copy with: {error}");
            }
        }
        take_turns();
    });
}

/// A browser has one thread.
#[cfg(target_arch = "wasm32")]
fn share<P>(parts: Vec<P>, work: impl Fn(P)) {
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
