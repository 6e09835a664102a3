//! Sums of all elements up to each along a dimension.

use kiln_ir::op::Cumsum;
use kiln_ir::{Data, DataMut, Operand, Result};

use crate::elementwise::part_len;
use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};
use crate::vector::{PlainKernel, dispatch_plain};

/// Elements of a part of a row, whose sums begin at zero; the totals of preceding parts are added later, so that
/// threads can share a row.
const PART: usize = 1 << 16;
/// Elements of short rows that a thread takes at once.
const SHARE: usize = 1 << 13;
/// The time of an element as that of a function of this many floating-point operations, and the time of a row in elements: each sum
/// waits for the one before.
const COST: u64 = 24;
const PER_ROW: usize = 16;
/// Columns that are summed side by side if rows are not contiguous.
const COLUMNS: usize = 64;

/// An element with the type of its sums: f64 for f32, and wrapping integers.
trait Summand: Copy + Send + Sync + 'static {
    type Sum: Copy + Default + Send + Sync + bytemuck::Zeroable;
    fn sum(self) -> Self::Sum;
    fn plus(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn of(sum: Self::Sum) -> Self;
}

impl Summand for f32 {
    type Sum = f64;
    #[inline(always)]
    fn sum(self) -> f64 {
        self.into()
    }
    #[inline(always)]
    fn plus(a: f64, b: f64) -> f64 {
        a + b
    }
    #[inline(always)]
    fn of(sum: f64) -> Self {
        sum as Self
    }
}

/// Integers as unsigned words: sums have the same bits for both signs.
impl Summand for u32 {
    type Sum = u32;
    #[inline(always)]
    fn sum(self) -> u32 {
        self
    }
    #[inline(always)]
    fn plus(a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn of(sum: u32) -> Self {
        sum
    }
}

/// The sums of a contiguous part, beginning with `before`. Without a result, only its total.
struct Part<'a, T: Summand> {
    x: &'a [T],
    before: T::Sum,
    out: Option<&'a mut [T]>,
}

impl<T: Summand> PlainKernel for Part<'_, T> {
    type Output = T::Sum;

    #[inline(always)]
    fn run(self) -> T::Sum {
        let Self { x, before, out } = self;
        let mut sum = T::Sum::default();
        // One sum in four depends on the one before it. The order is the same with and without a result.
        let (fours, rest) = x.as_chunks::<4>();
        let four = |&[a, b, c, d]: &[T; 4]| {
            let ab = T::plus(a.sum(), b.sum());
            let abc = T::plus(ab, c.sum());
            [a.sum(), ab, abc, T::plus(abc, d.sum())]
        };
        let Some(out) = out else {
            fours.iter().for_each(|x| sum = T::plus(sum, four(x)[3]));
            rest.iter().for_each(|x| sum = T::plus(sum, x.sum()));
            return sum;
        };
        let (out_fours, out_rest) = out.as_chunks_mut::<4>();
        for (x, out) in fours.iter().zip(out_fours) {
            let sums = four(x);
            let start = sum;
            for lane in 0..4 {
                out[lane] = T::of(T::plus(before, T::plus(start, sums[lane])));
            }
            sum = T::plus(sum, sums[3]);
        }
        for (x, out) in rest.iter().zip(out_rest) {
            sum = T::plus(sum, x.sum());
            *out = T::of(T::plus(before, sum));
        }
        sum
    }
}

/// The sums of contiguous rows of `n` elements.
struct Rows<'a, T: Summand> {
    x: &'a [T],
    out: &'a mut [T],
    n: usize,
}

impl<T: Summand> PlainKernel for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (x, out) in self.x.chunks_exact(self.n).zip(self.out.chunks_exact_mut(self.n)) {
            Part { x, before: T::Sum::default(), out: Some(out) }.run();
        }
    }
}

/// Adjacent rows: some columns of a matrix.
///
/// `x` and `out` are valid for `rows` rows, `stride` apart, of `columns <= COLUMNS` elements.
struct Columns<T> {
    x: *const T,
    out: *mut T,
    rows: usize,
    stride: usize,
    columns: usize,
}

