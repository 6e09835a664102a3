//! Runs PTX text: as much of it as the kernels use that run on more than one architecture.
//!
//! A block or a cluster at a time; each of its threads runs up to where it waits for others: a barrier waits for all threads
//! of the block or the cluster, what a warp does together for all of its lanes. What is written to another block arrives
//! there at the next barrier of the cluster, what barriers in shared memory count when they are waited for. What a GPU would let pass in silence is an error here: an access
//! outside of a buffer or off its alignment, a register or a word of shared memory that nobody has written, two threads at
//! one word of shared memory between two barriers, one of them writing, a word that a copy is on its way to, copies that
//! nobody has waited for, threads that wait for others which have ended or wait elsewhere, what is written to a block that
//! may not have begun, or may have ended, and, in kernels that wait for the launches in front of them, a buffer that is touched
//! before, unless the kernel says that it is read early.

mod cluster;
mod copies;
mod warp;

use std::collections::HashMap;

use cluster::{Outside, Phases};
use copies::{BulkCopy, Copies, UNAWAITED};
use kiln_core::f16;
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
    /// The lower and the upper so many bits.
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
    /// What the lanes of a warp do together.
    Warp(Collective),
    /// Begins to copy so many bytes to shared memory, those present of them from global memory.
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
    /// Waits until no more than so many groups of copies are under way.
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
    },
    WaitForLaunches,
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
    parameters: Vec<(usize, usize)>,
    block: [u32; 3],
    /// Blocks of a cluster along x.
    cluster: u32,
    shared: usize,
    /// Whether it waits for the launches in front of it.
    waits: bool,
}

struct Thread {
    position: [u32; 3],
    block: [u32; 3],
    grid: [u32; 3],
    /// The position of the block in its cluster.
    rank: u32,
    /// How often the lanes of its warp have waited for one another.
    met: u32,
    registers: Vec<u64>,
    written: Vec<bool>,
    at: usize,
    ended: bool,
    copies: Copies,
    outside: Outside,
    /// Whether launches in front may still run.
    beside_others: bool,
}

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}
fn d(x: u64) -> f64 {
    f64::from_bits(x)
}
fn of(x: f32) -> u64 {
    u64::from(x.to_bits())
}
/// IEEE 754-2019 `minimumNumber` and `maximumNumber`, with -0 less than +0.
fn least(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return if a.is_nan() { b } else { a };
    }
    let first = a < b || a == b && a.is_sign_negative();
    if first { a } else { b }
}
fn greatest(a: f64, b: f64) -> f64 {
    -least(-a, -b)
}

