//! Blocks of a cluster: barriers of all their threads, and what they write to the shared memory of one another.

use super::{Block, Memory};

/// An address in the shared memory of a block of the cluster has the rank of it, counted from 1, above these bits.
const RANK: u32 = 24;

pub(super) fn address(local: u64, rank: u64) -> u64 {
    (rank + 1) << RANK | local
}

/// What a thread does outside of its block.
#[derive(Default)]
pub(super) struct Outside {
    /// Whether it has come to a barrier of the cluster that it has not waited at.
    arrived: bool,
    /// Barriers of the cluster that it has waited at.
    waited: u32,
    /// Addresses and bytes that it has written since.
    written: Vec<(u64, Vec<u8>)>,
}

impl Outside {
    pub(super) fn arrive(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.arrived, true) { Err("arrives twice".into()) } else { Ok(()) }
    }

    pub(super) fn wait(&self) -> Result<(), String> {
        if self.arrived { Ok(()) } else { Err("waits before it has arrived".into()) }
    }

    pub(super) fn write(&mut self, address: u64, value: &[u8]) -> Result<(), String> {
        if self.waited == 0 {
            return Err("writes to a block that may not have begun".into());
        }
        if self.arrived {
            return Err("writes to a block between arriving and waiting".into());
        }
        self.written.push((address, value.to_vec()));
        Ok(())
    }

    /// At its end.
    pub(super) fn none(&self) -> Result<(), String> {
        match self.arrived || !self.written.is_empty() {
            true => Err("ends before the cluster has seen what it did".into()),
            false => Ok(()),
        }
    }
}

/// Runs the blocks of a cluster to their ends.
pub(super) fn run(blocks: &mut [Block<'_>], memory: &mut Memory) -> Result<(), String> {
    loop {
        let mut ended = 0;
        for block in &mut *blocks {
            ended += usize::from(block.run(memory)?);
        }
        if ended == blocks.len() {
            return Ok(());
        }
        if ended > 0 || blocks.iter().any(|block| block.threads[0].at != blocks[0].threads[0].at) {
            return Err("blocks of a cluster do not meet at a barrier".into());
        }
        for from in 0..blocks.len() {
            for i in 0..blocks[from].threads.len() {
                let outside = &mut blocks[from].threads[i].outside;
                outside.arrived = false;
                outside.waited += 1;
                for (address, value) in std::mem::take(&mut outside.written) {
                    let rank = (address >> RANK).checked_sub(1).ok_or("an address of no block")? as usize;
                    let to = blocks.get_mut(rank).ok_or_else(|| format!("no block {rank} in the cluster"))?;
                    // A writer of its own, among those of the block.
                    let writer = from * to.threads.len() + i;
                    let writer = if from == rank { i } else { writer + to.threads.len() };
                    to.write_shared(writer, address & ((1 << RANK) - 1), &value)?;
                }
            }
        }
        blocks.iter_mut().for_each(Block::pass);
    }
}
