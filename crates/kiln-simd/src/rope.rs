//! Rotary position embedding.
//!
//! Angles, sines and cosines are f64, so that far positions lose nothing. Few of them come from the standard library:
//! position `p = first + r` of a run of rows turns by the angle of `first`, then by that of `r`, which is the same in
//! every run; turning one after the other is a complex product. Positions that are an operand may follow one another or not: each
//! block of rows is cut into runs that do.

use std::ops::Range;

use kiln_ir::op::{Rope, RopeStyle, types_of};
use kiln_ir::{DataMut, Operand, Result};

use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Elements below which one thread is faster.
const PARALLEL: usize = 100_000;

/// Positions per block.
const ROWS: usize = 64;

/// Columns of the tables of sines and cosines that a thread computes at once.
const COLUMNS: usize = 64;

impl Execute for Rope {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (x, y) = (f32s(inputs, 0), outputs[0].f32());
        let [.., s, d] = *inputs[0].shape().dims() else { return Ok(()) };
        if x.is_empty() {
            return Ok(());
        }
        let operands = Self::operands(&types_of(inputs));
        let positions = operands.positions.map(|index| inputs[index].data().u32());
        let factors = operands.factors.map(|index| inputs[index].data().f32());
        let position = |row: usize| positions.map_or(row as u32, |all| all[row]).wrapping_add(self.position as u32);
        let (outer, half) = (x.len() / (s * d), self.pairs(d));
        let threads = if x.len() < PARALLEL { 1 } else { simd.threads() };
        // Parts are blocks of positions; if there are few, the heads are split too.
        let blocks = s.div_ceil(ROWS);
        let splits = if threads > 1 { (2 * threads).div_ceil(blocks).min(outer) } else { 1 };
        let rows = s.min(ROWS);
        let y = Shared::new(y.as_mut_ptr());
        scratch::slices([2 * half, 4 * rows * half], |[frequencies, turns]| {
            let frequencies = &mut bytemuck::cast_slice_mut::<f32, f64>(frequencies)[..half];
            let (cos, sin) = bytemuck::cast_slice_mut::<f32, f64>(turns)[..2 * rows * half].split_at_mut(rows * half);
            let frequency = |i| self.frequency(i, d) / factors.map_or(1.0, |factors| Self::divisor(factors[i]));
            let all = [&mut *frequencies, &mut *cos, &mut *sin].map(|table| Shared::new(table.as_mut_ptr()));
            threads::for_each(half.div_ceil(COLUMNS), threads, |part| {
                let columns = part * COLUMNS..half.min((part + 1) * COLUMNS);
                // SAFETY: the tables have these rows and columns; parts write different columns.
                unsafe { turn_table(columns, [rows, half], frequency, all.map(Shared::get)) };
            });
            let (frequencies, cos, sin) = (&*frequencies, &*cos, &*sin);
            threads::for_each(blocks * splits, threads, |part| {
                let (block, split) = (part / splits, part % splits);
                let end = s.min((block + 1) * ROWS);
                scratch::slices([2 * half, 2 * half, rows * half, rows * half], |[base_cos, base_sin, c, s_]| {
                    let base_cos = &mut bytemuck::cast_slice_mut::<f32, f64>(base_cos)[..half];
                    let base_sin = &mut bytemuck::cast_slice_mut::<f32, f64>(base_sin)[..half];
                    let mut first = block * ROWS;
                    while first < end {
                        let start = position(first);
                        let follows = |&row: &usize| position(row) == start.wrapping_add((row - first) as u32);
                        let rows = (first..end).take_while(follows).count();
                        for ((frequency, cos), sin) in
                            frequencies.iter().zip(base_cos.iter_mut()).zip(base_sin.iter_mut())
                        {
                            (*sin, *cos) = (f64::from(start) * frequency).sin_cos();
                        }
                        let call = Call {
                            style: self.style,
                            magnitude: self.magnitude.get(),
                            base: (base_cos, base_sin),
                            turns: (cos, sin),
                            tables: (&mut c[..rows * half], &mut s_[..rows * half]),
                            x: x[first * d..].as_ptr(),
                            // SAFETY: the first row of the run; runs and splits write different rows.
                            y: unsafe { y.get().add(first * d) },
                            outer: split * outer / splits..(split + 1) * outer / splits,
                            stride: s * d,
                            rows,
                            columns: d,
                            half,
                        };
                        // SAFETY: a `Simd` exists only for an available instruction set.
                        unsafe { dispatch(simd.isa(), call) };
                        first += rows;
                    }
                });
            });
        });
        Ok(())
    }
}

/// Writes some columns of the tables of frequencies, and of cosines and sines of `r * frequency` for every row r: powers of two
/// from the standard library, the others as products of two earlier rows.
///
/// # Safety
/// The tables are writable for `half` columns, those of cosines and sines for `rows` rows, and nothing else accesses these columns.
unsafe fn turn_table(
    columns: Range<usize>,
    [rows, half]: [usize; 2],
    frequency: impl Fn(usize) -> f64,
    [frequencies, cos, sin]: [*mut f64; 3],
) {
    // SAFETY: the caller's contract; earlier rows are written before they are read.
    unsafe {
        for i in columns.clone() {
            frequencies.add(i).write(frequency(i));
        }
        for r in 0..rows {
            for i in columns.clone() {
                let (sin_r, cos_r) = if r == 0 || r.is_power_of_two() {
                    (r as f64 * *frequencies.add(i)).sin_cos()
                } else {
                    let high = 1 << r.ilog2();
                    let (a, b) = (high * half + i, (r - high) * half + i);
                    let (sin_a, cos_a, sin_b, cos_b) = (*sin.add(a), *cos.add(a), *sin.add(b), *cos.add(b));
                    (sin_a * cos_b + cos_a * sin_b, cos_a * cos_b - sin_a * sin_b)
                };
                sin.add(r * half + i).write(sin_r);
                cos.add(r * half + i).write(cos_r);
            }
        }
    }
}

