//! Q5_1: 32 elements in 24 bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | scale `d`, f16 |
//! | 2..4 | offset `m`, f16 |
//! | 4..8 | fifth bits, as in [Q5_0](super::q5_0) |
//! | 8..24 | the low four bits, as in [Q4_0](super::q4_0) |
//!
//! `y = d q + m`. The product is exact in f32 for a finite scale; only the sum rounds.

use super::fit::{NOT_FINITE, fit_shifted};
use super::{Unpacked, half, nibbles};

/// Elements of a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 24;

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 1> {
    let mut q = [0; LEN];
    let nibbles = nibbles::unpack(nibbles::sixteen(block, 8));
    let fifth = nibbles::unpack_fifth([block[4], block[5], block[6], block[7]]);
    for i in 0..LEN {
        q[i] = (nibbles[i] | fifth[i]) as i8;
    }
    Unpacked { q, scales: [half([block[0], block[1]])], minima: [-half([block[2], block[3]])] }
}

/// The elements that a block encodes.
#[inline(always)]
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    unpack(block).decode(out);
}

/// Quantises 32 elements.
#[inline(always)]
pub fn encode(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    *block = [0; BYTES];
    let Some(fit) = fit_shifted(x, 31.0) else {
        block[..2].copy_from_slice(&NOT_FINITE);
        return;
    };
    block[..2].copy_from_slice(&fit.d.to_le_bytes());
    block[2..4].copy_from_slice(&fit.m.to_le_bytes());
    block[4..8].copy_from_slice(&nibbles::pack_fifth(&fit.q));
    nibbles::pack(&fit.q, &mut block[8..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn layout() {
        let mut block = [0; BYTES];
        block[..4].copy_from_slice(&[0x00, 0x38, 0x00, 0xc0]); // d = 0.5, m = -2
        block[4..8].copy_from_slice(&0x8000_8001u32.to_le_bytes()); // elements 0, 15 and 31
        block[8] = 0x2f; // elements 0 and 16
        block[23] = 0x90; // elements 15 and 31
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        assert_eq!((y[0], y[1], y[15], y[16], y[31]), (13.5, -2.0, 6.0, -1.0, 10.5));
    }

    #[test]
    fn an_exactly_representable_block_is_found() {
        let x: [f32; LEN] = std::array::from_fn(|i| i as f32 * 0.25 + 3.0);
        let (mut block, mut y) = ([0; BYTES], [0.0; LEN]);
        encode(&x, &mut block);
        decode(&block, &mut y);
        assert_eq!(x, y);
    }
}
