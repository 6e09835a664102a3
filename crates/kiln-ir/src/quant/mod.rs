//! Quantised block formats with the layouts of GGUF files.
//!
//! A format is a row of the table in `format.rs`, which has its properties, and a file with [`QuantFormat::decode`] (the exact meaning of
//! the bytes) and [`QuantFormat::encode`] (the quantiser). Both are plain f32 arithmetic in a fixed order, multiply then add,
//! without a branch that depends on the machine: compiled for any instruction set they give the same bits, which is what makes
//! the bytes of a quantised tensor a contract.

mod fit;
mod format;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
mod nibbles;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
mod scales;
mod unpacked;

pub use format::{DOUBLED, Layout, NORMAL, QuantFormat, Scales, Values};
pub use scales::{pack_scales, unpack_scales};
pub use unpacked::Unpacked;

use format::formats;

use crate::{Error, Result};

/// A format as a type, for functions that are compiled for each format.
pub trait ConstFormat {
    /// The format.
    const FORMAT: QuantFormat;
}

/// Dispatches to the module of each format.
macro_rules! codecs {
    ($($(#[doc = $doc:literal])+ $variant:ident = $module:ident {
        name: $name:literal, id: $id:literal, len: $len:literal, bytes: $bytes:literal, bits: $bits:literal,
        group: $group:literal, values: $values:expr, scales: $scales:expr $(,)?
    })+) => {
        $(const _: () = assert!($module::LEN == $len && $module::BYTES == $bytes && $len % $group == 0);)+

        impl QuantFormat {
            /// Decodes whole blocks that fill `out`.
            #[inline(always)]
            fn decode_blocks(self, blocks: &[u8], out: &mut [f32]) {
                match self {
                    $(Self::$variant => {
                        let (blocks, _) = blocks.as_chunks::<{ $module::BYTES }>();
                        let (out, _) = out.as_chunks_mut::<{ $module::LEN }>();
                        for (block, out) in blocks.iter().zip(out) {
                            $module::decode(block, out);
                        }
                    })+
                }
            }

            /// Unpacks whole blocks that fill `q`.
            #[inline(always)]
            fn unpack_blocks<F: ConstFormat>(blocks: &[u8], q: &mut [i8], scales: &mut [f32], minima: &mut [f32]) {
                // Inline constants, so that the other formats are not compiled.
                $(if const { F::FORMAT as usize == Self::$variant as usize } {
                    let (blocks, _) = blocks.as_chunks::<{ $module::BYTES }>();
                    let (q, _) = q.as_chunks_mut::<{ $module::LEN }>();
                    let (scales, _) = scales.as_chunks_mut::<{ $len / $group }>();
                    let (minima, _) = minima.as_chunks_mut::<{ $len / $group }>();
                    for (((block, q), scales), minima) in blocks.iter().zip(q).zip(scales).zip(minima) {
                        let unpacked = $module::unpack(block);
                        (*q, *scales, *minima) = (unpacked.q, unpacked.scales, unpacked.minima);
                    }
                })+
            }

            /// [`QuantFormat::unpack_as`] for a format that is known only when the program runs. It is not inlined.
            ///
            /// # Errors
            /// The errors of [`QuantFormat::unpack_as`].
            pub fn unpack(self, blocks: &[u8], q: &mut [i8], scales: &mut [f32], minima: &mut [f32]) -> Result<()> {
                match self {
                    $(Self::$variant => {
                        struct Format;
                        impl ConstFormat for Format {
                            const FORMAT: QuantFormat = QuantFormat::$variant;
                        }
                        Self::unpack_as::<Format>(blocks, q, scales, minima)
                    })+
                }
            }

            /// Encodes whole blocks of `x`.
            #[inline(always)]
            fn encode_blocks(self, x: &[f32], blocks: &mut [u8]) {
                match self {
                    $(Self::$variant => {
                        let (x, _) = x.as_chunks::<{ $module::LEN }>();
                        let (blocks, _) = blocks.as_chunks_mut::<{ $module::BYTES }>();
                        for (x, block) in x.iter().zip(blocks) {
                            $module::encode(x, block);
                        }
                    })+
                }
            }
        }
    };
}

formats!(codecs);

impl QuantFormat {
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

    /// The number of blocks among these whose scale or minimum is the greatest f16, 65504: the quantiser writes it if elements are beyond
    /// the range of the format, and they decode to smaller values than they had. It is 0 for formats whose scale is a power of two, which
    /// hold every f32.
    pub fn saturated_blocks(self, blocks: &[u8]) -> usize {
        let layout = self.layout();
        let greatest = |block: &[u8], at: Option<usize>| {
            at.is_some_and(|at| u16::from_le_bytes([block[at], block[at + 1]]) & 0x7fff == 0x7bff)
        };
        let saturates = |block: &&[u8]| greatest(block, layout.unit()) || greatest(block, layout.minimum());
        blocks.chunks_exact(self.block_bytes()).filter(saturates).count()
    }

