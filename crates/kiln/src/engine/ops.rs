//! The operations as methods on slices. Element-wise ones come from the table in kiln-core; the others stand here.

use kiln_core::op::{Dot, Elementwise, Matmul, Reduce, Reduction};
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

/// Matrices.
impl Engine {
    /// The product of a row-major `m * k` and a row-major `k * n` matrix.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when the slices do not have these extents, [`kiln_core::Error::Overflow`] when the
    /// extents overflow.
    pub fn matmul(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Result<Vec<f32>> {
        self.f32_vec(Matmul::default(), &[Operand::f32(a, &[m, k])?, Operand::f32(b, &[k, n])?])
    }
}
