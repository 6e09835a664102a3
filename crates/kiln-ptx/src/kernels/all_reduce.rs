//! Sums over the devices of a group, through memory that all of them access.

use kiln_ir::{Error, Result};

use crate::kernel::extent;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Maximum devices of a group: those of one host.
const MOST_DEVICES: u32 = 8;
/// Maximum blocks of a launch: as many as have slots.
const MOST_BLOCKS: u32 = 128;
/// Bytes of a pair of an element and the epoch that it was sent in.
const PAIR_BYTES: u32 = 8;
/// Bytes of a slot for pairs, which holds a chunk of the narrow form.
const PAIR_SLOT_BYTES: u32 = Form::Narrow.chunk() * VECTOR * PAIR_BYTES;
/// Bytes of a slot for elements, which holds a chunk of another form: the largest one.
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

/// The time that a thread waits for another device before it gives the launch up. A device is late by the time that its host takes to
/// submit its launches, which no debugger and no overloaded machine should turn into an error.
const PATIENCE_NANOSECONDS: u64 = 60_000_000_000;
/// Polls before each look at the clock. A poll takes about a microsecond.
const POLLS: u32 = 1024;

/// The part of x that a block takes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// Little, for many blocks, and sent in pairs: the time of a small sum is that of a store to another device.
    Narrow,
    /// More, for all blocks as long as each has one chunk. Flags exchange half the bytes of pairs, but take a store to another device
    /// and back before the flag is stored.
    Medium,
    /// Much, for few exchanges of flags.
    Wide,
}

impl Form {
    const ALL: [Self; 3] = [Self::Narrow, Self::Medium, Self::Wide];

    /// The first form in which every block has at most one chunk of this many elements.
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

    /// Vectors of a chunk, what a block sums in an epoch.
    const fn chunk(self) -> u32 {
        self.block() * self.each()
    }
}

