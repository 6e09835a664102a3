//! Sums over the devices of a group, through memory that all of them access.

use kiln_ir::{Error, Result};

use crate::kernel::extent;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value, Variable};

/// Maximum devices of a group: those of one host.
const MOST_DEVICES: u32 = 8;
/// Maximum blocks of a launch: as many as have slots.
const MOST_BLOCKS: u32 = 128;
/// Bytes of a slot, which holds a chunk of one device: the largest one.
const SLOT_BYTES: u32 = Form::Wide.chunk() * VECTOR_BYTES;
/// Bytes between words that different devices write or poll, so that no two are in one cache line.
const LINE_BYTES: u32 = 128;
/// Elements and bytes of a vector, what a thread loads or stores at once.
const VECTOR: u32 = 4;
const VECTOR_BYTES: u32 = 16;
/// Bytes of a word: of an element, of a flag, of the counter.
const WORD_BYTES: u32 = 4;
const SLOT_WORDS: u32 = SLOT_BYTES / WORD_BYTES;
const LINE_WORDS: u32 = LINE_BYTES / WORD_BYTES;
/// Maximum elements, so that whole vectors of them fit 32 bits.
const MOST: u64 = (u32::MAX - (VECTOR - 1)) as u64;

/// How long a thread waits for another device before it gives the launch up. A device is late by the time that its host takes to
/// submit its launches, which no debugger and no overloaded machine should turn into an error.
const PATIENCE_NANOSECONDS: u64 = 60_000_000_000;
/// Polls between two looks at the clock. A poll takes about a microsecond.
const POLLS: u32 = 1024;

/// How much of x a block takes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// Little, for many blocks: the time of a small sum is that of a store to another device and back.
    Narrow,
    /// More, for all blocks as long as each has one chunk.
    Medium,
    /// Much, for few exchanges of flags.
    Wide,
}

impl Form {
    const ALL: [Self; 3] = [Self::Narrow, Self::Medium, Self::Wide];

    /// The first form of which every block has at most one chunk of this many elements.
    fn of(n: usize) -> Self {
        let holds = |form: &Self| n <= (MOST_BLOCKS * form.chunk() * VECTOR) as usize;
        [Self::Narrow, Self::Medium].into_iter().find(holds).unwrap_or(Self::Wide)
    }

    /// Threads of a block.
    const fn block(self) -> u32 {
        match self {
            Self::Narrow => 128,
            Self::Medium | Self::Wide => 512,
        }
    }

    /// Vectors of a thread in a chunk.
    const fn each(self) -> u32 {
        match self {
            Self::Narrow | Self::Medium => 1,
            Self::Wide => 4,
        }
    }

    /// Vectors of a chunk, what a block sums between two exchanges of flags.
    const fn chunk(self) -> u32 {
        self.block() * self.each()
    }
}

/// `outᵢ = x₀ᵢ + x₁ᵢ + ...` of f32 over the devices of a group, in their order, so that all of them get the same bits; then `+ addendᵢ`
/// where an addend was asked for, which each device holds a copy of. Every device of the group launches it at its place in the same
/// sequence of launches, with the same extents and the same grid.
///
/// Each device has an *exchange region* of [`AllReduce::exchange_bytes`], which all devices of the group read and write. The host zeroes
/// it once; launches of all forms use it after one another. For each of 128 blocks it holds, on lines of 128 bytes, a counter and a flag
/// for each device, and behind those of all blocks, for each block, two slots of 32 KiB for each device:
///
/// | what | at byte |
/// |---|---|
/// | counter of block b | 128 b (devices + 1) |
/// | flag of device d for block b | 128 (b (devices + 1) + 1 + d) |
/// | slot of device d for block b and parity p | 128 · 128 (devices + 1) + 32768 ((2 b + p) devices + d) |
///
/// A block sums chunk after chunk, each in an *epoch* of its own: the counter plus one. It stores its part of x to its slot in the regions of
/// all other devices, then the epoch to its flag there, and waits until the flags of all others in its own region say the same. Slots
/// alternate with the parity of the epoch. A device stores to a slot again two epochs later, and by then it has seen the flag of the
/// epoch between, which the owner of the slot has stored after it had read the slot.
///
/// All blocks of a launch must run at once, on every device. A thread that waits for another device for a minute executes `trap`, after
/// which its device is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AllReduce {
    devices: u32,
    form: Form,
    adds: bool,
}

