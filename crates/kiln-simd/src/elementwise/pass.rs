//! The loops that apply a formula to memory.

use std::marker::PhantomData;
use std::ops::Range;

use kiln_ir::op::ElementwiseKind;

use crate::array::Each;
use crate::vector::{Kernel, LINE, Lanewise, Pair, Vector, unaligned};

/// Total elements of operands and result that exceed the L1 cache but fit an L2 cache.
const NEAR: Range<usize> = 12 * 1024..512 * 1024;

/// The distance in elements at which a line of the result is prefetched, if a vector is a line. A store waits for its line,
/// and hardware prefetchers that see one access to each line follow too late: on an AVX-512 Xeon sums of two vectors
/// take 0.91 to 0.96 of the time from the L2 cache, other light functions 0.9 to 1.01. Lines of the operands arrive in
/// time without this. From the L3 cache of an EPYC (Zen 4) prefetching makes passes take a fifth of the time.
const AHEAD: usize = 128;

/// One function of the table on vectors; unused operands and parameters are ignored.
pub(super) trait Formula {
    const KIND: ElementwiseKind;
    const ARITY: usize;
    /// Floating-point operations per element, as in the table.
    const FLOPS: u64;
    fn eval<V: Lanewise>(operands: [V; 3], params: [V; 2]) -> V;

    /// Four vectors of each operand at once, with the same bits. Most functions call [`Formula::eval`] for each.
    #[inline(always)]
    fn eval_four<V: Vector>(operands: [[V; 3]; 4], params: [V; 2]) -> [V; 4] {
        let [w, x, y, z] = operands;
        match Self::KIND {
            ElementwiseKind::Div => V::quotients([w[0], x[0], y[0], z[0]], [w[1], x[1], y[1], z[1]]),
            ElementwiseKind::Recip => V::quotients([w[0].of(1.0); 4], [w[0], x[0], y[0], z[0]]),
            ElementwiseKind::Sqrt => V::square_roots([w[0], x[0], y[0], z[0]]),
            _ => [Self::eval(w, params), Self::eval(x, params), Self::eval(y, params), Self::eval(z, params)],
        }
    }
}

/// An operand of a flat pass: `n` elements, or one element that is repeated.
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    pub(crate) p: *const f32,
    pub(crate) repeated: bool,
}

impl Flat {
    /// A placeholder for an operand that the function does not take.
    pub(crate) const NONE: Self = Self { p: std::ptr::null(), repeated: true };
}

/// One flat pass over `n` elements. The output may be the same memory as an operand: each vector is read before it is
/// written.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) sources: [Flat; 3],
    pub(crate) params: [f32; 2],
    pub(crate) out: *mut f32,
    pub(crate) n: usize,
    /// Whether to use non-temporal stores, for results that exceed the caches.
    pub(crate) stream: bool,
}

/// The flat pass of one function.
///
/// # Safety
/// The sources are readable for `n` f32 (one if repeated), `out` is writable for `n`, and nothing else accesses it,
/// except for sources that are the same `n` elements.
pub(super) struct Run<F>(pub(super) Call, pub(super) PhantomData<F>);

impl<F: Formula> Kernel for Run<F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self(Call { sources, params, out, n, stream }, _) = self;
        // SAFETY: the contract of `Run`: every access below stays in 0..n, or at 0 if repeated.
        unsafe {
            let params = [V::splat(params[0]), V::splat(params[1])];
            let p = sources.each(|s| s.p);
            // A separate loop without repeated operands avoids testing for them.
            if const { F::ARITY == 1 } || !sources[..F::ARITY].iter().any(|s| s.repeated) {
                Flatly::<V, F> { p, params, formula: PhantomData }.fill(out, n, stream);
            } else {
                let is_repeated = sources.each(|s| s.repeated);
                let [a, b, c] = sources;
                let repeated = [a.splat::<V, F>(0), b.splat::<V, F>(1), c.splat::<V, F>(2)];
                Mixed::<V, F> { p, repeated, is_repeated, params, formula: PhantomData }.fill(out, n, stream);
            }
        }
    }
}

/// The source of the operands' vectors. Methods rather than closures, because only methods can be forced to be inlined
/// into the function with the instruction set.
trait Operands<V: Vector, F: Formula>: Sized {
    /// # Safety
    /// Flat operands are readable from `i` for a vector; the instruction set of `V` is available.
    unsafe fn load(&self, operand: usize, i: usize) -> V;
    /// # Safety
    /// Flat operands are readable from `i` for `n` elements; the instruction set of `V` is available.
    unsafe fn load_first(&self, operand: usize, i: usize, n: usize) -> V;
    fn params(&self) -> [V; 2];

    /// A whole vector of each operand.
    ///
    /// # Safety
    /// The conditions of [`Operands::load`] hold.
    #[inline(always)]
    unsafe fn operands(&self, i: usize) -> [V; 3] {
        // SAFETY: the contract above.
        unsafe { [self.load(0, i), self.load(1, i), self.load(2, i)] }
    }

    /// The results of a whole vector.
    ///
    /// # Safety
    /// The conditions of [`Operands::load`] hold.
    #[inline(always)]
    unsafe fn whole(&self, i: usize) -> V {
        // SAFETY: the contract above.
        F::eval(unsafe { self.operands(i) }, self.params())
    }

