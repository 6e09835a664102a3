//! Rows in order: runs sorted in shared memory, then merged in pairs.
//!
//! An element and its position are one integer, a candidate: the element as an ordered word above the position, so that equals stay in
//! the order of their positions. What fills runs up to their length is greater than every candidate.

use kiln_ir::{DType, Result};

use super::order;
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Candidates that a block sorts.
const TILE: u32 = 2048;
/// Maximum elements, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - TILE) as u64;

/// The output of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum To {
    /// Elements and positions.
    Results,
    /// Candidates, for the next level.
    Candidates,
}

/// Elements of a type of words in their order, whole rows or runs of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SortRuns {
    dtype: DType,
    descending: bool,
    to: To,
}

impl SortRuns {
    /// The longest row that is one run.
    pub const LONGEST: usize = TILE as usize;

    /// A kernel for elements of f32, i32 or u32. Rows beyond [`Self::LONGEST`] are cut into runs of that length.
    pub fn new(dtype: DType, descending: bool, columns: usize) -> Self {
        Self { dtype, descending, to: if columns <= Self::LONGEST { To::Results } else { To::Candidates } }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let of = |dtype| {
            let orders = [false, true].into_iter();
            orders.flat_map(move |descending| [1, TILE as usize + 1].map(|n| Self::new(dtype, descending, n)))
        };
        [DType::F32, DType::I32, DType::U32].into_iter().flat_map(of).collect()
    }

    /// The launch for `rows` rows of `columns` elements. Buffers: `x`, then elements and positions, or
    /// [`candidates`] candidates.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 2049 elements of a row, or runs.
    pub fn launch(&self, rows: usize, columns: usize) -> Result<Launch> {
        let n = extent("columns", columns, MOST)?;
        let (size, runs) = match self.to {
            To::Results => (n.next_power_of_two().max(2), 1),
            To::Candidates => (TILE, n.div_ceil(TILE)),
        };
        let total = extent("runs", rows.saturating_mul(runs as usize), MOST)?;
        let words = [n, runs, size.ilog2(), total].map(Argument::U32);
        let buffers = if self.to == To::Results { 3 } else { 2 };
        let arguments = (0..buffers).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [extent("blocks", total.div_ceil(TILE / size) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn key<'k>(&self, k: &'k Builder, word: Value<'k, u32>) -> Value<'k, u32> {
        let turned = |key| if self.descending { k.not(key) } else { key };
        match self.dtype {
            DType::F32 => {
                let x = k.bits_f32(word);
                // NaN is last in either order.
                k.selp(u32::MAX, turned(order::key(x)), k.nan(x, x))
            }
            DType::I32 => turned(k.xor(word, 1u32 << 31)),
            _ => turned(word),
        }
    }

    fn write(&self, k: &Builder) {
        let x = k.buffer::<u32>("x");
        let out = Out::new(k, self.to);
        let [n, runs, log, total] = ["n", "runs", "log", "total"].map(|name| k.parameter::<u32>(name));
        let thread = k.tid_x();
        let size = k.shl(1u32, log);
        let held = k.shared::<u64>(TILE);
        // The first of the runs of this block.
        let first = k.ctaid_x() * (k.constant(TILE) >> log);
        let place = |i: Value<'_, u32>| {
            let i = k.add(i, 0u32);
            let run = first + (i >> log);
            (run, k.and(i, size - 1))
        };
        k.for_(thread, TILE, BLOCK, |i| {
            let (run, at) = place(i);
            let position = (run % runs) * size + at;
            let there = k.and(k.lt(run, total), k.lt(position, n));
            let word = k.ld_if(there, x.index_wide(k.mad_wide(run / runs, n, k.cvt_u64(position))), 0u32);
            let candidate = k.join(position, self.key(k, word));
            k.st(held.index(i), k.selp(candidate, u64::MAX, there));
        });
        k.bar_sync(0u32);
        // A network that merges runs of opposite order; the last ones are all ascending.
        let run = k.variable(2u32);
        k.while_(
            || k.le(run, size),
            || {
                let gap = k.variable(k.shr(run, 1u32));
                k.while_(
                    || k.gt(gap, 0u32),
                    || {
                        k.for_(thread, TILE / 2, BLOCK, |pair| {
                            let i = k.sub(pair * 2, k.and(pair, k.sub(gap, 1u32)));
                            let (low, high) = (held.index(i), held.index(k.add(i, gap)));
                            let (a, b) = (k.ld(low), k.ld(high));
                            let falling = k.ne(k.and(k.and(i, size - 1), run), 0u32);
                            let swap = k.xor(k.gt(a, b), falling);
                            k.st(low, k.selp(b, a, swap));
                            k.st(high, k.selp(a, b, swap));
                        });
                        k.bar_sync(0u32);
                        gap.set(k.shr(gap, 1u32));
                    },
                );
                run.set(k.shl(run, 1u32));
            },
        );
        k.for_(thread, TILE, BLOCK, |i| {
            let (run, rank) = place(i);
            let candidate = k.ld(held.index(i));
            match out {
                Out::Candidates(candidates) => {
                    k.st_if(k.lt(run, total), candidates.index_wide(k.mad_wide(run, TILE, k.cvt_u64(rank))), candidate);
                }
                Out::Results(..) => {
                    k.if_(k.and(k.lt(run, total), k.lt(rank, n)), || {
                        out.store(k, x, k.mul_wide(run, n), rank, candidate)
                    });
                }
            }
        });
    }
}

/// Candidates of rows that are cut into runs.
pub fn candidates(rows: usize, columns: usize) -> usize {
    rows.saturating_mul(columns.next_multiple_of(TILE as usize))
}

/// Sorted runs merged in pairs: every candidate looks for its rank in the other run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MergeRuns {
    to: To,
}

impl MergeRuns {
    /// For runs of `size`: the last level of rows of `columns` elements writes elements and positions.
    pub fn new(size: usize, columns: usize) -> Self {
        let last = size.saturating_mul(2) >= columns.next_multiple_of(TILE as usize);
        Self { to: if last { To::Results } else { To::Candidates } }
    }

