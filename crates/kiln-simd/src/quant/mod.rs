//! Quantised blocks: to them, from them, and products with them.

mod activations;
mod product;
mod weights;

use kiln_core::op::{Dequantize, QuantMatmul, Quantize};
use kiln_core::{DataMut, Operand, QuantFormat, Result};

use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{ByteKernel, Bytes, Kernel, Vector, dispatch, dispatch_bytes};
use weights::{Weights, for_weights};

use std::marker::PhantomData;

/// Encodes whole blocks: the quantiser of kiln-core, compiled for the instruction set.
struct Encode<'a>(QuantFormat, &'a [f32], &'a mut [u8]);

impl Kernel for Encode<'_> {
    type Output = Result<()>;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> Result<()> {
        self.0.encode(self.1, self.2)
    }
}

/// Decodes `n` blocks.
///
/// # Safety
/// `blocks` is good for reading and `out` for writing as many.
struct Decode<W> {
    blocks: *const u8,
    out: *mut f32,
    n: usize,
    weights: PhantomData<W>,
}

impl<W: Weights> ByteKernel for Decode<W> {
    #[inline(always)]
    unsafe fn run<B: Bytes>(self) {
        for i in 0..self.n {
            // SAFETY: the contract of `Decode`.
            unsafe { W::decode::<B>(self.blocks.add(i * W::BYTES), self.out.add(i * W::FORMAT.block_len())) }
        }
    }
}

/// Splits `n` blocks into parts of `part` and calls `run(first block, blocks)` for each.
fn for_parts(simd: &Simd, n: usize, part: usize, run: impl Fn(usize, usize) + Sync) {
    let threads = if n > part { simd.threads() } else { 1 };
    threads::for_each(n.div_ceil(part), threads, |i| run(i * part, part.min(n - i * part)));
}

impl Execute for Quantize {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (x, out) = (f32s(inputs, 0), outputs[0].blocks());
        let (len, bytes) = (self.format.block_len(), self.format.block_bytes());
        let out = Shared::new(out.as_mut_ptr());
        for_parts(simd, x.len() / len, ENCODE_PART / len, |first, n| {
            // SAFETY: the shape rule makes the output as many blocks as the input; parts do not overlap.
            let blocks = unsafe { std::slice::from_raw_parts_mut(out.get().add(first * bytes), n * bytes) };
            // SAFETY: a `Simd` exists only for an available instruction set. Lengths agree, so it cannot fail.
            let _ = unsafe { dispatch(simd.isa(), Encode(self.format, &x[first * len..(first + n) * len], blocks)) };
        });
        Ok(())
    }
}

impl Execute for Dequantize {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (blocks, out) = (inputs[0].data().blocks(), outputs[0].f32());
        let (len, bytes) = (self.format.block_len(), self.format.block_bytes());
        let n = out.len() / len;
        let out = Shared::new(out.as_mut_ptr());
        let blocks = Shared::new(blocks.as_ptr().cast_mut());
        for_parts(simd, n, DECODE_PART / len, |first, n| {
            // SAFETY: the shape rule makes the output as many blocks as the input; parts do not overlap. The blocks
            // are only read. A `Simd` exists only for an available instruction set.
            unsafe {
                let (blocks, out) = (blocks.get().add(first * bytes).cast_const(), out.get().add(first * len));
                for_weights!(self.format, W => {
                    dispatch_bytes(simd.isa(), Decode::<W> { blocks, out, n, weights: PhantomData })
                });
            }
        });
        Ok(())
    }
}

impl Execute for QuantMatmul {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let x = f32s(inputs, 0);
        let (n, k) = (inputs[1].shape().rows(), inputs[1].shape().columns());
        let out = outputs[0].f32();
        if k == 0 {
            out.fill(0.0);
        }
        if !out.is_empty() && k > 0 {
            product::multiply(simd, self.format, x, inputs[1].data().blocks(), [out.len() / n, n, k], out);
        }
        Ok(())
    }
}

/// Elements that one thread quantises in about a tenth of a millisecond.
const ENCODE_PART: usize = 8192;

/// Elements that one thread dequantises in about thirty microseconds.
const DECODE_PART: usize = 131_072;
