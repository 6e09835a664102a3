//! Reductions and the inner product.

use kiln_core::op::{Dot, Reduce, Reduction};
use kiln_core::{DataMut, Operand, Result};

use crate::simd::{Execute, Simd, f32s};
use crate::vector::{Kernel, Vector, dispatch};

/// Sum of a slice in the fixed tree.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        self.0.iter().sum()
    }
}

impl Execute for Reduce {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let x = f32s(inputs, 0);
        if self.reduction == Reduction::Sum && self.axis.is_none() {
            // SAFETY: a `Simd` exists only for an available instruction set.
            outputs[0].f32()[0] = unsafe { dispatch(simd.isa(), Sum(x)) };
        }
        Ok(())
    }
}

impl Execute for Dot {
    fn execute(&self, _: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        outputs[0].f32()[0] = f32s(inputs, 0).iter().zip(f32s(inputs, 1)).map(|(a, b)| a * b).sum();
        Ok(())
    }
}

impl Simd {
    /// Sum of all elements.
    ///
    /// # Errors
    /// None for a slice that exists.
    pub fn sum(&self, x: &[f32]) -> Result<f32> {
        Ok(self.f32_vec(Reduce::all(Reduction::Sum), &[Operand::vector(x)])?[0])
    }
}
