//! The weights of each format, unpacked in registers: how a block adds to sums, and how it is written out.

use kiln_core::QuantFormat;
use kiln_core::quant::{q4_k, q5_k, q6_k, q8_0, unpack_scales};

use super::activations::{CORRECTIONS, LOW, SUMS};
use crate::vector::{AFFINE_ORDER, Bytes};

/// The weights of a format: how a block adds to the sums of `R` rows.
pub(super) trait Weights {
    const FORMAT: QuantFormat;
    const BYTES: usize;

    /// # Safety
    /// The instruction set of `B` is there; `w` is good for reading a block, each of `x` a rounded block.
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        x: [*const u8; R],
        units: [f32; R],
        sums: &mut [B::Floats; R],
    );

    /// Writes the elements of a block.
    ///
    /// # Safety
    /// The instruction set of `B` is there; `w` is good for reading a block, `out` for writing its elements.
    unsafe fn decode<B: Bytes>(w: *const u8, out: *mut f32);
}

/// The planes of the `V`th of four `Bytes` of a rounded block, and their correction.
#[inline(always)]
fn planes<const V: usize>(x: *const u8) -> ([*const u8; 2], *const u8) {
    let at = |offset: usize| x.wrapping_add(offset + 64 * V);
    ([at(0), at(LOW)], at(CORRECTIONS))
}

/// Adds the products of the `V`th of the four `Bytes` of an affine block to the sums of every row.
///
/// # Safety
/// As [`Weights::add`].
#[inline(always)]
unsafe fn affine_dots<B: Bytes, const V: usize, const R: usize>(
    bytes: B,
    codes: B::Codes,
    x: [*const u8; R],
    ints: &mut [B::Ints; R],
) {
    let scales = B::scales::<V>(codes);
    for r in 0..R {
        let (planes, none) = planes::<V>(x[r]);
        // SAFETY: V < 4, so that everything lies inside of the rounded block.
        ints[r] = unsafe { bytes.dot::<false>(planes, none, scales, ints[r]) };
    }
}

/// As [`affine_dots`], for a symmetric block.
///
/// # Safety
/// As [`Weights::add`].
#[inline(always)]
unsafe fn symmetric_dots<B: Bytes, const V: usize, const R: usize>(
    bytes: B,
    codes: B::SignedCodes,
    x: [*const u8; R],
    ints: &mut [B::Ints; R],
) {
    let scales = B::signed_scales::<V>(codes);
    for r in 0..R {
        let (planes, correction) = planes::<V>(x[r]);
        // SAFETY: V < 4, so that everything lies inside of the rounded block.
        ints[r] = unsafe { bytes.dot::<true>(planes, correction, scales, ints[r]) };
    }
}

/// Q4_K and, with the fifth bit, Q5_K.
pub(super) struct Affine<const FIFTH: bool>;

impl<const FIFTH: bool> Affine<FIFTH> {
    /// The integers of half a block, in the order of [`AFFINE_ORDER`].
    ///
    /// # Safety
    /// The instruction set of `B` is there; `w` is good for reading a block.
    #[inline(always)]
    unsafe fn half<B: Bytes, const HALF: usize>(w: *const u8) -> [B; 2] {
        // SAFETY: the caller's contract; offsets are those of the layout.
        unsafe {
            let q = B::load(w.add(if FIFTH { 48 } else { 16 } + 64 * HALF));
            let mut bytes = [q.low_nibbles(), q.high_nibbles()];
            if FIFTH {
                // Bits 0 2 and 1 3, or 4 6 and 5 7, of the halves go to position 4.
                let fifth = B::load_twice(w.add(16));
                if HALF == 0 {
                    bytes = [bytes[0].with_bits::<4, 2>(fifth, 16), bytes[1].with_bits::<3, 1>(fifth, 16)];
                } else {
                    bytes = [bytes[0].with_bits::<0, -2>(fifth, 16), bytes[1].with_bits::<-1, -3>(fifth, 16)];
                }
            }
            bytes
        }
    }

    /// Scales and minima.
    ///
    /// # Safety
    /// `w` is good for reading a block.
    #[inline(always)]
    unsafe fn codes(w: *const u8) -> ([u8; 8], [u8; 8]) {
        // SAFETY: the caller's contract.
        unpack_scales(&unsafe { w.add(4).cast::<[u8; 12]>().read() })
    }
}

impl<const FIFTH: bool> Weights for Affine<FIFTH> {
    const FORMAT: QuantFormat = if FIFTH { QuantFormat::Q5K } else { QuantFormat::Q4K };
    const BYTES: usize = if FIFTH { q5_k::BYTES } else { q4_k::BYTES };

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        x: [*const u8; R],
        units: [f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // A lane takes at most 4 * 8 * 31 * 63 * 127 * 256 < 2^31.
        // SAFETY: the caller's contract.
        unsafe {
            let halves = B::halves(w);
            let (scales, minima) = Self::codes(w);
            let codes = B::codes(scales, minima);
            let mut ints = [B::ints(); R];
            let [low, high] = Self::half::<B, 0>(w);
            affine_dots::<B, 0, R>(low, codes, x, &mut ints);
            affine_dots::<B, 1, R>(high, codes, x, &mut ints);
            let [low, high] = Self::half::<B, 1>(w);
            affine_dots::<B, 2, R>(low, codes, x, &mut ints);
            affine_dots::<B, 3, R>(high, codes, x, &mut ints);
            for r in 0..R {
                let sum = B::add_ints(sums[r], ints[r], B::factor::<0>(halves, units[r]));
                sums[r] = B::sub_minima(sum, codes, x[r].add(SUMS).cast(), B::factor::<1>(halves, units[r]));
            }
        }
    }

