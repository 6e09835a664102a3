//! IQ4_NL: 32 elements in 18 bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | scale `d`, f16 |
//! | 2..18 | `q`, as in [Q4_0](super::q4_0) |
//!
//! `y = d NORMAL[q]` with the numbers of [`NORMAL`], exact in f32 for a finite scale.

use super::fit::{NOT_FINITE, Normal, fit_scaled};
use super::{NORMAL, Unpacked, half, nibbles};

/// Elements of a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 18;

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 1> {
    let mut q = [0; LEN];
    let nibbles = nibbles::unpack(nibbles::sixteen(block, 2));
    for i in 0..LEN {
        q[i] = (nibbles[i] & 15) as i8;
    }
    Unpacked { q, scales: [half([block[0], block[1]])], minima: [0.0] }
}

/// The elements that a block encodes.
#[inline(always)]
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    unpack(block).through(&NORMAL).decode(out);
}

/// Quantises 32 elements.
#[inline(always)]
pub fn encode(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    *block = [0; BYTES];
    let Some(fit) = fit_scaled::<Normal>(x) else {
        block[..2].copy_from_slice(&NOT_FINITE);
        return;
    };
    block[..2].copy_from_slice(&fit.d.to_le_bytes());
    nibbles::pack(&fit.q, &mut block[2..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn layout() {
        let mut block = [0x88; BYTES];
        block[..2].copy_from_slice(&[0x00, 0x38]); // 0.5
        block[2] = 0x2f; // elements 0 and 16
        block[17] = 0x90; // elements 15 and 31
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        assert_eq!((y[0], y[1], y[15], y[16], y[31]), (56.5, 0.5, -63.5, -41.5, 6.5));
    }

    #[test]
    fn an_exactly_representable_block_is_found() {
        let x: [f32; LEN] = std::array::from_fn(|i| f32::from(NORMAL[i % 16]) * 0.25);
        let (mut block, mut y) = ([0; BYTES], [0.0; LEN]);
        encode(&x, &mut block);
        decode(&block, &mut y);
        assert_eq!(x, y);
    }
}