/// A run of positions of some heads.
///
/// # Safety
/// From `x` and `y` on, the rows of the run are readable and writable for each head; nothing else writes them.
struct Call<'a> {
    style: RopeStyle,
    magnitude: f32,
    base: (&'a [f64], &'a [f64]),
    turns: (&'a [f64], &'a [f64]),
    tables: (&'a mut [f32], &'a mut [f32]),
    x: *const f32,
    y: *mut f32,
    outer: Range<usize>,
    stride: usize,
    rows: usize,
    /// Elements of a row.
    columns: usize,
    /// Number of rotated pairs of a row.
    half: usize,
}

impl Kernel for Call<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { style, magnitude, base, turns, tables: (cos, sin), x, y, outer, stride, rows, columns, half } = self;
        let magnitude = f64::from(magnitude);
        for r in 0..rows {
            let row = r * half..(r + 1) * half;
            let (turn_cos, turn_sin) = (&turns.0[row.clone()], &turns.1[row.clone()]);
            let (cos, sin) = (&mut cos[row.clone()], &mut sin[row]);
            let (base_cos, base_sin) = (&base.0[..half], &base.1[..half]);
            for i in 0..half {
                cos[i] = ((base_cos[i] * turn_cos[i] - base_sin[i] * turn_sin[i]) * magnitude) as f32;
                sin[i] = ((base_sin[i] * turn_cos[i] + base_cos[i] * turn_sin[i]) * magnitude) as f32;
            }
        }
        for head in outer {
            for r in 0..rows {
                // SAFETY: row r of the run in this head; at most all of it is rotated.
                unsafe {
                    let at = head * stride + r * columns;
                    std::ptr::copy_nonoverlapping(x.add(at + 2 * half), y.add(at + 2 * half), columns - 2 * half);
                    let row = Row { x: x.add(at), y: y.add(at), half };
                    let (cos, sin) = (cos[r * half..].as_ptr(), sin[r * half..].as_ptr());
                    match style {
                        RopeStyle::HalfSplit => row.half_split::<V>(cos, sin),
                        RopeStyle::Interleaved => row.interleaved::<V>(cos, sin),
                    }
                }
            }
        }
    }
}

/// Rotates pairs `(a, b)`.
#[inline(always)]
fn turn<V: Vector>(a: V, b: V, cos: V, sin: V) -> (V, V) {
    (a.mul_add(cos, -(b * sin)), a.mul_add(sin, b * cos))
}

/// A row of `half` pairs.
struct Row {
    x: *const f32,
    y: *mut f32,
    half: usize,
}

impl Row {
    /// # Safety
    /// The instruction set of `V` is available, the row is readable and writable, and `cos` and `sin` hold `half`
    /// elements.
    #[inline(always)]
    unsafe fn half_split<V: Vector>(self, cos: *const f32, sin: *const f32) {
        let Self { x, y, half } = self;
        let mut i = 0;
        // SAFETY: the contract of this function; all below stays in 0..half of each half.
        unsafe {
            while i + V::LANES <= half {
                let (a, b) = (V::load(x.add(i)), V::load(x.add(half + i)));
                let (a, b) = turn(a, b, V::load(cos.add(i)), V::load(sin.add(i)));
                a.store(y.add(i));
                b.store(y.add(half + i));
                i += V::LANES;
            }
            let rest = half - i;
            if rest > 0 {
                let load = |p: *const f32| V::load_first(p.add(i), rest);
                let (a, b) = turn(load(x), load(x.add(half)), load(cos), load(sin));
                a.store_first(y.add(i), rest);
                b.store_first(y.add(half + i), rest);
            }
        }
    }

    /// # Safety
    /// The conditions of [`Row::half_split`] hold.
    #[inline(always)]
    unsafe fn interleaved<V: Vector>(self, cos: *const f32, sin: *const f32) {
        let Self { x, y, half } = self;
        let mut i = 0;
        // SAFETY: the contract of this function; all below stays in the row.
        unsafe {
            while i < half {
                let pairs = V::LANES.min(half - i);
                // Elements of the first and of the second vector of the row.
                let (first, second) = (V::LANES.min(2 * pairs), (2 * pairs).saturating_sub(V::LANES));
                let (p, q) = (x.add(2 * i), y.add(2 * i));
                if second == V::LANES {
                    let (a, b) = V::unzip(V::load(p), V::load(p.add(V::LANES)));
                    let (a, b) = turn(a, b, V::load(cos.add(i)), V::load(sin.add(i)));
                    let (a, b) = V::zip(a, b);
                    a.store(q);
                    b.store(q.add(V::LANES));
                } else {
                    let next = V::load_first(p.add(first), second);
                    let (a, b) = V::unzip(V::load_first(p, first), next);
                    let (cos, sin) = (V::load_first(cos.add(i), pairs), V::load_first(sin.add(i), pairs));
                    let (a, b) = turn(a, b, cos, sin);
                    let (a, b) = V::zip(a, b);
                    a.store_first(q, first);
                    b.store_first(q.add(first), second);
                }
                i += pairs;
            }
        }
    }
}
