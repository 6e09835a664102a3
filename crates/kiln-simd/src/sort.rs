//! The elements along a dimension in order.
//!
//! An element and its index are one number, the element above the index: so equals stay in the order of their indices however the
//! numbers are sorted.

use kiln_ir::op::Sort;
use kiln_ir::{DType, Data, DataMut, Element, Kind, Operand, Result, dtype_table, zeros};

use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};

/// Elements from which a row is sorted by radix.
const BY_DIGITS: usize = 2048;
/// Elements below which one thread is faster: each takes some ten nanoseconds.
const PARALLEL: usize = 16_384;

/// A word with the order of the elements: NaN above all others, both zeros equal.
#[inline(always)]
fn rising<T: Element>(x: T) -> u32 {
    match T::DTYPE.kind() {
        Kind::Float => {
            let x = x.load();
            // The sum turns both zeros into +0; then the order of floats is that of integers once negative ones are
            // inverted.
            let bits = (x + 0.0).to_bits();
            if x.is_nan() { u32::MAX } else { bits ^ ((bits.cast_signed() >> 31).cast_unsigned() | 1 << 31) }
        }
        _ if T::DTYPE == DType::U32 => x.load_integer() as u32,
        _ => (x.load_integer() + (1 << 31)) as u32,
    }
}

/// The sort key of an element.
#[inline(always)]
fn key<T: Element>(x: T, index: usize, descending: bool) -> u64 {
    let rising = rising(x);
    // NaN is last in either order; no number is u32::MAX.
    let last = T::DTYPE.kind() == Kind::Float && rising == u32::MAX;
    let ordered = if descending && !last { !rising } else { rising };
    u64::from(ordered) << 32 | index as u64
}

/// Radix sort by eight bits of the word above the index at a time, lowest first: each pass is stable.
fn by_digits<'a>(mut keys: &'a mut [u64], mut other: &'a mut [u64]) {
    for shift in [32, 40, 48, 56] {
        let digit = |key: u64| (key >> shift) as usize & 255;
        let mut places = [0usize; 256];
        keys.iter().for_each(|&key| places[digit(key)] += 1);
        let mut next = 0;
        for place in &mut places {
            (*place, next) = (next, next + *place);
        }
        for &key in &*keys {
            let place = &mut places[digit(key)];
            other[*place] = key;
            *place += 1;
        }
        std::mem::swap(&mut keys, &mut other);
    }
}

/// Sorts every row.
fn run<T: Element>(
    simd: &Simd,
    op: &Sort,
    x: &[T],
    extents: [usize; 3],
    values: &mut [T],
    indices: &mut [u32],
) -> Result<()> {
    let [outer, n, inner] = extents;
    let rows = outer * inner;
    let digits = n >= BY_DIGITS;
    let mut keys = zeros::<u64>(rows * n)?;
    let mut other = zeros::<u64>(if digits { rows * n } else { 0 })?;
    let (keys, other) = (Shared::new(keys.as_mut_ptr()), Shared::new(other.as_mut_ptr()));
    let (values, indices) = (Shared::new(values.as_mut_ptr()), Shared::new(indices.as_mut_ptr()));
    let threads = if rows * n < PARALLEL { 1 } else { simd.threads() };
    // Rows per part, so that many short rows are not distributed one by one.
    let group = (PARALLEL / 4 / n).max(1);
    threads::for_each(rows.div_ceil(group), threads, |part| {
        for row in part * group..rows.min((part + 1) * group) {
            let at = |i: usize| (row / inner * n + i) * inner + row % inner;
            // SAFETY: every row has its own n keys.
            let keys = unsafe { std::slice::from_raw_parts_mut(keys.get().add(row * n), n) };
            keys.iter_mut().enumerate().for_each(|(i, slot)| *slot = key(x[at(i)], i, op.descending));
            if digits {
                // SAFETY: as above, if rows are sorted by radix.
                by_digits(keys, unsafe { std::slice::from_raw_parts_mut(other.get().add(row * n), n) });
            } else {
                keys.sort_unstable();
            }
            for (rank, &key) in keys.iter().enumerate() {
                let index = key as u32;
                // SAFETY: every row has its own positions, all inside the results.
                unsafe {
                    *values.get().add(at(rank)) = x[at(index as usize)];
                    *indices.get().add(at(rank)) = index;
                }
            }
        }
    });
    Ok(())
}

impl Execute for Sort {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let extents = self.extents(&inputs[0].ty())?;
        let [values, indices] = outputs else { return Ok(()) };
        if extents.contains(&0) {
            return Ok(());
        }
        macro_rules! of_type {
            ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
                match (inputs[0].data(), values) {
                    $((Data::$variant(x), DataMut::$variant(values)) => {
                        run(simd, self, x, extents, values, indices.u32())
                    })*
                    // The shape rule has checked that both have the same type.
                    _ => Ok(()),
                }
            };
        }
        dtype_table!(of_type)
    }
}
