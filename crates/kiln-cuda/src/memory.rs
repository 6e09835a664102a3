//! Memory of a device: pieces that are kept when they are dropped, and used again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kiln_ir::{Error, Result};

use crate::driver::{Context, DeviceMemory, Span};

/// Pieces are whole multiples of this, so that kernels may read and write whole vectors.
const GRAIN: u64 = 256;

/// Pieces of memory that nobody uses, by size.
#[derive(Debug)]
pub(crate) struct Pool {
    context: Arc<Context>,
    /// Free memory beyond this is given back to the driver.
    most_free: u64,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    by_size: BTreeMap<u64, Vec<DeviceMemory>>,
    bytes: u64,
}

/// A piece of a pool.
#[derive(Debug)]
struct Piece {
    /// Until it is dropped.
    memory: Option<DeviceMemory>,
    pool: Weak<Pool>,
}

/// The memory that a tensor lies in: a piece, or, for a view, from a vector of it on.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    piece: Arc<Piece>,
    offset: u64,
    bytes: u64,
}

impl Region {
    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// So many of its bytes, from one on.
    ///
    /// # Errors
    /// [`Error::View`] where there are fewer.
    pub(crate) fn span(&self, offset: u64, bytes: u64) -> Result<Span<'_>> {
        let within = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let span = self.piece.memory.as_ref().filter(|_| within);
        span.and_then(|memory| memory.span(self.offset + offset, bytes)).ok_or_else(|| Error::View {
            what: "a tensor on a device",
            reason: format!("{bytes} bytes from byte {offset} on asked for, {} there", self.bytes),
        })
    }

    /// All of it.
    ///
    /// # Errors
    /// As [`Region::span`].
    pub(crate) fn whole(&self) -> Result<Span<'_>> {
        self.span(0, self.bytes)
    }

    /// The part of so many bytes from a byte on; `None` where that is not within it or no vector begins there.
    pub(crate) fn part(&self, offset: u64, bytes: u64) -> Option<Self> {
        const VECTOR: u64 = 16;
        let fits = offset.is_multiple_of(VECTOR) && offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        fits.then(|| Self { piece: self.piece.clone(), offset: self.offset + offset, bytes })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let (Some(pool), Some(memory)) = (self.pool.upgrade(), self.memory.take()) else { return };
        let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + memory.bytes() <= pool.most_free {
            free.bytes += memory.bytes();
            // Work in flight that still uses it comes before whatever the next owner asks for.
            free.by_size.entry(memory.bytes()).or_default().push(memory);
        }
    }
}

/// The size of the piece for so many bytes: an eighth too large at most, so that like sizes share pieces.
fn size_class(bytes: u64) -> u64 {
    let bytes = bytes.max(GRAIN);
    let step = (bytes.next_power_of_two() / 16).max(GRAIN);
    bytes.next_multiple_of(step)
}

impl Pool {
    pub(crate) fn new(context: Arc<Context>, most_free: u64) -> Self {
        Self { context, most_free, free: Mutex::default() }
    }

    /// Memory for so many bytes; what it holds is anything. Where there is none left, what is free is given back first.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`].
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Region> {
        self.context.check_alive()?;
        let size = size_class(bytes);
        let reused = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let memory = free.by_size.get_mut(&size).and_then(Vec::pop);
            if memory.is_some() {
                free.bytes -= size;
            }
            memory
        };
        let memory = match reused {
            Some(memory) => memory,
            None => match DeviceMemory::new(&self.context, size) {
                Err(Error::OutOfMemory { .. }) => {
                    self.clear();
                    DeviceMemory::new(&self.context, size)?
                }
                taken => taken?,
            },
        };
        let piece = Piece { memory: Some(memory), pool: Arc::downgrade(self) };
        Ok(Region { piece: Arc::new(piece), offset: 0, bytes: size })
    }

    /// Gives all that is free back to the driver.
    pub(crate) fn clear(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) = Free::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{GRAIN, size_class};

    #[test]
    fn sizes_are_whole_vectors_and_waste_little() {
        for bytes in [0, 1, 256, 257, 1000, 4097, 1 << 20, (1 << 20) + 1, 30_000_000_001] {
            let size = size_class(bytes);
            assert!(size >= bytes.max(GRAIN) && size.is_multiple_of(GRAIN), "{bytes} -> {size}");
            assert!(size <= bytes.max(GRAIN) + bytes / 8 + GRAIN, "{bytes} -> {size}");
        }
    }
}
