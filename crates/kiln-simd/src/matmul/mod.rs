//! Matrix products: packed and cache-blocked, with separate algorithms for small, skinny and single-row products.
//!
//! For other kernels: [`driver::Gemm`] is `C = A B` on raw matrices with strides ([`MatrixRef`]), or with a B packed in
//! advance. C has contiguous rows. A may lie either way round.
//!
//! An element of C is a chain of multiply-adds over a block of k (cut by [`blocks::k_blocks`] from k alone), plus the chains of
//! the blocks before. Every way and every tile computes it so; only products of a single row or column with the rows of
//! a matrix ([`matvec`]), of few rows with a transposed B and of many with few columns ([`dots`]) sum along vectors instead. So results depend
//! neither on threads nor on the extents of parts.

mod blocked;
mod blocks;
mod cut;
mod direct;
mod dots;
mod driver;
mod matrix;
mod matvec;
mod pack;
mod packed;
mod stored;
mod tile;

use kiln_ir::op::{Matmul, MatmulExtents, Matvec};
use kiln_ir::{DType, Data, DataMut, Error, Operand, Result, Shape};

pub use packed::PackedB;
pub(crate) use {
    driver::Gemm,
    matrix::{MatrixRef, Source},
    pack::{panels as pack_panels, turn_square},
    tile::{each_row, for_rows},
};

use crate::Isa;
use crate::cast::as_f32;
use crate::scratch::Workspace;
use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};

impl Execute for Matmul {
    const READS_STORED: bool = true;

    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let shapes = [0, 1].map(|i| inputs[i].shape());
        let e = self.extents(&shapes[0], &shapes[1])?;
        let c = outputs[0].f32();
        let (mut wide_a, mut wide_b) = (Vec::new(), Vec::new());
        let a = as_f32(simd, inputs[0].data(), &mut wide_a)?;
        if !self.transpose_a && self.transpose_b && (e.batch == 1 || e.shared_b) && !c.is_empty() && e.k > 0 {
            return rows(simd, a, inputs[1].data(), (e.batch * e.m, e.k, e.n), &mut wide_b, c);
        }
        let b = as_f32(simd, inputs[1].data(), &mut wide_b)?;
        if e.batch == 1 {
            matmul(simd, *self, e, &|_| [0, 0], a, b, c);
        } else {
            let pairs = self.pairs(&shapes[0], &shapes[1]);
            matmul(simd, *self, e, &|i| pairs.of(i), a, b, c);
        }
        Ok(())
    }
}

impl Execute for Matvec {
    const READS_STORED: bool = true;

    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let &[rows, columns] = inputs[0].shape().dims() else { return Ok(()) };
        let (mut wide_a, mut wide_x) = (Vec::new(), Vec::new());
        let (a, x) = (inputs[0].data(), as_f32(simd, inputs[1].data(), &mut wide_x)?);
        let y = outputs[0].f32();
        if !self.transpose {
            stored::matvec(simd, a, [rows, columns], x, y);
            return Ok(());
        }
        let a = as_f32(simd, a, &mut wide_a)?.as_ptr();
        let m = matvec::Matvec { a, rows, columns, x: x.as_ptr(), y: y.as_mut_ptr() };
        // SAFETY: the shape rule has checked the extents; y is borrowed for writing.
        unsafe { m.run_transposed(simd.isa(), simd.threads()) };
        Ok(())
    }
}

/// All products of a stack: product `i` multiplies the matrices `pair(i)` of A and of B. The slices have the lengths
/// that the extents require.
fn matmul(
    simd: &Simd,
    op: Matmul,
    e: MatmulExtents,
    pair: &(dyn Fn(usize) -> [usize; 2] + Sync),
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
) {
    let MatmulExtents { mut batch, shared_b, mut m, k, n, .. } = e;
    if shared_b && !op.transpose_a {
        // Rows of all matrices follow one another: one tall matrix.
        (batch, m) = (1, batch * m);
    }
    if c.is_empty() {
        return;
    }
    let (isa, threads) = (simd.isa(), simd.threads());
    let out = Shared::new(c.as_mut_ptr());
    let one = |s: usize, threads: usize| {
        let [of_a, of_b] = pair(s);
        let a = &a[of_a * m * k..][..m * k];
        let b = &b[of_b * k * n..][..k * n];
        // SAFETY: the slices have these extents, only this product accesses matrix s of the output, a `Simd` has its
        // instruction set.
        unsafe { product(isa, threads, op, (m, k, n), a, b, out.get().add(s * m * n)) };
    };
    if batch == 1 {
        return one(0, threads);
    }
    // A stack of small products runs in parallel, a stack of large ones one after the other: whichever keeps more
    // threads busy.
    let each = m.saturating_mul(n).saturating_mul(k);
    let side_by_side = match batch >= threads {
        true => each < driver::PARALLEL * threads,
        false => batch > driver::threads_of(each, threads),
    };
    if side_by_side && each.saturating_mul(batch) >= driver::PARALLEL {
        let part = (driver::PARALLEL / 4).div_ceil(each.max(1)).min(batch.div_ceil(threads));
        threads::for_each(batch.div_ceil(part), threads, |p| {
            (p * part..batch.min(p * part + part)).for_each(|s| one(s, 1));
        });
    } else {
        (0..batch).for_each(|s| one(s, threads));
    }
}

