//! Random elements, the same ones for every contender; the benches of CUDA include this file.

/// `count` values uniform in `-1..1`.
pub(crate) fn random(count: usize, seed: u64) -> Vec<f32> {
    // xorshift64
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..8).for_each(|_| _ = next());
    (0..count).map(|_| next()).collect()
}
