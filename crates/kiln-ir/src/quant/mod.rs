//! Quantised block formats with the layouts of GGUF files.
//!
//! Each format has a file with the layout, [`QuantFormat::decode`] (the exact meaning of the bytes) and
//! [`QuantFormat::encode`] (the quantiser). Both are plain f32 arithmetic in a fixed order, multiply then add, without
//! a branch that depends on the machine: compiled for any instruction set they give the same bits, which is what makes
//! the bytes of a quantised tensor a contract.

mod fit;
pub mod q4_k;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
mod scales;

pub use scales::{pack_scales, unpack_scales};

use crate::{Error, Result};

/// A quantised format: blocks of a fixed number of elements along the last dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuantFormat {
    /// 32 elements in 34 bytes: one f16 scale, 8-bit integers.
    Q8_0,
    /// 256 elements in 144 bytes: 8 sub-blocks with 6-bit scales and minima, 4-bit integers.
    Q4K,
    /// 256 elements in 176 bytes: as [`QuantFormat::Q4K`] with a fifth bit plane.
    Q5K,
    /// 256 elements in 210 bytes: 16 sub-blocks with 8-bit scales, 6-bit integers.
    Q6K,
}

/// Runs `$body` with `$module` bound to the module of a format.
macro_rules! for_format {
    ($format:expr, $module:ident => $body:expr) => {
        match $format {
            QuantFormat::Q8_0 => {
                use q8_0 as $module;
                $body
            }
            QuantFormat::Q4K => {
                use q4_k as $module;
                $body
            }
            QuantFormat::Q5K => {
                use q5_k as $module;
                $body
            }
            QuantFormat::Q6K => {
                use q6_k as $module;
                $body
            }
        }
    };
}

impl QuantFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K];

    /// The name used by GGUF tools.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_K",
            Self::Q5K => "q5_K",
            Self::Q6K => "q6_K",
        }
    }

    /// Elements in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::Q8_0 => q8_0::LEN,
            Self::Q4K => q4_k::LEN,
            Self::Q5K => q5_k::LEN,
            Self::Q6K => q6_k::LEN,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q8_0 => q8_0::BYTES,
            Self::Q4K => q4_k::BYTES,
            Self::Q5K => q5_k::BYTES,
            Self::Q6K => q6_k::BYTES,
        }
    }

    /// Bytes of `n` elements.
    ///
    /// # Errors
    /// [`Error::Format`] when they are not whole blocks, [`Error::Overflow`] when the bytes cannot be addressed.
    pub fn bytes(self, n: usize) -> Result<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return Err(Error::Format {
                format: self.name(),
                reason: format!("{n} elements are not whole blocks of {}", self.block_len()),
            });
        }
        let bytes = (n / self.block_len()).checked_mul(self.block_bytes()).filter(|&b| b <= isize::MAX as usize);
        bytes.ok_or_else(|| Error::Overflow { what: "quantised blocks", extents: vec![n] })
    }

    fn check(self, elements: usize, found: usize) -> Result<()> {
        let expected = self.bytes(elements)?;
        if expected == found {
            return Ok(());
        }
        Err(Error::Length { op: "quantised blocks", operand: "bytes", expected, found })
    }

    /// The elements that the blocks stand for. Every pattern of bytes has a meaning: a scale that is NaN or infinite
    /// gives what IEEE 754 makes of the products and the difference.
    ///
    /// It is inlined into its caller, so that a caller compiled for an instruction set gets it in that.
    ///
    /// # Errors
    /// [`Error::Format`] when `out` is not whole blocks, [`Error::Length`] when the blocks do not fill it.
    #[inline(always)]
    pub fn decode(self, blocks: &[u8], out: &mut [f32]) -> Result<()> {
        self.check(out.len(), blocks.len())?;
        for_format!(self, format => {
            let (blocks, _) = blocks.as_chunks::<{ format::BYTES }>();
            let (out, _) = out.as_chunks_mut::<{ format::LEN }>();
            for (block, out) in blocks.iter().zip(out) {
                format::decode(block, out);
            }
        });
        Ok(())
    }

    /// Quantises elements into blocks, deterministically: the same bytes on every machine.
    ///
    /// A block with a NaN or an infinity decodes to NaN throughout. Magnitudes beyond the format take its largest.
    ///
    /// # Errors
    /// As [`QuantFormat::decode`].
    #[inline(always)]
    pub fn encode(self, x: &[f32], blocks: &mut [u8]) -> Result<()> {
        self.check(x.len(), blocks.len())?;
        for_format!(self, format => {
            let (x, _) = x.as_chunks::<{ format::LEN }>();
            let (blocks, _) = blocks.as_chunks_mut::<{ format::BYTES }>();
            for (x, block) in x.iter().zip(blocks) {
                format::encode(x, block);
            }
        });
        Ok(())
    }
}

