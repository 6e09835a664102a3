//! Runs PTX text: as much of it as the kernels use that run on more than one architecture.
//!
//! A block or a cluster at a time; each of its threads runs up to where it waits for others: a barrier waits for all threads
//! of the block or the cluster, what a warp does together for all of its lanes. What is written to another block arrives
//! there at the next barrier of the cluster, what barriers in shared memory count when they are waited for.
//!
//! What a GPU would let pass in silence is an error here: an access outside of a buffer or off its alignment, a register or a
//! word of shared memory that nobody has written, two threads at one word of shared memory between two barriers, one of them
//! writing, a word that a copy is on its way to, copies that nobody has waited for, a bulk copy to where a thread has been and
//! which no fence keeps behind it, threads that wait for others which have ended or wait elsewhere, what is written to a block
//! that may not have begun, or may have ended, and, in kernels that wait for the launches in front of them, a buffer that is
//! touched before, unless the kernel says that it is read early.
//!
//! A launch on several devices runs on all of them in turns, which end where a thread polls what another device may store; some threads
//! sit a turn out. Each poll takes ten milliseconds. All memory is the same for all devices at all times.
//!
//! A barrier in shared memory orders more here than it does: all threads of the cluster wait at it together.

mod cluster;
mod copies;
mod functions;
mod group;
mod parse;
mod warp;

use std::collections::HashMap;
use std::ops::Range;

use cluster::{Outside, Phases};
use copies::{BulkCopy, Copies, UNAWAITED, Unfenced};
pub(crate) use functions::to_bf16;
use warp::Collective;

/// Buffers of the device.
#[derive(Default)]
pub(crate) struct Memory {
    buffers: Vec<Vec<u8>>,
    /// The addresses of those that may be read while launches in front still run.
    pub(crate) early: Vec<u64>,
}

/// An address: the buffer in the upper bits, counted from 1, so that neither 0 nor an offset alone is one.
const BUFFER: u32 = 40;

impl Memory {
    /// Adds a buffer and returns its address.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> u64 {
        self.buffers.push(bytes.to_vec());
        (self.buffers.len() as u64) << BUFFER
    }

    /// The bytes of the buffer at an address that [`Memory::add`] returned.
    pub(crate) fn buffer(&self, address: u64) -> &[u8] {
        &self.buffers[(address >> BUFFER) as usize - 1]
    }

    /// Whether a thread that has not waited may read there.
    fn is_early(&self, address: u64) -> bool {
        self.early.contains(&(address >> BUFFER << BUFFER))
    }

    fn at(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], String> {
        let offset = (address & ((1 << BUFFER) - 1)) as usize;
        let buffer = (address >> BUFFER).checked_sub(1).and_then(|b| self.buffers.get_mut(b as usize));
        let buffer = buffer.ok_or_else(|| format!("no buffer at {address:#x}"))?;
        let len = buffer.len();
        buffer.get_mut(offset..offset + bytes).ok_or_else(|| format!("{bytes} bytes at {offset} of a buffer of {len}"))
    }
}

#[derive(Clone, Copy)]
enum Operand {
    Register(usize),
    Constant(u64),
    /// The address of shared memory, which begins at 0, and special registers.
    Special(fn(&Thread) -> u64),
}

/// `[register + offset]`
#[derive(Clone, Copy)]
struct Address {
    base: usize,
    offset: i64,
}

#[derive(Clone, Copy, PartialEq)]
enum Space {
    Global,
    Shared,
    /// Of a block of the cluster.
    Cluster,
}

