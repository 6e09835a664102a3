//! The greatest and the least of a slice, and where they stand.
//!
//! The hot loop takes the hardware's maximum, which ignores NaN on the left, and notes with one comparison for two
//! vectors whether there was any. What that loop cannot say is settled afterwards: a zero may have either sign, so the
//! slice is searched for the zero that wins. The position is found in two phases: the best block, then the first
//! element in it that equals the best.

use crate::simd::Simd;
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// An order, and the side of it that is looked for.
pub(super) trait Extreme: Copy + Send + Sync {
    /// Worse than every element, or as bad.
    const WORST: f32;
    /// The zero that wins over the other one, if both can occur.
    const BEST_ZERO: Option<f32>;

    /// What is compared.
    #[inline(always)]
    fn of<V: Vector>(x: V) -> V {
        x
    }
    /// The better of two: `best` where `x` is NaN; either of two zeros.
    fn pick<V: Vector>(x: V, best: V) -> V;
    /// Whether `x` is better than `best`; false where either is NaN.
    fn beats<V: Vector>(x: V, best: V) -> V::Mask;
    /// The better of two: the right one of two zeros; NaN if either is NaN.
    fn exact<V: Vector>(a: V, b: V) -> V;
}

/// The greatest.
#[derive(Clone, Copy)]
pub(super) struct Greatest;
/// The least.
#[derive(Clone, Copy)]
pub(super) struct Least;
/// The greatest absolute value.
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

/// Elements that argmax looks at before it compares: they stay in the first cache for the second look.
const BLOCK: usize = 4096;
/// Elements that a thread takes at once.
const PART: usize = 32 * BLOCK;
/// Parts in flight before they are merged.
const ROUND: usize = 256;
/// Registers that hold a best.
const BESTS: usize = 8;

/// A mask of all lanes, beside a vector of numbers.
#[inline(always)]
fn all<V: Vector>(number: V) -> V::Mask {
    number.eq(number)
}

/// The best of each lane, and the mask of lanes without NaN.
///
/// # Safety
/// The instruction set is there; `x` is good for reading `n` f32.
#[inline(always)]
unsafe fn scan<V: Vector, E: Extreme>(x: *const f32, n: usize) -> (V, V::Mask) {
    // SAFETY: every access is inside of n.
    unsafe {
        let worst = V::splat(E::WORST);
        let mut best = [worst; BESTS];
        let mut numbers = [all(worst); BESTS / 2];
        let mut i = 0;
        while i + BESTS * V::LANES <= n {
            for k in 0..BESTS / 2 {
                let a = E::of(V::load(x.add(i + 2 * k * V::LANES)));
                let b = E::of(V::load(x.add(i + (2 * k + 1) * V::LANES)));
                best[2 * k] = E::pick(a, best[2 * k]);
                best[2 * k + 1] = E::pick(b, best[2 * k + 1]);
                numbers[k] = V::and_numbers(numbers[k], a, b);
            }
            i += BESTS * V::LANES;
        }
        while i < n {
            let left = n - i;
            let a = if left >= V::LANES { V::load(x.add(i)) } else { V::load_first_or(x.add(i), left, E::WORST) };
            let a = E::of(a);
            best[0] = E::pick(a, best[0]);
            numbers[0] = V::and_numbers(numbers[0], a, a);
            i += V::LANES;
        }
        let mut width = BESTS;
        while width > 1 {
            width /= 2;
            for k in 0..width {
                best[k] = E::pick(best[k], best[k + width]);
            }
        }
        let numbers = V::both(V::both(numbers[0], numbers[1]), V::both(numbers[2], numbers[3]));
        (best[0], numbers)
    }
}

/// Whether any element has these bits.
#[inline(always)]
fn contains(x: &[f32], bits: u32) -> bool {
    // A block is folded without branches, which the compiler turns into vectors.
    x.chunks(1024).any(|c| c.iter().fold(false, |any, v| any | (v.to_bits() == bits)))
}

/// The best of a slice: NaN if any is NaN.
///
/// # Safety
/// The instruction set is there.
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

