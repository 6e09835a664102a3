//! Rows written or added to those of a table, chosen by index.

use kiln_ir::{DType, Result};

use super::gather::{copy_unit, unit_name, unit_of};
use crate::kernel::{MAX_GRID_X, extent};
use crate::types::Scalar;
use crate::{Argument, Builder, Kernel, Launch, PtxKernel, table};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Maximum extents, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// A table with some rows replaced, of rows of any number of bytes; of equal indices the last one counts. [`LastSource`] comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// Bytes of the units of a row: 16, 4, 2 or 1.
    unit: u32,
}

impl Scatter {
    /// For rows of `row` bytes, at least one.
    pub fn new(row: usize) -> Self {
        Self { unit: unit_of(row).max(1) }
    }

    /// Every kernel.
    pub fn all() -> [Self; 4] {
        [16, 4, 2, 1].map(|unit| Self { unit })
    }

    /// The launch for a table of `rows` rows of `row` bytes. Buffers: table, source, what [`LastSource`] has found, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 units.
    pub fn launch(&self, rows: usize, row: usize) -> Result<Launch> {
        let units = row / self.unit as usize;
        let n = extent("units", rows.saturating_mul(units), MOST)?;
        let words = [n, extent("columns", units, MOST)?].map(Argument::U32);
        let arguments = (0..4).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [table, source] = ["table", "source"].map(|name| k.buffer::<u32>(name));
        let last = k.buffer::<u64>("last");
        let out = k.buffer::<u32>("out");
        let [n, units] = ["n", "units"].map(|name| k.parameter::<u32>(name));
        let i = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(i, n), || {
            let (row, unit) = (i / units, i % units);
            let last = k.ld(last.index(row));
            k.if_else(
                k.eq(last, u64::MAX),
                || copy_unit(k, self.unit, table, k.cvt_u64(i), out, k.cvt_u64(i)),
                || {
                    let from = k.mad_wide(!k.cvt_u32(last), units, k.cvt_u64(unit));
                    copy_unit(k, self.unit, source, from, out, k.cvt_u64(i));
                },
            );
        });
    }
}

/// For each row of a table the last row of a source whose index names it: the complement of its number, in 64 bits. They are at first
/// all ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LastSource;

impl LastSource {
    /// The launch for `indices` indices into a table of `rows` rows. Buffers: indices, what it finds. An index outside of the table
    /// is ignored.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 indices or rows.
    pub fn launch(&self, indices: usize, rows: usize) -> Result<Launch> {
        let words = [extent("indices", indices, MOST)?, extent("rows", rows, MOST)?];
        let arguments = (0..2).map(Argument::Buffer).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [extent("blocks", words[0].div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let indices = k.buffer::<u32>("indices");
        let last = k.buffer::<u64>("last");
        let [n, rows] = ["n", "rows"].map(|name| k.parameter::<u32>(name));
        let i = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(i, n), || {
            let index = k.ld(indices.index(i));
            // The upper half is zero, so it is less than the initial value.
            k.if_(k.lt(index, rows), || k.red_min(last.index(index), k.cvt_u64(!i)));
        });
    }
}

/// Rows added to those of a table, in the order of their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexAdd {
    floats: bool,
}

impl IndexAdd {
    /// A kernel for f32, or for i32 and u32.
    pub fn new(dtype: DType) -> Self {
        Self { floats: dtype == DType::F32 }
    }

    /// Every kernel.
    pub fn all() -> [Self; 2] {
        [true, false].map(|floats| Self { floats })
    }

    /// The launch for a table of `rows` rows of `columns` elements and `indices` indices. Buffers: table, the indices in ascending
    /// order, the row of the source that each belongs to (in ascending order among equal indices), source, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 elements of the table or indices.
    pub fn launch(&self, rows: usize, columns: usize, indices: usize) -> Result<Launch> {
        let n = extent("elements", rows.saturating_mul(columns), MOST)?;
        let words = [n, extent("columns", columns, MOST)?, extent("indices", indices, MOST)?].map(Argument::U32);
        let arguments = (0..5).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write<T: Scalar + table::Add>(k: &Builder) {
        let table = k.buffer::<T>("table");
        let [sorted, positions] = ["sorted", "positions"].map(|name| k.buffer::<u32>(name));
        let source = k.buffer::<T>("source");
        let out = k.buffer::<T>("out");
        let [n, columns, count] = ["n", "columns", "count"].map(|name| k.parameter::<u32>(name));
        let i = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(i, n), || {
            let (row, column) = (i / columns, i % columns);
            let (low, high) = (k.variable(0u32), k.variable(count));
            k.while_(
                || k.lt(low, high),
                || {
                    let middle = k.shr(k.add(low, high), 1u32);
                    let before = k.lt(k.ld(sorted.index(middle)), row);
                    low.set(k.selp(middle + 1, low.get(), before));
                    high.set(k.selp(high.get(), middle, before));
                },
            );
            let sum = k.variable::<T>(k.ld(table.index(i)));
            // Beyond the end it is a number that no row has.
            let next = || k.ld_if(k.lt(low, count), sorted.index(low), u32::MAX);
            k.while_(
                || k.eq(next(), row),
                || {
                    let from = k.mad_wide(k.ld(positions.index(low)), columns, k.cvt_u64(column));
                    sum.set(k.add(sum, k.ld(source.index_wide(from))));
                    low.set(k.add(low, 1u32));
                },
            );
            k.st(out.index(i), sum);
        });
    }
}

impl Kernel for Scatter {
    fn name(&self) -> String {
        format!("scatter_{}", unit_name(self.unit))
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

impl Kernel for LastSource {
    fn name(&self) -> String {
        "last_source".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

impl Kernel for IndexAdd {
    fn name(&self) -> String {
        format!("index_add_{}", if self.floats { "f32" } else { "u32" })
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| {
            if self.floats { Self::write::<f32>(k) } else { Self::write::<u32>(k) }
        })
    }
}
