//! Two-dimensional convolution.
//!
//! Three ways, all without an unrolled copy of the picture (im2col):
//!
//! - Few output channels ([`plane`]): each pair of channels is a pass of a stencil over rows, with a block of results in
//!   registers.
//! - Many output channels that fill vectors, and many terms ([`pixels`]): pixels times vectors of output channels, in register
//!   tiles. Kernels have to be packed for it, once for many pictures ([`packed`]) or each time.
//! - Others ([`channels`]): elements of kernels times vectors of pixels, in register tiles.
//!
//! All want a picture without padding and stride. Where it has them, it is copied into a [`frame`] first.

mod channels;
mod frame;
mod packed;
mod pixels;
mod plane;
mod reach;

use kiln_ir::op::{Convolve2d, ConvolveExtents};
use kiln_ir::{DataMut, Operand, Result};

use crate::simd::{Execute, Simd, f32s};

pub use packed::PackedKernels;
use reach::Reach;

/// Output channels below which passes over planes are faster than register tiles, which they would not fill.
const MANY: usize = 4;

/// Flops below which one thread is faster: some twenty microseconds of work.
const PARALLEL: usize = 2_000_000;

impl Execute for Convolve2d {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let e = self.extents(&inputs[0].shape(), &inputs[1].shape())?;
        let (x, kernel, y) = (f32s(inputs, 0), f32s(inputs, 1), outputs[0].f32());
        if y.is_empty() || e.c_in == 0 {
            y.fill(0.0);
            return Ok(());
        }
        convolve_far(simd, &e, self.stride, x, kernel, y)
    }
}

/// Convolves pictures that have pixels, with kernels that may reach far beyond them.
fn convolve_far(
    simd: &Simd,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: &mut [f32],
) -> Result<()> {
    let Some(reach) = Reach::new(e, stride) else {
        convolve(simd, e, stride, x, kernel, y);
        return Ok(());
    };
    convolve(simd, &reach.extents(e), stride, x, &reach.cut(e, kernel)?, y);
    reach.poison(e, kernel, y);
    Ok(())
}

/// A stride beyond picture and kernel means one result; kept near them, no address overflows.
fn bounded(e: &ConvolveExtents, stride: (usize, usize)) -> (usize, usize) {
    (stride.0.min(e.h.max(e.kh)), stride.1.min(e.w.max(e.kw)))
}

/// How many threads compute so many results.
fn threads(simd: &Simd, e: &ConvolveExtents, results: usize) -> usize {
    let work = 2usize.saturating_mul(results).saturating_mul(e.c_in * e.kh * e.kw);
    if work < PARALLEL { 1 } else { simd.threads() }
}

/// Convolves pictures that have pixels.
fn convolve(simd: &Simd, e: &ConvolveExtents, stride: (usize, usize), x: &[f32], kernel: &[f32], y: &mut [f32]) {
    let (stride, threads) = (bounded(e, stride), threads(simd, e, y.len()));
    // Passes over planes add up their sums one by one, so there must not be many, or the error would grow.
    if e.c_out < MANY && e.c_in <= 16 && e.kw <= 64 {
        plane::run(simd.isa(), threads, e, stride, x, kernel, y);
    } else if pixels::suits(simd.isa(), [e.c_out, e.c_in, e.kh, e.kw]) {
        pixels::run(simd.isa(), threads, e, stride, x, kernel, y);
    } else {
        channels::run(simd.isa(), threads, e, stride, x, kernel, y);
    }
}
