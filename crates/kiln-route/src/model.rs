//! Places, and the time that work takes on them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Backend;
use crate::problem::{Problem, Residency, Task};

/// The greatest number of places of a profile.
pub const MAX_PLACES: usize = 16;

/// The greatest number of memories of a profile, the host among them.
pub const MAX_MEMORIES: usize = 8;

/// A memory that operands can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Memory(u8);

impl Memory {
    /// The memory of the CPU.
    pub const HOST: Self = Self(0);

    /// The memory with this number; the host is 0, devices follow.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The way between the host and the memory of a device: `latency + bytes / bandwidth` in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Seconds before the first byte of an upload arrives.
    pub upload_latency: f64,
    /// Bytes per second from the host.
    pub upload_bandwidth: f64,
    /// Seconds before the first byte of a download arrives.
    pub download_latency: f64,
    /// Bytes per second to the host.
    pub download_bandwidth: f64,
}

impl Link {
    fn upload(&self, bytes: u64) -> f64 {
        self.upload_latency + bytes as f64 / self.upload_bandwidth
    }

    fn download(&self, bytes: u64) -> f64 {
        self.download_latency + bytes as f64 / self.download_bandwidth
    }
}

/// The formula for work that was not measured: `overhead + max(bytes / bandwidth(level), flops / peak)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roofline {
    /// Seconds that any operation takes.
    pub overhead: f64,
    /// Capacity in bytes and bandwidth in bytes per second of each level of the memory, smallest first. What fits no level
    /// moves at the bandwidth of the last.
    pub levels: Vec<(u64, f64)>,
    /// Operations per second.
    pub peak: f64,
}

impl Roofline {
    /// Cautious constants for a CPU of which nothing has been measured: `lanes` f32 a vector, `threads` cores.
    pub fn assumed(lanes: usize, threads: usize) -> Self {
        let threads = threads.max(1) as f64;
        // A fork and a join cost microseconds, and the threads share what lies beyond their own caches.
        let (overhead, shared) = if threads > 1.0 { (5e-6, threads.min(4.0) * 0.9) } else { (50e-9, 1.0) };
        let own = if threads > 1.0 { threads * 0.9 } else { 1.0 };
        let lanes = lanes.max(1) as f64;
        // Two loads a cycle of one vector at 3 GHz from the nearest cache, half of it from the next.
        let near = 3e9 * 4.0 * lanes;
        Self {
            overhead,
            levels: vec![
                (32 << 10, near * own),
                (1 << 20, (near * 0.5).min(80e9) * own),
                (16 << 20, near.min(30e9) * own),
                (u64::MAX, near.min(16e9) * shared),
            ],
            // Two operations an instruction, one and a half instructions a cycle.
            peak: 3e9 * 3.0 * lanes * own,
        }
    }

    /// Bytes per second for work that touches this many bytes.
    pub fn bandwidth(&self, bytes: u64) -> f64 {
        let level = self.levels.iter().find(|(capacity, _)| bytes <= *capacity).or(self.levels.last());
        level.map_or(f64::INFINITY, |&(_, bandwidth)| bandwidth)
    }

    pub(crate) fn seconds(&self, task: &Task) -> f64 {
        let bytes = task.cost.bytes();
        self.overhead + (bytes as f64 / self.bandwidth(bytes)).max(task.cost.flops as f64 / self.peak)
    }
}

/// Somewhere that an operation can run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// What people call it: `avx2 x4`.
    pub name: String,
    /// The kind of execution.
    pub backend: Backend,
    /// Threads of the CPU that it keeps busy.
    pub threads: usize,
    /// Where its operands have to be.
    pub memory: Memory,
    /// Seconds to start any work, once an operation or a graph.
    pub launch: f64,
    /// Seconds to compile the code of a problem that it has not run before.
    pub compile: f64,
    /// Its speed where nothing was measured.
    pub roofline: Roofline,
}

impl Place {
    /// A place on the CPU of which nothing has been measured.
    pub fn cpu(name: impl Into<String>, backend: Backend, lanes: usize, threads: usize) -> Self {
        Self {
            name: name.into(),
            backend,
            threads: threads.max(1),
            memory: Memory::HOST,
            launch: 0.0,
            compile: 0.0,
            roofline: Roofline::assumed(lanes, threads),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What a prediction rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Between two measurements of the class.
    Interpolated,
    /// Below the smallest measurement: its time, which is nearly all overhead there.
    Below,
    /// Above the largest measurement: its rate.
    Beyond,
    /// Measurements of another kind of shape of the same operation.
    Related,
    /// The formula with the constants of the place.
    Formula,
    /// A graph: the sum over its operations.
    Sum,
}

/// Times of a class over work, for all places at once.
///
/// Between two measured amounts of work time is interpolated on the straight line through them. For work within one level
/// of the memory that is exact: `c0 + work / rate` is a line. Below the first measurement its time is kept, because what
/// remains there is `c0`; beyond the last one time grows in proportion to the work, at the last rate.
pub(crate) struct Segment<'a> {
    lower: &'a [f64],
    upper: &'a [f64],
    fraction: f64,
    factor: f64,
    pub(crate) basis: Basis,
}

impl<'a> Segment<'a> {
    /// The piece of the curve for an amount of work; `None` without measurements.
    pub(crate) fn find(work: &[f64], seconds: &'a [Vec<f64>], at: f64) -> Option<Self> {
        let first = seconds.first()?;
        let last = seconds.last()?;
        let above = work.iter().position(|&w| w > at);
        Some(match above {
            Some(0) => Self { lower: first, upper: first, fraction: 0.0, factor: 1.0, basis: Basis::Below },
            Some(i) => {
                let fraction = (at - work[i - 1]) / (work[i] - work[i - 1]);
                let basis = Basis::Interpolated;
                Self { lower: &seconds[i - 1], upper: &seconds[i], fraction, factor: 1.0, basis }
            }
            None => {
                let end = work.last().copied().unwrap_or(at).max(f64::MIN_POSITIVE);
                let basis = if at > end { Basis::Beyond } else { Basis::Interpolated };
                Self { lower: last, upper: last, fraction: 0.0, factor: at.max(end) / end, basis }
            }
        })
    }

    pub(crate) fn seconds(&self, place: usize) -> f64 {
        let (lower, upper) = (self.lower.get(place), self.upper.get(place));
        let (Some(lower), Some(upper)) = (lower, upper) else { return f64::INFINITY };
        (lower + self.fraction * (upper - lower)) * self.factor
    }
}

/// What a problem costs on a place besides its operations: launch, compilation, and moving operands and result.
pub(crate) fn edges(
    index: usize,
    place: &Place,
    links: &[Option<Link>],
    problem: &Problem,
    residency: &Residency,
) -> f64 {
    let mut seconds = place.launch;
    if residency.is_cold(index) {
        seconds += place.compile;
    }
    let link = |memory: Memory| links.get(memory.index()).and_then(Option::as_ref);
    for (operand, bytes) in problem.operands().enumerate() {
        if residency.holds(place.memory, operand) {
            continue;
        }
        let source = residency.source(operand);
        if source == place.memory {
            continue;
        }
        seconds += link(source).map_or(0.0, |link| link.download(bytes));
        seconds += link(place.memory).map_or(0.0, |link| link.upload(bytes));
    }
    if !residency.result_stays() {
        seconds += link(place.memory).map_or(0.0, |link| link.download(problem.result_bytes()));
    }
    seconds
}