/// The f32 of the two bytes of a little-endian f16.
#[inline(always)]
pub fn half(bytes: [u8; 2]) -> f32 {
    let h = u32::from(u16::from_le_bytes(bytes));
    let sign = (h & 0x8000) << 16;
    let magnitude = (h & 0x7fff) << 13;
    // Rebiases the exponent. Subnormals get one binade more, which the subtraction takes away again: no operand is a
    // subnormal f32, because those are slow on many machines and scales often are subnormal f16.
    let normal = magnitude + (112 << 23);
    let subnormal = (f32::from_bits(magnitude + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let bits = match h & 0x7c00 {
        0 => subnormal,
        0x7c00 => magnitude + (224 << 23),
        _ => normal,
    };
    f32::from_bits(bits | sign)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Bell-shaped elements, as weights are: the sum of four bytes of a xorshift generator.
    fn elements(seed: u64, n: usize, scale: f32) -> Vec<f32> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[..4].iter().map(|&b| f32::from(b) / 255.0).sum::<f32>() - 2.0
        };
        (0..n).map(|_| next() * scale).collect()
    }

    fn round_trip(format: QuantFormat, x: &[f32]) -> Vec<f32> {
        let mut blocks = vec![0xa5; format.bytes(x.len()).unwrap()];
        format.encode(x, &mut blocks).unwrap();
        let mut y = vec![0.0; x.len()];
        format.decode(&blocks, &mut y).unwrap();
        y
    }

    #[test]
    fn half_agrees_with_the_crate_for_every_pattern() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half(bits.to_le_bytes()), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn bytes_of_a_rule_decode_as_the_reference_of_gguf_says() {
        // Computed once by the numpy dequantisers of the Python package gguf: FNV-1a over the bits of the results, and
        // the bits of the first, the middle and the last.
        for (format, hash, bits) in [
            (QuantFormat::Q8_0, 0x2441_d45a_348f_fc4d, [0x40fc_bd00, 0xc0ef_f100, 0xbf7f_f000]),
            (QuantFormat::Q4K, 0x0bf9_aa5b_d4d1_c9b5, [0x4198_bc40, 0x426f_2380, 0xbf1a_2000]),
            (QuantFormat::Q5K, 0x1e01_8f8d_3f33_50cc, [0x4244_56a0, 0x41a1_8e00, 0xbfe6_a000]),
            (QuantFormat::Q6K, 0x539e_0e01_cd7f_1ff3u64, [0xc217_29c0, 0x429e_5c80, 0x42a9_28a0u32]),
        ] {
            let (len, bytes) = (format.block_len(), format.block_bytes());
            let mut block: Vec<u8> = (0..bytes).map(|i| (i * 37 + 11 * (i / 7) + 5) as u8).collect();
            let (unit, unit_min) = ([0x66, 0x2e], [0xcd, 0x30]);
            match format {
                QuantFormat::Q8_0 => block[..2].copy_from_slice(&unit),
                QuantFormat::Q6K => block[208..].copy_from_slice(&unit),
                QuantFormat::Q4K | QuantFormat::Q5K => block[..4].copy_from_slice(&[unit, unit_min].concat()),
            }
            let mut y = vec![0.0f32; len];
            format.decode(&block, &mut y).unwrap();
            let found = y
                .iter()
                .flat_map(|v| v.to_bits().to_le_bytes())
                .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
            assert_eq!([y[0], y[len / 2], y[len - 1]].map(f32::to_bits), bits, "{}", format.name());
            assert_eq!(found, hash, "{}", format.name());
        }
    }

    #[test]
    fn lengths_are_checked() {
        for format in QuantFormat::ALL {
            let (len, bytes) = (format.block_len(), format.block_bytes());
            assert!(matches!(format.decode(&vec![0; bytes], &mut vec![0.0; len - 1]), Err(Error::Format { .. })));
            assert!(matches!(format.decode(&vec![0; bytes - 1], &mut vec![0.0; len]), Err(Error::Length { .. })));
            assert!(matches!(format.encode(&vec![0.0; 2 * len], &mut vec![0; bytes]), Err(Error::Length { .. })));
            assert!(format.decode(&[], &mut []).is_ok());
            assert!(
                matches!(format.bytes(usize::MAX / len * len), Err(Error::Overflow { .. }))
                    || format.bytes(len) == Ok(bytes)
            );
        }
    }

    #[test]
    fn relative_error_of_bell_shaped_weights_is_that_of_the_bits() {
        // The error of n bits over a range of about +-3.5 standard deviations, with a little room.
        for (format, bound) in
            [(QuantFormat::Q8_0, 0.006), (QuantFormat::Q6K, 0.02), (QuantFormat::Q5K, 0.037), (QuantFormat::Q4K, 0.073)]
        {
            let x = elements(11, 64 * 256, 0.02);
            let y = round_trip(format, &x);
            let (mut error, mut total) = (0.0f64, 0.0f64);
            for (&x, &y) in x.iter().zip(&y) {
                error += f64::from(x - y).powi(2);
                total += f64::from(x).powi(2);
            }
            let relative = (error / total).sqrt();
            assert!(relative < bound, "{}: {relative}", format.name());
        }
    }

    #[test]
    fn zeros_constants_and_tiny_values() {
        for format in QuantFormat::ALL {
            assert!(round_trip(format, &[0.0; 256]).iter().all(|&v| v == 0.0));
            assert!(round_trip(format, &[-0.0; 256]).iter().all(|&v| v == 0.0));
            assert!(round_trip(format, &[1e-30; 256]).iter().all(|&v| v == 0.0));
            for constant in [1.0f32, -1.0, 0.37, -123.4, 1e-6, -1e-6] {
                for v in round_trip(format, &[constant; 256]) {
                    let step = f32::powi(2.0, -24);
                    assert!(
                        (v - constant).abs() <= 0.01 * constant.abs() + step,
                        "{}: {constant} -> {v}",
                        format.name()
                    );
                }
            }
        }
    }

    #[test]
    fn a_block_that_is_not_finite_decodes_to_nan_and_leaves_its_neighbours() {
        for format in QuantFormat::ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let n = format.block_len();
                let mut x = elements(5, 3 * n, 1.0);
                x[n + 7] = bad;
                let y = round_trip(format, &x);
                assert!(y[n..2 * n].iter().all(|v| v.is_nan()), "{}", format.name());
                assert!(y[..n].iter().chain(&y[2 * n..]).all(|v| v.is_finite()), "{}", format.name());
            }
        }
    }

    #[test]
    fn magnitudes_beyond_the_format_saturate() {
        for format in QuantFormat::ALL {
            for v in round_trip(format, &[f32::MAX; 256]) {
                assert!(v.is_finite() && v > 1e6, "{}: {v}", format.name());
            }
            for v in round_trip(format, &[f32::MIN; 256]) {
                assert!(v.is_finite() && v < -1e6, "{}: {v}", format.name());
            }
        }
    }

    #[cfg(not(target_arch = "wasm32"))] // proptest is not there
    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn every_pattern_of_bytes_decodes(bytes in prop::collection::vec(any::<u8>(), 210)) {
                for format in QuantFormat::ALL {
                    let mut y = vec![0.0; format.block_len()];
                    format.decode(&bytes[..format.block_bytes()], &mut y).unwrap();
                }
            }

            #[test]
            fn every_element_comes_back_within_the_steps_of_its_block(
                seed in any::<u64>(), exponent in -14i32..14, outlier in 0usize..256, factor in 1.0f32..30.0,
            ) {
                let mut x = elements(seed, 256, f32::powi(2.0, exponent));
                x[outlier] *= factor;
                // In units of the largest magnitude: the integer step, and for the k formats the step of the scales,
                // each with the room that a fit by least squares takes at the ends of the range.
                for (format, bound) in [
                    (QuantFormat::Q8_0, 0.502 / 127.0),
                    (QuantFormat::Q6K, 1.5 / 31.0),
                    (QuantFormat::Q5K, 3.0 / 31.0),
                    (QuantFormat::Q4K, 3.0 / 15.0),
                ] {
                    let y = round_trip(format, &x);
                    for (xs, ys) in x.chunks(format.block_len()).zip(y.chunks(format.block_len())) {
                        let largest = xs.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                        for (&x, &y) in xs.iter().zip(ys) {
                            let bound = bound * largest + f32::powi(2.0, -24);
                            prop_assert!((x - y).abs() <= bound, "{}: {x} {y} {largest}", format.name());
                        }
                    }
                }
            }

            #[test]
            fn any_input_encodes_without_panic(bits in prop::collection::vec(any::<u32>(), 256)) {
                let x: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
                for format in QuantFormat::ALL {
                    let y = round_trip(format, &x);
                    for (xs, ys) in x.chunks(format.block_len()).zip(y.chunks(format.block_len())) {
                        prop_assert!(ys.iter().all(|v| v.is_finite()) == xs.iter().all(|v| v.is_finite()));
                    }
                }
            }
        }
    }
}