impl<T: Summand> PlainKernel for Columns<T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut sums = [T::Sum::default(); COLUMNS];
        for row in 0..self.rows {
            // SAFETY: the creator of a value of this type guarantees both.
            let (x, out) = unsafe {
                let at = row * self.stride;
                let x = std::slice::from_raw_parts(self.x.add(at), self.columns);
                (x, std::slice::from_raw_parts_mut(self.out.add(at), self.columns))
            };
            for ((sum, &x), out) in sums.iter_mut().zip(x).zip(out) {
                *sum = T::plus(*sum, x.sum());
                *out = T::of(*sum);
            }
        }
    }
}

fn run<T: Summand>(simd: &Simd, [outer, n, inner]: [usize; 3], x: &[T], out: &mut [T]) -> Result<()> {
    let isa = simd.isa();
    let work = x.len().saturating_add(outer.saturating_mul(PER_ROW));
    let threads = if part_len(COST, work, simd) < work { simd.threads() } else { 1 };
    let out = Shared::new(out.as_mut_ptr());
    if inner != 1 {
        let blocks = inner.div_ceil(COLUMNS);
        threads::for_each(outer * blocks, threads, |block| {
            let column = block % blocks * COLUMNS;
            let at = block / blocks * n * inner + column;
            let columns = COLUMNS.min(inner - column);
            // SAFETY: the columns of a block are inside x and the result, which has as many elements, and no other
            // block has them.
            let out = unsafe { out.get().add(at) };
            let block = Columns { x: x[at..].as_ptr(), out, rows: n, stride: inner, columns };
            // SAFETY: a `Simd` exists only for an available instruction set.
            unsafe { dispatch_plain(isa, block) };
        });
        return Ok(());
    }
    if n <= PART {
        let rows = (SHARE / n).max(1);
        threads::for_each(outer.div_ceil(rows), threads, |i| {
            let range = i * rows * n..outer.min((i + 1) * rows) * n;
            // SAFETY: rows are inside the result and do not overlap.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(range.start), range.len()) };
            // SAFETY: a `Simd` exists only for an available instruction set.
            unsafe { dispatch_plain(isa, Rows { x: &x[range], out, n }) };
        });
        return Ok(());
    }
    let parts = n.div_ceil(PART);
    let part = |i: usize| {
        let (row, start) = (i / parts, i % parts * PART);
        row * n + start..row * n + n.min(start + PART)
    };
    // The sum before each part of its row.
    let mut before = kiln_ir::zeros::<T::Sum>(outer * parts)?;
    let totals = Shared::new(before.as_mut_ptr());
    threads::for_each(outer * parts, threads, |i| {
        // SAFETY: a `Simd` exists only for an available instruction set, and every part has its own total.
        unsafe {
            let part = Part { x: &x[part(i)], before: T::Sum::default(), out: None };
            *totals.get().add(i) = dispatch_plain(isa, part);
        }
    });
    for row in before.chunks_mut(parts) {
        let mut sum = T::Sum::default();
        for total in row {
            (*total, sum) = (sum, T::plus(sum, *total));
        }
    }
    threads::for_each(outer * parts, threads, |i| {
        let range = part(i);
        // SAFETY: parts are inside the result and do not overlap.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(range.start), range.len()) };
        // SAFETY: a `Simd` exists only for an available instruction set.
        unsafe { dispatch_plain(isa, Part { x: &x[range], before: before[i], out: Some(out) }) };
    });
    Ok(())
}

impl Execute for Cumsum {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let extents = self.extents(&inputs[0].ty())?;
        let x = inputs[0].data();
        match (x, &mut outputs[0]) {
            _ if x.bytes() == 0 => Ok(()),
            (Data::F32(x), DataMut::F32(out)) => run(simd, extents, x, out),
            (x, out) => {
                let out = bytemuck::cast_slice_mut::<u8, u32>(out.as_bytes());
                run(simd, extents, bytemuck::cast_slice::<u8, u32>(x.as_bytes()), out)
            }
        }
    }
}
