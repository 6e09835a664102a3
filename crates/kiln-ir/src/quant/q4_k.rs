//! Q4_K: 256 elements in 144 bytes, eight sub-blocks of 32.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | unit of the scales `d`, f16 |
//! | 2..4 | unit of the minima `dmin`, f16 |
//! | 4..16 | 6-bit scales `sc` and minima `m` ([`pack_scales`]) |
//! | 16..144 | `q`: byte `32 c + l` holds element `64 c + l` in its low and element `64 c + 32 + l` in its high nibble |
//!
//! `y = (d sc) q - (dmin m)`. Both products are exact in f32 for finite units; only the difference rounds.

use super::fit::{NOT_FINITE, fit_affine};
use super::scales::coded;
use super::{Unpacked, pack_scales};

/// Elements of a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 144;

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 8> {
    let (header, bytes) = block.split_at(16);
    let (pairs, _) = bytes.as_chunks::<32>();
    let mut q = [0; LEN];
    for (row, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // A copy: the writes cannot alias it, so the compiler can vectorise the loop.
        let pairs = pairs[row / 2];
        for l in 0..32 {
            q[l] = (pairs[l] >> (row % 2 * 4) & 15) as i8;
        }
    }
    let [scales, minima] = coded(header);
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
    let Some(fit) = fit_affine::<LEN, 8, 32>(x, 15.0, 63.0) else {
        *block = [0; BYTES];
        block[..2].copy_from_slice(&NOT_FINITE);
        return;
    };
    block[..2].copy_from_slice(&fit.d.to_le_bytes());
    block[2..4].copy_from_slice(&fit.dmin.to_le_bytes());
    block[4..16].copy_from_slice(&pack_scales(&fit.scales, &fit.minima));
    for c in 0..4 {
        for l in 0..32 {
            block[16 + 32 * c + l] = fit.q[64 * c + l] | fit.q[64 * c + 32 + l] << 4;
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
        block[..4].copy_from_slice(&[0x00, 0x40, 0x00, 0x3c]); // d = 2, dmin = 1
        block[4..16].copy_from_slice(&pack_scales(&[1, 2, 3, 4, 5, 6, 7, 63], &[0, 1, 2, 3, 4, 5, 6, 40]));
        block[16] = 0x2f; // elements 0 and 32
        block[16 + 31] = 0x10; // elements 31 and 63
        block[16 + 32 + 5] = 0x43; // elements 69 and 101
        block[16 + 96 + 31] = 0xf1; // elements 223 and 255
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        assert_eq!((y[0], y[1], y[31]), (30.0, 0.0, 0.0));
        assert_eq!((y[32], y[33], y[63]), (7.0, -1.0, 3.0));
        assert_eq!((y[64], y[69], y[101], y[96]), (-2.0, 16.0, 29.0, -3.0));
        assert_eq!((y[223], y[222], y[255], y[254]), (8.0, -6.0, 1850.0, -40.0));
    }

    #[test]
    fn an_exactly_representable_block_is_found() {
        let x: [f32; LEN] = std::array::from_fn(|i| (i % 16) as f32 * 63.0 * 0.25);
        let (mut block, mut y) = ([0; BYTES], [0.0; LEN]);
        encode(&x, &mut block);
        decode(&block, &mut y);
        assert_eq!(x, y);
    }
}
