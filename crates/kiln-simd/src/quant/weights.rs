//! The weights of each format: how a block adds to sums.

use kiln_ir::QuantFormat;
use kiln_ir::quant::{q4_k, q5_k, q6_k, q8_0, unpack_scales};

use super::activations::SUMS;
use crate::array::Each;
use crate::vector::Bytes;

/// The weights of a format: how a block adds to the sums of `R` rows.
pub(super) trait Weights {
    const FORMAT: QuantFormat;
    const BYTES: usize;
    /// What is unpacked of a block while the one before is multiplied.
    type Ahead<B: Bytes>: Copy;

    /// # Safety
    /// The instruction set of `B` is there; `w` is good for reading a block while the result is in use.
    unsafe fn unpack<B: Bytes>(w: *const u8) -> Self::Ahead<B>;

    /// # Safety
    /// The instruction set of `B` is there; `w` is good for reading a block, from which `ahead` was unpacked, each of `x` a
    /// rounded block.
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        ahead: Self::Ahead<B>,
        x: [*const u8; R],
        units: [f32; R],
        sums: &mut [B::Floats; R],
    );
}

/// Q4_K with four bits and Q5_K with five.
pub(super) struct Affine<const BITS: usize>;

impl<const BITS: usize> Weights for Affine<BITS> {
    const FORMAT: QuantFormat = if BITS == 5 { QuantFormat::Q5K } else { QuantFormat::Q4K };
    const BYTES: usize = if BITS == 5 { q5_k::BYTES } else { q4_k::BYTES };
    type Ahead<B: Bytes> = B::Block;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(w: *const u8) -> B::Block {
        // SAFETY: the caller's contract; offsets are those of the layouts.
        unsafe { B::block::<BITS>(w.add(if BITS == 5 { 48 } else { 16 }), w.add(16)) }
    }

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        block: B::Block,
        x: [*const u8; R],
        units: [f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            // A lane takes at most 16 * 31 * 32639 < 2^24, which f32 holds.
            let ints = B::dots::<BITS, R>(block, x, [B::no_ints(); R]);
            let halves = B::halves(w);
            let (scales, minima) = unpack_scales(&w.add(4).cast::<[u8; 12]>().read());
            let (scales, minima) = (B::codes(scales), B::codes(minima));
            for r in 0..R {
                let sum = B::add(sums[r], ints[r], B::mul(scales, B::factor::<0>(halves, units[r])));
                let minima = B::mul(minima, B::factor::<1>(halves, units[r]));
                sums[r] = B::sub(sum, x[r].add(SUMS).cast(), minima);
            }
        }
    }
}

/// Q6_K.
pub(super) struct Symmetric;

impl Weights for Symmetric {
    const FORMAT: QuantFormat = QuantFormat::Q6K;
    const BYTES: usize = q6_k::BYTES;
    type Ahead<B: Bytes> = B::Block;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(w: *const u8) -> B::Block {
        // SAFETY: the caller's contract; offsets are those of the layout.
        unsafe { B::block::<6>(w, w.add(128)) }
    }

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        block: B::Block,
        x: [*const u8; R],
        units: [f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            // A lane takes at most 16 * 32 * 32639 < 2^24, which f32 holds, once 32 is off every integer.
            let ints = B::dots::<6, R>(block, x, x.each(|x| B::load_ints(x.add(SUMS).cast())));
            let (halves, scales) = (B::halves(w.add(202)), B::signed_codes(w.add(192)));
            for r in 0..R {
                sums[r] = B::add(sums[r], ints[r], B::mul(scales, B::factor::<3>(halves, units[r])));
            }
        }
    }
}

/// Runs `$body` with `$weights` standing for the type of a format.
macro_rules! for_weights {
    ($format:expr, $weights:ident => $body:expr) => {
        match $format {
            kiln_ir::QuantFormat::Q8_0 => {
                type $weights = crate::quant::weights::Plain;
                $body
            }
            kiln_ir::QuantFormat::Q4K => {
                type $weights = crate::quant::weights::Affine<4>;
                $body
            }
            kiln_ir::QuantFormat::Q5K => {
                type $weights = crate::quant::weights::Affine<5>;
                $body
            }
            kiln_ir::QuantFormat::Q6K => {
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
    type Ahead<B: Bytes> = ();

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(_w: *const u8) {}

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        (): (),
        x: [*const u8; R],
        units: [f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let halves = B::halves(w);
            for r in 0..R {
                sums[r] = B::add(sums[r], B::wide_dot(w.add(2), x[r]), B::factor::<0>(halves, units[r]));
            }
        }
    }
}
