//! The weights of each format: products of runs of 256 elements.

use std::marker::PhantomData;

use kiln_ir::QuantFormat;
use kiln_ir::quant::{ConstFormat, DOUBLED, NORMAL, iq4_xs, mxfp4, q2_k, q3_k, unpack_scales};

use super::activations::{RUN, Rounding};
use crate::array::Each;
use crate::vector::Bytes;

/// The weights of a format, which add a run of 256 elements to the sums of `R` rows.
pub(super) trait Weights: ConstFormat {
    /// Blocks of a run.
    const BLOCKS: usize = RUN / Self::FORMAT.block_len();
    /// Bytes of a run.
    const BYTES: usize = Self::BLOCKS * Self::FORMAT.block_bytes();
    /// Whether x is rounded to 8 bits.
    const INT8: bool;
    /// The layout of x.
    const ROUNDING: Rounding = Rounding::of(Self::FORMAT, Self::INT8);
    /// The part of a run that is unpacked while the one before is multiplied.
    type Ahead<B: Bytes>: Copy;
    /// The sums of a row of x with a row of the weights.
    type Sums<B: Bytes>: Copy;

    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for a run while the result is in use.
    unsafe fn unpack<B: Bytes>(w: *const u8) -> Self::Ahead<B>;

    /// # Safety
    /// The instruction set of `B` is available.
    unsafe fn zero<B: Bytes>() -> Self::Sums<B>;

    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for the run from which `ahead` was unpacked and for eight bytes
    /// of each block, each of `x` for the lines of the rounded run.
    unsafe fn add<B: Bytes, const R: usize>(
        w: *const u8,
        ahead: Self::Ahead<B>,
        x: [*const u8; R],
        sums: &mut [Self::Sums<B>; R],
    );

    /// # Safety
    /// The instruction set of `B` is available.
    unsafe fn total<B: Bytes>(sums: Self::Sums<B>) -> f32;
}

/// The units of a rounded run.
///
/// # Safety
/// `x` is readable for the lines of a run.
#[inline(always)]
unsafe fn units<W: Weights>(x: *const u8) -> *const f32 {
    // SAFETY: the caller's contract.
    unsafe { x.add(W::ROUNDING.units()).cast() }
}

/// The sums of groups of 32 of a rounded run.
///
/// # Safety
/// `x` is readable for the lines of a run.
#[inline(always)]
unsafe fn sums_of<W: Weights>(x: *const u8) -> *const f32 {
    // SAFETY: the caller's contract.
    unsafe { x.add(W::ROUNDING.sums()).cast() }
}

/// Sums in eight lanes, one for each group of 32 elements of a run.
macro_rules! eight {
    () => {
        type Sums<B: Bytes> = B::Eight;

        #[inline(always)]
        unsafe fn zero<B: Bytes>() -> B::Eight {
            // SAFETY: the caller's contract.
            unsafe { B::zero_eight() }
        }
        #[inline(always)]
        unsafe fn total<B: Bytes>(sums: B::Eight) -> f32 {
            // SAFETY: the caller's contract.
            unsafe { B::total_eight(sums) }
        }
    };
}

/// Sums in sixteen lanes, for formats with smaller groups.
macro_rules! sixteen {
    () => {
        type Sums<B: Bytes> = B::Floats;

        #[inline(always)]
        unsafe fn zero<B: Bytes>() -> B::Floats {
            // SAFETY: the caller's contract.
            unsafe { B::splat(0.0) }
        }
        #[inline(always)]
        unsafe fn total<B: Bytes>(sums: B::Floats) -> f32 {
            // SAFETY: the caller's contract.
            unsafe { B::total(sums) }
        }
    };
}

/// Q4_K with four bits and Q5_K with five.
pub(super) struct Affine<const BITS: usize, const INT8: bool>;

impl<const BITS: usize, const INT8: bool> ConstFormat for Affine<BITS, INT8> {
    const FORMAT: QuantFormat = if BITS == 5 { QuantFormat::Q5K } else { QuantFormat::Q4K };
}

impl<const BITS: usize, const INT8: bool> Weights for Affine<BITS, INT8> {
    const INT8: bool = INT8;
    type Ahead<B: Bytes> = B::Block;
    eight!();

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
        sums: &mut [B::Eight; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let ints = B::dots::<BITS, INT8, R>(block, x, [B::no_ints(); R]);
            let halves = B::halves(w);
            let (scales, minima) = unpack_scales(&w.add(4).cast::<[u8; 12]>().read());
            let (scales, minima) = (B::eight_scales::<0>(scales, halves), B::eight_scales::<1>(minima, halves));
            for r in 0..R {
                let sum = B::add_eight(sums[r], B::fold(ints[r]), scales, units::<Self>(x[r]));
                sums[r] = B::sub_eight(sum, minima, sums_of::<Self>(x[r]));
            }
        }
    }
}

