//! The way between the host and a device: through memory that the device reads and writes by itself, block by block, so
//! that the processor copies one while the device copies another.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use kiln_core::{Error, Result};

use crate::driver::{Context, Event, PinnedMemory};
use crate::memory::Region;

/// Bytes of a block.
const BLOCK: usize = 512 << 10;
/// Blocks at most.
const BLOCKS: usize = 16;

/// Blocks of memory of the host that are used again and again.
#[derive(Debug)]
pub(crate) struct Staging {
    context: Arc<Context>,
    /// The one that was used longest ago first.
    blocks: Mutex<VecDeque<Block>>,
}

#[derive(Debug)]
struct Block {
    memory: PinnedMemory,
    /// Behind the last copy that uses it.
    done: Event,
}

impl Staging {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, blocks: Mutex::default() }
    }

    /// A block that the device does not use any more: one that it is done with, a new one, or the oldest once it is.
    fn block(&self, blocks: &mut VecDeque<Block>) -> Result<Block> {
        let idle = match blocks.front() {
            Some(oldest) => oldest.done.is_past()?,
            None => false,
        };
        if !idle && blocks.len() < BLOCKS {
            let memory = PinnedMemory::new(&self.context, BLOCK)?;
            return Ok(Block { memory, done: Event::new(&self.context, false)? });
        }
        let block = blocks.pop_front().ok_or(Error::OutOfMemory { bytes: BLOCK })?;
        block.done.wait()?;
        Ok(block)
    }

    /// Sends bytes to the device, after all that was asked of it before. They may be changed afterwards.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`], [`Error::Driver`]; [`Error::View`] where the region is too short.
    pub(crate) fn upload(&self, bytes: &[u8], to: &Region) -> Result<()> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, part) in bytes.chunks(BLOCK).enumerate() {
            let mut block = self.block(&mut blocks)?;
            block.memory.write(part);
            block.memory.send(&to.span((number * BLOCK) as u64, part.len() as u64)?)?;
            block.done.record()?;
            blocks.push_back(block);
        }
        Ok(())
    }

    /// Reads bytes from the device, once all that was asked of it before is done: from the beginning of each region as many
    /// as there is room for.
    ///
    /// # Errors
    /// As [`Staging::upload`], and of all that ran before.
    pub(crate) fn download(&self, wanted: &mut [(&Region, &mut [u8])]) -> Result<()> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pending: VecDeque<(Block, &mut [u8])> = VecDeque::new();
        let finish = |(block, out): (Block, &mut [u8])| {
            block.done.wait()?;
            block.memory.read(out);
            Ok::<Block, Error>(block)
        };
        for (from, out) in wanted {
            for (number, part) in out.chunks_mut(BLOCK).enumerate() {
                if pending.len() + 1 >= BLOCKS
                    && let Some(oldest) = pending.pop_front()
                {
                    blocks.push_front(finish(oldest)?);
                }
                let block = self.block(&mut blocks)?;
                block.memory.fetch(&from.span((number * BLOCK) as u64, part.len() as u64)?)?;
                block.done.record()?;
                pending.push_back((block, part));
            }
        }
        for part in pending {
            blocks.push_front(finish(part)?);
        }
        Ok(())
    }

    /// Gives the blocks back to the driver.
    pub(crate) fn clear(&self) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
