//! Products of rows with the matrices of the experts that are chosen for them.
//!
//! The rows of an expert are brought together, so that its matrix is read once for all of them, and multiplied by the kernels of
//! other products.

use kiln_ir::op::{Matmul, MatmulByExpert};
use kiln_ir::{DType, Data, DataMut, Operand, Result, zeros};

use crate::cast::ToF32;
use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};
use crate::vector::dispatch_plain;
use crate::{gemm, quant};

/// 16-bit elements that a thread casts at once.
const SHARE: usize = 65_536;

impl Execute for MatmulByExpert {
    const READS_STORED: bool = true;

    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let [x, weights, indices] = inputs else { return Ok(()) };
        let e = self.extents(&x.shape(), &weights.shape(), &indices.shape())?;
        let (indices, out) = (indices.data().u32(), outputs[0].f32());
        // Checked before anything is written.
        self.check(indices, e.experts)?;
        if out.is_empty() || e.k == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let mut wide = Vec::new();
        let x = as_f32(simd, x.data(), &mut wide)?;
        let row = |product: usize| &x[product / e.used * e.k..][..e.k];
        // A stable sort, so that the rows of an expert stay in order.
        let mut order: Vec<usize> = (0..indices.len()).collect();
        order.sort_by_key(|&product| indices[product]);
        let matrix = weights.ty().bytes() / e.experts;
        let (mut rows, mut products, mut cast) = (Vec::new(), Vec::new(), Vec::new());
        for same in order.chunk_by(|&a, &b| indices[a] == indices[b]) {
            let at = indices[same[0]] as usize * matrix;
            let weights = weights.data().part(at..at + matrix);
            let mut multiply = |x: &[f32], out: &mut [f32]| multiply(simd, x, weights, [e.n, e.k], &mut cast, out);
            if let &[product] = same {
                multiply(row(product), &mut out[product * e.n..][..e.n])?;
                continue;
            }
            rows.clear();
            kiln_ir::reserve(&mut rows, same.len() * e.k)?;
            same.iter().for_each(|&product| rows.extend_from_slice(row(product)));
            if products.len() < same.len() * e.n {
                products = zeros(same.len() * e.n)?;
            }
            let products = &mut products[..same.len() * e.n];
            multiply(&rows, products)?;
            for (&product, from) in same.iter().zip(products.chunks_exact(e.n)) {
                out[product * e.n..][..e.n].copy_from_slice(from);
            }
        }
        Ok(())
    }
}

/// `out = x wᵀ` for rows x of k elements and weights `[n, k]`, all non-empty. `cast` is memory for f32 weights.
fn multiply(
    simd: &Simd,
    x: &[f32],
    weights: Data<'_>,
    [n, k]: [usize; 2],
    cast: &mut Vec<f32>,
    out: &mut [f32],
) -> Result<()> {
    let m = x.len() / k;
    match weights {
        Data::Blocks(format, blocks) => quant::multiply(simd, format, x, blocks, [m, n, k], out),
        floats => {
            let op = Matmul { transpose_a: false, transpose_b: true };
            gemm::run_slices(simd, op, x, as_f32(simd, floats, cast)?, (m, k, n), out);
        }
    }
    Ok(())
}

/// Floats as f32: unchanged, or cast into `wide`.
fn as_f32<'a>(simd: &Simd, floats: Data<'a>, wide: &'a mut Vec<f32>) -> Result<&'a [f32]> {
    if floats.dtype() == DType::F32 {
        return Ok(floats.f32());
    }
    let (bytes, size) = (floats.bytes(), floats.dtype().size());
    let n = bytes / size;
    if wide.len() < n {
        *wide = zeros(n)?;
    }
    let threads = if n > SHARE { simd.threads() } else { 1 };
    let shared = Shared::new(wide.as_mut_ptr());
    threads::for_each(n.div_ceil(SHARE), threads, |part| {
        let (from, to) = (part * SHARE, n.min((part + 1) * SHARE));
        // SAFETY: `wide` has n elements, and parts do not overlap.
        let out = unsafe { std::slice::from_raw_parts_mut(shared.get().add(from), to - from) };
        // SAFETY: a `Simd` exists only for an available instruction set.
        unsafe { dispatch_plain(simd.isa(), ToF32(floats.part(from * size..to * size), out)) };
    });
    Ok(&wide[..n])
}