enum Action {
    Compute {
        run: fn(&[u64]) -> u64,
        to: usize,
        from: Vec<Operand>,
    },
    /// The argument of a parameter.
    Parameter {
        to: usize,
        index: usize,
    },
    /// The lower and the upper this many bits.
    Split {
        to: [usize; 2],
        from: Operand,
        bits: u32,
    },
    Load {
        space: Space,
        bytes: usize,
        to: Vec<usize>,
        from: Address,
    },
    /// Loads words that another device may store, each in a turn of the thread of its own.
    Poll {
        bytes: usize,
        to: Vec<usize>,
        from: Address,
    },
    Store {
        space: Space,
        bytes: usize,
        to: Address,
        from: Vec<Operand>,
    },
    /// The lesser of what is there and a value, of 64 bits.
    Least {
        to: Address,
        from: Operand,
    },
    Branch(usize),
    /// A collective operation of the lanes of a warp.
    Warp(Collective),
    /// Begins to copy this many bytes to shared memory, those present of them from global memory.
    Copy {
        to: Address,
        from: Address,
        bytes: usize,
        present: Operand,
    },
    /// Begins to copy bytes to shared memory, where a barrier counts them.
    BulkCopy {
        to: Address,
        from: Address,
        bytes: Operand,
        barrier: Address,
    },
    CommitCopies,
    /// Keeps bulk copies behind what the thread has done to shared memory.
    FenceProxies,
    /// Waits until no more than this many groups of copies are under way.
    WaitForCopies(usize),
    Barrier,
    ArriveAtCluster,
    WaitForCluster,
    /// A barrier in shared memory that one thread arrives at, and which counts bytes.
    InitBarrier(Address),
    ExpectBytes {
        at: Address,
        bytes: Operand,
    },
    /// A store to another block, whose barrier counts it.
    CountedStore {
        bytes: usize,
        to: Address,
        from: Operand,
        barrier: Address,
    },
    WaitForPhase {
        to: usize,
        at: Address,
        parity: Operand,
        /// Whether it acquires from other blocks of the cluster.
        of_cluster: bool,
    },
    WaitForLaunches,
    Trap,
    Return,
}

struct Instruction {
    guard: Option<(usize, bool)>,
    action: Action,
    line: String,
}

/// A kernel, parsed.
pub(crate) struct Program {
    code: Vec<Instruction>,
    registers: usize,
    block: [u32; 3],
    /// Blocks of a cluster along x.
    cluster: u32,
    shared: usize,
    /// Whether it waits for the launches in front of it.
    waits: bool,
    /// Whether it has bulk copies.
    copies_bulk: bool,
}

struct Thread {
    position: [u32; 3],
    block: [u32; 3],
    grid: [u32; 3],
    /// The position of the block in its cluster.
    rank: u32,
    /// The number of times that the lanes of its warp have waited for one another.
    met: u32,
    registers: Vec<u64>,
    written: Vec<bool>,
    at: usize,
    ended: bool,
    copies: Copies,
    unfenced: Unfenced,
    outside: Outside,
    /// Whether launches in front may still run.
    beside_others: bool,
    /// The word that its turn has ended before, of those that it polls at once, and how many polls it has made.
    polls: Option<usize>,
    polled: u64,
}

fn special(name: &str) -> Option<fn(&Thread) -> u64> {
    Some(match name {
        "%tid.x" => |thread| thread.position[0].into(),
        "%tid.y" => |thread| thread.position[1].into(),
        "%ctaid.x" => |thread| thread.block[0].into(),
        "%ctaid.y" => |thread| thread.block[1].into(),
        "%ctaid.z" => |thread| thread.block[2].into(),
        "%nctaid.x" => |thread| thread.grid[0].into(),
        "%nctaid.y" => |thread| thread.grid[1].into(),
        "%nctaid.z" => |thread| thread.grid[2].into(),
        "%cluster_ctarank" => |thread| thread.rank.into(),
        "%globaltimer" => |thread| thread.polled * 10_000_000,
        "smem" => |_| 0,
        _ => return None,
    })
}

