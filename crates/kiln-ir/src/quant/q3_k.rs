//! Q3_K: 256 elements in 110 bytes, sixteen sub-blocks of 16.
//!
//! | bytes | what |
//! |---|---|
//! | 0..32 | third bits: bit `4 h + r` of byte `l` belongs to element `128 h + 32 r + l` |
//! | 32..96 | the low two bits: bits `2 r ..` of byte `32 h + l` hold element `128 h + 32 r + l` |
//! | 96..108 | 6-bit scales plus 32: the low four bits of scale `s` in byte `s mod 8`, in the upper nibble from scale 8 on, the high two in bits `2 (s / 4) ..` of byte `8 + s mod 4` |
//! | 108..110 | unit of the scales `d`, f16 |
//!
//! `y = (d sc) (q - 4)`, exact in f32 for a finite unit.

use super::fit::{NOT_FINITE, Whole, fit_symmetric};
use super::{Unpacked, half};

/// Elements of a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 110;

/// The scale and the minimum of each group.
#[inline(always)]
pub fn scales(block: &[u8; BYTES]) -> [[f32; 16]; 2] {
    let d = half([block[108], block[109]]);
    // Four codes at a time, one per byte.
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (a, b, high) = (word(96), word(100), word(104));
    let lows = [a, b, a >> 4, b >> 4];
    let mut scales = [0.0; 16];
    for i in 0..4 {
        let codes = (lows[i] & 0x0f0f_0f0f) | ((high >> (2 * i)) & 0x0303_0303) << 4;
        for (j, code) in codes.to_le_bytes().into_iter().enumerate() {
            scales[4 * i + j] = d * f32::from(code as i8 - 32);
        }
    }
    [scales, [0.0; 16]]
}

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 16> {
    let [scales, minima] = scales(block);
    let third: [u8; 32] = *block.first_chunk().unwrap_or(&[0; 32]);
    let mut q = [0; LEN];
    for (row, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // A copy: the writes cannot alias it, so the compiler can vectorise the loop.
        let bytes: [u8; 32] = *block[32 + 32 * (row / 4)..].first_chunk().unwrap_or(&[0; 32]);
        for l in 0..32 {
            q[l] = (bytes[l] >> (2 * (row % 4)) & 3 | (third[l] >> row & 1) << 2) as i8 - 4;
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
    let Some(fit) = fit_symmetric::<LEN, 16, 16, Whole<4>>(x, 32.0) else {
        block[108..].copy_from_slice(&NOT_FINITE);
        return;
    };
    for row in 0..8 {
        for l in 0..32 {
            let q = fit.q[32 * row + l];
            block[l] |= (q >> 2) << row;
            block[32 + 32 * (row / 4) + l] |= (q & 3) << (2 * (row % 4));
        }
    }
    for s in 0..16 {
        let code = (fit.scales[s] + 32) as u8;
        block[96 + s % 8] |= (code & 15) << (4 * (s / 8));
        block[104 + s % 4] |= (code >> 4) << (2 * (s / 4));
    }
    block[108..].copy_from_slice(&fit.d.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn layout() {
        let mut block = [0; BYTES];
        block[108..].copy_from_slice(&[0x00, 0x38]); // 0.5
        block[96] = 0x52; // scales 0 and 8: 2 and 5
        block[104] = 0b1000_0011; // the upper bits of these two, then of scales 4 and 12, whose low bits are clear
        block[0] = 0b1_0001; // elements 0 and 128
        block[32] = 0b0111; // elements 0 and 32
        block[64] = 0b10; // element 128
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        // Scales 50 - 32, 5 - 32 and, with all bits clear, -32.
        assert_eq!((y[0], y[1], y[32], y[33]), (9.0 * 3.0, 9.0 * -4.0, -16.0 * -3.0, -16.0 * -4.0));
        assert_eq!((y[128], y[129], y[192], y[255]), (-13.5 * 2.0, -13.5 * -4.0, 0.0, 64.0));
    }

    #[test]
    fn an_exactly_representable_block_is_found() {
        let x: [f32; LEN] = std::array::from_fn(|i| (if i % 16 == 0 { -4.0 } else { (i % 4) as f32 }) * 32.0);
        let (mut block, mut y) = ([0; BYTES], [0.0; LEN]);
        encode(&x, &mut block);
        decode(&block, &mut y);
        assert_eq!(x, y);
    }
}