    /// Every kernel.
    pub fn all() -> [Self; 2] {
        [To::Results, To::Candidates].map(|to| Self { to })
    }

    /// The launch for `rows` rows of `columns` elements in runs of `size`. Buffers: `x`, candidates, and elements and positions, or
    /// candidates.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 2049 candidates.
    pub fn launch(&self, rows: usize, columns: usize, size: usize) -> Result<Launch> {
        let total = extent("candidates", candidates(rows, columns), MOST)?;
        let row = extent("columns", columns.next_multiple_of(TILE as usize), MOST)?;
        let words = [columns as u32, row, extent("run", size, MOST)?, total].map(Argument::U32);
        let buffers = if self.to == To::Results { 4 } else { 3 };
        let arguments = (0..buffers).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [extent("blocks", total.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let x = k.buffer::<u32>("x");
        let read = k.buffer::<u64>("candidates");
        let out = Out::new(k, self.to);
        let [n, length, size, total] = ["n", "row", "size", "total"].map(|name| k.parameter::<u32>(name));
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, total), || {
            let (row, place) = (at / length, at % length);
            let (run, own) = (place / size, place % size);
            let candidate = k.ld(read.index(at));
            // The other run, which may be shorter or missing.
            let start = k.min(k.xor(run, 1u32) * size, length);
            let other = read.index(k.mad(row, length, start));
            let low = k.variable(0u32);
            let high = k.variable(k.min(size, length - start));
            k.while_(
                || k.lt(low, high),
                || {
                    let middle = k.shr(k.add(low, high), 1u32);
                    let before = k.lt(k.ld(other.index(middle)), candidate);
                    low.set(k.selp(middle + 1, low.get(), before));
                    high.set(k.selp(high.get(), middle, before));
                },
            );
            let rank = k.add(k.mad(run >> 1, size * 2, own), low);
            match out {
                Out::Candidates(candidates) => k.st(candidates.index(k.mad(row, length, rank)), candidate),
                Out::Results(..) => {
                    k.if_(k.lt(rank, n), || out.store(k, x, k.mul_wide(row, n), rank, candidate));
                }
            }
        });
    }
}

/// The destination of results.
#[derive(Clone, Copy)]
enum Out<'k> {
    Results(Pointer<'k, Global, u32>, Pointer<'k, Global, u32>),
    Candidates(Pointer<'k, Global, u64>),
}

impl<'k> Out<'k> {
    fn new(k: &'k Builder, to: To) -> Self {
        match to {
            To::Results => Self::Results(k.buffer("values"), k.buffer("positions")),
            To::Candidates => Self::Candidates(k.buffer("out")),
        }
    }

    /// Stores the element of a candidate, and its position, at a rank of the row that begins with element `first`.
    fn store(
        self,
        k: &'k Builder,
        x: Pointer<'k, Global, u32>,
        first: Value<'k, u64>,
        rank: Value<'k, u32>,
        candidate: Value<'k, u64>,
    ) {
        let Self::Results(values, positions) = self else { return };
        let position = k.cvt_u32(candidate);
        let to = first + k.cvt_u64(rank);
        k.st(values.index_wide(to), k.ld(x.index_wide(first + k.cvt_u64(position))));
        k.st(positions.index_wide(to), position);
    }
}

impl Kernel for SortRuns {
    fn name(&self) -> String {
        let order = if self.descending { "descending" } else { "ascending" };
        let to = if self.to == To::Results { "rows" } else { "runs" };
        format!("sort_{to}_{order}_{}", self.dtype)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

impl Kernel for MergeRuns {
    fn name(&self) -> String {
        if self.to == To::Results { "sort_merge_rows".to_owned() } else { "sort_merge_runs".to_owned() }
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