    #[inline(always)]
    unsafe fn decode<B: Bytes>(w: *const u8, out: *mut f32) {
        // SAFETY: the caller's contract; sub-blocks are of 32.
        unsafe {
            let [d, dmin, ..] = B::four(B::halves(w));
            let (scales, minima) = Self::codes(w);
            let [q0, q1] = Self::half::<B, 0>(w);
            let [q2, q3] = Self::half::<B, 1>(w);
            for (bytes, order) in [q0, q1, q2, q3].into_iter().zip(AFFINE_ORDER.as_chunks::<2>().0) {
                let step = |i: usize| (d * f32::from(scales[order[i / 2]]), dmin * f32::from(minima[order[i / 2]]));
                let place = |i: usize| out.add(32 * order[i / 2] + 16 * (i % 2));
                bytes.store::<true>(0, std::array::from_fn(step), [place(0), place(1), place(2), place(3)]);
            }
        }
    }
}

/// Q6_K.
pub(super) struct Symmetric;

impl Symmetric {
    /// The integers of half a block, in their own order.
    ///
    /// # Safety
    /// The instruction set of `B` is there; `w` is good for reading a block.
    #[inline(always)]
    unsafe fn half<B: Bytes, const HALF: usize>(w: *const u8) -> [B; 2] {
        // SAFETY: the caller's contract; offsets are those of the layout.
        unsafe {
            // Bits 0 2 and 4 6 of the halves go to positions 4 and 5.
            let (q, bits) = (B::load(w.add(64 * HALF)), B::load_twice(w.add(128 + 32 * HALF)));
            [q.low_nibbles().with_bits::<4, 2>(bits, 0x30), q.high_nibbles().with_bits::<0, -2>(bits, 0x30)]
        }
    }
}

impl Weights for Symmetric {
    const FORMAT: QuantFormat = QuantFormat::Q6K;
    const BYTES: usize = q6_k::BYTES;

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        x: [*const u8; R],
        units: [f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // A lane of one of the two takes at most 2 * 8 * 32 * 128 * 127 * 256 < 2^31; of one it would be twice that.
        // SAFETY: the caller's contract.
        unsafe {
            let halves = B::halves(w.add(202));
            let codes = B::signed_codes(w.add(192));
            let (mut first, mut second) = ([B::ints(); R], [B::ints(); R]);
            let [low, high] = Self::half::<B, 0>(w);
            symmetric_dots::<B, 0, R>(low, codes, x, &mut first);
            symmetric_dots::<B, 1, R>(high, codes, x, &mut first);
            let [low, high] = Self::half::<B, 1>(w);
            symmetric_dots::<B, 2, R>(low, codes, x, &mut second);
            symmetric_dots::<B, 3, R>(high, codes, x, &mut second);
            for r in 0..R {
                sums[r] = B::add_two_ints(sums[r], first[r], second[r], B::factor::<3>(halves, units[r]));
            }
        }
    }

    #[inline(always)]
    unsafe fn decode<B: Bytes>(w: *const u8, out: *mut f32) {
        // SAFETY: the caller's contract; sub-blocks are of 16.
        unsafe {
            let [.., d] = B::four(B::halves(w.add(202)));
            let [q0, q1] = Self::half::<B, 0>(w);
            let [q2, q3] = Self::half::<B, 1>(w);
            for (v, bytes) in [q0, q1, q2, q3].into_iter().enumerate() {
                let step = |i: usize| (d * f32::from(w.add(192 + 4 * v + i).cast::<i8>().read()), 0.0);
                let place = |i: usize| out.add(64 * v + 16 * i);
                bytes.store::<false>(32, std::array::from_fn(step), [place(0), place(1), place(2), place(3)]);
            }
        }
    }
}

/// Runs `$body` with `$weights` standing for the type of a format.
macro_rules! for_weights {
    ($format:expr, $weights:ident => $body:expr) => {
        match $format {
            kiln_core::QuantFormat::Q8_0 => {
                type $weights = crate::quant::weights::Plain;
                $body
            }
            kiln_core::QuantFormat::Q4K => {
                type $weights = crate::quant::weights::Affine<false>;
                $body
            }
            kiln_core::QuantFormat::Q5K => {
                type $weights = crate::quant::weights::Affine<true>;
                $body
            }
            kiln_core::QuantFormat::Q6K => {
                type $weights = crate::quant::weights::Symmetric;
                $body
            }
        }
    };
}
pub(super) use for_weights;

/// Q8_0.
pub(super) struct Plain;

impl Weights for Plain {
    const FORMAT: QuantFormat = QuantFormat::Q8_0;
    const BYTES: usize = q8_0::BYTES;

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        x: [*const u8; R],
        units: [f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let halves = B::halves(w);
            for r in 0..R {
                sums[r] = B::add_ints(sums[r], B::wide_dot(w.add(2), x[r]), B::factor::<0>(halves, units[r]));
            }
        }
    }

    #[inline(always)]
    unsafe fn decode<B: Bytes>(w: *const u8, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { B::store_signed(w.add(2), B::four(B::halves(w))[0], out) }
    }
}
