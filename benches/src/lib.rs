//! The measuring method: kiln beside its peers and beside the limits of the machine.
//!
//! Design choices:
//!
//! - A figure is a ratio of things that were measured in turns, in one process, on the same random data. Absolute
//!   rates of a shared machine move by a factor of two from second to second; ratios of interleaved samples do not.
//! - Every sample is bracketed by a short loop of multiply-adds. Where that loop ran slow, or where the operating
//!   system took the core away, the sample says something about the neighbours and is dropped. See [`measure`].
//! - The results of each contender are compared with those of kiln before it is timed.
//! - For a missing peer a line with the reason is printed.
//! - Only the benches depend on the peers; users of this library do not build them.
#![forbid(unsafe_code)]

mod array;
pub mod ceilings;
pub mod measure;
pub mod suite;

pub use array::Array;
pub use measure::{Effort, Sampler, Timing};
pub use suite::{Contender, Suite, Work};

/// `n` values uniform in `lo..hi`, the same for the same seed.
pub fn random(n: usize, lo: f32, hi: f32, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    (0..8).for_each(|_| _ = next());
    (0..n).map(|_| lo + next() * (hi - lo)).collect()
}