impl Program {
    /// Runs a grid of blocks, one cluster after the other.
    pub(crate) fn run(&self, grid: [u32; 3], arguments: &[u64], memory: &mut Memory) -> Result<(), String> {
        if !grid[0].is_multiple_of(self.cluster) {
            return Err(format!("{} blocks in clusters of {}", grid[0], self.cluster));
        }
        let mut blocks: Vec<Block<'_>> = (0..self.cluster).map(|_| Block::new(self)).collect();
        for z in 0..grid[2] {
            for y in 0..grid[1] {
                for x in (0..grid[0]).step_by(self.cluster as usize) {
                    for (block, rank) in blocks.iter_mut().zip(0..) {
                        block.begin([x + rank, y, z], grid, arguments);
                    }
                    cluster::run(&mut blocks, memory)?;
                }
            }
        }
        Ok(())
    }
}

/// An accessor of shared memory: a thread, and the number of times that its warp has met before.
#[derive(Clone, Copy, PartialEq)]
struct Who {
    thread: u32,
    met: u32,
}

impl Who {
    fn warp(self) -> u32 {
        self.thread / 32
    }

    /// Whether nothing orders what another has done before this.
    fn races(self, other: Self) -> bool {
        other.thread != self.thread && (other.warp() != self.warp() || other.met == self.met)
    }
}

/// Bytes of shared memory that are distinguished: what is stored by itself is no less.
const TOLD: usize = 2;

/// The accesses to some bytes of shared memory since the last barrier.
#[derive(Clone, Copy, Default)]
struct Touch {
    era: u32,
    writer: Option<Who>,
    /// The last that has read it.
    reader: Option<Who>,
    /// Whether others have, since the warp met; whether other warps have.
    readers: bool,
    warps: bool,
    /// Whether a copy is on its way here, whenever that began.
    copied: bool,
}

struct Block<'p> {
    program: &'p Program,
    threads: Vec<Thread>,
    shared: Vec<u8>,
    written: Vec<bool>,
    touched: Vec<Touch>,
    /// Its barriers in shared memory.
    phases: HashMap<u64, Phases>,
    /// Copies that those count.
    bulk: Vec<BulkCopy>,
    /// Barriers that were passed.
    era: u32,
    arguments: Vec<u64>,
    /// Threads that do not advance.
    held: Range<usize>,
}

impl<'p> Block<'p> {
    fn new(program: &'p Program) -> Self {
        let [x, y, z] = program.block;
        let threads = (0..x * y * z).map(|i| Thread {
            position: [i % x, i / x % y, i / x / y],
            block: [0; 3],
            grid: [1; 3],
            rank: 0,
            met: 0,
            registers: vec![0; program.registers],
            written: vec![false; program.registers],
            at: 0,
            ended: false,
            copies: Copies::default(),
            unfenced: Unfenced::default(),
            outside: Outside::default(),
            beside_others: program.waits,
            polls: None,
            polled: 0,
        });
        Self {
            program,
            threads: threads.collect(),
            shared: vec![0; program.shared],
            written: vec![false; program.shared],
            touched: vec![Touch::default(); program.shared.div_ceil(TOLD)],
            phases: HashMap::new(),
            bulk: Vec::new(),
            era: 1,
            arguments: Vec::new(),
            held: 0..0,
        }
    }

    /// Nothing has run, and nothing is written.
    fn begin(&mut self, block: [u32; 3], grid: [u32; 3], arguments: &[u64]) {
        for thread in &mut self.threads {
            (thread.block, thread.grid, thread.at, thread.ended) = (block, grid, 0, false);
            thread.rank = block[0] % self.program.cluster;
            thread.outside = Outside::default();
            thread.unfenced = Unfenced::default();
            thread.met = 0;
            thread.beside_others = self.program.waits;
            (thread.polls, thread.polled) = (None, 0);
            thread.written.fill(false);
        }
        self.written.fill(false);
        self.touched.fill(Touch::default());
        self.phases.clear();
        self.bulk.clear();
        self.era = 1;
        self.arguments = arguments.to_vec();
        self.held = 0..0;
    }

