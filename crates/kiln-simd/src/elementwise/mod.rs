//! Element-wise operations: one formula a row of the table in kiln-core, and the loops that apply them.

use kiln_core::op::{Elementwise, ElementwiseKind};
use kiln_core::{DataMut, Operand, Result, elementwise_table};

use std::marker::PhantomData;

use crate::Isa;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Vector, dispatch};

mod formula;
mod pass;
mod repeat;

pub(crate) use pass::{Call, Flat};
use pass::{Formula, Run};
use repeat::Pass;

macro_rules! kernels {
    ($($(#[doc = $doc:literal])* $variant:ident $name:ident $into:ident ($($x:ident),*) ($($p:ident),*)
        $formula:literal, $flops:literal, $bound:ident $(($ulp:literal))?, $special:literal, $value:block
        $(, magnitude $magnitude:block)?)*) => {
        $(
            struct $variant;
            impl Formula for $variant {
                const ARITY: usize = <[&str]>::len(&[$(stringify!($x)),*]);
                const FLOPS: u64 = $flops;
                #[inline(always)]
                fn eval<V: Vector>(operands: [V; 3], params: [V; 2]) -> V {
                    let [$($x,)* ..] = operands;
                    #[allow(unused_variables)]
                    let [$($p,)* ..] = params;
                    formula::$name($($x,)* $($p),*)
                }
            }
        )*

        impl Call {
            /// # Safety
            /// As [`Run`].
            pub(crate) unsafe fn dispatch(self, isa: Isa, kind: ElementwiseKind) {
                match kind {
                    // SAFETY: the caller's contract; a `Simd` exists only for an available instruction set.
                    $(ElementwiseKind::$variant => unsafe { dispatch(isa, Run::<$variant>(self, PhantomData)) },)*
                }
            }
        }

        impl Simd {
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
elementwise_table!(kernels);

impl Execute for Elementwise {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let out = outputs[0].f32();
        let n = out.len();
        let stream = inputs.len() > 1 && n >= STREAM;
        let part = part_len(self.kind().flops(), n, simd);
        let out = Shared::new(out.as_mut_ptr());
        threads::for_each(n.div_ceil(part), simd.threads(), |i| {
            let start = i * part;
            let data: [&[f32]; 3] = std::array::from_fn(|i| if i < inputs.len() { f32s(inputs, i) } else { &[] });
            let pass = Pass { isa: simd.isa(), kind: self.kind(), params: self.params(), out, total: n, stream };
            // SAFETY: the output has n elements, parts do not overlap, and by the shape rule operands repeat evenly.
            unsafe { pass.run(&data[..inputs.len()], start, part.min(n - start)) };
        });
        Ok(())
    }
}

/// Elements of a result from which on it is written past the caches, where several operands are read.
const STREAM: usize = 16 << 20;

/// Elements of the parts that threads take, for a function of so many floating-point operations an element: all of them
/// where one thread is faster.
pub(crate) fn part_len(flops: u64, n: usize, simd: &Simd) -> usize {
    // Waking a thread costs some microseconds: it pays where the work is tens of them.
    let work = (n as u64).saturating_mul(flops.max(8) * 16 / simd.isa().lanes().min(16) as u64);
    if simd.threads() == 1 || work < PARALLEL {
        return n.max(1);
    }
    n.div_ceil(2 * simd.threads()).next_multiple_of(1024)
}

/// Floating-point operations, counted on 16 lanes, below which one thread is faster.
const PARALLEL: u64 = 1_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_must_agree() {
        let simd = Simd::new().unwrap();
        assert!(simd.add(&[1.0], &[1.0, 2.0, 3.0]).is_err());
        assert!(simd.add_into(&[1.0; 3], &[1.0; 3], &mut [0.0; 2]).is_err());
        assert_eq!(simd.clip(&[-2.0, 0.5, 7.0], -1.0, 1.0).unwrap(), [-1.0, 0.5, 1.0]);
    }
}
