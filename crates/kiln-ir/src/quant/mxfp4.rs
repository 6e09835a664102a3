//! MXFP4: 32 elements in 17 bytes, a microscaling format of the Open Compute Project.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | scale `e`, E8M0: a power of two |
//! | 1..17 | `q`, as in [Q4_0](super::q4_0) |
//!
//! `y = 2^(e - 128) DOUBLED[q]` with the numbers of [`DOUBLED`], twice those of E2M1. The product is exact but
//! for overflow. The exponent 255 is NaN, as the standard says; ggml takes it for 127 more than that of 128.
//!
//! The quantiser takes, of the power of two that holds the largest magnitude and the one below it, the one with the lesser
//! error; a number halfway between two goes to the one nearer to zero. Blocks below 2^-96 become zeros, and no scale is above
//! 2^124, with which everything is finite.

use super::fit::sum;
use super::{DOUBLED, Unpacked, nibbles};

/// Elements of a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 17;

/// The scale byte of a block with values that are not finite.
const NOT_FINITE: u8 = 255;
/// The bits of 2^-96.
const LEAST: u32 = (127 - 96) << 23;
/// The largest exponent that is written.
const MOST: u32 = 252;
/// The thresholds from which a number rounds to the next magnitude of the grid.
const MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// The number that an exponent encodes, in units of [`DOUBLED`].
#[inline(always)]
pub fn scale(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        255 => 0x7fc0_0000,
        _ => (e - 1) << 23,
    })
}

/// The block in the general form.
#[inline(always)]
pub fn unpack(block: &[u8; BYTES]) -> Unpacked<LEN, 1> {
    let mut q = [0; LEN];
    let places = nibbles::unpack(nibbles::sixteen(block, 1));
    for i in 0..LEN {
        q[i] = (places[i] & 15) as i8;
    }
    Unpacked { q, scales: [scale(block[0])], minima: [0.0] }
}

/// The elements that a block encodes.
#[inline(always)]
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    unpack(block).through(&DOUBLED).decode(out);
}

/// The nearest numbers of the grid.
#[inline(always)]
fn on_grid(y: &[f32; LEN]) -> [f32; LEN] {
    let mut q = [0.0; LEN];
    for i in 0..LEN {
        let mut value = 0.0;
        for (place, middle) in MIDDLES.into_iter().enumerate() {
            value = if y[i].abs() > middle { f32::from(DOUBLED[place + 1]) } else { value };
        }
        q[i] = if y[i] < 0.0 { -value } else { value };
    }
    q
}

#[inline(always)]
fn error(y: &[f32; LEN], q: &[f32; LEN]) -> f32 {
    let mut squares = [0.0; LEN];
    for i in 0..LEN {
        let off = y[i] - q[i];
        squares[i] = off * off;
    }
    sum(squares)
}

/// Quantises 32 elements.
#[inline(always)]
pub fn encode(x: &[f32; LEN], block: &mut [u8; BYTES]) {
    *block = [0; BYTES];
    let top = x.iter().fold(0, |top: u32, v| top.max(v.to_bits() & 0x7fff_ffff));
    if top >= f32::INFINITY.to_bits() {
        block[0] = NOT_FINITE;
        return;
    }
    if top < LEAST {
        return;
    }
    // Divided by the lower scale, the largest magnitude is between 8 and 16. The largest number of the grid is 12.
    let lower = (top >> 23) - 2;
    let inverse = f32::from_bits((254 - lower) << 23);
    let (mut y, mut half) = ([0.0; LEN], [0.0; LEN]);
    for i in 0..LEN {
        let v = x[i] * inverse * 2.0;
        // Numbers far below the grid become zero, also on machines that flush subnormal numbers.
        y[i] = if v.abs() < f32::from_bits((127 - 20) << 23) { 0.0 } else { v };
        half[i] = y[i] * 0.5;
    }
    let (fine, coarse) = (on_grid(&y), on_grid(&half));
    let is_coarse = lower < MOST && error(&half, &coarse) * 4.0 < error(&y, &fine);
    let numbers = if is_coarse { coarse } else { fine };
    block[0] = (lower + u32::from(is_coarse)) as u8;
    let mut q = [0u8; LEN];
    for i in 0..LEN {
        let mut place = 0;
        for middle in MIDDLES {
            place += u8::from(numbers[i].abs() > middle);
        }
        q[i] = if numbers[i] < 0.0 { place + 8 } else { place };
    }
    nibbles::pack(&q, &mut block[1..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn layout() {
        let mut block = [0; BYTES];
        block[0] = 127; // 0.5
        block[1] = 0x2f; // elements 0 and 16
        block[16] = 0x90; // elements 15 and 31
        let mut y = [9.0; LEN];
        decode(&block, &mut y);
        assert_eq!((y[0], y[1], y[15], y[16], y[31]), (-6.0, 0.0, 0.0, 1.0, -0.5));
    }

    #[test]
    fn scales_reach_from_subnormal_numbers_to_nan() {
        assert_eq!([0, 1, 2, 128, 254].map(scale), [-128, -127, -126, 0, 126].map(|e| f64::powi(2.0, e) as f32));
        assert!(scale(255).is_nan());
    }

    #[test]
    fn an_exactly_representable_block_is_found() {
        for unit in [f32::powi(2.0, -60), 0.25, 1.0, f32::powi(2.0, 124)] {
            let x: [f32; LEN] = std::array::from_fn(|i| f32::from(DOUBLED[i % 16]) * unit);
            let (mut block, mut y) = ([0; BYTES], [0.0; LEN]);
            encode(&x, &mut block);
            decode(&block, &mut y);
            assert_eq!(x, y);
        }
    }

    #[test]
    fn the_scale_with_the_lesser_error_is_taken() {
        let code = |largest: f32| {
            let (mut x, mut block) = ([0.0; LEN], [0; BYTES]);
            x[5] = largest;
            encode(&x, &mut block);
            (block[0], block[1 + 5] & 15)
        };
        // 12 is the largest number of the grid in units of 1, and 14 is nearer to 8 in units of 2.
        assert_eq!([code(12.0), code(13.0), code(15.5)], [(128, 7), (128, 7), (129, 6)]);
        assert_eq!(code(f32::MAX), (252, 7));
    }
}