impl AllReduce {
    /// For groups of this many devices, in the form for `n` elements, without an addend.
    ///
    /// # Errors
    /// [`Error::Parameter`] unless there are 1 to 8 devices.
    pub fn new(devices: usize, n: usize) -> Result<Self> {
        match u32::try_from(devices) {
            Ok(devices @ 1..=MOST_DEVICES) => Ok(Self { devices, form: Form::of(n), adds: false }),
            _ => Err(Error::Parameter {
                op: "all_reduce",
                reason: format!("a group has 1 to {MOST_DEVICES} devices, not {devices}"),
            }),
        }
    }

    /// The same with an addend, or without one.
    #[must_use]
    pub const fn adding(self, adds: bool) -> Self {
        Self { adds, ..self }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let of = |devices| Form::ALL.map(|form| Self { devices, form, adds: false });
        (1..=MOST_DEVICES).flat_map(of).flat_map(|sum| [sum, sum.adding(true)]).collect()
    }

    /// Bytes of the exchange region of each device in a group of this many: 16 MiB and 48 KiB for two devices.
    pub const fn exchange_bytes(devices: usize) -> usize {
        let [blocks, line, slot] = [MOST_BLOCKS as usize, LINE_BYTES as usize, SLOT_BYTES as usize];
        blocks * (devices + 1) * line + blocks * 2 * devices * slot
    }

    /// The launch for `n` elements on devices of at least this many multiprocessors. All devices of a group need the same grid: pass the
    /// least number of multiprocessors in the group. Buffers of a launch: x, the addend if there is one, the result, the exchange region
    /// of the device that it runs on, then the exchange regions of all devices in their order, in which that one occurs again. The
    /// result may be in the memory of x or of the addend.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond 2³² - 4 elements.
    pub fn launch(&self, n: usize, multiprocessors: u32) -> Result<Launch> {
        let n = extent("elements", n, MOST)?;
        let chunks = n.div_ceil(VECTOR * self.form.chunk());
        let blocks = chunks.min(multiprocessors.clamp(1, MOST_BLOCKS));
        let buffers = (0..3 + usize::from(self.adds) + self.devices as usize).map(Argument::Buffer);
        Ok(Launch { grid: [blocks, 1, 1], arguments: buffers.chain([Argument::U32(n)]).collect() })
    }

    /// Words of the counter and the flags of a block.
    fn control_words(&self) -> u32 {
        (self.devices + 1) * LINE_WORDS
    }