    /// Runs the block to its end, or to a barrier of the cluster; whether it has ended.
    fn run(&mut self, memory: &mut Memory) -> Result<bool, String> {
        const WARP: usize = 32;
        loop {
            for warp in (0..self.threads.len()).step_by(WARP) {
                let lanes = warp..(warp + WARP).min(self.threads.len());
                // From one thing that lanes do together to the next.
                loop {
                    let held = self.held.clone();
                    for i in lanes.clone().filter(|i| !held.contains(i)) {
                        self.advance(i, memory)?;
                    }
                    let at = self.threads[warp].at;
                    let together = |t: &Thread| !t.ended && matches!(self.program.code[t.at].action, Action::Warp(_));
                    if !self.threads[lanes.clone()].iter().any(together) {
                        break;
                    }
                    let line = &self.program.code[at].line;
                    if lanes.len() < WARP || !self.threads[lanes.clone()].iter().all(|t| !t.ended && t.at == at) {
                        return Err(format!("lanes of a warp do not meet at {line}"));
                    }
                    self.together(lanes.clone(), at)
                        .map_err(|why| format!("the warp of thread {warp}: {line}: {why}"))?;
                }
            }
            let waits = |t: &Thread| t.ended || matches!(self.program.code[t.at].action, Action::Barrier);
            if self.threads.iter().any(|t| t.polls.is_some()) || !self.threads[self.held.clone()].iter().all(waits) {
                return Ok(false);
            }
            let ended = self.threads.iter().filter(|thread| thread.ended).count();
            if ended == self.threads.len() {
                return if self.bulk.is_empty() { Ok(true) } else { Err(UNAWAITED.into()) };
            }
            let at = self.threads[0].at;
            if ended > 0 || self.threads.iter().any(|thread| thread.at != at) {
                return Err("threads of a block do not meet at a barrier".into());
            }
            if let Action::WaitForCluster | Action::WaitForPhase { .. } = self.program.code[at].action {
                return Ok(false);
            }
            self.pass();
        }
    }

    /// Goes on behind a barrier.
    fn pass(&mut self) {
        self.era += 1;
        self.threads.iter_mut().for_each(|thread| thread.at += 1);
    }