/// The best of a slice: NaN if any is NaN.
pub(super) fn extreme<E: Extreme>(simd: &Simd, e: E, x: &[f32]) -> f32 {
    // SAFETY: a `Simd` exists only for an available instruction set.
    let run = |x: &[f32]| unsafe { dispatch(simd.isa(), Best(e, x)) };
    if simd.threads() == 1 || x.len() < super::PARALLEL {
        return run(x);
    }
    let mut bests = [E::WORST; ROUND + 1];
    for at in (0..x.len()).step_by(ROUND * PART) {
        let parts = (x.len() - at).div_ceil(PART).min(ROUND);
        let shared = Shared::new(bests.as_mut_ptr());
        threads::for_each(parts, simd.threads(), |i| {
            let from = at + i * PART;
            // SAFETY: every part writes its own best.
            unsafe { shared.get().add(i).write(run(&x[from..x.len().min(from + PART)])) };
        });
        // The last place holds the best of the rounds before.
        bests[parts..ROUND].fill(E::WORST);
        bests[ROUND] = run(&bests);
    }
    bests[ROUND]
}

/// Where a slice has its best, and what it is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The first NaN, or the first of the best.
    pub at: usize,
    /// The value there.
    pub value: f32,
}

/// The first position that `is` holds for.
///
/// # Safety
/// The instruction set is there; `x` is good for reading `n` f32.
#[inline(always)]
unsafe fn find<V: Vector>(x: *const f32, n: usize, fill: f32, is: impl Fn(V) -> V::Mask) -> usize {
    let mut i = 0;
    while i < n {
        // SAFETY: every access is inside of n.
        let v = unsafe { if n - i >= V::LANES { V::load(x.add(i)) } else { V::load_first_or(x.add(i), n - i, fill) } };
        let bits = V::bits(is(v));
        if bits != 0 {
            return i + bits.trailing_zeros() as usize;
        }
        i += V::LANES;
    }
    n
}

/// The place of the best of a slice that is not empty.
///
/// # Safety
/// The instruction set is there.
#[inline(always)]
pub(super) unsafe fn place<V: Vector, E: Extreme>(x: &[f32]) -> Place {
    let p = x.as_ptr();
    // SAFETY: every access is inside of the slice.
    unsafe {
        let mut value = E::WORST;
        let mut champion = V::splat(value);
        let every = V::bits(all(champion));
        let mut block = 0;
        let mut at = 0;
        while at < x.len() {
            let n = BLOCK.min(x.len() - at);
            let (best, numbers) = scan::<V, E>(p.add(at), n);
            if V::bits(numbers) != every {
                return Place { at: at + find(p.add(at), n, 0.0, V::is_nan), value: f32::NAN };
            }
            if V::bits(E::beats(best, champion)) != 0 {
                value = best.across(E::pick);
                champion = V::splat(value);
                block = at;
            }
            at += BLOCK;
        }
        // Where nothing beats the worst, all are as bad as it is and the first of them is found.
        let n = BLOCK.min(x.len() - block);
        Place { at: block + find(p.add(block), n, f32::NAN, |v: V| v.eq(champion)), value }
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

/// The position of the first NaN, or of the first of the best, in a slice that is not empty.
pub(super) fn position<E: Extreme>(simd: &Simd, e: E, x: &[f32]) -> usize {
    // SAFETY: a `Simd` exists only for an available instruction set.
    let run = |x: &[f32]| unsafe { dispatch(simd.isa(), First(e, x)) };
    if simd.threads() == 1 || x.len() < super::PARALLEL {
        return run(x).at;
    }
    let mut champion: Option<Place> = None;
    let mut places = [Place { at: 0, value: 0.0 }; ROUND];
    for at in (0..x.len()).step_by(ROUND * PART) {
        let parts = (x.len() - at).div_ceil(PART).min(ROUND);
        let shared = Shared::new(places.as_mut_ptr());
        threads::for_each(parts, simd.threads(), |i| {
            let from = at + i * PART;
            let found = run(&x[from..x.len().min(from + PART)]);
            // SAFETY: every part writes its own place.
            unsafe { shared.get().add(i).write(Place { at: from + found.at, ..found }) };
        });
        for place in &places[..parts] {
            if place.value.is_nan() {
                return place.at;
            }
            // The best of two values as a slice: strictly better wins, so the earlier of equals stays.
            if champion.is_none_or(|c| run(&[c.value, place.value]).at == 1) {
                champion = Some(*place);
            }
        }
    }
    champion.map_or(0, |c| c.at)
}
