//! Element-wise operations: one formula a row of the table in kiln-core, and the loops that apply them.

use kiln_core::op::{Elementwise, ElementwiseKind};
use kiln_core::{DataMut, Operand, Result, elementwise_table};

use std::marker::PhantomData;

use crate::Isa;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// The vector formulas, one for each row of the table, named as there.
mod formula {
    use crate::vector::Vector;

    macro_rules! formulas {
        ($($name:ident($($x:ident),*) = $value:expr;)*) => {
            $(#[inline(always)] pub(super) fn $name<V: Vector>($($x: V),*) -> V { $value })*
        };
    }

    fn lanewise<V: Vector>(x: V, f: impl Fn(f64) -> f64) -> V {
        let mut lanes = [0.0f32; 64];
        // SAFETY: no vector has more than 64 lanes.
        unsafe {
            x.store(lanes.as_mut_ptr());
            lanes[..V::LANES].iter_mut().for_each(|v| *v = f(f64::from(*v)) as f32);
            V::load(lanes.as_ptr())
        }
    }

    formulas! {
        add(a, b) = a + b;
        sub(a, b) = a - b;
        mul(a, b) = a * b;
        div(a, b) = a / b;
        min(a, b) = a.minimum(b);
        max(a, b) = a.maximum(b);
        neg(x) = -x;
        abs(x) = x.abs();
        sqrt(x) = x.sqrt();
        recip(x) = x.of(1.0) / x;
        scale(x, factor) = factor * x;
        clip(x, lo, hi) = x.maximum(lo).minimum(hi);
        relu(x) = x.maximum(x.of(0.0));
        rsqrt(x) = lanewise(x, |x| 1.0 / x.sqrt());
        exp(x) = lanewise(x, f64::exp);
        ln(x) = lanewise(x, f64::ln);
        fma(a, b, c) = a.mul_add(b, c);
        lerp(a, b, t) = t.mul_add(b - a, a);
        leaky_relu(x, slope) = V::select(x.of(0.0).lt(x), x, slope * x);
        elu(x, alpha) = V::select(x.of(0.0).lt(x), x, alpha * lanewise(x, f64::exp_m1));
        sigmoid(x) = lanewise(x, |x| 1.0 / (1.0 + (-x).exp()));
        tanh(x) = lanewise(x, f64::tanh);
        swish(x) = lanewise(x, |x| x / (1.0 + (-x).exp()));
        gelu(x) = lanewise(x, |x| x);
        gelu_tanh(x) = lanewise(x, |x| x);
        hard_swish(x) = lanewise(x, |x| x);
        mish(x) = lanewise(x, |x| x);
    }
}

macro_rules! kernels {
    ($($(#[doc = $doc:literal])* $variant:ident $name:ident $into:ident ($($x:ident),*) ($($p:ident),*)
        $formula:literal, $flops:literal, $bound:ident $(($ulp:literal))?, $special:literal, $value:block
        $(, magnitude $magnitude:block)?)*) => {
        $(
            struct $variant;
            impl Formula for $variant {
                const ARITY: usize = <[&str]>::len(&[$(stringify!($x)),*]);
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

/// One function of the table on vectors; operands and parameters beyond those it has are ignored.
trait Formula {
    const ARITY: usize;
    fn eval<V: Vector>(operands: [V; 3], params: [V; 2]) -> V;
}

/// An operand of a flat pass: `n` elements, or one that is repeated.
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    pub(crate) p: *const f32,
    pub(crate) repeated: bool,
}

impl Flat {
    /// In place of an operand that the function does not take.
    pub(crate) const NONE: Self = Self { p: std::ptr::null(), repeated: true };
}

/// One flat pass over `n` elements.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) sources: [Flat; 3],
    pub(crate) params: [f32; 2],
    pub(crate) out: *mut f32,
    pub(crate) n: usize,
}

/// The flat pass of one function.
///
/// # Safety
/// The sources are good for reading `n` f32 (one where repeated), `out` for writing `n`, and nothing else accesses it.
struct Run<F>(Call, PhantomData<F>);

impl<F: Formula> Kernel for Run<F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self(call, _) = self;
        // SAFETY: the contract of `Run`: every access below stays in 0..n, or at 0 where repeated.
        unsafe {
            let params = [V::splat(call.params[0]), V::splat(call.params[1])];
            let zero = V::splat(0.0);
            let repeated: [V; 3] = std::array::from_fn(|s| {
                if s < F::ARITY && call.sources[s].repeated { V::splat(*call.sources[s].p) } else { zero }
            });
            let mut i = 0;
            while i + V::LANES <= call.n {
                let operands: [V; 3] = std::array::from_fn(|s| {
                    if s >= F::ARITY || call.sources[s].repeated {
                        repeated[s]
                    } else {
                        V::load(call.sources[s].p.add(i))
                    }
                });
                F::eval(operands, params).store(call.out.add(i));
                i += V::LANES;
            }
            let rest = call.n - i;
            if rest > 0 {
                let operands: [V; 3] = std::array::from_fn(|s| {
                    if s >= F::ARITY || call.sources[s].repeated {
                        repeated[s]
                    } else {
                        V::load_first(call.sources[s].p.add(i), rest)
                    }
                });
                F::eval(operands, params).store_first(call.out.add(i), rest);
            }
        }
    }
}

impl Execute for Elementwise {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let out = outputs[0].f32();
        let n = out.len();
        if n == 0 {
            return Ok(());
        }
        // Operands repeat along outer dimensions: walk runs in which each is either flat or one element.
        let run = inputs.iter().map(|o| o.shape().numel()).filter(|&len| len > 1).min().unwrap_or(1);
        let out = Shared::new(out.as_mut_ptr());
        let pass = |start: usize, n: usize| {
            let source = |i: usize| match inputs.get(i).map(|_| f32s(inputs, i)) {
                None => Flat::NONE,
                Some([one]) => Flat { p: one, repeated: true },
                // SAFETY: start % len is inside of the operand.
                Some(data) => Flat { p: unsafe { data.as_ptr().add(start % data.len()) }, repeated: false },
            };
            // SAFETY: start + n <= the length of the output, passes do not overlap.
            let out = unsafe { out.get().add(start) };
            let call = Call { sources: std::array::from_fn(source), params: self.params(), out, n };
            // SAFETY: every source is as long as a run from its start, or repeated.
            unsafe { call.dispatch(simd.isa(), self.kind()) };
        };
        if run < n {
            (0..n / run).for_each(|r| pass(r * run, run));
        } else {
            let part = n.div_ceil(if n < PARALLEL { 1 } else { 2 * simd.threads() }).next_multiple_of(64);
            threads::for_each(n.div_ceil(part), simd.threads(), |i| pass(i * part, part.min(n - i * part)));
        }
        Ok(())
    }
}

/// Elements below which one thread is faster.
pub(crate) const PARALLEL: usize = 200_000;

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn lengths_must_agree() {
        let simd = Simd::new().unwrap();
        assert!(simd.add(&[1.0], &[1.0, 2.0, 3.0]).is_err());
        assert!(simd.add_into(&[1.0; 3], &[1.0; 3], &mut [0.0; 2]).is_err());
        assert_eq!(simd.clip(&[-2.0, 0.5, 7.0], -1.0, 1.0).unwrap(), [-1.0, 0.5, 1.0]);
    }
}