    fn check(self, elements: usize, found: usize) -> Result<()> {
        let expected = self.bytes(elements)?;
        if expected == found {
            return Ok(());
        }
        Err(Error::Length { op: "quantised blocks", operand: "bytes", expected, found })
    }

    /// The elements that the blocks encode. Every pattern of bytes has a meaning: a scale that is NaN or infinite
    /// gives what IEEE 754 makes of the products and the difference.
    ///
    /// # Errors
    /// [`Error::Format`] when `out` is not whole blocks, [`Error::Length`] when the blocks do not fill it.
    pub fn decode(self, blocks: &[u8], out: &mut [f32]) -> Result<()> {
        self.decode_inlined(blocks, out)
    }

    /// Does what [`QuantFormat::decode`] does, inlined into its caller, so that a caller compiled for an instruction set gets it in
    /// that. Each caller compiles the decoders of all formats.
    ///
    /// # Errors
    /// The errors of [`QuantFormat::decode`].
    #[inline(always)]
    pub fn decode_inlined(self, blocks: &[u8], out: &mut [f32]) -> Result<()> {
        self.check(out.len(), blocks.len())?;
        self.decode_blocks(blocks, out);
        Ok(())
    }

    /// Unpacks blocks: a small integer for each element, or an index into the code book of the format, and a scale and a minimum
    /// for each group, so that an element is `scale q - minimum` ([`Unpacked`]).
    ///
    /// It is inlined into its caller, as [`QuantFormat::decode_inlined`] is, and only this format is.
    ///
    /// # Errors
    /// [`Error::Format`] when `q` is not whole blocks, [`Error::Length`] when the blocks do not fill it, or `scales` and
    /// `minima` do not have an element for each group.
    #[inline(always)]
    pub fn unpack_as<F: ConstFormat>(
        blocks: &[u8],
        q: &mut [i8],
        scales: &mut [f32],
        minima: &mut [f32],
    ) -> Result<()> {
        let layout = const { F::FORMAT.layout() };
        let (count, rest) = (q.len() / layout.block_len, q.len() % layout.block_len);
        let groups = q.len() / layout.group;
        if rest > 0 || blocks.len() != count * layout.block_bytes || scales.len() != groups || minima.len() != groups {
            F::FORMAT.check_unpacked(blocks.len(), q.len(), scales.len(), minima.len())?;
        }
        Self::unpack_blocks::<F>(blocks, q, scales, minima);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn check_unpacked(self, blocks: usize, q: usize, scales: usize, minima: usize) -> Result<()> {
        self.check(q, blocks)?;
        let expected = q / self.layout().group;
        for (operand, found) in [("scales", scales), ("minima", minima)] {
            if found != expected {
                return Err(Error::Length { op: "quantised blocks", operand, expected, found });
            }
        }
        Ok(())
    }

    /// Quantises elements into blocks, deterministically: the same bytes on every machine.
    ///
    /// A block with a NaN or an infinity decodes to NaN throughout. Magnitudes beyond the format take its largest.
    ///
    /// # Errors
    /// The errors of [`QuantFormat::decode`].
    pub fn encode(self, x: &[f32], blocks: &mut [u8]) -> Result<()> {
        self.encode_inlined(x, blocks)
    }

    /// Does what [`QuantFormat::encode`] does, inlined into its caller, so that a caller compiled for an instruction set gets it in
    /// that. Each caller compiles the quantisers of all formats.
    ///
    /// # Errors
    /// The errors of [`QuantFormat::decode`].
    #[inline(always)]
    pub fn encode_inlined(self, x: &[f32], blocks: &mut [u8]) -> Result<()> {
        self.check(x.len(), blocks.len())?;
        self.encode_blocks(x, blocks);
        Ok(())
    }
}

/// The f32 of the two bytes of a little-endian f16.
#[inline(always)]
pub fn half(bytes: [u8; 2]) -> f32 {
    let h = u32::from(u16::from_le_bytes(bytes));
    let sign = (h & 0x8000) << 16;
    let magnitude = (h & 0x7fff) << 13;
    // Rebiases the exponent. Subnormals get one binade more, which the subtraction removes again: no operand is a
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

    /// Bell-shaped elements, like weights: the sum of four bytes of a xorshift generator.
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

    /// A magnitude that blocks of the format reach at least, with either sign.
    fn most(format: QuantFormat) -> f32 {
        let layout = format.layout();
        let largest = f32::powi(2.0, layout.bits as i32 - 1) - 1.0;
        match (layout.scales, layout.values) {
            (Scales::Codes { .. } | Scales::Power { .. }, _) => 9e5,
            (Scales::Whole { .. }, Values::Symmetric) => 65504.0 * largest,
            (Scales::Whole { .. }, Values::Affine) => 65504.0,
            (Scales::Whole { .. }, Values::Book(book)) => 65504.0 * f32::from(book[15]),
        }
    }

    #[test]
    fn formats_are_found_by_their_number_in_files() {
        for format in QuantFormat::ALL {
            assert_eq!(QuantFormat::from_gguf_id(format.layout().gguf_id), Some(format));
            let same = |other: &QuantFormat| other.name() == format.name();
            assert_eq!(QuantFormat::ALL.into_iter().filter(same).count(), 1);
        }
        // F32 and the formats of ggml's activations, which no file contains.
        assert_eq!([0, 9, 15].map(QuantFormat::from_gguf_id), [None; 3]);
    }

    #[test]
    fn unpacked_blocks_encode_the_elements_and_keep_to_the_least_integer() {
        for format in QuantFormat::ALL {
            let (len, n) = (format.block_len(), 512);
            // Every byte occurs, and finite scales with them: their exponents are cleared where blocks have f16.
            let mut blocks: Vec<u8> = (0..format.bytes(n).unwrap()).map(|i| (i * 37 % 256) as u8).collect();
            for block in blocks.chunks_mut(format.block_bytes()) {
                for at in [format.layout().unit(), format.layout().minimum()].into_iter().flatten() {
                    block[at + 1] &= 0xbf;
                }
            }
            let (mut q, mut decoded) = (vec![0; n], vec![0.0; n]);
            let groups = n / len * format.groups();
            let (mut scales, mut minima) = (vec![0.0; groups], vec![0.0; groups]);
            format.unpack(&blocks, &mut q, &mut scales, &mut minima).unwrap();
            format.decode(&blocks, &mut decoded).unwrap();
            for (i, (&q, decoded)) in q.iter().zip(decoded).enumerate() {
                let group = i / format.layout().group;
                let q = match format.layout().values {
                    Values::Book(book) => book[q as usize],
                    _ => q,
                };
                assert!(q >= format.least(), "{} {i}: {q}", format.name());
                assert_eq!(scales[group] * f32::from(q) - minima[group], decoded, "{} {i}", format.name());
            }
            assert!(format.unpack(&blocks, &mut q, &mut scales[1..], &mut minima).is_err());
            assert!(format.unpack(&blocks[1..], &mut q, &mut scales, &mut minima).is_err());
        }
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
        // From the numpy dequantisers of the Python package gguf: FNV-1a over the bits of the results, and the bits of
        // the first, the middle and the last result.
        for (format, hash, bits) in [
            (QuantFormat::Q8_0, 0x2441_d45a_348f_fc4d, [0x40fc_bd00, 0xc0ef_f100, 0xbf7f_f000]),
            (QuantFormat::Q4_0, 0xe96c_6354_aa02_8162, [0x3f33_2800, 0xbecc_c000, 0x3dcc_c000]),
            (QuantFormat::Q4_1, 0x8ad6_4be7_19dc_395e, [0x3f86_6000, 0x3f86_6000, 0x3fb9_9000]),
            (QuantFormat::Q5_0, 0x9d5d_4a78_bbc5_88a5, [0x3e99_9000, 0x3fb3_2800, 0x3e4c_c000]),
            (QuantFormat::Q5_1, 0x10e1_baf9_b4bb_027a, [0x4023_2a00, 0x4003_2c00, 0x3f59_9000]),
            (QuantFormat::Iq4Nl, 0x769b_8daa_55c4_0377, [0x4134_c180, 0xc09c_c300, 0x3fa6_5c00]),
            (QuantFormat::Mxfp4, 0x01e6_ce46_7a3d_fdd0, [0xbc00_0000, 0x3c00_0000, 0x3d00_0000]),
            (QuantFormat::Q2K, 0x77a6_180b_d04c_7300, [0x3fbf_f400, 0x3ff9_8400, 0x3f99_8800]),
            (QuantFormat::Q3K, 0x486f_0d18_a2ca_b794, [0x3fff_f000, 0xc033_2800, 0xc019_9000]),
            (QuantFormat::Iq4Xs, 0x92ae_42a0_31cc_f0e7, [0x401f_f600, 0xc2dc_58a0, 0x4251_f2e0]),
            (QuantFormat::Q4K, 0x0bf9_aa5b_d4d1_c9b5, [0x4198_bc40, 0x426f_2380, 0xbf1a_2000]),
            (QuantFormat::Q5K, 0x1e01_8f8d_3f33_50cc, [0x4244_56a0, 0x41a1_8e00, 0xbfe6_a000]),
            (QuantFormat::Q6K, 0x539e_0e01_cd7f_1ff3u64, [0xc217_29c0, 0x429e_5c80, 0x42a9_28a0u32]),
        ] {
            let (len, bytes) = (format.block_len(), format.block_bytes());
            let mut block: Vec<u8> = (0..bytes).map(|i| (i * 37 + 11 * (i / 7) + 5) as u8).collect();
            let (unit, unit_min) = ([0x66, 0x2e], [0xcd, 0x30]);
            match format.layout().unit() {
                Some(at) => block[at..at + 2].copy_from_slice(&unit),
                None => block[0] = 0x78,
            }
            if let Some(at) = format.layout().minimum() {
                block[at..at + 2].copy_from_slice(&unit_min);
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
    fn relative_error_of_bell_shaped_weights_is_below_that_of_ggml() {
        // The errors of ggml's reference quantisers on the same elements.
        for (format, bound) in [
            (QuantFormat::Q8_0, 0.0050844),
            (QuantFormat::Q4_0, 0.0815389),
            (QuantFormat::Q4_1, 0.0758035),
            (QuantFormat::Q5_0, 0.0405702),
            (QuantFormat::Q5_1, 0.0365704),
            (QuantFormat::Iq4Nl, 0.0770731),
            (QuantFormat::Mxfp4, 0.1155564),
            (QuantFormat::Q2K, 0.2900057),
            (QuantFormat::Q3K, 0.1461901),
            (QuantFormat::Iq4Xs, 0.0751539),
            (QuantFormat::Q4K, 0.0688477),
            (QuantFormat::Q5K, 0.0349942),
            (QuantFormat::Q6K, 0.0171741),
        ] {
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
            // Steps of subnormal f16 are too coarse for one percent if few of them make up the constant.
            let tiny = match format {
                QuantFormat::Q8_0 | QuantFormat::Q4K | QuantFormat::Q5K | QuantFormat::Q6K => 1e-6,
                _ => 0.5,
            };
            // A scale that is a power of two leaves few numbers.
            let part = if matches!(format.layout().scales, Scales::Power { .. }) { 0.15 } else { 0.01 };
            for constant in [1.0f32, -1.0, 0.37, -123.4, tiny, -tiny] {
                for v in round_trip(format, &[constant; 256]) {
                    let step = f32::powi(2.0, -24);
                    assert!(
                        (v - constant).abs() <= part * constant.abs() + step,
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
            let most = most(format);
            for v in round_trip(format, &[f32::MAX; 256]) {
                assert!(v.is_finite() && v >= most, "{}: {v}", format.name());
            }
            for v in round_trip(format, &[f32::MIN; 256]) {
                assert!(v.is_finite() && v <= -most, "{}: {v}", format.name());
            }
        }
    }

    #[test]
    fn blocks_that_saturate_are_counted() {
        for format in QuantFormat::ALL {
            let count = |x: &[f32]| {
                let mut bytes = vec![0; format.bytes(x.len()).unwrap()];
                format.encode(x, &mut bytes).unwrap();
                format.saturated_blocks(&bytes)
            };
            let mut x = elements(5, 768, 1.0);
            assert_eq!(count(&x), 0, "{}", format.name());
            (x[3], x[700]) = (1e30, -1e30);
            let expected = if format.layout().unit().is_some() { 2 } else { 0 };
            assert_eq!(count(&x), expected, "{}", format.name());
            // A block that is not finite is NaN, which shows.
            assert_eq!(count(&[f32::NAN; 256]), 0, "{}", format.name());
        }
    }

    #[cfg(not(target_arch = "wasm32"))] // proptest is unavailable on this target
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
                // In units of the largest magnitude: the integer step, for the k formats plus the step of the scales,
                // each with a margin for least-squares fits at the ends of the range.
                for (format, bound) in [
                    (QuantFormat::Q8_0, 0.502 / 127.0),
                    (QuantFormat::Q6K, 1.5 / 31.0),
                    (QuantFormat::Q5K, 3.0 / 31.0),
                    (QuantFormat::Mxfp4, 0.26),
                    (QuantFormat::Q2K, 0.8),
                    (QuantFormat::Q3K, 0.4),
                    (QuantFormat::Iq4Xs, 0.2),
                    (QuantFormat::Q4K, 3.0 / 15.0),
                    (QuantFormat::Q4_0, 1.5 / 7.0),
                    (QuantFormat::Q4_1, 3.0 / 15.0),
                    (QuantFormat::Q5_0, 1.5 / 15.0),
                    (QuantFormat::Q5_1, 3.0 / 31.0),
                    (QuantFormat::Iq4Nl, 0.2),
                ] {
                    let y = round_trip(format, &x);
                    for (xs, ys) in x.chunks(format.block_len()).zip(y.chunks(format.block_len())) {
                        let largest = xs.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                        if largest > most(format) {
                            continue;
                        }
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
