//! Sums of terms over a slice, in a fixed tree.
//!
//! The slice is cut into leaves of [`LEAF`] elements. A leaf is rows of 128: 64 virtual lanes for even and 64 for odd
//! groups of 64, each a running sum down the rows; the two halves are added at the end. Leaves are combined lane by
//! lane, pairwise, in a binary tree (a binary counter of subtrees; what is left over is folded from its right end), and
//! the 64 lanes last, upper half to lower half. Terms are multiplied, then added, never fused. Registers only carry
//! this tree, so the bits do not depend on their width, nor on the number of threads, which take subtrees.
//!
//! Nor do they depend on where the slice lies, although aligned vectors are what is read: lanes may begin anywhere in
//! their row, because everything that follows a leaf combines lanes of one distance in a ring and does not care for the
//! order of two operands. So a leaf is read from its first aligned vector on, every register holds lanes that are turned
//! by this many places, and the elements before it, which belong to the last lanes, come first in the sums of those.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::in_parts;
use crate::scratch::Workspace;
use crate::simd::Simd;
use crate::vector::{Kernel, Vector, dispatch, unaligned};

/// Virtual lanes of the tree.
const LANES: usize = 64;
/// Columns of the rows of a leaf: even and odd groups of lanes, so that wide registers have enough independent sums.
const ROW: usize = 2 * LANES;
/// Elements of a leaf: 16 rows. Longer leaves would save a part of the tree, but a million equal terms would then
/// exceed 1e-7.
pub(super) const LEAF: usize = 16 * ROW;
/// Leaves that a thread takes at once: a power of two, so that they form a subtree.
const PART: usize = 32 * LEAF;
/// Levels of the tree of the longest slice: it has `isize::MAX` bytes, so fewer than two to this power of leaves.
const LEVELS: usize = (usize::BITS - 3 - LEAF.ilog2()) as usize + 1;
/// Levels of the tree of a [`PART`].
const PART_LEVELS: usize = (PART / LEAF).ilog2() as usize + 1;
/// Levels that are kept on the stack. All levels are 13 KiB with 64-bit addresses, and threads of a host program may
/// have a stack of only 32 KiB: with these, slices longer than a [`PART`] keep their levels in scratch memory.
const STACK_LEVELS: usize = if cfg!(target_pointer_width = "64") { PART_LEVELS } else { LEVELS };

/// Whether a slice of one leaf takes a fast path without levels of the tree. On WebAssembly using the levels costs
/// nothing, and the fast path would double the code.
const SHORT_WAY: bool = cfg!(not(target_family = "wasm"));

/// One sum for each virtual lane.
pub(super) type Lanes = [f32; LANES];

/// The terms to sum, and how to combine them.
pub(super) trait Term: Copy + Send + Sync {
    /// Terms whose sums combine in the same way: the steps after summing are compiled only for these.
    type Alike: Term;
    /// The sum of no terms.
    const EMPTY: f32 = 0.0;
    /// A padding element whose term changes no sum.
    const PAD: f32 = 0.0;
    /// Whether the term has a second operand.
    const BINARY: bool = false;

    /// The term of an element of each operand.
    fn term<V: Vector>(self, x: V, y: V) -> V;

    /// Combines two sums.
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
    type Alike = Elements;

    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        x
    }
}

impl Term for Magnitudes {
    type Alike = Elements;

    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        x.abs()
    }
}

impl Term for ScaledSquares {
    type Alike = Elements;

    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        let x = x * x.of(self.0);
        x * x
    }
}

impl Term for Squares {
    type Alike = Elements;

    #[inline(always)]
    fn term<V: Vector>(self, x: V, _: V) -> V {
        x * x
    }
}

impl Term for Factors {
    type Alike = Self;

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
    type Alike = Elements;

    const BINARY: bool = true;

    #[inline(always)]
    fn term<V: Vector>(self, x: V, y: V) -> V {
        x * y
    }
}