/// `outᵢ = x₀ᵢ + x₁ᵢ + ...` of f32 over the devices of a group, in their order, so that all of them get the same bits; then `+ addendᵢ`
/// where an addend was asked for, which each device holds a copy of. Every device of the group launches it at its place in the same
/// sequence of launches, with the same extents and the same grid.
///
/// Each device has an *exchange region* of [`AllReduce::exchange_bytes`], which all devices of the group read and write. The host zeroes
/// it once; launches of all forms use it after one another. For each of 128 blocks it holds, on lines of 128 bytes, a line of counters and
/// a flag for each device; behind those of all blocks, for each block, two slots of 32 KiB for each device; and behind all of these, for
/// each block, two slots of 4 KiB for each device, which hold pairs:
///
/// | what | at byte |
/// |---|---|
/// | counter of block b for epochs of flags | 128 b (devices + 1) |
/// | counter of block b for epochs of pairs | 128 b (devices + 1) + 4 |
/// | flag of device d for block b | 128 (b (devices + 1) + 1 + d) |
/// | slot of device d for block b and parity p | 128 · 128 (devices + 1) + 32768 ((2 b + p) devices + d) |
/// | slot for pairs of device d for block b and parity p | 128 · 128 (devices + 1) + 128 · 2 · 32768 devices + 4096 ((2 b + p) devices + d) |
///
/// A block sums chunk after chunk, each in an *epoch* of its own: the counter plus one. The narrow form counts its epochs by themselves, so
/// that two epochs lie between the stores to a word of its slots, whatever other forms do. Slots alternate with the parity of the epoch.
///
/// # Flags
///
/// The other forms store a block's part of x to its slot in the regions of all other devices, then the epoch to its flag there, and wait
/// until the flags of all others in its own region say the same. A device stores to a slot again two epochs later, and by then it has
/// seen the flag of the epoch between, which the owner of the slot has stored after it had read the slot.
///
/// # Pairs
///
/// A fence and a flag take longer than a small sum: the fence waits until the other device has received and acknowledged
/// the stores. The narrow form has neither. It stores each element in a pair with the epoch, of 64 bits, and polls the pairs
/// of the other devices until their epochs are this one. An access of 64 bits is one access of PTX's memory model, so an element
/// arrives with its epoch. A vector of two such accesses is not, and need not be: each of the pairs has its own epoch.
///
/// A pair of an earlier epoch is not mistaken for one of this epoch. Only pairs are stored to these slots. In each epoch of a block, every
/// thread stores all of its pairs, also those beyond the end of x, so the pair that a new one replaces is that of two epochs
/// before, or zero before the epochs 1 and 2. Epochs wrap around, but they do not come again within two.
///
/// No pair is replaced before it has been read, without a barrier, because thread t of a block exchanges pairs only with threads t of
/// the same block on other devices, and each pair is read by one thread. Before thread t of device a stores its pairs of epoch e + 2 to
/// device b, it has left its loop that polls in epoch e + 1, so it has loaded the pairs of e + 1 from thread t of b. That one had stored
/// them after it had left its loop of epoch e, that is, after the values of all pairs of e had come: the branch out of the loop depends
/// on them, and a GPU stores nothing before a branch that decides on the store. If e + 1 is in another launch than e, that launch began
/// after all threads of the former had ended.
///
/// # Requirements
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

    /// Bytes of the exchange region of each device in a group of this many: 18 MiB and 48 KiB for two devices.
    pub const fn exchange_bytes(devices: usize) -> usize {
        let slots = 2 * devices * (SLOT_BYTES + PAIR_SLOT_BYTES) as usize;
        MOST_BLOCKS as usize * ((devices + 1) * LINE_BYTES as usize + slots)
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

    /// The first slot for pairs, in pairs from the beginning of the region.
    fn pair_slots(&self) -> u32 {
        MOST_BLOCKS * (self.control_words() + 2 * self.devices * SLOT_WORDS) / (PAIR_BYTES / WORD_BYTES)
    }

    fn write(&self, k: &Builder) {
        // One block of a multiprocessor runs at once, so its threads may have twice the registers.
        k.resident_blocks(1);
        let x = k.buffer("x");
        let addend = self.adds.then(|| k.buffer("addend"));
        let out = k.buffer("out");
        let own = k.buffer::<u32>("own");
        let regions: Vec<_> = (0..self.devices as usize).map(|device| k.buffer::<u32>(("exchange", device))).collect();
        let n = k.parameter::<u32>("n");
        let is_own: Vec<_> = regions.iter().map(|region| k.eq(region.address(), own.address())).collect();
        let is_peer: Vec<_> = is_own.iter().map(|&is_own| k.not(is_own)).collect();
        let mut rank = k.constant(0u32);
        for (device, &is_own) in (0..).zip(&is_own) {
            rank = k.selp(device, rank, is_own);
        }
        let vectors = (n + (VECTOR - 1)) / VECTOR;
        let chunks = (vectors + (self.form.chunk() - 1)) / self.form.chunk();
        let sum = Sum { k, form: self.form, x, addend, out, own, regions, is_peer, rank, vectors, chunks };
        match self.form {
            Form::Narrow => self.by_pairs(&sum),
            Form::Medium | Form::Wide => self.by_flags(&sum),
        }
    }

    /// Exchanges elements in pairs with their epoch.
    fn by_pairs(&self, sum: &Sum<'_>) {
        let k = sum.k;
        let (block, thread) = (k.ctaid_x(), k.tid_x());
        let counter = sum.own.index(block * self.control_words()).offset(1);
        let epoch = k.variable::<u32>(k.ld(counter));
        let slot_pairs = PAIR_SLOT_BYTES / PAIR_BYTES;
        // A vector is two halves of two pairs each. Those of neighbouring threads are beside one another.
        let half_pairs = slot_pairs / 2;
        k.for_(block, sum.chunks, k.nctaid_x(), |chunk| {
            let [part] = &sum.parts(chunk)[..] else { unreachable!("the narrow form has one vector a thread") };
            let values = sum.load(sum.x, part);
            let addend = sum.addend.map(|addend| sum.load(addend, part));
            // After the loads, which need not wait for the counter.
            epoch.set(k.add(epoch, 1));
            let pair = |value: Value<'_, f32>| k.join(k.bits_u32(value), epoch);
            let [a, b, c, d] = values.map(pair);
            let sent = [[a, b], [c, d]];
            let half = k.mad(block, 2u32, k.and(epoch, 1));
            let offset = k.mad(half, self.devices * slot_pairs, thread * 2) + self.pair_slots();
            for (region, &is_peer) in sum.regions.iter().zip(&sum.is_peer) {
                let slot = region.cast::<u64>().index(k.mad(sum.rank, slot_pairs, offset));
                for (number, pairs) in (0..).zip(sent) {
                    k.st_relaxed_sys_v_if(is_peer, slot.offset(number * half_pairs as i32), pairs);
                }
            }
            let slots = sum.own.cast::<u64>().index(offset);
            let mut parts = Vec::new();
            wait(k, || {
                // The loads for all devices are under way at once.
                for (device, &is_peer) in (0..).zip(&sum.is_peer) {
                    let slot = slots.offset(device * slot_pairs as i32);
                    let half = |number: usize| {
                        let from = slot.offset((number as u32 * half_pairs) as i32);
                        k.ld_relaxed_sys_v_if(is_peer, from, sent[number])
                    };
                    let ([a, b], [c, d]) = (half(0), half(1));
                    parts.push([a, b, c, d].map(|pair| k.split(pair)));
                }
                let pairs = parts.iter().flatten();
                let differences = pairs.map(|&[_, sent_in]| k.xor(sent_in, epoch));
                let difference = differences.reduce(|a, b| k.or(a, b)).expect("a group has a device");
                k.eq(difference, 0)
            });
            let sent = parts.iter().map(|pairs| pairs.map(|[bits, _]| k.bits_f32(bits)));
            let values = sent.chain(addend).reduce(|a, b| sum.add(a, b)).expect("a group has a device");
            sum.store(part, values);
        });
        // Every thread has read the counter before one stores it.
        k.bar_sync(0u32);
        k.if_(k.eq(thread, 0u32), || k.st(counter, epoch));
    }

    /// Exchanges elements alone, and flags that say that they are there.
    fn by_flags<'k>(&self, sum: &Sum<'k>) {
        let k = sum.k;
        let (block, thread) = (k.ctaid_x(), k.tid_x());
        // One thread for each device exchanges flags with it. All of them store before one waits, so the device is selected
        // without branches.
        let mut partner = sum.regions[0];
        for (device, &region) in (0..).zip(&sum.regions).skip(1) {
            partner = k.select(region, partner, k.eq(thread, device));
        }
        let signals = k.and(k.lt(thread, self.devices), k.ne(thread, sum.rank));
        let control = block * self.control_words();
        let raised = partner.index(k.mad(sum.rank, LINE_WORDS, control + LINE_WORDS));
        let awaited = sum.own.index(k.mad(thread, LINE_WORDS, control + LINE_WORDS));
        let counter = sum.own.index(control);
        let epoch = k.variable::<u32>(k.ld(counter));
        let load = |parts: &[Part<'k>], from| -> Vec<_> { parts.iter().map(|part| sum.load(from, part)).collect() };
        let first = load(&sum.parts(block), sum.x);
        let next: Vec<_> = first.iter().map(|values| values.map(|value| k.variable::<f32>(value))).collect();
        k.for_(block, sum.chunks, k.nctaid_x(), |chunk| {
            let parts = sum.parts(chunk);
            let values: Vec<_> = next.iter().map(|next| next.map(|next| k.constant::<f32>(next))).collect();
            // Early, so that they arrive while this thread waits for other devices.
            let addends = sum.addend.map(|addend| load(&parts, addend));
            // After the loads, which need not wait for the counter.
            epoch.set(k.add(epoch, 1));
            let half = k.mad(block, 2u32, k.and(epoch, 1));
            let offset = k.mad(half, self.devices * SLOT_WORDS, thread * VECTOR) + MOST_BLOCKS * self.control_words();
            for (region, &is_peer) in sum.regions.iter().zip(&sum.is_peer) {
                let slot = region.cast::<f32>().index(k.mad(sum.rank, SLOT_WORDS, offset));
                for ((part, &values), number) in parts.iter().zip(&values).zip(0..) {
                    k.st_v_if(k.and(part.is_inside, is_peer), self.vector_of(slot, number), values);
                }
            }
            // The next chunk arrives in the meantime, too. Beyond the last one nothing is loaded.
            let ahead = load(&sum.parts(chunk + k.nctaid_x()), sum.x);
            for (next, ahead) in next.iter().flatten().zip(ahead.iter().flatten()) {
                next.set(*ahead);
            }
            // The barrier orders the stores of all threads before the release of one, and its acquire before their loads: causality
            // order is transitive over both. The release also follows all loads of the epoch before.
            k.bar_sync(0u32);
            k.if_(signals, || {
                k.st_release_sys(raised, epoch);
                // Both wrap around, so their difference is compared.
                wait(k, || k.ge(k.bits_s32(k.sub(k.ld_acquire_sys::<u32>(awaited), epoch)), 0));
            });
            k.bar_sync(0u32);
            let slots = sum.own.cast::<f32>().index(offset);
            // As many vectors at once as the registers of a thread hold from all devices, which the assembler reports. It moves no load
            // of this kind to before a store.
            let at_once = match self.devices {
                ..=4 => 4,
                5..=7 => 2,
                _ => 1,
            };
            let numbers: Vec<usize> = (0..parts.len()).collect();
            for numbers in numbers.chunks(at_once) {
                let sent = (0..).zip(&sum.is_peer).map(|(device, &is_peer)| {
                    let of_device = slots.offset(device * SLOT_WORDS as i32);
                    let load = |&number: &usize| {
                        // Other devices have written the slot since this one last read it. After the acquire even weak loads see
                        // that. Relaxed loads of the system's scope do by themselves: they bypass the first-level cache, where
                        // nothing would be found again.
                        let from = self.vector_of(of_device, number as u32);
                        k.ld_relaxed_sys_v_if(k.and(parts[number].is_inside, is_peer), from, values[number])
                    };
                    numbers.iter().map(load).collect::<Vec<_>>()
                });
                let addends = addends.as_ref().map(|addends| numbers.iter().map(|&number| addends[number]).collect());
                let add = |a: Vec<_>, b: Vec<_>| a.into_iter().zip(b).map(|(a, b)| sum.add(a, b)).collect();
                let sums = sent.chain(addends).reduce(add).expect("a group has a device");
                numbers.iter().zip(sums).for_each(|(&number, values)| sum.store(&parts[number], values));
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

/// The operands of a kernel, and what a thread does with them.
struct Sum<'k> {
    k: &'k Builder,
    form: Form,
    x: Pointer<'k, Global, f32>,
    addend: Option<Pointer<'k, Global, f32>>,
    out: Pointer<'k, Global, f32>,
    /// The region of this device.
    own: Pointer<'k, Global, u32>,
    regions: Vec<Pointer<'k, Global, u32>>,
    /// Whether each region is that of another device.
    is_peer: Vec<Value<'k, bool>>,
    /// The number of this device.
    rank: Value<'k, u32>,
    vectors: Value<'k, u32>,
    chunks: Value<'k, u32>,
}

/// A vector of a chunk.
struct Part<'k> {
    /// Its first element.
    at: Value<'k, u32>,
    is_inside: Value<'k, bool>,
}

impl<'k> Sum<'k> {
    /// The vectors of this thread in a chunk. Memory is padded to whole vectors, so the last one inside may exceed the elements.
    fn parts(&self, chunk: Value<'k, u32>) -> Vec<Part<'k>> {
        let first = self.k.mad(chunk, self.form.chunk(), self.k.tid_x());
        let part = |number| {
            let at = first + number * self.form.block();
            Part { at: at * VECTOR, is_inside: self.k.lt(at, self.vectors) }
        };
        (0..self.form.each()).map(part).collect()
    }

    /// A vector of an operand, or zeros beyond its end.
    fn load(&self, from: Pointer<'k, Global, f32>, part: &Part<'k>) -> [Value<'k, f32>; 4] {
        self.k.ld_v_if(part.is_inside, from.index(part.at), 0.0)
    }

    fn add(&self, a: [Value<'k, f32>; 4], b: [Value<'k, f32>; 4]) -> [Value<'k, f32>; 4] {
        std::array::from_fn(|i| self.k.add(a[i], b[i]))
    }

    /// Stores a vector of the result.
    fn store(&self, part: &Part<'k>, values: [Value<'k, f32>; 4]) {
        self.k.st_v_if(part.is_inside, self.out.index(part.at), values);
    }
}

/// Waits until other devices have stored what `is_there` loads and compares. Its registers then hold what the last turn has loaded.
fn wait<'k>(k: &'k Builder, is_there: impl FnOnce() -> Value<'k, bool>) {
    let since = k.variable::<u64>(0u64);
    k.until(|| {
        // The clock is read outside of the loop that polls, which it would slow down, and only once that takes long.
        let polls = k.variable::<u32>(0u32);
        k.until(|| {
            polls.set(k.add(polls, 1));
            k.or(is_there(), k.eq(polls, POLLS))
        });
        // What comes in the last poll is found again by the next one.
        let there = k.lt(polls, POLLS);
        k.if_(k.not(there), || {
            let now = k.globaltimer();
            since.set(k.selp(now, since, k.eq(since, 0u64)));
            k.if_(k.gt(k.sub(now, since), PATIENCE_NANOSECONDS), || k.trap::<u32>());
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
