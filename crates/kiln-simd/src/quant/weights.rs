//! The weights of each format: how a block adds to sums.

use kiln_ir::QuantFormat;
use kiln_ir::quant::{
    Unpacked, iq4_nl, iq4_xs, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, unpack_scales,
};

use super::activations::{Line, Rounding, SUMS};
use crate::array::Each;
use crate::vector::Bytes;

/// The weights of a format: how a block adds to the sums of `R` rows.
pub(super) trait Weights {
    const FORMAT: QuantFormat;
    const BYTES: usize;
    /// How x is laid out.
    const ROUNDING: Rounding = Rounding::of(Self::FORMAT);
    /// What is unpacked of a block while the one before is multiplied.
    type Ahead<B: Bytes>: Copy;

    /// # Safety
    /// The instruction set of `B` is there; `w` is good for reading a block while the result is in use.
    unsafe fn unpack<B: Bytes>(w: *const u8) -> Self::Ahead<B>;

    /// # Safety
    /// The instruction set of `B` is there; `w` is good for reading a block, from which `ahead` was unpacked, each of `x` the
    /// rounded elements that it meets, each of `units` their units.
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
            // A lane takes at most 16 * 31 * 32639 < 2^24, which f32 holds.
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
            // A lane takes at most 16 * 32 * 32639 < 2^24, which f32 holds, once 32 is off every integer.
            let ints = B::dots::<6, R>(block, x, x.each(|x| B::load_ints(x.add(SUMS).cast())));
            let (halves, scales) = (B::halves(w.add(202)), B::signed_codes(w.add(192)));
            for r in 0..R {
                sums[r] = B::add(sums[r], ints[r], B::mul(scales, B::factor::<3>(halves, *units[r])));
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
            kiln_ir::QuantFormat::Q4_0 => {
                type $weights = crate::quant::weights::Q4_0;
                $body
            }
            kiln_ir::QuantFormat::Q4_1 => {
                type $weights = crate::quant::weights::Q4_1;
                $body
            }
            kiln_ir::QuantFormat::Q5_0 => {
                type $weights = crate::quant::weights::Q5_0;
                $body
            }
            kiln_ir::QuantFormat::Q5_1 => {
                type $weights = crate::quant::weights::Q5_1;
                $body
            }
            kiln_ir::QuantFormat::Iq4Nl => {
                type $weights = crate::quant::weights::Iq4Nl;
                $body
            }
            kiln_ir::QuantFormat::Q2K => {
                type $weights = crate::quant::weights::Q2K;
                $body
            }
            kiln_ir::QuantFormat::Q3K => {
                type $weights = crate::quant::weights::Q3K;
                $body
            }
            kiln_ir::QuantFormat::Iq4Xs => {
                type $weights = crate::quant::weights::Iq4Xs;
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

/// Adds a block in the general form, 32 elements at a time: a lane takes two neighbours, which a group always has in common.
///
/// # Safety
/// As [`Weights::add`].
#[inline(always)]
unsafe fn add_unpacked<B: Bytes, const R: usize, const LEN: usize, const GROUPS: usize, const MINIMA: bool>(
    block: &Unpacked<LEN, GROUPS>,
    x: [*const u8; R],
    units: [*const f32; R],
    sums: &mut [B::Floats; R],
) {
    let line = size_of::<Line>();
    let of_piece = if MINIMA { 2 * line } else { line };
    for piece in 0..LEN / 32 {
        // SAFETY: the caller's contract; a piece is 32 integers of the block, as many elements of x, and their unit.
        unsafe {
            let steps = lanes::<B, GROUPS>(&block.scales, piece, LEN / 32);
            let minima = lanes::<B, GROUPS>(&block.minima, piece, LEN / 32);
            let q = block.q.as_ptr().add(32 * piece).cast();
            for r in 0..R {
                let (x, unit) = (x[r].add(of_piece * piece), B::splat(*units[r].add(piece)));
                // A lane takes at most 2 * 128 * 32639 < 2^24, which f32 holds.
                sums[r] = B::add(sums[r], B::wide_dot(q, x), B::mul(steps, unit));
                if MINIMA {
                    sums[r] = B::sub(sums[r], x.add(line).cast(), B::mul(minima, unit));
                }
            }
        }
    }
}

/// The number of the group of each lane, of 32 elements of `pieces`.
///
/// # Safety
/// The instruction set of `B` is there.
#[inline(always)]
unsafe fn lanes<B: Bytes, const GROUPS: usize>(numbers: &[f32; GROUPS], piece: usize, pieces: usize) -> B::Floats {
    // SAFETY: the caller's contract; there are 16.
    unsafe {
        if GROUPS == pieces {
            B::splat(numbers[piece])
        } else {
            let mut lanes = [numbers[2 * piece]; 16];
            lanes[8..].fill(numbers[2 * piece + 1]);
            B::load(lanes.as_ptr())
        }
    }
}

/// Formats whose blocks are unpacked to the general form.
macro_rules! unpacked {
    ($($weights:ident = $module:ident),+ $(,)?) => {$(
        pub(super) struct $weights;

        impl Weights for $weights {
            const FORMAT: QuantFormat = QuantFormat::$weights;
            const BYTES: usize = $module::BYTES;
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
                const MINIMA: bool = QuantFormat::$weights.layout().minimum().is_some();
                // SAFETY: the caller's contract.
                unsafe {
                    let block = $module::unpack(&*w.cast());
                    add_unpacked::<B, R, { $module::LEN }, _, MINIMA>(&block, x, units, sums);
                }
            }
        }
    )+};
}

unpacked! {
    Q4_0 = q4_0,
    Q4_1 = q4_1,
    Q5_0 = q5_0,
    Q5_1 = q5_1,
    Iq4Nl = iq4_nl,
    Q2K = q2_k,
    Q3K = q3_k,
    Iq4Xs = iq4_xs,
}
