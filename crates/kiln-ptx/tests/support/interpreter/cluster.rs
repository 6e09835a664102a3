//! Blocks of a cluster: barriers of all their threads, and what they write to the shared memory of one another.

use super::{Action, Block, Memory};

/// An address in the shared memory of a block of the cluster has the rank of it, counted from 1, above these bits.
const RANK: u32 = 24;

pub(super) fn address(local: u64, rank: u64) -> u64 {
    (rank + 1) << RANK | local
}

/// The rank of a block, and an address there.
fn place(address: u64) -> Result<(usize, u64), String> {
    let rank = (address >> RANK).checked_sub(1).ok_or("an address of no block")?;
    Ok((rank as usize, address & ((1 << RANK) - 1)))
}

/// An operation of a thread outside of its block.
#[derive(Default)]
pub(super) struct Outside {
    /// Whether it has come to a barrier of the cluster that it has not waited at.
    arrived: bool,
    /// Barriers of the cluster that it has waited at.
    waited: u32,
    /// Addresses and bytes that it has written since.
    written: Vec<(u64, Vec<u8>)>,
    /// The same of what a barrier counts, and the address of that.
    counted: Vec<(u64, Vec<u8>, u64)>,
}

impl Outside {
    pub(super) fn arrive(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.arrived, true) { Err("arrives twice".into()) } else { Ok(()) }
    }

    pub(super) fn wait(&self) -> Result<(), String> {
        if self.arrived { Ok(()) } else { Err("waits before it has arrived".into()) }
    }

    fn may_write(&self) -> Result<(), String> {
        if self.waited == 0 {
            return Err("writes to a block that may not have begun".into());
        }
        if self.arrived {
            return Err("writes to a block between arriving and waiting".into());
        }
        Ok(())
    }

    pub(super) fn write(&mut self, address: u64, value: &[u8]) -> Result<(), String> {
        self.may_write()?;
        self.written.push((address, value.to_vec()));
        Ok(())
    }

    pub(super) fn write_counted(&mut self, address: u64, value: &[u8], barrier: u64) -> Result<(), String> {
        self.may_write()?;
        self.counted.push((address, value.to_vec(), barrier));
        Ok(())
    }

    /// At its end.
    pub(super) fn none(&self) -> Result<(), String> {
        match self.arrived || !self.written.is_empty() || !self.counted.is_empty() {
            true => Err("ends before the cluster has seen what it did".into()),
            false => Ok(()),
        }
    }
}

/// A barrier in shared memory: phases that are over, what the present one waits for, and what has come.
#[derive(Default)]
pub(super) struct Phases {
    over: u64,
    expected: Option<u64>,
    come: u64,
    /// Whether other blocks of the cluster have written what it counts.
    of_cluster: bool,
}

impl Phases {
    pub(super) fn count(&mut self, bytes: usize) {
        self.come += bytes as u64;
    }

    pub(super) fn expect(&mut self, bytes: u64) -> Result<(), String> {
        if self.expected.replace(bytes).is_some() { Err("arrives twice in a phase".into()) } else { Ok(()) }
    }
}

/// Takes what was written to where it goes: all of it, or what barriers count.
fn deliver(blocks: &mut [Block<'_>], all: bool) -> Result<(), String> {
    for from in 0..blocks.len() {
        for i in 0..blocks[from].threads.len() {
            let outside = &mut blocks[from].threads[i].outside;
            let written = if all { std::mem::take(&mut outside.written) } else { Vec::new() };
            let written = written.into_iter().map(|(address, value)| (address, value, None));
            let counted = std::mem::take(&mut outside.counted).into_iter();
            for (address, value, barrier) in written.chain(counted.map(|(at, value, by)| (at, value, Some(by)))) {
                let (rank, address) = place(address)?;
                let to = blocks.get_mut(rank).ok_or_else(|| format!("no block {rank} in the cluster"))?;
                // A writer of its own, among those of the block.
                let writer = from * to.threads.len() + i;
                let writer = if from == rank { i } else { writer + to.threads.len() };
                to.write_shared(writer, address, &value)?;
                if let Some(barrier) = barrier {
                    let (of, barrier) = place(barrier)?;
                    let phases = to.phases.get_mut(&barrier).filter(|_| of == rank);
                    let phases = phases.ok_or("no barrier is there")?;
                    phases.count(value.len());
                    phases.of_cluster |= from != rank;
                }
            }
        }
    }
    Ok(())
}

/// Ends the phase that each thread waits for.
fn end_phases(block: &mut Block<'_>) -> Result<(), String> {
    block.finish_bulk_copies()?;
    for phases in block.phases.values_mut().filter(|phases| phases.expected == Some(phases.come)) {
        *phases = Phases { over: phases.over + 1, of_cluster: phases.of_cluster, ..Phases::default() };
    }
    for thread in &mut block.threads {
        let Action::WaitForPhase { to, at, parity, of_cluster } = block.program.code[thread.at].action else {
            continue;
        };
        let (at, parity) = (thread.address(at, 8)?, thread.read(parity)?);
        let phases = block.phases.get(&at).ok_or("no barrier is there")?;
        if phases.over & 1 == parity {
            return Err("a barrier waits for bytes that nobody sends".into());
        }
        if phases.of_cluster && !of_cluster {
            return Err("words of another block are acquired from the block alone".into());
        }
        thread.write(to, 1);
    }
    Ok(())
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
        let at = blocks[0].threads[0].at;
        if ended > 0 || blocks.iter().any(|block| block.threads[0].at != at) {
            return Err("blocks of a cluster do not meet at a barrier".into());
        }
        let of_cluster = matches!(blocks[0].program.code[at].action, Action::WaitForCluster);
        deliver(blocks, of_cluster)?;
        if of_cluster {
            for thread in blocks.iter_mut().flat_map(|block| &mut block.threads) {
                thread.outside.arrived = false;
                thread.outside.waited += 1;
            }
        }
        blocks.iter_mut().try_for_each(end_phases)?;
        blocks.iter_mut().for_each(Block::pass);
    }
}
