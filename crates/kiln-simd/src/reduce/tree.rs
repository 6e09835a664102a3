//! Sums of terms over a slice, in a fixed tree.
//!
//! The slice is cut into leaves of [`LEAF`] elements. A leaf is rows of 128: 64 virtual lanes for even and 64 for odd
//! groups of 64, each a running sum down the rows; the two halves are added at the end. Leaves are combined lane by
//! lane, pairwise, in a binary tree (a binary counter of subtrees; what is left over is folded from its right end), and
//! the 64 lanes last, upper half to lower half. Terms are multiplied, then added, never fused. Registers only carry
//! this tree, so the bits do not depend on their width, nor on the number of threads, which take subtrees.

use std::mem::MaybeUninit;

use crate::simd::Simd;
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Virtual lanes of the tree.
const LANES: usize = 64;
/// Columns of the rows of a leaf: even and odd groups of lanes, so that wide registers have enough sums in flight.
const ROW: usize = 2 * LANES;
/// Elements of a leaf: 16 rows. Longer leaves would spare some of the tree, but a million equal terms then miss 1e-7.
pub(super) const LEAF: usize = 16 * ROW;
/// Leaves that a thread takes at once: a subtree of its own, because it is a power of two.
const PART: usize = 32 * LEAF;
/// Parts in flight before their sums are combined; bounds the memory that holds them.
const ROUND: usize = 128;
/// Levels of the tree: enough for every slice that fits an address space.
const LEVELS: usize = usize::BITS as usize;

/// One sum for each virtual lane.
pub(super) type Lanes = [f32; LANES];

/// What is added up, and how.
pub(super) trait Term: Copy + Send + Sync {
    /// The sum of nothing.
    const EMPTY: f32 = 0.0;
    /// An element whose term changes no sum: stands beyond the end.
    const PAD: f32 = 0.0;
    /// Whether the term has a second operand.
    const BINARY: bool = false;

    /// The term of an element of each operand.
    fn term<V: Vector>(self, x: V, y: V) -> V;

    /// Two sums in one.
    #[inline(always)]
    fn combine<V: Vector>(a: V, b: V) -> V {
        a + b
    }
}

/// The elements.
#[derive(Clone, Copy)]
pub(super) struct Elements;
/// Their absolute values.
#[derive(Clone, Copy)]
pub(super) struct Magnitudes;
/// The squares of the elements times a factor.
#[derive(Clone, Copy)]
pub(super) struct ScaledSquares(pub f32);
/// The squares of the elements.
#[derive(Clone, Copy)]
pub(super) struct Squares;
/// The elements, multiplied instead of added.
#[derive(Clone, Copy)]
pub(super) struct Factors;
/// The products of two operands.
#[derive(Clone, Copy)]
pub(super) struct Products;

impl Term for Elements {
    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        x
    }
}

impl Term for Magnitudes {
    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        x.abs()
    }
}

impl Term for ScaledSquares {
    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        let x = x * x.of(self.0);
        x * x
    }
}

impl Term for Squares {
    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        x * x
    }
}

impl Term for Factors {
    const EMPTY: f32 = 1.0;
    const PAD: f32 = 1.0;

    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        x
    }
    #[inline(always)]
    fn combine<V: Vector>(a: V, b: V) -> V {
        a * b
    }
}

impl Term for Products {
    const BINARY: bool = true;

    #[inline(always)]
    fn term<V: Vector>(self, x: V, y: V) -> V {
        x * y
    }
}

/// Registers that hold sums: with the 16 registers of most instruction sets, half of them are left for the operands.
const SUMS: usize = 8;

