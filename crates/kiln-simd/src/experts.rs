//! Products of rows with the matrices of the experts that are chosen for them.
//!
//! The rows of an expert are brought together, so that its matrix is read once for all of them, and multiplied by the kernels of
//! other products.

use kiln_ir::op::MatmulByExpert;
use kiln_ir::{Data, DataMut, Operand, Result, zeros};

use crate::cast::as_f32;
use crate::simd::{Execute, Simd};
use crate::{matmul, quant};

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
        floats => matmul::rows(simd, x, floats, (m, k, n), cast, out)?,
    }
    Ok(())
}