/// Q6_K.
pub(super) struct Symmetric<const INT8: bool>;

impl<const INT8: bool> ConstFormat for Symmetric<INT8> {
    const FORMAT: QuantFormat = QuantFormat::Q6K;
}

impl<const INT8: bool> Weights for Symmetric<INT8> {
    const INT8: bool = INT8;
    type Ahead<B: Bytes> = B::Block;
    sixteen!();

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
        sums: &mut [B::Floats; R],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            // The sum in a lane is below 16 * 32 * 32639 < 2^24, which f32 represents exactly, after subtracting 32
            // from every integer.
            let starts = x.each(|x| B::load_ints(x.add(const { Self::ROUNDING.small_sums() }).cast()));
            let ints = B::dots::<6, INT8, R>(block, x, starts);
            let (halves, scales) = (B::halves(w.add(202)), B::signed_codes(w.add(192)));
            if INT8 {
                let scales = B::mul(scales, B::factor::<3>(halves, 1.0));
                for r in 0..R {
                    sums[r] = B::add(sums[r], ints[r], B::mul(scales, B::load(units::<Self>(x[r]))));
                }
            } else {
                for r in 0..R {
                    sums[r] = B::add(sums[r], ints[r], B::mul(scales, B::factor::<3>(halves, *units::<Self>(x[r]))));
                }
            }
        }
    }
}

/// Runs `$body` with `$weights` as an alias of the type of a format, for x of 8 bits if the constant `$int8` is true.
macro_rules! for_weights {
    ($format:expr, $int8:expr, $weights:ident => $body:expr) => {
        for_weights! {
            $format, $int8, $weights => $body;
            Q8_0 = ByPieces<Q8_0, INT8>,
            Q4_0 = ByPieces<Q4_0, INT8>,
            Q4_1 = ByPieces<Q4_1, INT8>,
            Q5_0 = ByPieces<Q5_0, INT8>,
            Q5_1 = ByPieces<Q5_1, INT8>,
            Iq4Nl = ByPieces<Iq4Nl, INT8>,
            Mxfp4 = ByPieces<Mxfp4, INT8>,
            Q2K = ByHalves<Q2K>,
            Q3K = ByHalves<Q3K>,
            Q4K = Affine<4, INT8>,
            Q5K = Affine<5, INT8>,
            Q6K = Symmetric<INT8>,
            Iq4Xs = ByPieces<Iq4Xs, INT8>,
        }
    };
    ($format:expr, $int8:expr, $weights:ident => $body:expr; $($variant:ident = $type:ty,)+) => {
        match $format {
            $(kiln_ir::QuantFormat::$variant => {
                use crate::quant::weights::*;
                #[allow(dead_code)] // of two formats, which are never rounded to 8 bits
                const INT8: bool = $int8;
                type $weights = $type;
                $body
            })+
        }
    };
}
pub(super) use for_weights;

/// Formats whose runs are unpacked 32 small integers at a time, called a piece, with a scale for each.
pub(super) trait Pieces {
    const FORMAT: QuantFormat;

    /// The scales of the pieces of a run.
    ///
    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for a run.
    unsafe fn scales<B: Bytes>(w: *const u8) -> B::Eight;
    /// The minima that are added to the pieces, if the format has them.
    ///
    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for a run.
    unsafe fn added<B: Bytes>(w: *const u8) -> Option<B::Eight>;
    /// The integers of a piece.
    ///
    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for a run.
    unsafe fn integers<B: Bytes>(w: *const u8, piece: usize) -> B::Wide;
}

/// Products by pieces.
pub(super) struct ByPieces<P, const INT8: bool>(PhantomData<P>);

impl<P: Pieces, const INT8: bool> ConstFormat for ByPieces<P, INT8> {
    const FORMAT: QuantFormat = P::FORMAT;
}

impl<P: Pieces, const INT8: bool> Weights for ByPieces<P, INT8> {
    const INT8: bool = INT8;
    type Ahead<B: Bytes> = ();
    eight!();

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(_w: *const u8) {}

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(w: *const u8, (): (), x: [*const u8; R], sums: &mut [B::Eight; R]) {
        // SAFETY: the caller's contract; a run is 256 integers and as many words or bytes of x.
        unsafe {
            let run = if const { B::APART } { unpack_apart::<P, B>(w) } else { unpack::<P, B>(w) };
            for r in 0..R {
                let products = if const { B::APART } {
                    dots_apart::<B, INT8>(&run.q, x[r])
                } else {
                    B::dots_of_run::<INT8>(&run.q, x[r])
                };
                sums[r] = B::add_eight(sums[r], products, run.scales, units::<Self>(x[r]));
                if let Some(added) = run.added {
                    sums[r] = B::sub_eight(sums[r], added, sums_of::<Self>(x[r]));
                }
            }
        }
    }
}

