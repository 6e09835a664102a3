//! Prefix sums.

use kiln_ir::op::Cumsum as Operation;
use kiln_ir::{DType, Result};

use crate::builder::Shared;
use crate::kernel::{MAX_GRID_X, extent};
use crate::types::Scalar;
use crate::{Argument, Builder, Global, Kernel, Launch, Operand, Pointer, PtxKernel, Value, Variable, table};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements of a thread at a time.
const EACH: u32 = 8;
/// Elements of a block at a time.
const TILE: u32 = BLOCK * EACH;
const _: () = assert!(TILE as usize == Operation::TILE);
/// Maximum extents, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - TILE) as u64;

/// The result of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    /// Sums of rows.
    Rows,
    /// Sums of parts of rows, beginning with the sum before each.
    Parts,
    /// The total of each part.
    Totals,
}

/// Sums of all elements up to each of rows of f32, or of words that wrap around: a block goes through a row, or through a part of
/// one, tile by tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cumsum {
    of: Of,
    floats: bool,
}

impl Cumsum {
    /// A kernel for whole rows of f32, i32 or u32. Buffers of a launch: `x`, the result.
    pub fn rows(dtype: DType) -> Self {
        Self { of: Of::Rows, floats: dtype == DType::F32 }
    }

    /// A kernel for parts of rows. Buffers of a launch: `x`, for each part the sum of it and of those before it in its row, the
    /// result.
    pub fn parts(dtype: DType) -> Self {
        Self { of: Of::Parts, floats: dtype == DType::F32 }
    }

    /// A kernel for the totals of parts of rows. Buffers of a launch: `x`, the totals.
    pub fn totals(dtype: DType) -> Self {
        Self { of: Of::Totals, floats: dtype == DType::F32 }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let of = |dtype| [Self::rows(dtype), Self::parts(dtype), Self::totals(dtype)];
        [DType::F32, DType::U32].into_iter().flat_map(of).collect()
    }

    /// The launch for rows of `n` elements in parts of `part`, a multiple of [`Operation::TILE`] unless it is the whole row.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 2049 elements of a row or 2³¹ - 1 parts.
    pub fn launch(&self, rows: usize, n: usize, part: usize) -> Result<Launch> {
        let parts = n.div_ceil(part.max(1));
        let blocks = extent("parts of rows", rows.saturating_mul(parts), MAX_GRID_X)?;
        let words = [extent("elements of a row", n, MOST)?, extent("part", part, MOST)?, parts as u32];
        let buffers = if self.of == Of::Parts { 3 } else { 2 };
        let arguments = (0..buffers).map(Argument::Buffer).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [blocks, 1, 1], arguments })
    }

    fn write<T: Scalar + table::Add + Operand<T>>(&self, k: &Builder, zero: T) {
        let x = k.buffer::<T>("x");
        let before = (self.of == Of::Parts).then(|| k.buffer::<T>("before"));
        let y = k.buffer::<T>("y");
        let [n, part, parts] = ["n", "part", "parts"].map(|name| k.parameter::<u32>(name));
        let (block, thread) = (k.ctaid_x(), k.tid_x());
        let (row, number) = (block / parts, block % parts);
        let start = number * part;
        let end = start + k.min(part, n - start);
        let first = k.mul_wide(row, n);
        let x = x.index_wide(first);
        let carried = k.variable::<T>(zero);
        if let Some(before) = before {
            k.if_(k.gt(number, 0u32), || carried.set(k.ld(before.index(block - 1))));
        }
        let sums = k.shared::<T>(2 * BLOCK);
        k.for_(start, end, TILE, |tile| {
            let at = k.mad(thread, EACH, tile);
            let own = elements(k, x, at, end, zero);
            let sum = own[EACH as usize - 1];
            if self.of == Of::Totals {
                return carried.set(k.add(carried, sum));
            }
            k.st(sums.index(thread), sum);
            k.bar_sync(0u32);
            let all = joined(k, sums, thread);
            let in_front = k.variable::<T>(zero);
            k.if_(k.gt(thread, 0u32), || in_front.set(k.ld(all.index(thread - 1))));
            let y = y.index_wide(first);
            for (i, own) in own.into_iter().enumerate() {
                let place = at + i as u32;
                k.st_if(k.lt(place, end), y.index(place), k.add(carried, k.add(in_front, own)));
            }
            carried.set(k.add(carried, k.ld(all.index(BLOCK - 1))));
            // Before the next tile writes sums.
            k.bar_sync(0u32);
        });
        if self.of == Of::Totals {
            total(k, sums, thread, carried);
            k.if_(k.eq(thread, 0u32), || k.st(y.index(block), k.ld(sums)));
        }
    }
}

/// Prefix sums of the elements of a thread from `at` on; elements from `end` on count as zero.
fn elements<'k, T: Scalar + table::Add + Operand<T>>(
    k: &'k Builder,
    x: Pointer<'k, Global, T>,
    at: Value<'k, u32>,
    end: Value<'k, u32>,
    zero: T,
) -> Vec<Value<'k, T>> {
    let loaded: Vec<Value<'k, T>> = (0..EACH).map(|i| k.ld_if(k.lt(at + i, end), x.index(at + i), zero)).collect();
    let mut sums = vec![loaded[0]];
    for &element in &loaded[1..] {
        sums.push(k.add(sums[sums.len() - 1], element));
    }
    sums
}

/// Inclusive prefix sums over all threads, alternating between two halves of the memory; returns the address of the
/// final ones.
fn joined<'k, T: Scalar + table::Add>(
    k: &'k Builder,
    sums: Pointer<'k, Shared, T>,
    thread: Value<'k, u32>,
) -> Pointer<'k, Shared, T> {
    let mut sides = [sums, sums.offset(BLOCK as i32)];
    let mut gap = 1;
    while gap < BLOCK {
        let [read, written] = sides;
        let sum = k.variable::<T>(k.ld(read.index(thread)));
        k.if_(k.ge(thread, gap), || sum.set(k.add(k.ld(read.index(thread - gap)), sum)));
        k.st(written.index(thread), sum);
        k.bar_sync(0u32);
        sides = [written, read];
        gap *= 2;
    }
    sides[0]
}

/// The sum of all threads, in the first word of the memory.
fn total<'k, T: Scalar + table::Add>(
    k: &'k Builder,
    sums: Pointer<'k, Shared, T>,
    thread: Value<'k, u32>,
    own: Variable<'k, T>,
) {
    k.st(sums.index(thread), own);
    k.bar_sync(0u32);
    let mut gap = BLOCK / 2;
    while gap > 0 {
        k.if_(k.lt(thread, gap), || {
            k.st(sums.index(thread), k.add(k.ld(sums.index(thread)), k.ld(sums.index(thread + gap))));
        });
        k.bar_sync(0u32);
        gap /= 2;
    }
}

impl Kernel for Cumsum {
    fn name(&self) -> String {
        let of = match self.of {
            Of::Rows => "rows",
            Of::Parts => "parts",
            Of::Totals => "totals",
        };
        format!("cumsum_{of}_{}", if self.floats { "f32" } else { "u32" })
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| {
            if self.floats { self.write(k, 0.0f32) } else { self.write(k, 0u32) }
        })
    }
}
