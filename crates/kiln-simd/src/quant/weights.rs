//! The weights of each format: how a block adds to sums.

use std::marker::PhantomData;

use kiln_ir::QuantFormat;
use kiln_ir::quant::{DOUBLED, NORMAL, iq4_xs, mxfp4, q2_k, q3_k, q4_k, q5_k, q6_k, q8_0, unpack_scales};

use super::activations::{Line, Rounding, SUMS};
use crate::array::Each;
use crate::vector::Bytes;

/// The weights of a format, which add a block to the sums of `R` rows.
pub(super) trait Weights {
    const FORMAT: QuantFormat;
    const BYTES: usize;
    /// The layout of x.
    const ROUNDING: Rounding = Rounding::of(Self::FORMAT);
    /// The part of a block that is unpacked while the block before is multiplied.
    type Ahead<B: Bytes>: Copy;

    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for a block while the result is in use.
    unsafe fn unpack<B: Bytes>(w: *const u8) -> Self::Ahead<B>;

    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for the block from which `ahead` was unpacked, each of
    /// `x` for the rounded elements of the block, each of `units` for their units.
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        ahead: Self::Ahead<B>,
        x: [*const u8; R],
        units: [*const f32; R],
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
        units: [*const f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            // The sum in a lane is below 16 * 31 * 32639 < 2^24, which f32 represents exactly.
            let ints = B::dots::<BITS, R>(block, x, [B::no_ints(); R]);
            let halves = B::halves(w);
            let (scales, minima) = unpack_scales(&w.add(4).cast::<[u8; 12]>().read());
            let (scales, minima) = (B::codes(scales), B::codes(minima));
            for r in 0..R {
                let sum = B::add(sums[r], ints[r], B::mul(scales, B::factor::<0>(halves, *units[r])));
                let minima = B::mul(minima, B::factor::<1>(halves, *units[r]));
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
        units: [*const f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            // The sum in a lane is below 16 * 32 * 32639 < 2^24, which f32 represents exactly, after subtracting 32
            // from every integer.
            let ints = B::dots::<6, R>(block, x, x.each(|x| B::load_ints(x.add(SUMS).cast())));
            let (halves, scales) = (B::halves(w.add(202)), B::signed_codes(w.add(192)));
            for r in 0..R {
                sums[r] = B::add(sums[r], ints[r], B::mul(scales, B::factor::<3>(halves, *units[r])));
            }
        }
    }
}

/// Runs `$body` with `$weights` as an alias of the type of a format.
macro_rules! for_weights {
    ($format:expr, $weights:ident => $body:expr) => {
        for_weights! {
            $format, $weights => $body;
            Q8_0 = Plain,
            Q4_0 = ByPieces<Q4_0>,
            Q4_1 = ByPieces<Q4_1>,
            Q5_0 = ByPieces<Q5_0>,
            Q5_1 = ByPieces<Q5_1>,
            Iq4Nl = ByPieces<Iq4Nl>,
            Mxfp4 = ByPieces<Mxfp4>,
            Q2K = ByPieces<Q2K>,
            Q3K = ByPieces<Q3K>,
            Q4K = Affine<4>,
            Q5K = Affine<5>,
            Q6K = Symmetric,
            Iq4Xs = ByPieces<Iq4Xs>,
        }
    };
    ($format:expr, $weights:ident => $body:expr; $($variant:ident = $type:ty,)+) => {
        match $format {
            $(kiln_ir::QuantFormat::$variant => {
                use crate::quant::weights::*;
                type $weights = $type;
                $body
            })+
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
        units: [*const f32; R],
        sums: &mut [B::Floats; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let halves = B::halves(w);
            for r in 0..R {
                sums[r] = B::add(sums[r], B::wide_dot(w.add(2), x[r]), B::factor::<0>(halves, *units[r]));
            }
        }
    }
}

/// Formats whose blocks are unpacked 32 small integers at a time, called a piece, with a scale and a minimum for each
/// group.
pub(super) trait Pieces {
    const FORMAT: QuantFormat;
    /// The scales and minima of a block.
    type Scales<B: Bytes>: Copy;

    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for a block, and for eight bytes.
    unsafe fn scales<B: Bytes>(w: *const u8) -> Self::Scales<B>;
    /// The scales of a piece times a unit of x, for each lane.
    ///
    /// # Safety
    /// The instruction set of `B` is available.
    unsafe fn steps<B: Bytes>(scales: &Self::Scales<B>, piece: usize, unit: f32) -> B::Floats;
    /// The minima of a piece in the same form.
    ///
    /// # Safety
    /// The instruction set of `B` is available.
    unsafe fn minima<B: Bytes>(scales: &Self::Scales<B>, piece: usize, unit: f32) -> B::Floats;
    /// The integers of a piece.
    ///
    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for a block.
    unsafe fn integers<B: Bytes>(w: *const u8, piece: usize) -> B::Wide;
}

/// Products by pieces.
pub(super) struct ByPieces<P>(PhantomData<P>);

impl<P: Pieces> Weights for ByPieces<P> {
    const FORMAT: QuantFormat = P::FORMAT;
    const BYTES: usize = P::FORMAT.block_bytes();
    type Ahead<B: Bytes> = ();

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(_w: *const u8) {}

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        (): (),
        x: [*const u8; R],
        units: [*const f32; R],
        sums: &mut [B::Floats; R],
    ) {
        let has_minima = const { P::FORMAT.layout().minimum().is_some() };
        let line = size_of::<Line>();
        let of_piece = if has_minima { 2 * line } else { line };
        // SAFETY: the caller's contract; a piece is 32 integers of the block, as many elements of x, and their unit.
        unsafe {
            let scales = P::scales::<B>(w);
            for piece in 0..const { P::FORMAT.block_len() / 32 } {
                let q = P::integers::<B>(w, piece);
                for r in 0..R {
                    let (x, unit) = (x[r].add(of_piece * piece), *units[r].add(piece));
                    // The sum in a lane is at most 2 * 128 * 32639 < 2^24, which f32 represents exactly.
                    sums[r] = B::add(sums[r], B::dot(q, x), P::steps::<B>(&scales, piece, unit));
                    if has_minima {
                        sums[r] = B::sub(sums[r], x.add(line).cast(), P::minima::<B>(&scales, piece, unit));
                    }
                }
            }
        }
    }
}

/// Formats with one group per block: the f16 at the start is the scale, the next one, if any, is added.
macro_rules! whole {
    ($($format:ident = |$w:ident| $integers:expr;)+) => {$(
        pub(super) struct $format;

        impl Pieces for $format {
            const FORMAT: QuantFormat = QuantFormat::$format;
            type Scales<B: Bytes> = B::Halves;

            #[inline(always)]
            unsafe fn scales<B: Bytes>(w: *const u8) -> B::Halves {
                // SAFETY: the caller's contract.
                unsafe { B::halves(w) }
            }
            #[inline(always)]
            unsafe fn steps<B: Bytes>(scales: &B::Halves, _piece: usize, unit: f32) -> B::Floats {
                // SAFETY: the caller's contract.
                unsafe { B::factor::<0>(*scales, unit) }
            }
            #[inline(always)]
            unsafe fn minima<B: Bytes>(scales: &B::Halves, _piece: usize, unit: f32) -> B::Floats {
                // SAFETY: the caller's contract. An added number is a negative minimum.
                unsafe { B::factor::<1>(*scales, -unit) }
            }
            #[inline(always)]
            unsafe fn integers<B: Bytes>($w: *const u8, _piece: usize) -> B::Wide {
                // SAFETY: the caller's contract; offsets are those of the layout.
                unsafe { $integers }
            }
        }
    )+};
}

/// Formats with codes of scales, which kiln-ir's functions unpack.
macro_rules! coded {
    ($($format:ident = $module:ident, |$w:ident, $piece:ident| $integers:expr;)+) => {$(
        pub(super) struct $format;

        impl Pieces for $format {
            const FORMAT: QuantFormat = QuantFormat::$format;
            type Scales<B: Bytes> = [[f32; Self::FORMAT.groups()]; 2];

            #[inline(always)]
            unsafe fn scales<B: Bytes>(w: *const u8) -> Self::Scales<B> {
                // SAFETY: the caller's contract.
                $module::scales(unsafe { &*w.cast() })
            }
            #[inline(always)]
            unsafe fn steps<B: Bytes>(scales: &Self::Scales<B>, piece: usize, unit: f32) -> B::Floats {
                // SAFETY: the caller's contract.
                unsafe { lanes::<B>(&scales[0], piece, unit) }
            }
            #[inline(always)]
            unsafe fn minima<B: Bytes>(scales: &Self::Scales<B>, piece: usize, unit: f32) -> B::Floats {
                // SAFETY: the caller's contract.
                unsafe { lanes::<B>(&scales[1], piece, unit) }
            }
            #[inline(always)]
            unsafe fn integers<B: Bytes>($w: *const u8, $piece: usize) -> B::Wide {
                // SAFETY: the caller's contract; offsets are those of the layout.
                unsafe { $integers }
            }
        }
    )+};
}

/// The group's number for each lane times a unit: a lane takes two neighbours, which are in the same group.
///
/// # Safety
/// The instruction set of `B` is available.
#[inline(always)]
unsafe fn lanes<B: Bytes>(numbers: &[f32], piece: usize, unit: f32) -> B::Floats {
    // SAFETY: the caller's contract.
    unsafe {
        if numbers.len() == 8 {
            B::splat(numbers[piece] * unit)
        } else {
            B::pair(numbers[2 * piece] * unit, numbers[2 * piece + 1] * unit)
        }
    }
}

whole! {
    Q4_0 = |w| B::shifted(B::nibbles(w.add(2)), -8);
    Q4_1 = |w| B::nibbles(w.add(4));
    Q5_0 = |w| B::shifted(B::with_bits(B::nibbles(w.add(6)), w.add(2)), -16);
    Q5_1 = |w| B::with_bits(B::nibbles(w.add(8)), w.add(4));
    Iq4Nl = |w| B::looked_up(B::nibbles(w.add(2)), &NORMAL);
}

coded! {
    // Four pieces of 32 integers share 32 bytes.
    Q2K = q2_k, |w, piece| B::masked(B::wide(w.add(16 + 32 * (piece / 4))), 2 * (piece % 4), 3);
    Q3K = q3_k, |w, piece| {
        let low = B::masked(B::wide(w.add(32 + 32 * (piece / 4))), 2 * (piece % 4), 3);
        B::shifted(B::with_third(low, B::masked(B::wide(w), piece, 1)), -4)
    };
    Iq4Xs = iq4_xs, |w, piece| B::looked_up(B::nibbles(w.add(8 + 16 * piece)), &NORMAL);
}

/// MXFP4, whose scales are powers of two of any size.
pub(super) struct Mxfp4;

impl Pieces for Mxfp4 {
    const FORMAT: QuantFormat = QuantFormat::Mxfp4;
    type Scales<B: Bytes> = f32;

    #[inline(always)]
    unsafe fn scales<B: Bytes>(w: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        mxfp4::scale(unsafe { w.read() })
    }
    #[inline(always)]
    unsafe fn steps<B: Bytes>(scale: &f32, _piece: usize, unit: f32) -> B::Floats {
        // A step near the subnormal range has lost bits, or products with it would: NaN makes the caller compute the
        // result from the elements.
        const LEAST: f32 = f32::from_bits((127 - 100) << 23);
        let step = scale * unit;
        // SAFETY: the caller's contract.
        unsafe { B::splat(if step < LEAST && unit > 0.0 { f32::NAN } else { step }) }
    }
    #[inline(always)]
    unsafe fn minima<B: Bytes>(_scale: &f32, _piece: usize, _unit: f32) -> B::Floats {
        // SAFETY: the caller's contract.
        unsafe { B::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn integers<B: Bytes>(w: *const u8, _piece: usize) -> B::Wide {
        // SAFETY: the caller's contract; the nibbles follow the scale.
        unsafe { B::looked_up(B::nibbles(w.add(1)), &DOUBLED) }
    }
}