/// A run of [`Pieces`].
struct Run<B: Bytes> {
    scales: B::Eight,
    added: Option<B::Eight>,
    q: [B::Wide; 8],
}

/// # Safety
/// The instruction set of `B` is available; `w` is readable for a run.
#[inline(always)]
unsafe fn unpack<P: Pieces, B: Bytes>(w: *const u8) -> Run<B> {
    // SAFETY: the caller's contract.
    unsafe {
        let q = [0, 1, 2, 3, 4, 5, 6, 7].each(|piece| P::integers::<B>(w, piece));
        Run { scales: P::scales::<B>(w), added: P::added::<B>(w), q }
    }
}

/// [`unpack`] for sets that are [`Bytes::APART`].
///
/// # Safety
/// The conditions of [`unpack`] hold.
#[inline(never)]
unsafe fn unpack_apart<P: Pieces, B: Bytes>(w: *const u8) -> Run<B> {
    // SAFETY: the caller's contract.
    unsafe { unpack::<P, B>(w) }
}

/// [`Bytes::dots_of_run`] for sets that are [`Bytes::APART`].
///
/// # Safety
/// The conditions of [`Bytes::dots_of_run`] hold.
#[inline(never)]
unsafe fn dots_apart<B: Bytes, const INT8: bool>(q: &[B::Wide; 8], x: *const u8) -> B::EightInts {
    // SAFETY: the caller's contract.
    unsafe { B::dots_of_run::<INT8>(q, x) }
}

/// Formats with a scale for each block of 32, the f16 at its start. The next one, if it has that, is added.
macro_rules! whole {
    ($($format:ident = |$w:ident| $integers:expr;)+) => {$(
        pub(super) struct $format;

        impl Pieces for $format {
            const FORMAT: QuantFormat = QuantFormat::$format;

            #[inline(always)]
            unsafe fn scales<B: Bytes>(w: *const u8) -> B::Eight {
                // SAFETY: the caller's contract.
                unsafe { B::eight_halves::<{ QuantFormat::$format.block_bytes() }>(w) }
            }
            #[inline(always)]
            unsafe fn added<B: Bytes>(w: *const u8) -> Option<B::Eight> {
                const HAS_MINIMA: bool = QuantFormat::$format.layout().minimum().is_some();
                // SAFETY: the caller's contract.
                HAS_MINIMA.then(|| unsafe { B::eight_halves::<{ QuantFormat::$format.block_bytes() }>(w.add(2)) })
            }
            #[inline(always)]
            unsafe fn integers<B: Bytes>(w: *const u8, piece: usize) -> B::Wide {
                // SAFETY: the caller's contract; offsets are those of the layout.
                unsafe {
                    let $w = w.add(piece * QuantFormat::$format.block_bytes());
                    $integers
                }
            }
        }
    )+};
}

whole! {
    Q8_0 = |w| B::wide(w.add(2));
    Q4_0 = |w| B::shifted(B::nibbles(w.add(2)), -8);
    Q4_1 = |w| B::nibbles(w.add(4));
    Q5_0 = |w| B::shifted(B::with_bits(B::nibbles(w.add(6)), w.add(2)), -16);
    Q5_1 = |w| B::with_bits(B::nibbles(w.add(8)), w.add(4));
    Iq4Nl = |w| B::looked_up(B::nibbles(w.add(2)), &NORMAL);
}

/// IQ4_XS.
pub(super) struct Iq4Xs;

impl Pieces for Iq4Xs {
    const FORMAT: QuantFormat = QuantFormat::Iq4Xs;

    #[inline(always)]
    unsafe fn scales<B: Bytes>(w: *const u8) -> B::Eight {
        // SAFETY: the caller's contract; there are eight.
        unsafe { B::load_eight(iq4_xs::scales(&*w.cast())[0].as_ptr()) }
    }
    #[inline(always)]
    unsafe fn added<B: Bytes>(_w: *const u8) -> Option<B::Eight> {
        None
    }
    #[inline(always)]
    unsafe fn integers<B: Bytes>(w: *const u8, piece: usize) -> B::Wide {
        // SAFETY: the caller's contract; offsets are those of the layout.
        unsafe { B::looked_up(B::nibbles(w.add(8 + 16 * piece)), &NORMAL) }
    }
}

/// MXFP4, whose scales are powers of two of any size.
pub(super) struct Mxfp4;

impl Pieces for Mxfp4 {
    const FORMAT: QuantFormat = QuantFormat::Mxfp4;