/// Registers that hold sums: half of the 16 registers of most instruction sets, which leaves the others for the
/// operands.
const SUMS: usize = 8;

/// Adds the sums of at most [`LEAF`] elements, the first `head` of them before the first aligned vector, to complete
/// subtrees: the first `merges` of `levels`. Writes the total to the level that follows them.
///
/// The lanes are rotated by `head` positions; all leaves of a slice have the same `head`.
///
/// # Safety
/// The instruction set is available; `x`, and `y` of a binary term, are readable for `n` f32; `levels` is readable for
/// `merges` and writable for one more.
#[inline(always)]
unsafe fn leaf<V: Vector, T: Term>(
    t: T,
    x: *const f32,
    y: *const f32,
    n: usize,
    head: usize,
    levels: *mut Lanes,
    merges: usize,
) {
    let before = head.min(n);
    let (rows, rest) = ((n - before) / ROW, (n - before) % ROW);
    let width = SUMS * V::LANES;
    // SAFETY: the head, full rows and the first `rest` columns of one more are inside the operands; a sweep over
    // `width` columns, which divides a row, loads and stores inside the lanes.
    unsafe {
        let operands = |at: usize, skip: usize, n: usize| {
            let x = V::load_within(x.wrapping_add(at), skip, n, T::PAD);
            (x, if const { T::BINARY } { V::load_within(y.wrapping_add(at), skip, n, T::PAD) } else { x })
        };
        let mut column = 0;
        while column < ROW {
            let mut sums = [V::splat(T::EMPTY); SUMS];
            if head > 0 && column + width == ROW {
                let (x, y) = operands(0, V::LANES - head, before);
                sums[SUMS - 1] = T::combine(sums[SUMS - 1], t.term(x, y));
            }
            let start = before + column;
            let (mut p, mut q) = (x.wrapping_add(start), y.wrapping_add(start));
            for _ in 0..rows {
                for (k, sum) in sums.iter_mut().enumerate() {
                    let x = V::load(p.add(k * V::LANES));
                    let y = if const { T::BINARY } { V::load(q.add(k * V::LANES)) } else { x };
                    *sum = T::combine(*sum, t.term(x, y));
                }
                (p, q) = (p.wrapping_add(ROW), q.wrapping_add(ROW));
            }
            let start = start + rows * ROW;
            for (k, sum) in sums.iter_mut().enumerate() {
                let n = rest.saturating_sub(column + k * V::LANES);
                let at = start + k * V::LANES;
                if n >= V::LANES || const { V::MASKED } && n > 0 {
                    let (x, y) = if const { V::MASKED } && n < V::LANES {
                        operands(at, 0, n)
                    } else {
                        let x = V::load(x.wrapping_add(at));
                        (x, if const { T::BINARY } { V::load(y.wrapping_add(at)) } else { x })
                    };
                    *sum = T::combine(*sum, t.term(x, y));
                }
            }
            // A partial load takes many instructions on these instruction sets, so its code exists only once.
            if const { !V::MASKED } {
                let left = rest.saturating_sub(column).min(width);
                let (whole, part) = (left / V::LANES, left % V::LANES);
                if part > 0 {
                    let (x, y) = operands(start + whole * V::LANES, 0, part);
                    let term = t.term(x, y);
                    for (k, sum) in sums.iter_mut().enumerate() {
                        if k == whole {
                            *sum = T::combine(*sum, term);
                        }
                    }
                }
            }
            // The second half of a row is added to the first, which is in registers or has been stored.
            let level = |level: usize, k: usize| levels.add(level).cast::<f32>().add((column + k * V::LANES) % LANES);
            let (count, second) = if width == ROW { (SUMS / 2, true) } else { (SUMS, column >= LANES) };
            for k in 0..count {
                if width == ROW {
                    sums[k] = T::combine(sums[k], sums[k + SUMS / 2]);
                } else if second {
                    sums[k] = T::combine(V::load(level(merges, k)), sums[k]);
                }
            }
            for l in 0..if second { merges } else { 0 } {
                for k in 0..count {
                    sums[k] = T::combine(V::load(level(l, k)), sums[k]);
                }
            }
            for k in 0..count {
                sums[k].store(level(merges, k));
            }
            column += width;
        }
    }
}

