//! The greatest and the least element of a slice, and their positions.
//!
//! The hot loop takes the hardware's maximum, which ignores NaN on the left, and notes with one comparison for two
//! vectors whether there was any. What that loop cannot say is settled afterwards: a zero may have either sign, so the
//! slice is searched for the zero that wins. The position is found in two phases: the best block, then the first
//! element in it that equals the best.

use super::in_parts;
use crate::Isa;
use crate::simd::Simd;
use crate::vector::{Kernel, Vector, dispatch, unaligned};

/// An order, and the end of it that is searched for.
pub(super) trait Extreme: Copy + Send + Sync {
    /// A value that no element is worse than.
    const WORST: f32;
    /// The zero that is better than the other, if both can occur.
    const BEST_ZERO: Option<f32>;

    /// The compared value of an element.
    #[inline(always)]
    fn of<V: Vector>(x: V) -> V {
        x
    }
    /// The better of two: `best` if `x` is NaN; either of two zeros.
    fn pick<V: Vector>(x: V, best: V) -> V;
    /// Whether `x` is better than `best`; false if either is NaN.
    fn beats<V: Vector>(x: V, best: V) -> V::Mask;
    /// The better of two: the correct one of two zeros; NaN if either is NaN.
    fn exact<V: Vector>(a: V, b: V) -> V;
}

/// The maximum.
#[derive(Clone, Copy)]
pub(super) struct Greatest;
/// The minimum.
#[derive(Clone, Copy)]
pub(super) struct Least;
/// The maximum absolute value.
#[derive(Clone, Copy)]
pub(super) struct GreatestMagnitude;

impl Extreme for Greatest {
    const WORST: f32 = f32::NEG_INFINITY;
    const BEST_ZERO: Option<f32> = Some(0.0);

    #[inline(always)]
    fn pick<V: Vector>(x: V, best: V) -> V {
        x.greater(best)
    }
    #[inline(always)]
    fn beats<V: Vector>(x: V, best: V) -> V::Mask {
        best.lt(x)
    }
    #[inline(always)]
    fn exact<V: Vector>(a: V, b: V) -> V {
        a.maximum(b)
    }
}

impl Extreme for Least {
    const WORST: f32 = f32::INFINITY;
    const BEST_ZERO: Option<f32> = Some(-0.0);

    #[inline(always)]
    fn pick<V: Vector>(x: V, best: V) -> V {
        x.lesser(best)
    }
    #[inline(always)]
    fn beats<V: Vector>(x: V, best: V) -> V::Mask {
        x.lt(best)
    }
    #[inline(always)]
    fn exact<V: Vector>(a: V, b: V) -> V {
        a.minimum(b)
    }
}

impl Extreme for GreatestMagnitude {
    const WORST: f32 = 0.0;
    const BEST_ZERO: Option<f32> = None;

    #[inline(always)]
    fn of<V: Vector>(x: V) -> V {
        x.abs()
    }
    #[inline(always)]
    fn pick<V: Vector>(x: V, best: V) -> V {
        x.greater(best)
    }
    #[inline(always)]
    fn beats<V: Vector>(x: V, best: V) -> V::Mask {
        best.lt(x)
    }
    #[inline(always)]
    fn exact<V: Vector>(a: V, b: V) -> V {
        a.maximum(b)
    }
}

/// Elements that argmax scans before it compares: few enough that the second scan of the best block is short.
const BLOCK: usize = 2048;
/// Elements that a thread takes at once.
const PART: usize = 64 * BLOCK;
/// Registers with best values.
const BESTS: usize = 8;

/// A mask of all lanes, given a vector without NaN.
#[inline(always)]
fn all<V: Vector>(number: V) -> V::Mask {
    number.eq(number)
}

/// The state of a scan: the best value of each lane of some registers, and the lanes without NaN.
struct Scan<V: Vector> {
    best: [V; BESTS],
    numbers: [V::Mask; BESTS / 2],
}