/// The sums of at most [`LEAF`] elements.
///
/// # Safety
/// The instruction set is there; `x`, and `y` of a binary term, are good for reading `n` f32.
#[inline(always)]
unsafe fn leaf<V: Vector, T: Term>(t: T, x: *const f32, y: *const f32, n: usize, lanes: &mut Lanes) {
    let (rows, rest) = (n / ROW, n % ROW);
    let out = lanes.as_mut_ptr();
    let width = SUMS * V::LANES;
    // SAFETY: full rows and the first `rest` columns of one more are inside of the operands; a sweep over `width`
    // columns, which divides a row, stores inside of the lanes.
    unsafe {
        let mut column = 0;
        while column < ROW {
            let mut sums = [V::splat(T::EMPTY); SUMS];
            let (mut p, mut q) = (x.wrapping_add(column), y.wrapping_add(column));
            for _ in 0..rows {
                for (k, sum) in sums.iter_mut().enumerate() {
                    let x = V::load(p.add(k * V::LANES));
                    let y = if T::BINARY { V::load(q.add(k * V::LANES)) } else { x };
                    *sum = T::combine(*sum, t.term(x, y));
                }
                (p, q) = (p.wrapping_add(ROW), q.wrapping_add(ROW));
            }
            for (k, sum) in sums.iter_mut().enumerate() {
                let n = rest.saturating_sub(column + k * V::LANES).min(V::LANES);
                if n > 0 {
                    let x = V::load_first_or(p.add(k * V::LANES), n, T::PAD);
                    let y = if T::BINARY { V::load_first_or(q.add(k * V::LANES), n, T::PAD) } else { x };
                    *sum = T::combine(*sum, t.term(x, y));
                }
            }
            if width == ROW {
                for k in 0..SUMS / 2 {
                    T::combine(sums[k], sums[k + SUMS / 2]).store(out.add(k * V::LANES));
                }
            } else {
                for (k, sum) in sums.into_iter().enumerate() {
                    let at = column + k * V::LANES;
                    let p = out.add(at % LANES);
                    if at < LANES { sum.store(p) } else { T::combine(V::load(p), sum).store(p) }
                }
            }
            column += width;
        }
    }
}

/// Subtrees of the leaves so far: level `l` is taken where bit `l` of the count is set.
struct Counter {
    levels: [MaybeUninit<Lanes>; LEVELS],
    count: usize,
}

impl Counter {
    #[inline(always)]
    fn new() -> Self {
        Self { levels: [const { MaybeUninit::uninit() }; LEVELS], count: 0 }
    }

    /// # Safety
    /// The instruction set is there.
    #[inline(always)]
    unsafe fn push<V: Vector, T: Term>(&mut self, mut lanes: Lanes) {
        let mut level = 0;
        while self.count >> level & 1 == 1 {
            // SAFETY: the bit of the count says that the level was written.
            unsafe { combine::<V, T>(self.levels[level].assume_init_ref(), &mut lanes) };
            level += 1;
        }
        self.levels[level].write(lanes);
        self.count += 1;
    }

    /// # Safety
    /// The instruction set is there.
    #[inline(always)]
    unsafe fn fold<V: Vector, T: Term>(&self) -> Lanes {
        let mut lanes: Option<Lanes> = None;
        for level in (0..LEVELS).filter(|l| self.count >> l & 1 == 1) {
            // SAFETY: the bit of the count says that the level was written.
            let subtree = unsafe { self.levels[level].assume_init_ref() };
            match &mut lanes {
                None => lanes = Some(*subtree),
                // SAFETY: the caller's contract.
                Some(lanes) => unsafe { combine::<V, T>(subtree, lanes) },
            }
        }
        lanes.unwrap_or([T::EMPTY; LANES])
    }
}

/// `right = left + right`, lane by lane.
///
/// # Safety
/// The instruction set is there.
#[inline(always)]
unsafe fn combine<V: Vector, T: Term>(left: &Lanes, right: &mut Lanes) {
    for i in (0..LANES).step_by(V::LANES) {
        // SAFETY: both hold 64 lanes, a multiple of every vector.
        unsafe {
            let p = right.as_mut_ptr().add(i);
            T::combine(V::load(left.as_ptr().add(i)), V::load(p)).store(p);
        }
    }
}

/// The lanes in one, upper half to lower half. One NaN stands for all, whose signs differ between machines.
///
/// # Safety
/// The instruction set is there.
#[inline(always)]
unsafe fn across<V: Vector, T: Term>(mut lanes: Lanes) -> f32 {
    let p = lanes.as_mut_ptr();
    let mut n = LANES;
    // SAFETY: every access is inside of the lanes.
    let value = unsafe {
        while n > V::LANES {
            n /= 2;
            for i in (0..n).step_by(V::LANES) {
                T::combine(V::load(p.add(i)), V::load(p.add(i + n))).store(p.add(i));
            }
        }
        V::load(p).across(T::combine)
    };
    if value.is_nan() { f32::NAN } else { value }
}

