//! IQ4_XS: 256 elements in 136 bytes, eight sub-blocks of 32.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | unit of the scales `d`, f16 |
//! | 2..4 | the high two bits of the scales, those of scale `s` in bits `2 s ..` of a word |
//! | 4..8 | the low four bits of the scales, a nibble each |
//! | 8..136 | `q`: 16 bytes a sub-block, as in [Q4_0](super::q4_0) |
//!
//! `y = (d (sc - 32)) NORMAL[q]` with the numbers of [`NORMAL`], exact in f32 for a finite unit.

use super::fit::{NOT_FINITE, Normal, fit_symmetric};
use super::{NORMAL, Unpacked, half, nibbles};

/// Elements of a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 136;

/// The scale and the minimum of each group.
#[inline(always)]
pub fn scales(block: &[u8; BYTES]) -> [[f32; 8]; 2] {
    let d = half([block[0], block[1]]);
    let high = u16::from_le_bytes([block[2], block[3]]);
    let mut scales = [0.0; 8];
    for s in 0..8 {
        let code = block[4 + s / 2] >> (4 * (s % 2)) & 15 | ((high >> (2 * s) & 3) << 4) as u8;
        scales[s] = d * f32::from(code as i8 - 32);
    }
    [scales, [0.0; 8]]
}

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 8> {
    let [scales, minima] = scales(block);
    let mut q = [0; LEN];
    for (s, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let places = nibbles::unpack(nibbles::sixteen(block, 8 + 16 * s));
        for i in 0..32 {
            q[i] = (places[i] & 15) as i8;
        }
    }
    Unpacked { q, scales, minima }
}

/// The elements that a block encodes.
#[inline(always)]
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    unpack(block).through(&NORMAL).decode(out);
}

/// Quantises 256 elements.
#[inline(always)]
pub fn encode(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    *block = [0; BYTES];
    let Some(fit) = fit_symmetric::<LEN, 8, 32, Normal>(x, 32.0) else {
        block[..2].copy_from_slice(&NOT_FINITE);
        return;
    };
    block[..2].copy_from_slice(&fit.d.to_le_bytes());
    let mut high = 0;
    for (s, q) in fit.q.as_chunks::<32>().0.iter().enumerate() {
        let code = (fit.scales[s] + 32) as u8;
        high |= u16::from(code >> 4) << (2 * s);
        block[4 + s / 2] |= (code & 15) << (4 * (s % 2));
        nibbles::pack(q, &mut block[8 + 16 * s..24 + 16 * s]);
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
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
        block[2..4].copy_from_slice(&[0b10, 0b1100_0000]); // scales 0 and 7
        block[4..8].copy_from_slice(&[0x05, 0, 0, 0xf0]); // the low bits of the scales
        block[8] = 0x2f; // elements 0 and 16
        block[135] = 0x90; // elements 239 and 255
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        // Scales 37 - 32, 0 - 32 and 63 - 32.
        assert_eq!((y[0], y[1], y[16], y[32]), (2.5 * 113.0, 2.5, 2.5 * -83.0, -16.0));
        assert_eq!((y[239], y[254], y[255]), (15.5 * -127.0, 15.5, 15.5 * 13.0));
    }

    #[test]
    fn an_exactly_representable_block_is_found() {
        let x: [f32; LEN] = std::array::from_fn(|i| f32::from(NORMAL[i % 16]) * 32.0 * 0.25);
        let (mut block, mut y) = ([0; BYTES], [0.0; LEN]);
        encode(&x, &mut block);
        decode(&block, &mut y);
        assert_eq!(x, y);
    }
}
