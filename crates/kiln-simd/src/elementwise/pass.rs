//! The loops that apply a formula to memory.

use std::marker::PhantomData;

use crate::vector::{Kernel, Vector};

/// One function of the table on vectors; operands and parameters beyond those it has are ignored.
pub(super) trait Formula {
    const ARITY: usize;
    /// Floating-point operations an element, as the table counts them.
    const FLOPS: u64;
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

/// One flat pass over `n` elements. The output may be one of the operands: each vector is read before it is written.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) sources: [Flat; 3],
    pub(crate) params: [f32; 2],
    pub(crate) out: *mut f32,
    pub(crate) n: usize,
    /// Whether to write past the caches, for results that these cannot hold.
    pub(crate) stream: bool,
}

/// The flat pass of one function.
///
/// # Safety
/// The sources are good for reading `n` f32 (one where repeated), `out` for writing `n`, and nothing else accesses it,
/// but for sources that are the same `n` elements.
pub(super) struct Run<F>(pub(super) Call, pub(super) PhantomData<F>);

impl<F: Formula> Kernel for Run<F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self(Call { sources, params, out, n, stream }, _) = self;
        // SAFETY: the contract of `Run`: every access below stays in 0..n, or at 0 where repeated.
        unsafe {
            let params = [V::splat(params[0]), V::splat(params[1])];
            let zero = V::splat(0.0);
            let repeated: [V; 3] =
                std::array::from_fn(
                    |s| {
                        if s < F::ARITY && sources[s].repeated { V::splat(*sources[s].p) } else { zero }
                    },
                );
            let whole = |i: usize| {
                let operand = |s: usize| {
                    if s >= F::ARITY || sources[s].repeated { repeated[s] } else { V::load(sources[s].p.add(i)) }
                };
                F::eval(std::array::from_fn(operand), params)
            };
            let first = |i: usize, n: usize| {
                let operand = |s: usize| {
                    if s >= F::ARITY || sources[s].repeated {
                        repeated[s]
                    } else {
                        V::load_first(sources[s].p.add(i), n)
                    }
                };
                F::eval(std::array::from_fn(operand), params)
            };

            // Whole vectors of the output are aligned where there are several: a store across cache lines costs two.
            let lead = if n < 4 * V::LANES { 0 } else { (out as usize / 4).wrapping_neg() % V::LANES };
            let end = n - (n - lead) % V::LANES;
            for (i, n) in [(0, lead), (end, n - end)] {
                if n > 0 {
                    first(i, n).store_first(out.add(i), n);
                }
            }
            let mut i = lead;
            if F::ARITY > 1 && stream && (out.add(lead) as usize).is_multiple_of(4 * V::LANES) {
                while i < end {
                    whole(i).stream(out.add(i));
                    i += V::LANES;
                }
                zero.fence();
                return;
            }
            if F::FLOPS <= 5 {
                while i + 4 * V::LANES <= end {
                    let results: [V; 4] = std::array::from_fn(|u| whole(i + u * V::LANES));
                    for (u, result) in results.into_iter().enumerate() {
                        result.store(out.add(i + u * V::LANES));
                    }
                    i += 4 * V::LANES;
                }
            }
            while i < end {
                whole(i).store(out.add(i));
                i += V::LANES;
            }
        }
    }
}