/// Subtrees of the leaves so far: level `l` is used if bit `l` of the count is set.
struct Counter {
    levels: *mut Lanes,
    count: usize,
}

impl Counter {
    /// # Safety
    /// `levels` is readable and writable for the levels that the counted leaves, or parts, need.
    #[inline(always)]
    unsafe fn new(levels: *mut Lanes) -> Self {
        Self { levels, count: 0 }
    }

    /// The levels, and how many at their bottom the next subtree completes.
    #[inline(always)]
    fn next(&self) -> (*mut Lanes, usize) {
        (self.levels, self.count.trailing_ones() as usize)
    }

    /// # Safety
    /// The instruction set is available.
    #[inline(always)]
    unsafe fn push<V: Vector, T: Term>(&mut self, mut lanes: Lanes) {
        let (levels, merges) = self.next();
        // SAFETY: the set bits of the count show that the levels below were written.
        unsafe {
            for level in 0..merges {
                combine::<V, T>(&*levels.add(level), &mut lanes);
            }
            levels.add(merges).write(lanes);
        }
        self.count += 1;
    }

    /// # Safety
    /// The instruction set is available.
    #[inline(always)]
    unsafe fn fold<V: Vector, T: Term>(&self) -> Lanes {
        let mut lanes: Option<Lanes> = None;
        let mut left = self.count;
        while left > 0 {
            // SAFETY: the set bit of the count shows that the level was written.
            let subtree = unsafe { &*self.levels.add(left.trailing_zeros() as usize) };
            left &= left - 1;
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
/// The instruction set is available.
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

/// The sum of the lanes, upper half onto lower half, which pairs lanes at one distance in a ring, so that the lanes may
/// be rotated. Replaces any NaN by one NaN, because their signs differ between machines.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
unsafe fn across<V: Vector, T: Term>(mut lanes: Lanes) -> f32 {
    let p = lanes.as_mut_ptr();
    let mut n = LANES;
    // SAFETY: every access is inside the lanes.
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

/// The lanes of at most one leaf.
///
/// # Safety
/// The conditions of [`lanes`] hold.
#[inline(always)]
unsafe fn single<V: Vector, T: Term>(t: T, x: *const f32, y: *const f32, n: usize) -> Lanes {
    let mut lanes = [0.0; LANES];
    // SAFETY: the caller's contract; without merges, only the one level is touched.
    unsafe { leaf::<V, T>(t, x, y, n, unaligned::<V>(x), &mut lanes, 0) };
    lanes
}

/// The lanes of a slice, rotated as [`leaf`] says.
///
/// # Safety
/// The instruction set is available; `x`, and `y` of a binary term, are readable for `n` f32.
#[inline(always)]
unsafe fn lanes<V: Vector, T: Term>(t: T, x: *const f32, y: *const f32, n: usize) -> Lanes {
    // SAFETY: the caller's contract; leaves are inside n, and a slice of at most a part has the levels on the stack.
    unsafe {
        let mut near = [const { MaybeUninit::<Lanes>::uninit() }; STACK_LEVELS];
        let mut far = (STACK_LEVELS < LEVELS && n > PART).then(|| Workspace::take(LEVELS * LANES));
        let levels = far.as_mut().map_or(near.as_mut_ptr().cast(), |far| far.as_mut_ptr().cast());
        let mut counter = Counter::new(levels);
        let head = unaligned::<V>(x);
        let mut at = 0;
        while at < n {
            let (levels, merges) = counter.next();
            leaf::<V, T>(t, x.add(at), y.wrapping_add(at), LEAF.min(n - at), head, levels, merges);
            counter.count += 1;
            at += LEAF;
        }
        counter.fold::<V, T>()
    }
}

/// The sum of the terms of a slice, inside of a kernel.
///
/// # Safety
/// The instruction set is available; `x`, and `y` of a binary term, are readable for `n` f32.
#[inline(always)]
pub(super) unsafe fn sum<V: Vector, T: Term>(t: T, x: *const f32, y: *const f32, n: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        if SHORT_WAY && n <= LEAF {
            return across::<V, T>(single::<V, T>(t, x, y, n));
        }
        across::<V, T>(lanes::<V, T>(t, x, y, n))
    }
}

/// A slice of at most one leaf.
struct Single<'a, T>(T, &'a [f32], &'a [f32]);

impl<T: Term> Kernel for Single<'_, T> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the slices have equal lengths if the term is binary.
        unsafe { across::<V, T>(single::<V, T>(self.0, self.1.as_ptr(), self.2.as_ptr(), self.1.len().min(LEAF))) }
    }
}

/// A slice as a subtree.
struct Part<'a, T>(T, &'a [f32], &'a [f32]);

impl<T: Term> Kernel for Part<'_, T> {
    type Output = Lanes;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> Lanes {
        // SAFETY: the slices have equal lengths if the term is binary.
        unsafe { lanes::<V, T>(self.0, self.1.as_ptr(), self.2.as_ptr(), self.1.len()) }
    }
}

