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

/// Elements below which one thread is faster; the angles of a position count as [`ANGLES`] rows more.
const PARALLEL: usize = 100_000;

/// The time of a position's sines and cosines, in rows that are rotated.
const ANGLES: usize = 4;

/// Strips of a row are multiples of this many pairs, so that they fill the widest vectors.
const LANES: usize = 16;

/// Positions per block.
const ROWS: usize = 64;

/// Pairs of a row whose sines and cosines a thread computes at once, and the fewest that it rotates.
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
        let work = x.len().saturating_add(ANGLES.saturating_mul(s * d));
        let threads = if work < PARALLEL { 1 } else { simd.threads() };
        // Parts are blocks of positions; if there are few, the heads are split too, and then the pairs of a row.
        let blocks = s.div_ceil(ROWS);
        let wanted = |parts: usize| if threads > 1 { (2 * threads).div_ceil(parts) } else { 1 };
        let splits = wanted(blocks).min(outer);
        let strips = wanted(blocks * splits).min(half / COLUMNS).max(1);
        let width = half.div_ceil(strips).next_multiple_of(LANES).max(LANES);
        let strips = half.div_ceil(width).max(1);
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
            threads::for_each(blocks * splits * strips, threads, |part| {
                let (block, split, strip) = (part / strips / splits, part / strips % splits, part % strips);
                let end = s.min((block + 1) * ROWS);
                let pairs = strip * width..half.min((strip + 1) * width);
                let width = pairs.len();
                scratch::slices([2 * width, 2 * width, rows * width, rows * width], |[base_cos, base_sin, c, s_]| {
                    let base_cos = &mut bytemuck::cast_slice_mut::<f32, f64>(base_cos)[..width];
                    let base_sin = &mut bytemuck::cast_slice_mut::<f32, f64>(base_sin)[..width];
                    let mut first = block * ROWS;
                    while first < end {
                        let start = position(first);
                        let follows = |&row: &usize| position(row) == start.wrapping_add((row - first) as u32);
                        let rows = (first..end).take_while(follows).count();
                        for ((frequency, cos), sin) in
                            frequencies[pairs.clone()].iter().zip(base_cos.iter_mut()).zip(base_sin.iter_mut())
                        {
                            (*sin, *cos) = (f64::from(start) * frequency).sin_cos();
                        }
                        let call = Call {
                            style: self.style,
                            magnitude: self.magnitude.get(),
                            base: (base_cos, base_sin),
                            turns: (cos, sin),
                            tables: (&mut c[..rows * width], &mut s_[..rows * width]),
                            x: x[first * d..].as_ptr(),
                            // SAFETY: the first row of the run; runs and splits write different rows, strips different pairs.
                            y: unsafe { y.get().add(first * d) },
                            outer: split * outer / splits..(split + 1) * outer / splits,
                            stride: s * d,
                            rows,
                            columns: d,
                            half,
                            pairs: pairs.clone(),
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

/// Some pairs of a run of positions of some heads.
///
/// # Safety
/// From `x` and `y` on, the rows of the run are readable and writable for each head; nothing else writes these pairs.
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
    /// Those that this call rotates. The last ones bring the elements that are not rotated.
    pairs: Range<usize>,
}

impl Kernel for Call<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { style, magnitude, base, turns, tables: (cos, sin), x, y, outer, stride, rows, columns, half, pairs } =
            self;
        let (magnitude, width) = (f64::from(magnitude), pairs.len());
        for r in 0..rows {
            let turn = r * half + pairs.start..r * half + pairs.end;
            let (turn_cos, turn_sin) = (&turns.0[turn.clone()], &turns.1[turn]);
            let row = r * width..(r + 1) * width;
            let (cos, sin) = (&mut cos[row.clone()], &mut sin[row]);
            let (base_cos, base_sin) = (&base.0[..width], &base.1[..width]);
            for i in 0..width {
                cos[i] = ((base_cos[i] * turn_cos[i] - base_sin[i] * turn_sin[i]) * magnitude) as f32;
                sin[i] = ((base_sin[i] * turn_cos[i] + base_cos[i] * turn_sin[i]) * magnitude) as f32;
            }
        }
        for head in outer {
            for r in 0..rows {
                // SAFETY: row r of the run in this head; at most all of it is rotated.
                unsafe {
                    let at = head * stride + r * columns;
                    if pairs.end == half {
                        std::ptr::copy_nonoverlapping(x.add(at + 2 * half), y.add(at + 2 * half), columns - 2 * half);
                    }
                    let (cos, sin) = (cos[r * width..].as_ptr(), sin[r * width..].as_ptr());
                    let row = |first: usize| Row { x: x.add(at + first), y: y.add(at + first), half, width };
                    match style {
                        RopeStyle::HalfSplit => row(pairs.start).half_split::<V>(cos, sin),
                        RopeStyle::Interleaved => row(2 * pairs.start).interleaved::<V>(cos, sin),
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

/// Adjacent pairs of a row.
struct Row {
    /// The first element of the first pair.
    x: *const f32,
    y: *mut f32,
    /// The number of pairs of the whole row.
    half: usize,
    /// The number of these pairs.
    width: usize,
}

impl Row {
    /// # Safety
    /// The instruction set of `V` is available, the pairs are readable and writable, and `cos` and `sin` hold `width`
    /// elements.
    #[inline(always)]
    unsafe fn half_split<V: Vector>(self, cos: *const f32, sin: *const f32) {
        let Self { x, y, half, width } = self;
        let mut i = 0;
        // SAFETY: the contract of this function; all below stays in 0..width from the first pair on, in each half.
        unsafe {
            while i + V::LANES <= width {
                let (a, b) = (V::load(x.add(i)), V::load(x.add(half + i)));
                let (a, b) = turn(a, b, V::load(cos.add(i)), V::load(sin.add(i)));
                a.store(y.add(i));
                b.store(y.add(half + i));
                i += V::LANES;
            }
            let rest = width - i;
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
        let Self { x, y, width, .. } = self;
        let mut i = 0;
        // SAFETY: the contract of this function; all below stays in the pairs.
        unsafe {
            while i < width {
                let pairs = V::LANES.min(width - i);
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
