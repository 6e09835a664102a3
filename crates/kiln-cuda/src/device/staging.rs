//! Copies between the host and a device through pinned memory, block by block, so that threads of the host copy some blocks
//! while the device copies others.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use kiln_device::{Read, host_copy};
use kiln_ir::{Error, Result};

use crate::driver::{Context, DeviceMemory, Event, PinnedMemory, Span};
use crate::{Region, span};

/// Bytes of a vector.
const VECTOR: usize = 16;
/// Bytes of a block, which one thread fills or empties.
pub(crate) const BLOCK: usize = 512 << 10;
/// Maximum number of blocks for copies.
const BLOCKS: usize = 16;
/// Number of blocks that are filled or emptied at a time, while the device copies the others.
const AT_ONCE: usize = BLOCKS / 2;
/// Maximum number of threads that do it.
pub(crate) const THREADS: usize = 8;

/// Reused blocks of pinned host memory.
#[derive(Debug)]
pub(crate) struct Staging {
    context: Arc<Context>,
    /// Least recently used first.
    blocks: Mutex<VecDeque<Block>>,
}

/// A part of a copy on its way through a block.
struct Passage<'a, B> {
    block: Block,
    there: Span<'a>,
    here: B,
    result: Result<()>,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) memory: PinnedMemory,
    /// Recorded after the last work that uses it.
    pub(crate) done: Event,
}

impl Staging {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, blocks: Mutex::default() }
    }

    /// A block that the device no longer uses: an idle one, a new one unless there are `most`, or the oldest once it is
    /// idle. `taken` blocks are in use by the caller already.
    fn block(&self, blocks: &mut VecDeque<Block>, taken: usize, most: usize) -> Result<Block> {
        let idle = match blocks.front() {
            Some(oldest) => oldest.done.is_past()?,
            None => false,
        };
        if !idle && blocks.len() + taken < most {
            let memory = PinnedMemory::new(&self.context, BLOCK)?;
            return Ok(Block { memory, done: Event::new(&self.context, false)? });
        }
        let block = blocks.pop_front().ok_or(Error::OutOfMemory { bytes: BLOCK })?;
        block.done.wait()?;
        Ok(block)
    }

    /// Takes this many idle blocks; new ones while there are fewer than `most`. They belong to the caller until they are put back.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`], [`Error::Driver`].
    pub(crate) fn take(&self, count: usize, most: usize) -> Result<Vec<Block>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        (0..count).map(|taken| self.block(&mut blocks, taken, most.max(count))).collect()
    }

    /// Puts idle blocks back.
    pub(crate) fn put_back(&self, idle: impl Iterator<Item = Block>) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        idle.for_each(|block| blocks.push_front(block));
    }

    /// Uploads bytes after all earlier work of the device. The caller may modify them afterwards. Pads with zeros to a
    /// whole vector, as far as the region reaches, because kernels read whole vectors.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`], [`Error::Driver`]; [`Error::View`] if the region is too short.
    pub(crate) fn upload(&self, bytes: &[u8], to: &Region) -> Result<()> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let parts: Vec<(&[u8], u64)> = bytes.chunks(BLOCK).zip((0..).step_by(BLOCK)).collect();
        for parts in parts.chunks(AT_ONCE) {
            let passages = parts.iter().enumerate().map(|(taken, &(here, start))| {
                let room = to.bytes().saturating_sub(start).max(here.len() as u64);
                let there = span(to, start, (here.len().next_multiple_of(VECTOR) as u64).min(room))?;
                Ok(Passage { block: self.block(&mut blocks, taken, BLOCKS)?, there, here, result: Ok(()) })
            });
            let passages = passages.collect::<Result<Vec<_>>>()?;
            // Each thread uploads the block that it has filled.
            let passages = worked_on(passages, |Passage { block, there, here, .. }| {
                block.memory.write(here, there.bytes() as usize);
                block.memory.send(there)?;
                block.done.record()
            });
            blocks.extend(passages?);
        }
        Ok(())
    }

    /// Downloads bytes after all earlier work of the device: from the beginning of each region as many as fit.
    ///
    /// # Errors
    /// The errors of [`Staging::upload`], and of all earlier work.
    pub(crate) fn download(&self, reads: &mut [Read<'_, DeviceMemory>]) -> Result<()> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = reads.iter_mut().flat_map(|Read { from, to }| {
            let from = &*from;
            to.chunks_mut(BLOCK).zip((0..).step_by(BLOCK)).map(move |(here, start)| (from, here, start))
        });
        let mut ask = |blocks: &mut VecDeque<Block>, before: usize| {
            let passages = parts.by_ref().take(AT_ONCE).enumerate().map(|(taken, (from, here, start))| {
                let there = span(from, start, here.len() as u64)?;
                let block = self.block(blocks, before + taken, BLOCKS)?;
                block.memory.fetch(&there)?;
                block.done.record()?;
                Ok(Passage { block, there, here, result: Ok(()) })
            });
            passages.collect::<Result<Vec<_>>>()
        };
        let mut asked = ask(&mut blocks, 0)?;
        while !asked.is_empty() {
            let next = ask(&mut blocks, asked.len())?;
            let emptied = worked_on(asked, |Passage { block, here, .. }| {
                block.done.wait()?;
                block.memory.read(here);
                Ok(())
            });
            emptied?.into_iter().for_each(|block| blocks.push_front(block));
            asked = next;
        }
        Ok(())
    }

    /// Begins to download the first bytes of each region, at most a block, after all earlier work of the device.
    ///
    /// # Errors
    /// The errors of [`Staging::upload`].
    pub(crate) fn begin_download(&self, reads: &[(Region, u64)]) -> Result<Vec<Block>> {
        // As many as there may be: those of uploads before are busy until the work before them is done.
        let blocks = self.take(reads.len(), BLOCKS)?;
        for (block, (from, bytes)) in blocks.iter().zip(reads) {
            block.memory.fetch(&span(from, 0, *bytes)?)?;
            block.done.record()?;
        }
        Ok(blocks)
    }

    /// Puts blocks back that the device may still use.
    pub(super) fn give_up(&self, blocks: impl Iterator<Item = Block>) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).extend(blocks);
    }

    /// Returns the blocks to the driver.
    pub(crate) fn clear(&self) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Runs the work of each passage on threads, and returns their blocks.
fn worked_on<B: Send>(
    mut passages: Vec<Passage<'_, B>>,
    work: impl Fn(&mut Passage<'_, B>) -> Result<()> + Sync,
) -> Result<Vec<Block>> {
    host_copy::share(passages.len() * BLOCK, passages.iter_mut().collect(), THREADS, |passage| {
        passage.result = work(passage);
    });
    passages.into_iter().map(|passage| passage.result.map(|()| passage.block)).collect()
}
