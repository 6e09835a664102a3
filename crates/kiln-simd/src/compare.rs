//! Comparisons, and the choice between two tensors.

use std::ops::Range;

use kiln_ir::op::{Compare, Comparison, Select};
use kiln_ir::{Bool, Data, DataMut, Element, Operand, Result, dtype_table};

use crate::elementwise::part_len;
use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};
use crate::vector::{PlainKernel, dispatch_plain};

/// The elements of an operand for a part of the result: as many, or one for all.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a, T> {
    Each(&'a [T]),
    All(T),
}

impl<'a, T: Copy> Beside<'a, T> {
    /// The elements for this part of the result, which does not cross the end of an operand that repeats.
    pub(crate) fn of(operand: &'a [T], range: &Range<usize>) -> Self {
        match operand {
            &[one] => Self::All(one),
            _ => {
                let start = range.start % operand.len();
                Self::Each(&operand[start..start + range.len()])
            }
        }
    }
}

/// Calls `run` with parts of the `n` elements of a result; no part crosses the end of an operand that repeats.
/// Uses threads if there are many elements.
pub(crate) fn for_parts(simd: &Simd, n: usize, lengths: &[usize], run: impl Fn(Range<usize>) + Sync) {
    let repeated = lengths.iter().copied().filter(|&length| length > 1).min().unwrap_or(n);
    let part = part_len(1, n, simd);
    threads::for_each(n.div_ceil(part), simd.threads(), |i| {
        let (mut from, end) = (i * part, n.min((i + 1) * part));
        while from < end {
            let to = end.min((from / repeated + 1) * repeated);
            run(from..to);
            from = to;
        }
    });
}

struct Comparing<'a, T> {
    comparison: Comparison,
    a: Beside<'a, T>,
    b: Beside<'a, T>,
    out: &'a mut [Bool],
}

impl<T: Copy + PartialOrd> PlainKernel for Comparing<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { comparison, a, b, out } = self;
        // One loop for each comparison, so that no element needs a branch.
        macro_rules! each {
            ($($comparison:ident),*) => {
                match comparison {
                    $(Comparison::$comparison => fill(a, b, out, |a, b| Comparison::$comparison.holds(a, b).into()),)*
                }
            };
        }
        each!(Eq, Ne, Lt, Le, Gt, Ge);
    }
}

#[inline(always)]
pub(crate) fn fill<T: Copy, U>(a: Beside<'_, T>, b: Beside<'_, T>, out: &mut [U], of: impl Fn(T, T) -> U) {
    match (a, b) {
        (Beside::Each(a), Beside::Each(b)) => {
            out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (&a, &b))| *out = of(a, b));
        }
        (Beside::Each(a), Beside::All(b)) => out.iter_mut().zip(a).for_each(|(out, &a)| *out = of(a, b)),
        (Beside::All(a), Beside::Each(b)) => out.iter_mut().zip(b).for_each(|(out, &b)| *out = of(a, b)),
        (Beside::All(a), Beside::All(b)) => out.iter_mut().for_each(|out| *out = of(a, b)),
    }
}

/// Compares elements in their own type.
fn compare<T: Element + PartialOrd>(simd: &Simd, comparison: Comparison, [a, b]: [&[T]; 2], out: &mut [Bool]) {
    let n = out.len();
    let out = Shared::new(out.as_mut_ptr());
    for_parts(simd, n, &[a.len(), b.len()], |range| {
        // SAFETY: parts are inside 0..n and do not overlap.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(range.start), range.len()) };
        let [a, b] = [a, b].map(|operand| Beside::of(operand, &range));
        // SAFETY: a `Simd` exists only for an available instruction set.
        unsafe { dispatch_plain(simd.isa(), Comparing { comparison, a, b, out }) };
    });
}

impl Execute for Compare {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let out = outputs[0].bool();
        macro_rules! of_type {
            ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
                match (inputs[0].data(), inputs[1].data()) {
                    $((Data::$variant(a), Data::$variant(b)) => compare(simd, self.comparison, [a, b], out),)*
                    // The shape rule has checked that both have the same type.
                    _ => {}
                }
            };
        }
        dtype_table!(of_type);
        Ok(())
    }
}

struct Selecting<'a> {
    condition: Beside<'a, Bool>,
    a: Beside<'a, u32>,
    b: Beside<'a, u32>,
    out: &'a mut [u32],
}

impl PlainKernel for Selecting<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { condition, a, b, out } = self;
        match condition {
            Beside::All(condition) => {
                let chosen = if condition.into() { a } else { b };
                fill(chosen, chosen, out, |x, _| x);
            }
            Beside::Each(condition) => {
                // First all words of b; those of a then replace some of them.
                fill(b, b, out, |x, _| x);
                let chosen = out.iter_mut().zip(condition);
                let replace =
                    |(out, &condition): (&mut u32, &Bool), x: u32| *out = if condition.into() { x } else { *out };
                match a {
                    Beside::Each(a) => chosen.zip(a).for_each(|(out, &x)| replace(out, x)),
                    Beside::All(x) => chosen.for_each(|out| replace(out, x)),
                }
            }
        }
    }
}

impl Execute for Select {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        // Elements of every supported type are words.
        let words = |index: usize| bytemuck::cast_slice::<u8, u32>(inputs[index].data().as_bytes());
        let (condition, a, b) = (inputs[0].data().bool(), words(1), words(2));
        let out: &mut [u32] = bytemuck::cast_slice_mut(outputs[0].as_bytes());
        let n = out.len();
        let out = Shared::new(out.as_mut_ptr());
        for_parts(simd, n, &[condition.len(), a.len(), b.len()], |range| {
            // SAFETY: parts are inside 0..n and do not overlap.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(range.start), range.len()) };
            let [a, b] = [a, b].map(|operand| Beside::of(operand, &range));
            let call = Selecting { condition: Beside::of(condition, &range), a, b, out };
            // SAFETY: a `Simd` exists only for an available instruction set.
            unsafe { dispatch_plain(simd.isa(), call) };
        });
        Ok(())
    }
}
