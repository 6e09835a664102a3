//! Device memory: allocations that return to a pool when they are dropped, and regions of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kiln_ir::{Error, Result};

/// Regions are whole vectors of 16 bytes: kernels may read and write them as such.
pub const VECTOR_BYTES: u64 = 16;

/// Free allocations of a device, by size.
#[derive(Debug)]
pub struct Pool<M>(Arc<State<M>>);

#[derive(Debug)]
struct State<M> {
    granularity: u64,
    most_free: u64,
    /// The largest allocation, rounded down to whole granules.
    largest: u64,
    live: AtomicU64,
    free: Mutex<Free<M>>,
}

#[derive(Debug)]
struct Free<M> {
    by_size: BTreeMap<u64, Vec<M>>,
    bytes: u64,
}

/// Device memory by its holders, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Held by tensors, batches and operations that are kept ready.
    pub live: u64,
    /// Held by the pool for the next allocation of the same size.
    pub pooled: u64,
}

/// The size of the allocation for this many bytes by a pool of this granularity, see [`Pool::size_class`].
pub fn size_class(bytes: u64, granularity: u64) -> u64 {
    let bytes = bytes.max(granularity);
    let step = (bytes.checked_next_power_of_two().unwrap_or(1 << 63) / 16).max(granularity);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// An allocation of a pool.
#[derive(Debug)]
struct Allocation<M> {
    /// `None` only during drop.
    memory: Option<M>,
    bytes: u64,
    pool: Weak<State<M>>,
}

/// Part of an allocation: all of it, or what a view sees. Cloning it is cheap and gives the same memory.
#[derive(Debug)]
pub struct Region<M> {
    allocation: Arc<Allocation<M>>,
    offset: u64,
    bytes: u64,
}

impl<M> Clone for Region<M> {
    fn clone(&self) -> Self {
        Self { allocation: self.allocation.clone(), ..*self }
    }
}

impl<M> Region<M> {
    /// Memory that no pool takes back.
    pub fn unpooled(memory: M, bytes: u64) -> Self {
        let allocation = Allocation { memory: Some(memory), bytes, pool: Weak::new() };
        Self { allocation: Arc::new(allocation), offset: 0, bytes }
    }

    /// The allocation that it is part of.
    ///
    /// # Errors
    /// Does not happen: memory leaves an allocation only when its last region is dropped.
    pub fn memory(&self) -> Result<&M> {
        self.allocation.memory.as_ref().ok_or(Error::OutOfMemory { bytes: 0 })
    }

    /// Whether both are parts of one allocation.
    pub(crate) fn shares(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }

    /// Whether both are the same bytes.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.shares(other) && (self.offset, self.bytes) == (other.offset, other.bytes)
    }

    /// Its first byte in the allocation.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its size, which is that of its tensor or more, in whole vectors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The part of `bytes` bytes from `offset` on; `None` where it is not within the region, is empty, or where a region cannot
    /// begin because of the alignment.
    pub fn part(&self, offset: u64, bytes: u64, alignment: u64) -> Option<Self> {
        // Regions consist of whole vectors, so this does not exceed the region.
        let size = bytes.checked_next_multiple_of(VECTOR_BYTES)?;
        let within = offset.checked_add(size).is_some_and(|end| end <= self.bytes);
        let offset = self.offset.checked_add(offset)?;
        let fits = bytes > 0 && within && offset.is_multiple_of(alignment.max(VECTOR_BYTES));
        fits.then(|| Self { allocation: self.allocation.clone(), offset, bytes: size })
    }
}

impl<M> Drop for Allocation<M> {
    fn drop(&mut self) {
        let (Some(pool), Some(memory)) = (self.pool.upgrade(), self.memory.take()) else { return };
        pool.live.fetch_sub(self.bytes, Ordering::Relaxed);
        let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + self.bytes <= pool.most_free {
            free.bytes += self.bytes;
            // Work in flight that still uses the memory is ordered before anything that the next owner submits.
            free.by_size.entry(self.bytes).or_default().push(memory);
        }
    }
}

impl<M> Pool<M> {
    pub(crate) fn new(granularity: u64, most_free: u64, largest: u64) -> Self {
        let free = Mutex::new(Free { by_size: BTreeMap::new(), bytes: 0 });
        let granularity = granularity.max(VECTOR_BYTES);
        let largest = largest / granularity * granularity;
        Self(Arc::new(State { granularity, most_free, largest, live: AtomicU64::new(0), free }))
    }

    /// The size of the allocation for this many bytes: at most an eighth larger, so that like sizes share allocations, and not
    /// beyond the largest allocation of the device if the bytes fit that.
    pub fn size_class(&self, bytes: u64) -> u64 {
        size_class(bytes, self.0.granularity).min(self.0.largest.max(bytes))
    }

    /// The granularity: sizes of allocations are multiples of it.
    pub fn granularity(&self) -> u64 {
        self.0.granularity
    }

    /// Bytes of free memory that are kept.
    pub(crate) fn most_free(&self) -> u64 {
        self.0.most_free
    }

    /// Bytes of the largest allocation of the device.
    pub(crate) fn largest(&self) -> u64 {
        self.0.largest
    }