    /// Runs a thread up to a barrier, what its warp does together, or its end.
    fn advance(&mut self, i: usize, memory: &mut Memory) -> Result<(), String> {
        let program = self.program;
        while !self.threads[i].ended {
            let instruction = &program.code[self.threads[i].at];
            match self.step(i, instruction, memory) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(why) => {
                    let Thread { position, block, .. } = self.threads[i];
                    return Err(format!("thread {position:?} of block {block:?}: {}: {why}", instruction.line));
                }
            }
        }
        Ok(())
    }

    /// Runs one instruction; false where the thread waits.
    fn step(&mut self, i: usize, instruction: &Instruction, memory: &mut Memory) -> Result<bool, String> {
        let thread = &mut self.threads[i];
        if let Some((p, value)) = instruction.guard
            && (thread.read(Operand::Register(p))? == 1) != value
        {
            thread.at += 1;
            return Ok(true);
        }
        match &instruction.action {
            Action::Barrier | Action::Warp(_) => return Ok(false),
            Action::ArriveAtCluster => thread.outside.arrive()?,
            Action::WaitForCluster => {
                thread.outside.wait()?;
                return Ok(false);
            }
            Action::WaitForPhase { .. } => return Ok(false),
            Action::InitBarrier(at) => {
                let at = thread.address(*at, 8)?;
                self.phases.insert(at, Phases::default());
            }
            Action::ExpectBytes { at, bytes } => {
                let (at, bytes) = (thread.address(*at, 8)?, thread.read(*bytes)?);
                self.phases.get_mut(&at).ok_or("no barrier is there")?.expect(bytes)?;
            }
            Action::CountedStore { bytes, to, from, barrier } => {
                let (to, barrier) = (thread.address(*to, *bytes)?, thread.address(*barrier, 8)?);
                let value = thread.read(*from)?.to_le_bytes();
                thread.outside.write_counted(to, &value[..*bytes], barrier)?;
            }
            Action::WaitForLaunches => thread.beside_others = false,
            Action::Trap => return Err("it gives up".into()),
            Action::Return => {
                thread.after_others(false)?;
                thread.copies.none()?;
                thread.outside.none()?;
                thread.ended = true;
            }
            Action::Copy { to, from, bytes, present } => {
                self.begin_copy(i, [*to, *from], *bytes, *present, memory)?;
            }
            Action::BulkCopy { to, from, bytes, barrier } => {
                self.begin_bulk_copy(i, [*to, *from], *bytes, *barrier, memory)?;
            }
            Action::CommitCopies => thread.copies.commit(),
            Action::FenceProxies => thread.unfenced = Unfenced::default(),
            Action::WaitForCopies(groups) => self.finish_copies(i, *groups)?,
            Action::Branch(to) => {
                thread.at = *to;
                return Ok(true);
            }
            Action::Compute { run, to, from } => {
                let mut values = [0; 4];
                for (value, &operand) in values.iter_mut().zip(from) {
                    *value = thread.read(operand)?;
                }
                thread.write(*to, run(&values));
            }
            Action::Parameter { to, index } => thread.write(*to, self.arguments[*index]),
            Action::Split { to, from, bits } => {
                let value = thread.read(*from)?;
                thread.write(to[0], value & ((1 << bits) - 1));
                thread.write(to[1], value >> bits);
            }
            Action::Load { space, bytes, to, from } => {
                let address = thread.address(*from, bytes * to.len())?;
                thread.after_others(*space != Space::Global || memory.is_early(address))?;
                if *space == Space::Shared && self.program.copies_bulk {
                    thread.unfenced.add(address, bytes * to.len());
                }
                for (n, &to) in to.iter().enumerate() {
                    let address = address + (n * bytes) as u64;
                    let mut value = [0; 8];
                    match space {
                        Space::Global => value[..*bytes].copy_from_slice(memory.at(address, *bytes)?),
                        Space::Shared => value[..*bytes].copy_from_slice(self.read_shared(i, address, *bytes)?),
                        Space::Cluster => return Err("the interpreter knows no loads from other blocks".into()),
                    }
                    self.threads[i].write(to, u64::from_le_bytes(value));
                }
            }
            Action::Poll { bytes, to, from } => {
                let address = thread.address(*from, bytes * to.len())?;
                thread.after_others(false)?;
                if let Some(n) = thread.polls {
                    let mut value = [0; 8];
                    value[..*bytes].copy_from_slice(memory.at(address + (n * bytes) as u64, *bytes)?);
                    thread.write(to[n], u64::from_le_bytes(value));
                }
                let next = thread.polls.map_or(0, |n| n + 1);
                thread.polls = (next < to.len()).then_some(next);
                if thread.polls.is_some() {
                    return Ok(false);
                }
                thread.polled += 1;
            }
            Action::Least { to, from } => {
                let (address, value) = (thread.address(*to, 8)?, thread.read(*from)?);
                thread.after_others(false)?;
                let word = memory.at(address, 8)?;
                let old = word.try_into().map_or(u64::MAX, u64::from_le_bytes);
                word.copy_from_slice(&old.min(value).to_le_bytes());
            }
            Action::Store { space, bytes, to, from } => {
                let address = thread.address(*to, bytes * from.len())?;
                thread.after_others(*space != Space::Global)?;
                if *space == Space::Shared && self.program.copies_bulk {
                    thread.unfenced.add(address, bytes * from.len());
                }
                for (n, &from) in from.iter().enumerate() {
                    let address = address + (n * bytes) as u64;
                    let value = self.threads[i].read(from)?.to_le_bytes();
                    match space {
                        Space::Global => memory.at(address, *bytes)?.copy_from_slice(&value[..*bytes]),
                        Space::Shared => self.write_shared(i, address, &value[..*bytes])?,
                        Space::Cluster => self.threads[i].outside.write(address, &value[..*bytes])?,
                    }
                }
            }
        }
        self.threads[i].at += 1;
        Ok(true)
    }

    /// What an access goes to, as it was touched since the last barrier.
    fn touch(&mut self, address: u64, bytes: usize) -> impl Iterator<Item = &mut Touch> {
        let era = self.era;
        let touched = &mut self.touched[address as usize / TOLD..(address as usize + bytes).div_ceil(TOLD)];
        touched.iter_mut().map(move |touch| {
            if touch.era != era {
                *touch = Touch { era, copied: touch.copied, ..Touch::default() };
            }
            touch
        })
    }

    /// A thread; those from beyond the block write from other blocks.
    fn who(&self, i: usize) -> Who {
        Who { thread: i as u32, met: self.threads.get(i).map_or(0, |thread| thread.met) }
    }

    fn read_shared(&mut self, i: usize, address: u64, bytes: usize) -> Result<&[u8], String> {
        let range = address as usize..address as usize + bytes;
        let written = self.written.get(range.clone()).ok_or("outside of shared memory")?;
        let written = written.iter().all(|written| *written);
        let who = self.who(i);
        for touch in self.touch(address, bytes) {
            if touch.copied {
                return Err("shared memory that a copy is on its way to".into());
            }
            if !written {
                return Err("shared memory that nobody has written".into());
            }
            if touch.writer.is_some_and(|writer| who.races(writer)) {
                return Err("a race: another thread wrote this since the last barrier".into());
            }
            if let Some(reader) = touch.reader {
                touch.warps |= reader.warp() != who.warp();
                touch.readers = reader.met == who.met && (touch.readers || reader.thread != who.thread);
            }
            touch.reader = Some(who);
        }
        Ok(&self.shared[range])
    }

    fn write_shared(&mut self, i: usize, address: u64, value: &[u8]) -> Result<(), String> {
        let range = address as usize..address as usize + value.len();
        self.shared.get_mut(range.clone()).ok_or("outside of shared memory")?.copy_from_slice(value);
        self.written[range].fill(true);
        let who = self.who(i);
        for touch in self.touch(address, value.len()) {
            let other = |other: Option<Who>| other.is_some_and(|other| who.races(other));
            let readers = touch.readers && touch.reader.is_some_and(|reader| reader.met == who.met);
            if touch.copied {
                return Err("shared memory that a copy is on its way to".into());
            }
            if readers || touch.warps || other(touch.reader) || other(touch.writer) {
                return Err("a race: another thread touched this since the last barrier".into());
            }
            touch.writer = Some(who);
        }
        Ok(())
    }
}

impl Thread {
    fn read(&self, operand: Operand) -> Result<u64, String> {
        match operand {
            Operand::Constant(value) => Ok(value),
            Operand::Special(value) => Ok(value(self)),
            Operand::Register(register) if self.written[register] => Ok(self.registers[register]),
            Operand::Register(_) => Err("a register that nothing has written".into()),
        }
    }

    fn write(&mut self, register: usize, value: u64) {
        self.registers[register] = value;
        self.written[register] = true;
    }

    /// Whether a launch in front may still run, which only what is early may be done beside.
    fn after_others(&self, is_early: bool) -> Result<(), String> {
        match self.beside_others && !is_early {
            true => Err("launches in front may still run".into()),
            false => Ok(()),
        }
    }

    fn address(&self, address: Address, bytes: usize) -> Result<u64, String> {
        let address = self.read(Operand::Register(address.base))?.wrapping_add_signed(address.offset);
        if address.is_multiple_of(bytes as u64) { Ok(address) } else { Err(format!("{address:#x} is not aligned")) }
    }
}