/// The nearest bfloat16, the even one of two.
pub(crate) fn to_bf16(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// What an instruction without effects computes. Integers of 32 bits have zeros above.
fn function(name: &str) -> Option<fn(&[u64]) -> u64> {
    fn word(x: impl Into<i128>) -> u64 {
        x.into() as u32 as u64
    }
    Some(match name {
        "mov.b32" | "mov.b64" | "mov.f32" | "mov.f64" | "mov.u32" | "mov.pred" | "cvta.to.global.u64"
        | "cvt.u64.u32" => |x| x[0],
        "add.rn.f32" => |x| of(f(x[0]) + f(x[1])),
        "sub.rn.f32" => |x| of(f(x[0]) - f(x[1])),
        "mul.rn.f32" => |x| of(f(x[0]) * f(x[1])),
        "div.rn.f32" => |x| of(f(x[0]) / f(x[1])),
        "fma.rn.f32" => |x| of(f(x[0]).mul_add(f(x[1]), f(x[2]))),
        "add.rn.f64" => |x| (d(x[0]) + d(x[1])).to_bits(),
        "sub.rn.f64" => |x| (d(x[0]) - d(x[1])).to_bits(),
        "mul.rn.f64" => |x| (d(x[0]) * d(x[1])).to_bits(),
        "div.rn.f64" => |x| (d(x[0]) / d(x[1])).to_bits(),
        "fma.rn.f64" => |x| d(x[0]).mul_add(d(x[1]), d(x[2])).to_bits(),
        "neg.f32" => |x| x[0] ^ 1 << 31,
        "abs.f32" => |x| x[0] & !(1 << 31),
        "neg.f64" => |x| x[0] ^ 1 << 63,
        "abs.f64" => |x| x[0] & !(1 << 63),
        "sqrt.rn.f32" => |x| of(f(x[0]).sqrt()),
        "sqrt.rn.f64" => |x| d(x[0]).sqrt().to_bits(),
        "rcp.rn.f32" | "rcp.approx.ftz.f32" => |x| of(1.0 / f(x[0])),
        "rcp.rn.f64" => |x| (1.0 / d(x[0])).to_bits(),
        "min.f32" => |x| of(least(f(x[0]).into(), f(x[1]).into()) as f32),
        "max.f32" => |x| of(greatest(f(x[0]).into(), f(x[1]).into()) as f32),
        "min.f64" => |x| least(d(x[0]), d(x[1])).to_bits(),
        "max.f64" => |x| greatest(d(x[0]), d(x[1])).to_bits(),
        "min.NaN.f32" => |x| {
            let (a, b) = (f(x[0]), f(x[1]));
            of(if a.is_nan() || b.is_nan() { f32::NAN } else { least(a.into(), b.into()) as f32 })
        },
        "max.NaN.f32" => |x| {
            let (a, b) = (f(x[0]), f(x[1]));
            of(if a.is_nan() || b.is_nan() { f32::NAN } else { greatest(a.into(), b.into()) as f32 })
        },
        "copysign.f32" => |x| x[0] & 1 << 31 | x[1] & !(1 << 31),
        "add.u32" | "add.s32" => |x| word((x[0] as u32).wrapping_add(x[1] as u32)),
        "sub.u32" | "sub.s32" => |x| word((x[0] as u32).wrapping_sub(x[1] as u32)),
        "mul.lo.u32" | "mul.lo.s32" => |x| word((x[0] as u32).wrapping_mul(x[1] as u32)),
        "mad.lo.u32" => |x| word((x[0] as u32).wrapping_mul(x[1] as u32).wrapping_add(x[2] as u32)),
        "mul.wide.u32" => |x| x[0] * x[1],
        "mad.wide.u32" => |x| (x[0] * x[1]).wrapping_add(x[2]),
        "add.u64" => |x| x[0].wrapping_add(x[1]),
        "sub.u64" => |x| x[0].wrapping_sub(x[1]),
        "mul.lo.u64" => |x| x[0].wrapping_mul(x[1]),
        "mad.lo.s32" => |x| word((x[0] as i32).wrapping_mul(x[1] as i32).wrapping_add(x[2] as i32)),
        "mad.lo.u64" => |x| x[0].wrapping_mul(x[1]).wrapping_add(x[2]),
        "div.u32" | "div.u64" => |x| x[0] / x[1],
        "rem.u32" | "rem.u64" => |x| x[0] % x[1],
        "min.s32" => |x| word((x[0] as i32).min(x[1] as i32)),
        "max.s32" => |x| word((x[0] as i32).max(x[1] as i32)),
        "min.u32" | "min.u64" => |x| x[0].min(x[1]),
        "max.u32" | "max.u64" => |x| x[0].max(x[1]),
        "and.b32" | "and.b64" | "and.pred" => |x| x[0] & x[1],
        "or.b32" | "or.b64" | "or.pred" => |x| x[0] | x[1],
        "xor.b32" | "xor.b64" | "xor.pred" => |x| x[0] ^ x[1],
        "not.b32" => |x| word(!x[0] as u32),
        "not.b64" => |x| !x[0],
        "not.pred" => |x| x[0] ^ 1,
        "shl.b32" => |x| word((x[0] as u32).checked_shl(x[1] as u32).unwrap_or(0)),
        "shl.b64" => |x| x[0].checked_shl(x[1] as u32).unwrap_or(0),
        "shr.u32" | "shr.u64" => |x| x[0].checked_shr(x[1] as u32).unwrap_or(0),
        "shr.s32" => |x| word((x[0] as u32 as i32) >> (x[1] as u32).min(31)),
        "setp.lt.f32" => |x| (f(x[0]) < f(x[1])).into(),
        "setp.le.f32" => |x| (f(x[0]) <= f(x[1])).into(),
        "setp.gt.f32" => |x| (f(x[0]) > f(x[1])).into(),
        "setp.ge.f32" => |x| (f(x[0]) >= f(x[1])).into(),
        "setp.eq.f32" => |x| (f(x[0]) == f(x[1])).into(),
        "setp.ne.f32" => |x| (!f(x[0]).is_nan() && !f(x[1]).is_nan() && f(x[0]) != f(x[1])).into(),
        "setp.nan.f32" => |x| (f(x[0]).is_nan() || f(x[1]).is_nan()).into(),
        "setp.eq.f64" => |x| (d(x[0]) == d(x[1])).into(),
        "setp.le.f64" => |x| (d(x[0]) <= d(x[1])).into(),
        "setp.ge.f64" => |x| (d(x[0]) >= d(x[1])).into(),
        "setp.lt.u32" | "setp.lt.u64" => |x| (x[0] < x[1]).into(),
        "setp.le.u32" | "setp.le.u64" => |x| (x[0] <= x[1]).into(),
        "setp.gt.u32" | "setp.gt.u64" => |x| (x[0] > x[1]).into(),
        "setp.ge.u32" | "setp.ge.u64" => |x| (x[0] >= x[1]).into(),
        "setp.eq.u32" | "setp.eq.u64" => |x| (x[0] == x[1]).into(),
        "setp.ne.u32" | "setp.ne.u64" => |x| (x[0] != x[1]).into(),
        "setp.lt.s32" => |x| ((x[0] as i32) < x[1] as i32).into(),
        "setp.gt.s32" => |x| (x[0] as i32 > x[1] as i32).into(),
        "selp.f32" | "selp.f64" | "selp.u32" | "selp.s32" | "selp.u64" => |x| if x[2] == 1 { x[0] } else { x[1] },
        "cvt.u32.u64" => |x| word(x[0] as u32),
        "cvt.rni.s32.f32" => |x| word(f(x[0]).round_ties_even() as i32),
        "cvt.rn.f32.u32" => |x| of(x[0] as f32),
        "cvt.rn.f32.s32" => |x| of(x[0] as i32 as f32),
        "cvt.rn.f32.f64" => |x| of(d(x[0]) as f32),
        // Half away from zero, which for the bits is half up.
        "cvt.rna.tf32.f32" => |x| if f(x[0]).is_finite() { (x[0] + (1 << 12)) & 0xffff_e000 } else { x[0] },
        "cvt.rn.f64.u32" | "cvt.rn.f64.u64" => |x| (x[0] as f64).to_bits(),
        "cvt.f64.f32" => |x| f64::from(f(x[0])).to_bits(),
        "ex2.approx.ftz.f32" => |x| {
            let flushed = |x: f32| if x.is_subnormal() { 0.0 } else { x };
            of(flushed(flushed(f(x[0])).exp2()))
        },
        "cvt.f32.f16" => |x| of(f16::from_bits(x[0] as u16).to_f32()),
        "cvt.f32.bf16" => |x| x[0] << 16,
        "cvt.rn.f16x2.f32" => |x| {
            let [upper, lower] = [x[0], x[1]].map(|x| u64::from(f16::from_f32(f(x)).to_bits()));
            upper << 16 | lower
        },
        "cvt.rn.bf16x2.f32" => |x| {
            let [upper, lower] = [x[0], x[1]].map(|x| u64::from(to_bf16(f(x))));
            upper << 16 | lower
        },
        "fma.rn.f16x2" => |x| {
            let half = |x: u64, upper: u32| f64::from(f16::from_bits((x >> (16 * upper)) as u16).to_f32());
            let fma = |upper| half(x[0], upper).mul_add(half(x[1], upper), half(x[2], upper));
            // Kernels use it where the result is exact.
            let [lower, upper] = [fma(0), fma(1)].map(|sum| u64::from(f16::from_f32(sum as f32).to_bits()));
            upper << 16 | lower
        },
        "prmt.b32" => |x| {
            let bytes = x[0] | x[1] << 32;
            (0..4).fold(0, |word, i| word | (bytes >> (8 * (x[2] >> (4 * i) & 7)) & 0xff) << (8 * i))
        },
        "join" => |x| x[0] | x[1] << 32,
        "mapa.shared::cluster.u32" => |x| cluster::address(x[0], x[1]),
        _ => return None,
    })
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
        "%cluster_ctarank" => |thread| thread.rank.into(),
        "smem" => |_| 0,
        _ => return None,
    })
}

