//! Q6_K: 256 elements in 210 bytes, sixteen sub-blocks of 16.
//!
//! | bytes | what |
//! |---|---|
//! | 0..128 | low four bits of `q` |
//! | 128..192 | high two bits of `q` |
//! | 192..208 | scales `sc`, i8 |
//! | 208..210 | unit of the scales `d`, f16 |
//!
//! With half `h` in 0..2, quarter `r` in 0..4 and `l` in 0..32, element `128 h + 32 r + l` has its low bits in byte
//! `64 h + 32 (r mod 2) + l` (low nibble for r < 2, high above) and its high bits in bits `2 r ..` of byte `32 h + l`.
//!
//! `y = (d sc) (q - 32)`, exact in f32 for a finite unit.

use super::fit::{NOT_FINITE, Whole, fit_symmetric};
use super::{Unpacked, half};

/// Elements of a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 210;

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 16> {
    let d = half([block[208], block[209]]);
    let (low, rest) = block.split_at(128);
    let (high, codes) = rest.split_at(64);
    let mut q = [0; LEN];
    for (half, q) in q.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        // Copies: the writes cannot alias them, so the compiler can vectorise the loop.
        let even: [u8; 32] = *low[64 * half..].first_chunk().unwrap_or(&[0; 32]);
        let odd: [u8; 32] = *low[64 * half + 32..].first_chunk().unwrap_or(&[0; 32]);
        let high: [u8; 32] = *high[32 * half..].first_chunk().unwrap_or(&[0; 32]);
        for l in 0..32 {
            q[l] = (even[l] & 15 | (high[l] & 3) << 4) as i8 - 32;
            q[32 + l] = (odd[l] & 15 | (high[l] >> 2 & 3) << 4) as i8 - 32;
            q[64 + l] = (even[l] >> 4 | (high[l] >> 4 & 3) << 4) as i8 - 32;
            q[96 + l] = (odd[l] >> 4 | (high[l] >> 6) << 4) as i8 - 32;
        }
    }
    let codes: &[u8; 16] = codes.first_chunk().unwrap_or(&[0; 16]);
    let mut scales = [0.0; 16];
    for s in 0..16 {
        scales[s] = d * f32::from(codes[s] as i8);
    }
    Unpacked { q, scales, minima: [0.0; 16] }
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
    let Some(fit) = fit_symmetric::<LEN, 16, 16, Whole<32>>(x, 128.0) else {
        block[208..].copy_from_slice(&NOT_FINITE);
        return;
    };
    for (byte, scale) in block[192..208].iter_mut().zip(fit.scales) {
        *byte = scale as u8;
    }
    block[208..].copy_from_slice(&fit.d.to_le_bytes());
    for h in 0..2 {
        for r in 0..4 {
            for l in 0..32 {
                let q = fit.q[128 * h + 32 * r + l];
                block[64 * h + 32 * (r % 2) + l] |= (q & 15) << (4 * (r / 2));
                block[128 + 32 * h + l] |= (q >> 4) << (2 * r);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn layout() {
        let mut block = [0; BYTES];
        block[208..].copy_from_slice(&[0x00, 0x38]); // 0.5
        for j in 0..16 {
            block[192 + j] = (2 * j as i8 - 16) as u8;
        }
        block[0] = 0x5a; // elements 0 and 64
        block[128] = 0b0011_0010; // elements 0 and 64
        block[64 + 32 + 31] = 0xf0; // elements 128 + 32 + 31 and 128 + 96 + 31
        block[128 + 32 + 31] = 0b1000_0100; // the same two
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        assert_eq!((y[0], y[1], y[64], y[65]), (-8.0 * 10.0, 8.0 * 32.0, -4.0 * 21.0, 4.0 * 32.0));
        assert_eq!((y[191], y[190], y[255], y[254]), (3.0 * -16.0, 3.0 * -32.0, 7.0 * 15.0, 7.0 * -32.0));
    }

    #[test]
    fn an_exactly_representable_block_is_found() {
        let x: [f32; LEN] = std::array::from_fn(|i| (if i % 16 == 0 { -32.0 } else { (i % 16) as f32 }) * 32.0);
        let (mut block, mut y) = ([0; BYTES], [0.0; LEN]);
        encode(&x, &mut block);
        decode(&block, &mut y);
        assert_eq!(x, y);
    }
}
