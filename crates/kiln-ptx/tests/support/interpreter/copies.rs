//! Copies from global to shared memory that run by themselves.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Address, Block, Memory, Operand};

/// The message about copies that are unfinished at the end.
pub(super) const UNAWAITED: &str = "copies are under way that nobody has waited for";

/// A copy that a barrier counts: who began it, where it goes to and what it brings, and the barrier.
pub(super) struct BulkCopy {
    thread: usize,
    to: u64,
    bytes: Vec<u8>,
    barrier: u64,
}

/// Where a thread has been in shared memory since its last fence. Bulk copies come by another way, the async proxy, which
/// barriers alone do not keep behind what threads have read and written.
#[derive(Default)]
pub(super) struct Unfenced(Vec<Range<u64>>);

impl Unfenced {
    pub(super) fn add(&mut self, address: u64, bytes: usize) {
        self.0.push(address..address + bytes as u64);
    }

    fn meets(&self, place: &Range<u64>) -> bool {
        self.0.iter().any(|own| own.start < place.end && place.start < own.end)
    }
}

/// The copies of a thread that it has not waited for: where they go to and what they bring.
#[derive(Default)]
pub(super) struct Copies {
    groups: VecDeque<Vec<(u64, Vec<u8>)>>,
    /// Those that are in no group yet.
    loose: Vec<(u64, Vec<u8>)>,
}

impl Copies {
    pub(super) fn commit(&mut self) {
        self.groups.push_back(std::mem::take(&mut self.loose));
    }

    /// Fails when any are left.
    pub(super) fn none(&self) -> Result<(), String> {
        match self.loose.is_empty() && self.groups.iter().all(Vec::is_empty) {
            true => Ok(()),
            false => Err(UNAWAITED.into()),
        }
    }
}

impl Block<'_> {
    /// From here on nobody may touch the place, until this thread has waited.
    pub(super) fn begin_copy(
        &mut self,
        i: usize,
        [to, from]: [Address; 2],
        size: usize,
        present: Operand,
        memory: &mut Memory,
    ) -> Result<(), String> {
        let thread = &self.threads[i];
        let (to, present) = (thread.address(to, size)?, thread.read(present)? as usize);
        let mut bytes = vec![0; size];
        if present > 0 {
            let from = thread.address(from, size)?;
            thread.after_others(memory.is_early(from))?;
            bytes[..present].copy_from_slice(memory.at(from, present)?);
        }
        self.write_shared(i, to, &vec![0; size])?;
        self.touch(to, size).for_each(|touch| touch.copied = true);
        self.threads[i].copies.loose.push((to, bytes));
        Ok(())
    }

    /// Waits until no more than this many groups are under way.
    pub(super) fn finish_copies(&mut self, i: usize, groups: usize) -> Result<(), String> {
        while self.threads[i].copies.groups.len() > groups {
            for (to, bytes) in self.threads[i].copies.groups.pop_front().unwrap_or_default() {
                self.touch(to, bytes.len()).for_each(|touch| touch.copied = false);
                self.write_shared(i, to, &bytes)?;
            }
        }
        Ok(())
    }

    /// From here on nobody may touch the place, until the barrier has counted the bytes.
    pub(super) fn begin_bulk_copy(
        &mut self,
        i: usize,
        [to, from]: [Address; 2],
        size: Operand,
        barrier: Address,
        memory: &mut Memory,
    ) -> Result<(), String> {
        const UNIT: usize = 16;
        let thread = &self.threads[i];
        let size = thread.read(size)? as usize;
        if size == 0 || !size.is_multiple_of(UNIT) {
            return Err(format!("{size} bytes are no multiple of {UNIT}"));
        }
        let (to, from) = (thread.address(to, UNIT)?, thread.address(from, UNIT)?);
        let barrier = thread.address(barrier, 8)?;
        thread.after_others(memory.is_early(from))?;
        let bytes = memory.at(from, size)?.to_vec();
        let place = to..to + size as u64;
        if self.threads.iter().any(|thread| thread.unfenced.meets(&place)) {
            return Err("a bulk copy to where a thread has been without a fence since".into());
        }
        self.write_shared(i, to, &bytes)?;
        self.touch(to, size).for_each(|touch| touch.copied = true);
        self.bulk.push(BulkCopy { thread: i, to, bytes, barrier });
        Ok(())
    }

    /// Finishes the copies that barriers count.
    pub(super) fn finish_bulk_copies(&mut self) -> Result<(), String> {
        for BulkCopy { thread, to, bytes, barrier } in std::mem::take(&mut self.bulk) {
            self.touch(to, bytes.len()).for_each(|touch| touch.copied = false);
            self.write_shared(thread, to, &bytes)?;
            self.phases.get_mut(&barrier).ok_or("no barrier is there")?.count(bytes.len());
        }
        Ok(())
    }
}