/// Names of registers to their numbers.
#[derive(Default)]
struct Registers(HashMap<String, usize>);

impl Registers {
    fn number(&mut self, name: &str) -> usize {
        let next = self.0.len();
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    fn operand(&mut self, text: &str) -> Operand {
        if let Some(special) = special(text) {
            Operand::Special(special)
        } else if text.starts_with('%') {
            Operand::Register(self.number(text))
        } else if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")) {
            Operand::Constant(u64::from_str_radix(bits, 16).unwrap_or_else(|_| panic!("{text}")))
        } else {
            let number: i128 = text.parse().unwrap_or_else(|_| panic!("{text} is no operand"));
            Operand::Constant(if number < 0 { number as u32 as u64 } else { number as u64 })
        }
    }

    fn address(&mut self, text: &str) -> Address {
        let text = text.trim_matches(['[', ']']);
        let split = text.find(['+', '-']).unwrap_or(text.len());
        let offset = text[split..].trim_start_matches('+');
        let offset = if offset.is_empty() { 0 } else { offset.parse().unwrap_or_else(|_| panic!("{text}")) };
        Address { base: self.number(&text[..split]), offset }
    }
}

/// Operands at the commas that are not inside of braces.
fn operands(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// The parts of `{a, b}`, or `a` alone.
fn list(text: &str) -> Vec<&str> {
    text.trim_matches(['{', '}']).split(", ").collect()
}

fn space(name: &str) -> Space {
    match name {
        _ if name.contains(".shared::cluster") => Space::Cluster,
        _ if name.contains(".shared") => Space::Shared,
        _ => Space::Global,
    }
}

fn bytes(name: &str) -> usize {
    match name.rsplit('.').next() {
        Some("u32" | "s32" | "f32" | "b32") => 4,
        Some("u64" | "f64" | "b64") => 8,
        Some("b16") => 2,
        _ => panic!("the width of {name}"),
    }
}

impl Program {
    /// Parses the only kernel of a module, which has so many bytes of shared memory.
    pub(crate) fn parse(text: &str, shared: u32) -> Self {
        let mut registers = Registers::default();
        let mut labels = HashMap::new();
        let mut program = Self {
            code: Vec::new(),
            registers: 0,
            parameters: Vec::new(),
            block: [1; 3],
            cluster: 1,
            shared: shared as usize,
            waits: false,
        };
        let mut parameters: Vec<&str> = Vec::new();
        let mut branches = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(parameter) = line.strip_prefix(".param ") {
                parameters.extend(parameter.trim_end_matches(',').split(' ').next_back());
            } else if let Some(block) = line.strip_prefix(".reqntid ") {
                block.split(", ").zip(&mut program.block).for_each(|(n, to)| *to = n.parse().unwrap());
            } else if let Some(cluster) = line.strip_prefix(".reqnctapercluster ") {
                program.cluster = cluster.split(", ").next().unwrap().parse().unwrap();
            } else if let Some(label) = line.strip_suffix(':') {
                labels.insert(label, program.code.len());
            } else if let Some(statement) = line.strip_suffix(';').filter(|_| !line.starts_with('.')) {
                let (guard, statement) = match statement.strip_prefix('@') {
                    None => (None, statement),
                    Some(rest) => {
                        let (p, rest) = rest.split_once(' ').unwrap();
                        (Some((registers.number(p.trim_start_matches('!')), !p.starts_with('!'))), rest)
                    }
                };
                let (name, rest) = statement.split_once(' ').unwrap_or((statement, ""));
                let parts = operands(rest);
                let action = match name.split('.').next().unwrap() {
                    "ret" => Action::Return,
                    "bra" => {
                        branches.push((program.code.len(), parts[0]));
                        Action::Branch(0)
                    }
                    "bar" if name == "bar.sync" => Action::Barrier,
                    "barrier" if name == "barrier.cluster.arrive" => Action::ArriveAtCluster,
                    "barrier" if name == "barrier.cluster.wait" => Action::WaitForCluster,
                    "fence" if name == "fence.mbarrier_init.release.cluster" => continue,
                    "mbarrier" if name == "mbarrier.init.shared.b64" && parts[1] == "1" => {
                        Action::InitBarrier(registers.address(parts[0]))
                    }
                    "mbarrier" if name == "mbarrier.arrive.expect_tx.shared::cta.b64" => {
                        Action::ExpectBytes { at: registers.address(parts[1]), bytes: registers.operand(parts[2]) }
                    }
                    "mbarrier" if name == "mbarrier.try_wait.parity.shared::cta.b64" => Action::WaitForPhase {
                        to: registers.number(parts[0]),
                        at: registers.address(parts[1]),
                        parity: registers.operand(parts[2]),
                    },
                    "st" if name.starts_with("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes") => {
                        Action::CountedStore {
                            bytes: bytes(name),
                            to: registers.address(parts[0]),
                            from: registers.operand(parts[1]),
                            barrier: registers.address(parts[2]),
                        }
                    }
                    "griddepcontrol" if name == "griddepcontrol.wait" => {
                        program.waits = true;
                        Action::WaitForLaunches
                    }
                    // Launches behind this one are no matter here.
                    "griddepcontrol" => continue,
                    "bar" | "shfl" | "ldmatrix" | "mma" => {
                        Action::Warp(Collective::parse(&mut registers, name, &parts))
                    }
                    "cp" if name == "cp.async.commit_group" => Action::CommitCopies,
                    "cp" if name == "cp.async.wait_group" => Action::WaitForCopies(parts[0].parse().unwrap()),
                    "cp" if name == "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" => {
                        let [to, from, barrier] = [0, 1, 3].map(|i: usize| registers.address(parts[i]));
                        Action::BulkCopy { to, from, bytes: registers.operand(parts[2]), barrier }
                    }
                    "cp" => {
                        let bytes = match (name, parts[2]) {
                            ("cp.async.cg.shared.global", "16") => 16,
                            ("cp.async.ca.shared.global", "4") => 4,
                            _ => panic!("{line}"),
                        };
                        let [to, from] = [0, 1].map(|i: usize| registers.address(parts[i]));
                        Action::Copy { to, from, bytes, present: registers.operand(parts[3]) }
                    }
                    "ld" if name.starts_with("ld.param") => {
                        let index = parameters.iter().position(|p| *p == parts[1].trim_matches(['[', ']'])).unwrap();
                        program.parameters.push((registers.number(parts[0]), index));
                        continue;
                    }
                    "ld" => Action::Load {
                        space: space(name),
                        bytes: bytes(name),
                        to: list(parts[0]).into_iter().map(|to| registers.number(to)).collect(),
                        from: registers.address(parts[1]),
                    },
                    "st" => Action::Store {
                        space: space(name),
                        bytes: bytes(name),
                        to: registers.address(parts[0]),
                        from: list(parts[1]).into_iter().map(|from| registers.operand(from)).collect(),
                    },
                    "red" => {
                        assert_eq!(name, "red.global.min.u64", "{line}");
                        Action::Least { to: registers.address(parts[0]), from: registers.operand(parts[1]) }
                    }
                    "mov" if parts[0].starts_with('{') => {
                        let to: Vec<usize> = list(parts[0]).into_iter().map(|to| registers.number(to)).collect();
                        let bits = 4 * bytes(name) as u32;
                        Action::Split { to: [to[0], to[1]], from: registers.operand(parts[1]), bits }
                    }
                    "mov" if parts[1].starts_with('{') => Action::Compute {
                        run: function("join").unwrap(),
                        to: registers.number(parts[0]),
                        from: list(parts[1]).into_iter().map(|from| registers.operand(from)).collect(),
                    },
                    _ => Action::Compute {
                        run: function(name).unwrap_or_else(|| panic!("the interpreter does not know {name}")),
                        to: registers.number(parts[0]),
                        from: parts[1..].iter().map(|from| registers.operand(from)).collect(),
                    },
                };
                program.code.push(Instruction { guard, action, line: line.to_owned() });
            }
        }
        for (at, label) in branches {
            program.code[at].action = Action::Branch(labels[label]);
        }
        program.registers = registers.0.len();
        program
    }

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

/// Who touches shared memory: a thread, and how often its warp has met before.
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

/// Who has touched a word of shared memory since the last barrier.
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
            outside: Outside::default(),
            beside_others: program.waits,
        });
        Self {
            program,
            threads: threads.collect(),
            shared: vec![0; program.shared],
            written: vec![false; program.shared],
            touched: vec![Touch::default(); program.shared.div_ceil(4)],
            phases: HashMap::new(),
            bulk: Vec::new(),
            era: 1,
        }
    }

    /// Nothing has run, and nothing is written but the parameters.
    fn begin(&mut self, block: [u32; 3], grid: [u32; 3], arguments: &[u64]) {
        for thread in &mut self.threads {
            (thread.block, thread.grid, thread.at, thread.ended) = (block, grid, 0, false);
            thread.rank = block[0] % self.program.cluster;
            thread.outside = Outside::default();
            thread.met = 0;
            thread.beside_others = self.program.waits;
            thread.written.fill(false);
            for &(register, index) in &self.program.parameters {
                thread.write(register, arguments[index]);
            }
        }
        self.written.fill(false);
        self.touched.fill(Touch::default());
        self.phases.clear();
        self.bulk.clear();
        self.era = 1;
    }

    /// Runs the block to its end, or to a barrier of the cluster; whether it has ended.
    fn run(&mut self, memory: &mut Memory) -> Result<bool, String> {
        const WARP: usize = 32;
        loop {
            for warp in (0..self.threads.len()).step_by(WARP) {
                let lanes = warp..(warp + WARP).min(self.threads.len());
                // From one thing that lanes do together to the next.
                loop {
                    for i in lanes.clone() {
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
            Action::Split { to, from, bits } => {
                let value = thread.read(*from)?;
                thread.write(to[0], value & ((1 << bits) - 1));
                thread.write(to[1], value >> bits);
            }
            Action::Load { space, bytes, to, from } => {
                let address = thread.address(*from, bytes * to.len())?;
                thread.after_others(*space != Space::Global || memory.is_early(address))?;
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

    /// The words of an access, as they were touched since the last barrier.
    fn touch(&mut self, address: u64, bytes: usize) -> impl Iterator<Item = &mut Touch> {
        let era = self.era;
        let words = &mut self.touched[address as usize / 4..(address as usize + bytes).div_ceil(4)];
        words.iter_mut().map(move |touch| {
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
