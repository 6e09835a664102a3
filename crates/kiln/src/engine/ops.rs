//! The operations as methods on slices. Element-wise ones come from the table in kiln-core; the others stand here.

use kiln_core::op::{Dot, Elementwise, Matmul, Matvec, Reduce, Reduction, Transpose};
use kiln_core::{Operand, Result, elementwise_table};

use crate::Engine;

macro_rules! methods {
    ($($(#[doc = $doc:literal])* $variant:ident $name:ident $into:ident ($($x:ident),*) ($($p:ident),*)
        $formula:literal, $flops:literal, $bound:ident $(($ulp:literal))?, $special:literal, $value:block
        $(, magnitude $magnitude:block)?)*) => {
        /// Element-wise operations.
        impl Engine {
            $(
                $(#[doc = $doc])*
                #[doc = concat!("\n\n`", $formula, "`\n\n# Errors\n[`kiln_core::Error::Shape`] when the lengths differ.")]
                pub fn $name(&self, $($x: &[f32],)* $($p: f32),*) -> Result<Vec<f32>> {
                    self.f32_vec(Elementwise::$name($($p),*), &[$(Operand::vector($x)),*])
                }

                $(#[doc = $doc])*
                #[doc = concat!("\n\n`", $formula, "`, into `out`.\n\n# Errors\n[`kiln_core::Error::Shape`] or ")]
                #[doc = "[`kiln_core::Error::Length`] when the lengths differ."]
                pub fn $into(&self, $($x: &[f32],)* $($p: f32,)* out: &mut [f32]) -> Result<()> {
                    self.f32_into(Elementwise::$name($($p),*), &[$(Operand::vector($x)),*], out)
                }
            )*
        }
    };
}
elementwise_table!(methods);

/// Reductions and inner product.
impl Engine {
    fn number(&self, op: impl Into<kiln_core::op::Op>, inputs: &[Operand<'_>]) -> Result<f32> {
        let mut out = [0.0];
        self.f32_into(op, inputs, &mut out)?;
        Ok(out[0])
    }

    /// Sum of all elements.
    ///
    /// # Errors
    /// None for a slice that exists.
    pub fn sum(&self, x: &[f32]) -> Result<f32> {
        self.number(Reduce::all(Reduction::Sum), &[Operand::vector(x)])
    }

    /// The inner product.
    ///
    /// # Errors
    /// [`kiln_core::Error::Shape`] when the lengths differ.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> Result<f32> {
        self.number(Dot, &[Operand::vector(a), Operand::vector(b)])
    }
}

/// Matrices, row-major.
impl Engine {
    /// The product of an `m * k` and a `k * n` matrix.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when the slices do not have these extents, [`kiln_core::Error::Overflow`] when the
    /// extents overflow.
    pub fn matmul(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Result<Vec<f32>> {
        self.f32_vec(Matmul::default(), &[Operand::f32(a, &[m, k])?, Operand::f32(b, &[k, n])?])
    }

    /// The product of an `m * k` and a `k * n` matrix, into `out`, `m * n`.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matmul_into(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize, out: &mut [f32]) -> Result<()> {
        self.matmul_with(Matmul::default(), a, b, m, k, n, out)
    }

    /// The product of two matrices of which either may be stored transposed, into `out`: `op(A)` is `m * k`, `op(B)` is
    /// `k * n`. Stacks of matrices go through [`Engine::run_into`].
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matmul_with(
        &self,
        op: Matmul,
        a: &[f32],
        b: &[f32],
        m: usize,
        k: usize,
        n: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let a_dims = if op.transpose_a { [k, m] } else { [m, k] };
        let b_dims = if op.transpose_b { [n, k] } else { [k, n] };
        self.f32_into(op, &[Operand::f32(a, &a_dims)?, Operand::f32(b, &b_dims)?], out)
    }

    /// The product of a `rows * columns` matrix and a vector.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matvec(&self, a: &[f32], x: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>> {
        self.f32_vec(Matvec::default(), &[Operand::f32(a, &[rows, columns])?, Operand::vector(x)])
    }

    /// The product of a `rows * columns` matrix and a vector, into `out`.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matvec_into(&self, a: &[f32], x: &[f32], rows: usize, columns: usize, out: &mut [f32]) -> Result<()> {
        self.matvec_with(Matvec::default(), a, x, rows, columns, out)
    }

    /// The product of a `rows * columns` matrix, or of its transpose, and a vector, into `out`.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn matvec_with(
        &self,
        op: Matvec,
        a: &[f32],
        x: &[f32],
        rows: usize,
        columns: usize,
        out: &mut [f32],
    ) -> Result<()> {
        self.f32_into(op, &[Operand::f32(a, &[rows, columns])?, Operand::vector(x)], out)
    }

    /// The transpose of a `rows * columns` matrix.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn transpose(&self, x: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>> {
        self.f32_vec(Transpose, &[Operand::f32(x, &[rows, columns])?])
    }

    /// The transpose of a `rows * columns` matrix, into `out`.
    ///
    /// # Errors
    /// As [`Engine::matmul`].
    pub fn transpose_into(&self, x: &[f32], rows: usize, columns: usize, out: &mut [f32]) -> Result<()> {
        self.f32_into(Transpose, &[Operand::f32(x, &[rows, columns])?], out)
    }
}
