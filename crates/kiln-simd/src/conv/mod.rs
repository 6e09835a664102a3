//! Two-dimensional convolution.
//!
//! Three ways, all without an unrolled copy of the image (im2col):
//!
//! - Few output channels ([`plane`]): each pair of channels is a pass of a stencil over rows, with a block of results in
//!   registers.
//! - Many output channels that fill vectors, and many terms ([`pixels`]): pixels times vectors of output channels, in register
//!   tiles. Kernels have to be packed for it, once for many images ([`packed`]) or each time.
//! - Others ([`channels`]): elements of kernels times vectors of pixels, in register tiles.
//!
//! All want an image without padding and stride. Where it has them, it is copied into a [`frame`] first. A dilation only changes
//! where in an image or a frame the pixels under a kernel are. Groups of channels are convolutions of their own. A transposed
//! convolution is cut into convolutions ([`transposed`]).

mod channels;
mod frame;
mod packed;
mod pixels;
mod plane;
mod reach;
mod transposed;

use kiln_ir::op::{Convolve2d, ConvolveExtents};
use kiln_ir::{DataMut, Operand, Result};

use frame::{Frame, Region};

use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::{Isa, scratch};

pub use packed::PackedKernels;
use reach::Reach;

/// Number of output channels below which passes over planes are faster than register tiles, which would not be full.
const MANY: usize = 4;

/// Flops below which one thread is faster: about twenty microseconds of work.
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

/// Convolves non-empty images with kernels that may reach far beyond them.
fn convolve_far(
    simd: &Simd,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: &mut [f32],
) -> Result<()> {
    let Some(reach) = Reach::new(e, stride) else {
        return convolve(simd, e, stride, x, kernel, y);
    };
    convolve(simd, &reach.extents, stride, x, &reach.cut(e, kernel)?, y)?;
    reach.poison(e, kernel, y);
    Ok(())
}

/// Limits strides that are never used, because there is only one result, so that no address overflows.
fn bounded(e: &ConvolveExtents, stride: (usize, usize)) -> (usize, usize) {
    let along = |stride: usize, out: usize, near: usize| if out == 1 { stride.min(near) } else { stride };
    (along(stride.0, e.out_h, e.h.max(e.kh)), along(stride.1, e.out_w, e.w.max(e.kw)))
}

/// Number of threads to compute this many results.
fn threads(simd: &Simd, e: &ConvolveExtents, results: usize) -> usize {
    let work = 2usize.saturating_mul(results).saturating_mul(e.terms());
    if work < PARALLEL { 1 } else { simd.threads() }
}

/// Convolves non-empty images.
///
/// # Errors
/// [`Error::OutOfMemory`](kiln_ir::Error::OutOfMemory) if padding makes frames too large for the memory.
fn convolve(
    simd: &Simd,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: &mut [f32],
) -> Result<()> {
    let (isa, stride, threads) = (simd.isa(), bounded(e, stride), threads(simd, e, y.len()));
    let group = e.of_group();
    let few = Region { rows: 0..e.out_h.min(4 * e.dilation.0), columns: 0..e.out_w };
    let frames = Frame::new(e, stride, &few).elements().saturating_mul(group.c_in as u128);
    scratch::room(&[usize::try_from(frames).unwrap_or(usize::MAX)], threads)?;
    if e.groups == 1 {
        convolve_group(isa, threads, e, stride, x, kernel, y);
        return Ok(());
    }
    let (image, results) = (group.c_in * e.h * e.w, group.c_out * e.out_h * e.out_w);
    let kernels = group.c_out * group.terms();
    let part = |part: usize, threads: usize, y: &mut [f32]| {
        let (x, kernel) = (&x[part * image..][..image], &kernel[part % e.groups * kernels..][..kernels]);
        convolve_group(isa, threads, &group, stride, x, kernel, y);
    };
    let parts = e.batch * e.groups;
    if parts < threads {
        y.chunks_exact_mut(results).enumerate().for_each(|(number, y)| part(number, threads, y));
    } else {
        assert!(y.len() >= parts * results);
        let out = Shared::new(y.as_mut_ptr());
        threads::for_each(parts, threads, |number| {
            // SAFETY: the number of results was checked above; every part has its own.
            let y = unsafe { std::slice::from_raw_parts_mut(out.get().wrapping_add(number * results), results) };
            part(number, 1, y);
        });
    }
    Ok(())
}

/// Convolves non-empty images in one group.
fn convolve_group(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: &mut [f32],
) {
    // Passes over planes add their sums one by one, so there must be few of them to limit the error.
    if e.c_out < MANY && e.c_in <= 16 && e.kw <= 64 {
        plane::run(isa, threads, e, stride, x, kernel, y);
    } else if pixels::suits(isa, [e.c_out, e.c_in, e.kh, e.kw]) {
        pixels::run(isa, threads, e, stride, x, kernel, y);
    } else {
        channels::run(isa, threads, e, stride, x, kernel, y);
    }
}
