//! Quantised blocks: quantising, dequantising, and products.

mod activations;
#[cfg(target_arch = "x86_64")]
mod panels;
mod product;
mod weights;

use kiln_ir::op::{Dequantize, QuantMatmul, Quantize};
use kiln_ir::{DataMut, Operand, QuantFormat, Result};

use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{PlainKernel, dispatch_plain};

/// Encodes whole blocks with kiln-ir's quantiser, compiled for the instruction set.
struct Encode<'a>(QuantFormat, &'a [f32], &'a mut [u8]);

impl PlainKernel for Encode<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run(self) -> Result<()> {
        self.0.encode_inlined(self.1, self.2)
    }
}

/// Decodes whole blocks with kiln-ir's decoder, compiled for the instruction set.
struct Decode<'a>(QuantFormat, &'a [u8], &'a mut [f32]);

impl PlainKernel for Decode<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run(self) -> Result<()> {
        self.0.decode_inlined(self.1, self.2)
    }
}

/// Splits `n` blocks into parts of `part` and calls `run(first block, blocks)` for each; on one thread up to `alone` blocks.
fn for_parts(simd: &Simd, n: usize, part: usize, alone: usize, run: impl Fn(usize, usize) + Sync) {
    let threads = if n > alone { simd.threads() } else { 1 };
    threads::for_each(n.div_ceil(part), threads, |i| run(i * part, part.min(n - i * part)));
}

impl Execute for Quantize {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (x, out) = (f32s(inputs, 0), outputs[0].blocks());
        let (len, bytes) = (self.format.block_len(), self.format.block_bytes());
        let out = Shared::new(out.as_mut_ptr());
        for_parts(simd, x.len() / len, ENCODE_PART / len, ENCODE_PART / len, |first, n| {
            // SAFETY: by the shape rule the output has as many blocks as the input; parts do not overlap.
            let blocks = unsafe { std::slice::from_raw_parts_mut(out.get().add(first * bytes), n * bytes) };
            // SAFETY: a `Simd` exists only for an available instruction set. Lengths agree, so it cannot fail.
            let _ =
                unsafe { dispatch_plain(simd.isa(), Encode(self.format, &x[first * len..(first + n) * len], blocks)) };
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
        for_parts(simd, n, DECODE_PART / len, DECODE_ALONE / len, |first, n| {
            // SAFETY: by the shape rule the output has as many blocks as the input; parts do not overlap.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(first * len), n * len) };
            // SAFETY: a `Simd` exists only for an available instruction set. Lengths agree, so it cannot fail.
            let _ = unsafe {
                dispatch_plain(simd.isa(), Decode(self.format, &blocks[first * bytes..(first + n) * bytes], out))
            };
        });
        Ok(())
    }
}

/// `out = x wᵀ` for extents `[m, n, k]`, none of them zero.
pub(crate) fn multiply(simd: &Simd, format: QuantFormat, x: &[f32], w: &[u8], extents: [usize; 3], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(kind) = panels::Kind::new(simd, format, extents[0]) {
        return panels::multiply(simd, kind, x, w, extents, out);
    }
    product::multiply(simd, format, x, w, extents, out);
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
            multiply(simd, self.format, x, inputs[1].data().blocks(), [out.len() / n, n, k], out);
        }
        Ok(())
    }
}

/// Elements that one thread quantises in about a tenth of a millisecond.
const ENCODE_PART: usize = 8192;

/// Elements that one thread dequantises in about four microseconds: while other threads wake up, the first one does not take so much that
/// they wait for it in the end.
const DECODE_PART: usize = 16_384;

/// Elements that one thread dequantises in about thirty microseconds; starting others takes a few.
const DECODE_ALONE: usize = 131_072;