/// The lanes of a slice.
///
/// # Safety
/// As [`leaf`].
#[inline(always)]
unsafe fn lanes<V: Vector, T: Term>(t: T, x: *const f32, y: *const f32, n: usize) -> Lanes {
    let mut sums = [0.0; LANES];
    // SAFETY: the caller's contract; leaves lie inside of n.
    unsafe {
        if n <= LEAF {
            leaf::<V, T>(t, x, y, n, &mut sums);
            return sums;
        }
        let mut counter = Counter::new();
        let mut at = 0;
        while at < n {
            leaf::<V, T>(t, x.add(at), y.wrapping_add(at), LEAF.min(n - at), &mut sums);
            counter.push::<V, T>(sums);
            at += LEAF;
        }
        counter.fold::<V, T>()
    }
}

/// The sum of the terms of a slice, inside of a kernel.
///
/// # Safety
/// The instruction set is there; `x`, and `y` of a binary term, are good for reading `n` f32.
#[inline(always)]
pub(super) unsafe fn sum<V: Vector, T: Term>(t: T, x: *const f32, y: *const f32, n: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe { across::<V, T>(lanes::<V, T>(t, x, y, n)) }
}

struct Sum<'a, T>(T, &'a [f32], &'a [f32]);

impl<T: Term> Kernel for Sum<'_, T> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the slices are equally long where the term is binary.
        unsafe { sum::<V, T>(self.0, self.1.as_ptr(), self.2.as_ptr(), self.1.len()) }
    }
}

/// A slice of at most one leaf.
struct Single<'a, T>(T, &'a [f32], &'a [f32]);

impl<T: Term> Kernel for Single<'_, T> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        let mut sums = [0.0; LANES];
        // SAFETY: the slices are equally long where the term is binary.
        unsafe {
            leaf::<V, T>(self.0, self.1.as_ptr(), self.2.as_ptr(), self.1.len().min(LEAF), &mut sums);
            across::<V, T>(sums)
        }
    }
}

struct Part<'a, T>(T, &'a [f32], &'a [f32]);

impl<T: Term> Kernel for Part<'_, T> {
    type Output = Lanes;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> Lanes {
        // SAFETY: the slices are equally long where the term is binary.
        unsafe { lanes::<V, T>(self.0, self.1.as_ptr(), self.2.as_ptr(), self.1.len()) }
    }
}

/// Combines the sums of parts that follow those in the counter; the last call gives the sum of all.
struct Merge<'a, T>(T, &'a mut Counter, &'a [Lanes]);

impl<T: Term> Kernel for Merge<'_, T> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the caller's contract.
        unsafe {
            for lanes in self.2 {
                self.1.push::<V, T>(*lanes);
            }
            across::<V, T>(self.1.fold::<V, T>())
        }
    }
}

/// The sum of the terms of a slice; `y` is as long as `x` where the term is binary, and not looked at elsewhere.
///
/// Short slices go their own way: the levels of the tree are pages of stack, which cost more to enter than a leaf.
pub(super) fn total<T: Term>(simd: &Simd, t: T, x: &[f32], y: &[f32]) -> f32 {
    // SAFETY: a `Simd` exists only for an available instruction set; the kernels read inside of the slices.
    unsafe {
        if x.len() <= LEAF {
            dispatch(simd.isa(), Single(t, x, y))
        } else if simd.threads() == 1 || x.len() < super::PARALLEL {
            dispatch(simd.isa(), Sum(t, x, y))
        } else {
            shared_total(simd, t, x, y)
        }
    }
}

/// The sum of the terms of a slice, with threads.
#[inline(never)]
fn shared_total<T: Term>(simd: &Simd, t: T, x: &[f32], y: &[f32]) -> f32 {
    let mut counter = Counter::new();
    let mut sums = [[0.0; LANES]; ROUND];
    let mut value = T::EMPTY;
    for at in (0..x.len()).step_by(ROUND * PART) {
        let parts = (x.len() - at).div_ceil(PART).min(ROUND);
        let shared = Shared::new(sums.as_mut_ptr());
        threads::for_each(parts, simd.threads(), |i| {
            let from = at + i * PART;
            let to = x.len().min(from + PART);
            let y = if T::BINARY { &y[from..to] } else { y };
            // SAFETY: as above; every part writes its own sums.
            unsafe { shared.get().add(i).write(dispatch(simd.isa(), Part(t, &x[from..to], y))) };
        });
        // SAFETY: as above.
        value = unsafe { dispatch(simd.isa(), Merge(t, &mut counter, &sums[..parts])) };
    }
    value
}