    /// Memory of at least this many bytes, its contents undefined. When `allocate` is out of memory, the free allocations are
    /// returned to the driver and it is asked once more.
    ///
    /// # Errors
    /// The errors of `allocate`.
    pub fn take(&self, bytes: u64, allocate: impl Fn(u64) -> Result<M>) -> Result<Region<M>> {
        let size = self.size_class(bytes);
        let reused = {
            let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
            let memory = free.by_size.get_mut(&size).and_then(Vec::pop);
            if memory.is_some() {
                free.bytes -= size;
            }
            memory
        };
        let memory = match reused {
            Some(memory) => memory,
            None => match allocate(size) {
                Err(Error::OutOfMemory { .. }) => {
                    self.clear();
                    allocate(size)?
                }
                allocated => allocated?,
            },
        };
        self.0.live.fetch_add(size, Ordering::Relaxed);
        let allocation = Allocation { memory: Some(memory), bytes: size, pool: Arc::downgrade(&self.0) };
        Ok(Region { allocation: Arc::new(allocation), offset: 0, bytes: size })
    }

    /// Returns all free memory to the driver.
    pub fn clear(&self) {
        let free = {
            let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.bytes = 0;
            std::mem::take(&mut free.by_size)
        };
        // Drops them after releasing the lock: freeing may wait for the device.
        drop(free);
    }

    /// The memory in use.
    pub fn memory_use(&self) -> MemoryUse {
        let pooled = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).bytes;
        MemoryUse { live: self.0.live.load(Ordering::Relaxed), pooled }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn sizes_are_whole_vectors_and_waste_little() {
        for granularity in [16, 256] {
            let pool = Pool::<()>::new(granularity, 0, u64::MAX);
            for bytes in [0, 1, 16, 17, 100, 257, 1000, 4097, 1 << 20, (1 << 20) + 1, 3_000_000_001, 30_000_000_001] {
                let size = pool.size_class(bytes);
                assert!(size >= bytes.max(granularity) && size.is_multiple_of(granularity), "{bytes} -> {size}");
                assert!(size <= bytes.max(granularity) + bytes / 8 + granularity, "{bytes} -> {size}");
            }
        }
    }

    #[test]
    fn sizes_are_not_beyond_the_largest_allocation() {
        let largest = 1_000_000;
        let pool = Pool::<()>::new(256, 0, largest + 255);
        assert!(size_class(largest - 1000, 256) > largest);
        for bytes in [largest - 1000, largest - 64, largest - 63] {
            let size = pool.size_class(bytes);
            assert!((bytes..=largest + 255).contains(&size) && size.is_multiple_of(256), "{bytes} -> {size}");
        }
        assert_eq!(pool.size_class(1000), size_class(1000, 256));
        assert!(pool.size_class(largest + 256) > largest + 255, "the device refuses it");
    }

    #[test]
    fn dropped_memory_is_used_again_and_counted() {
        let pool = Pool::new(16, 1000, u64::MAX);
        let made = AtomicU64::new(0);
        let allocate = |_: u64| Ok(made.fetch_add(1, Ordering::Relaxed));
        let first = pool.take(100, allocate).unwrap();
        let view = first.part(16, 20, 16).unwrap();
        assert_eq!((view.offset(), view.bytes()), (16, 32));
        assert_eq!(pool.memory_use(), MemoryUse { live: 112, pooled: 0 });
        drop(first);
        assert_eq!(pool.memory_use().live, 112, "a view keeps the allocation");
        drop(view);
        assert_eq!(pool.memory_use(), MemoryUse { live: 0, pooled: 112 });
        let again = pool.take(99, allocate).unwrap();
        assert_eq!((*again.memory().unwrap(), made.load(Ordering::Relaxed)), (0, 1));
        // Memory beyond the limit of the pool returns to the driver.
        drop((again, pool.take(990, allocate).unwrap()));
        assert!(pool.memory_use().pooled <= 1000);
        pool.clear();
        assert_eq!(pool.memory_use(), MemoryUse::default());
    }

    #[test]
    fn views_stay_within_their_region() {
        let region = Pool::new(16, 0, u64::MAX).take(64, |_| Ok(())).unwrap();
        assert!(region.part(0, 64, 16).is_some() && region.part(48, 16, 16).is_some());
        for (offset, bytes, alignment) in
            [(0, 0, 16), (8, 8, 16), (48, 17, 16), (64, 1, 16), (u64::MAX, 1, 16), (0, u64::MAX, 16), (16, 16, 32)]
        {
            assert!(region.part(offset, bytes, alignment).is_none(), "{offset} {bytes} {alignment}");
        }
        let view = region.part(16, 32, 16).unwrap();
        assert!(view.part(16, 16, 16).is_some_and(|part| part.offset() == 32));
        assert!(view.part(16, 17, 16).is_none() && view.part(u64::MAX, 1, 16).is_none());
        assert_eq!(size_class(u64::MAX, 256), u64::MAX);
    }

    #[test]
    fn free_memory_goes_back_before_an_allocation_fails() {
        let pool = Pool::new(16, u64::MAX, u64::MAX);
        drop(pool.take(1000, |_| Ok(())).unwrap());
        let tries = AtomicU64::new(0);
        let full = |bytes: u64| match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::OutOfMemory { bytes: bytes as usize }),
            _ => Ok(()),
        };
        let _taken = pool.take(64, full).unwrap();
        assert_eq!(pool.memory_use(), MemoryUse { live: 64, pooled: 0 });
        assert!(matches!(
            pool.take(64, |_| Err(Error::OutOfMemory { bytes: 64 })),
            Err(Error::OutOfMemory { bytes: 64 })
        ));
    }
}
