//! The matrix product.

use kiln_core::op::{Matmul, MatmulExtents};
use kiln_core::{DataMut, Operand, Result};

use crate::simd::{Execute, Simd, f32s};

impl Execute for Matmul {
    fn execute(&self, _: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let MatmulExtents { batch, shared_b, m, k, n } = self.extents(&inputs[0].shape(), &inputs[1].shape())?;
        let (a, b, c) = (f32s(inputs, 0), f32s(inputs, 1), outputs[0].f32());
        for s in 0..batch {
            for i in 0..m {
                for j in 0..n {
                    c[(s * m + i) * n + j] = (0..k)
                        .map(|p| {
                            let a = a[s * m * k + if self.transpose_a { p * m + i } else { i * k + p }];
                            let b = b[if shared_b { 0 } else { s * k * n }
                                + if self.transpose_b { j * k + p } else { p * n + j }];
                            a * b
                        })
                        .sum();
                }
            }
        }
        Ok(())
    }
}

impl Simd {
    /// The product of a row-major `m * k` and a row-major `k * n` matrix.
    ///
    /// # Errors
    /// [`kiln_core::Error::Length`] when the slices do not have these extents, [`kiln_core::Error::Overflow`] when the
    /// extents overflow.
    pub fn matmul(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Result<Vec<f32>> {
        self.f32_vec(Matmul::default(), &[Operand::f32(a, &[m, k])?, Operand::f32(b, &[k, n])?])
    }
}