    fn write<'k>(&self, k: &'k Builder) {
        // One block of a multiprocessor runs at once, so its threads may have twice the registers.
        k.resident_blocks(1);
        let x = k.buffer::<f32>("x");
        let addend = self.adds.then(|| k.buffer::<f32>("addend"));
        let out = k.buffer::<f32>("out");
        let own = k.buffer::<u32>("own");
        let regions: Vec<_> = (0..self.devices as usize).map(|device| k.buffer::<u32>(("exchange", device))).collect();
        let n = k.parameter::<u32>("n");
        let (block, thread) = (k.ctaid_x(), k.tid_x());
        let is_own: Vec<_> = regions.iter().map(|region| k.eq(region.address(), own.address())).collect();
        let is_peer: Vec<_> = is_own.iter().map(|&is_own| k.not(is_own)).collect();
        let mut rank = k.constant(0u32);
        for (device, &is_own) in (0..).zip(&is_own) {
            rank = k.selp(device, rank, is_own);
        }

        // One thread for each device exchanges flags with it. All of them store before one waits, so the device is selected
        // without branches.
        let mut partner = regions[0];
        for (device, &region) in (0..).zip(&regions).skip(1) {
            partner = k.select(region, partner, k.eq(thread, device));
        }
        let signals = k.and(k.lt(thread, self.devices), k.ne(thread, rank));
        let control = block * self.control_words();
        let raised = partner.index(k.mad(rank, LINE_WORDS, control + LINE_WORDS));
        let awaited = own.index(k.mad(thread, LINE_WORDS, control + LINE_WORDS));
        let counter = own.index(control);

        let vectors = (n + (VECTOR - 1)) / VECTOR;
        let chunks = (vectors + (self.form.chunk() - 1)) / self.form.chunk();
        let epoch = k.variable::<u32>(k.ld(counter));
        k.for_(block, chunks, k.nctaid_x(), |chunk| {
            epoch.set(k.add(epoch, 1));
            let half = k.mad(block, 2u32, k.and(epoch, 1));
            let offset = k.mad(half, self.devices * SLOT_WORDS, thread * VECTOR) + MOST_BLOCKS * self.control_words();
            let first = k.mad(chunk, self.form.chunk(), thread);
            // Memory is padded to whole vectors, so the last one may exceed the elements.
            let at: Vec<_> = (0..self.form.each()).map(|i| first + i * self.form.block()).collect();
            let is_inside: Vec<_> = at.iter().map(|&at| k.lt(at, vectors)).collect();
            let load = |from: Pointer<'k, Global, f32>| -> Vec<[Value<'k, f32>; 4]> {
                let vectors = at.iter().zip(&is_inside);
                vectors.map(|(&at, &is_inside)| k.ld_v_if(is_inside, from.index(at * VECTOR), 0.0)).collect()
            };
            let loaded = load(x);
            // Early, so that it arrives while this thread waits for other devices.
            let addends = addend.map(load);
            for (&region, &is_peer) in regions.iter().zip(&is_peer) {
                let slot = region.cast::<f32>().index(k.mad(rank, SLOT_WORDS, offset));
                for ((&is_inside, &values), i) in is_inside.iter().zip(&loaded).zip(0..) {
                    k.st_v_if(k.and(is_inside, is_peer), self.vector_of(slot, i), values);
                }
            }
            // The barrier orders the stores of all threads before the release of one, and its acquire before their loads: causality
            // order is transitive over both. The release also follows all loads of the epoch before.
            k.bar_sync(0u32);
            k.if_(signals, || {
                k.st_release_sys(raised, epoch);
                wait(k, awaited, epoch);
            });
            k.bar_sync(0u32);
            let slots = own.cast::<f32>().index(offset);
            for (((&at, &is_inside), &values), i) in at.iter().zip(&is_inside).zip(&loaded).zip(0..) {
                let part = |device: usize| {
                    let slot = self.vector_of(slots.offset((device as u32 * SLOT_WORDS) as i32), i);
                    // Other devices have written the slot since this one last read it. After the acquire even weak loads see that.
                    // Relaxed loads of the system's scope do by themselves: they bypass the first-level cache, where nothing
                    // would be found again.
                    k.ld_relaxed_sys_v_if(k.and(is_inside, is_peer[device]), slot, values)
                };
                let mut sum = part(0);
                for device in 1..self.devices as usize {
                    let part = part(device);
                    sum = std::array::from_fn(|i| k.add(sum[i], part[i]));
                }
                if let Some(addends) = &addends {
                    sum = std::array::from_fn(|lane| k.add(sum[lane], addends[i as usize][lane]));
                }
                k.st_v_if(is_inside, out.index(at * VECTOR), sum);
            }
        });
        // Every thread has read it before the last barrier.
        k.if_(k.eq(thread, 0u32), || k.st(counter, epoch));
    }

    /// The vector of this number of a thread whose first one is at `slot`.
    fn vector_of<'k>(&self, slot: Pointer<'k, Global, f32>, number: u32) -> Pointer<'k, Global, f32> {
        slot.offset((number * self.form.block() * VECTOR) as i32)
    }
}

/// Waits until a flag has come to an epoch. Both wrap around, so their difference is compared.
fn wait<'k>(k: &'k Builder, flag: Pointer<'k, Global, u32>, epoch: Variable<'k, u32>) {
    let ahead = k.variable::<i32>(-1);
    let since = k.variable::<u64>(k.globaltimer());
    k.until(|| {
        // The clock is read outside of the loop that polls, which it would slow down.
        let polls = k.variable::<u32>(0u32);
        k.until(|| {
            ahead.set(k.bits_s32(k.sub(k.ld_acquire_sys::<u32>(flag), epoch)));
            polls.set(k.add(polls, 1));
            k.or(k.ge(ahead, 0), k.eq(polls, POLLS))
        });
        let there = k.ge(ahead, 0);
        k.if_(k.not(there), || {
            k.if_(k.gt(k.sub(k.globaltimer(), since), PATIENCE_NANOSECONDS), || k.trap::<u32>());
        });
        there
    });
}

impl Kernel for AllReduce {
    fn name(&self) -> String {
        let form = match self.form {
            Form::Narrow => "narrow",
            Form::Medium => "medium",
            Form::Wide => "wide",
        };
        let addend = if self.adds { "_addend" } else { "" };
        format!("all_reduce_{}_{form}{addend}", self.devices)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.form.block(), 1, 1], |k| self.write(k))
    }
}
