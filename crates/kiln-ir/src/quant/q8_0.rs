//! Q8_0: 32 elements in 34 bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | scale `d`, f16 |
//! | 2..34 | `q`, i8 |
//!
//! `y = d q`. The quantiser takes the f16 nearest to `max |x| / 127` (among subnormals the one above) and rounds `x / d`
//! to nearest, ties to even.

use super::fit::{NOT_FINITE, clean, round, unit_bits};
use super::{Unpacked, half};

/// Elements of a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 34;

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 1> {
    let bytes: [u8; LEN] = *block.last_chunk().unwrap_or(&[0; LEN]);
    let mut q = [0; LEN];
    for i in 0..LEN {
        q[i] = bytes[i] as i8;
    }
    Unpacked { q, scales: [half([block[0], block[1]])], minima: [0.0] }
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
    let Some((x, largest)) = clean(x) else {
        block[..2].copy_from_slice(&NOT_FINITE);
        return;
    };
    let bits = unit_bits(largest / 127.0);
    let d = half(bits.to_le_bytes());
    block[..2].copy_from_slice(&bits.to_le_bytes());
    if d > 0.0 {
        for (q, x) in block[2..].iter_mut().zip(x) {
            *q = round((x / d).clamp(-127.0, 127.0)) as i8 as u8;
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
        block[..2].copy_from_slice(&[0x00, 0x38]); // 0.5
        block[2] = 3;
        block[3] = 0xfe;
        block[33] = 0x80;
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        assert_eq!((y[0], y[1], y[2], y[31]), (1.5, -1.0, 0.0, -64.0));
    }

    #[test]
    fn integers_up_to_127_are_exact() {
        let x: [f32; LEN] = std::array::from_fn(|i| (i * 8) as f32 - 121.0);
        let mut block = [0; BYTES];
        encode(&x, &mut block);
        assert_eq!(block[..4], [0x00, 0x3c, (-121i8) as u8, (-113i8) as u8]);
    }
}
