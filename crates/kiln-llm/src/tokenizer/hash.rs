//! Hashes for the tables of vocabularies.

use std::hash::{BuildHasher, RandomState};

/// Multiplies and folds words of 8 bytes, several times faster than the hash of the standard library on short texts.
///
/// The seed is random, so that a file cannot contain a vocabulary whose texts all collide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hash {
    seed: u64,
}

/// An odd constant with as many ones as zeros: the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hash {
    pub(super) fn new() -> Self {
        Self { seed: RandomState::new().hash_one(0u64) }
    }

    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    }

    pub(super) fn of(&self, bytes: &[u8]) -> u64 {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut state = self.seed ^ bytes.len() as u64;
        for word in words {
            state = Self::fold(state ^ u64::from_le_bytes(*word), FACTOR ^ self.seed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            state = Self::fold(state ^ u64::from_le_bytes(last), FACTOR ^ self.seed);
        }
        Self::fold(state ^ FACTOR, FACTOR)
    }

    pub(super) fn of_number(&self, x: u64) -> u64 {
        Self::fold(x ^ self.seed, FACTOR ^ self.seed)
    }
}

/// A number of slots that keeps a table at most two thirds full.
pub(super) fn slots(entries: usize) -> usize {
    (entries + entries / 2 + 1).next_power_of_two()
}
