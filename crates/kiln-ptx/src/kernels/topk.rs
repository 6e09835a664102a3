//! The greatest elements of rows, by selecting one after the other: for a few of them.
//!
//! An element and its position are one integer (the element as an ordered integer above the complement of the position), so
//! that the next of the order is the greatest of those below the last. Each is found by a block that goes through the row,
//! which comes out of a cache after the first time.

use kiln_ir::Result;

use super::order;
use super::team;
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel};

/// Threads of a block.
const BLOCK: u32 = 1024;
/// Maximum elements of a row, so that the end of the last thread's share fits 32 bits.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// The k greatest elements of every row, greatest first, and their positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TopK;

impl TopK {
    /// The launch for `rows` rows of `columns` elements; `count` are wanted, at most `columns`. Buffers: `x`, values,
    /// positions.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 1025 columns or 2³¹ - 1 rows.
    pub fn launch(&self, rows: usize, columns: usize, count: usize) -> Result<Launch> {
        let words = [extent("columns", columns, MOST)?, extent("elements wanted", count.min(columns), MOST)?];
        let arguments = (0..3).map(Argument::Buffer).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [extent("rows", rows, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let x = k.buffer::<f32>("x");
        let (values, positions) = (k.buffer::<f32>("values"), k.buffer::<u32>("positions"));
        let [n, count] = ["n", "count"].map(|name| k.parameter::<u32>(name));
        let (row, thread) = (k.ctaid_x(), k.tid_x());
        let x = x.index_wide(k.mul_wide(row, n));
        let first = k.mul_wide(row, count);
        let (values, positions) = (values.index_wide(first), positions.index_wide(first));
        // The greatest candidate that may still be chosen.
        let bound = k.variable(u64::MAX);
        k.for_(0, count, 1, |at| {
            let greatest = k.variable(0u64);
            k.for_(thread, n, BLOCK, |i| {
                let key = k.join(!i, order::key(k.ld(x.index(i))));
                greatest.set(k.max(greatest, k.selp(key, 0, k.le(key, bound))));
            });
            let found = team::combine(k, BLOCK, thread, greatest.get(), |a, b| k.max(a, b));
            k.if_(k.eq(thread, 0), || {
                let position = !k.cvt_u32(found);
                k.st(values.index(at), k.ld(x.index(position)));
                k.st(positions.index(at), position);
            });
            bound.set(found - 1);
            // Before the next iteration overwrites the exchanged values.
            k.bar_sync(0u32);
        });
    }
}

impl Kernel for TopK {
    fn name(&self) -> String {
        "top_k".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