impl<V: Vector> Scan<V> {
    /// Processes one vector for each register.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for them.
    #[inline(always)]
    unsafe fn take<E: Extreme>(&mut self, x: *const f32) {
        for k in 0..BESTS / 2 {
            // SAFETY: the caller's contract.
            let [a, b] = unsafe { [V::load(x.add(2 * k * V::LANES)), V::load(x.add((2 * k + 1) * V::LANES))] };
            let [a, b] = [E::of(a), E::of(b)];
            self.best[2 * k] = E::pick(a, self.best[2 * k]);
            self.best[2 * k + 1] = E::pick(b, self.best[2 * k + 1]);
            self.numbers[k] = V::and_numbers(self.numbers[k], a, b);
        }
    }

    /// Processes one vector.
    #[inline(always)]
    fn take_one<E: Extreme>(&mut self, x: V) {
        let x = E::of(x);
        self.best[0] = E::pick(x, self.best[0]);
        self.numbers[0] = V::and_numbers(self.numbers[0], x, x);
    }
}

/// The best of each lane, and the mask of lanes without NaN.
///
/// Scanning an element twice does no harm: the elements before the first aligned vector are read with the unaligned
/// vector at the beginning (as [`unaligned`] says, straddled cache lines cost a second access), the remaining ones with
/// the vectors that end the slice.
///
/// # Safety
/// The instruction set is available; `x` is readable for `n` f32.
#[inline(always)]
unsafe fn scan<V: Vector, E: Extreme>(x: *const f32, n: usize) -> (V, V::Mask) {
    let step = BESTS * V::LANES;
    // SAFETY: every access is inside of n.
    unsafe {
        let worst = V::splat(E::WORST);
        let mut scan = Scan { best: [worst; BESTS], numbers: [all(worst); BESTS / 2] };
        if n >= step {
            let mut i = unaligned::<V>(x);
            if i > 0 {
                scan.take_one::<E>(V::load(x));
            }
            while i + step <= n {
                scan.take::<E>(x.add(i));
                i += step;
            }
            if i < n {
                scan.take::<E>(x.add(n - step));
            }
        } else {
            for i in (0..n).step_by(V::LANES) {
                scan.take_one::<E>(V::load_first_or(x.add(i), V::LANES.min(n - i), E::WORST));
            }
        }
        let Scan { mut best, numbers } = scan;
        let mut width = BESTS;
        while width > 1 {
            width /= 2;
            for k in 0..width {
                best[k] = E::pick(best[k], best[k + width]);
            }
        }
        (best[0], V::both(V::both(numbers[0], numbers[1]), V::both(numbers[2], numbers[3])))
    }
}

/// Whether any element has these bits.
#[inline(always)]
fn contains(x: &[f32], bits: u32) -> bool {
    // A block is folded without branches, which the compiler vectorises.
    x.chunks(1024).any(|c| c.iter().fold(false, |any, v| any | (v.to_bits() == bits)))
}

/// The best of a slice: NaN if any is NaN.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
pub(super) unsafe fn best<V: Vector, E: Extreme>(x: &[f32]) -> f32 {
    // SAFETY: the pointer and the length are those of the slice.
    let (best, numbers) = unsafe { scan::<V, E>(x.as_ptr(), x.len()) };
    if V::bits(numbers) != V::bits(all(best)) {
        return f32::NAN;
    }
    let value = best.across(E::pick);
    match E::BEST_ZERO {
        Some(zero) if value == 0.0 => {
            if contains(x, zero.to_bits()) {
                zero
            } else {
                -zero
            }
        }
        _ => value,
    }
}

struct Best<'a, E>(E, &'a [f32]);

impl<E: Extreme> Kernel for Best<'_, E> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { best::<V, E>(self.1) }
    }
}

/// Elements below which folding the registers at the end takes longer than the loop. On an AVX-512 Xeon, AVX2 takes
/// 0.85 to 0.95 of the time of AVX-512 for 64 to 300 elements, and 1.1 of it for 1000.
const SHORT: usize = 512;

/// The instruction set for this many elements; it is available if `isa` is.
fn fitting(isa: Isa, n: usize) -> Isa {
    if n < SHORT { isa.halved() } else { isa }
}

/// The best of a slice: NaN if any is NaN.
#[inline(never)] // keeps the function that chooses a reduction short, which makes short slices faster
pub(super) fn extreme<E: Extreme>(simd: &Simd, e: E, x: &[f32]) -> f32 {
    // SAFETY: the instruction set is that of a `Simd`, or one that is available if that is.
    let run = |x: &[f32]| unsafe { dispatch(fitting(simd.isa(), x.len()), Best(e, x)) };
    if simd.threads() == 1 || x.len() < super::PARALLEL {
        return run(x);
    }
    let mut best = E::WORST;
    in_parts(simd, x.len(), PART, E::WORST, |part| run(&x[part]), |bests| best = run(&[best, run(bests)]));
    best
}

