//! Placements of operations, and the memories that they work in.

use std::fmt;

use kiln_ir::op::Cost;

use crate::json::{object, transparent};
use crate::selector::Backend;

/// The greatest number of places of a profile.
pub const MAX_PLACES: usize = 16;

/// The greatest number of memories of a profile, the host among them.
pub const MAX_MEMORIES: usize = 8;

/// A memory that operands can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Memory(u8);

transparent!(Memory);

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

/// The formula for work that was not measured: `overhead + max(bytes / bandwidth(level), flops / peak)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Roofline {
    /// Seconds that any operation takes.
    pub overhead: f64,
    /// Capacity in bytes and bandwidth in bytes per second of each level of the memory, smallest first. What fits no level
    /// moves at the bandwidth of the last. A profile keeps capacities up to 2⁵³ - 1.
    pub levels: Vec<(u64, f64)>,
    /// Operations per second.
    pub peak: f64,
}

object!(Roofline { overhead, levels, peak });

impl Roofline {
    /// Cautious constants for a CPU without measurements: `lanes` f32 a vector, `threads` cores.
    pub fn assumed(lanes: usize, threads: usize) -> Self {
        let threads = threads.max(1) as f64;
        // A fork and a join cost microseconds, and the threads share the memory beyond their own caches.
        let (overhead, shared) = if threads > 1.0 { (5e-6, threads.min(4.0) * 0.9) } else { (50e-9, 1.0) };
        let own = if threads > 1.0 { threads * 0.9 } else { 1.0 };
        let lanes = lanes.max(1) as f64;
        // Two vector loads per cycle at 3 GHz from the nearest cache, half as many from the next.
        let near = 3e9 * 4.0 * lanes;
        Self {
            overhead,
            levels: vec![
                (32 << 10, near * own),
                (1 << 20, (near * 0.5).min(80e9) * own),
                (16 << 20, near.min(30e9) * own),
                (u64::MAX, near.min(16e9) * shared),
            ],
            // Two operations per instruction, one and a half instructions per cycle.
            peak: 3e9 * 3.0 * lanes * own,
        }
    }

    /// Bytes per second for work that touches this many bytes.
    pub fn bandwidth(&self, bytes: u64) -> f64 {
        let level = self.levels.iter().find(|(capacity, _)| bytes <= *capacity).or(self.levels.last());
        level.map_or(f64::INFINITY, |&(_, bandwidth)| bandwidth)
    }

    pub(crate) fn seconds(&self, cost: &Cost) -> f64 {
        let bytes = cost.bytes();
        self.overhead + (bytes as f64 / self.bandwidth(bytes)).max(cost.flops as f64 / self.peak)
    }
}

/// A placement: a device, or the CPU with an instruction set and a number of threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// The name that users see: `avx2 x4`.
    pub name: String,
    /// The backend.
    pub backend: Backend,
    /// Threads of the CPU that it keeps busy.
    pub threads: usize,
    /// The memory that its operands have to be in.
    pub memory: Memory,
    /// Seconds to start work and to learn that it is done, once for each operation or graph.
    pub launch: f64,
    /// Seconds that a step of a graph takes in addition to its operation: the time to start it after others.
    pub queued: f64,
    /// Seconds to compile the code of a problem that it has not run before.
    pub compile: f64,
    /// Its speed where nothing was measured.
    pub roofline: Roofline,
}

object!(Place { name, backend, threads, memory, launch, queued, compile, roofline });

impl Place {
    /// A place on the CPU without measurements.
    pub fn cpu(name: impl Into<String>, backend: Backend, lanes: usize, threads: usize) -> Self {
        Self {
            name: name.into(),
            backend,
            threads: threads.max(1),
            memory: Memory::HOST,
            launch: 0.0,
            queued: 0.0,
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