    #[inline(always)]
    unsafe fn scales<B: Bytes>(w: *const u8) -> B::Eight {
        let mut scales = [0.0f32; 8];
        for (i, scale) in scales.iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            *scale = large_enough(mxfp4::scale(unsafe { w.add(i * mxfp4::BYTES).read() }));
        }
        // SAFETY: the caller's contract; there are eight.
        unsafe { B::load_eight(scales.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn added<B: Bytes>(_w: *const u8) -> Option<B::Eight> {
        None
    }
    #[inline(always)]
    unsafe fn integers<B: Bytes>(w: *const u8, piece: usize) -> B::Wide {
        // SAFETY: the caller's contract; the nibbles follow the scale.
        unsafe { B::looked_up(B::nibbles(w.add(piece * mxfp4::BYTES + 1)), &DOUBLED) }
    }
}

/// A scale that is a power of two, or NaN if products with it could be subnormal: they are then computed from the elements.
#[inline(always)]
pub(super) fn large_enough(scale: f32) -> f32 {
    // Units are at least 2^-95.
    const LEAST: f32 = f32::from_bits((127 - 30) << 23);
    if scale < LEAST { f32::NAN } else { scale }
}

/// Formats of blocks of 256 with a scale for each 16 elements, half a piece.
pub(super) trait Halves {
    const FORMAT: QuantFormat;

    /// The scales and minima of a block.
    ///
    /// # Safety
    /// `w` is readable for a block.
    unsafe fn scales(w: *const u8) -> [[f32; 16]; 2];
    /// The integers of a piece.
    ///
    /// # Safety
    /// The instruction set of `B` is available; `w` is readable for a block.
    unsafe fn integers<B: Bytes>(w: *const u8, piece: usize) -> B::Wide;
}

/// Products by pieces with two scales each.
pub(super) struct ByHalves<P>(PhantomData<P>);

impl<P: Halves> ConstFormat for ByHalves<P> {
    const FORMAT: QuantFormat = P::FORMAT;
}

impl<P: Halves> Weights for ByHalves<P> {
    const INT8: bool = false;
    type Ahead<B: Bytes> = ();
    sixteen!();

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(_w: *const u8) {}

    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(w: *const u8, (): (), x: [*const u8; R], sums: &mut [B::Floats; R]) {
        let has_minima = const { P::FORMAT.layout().minimum().is_some() };
        // SAFETY: the caller's contract; a piece is 32 integers, as many words of x, and their unit.
        unsafe {
            let scales = P::scales(w);
            for piece in 0..8 {
                let q = P::integers::<B>(w, piece);
                for r in 0..R {
                    let unit = *units::<Self>(x[r]).add(piece);
                    // The sum in a lane is at most 2 * 128 * 32639 < 2^24, which f32 represents exactly.
                    let value = B::dot(q, x[r].add(64 * piece));
                    sums[r] = B::add(sums[r], value, of_lanes::<B>(&scales[0], piece, unit));
                    if has_minima {
                        let pairs = x[r].add(const { Self::ROUNDING.small_sums() } + 64 * piece).cast();
                        sums[r] = B::sub(sums[r], pairs, of_lanes::<B>(&scales[1], piece, unit));
                    }
                }
            }
        }
    }
}

/// The number of its half of a piece for each lane, times a unit: a lane takes two neighbours.
///
/// # Safety
/// The instruction set of `B` is available.
#[inline(always)]
unsafe fn of_lanes<B: Bytes>(numbers: &[f32; 16], piece: usize, unit: f32) -> B::Floats {
    // SAFETY: the caller's contract.
    unsafe { B::pair(numbers[2 * piece] * unit, numbers[2 * piece + 1] * unit) }
}

macro_rules! halves {
    ($($format:ident = $module:ident, |$w:ident, $piece:ident| $integers:expr;)+) => {$(
        pub(super) struct $format;

        impl Halves for $format {
            const FORMAT: QuantFormat = QuantFormat::$format;

            #[inline(always)]
            unsafe fn scales(w: *const u8) -> [[f32; 16]; 2] {
                // SAFETY: the caller's contract.
                $module::scales(unsafe { &*w.cast() })
            }
            #[inline(always)]
            unsafe fn integers<B: Bytes>($w: *const u8, $piece: usize) -> B::Wide {
                // SAFETY: the caller's contract; offsets are those of the layout.
                unsafe { $integers }
            }
        }
    )+};
}

halves! {
    // Four pieces of 32 integers share 32 bytes.
    Q2K = q2_k, |w, piece| B::masked(B::wide(w.add(16 + 32 * (piece / 4))), 2 * (piece % 4), 3);
    Q3K = q3_k, |w, piece| {
        let low = B::masked(B::wide(w.add(32 + 32 * (piece / 4))), 2 * (piece % 4), 3);
        B::shifted(B::with_third(low, B::masked(B::wide(w), piece, 1)), -4)
    };
}