    /// Writes the results of the first `n` lanes of a vector.
    ///
    /// # Safety
    /// The conditions of [`Operands::load_first`] hold, and the output is writable for these elements.
    #[inline(always)]
    unsafe fn partial(&self, out: *mut f32, i: usize, n: usize) {
        // SAFETY: the contract above.
        unsafe {
            let operands = [self.load_first(0, i, n), self.load_first(1, i, n), self.load_first(2, i, n)];
            F::eval(operands, self.params()).store_first(out.add(i), n);
        }
    }

    /// Fills `n` elements.
    ///
    /// # Safety
    /// The conditions of [`Run`] hold.
    #[inline(always)]
    unsafe fn fill(&self, out: *mut f32, n: usize, stream: bool) {
        // SAFETY: every access below stays in 0..n.
        unsafe {
            // Aligns the stores of whole vectors if there are several: a store across cache lines costs two.
            let lead = if n < 4 * V::LANES { 0 } else { unaligned::<V>(out) };
            let end = n - (n - lead) % V::LANES;
            for (i, n) in [(0, lead), (end, n - end)] {
                if n > 0 {
                    self.partial(out, i, n);
                }
            }
            let mut i = lead;
            if stream && (out.add(lead) as usize).is_multiple_of(4 * V::LANES) {
                while i < end {
                    self.whole(i).stream(out.add(i));
                    i += V::LANES;
                }
                self.params()[0].fence();
                return;
            }
            // Light functions are limited by the loop itself, heavy ones by their own arithmetic.
            if const { F::FLOPS <= 5 } {
                let ask = const { V::LANES == LINE } && NEAR.contains(&n.saturating_mul(F::ARITY + 1));
                while i + 4 * V::LANES <= end {
                    let [j, k, l] = [i + V::LANES, i + 2 * V::LANES, i + 3 * V::LANES];
                    if ask {
                        [i, j, k, l].each(|at| V::prefetch(out.wrapping_add(at + AHEAD)));
                    }
                    let operands = [self.operands(i), self.operands(j), self.operands(k), self.operands(l)];
                    let results = F::eval_four(operands, self.params());
                    results[0].store(out.add(i));
                    results[1].store(out.add(j));
                    results[2].store(out.add(k));
                    results[3].store(out.add(l));
                    i += 4 * V::LANES;
                }
            } else if const { V::PAIRS } {
                let params = self.params().each(|p| Pair(p, p));
                while i + 2 * V::LANES <= end {
                    let j = i + V::LANES;
                    let ([a, b, c], [d, e, f]) = (self.operands(i), self.operands(j));
                    let results = F::eval([Pair(a, d), Pair(b, e), Pair(c, f)], params);
                    results.0.store(out.add(i));
                    results.1.store(out.add(j));
                    i += 2 * V::LANES;
                }
            }
            while i < end {
                self.whole(i).store(out.add(i));
                i += V::LANES;
            }
        }
    }
}

/// All operands are flat.
struct Flatly<V, F> {
    p: [*const f32; 3],
    params: [V; 2],
    formula: PhantomData<F>,
}

impl<V: Vector, F: Formula> Operands<V, F> for Flatly<V, F> {
    #[inline(always)]
    unsafe fn load(&self, operand: usize, i: usize) -> V {
        // SAFETY: the contract of the method.
        if operand < F::ARITY { unsafe { V::load(self.p[operand].add(i)) } } else { self.params[0] }
    }

    #[inline(always)]
    unsafe fn load_first(&self, operand: usize, i: usize, n: usize) -> V {
        // SAFETY: the contract of the method.
        if operand < F::ARITY { unsafe { V::load_first(self.p[operand].add(i), n) } } else { self.params[0] }
    }

    #[inline(always)]
    fn params(&self) -> [V; 2] {
        self.params
    }
}

impl Flat {
    /// The vector of a repeated element; zeros for a flat operand or one beyond those of the function.
    ///
    /// # Safety
    /// The instruction set of `V` is available, and the element of a repeated operand is readable.
    #[inline(always)]
    unsafe fn splat<V: Vector, F: Formula>(self, operand: usize) -> V {
        // SAFETY: the contract above.
        unsafe { V::splat(if operand < F::ARITY && self.repeated { *self.p } else { 0.0 }) }
    }
}

/// Some operands are repeated elements.
struct Mixed<V, F> {
    p: [*const f32; 3],
    repeated: [V; 3],
    is_repeated: [bool; 3],
    params: [V; 2],
    formula: PhantomData<F>,
}

impl<V: Vector, F: Formula> Operands<V, F> for Mixed<V, F> {
    #[inline(always)]
    unsafe fn load(&self, operand: usize, i: usize) -> V {
        if operand >= F::ARITY || self.is_repeated[operand] {
            self.repeated[operand]
        } else {
            // SAFETY: the contract of the method.
            unsafe { V::load(self.p[operand].add(i)) }
        }
    }

    #[inline(always)]
    unsafe fn load_first(&self, operand: usize, i: usize, n: usize) -> V {
        if operand >= F::ARITY || self.is_repeated[operand] {
            self.repeated[operand]
        } else {
            // SAFETY: the contract of the method.
            unsafe { V::load_first(self.p[operand].add(i), n) }
        }
    }

    #[inline(always)]
    fn params(&self) -> [V; 2] {
        self.params
    }
}