/// The sum of all lanes.
struct Across<T>(Lanes, PhantomData<T>);

impl<T: Term> Kernel for Across<T> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { across::<V, T>(self.0) }
    }
}

/// Combines the sums of parts that follow those in the counter; the last call returns the total.
struct Merge<'a, T>(&'a mut Counter, &'a [Lanes], PhantomData<T>);

impl<T: Term> Kernel for Merge<'_, T> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the caller's contract.
        unsafe {
            for lanes in self.1 {
                self.0.push::<V, T>(*lanes);
            }
            across::<V, T>(self.0.fold::<V, T>())
        }
    }
}

/// The sum of the terms of a slice; `y` is as long as `x` if the term is binary, and unused otherwise.
///
/// Short slices take the fast path if [`SHORT_WAY`].
#[inline]
pub(super) fn total<T: Term>(simd: &Simd, t: T, x: &[f32], y: &[f32]) -> f32 {
    if !SHORT_WAY || x.len() > LEAF {
        return long_total(simd, t, x, y);
    }
    // SAFETY: a `Simd` exists only for an available instruction set; the kernels read inside of the slices.
    unsafe { dispatch(simd.isa(), Single(t, x, y)) }
}

#[inline(never)]
fn long_total<T: Term>(simd: &Simd, t: T, x: &[f32], y: &[f32]) -> f32 {
    let operands = 1 + usize::from(T::BINARY);
    if simd.threads() > 1 && x.len() >= super::PARALLEL / operands {
        return shared_total(simd, t, x, y);
    }
    // SAFETY: as above.
    unsafe { dispatch(simd.isa(), Across::<T::Alike>(dispatch(simd.isa(), Part(t, x, y)), PhantomData)) }
}

/// The sum of the terms of a slice, with threads.
#[inline(never)]
fn shared_total<T: Term>(simd: &Simd, t: T, x: &[f32], y: &[f32]) -> f32 {
    let mut levels = Workspace::take(LEVELS * LANES);
    // SAFETY: there are levels for all leaves, which are more than the parts.
    let mut counter = unsafe { Counter::new(levels.as_mut_ptr().cast()) };
    let mut value = T::EMPTY;
    let part = |part: std::ops::Range<usize>| {
        let y = if T::BINARY { &y[part.clone()] } else { y };
        // SAFETY: as above.
        unsafe { dispatch(simd.isa(), Part(t, &x[part], y)) }
    };
    in_parts(simd, x.len(), PART, [0.0; LANES], part, |sums| {
        // SAFETY: as above. Parts are whole cache lines, so that their lanes are rotated equally.
        value = unsafe { dispatch(simd.isa(), Merge::<T::Alike>(&mut counter, sums, PhantomData)) };
    });
    value
}