/// The position of the best value of a slice, and the value.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The first NaN, or the first of the best.
    pub at: usize,
    /// The value there.
    pub value: f32,
}

/// The first position for which `is` holds, or `n`. Elements beyond the end count as `fill`.
///
/// # Safety
/// The instruction set is available; `x` is readable for `n` f32.
#[inline(always)]
unsafe fn find<V: Vector>(x: *const f32, n: usize, fill: f32, is: impl Fn(V) -> V::Mask) -> usize {
    let mut i = 0;
    // SAFETY: every access is inside of n.
    unsafe {
        let at = |i: usize| is(V::load(x.add(i)));
        while i + 4 * V::LANES <= n {
            let [a, b, c, d] = [at(i), at(i + V::LANES), at(i + 2 * V::LANES), at(i + 3 * V::LANES)];
            if V::bits(V::either(V::either(a, b), V::either(c, d))) != 0 {
                break;
            }
            i += 4 * V::LANES;
        }
        while i < n {
            let left = n - i;
            let bits = V::bits(if left < V::LANES { is(V::load_first_or(x.add(i), left, fill)) } else { at(i) });
            if bits != 0 {
                return i + bits.trailing_zeros() as usize;
            }
            i += V::LANES;
        }
    }
    n
}

/// The position of the best value of a non-empty slice.
///
/// # Safety
/// The instruction set is available.
#[inline(always)]
pub(super) unsafe fn place<V: Vector, E: Extreme>(x: &[f32]) -> Place {
    let p = x.as_ptr();
    // SAFETY: every access is inside the slice.
    unsafe {
        let mut value = E::WORST;
        let mut champion = V::splat(value);
        let every = V::bits(all(champion));
        // The first block ends at the beginning of an aligned one.
        let first = BLOCK + unaligned::<V>(p);
        let mut block = 0..first.min(x.len());
        let mut next = block.clone();
        while !next.is_empty() {
            let (best, numbers) = scan::<V, E>(p.add(next.start), next.len());
            if V::bits(numbers) != every {
                let at = next.start + find(p.add(next.start), next.len(), 0.0, V::is_nan);
                return Place { at, value: f32::NAN };
            }
            if V::bits(E::beats(best, champion)) != 0 {
                value = best.across(E::pick);
                champion = V::splat(value);
                block = next.clone();
            }
            next = next.end..x.len().min(next.end + BLOCK);
        }
        // If nothing is better than the worst value, all elements equal it and the first of them is found.
        let at = block.start + find(p.add(block.start), block.len(), f32::NAN, |v: V| v.eq(champion));
        Place { at, value }
    }
}

struct First<'a, E>(E, &'a [f32]);

impl<E: Extreme> Kernel for First<'_, E> {
    type Output = Place;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> Place {
        // SAFETY: the caller's contract.
        unsafe { place::<V, E>(self.1) }
    }
}

/// The position of the first NaN, or of the first best value, in a non-empty slice.
pub(super) fn position<E: Extreme>(simd: &Simd, e: E, x: &[f32]) -> usize {
    // SAFETY: the instruction set is that of a `Simd`, or one that is available if that is.
    let run = |x: &[f32]| unsafe { dispatch(fitting(simd.isa(), x.len()), First(e, x)) };
    if simd.threads() == 1 || x.len() < super::PARALLEL {
        return run(x).at;
    }
    let mut champion: Option<Place> = None;
    let part = |part: std::ops::Range<usize>| {
        let from = part.start;
        let found = run(&x[part]);
        Place { at: from + found.at, ..found }
    };
    in_parts(simd, x.len(), PART, Place { at: 0, value: 0.0 }, part, |places| {
        for place in places {
            // The first NaN, or the first best of two values: the earlier of equal ones wins.
            if champion.is_none_or(|c| run(&[c.value, place.value]).at == 1) {
                champion = Some(*place);
            }
        }
    });
    champion.map_or(0, |c| c.at)
}
