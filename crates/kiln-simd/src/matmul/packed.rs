//! A right-hand matrix packed once for many products.

use kiln_ir::{Error, Result, Shape};

use super::blocks::k_blocks;
use super::driver::Gemm;
use super::length;
use super::matrix::{MatrixRef, Source};
use super::pack::panels;
use crate::float_state::require_default;
use crate::scratch::Lines;
use crate::{Isa, Simd};

/// A right-hand matrix, such as the weights of a layer, in the order in which the matrix product of one instruction set
/// reads it. Made by [`Simd::pack_b`].
pub struct PackedB {
    isa: Isa,
    k: usize,
    n: usize,
    data: Lines,
}

impl PackedB {
    /// The instruction set whose order it has.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Rows: the number of products in each element of the result.
    pub fn rows(&self) -> usize {
        self.k
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.n
    }
}

impl std::fmt::Debug for PackedB {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedB({} x {}, {})", self.k, self.n, self.isa)
    }
}

impl Simd {
    /// Packs a row-major `k * n` matrix, or one stored transposed (`n * k`), for products with many left-hand matrices.
    ///
    /// # Errors
    /// [`Error::Length`] when the slice does not have these extents, [`Error::Overflow`] when they overflow,
    /// [`Error::OutOfMemory`].
    pub fn pack_b(&self, b: &[f32], k: usize, n: usize, transpose: bool) -> Result<PackedB> {
        length("pack_b", "b", b.len(), k, n)?;
        let padded = n.saturating_add(self.isa().lanes());
        Shape::new(&[k, padded])?;
        let padded = n.next_multiple_of(self.isa().lanes());
        let mut data = Lines::try_zeros(k * padded)?;
        let from = MatrixRef::new(b, if transpose { k } else { n }, transpose);
        for (p, block) in k_blocks(k) {
            let out = data.as_mut_ptr().wrapping_add(p * padded);
            // SAFETY: the matrix is inside the slice, the memory has the size of the copy, a `Simd` has its instruction
            // set.
            unsafe { panels(from, self.isa(), p, block, 0, n, out) };
        }
        Ok(PackedB { isa: self.isa(), k, n, data })
    }

    /// The product of a row-major `m * k` matrix and a packed one, into `out`, row-major `m * n`. The same bits as the
    /// product with the matrix that was packed, but for up to eight columns, and for up to sixteen rows where it is stored
    /// transposed: those sum along vectors.
    ///
    /// # Errors
    /// [`Error::Length`] when the slices do not have these extents, [`Error::Overflow`] when they overflow,
    /// [`Error::Parameter`] when the matrix was packed for another instruction set.
    pub fn matmul_packed_into(&self, a: &[f32], b: &PackedB, m: usize, out: &mut [f32]) -> Result<()> {
        require_default!(self.matmul_packed_into(a, b, m, out));
        length("matmul_packed", "a", a.len(), m, b.k)?;
        length("matmul_packed", "output", out.len(), m, b.n)?;
        if b.isa != self.isa() {
            let reason = format!("the matrix was packed for {}, not for {}: pack it again", b.isa, self.isa());
            return Err(Error::Parameter { op: "matmul_packed", reason });
        }
        let gemm = Gemm {
            m,
            k: b.k,
            n: b.n,
            a: MatrixRef::new(a, b.k, false),
            b: Source::Packed(b.data.as_ptr()),
            c: out.as_mut_ptr(),
            c_stride: b.n,
        };
        // SAFETY: the lengths were checked; `out` is borrowed for writing; a `Simd` has its instruction set.
        unsafe { gemm.run(self.isa(), self.threads()) };
        Ok(())
    }

    /// Returns the result of [`Simd::matmul_packed_into`] in a new `Vec`.
    ///
    /// # Errors
    /// The errors of [`Simd::matmul_packed_into`].
    pub fn matmul_packed(&self, a: &[f32], b: &PackedB, m: usize) -> Result<Vec<f32>> {
        let mut out = kiln_ir::zeros(Shape::new(&[m, b.n])?.numel())?;
        self.matmul_packed_into(a, b, m, &mut out)?;
        Ok(out)
    }
}