/// One product, with the algorithm that suits its extents.
///
/// # Safety
/// The slices have the lengths that the extents require, `c` is writable for `m * n` and written by nobody else; the
/// instruction set is available.
#[inline]
unsafe fn product(
    isa: Isa,
    threads: usize,
    op: Matmul,
    (m, k, n): (usize, usize, usize),
    a: &[f32],
    b: &[f32],
    c: *mut f32,
) {
    // A single row or column is contiguous in either order.
    let vector = match (m, n) {
        (1, _) => Some((b, a, op.transpose_b)),
        (_, 1) => Some((a, b, !op.transpose_a)),
        _ => None,
    };
    // SAFETY: the caller's contract, in every branch.
    unsafe {
        if let Some((matrix, x, in_rows)) = vector {
            let results = m * n;
            let (rows, columns) = if in_rows { (results, k) } else { (k, results) };
            let v = matvec::Matvec { a: matrix.as_ptr(), rows, columns, x: x.as_ptr(), y: c };
            return if in_rows { v.run(isa, threads) } else { v.run_transposed(isa, threads) };
        }
        if op.transpose_b && !op.transpose_a && m <= driver::SKINNY && k >= dots::LEAST_K {
            let (a, b) = (a.as_ptr(), b.as_ptr());
            let dots = dots::DotsArgs { a, a_stride: k, b, b_stride: k, c, c_strides: (n, 1), k, n };
            return dots.run(isa, threads, m);
        }
        if !op.transpose_a && n <= dots::FEW_COLUMNS && m > driver::SKINNY && k >= dots::LEAST_K {
            // Cᵀ = Bᵀ Aᵀ: few rows times a transposed matrix. Bᵀ is small enough to be transposed first.
            let mut turned = None;
            let b = if op.transpose_b {
                b.as_ptr()
            } else {
                let out = turned.insert(Workspace::take(n * k)).as_mut_ptr();
                let from = MatrixRef::new(b, n, false).transposed();
                pack::panel(isa, pack::PanelArgs { from, long: n, short: k, width: k, out, slack: false });
                out
            };
            let args = dots::DotsArgs { a: b, a_stride: k, b: a.as_ptr(), b_stride: k, c, c_strides: (1, n), k, n: m };
            return args.run(isa, threads, n);
        }
        let gemm = Gemm {
            m,
            k,
            n,
            a: MatrixRef::new(a, if op.transpose_a { m } else { k }, op.transpose_a),
            b: Source::Matrix(MatrixRef::new(b, if op.transpose_b { k } else { n }, op.transpose_b)),
            c,
            c_stride: n,
        };
        gemm.run(isa, threads);
    }
}

/// `c = a bᵀ` for extents `(m, k, n)`, none of them zero, and a `b` of floats. `wide` is memory for a `b` that has to be cast.
pub(crate) fn rows(
    simd: &Simd,
    a: &[f32],
    b: Data<'_>,
    extents: (usize, usize, usize),
    wide: &mut Vec<f32>,
    c: &mut [f32],
) -> Result<()> {
    if b.dtype() != DType::F32 && stored::takes(extents.2) {
        stored::product(simd, extents, a, b, c);
    } else {
        run_slices(simd, Matmul { transpose_a: false, transpose_b: true }, a, as_f32(simd, b, wide)?, extents, c);
    }
    Ok(())
}

/// Computes a product if the slices have the lengths for its extents `(m, k, n)`. Returns whether it did.
pub(crate) fn run_slices(
    simd: &Simd,
    op: Matmul,
    a: &[f32],
    b: &[f32],
    (m, k, n): (usize, usize, usize),
    c: &mut [f32],
) -> bool {
    // Empty matrices are left to the shape rule, which also checks their other extents.
    let fits = |found: usize, rows: usize, columns: usize| found != 0 && rows.checked_mul(columns) == Some(found);
    let fit = fits(a.len(), m, k) && fits(b.len(), k, n) && fits(c.len(), m, n);
    if fit {
        // SAFETY: the lengths were checked; `c` is borrowed for writing; a `Simd` has its instruction set.
        unsafe { product(simd.isa(), simd.threads(), op, (m, k, n), a, b, c.as_mut_ptr()) };
    }
    fit
}

/// Checks the length of a matrix against its extents.
fn length(op: &'static str, operand: &'static str, found: usize, rows: usize, columns: usize) -> Result<()> {
    // The usual case in two instructions: a small product takes less time than building shapes.
    if found != 0 && rows.checked_mul(columns) == Some(found) {
        return Ok(());
    }
    let expected = Shape::new(&[rows, columns])?.numel();
    if found == expected { Ok(()) } else { Err(Error::Length { op, operand, expected, found }) }
}
