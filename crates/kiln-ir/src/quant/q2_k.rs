//! Q2_K: 256 elements in 84 bytes, sixteen sub-blocks of 16.
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | a 4-bit scale `sc` in the low and a 4-bit minimum `m` in the high nibble for each sub-block |
//! | 16..80 | `q`: bits `2 r ..` of byte `32 h + l` hold element `128 h + 32 r + l` |
//! | 80..82 | unit of the scales `d`, f16 |
//! | 82..84 | unit of the minima `dmin`, f16 |
//!
//! `y = (d sc) q - (dmin m)`. Both products are exact in f32 for finite units; only the difference rounds.

use super::fit::{NOT_FINITE, fit_affine};
use super::{Unpacked, half};

/// Elements of a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 84;

/// The scale and the minimum of each group.
#[inline(always)]
pub fn scales(block: &[u8; BYTES]) -> [[f32; 16]; 2] {
    let (d, dmin) = (half([block[80], block[81]]), half([block[82], block[83]]));
    let (mut scales, mut minima) = ([0.0; 16], [0.0; 16]);
    for s in 0..16 {
        scales[s] = d * f32::from(block[s] & 15);
        minima[s] = dmin * f32::from(block[s] >> 4);
    }
    [scales, minima]
}

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 16> {
    let [scales, minima] = scales(block);
    let mut q = [0; LEN];
    for (row, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let bytes: &[u8; 32] = block[16 + 32 * (row / 4)..].first_chunk().unwrap_or(&[0; 32]);
        for l in 0..32 {
            q[l] = (bytes[l] >> (2 * (row % 4)) & 3) as i8;
        }
    }
    Unpacked { q, scales, minima }
}

/// The elements that a block encodes.
#[inline(always)]
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    unpack(block).decode(out);
}

/// Quantises 256 elements.
#[inline(always)]
pub fn encode(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    *block = [0; BYTES];
    let Some(fit) = fit_affine::<LEN, 16, 16>(x, 3.0, 15.0) else {
        block[80..82].copy_from_slice(&NOT_FINITE);
        return;
    };
    for s in 0..16 {
        block[s] = fit.scales[s] | fit.minima[s] << 4;
    }
    for row in 0..8 {
        for l in 0..32 {
            block[16 + 32 * (row / 4) + l] |= fit.q[32 * row + l] << (2 * (row % 4));
        }
    }
    block[80..82].copy_from_slice(&fit.d.to_le_bytes());
    block[82..].copy_from_slice(&fit.dmin.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn layout() {
        let mut block = [0; BYTES];
        block[80..].copy_from_slice(&[0x00, 0x40, 0x00, 0x3c]); // d = 2, dmin = 1
        block[0] = 0x23; // elements 0..16: scale 3, minimum 2
        block[5] = 0x41; // elements 80..96
        block[15] = 0xff; // elements 240..256
        block[16] = 0b1110; // elements 0, 32, 64 and 96
        block[16 + 17] = 0b11_0000; // element 64 + 17
        block[16 + 63] = 0b1100_0000; // element 255
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        assert_eq!((y[0], y[1], y[32], y[81], y[80]), (10.0, -2.0, 0.0, 2.0, -4.0));
        assert_eq!((y[255], y[254]), (75.0, -15.0));
    }

    #[test]
    fn an_exactly_representable_block_is_found() {
        let x: [f32; LEN] = std::array::from_fn(|i| (i % 4) as f32 * 15.0 * 0.25);
        let (mut block, mut y) = ([0; BYTES], [0.0; LEN]);
        encode(&x, &mut block);
        decode(&block, &mut y);
        assert_eq!(x, y);
    }
}
