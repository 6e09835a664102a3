//! Rows of a table, chosen by index, written and added to.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Byte, F16, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Words of a vector.
const VECTOR: u32 = 4;
/// Maximum extents, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// `yᵢ = tableₖ, k = indexᵢ`, of rows of any number of bytes.
///
/// An index outside of the table is reported: the last buffer is one word of 64 bits, at first all ones, and is the position
/// of the index times 2³² and the index, of the first such position, afterwards. The row of it in the result is left as it
/// was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Bytes of the units of a row: 16, 4, 2 or 1; 0 for rows without bytes, for which only indices are checked.
    unit: u32,
}

impl Gather {
    /// For rows of `row` bytes.
    pub fn new(row: usize) -> Self {
        Self { unit: unit_of(row) }
    }

    /// Every kernel.
    pub fn all() -> [Self; 5] {
        [16, 4, 2, 1, 0].map(|unit| Self { unit })
    }

    /// The launch for `indices` indices into a table of `rows` rows of `row` bytes. Buffers: table, indices, result, report.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 indices, rows, or units of the result.
    pub fn launch(&self, indices: usize, rows: usize, row: usize) -> Result<Launch> {
        let units = row.checked_div(self.unit as usize).unwrap_or(1);
        let n = extent("units", indices.saturating_mul(units), MOST)?;
        let (rows, units) = (extent("rows", rows, MOST)?, extent("columns", units, MOST)?);
        let words = [n, rows, units].map(Argument::U32);
        let arguments = (0..4).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let table = k.buffer::<u32>("table");
        let indices = k.buffer::<u32>("indices");
        let out = k.buffer::<u32>("out");
        let report = k.buffer::<u64>("report");
        let [n, rows, units] = ["n", "rows", "units"].map(|name| k.parameter::<u32>(name));
        let i = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(i, n), || {
            if self.unit == 0 {
                let index = k.ld(indices.index(i));
                return k.if_(k.le(rows, index), || k.red_min(report, k.join(index, i)));
            }
            let (position, unit) = (i / units, i % units);
            let index = k.ld(indices.index(position));
            k.if_else(
                k.lt(index, rows),
                || copy_unit(k, self.unit, table, k.mad_wide(index, units, k.cvt_u64(unit)), out, k.cvt_u64(i)),
                || k.red_min(report, k.join(index, position)),
            );
        });
    }
}

impl Kernel for Gather {
    fn name(&self) -> String {
        format!("gather_{}", unit_name(self.unit))
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

/// Bytes of the units in which rows of `row` bytes are copied: 16, 4, 2 or 1; 0 for rows without bytes.
pub(super) fn unit_of(row: usize) -> u32 {
    let whole = [16, 4, 2].into_iter().find(|&unit| row.is_multiple_of(unit as usize)).unwrap_or(1);
    if row == 0 { 0 } else { whole }
}

/// The suffix of a kernel name for its units.
pub(super) fn unit_name(unit: u32) -> &'static str {
    match unit {
        0 => "nothing",
        1 => "b8",
        2 => "b16",
        4 => "b32",
        _ => "x4",
    }
}

/// Copies a unit of `unit` bytes; `from` and `to` count units.
pub(super) fn copy_unit<'k>(
    k: &'k Builder,
    unit: u32,
    rows: Pointer<'k, Global, u32>,
    from: Value<'k, u64>,
    out: Pointer<'k, Global, u32>,
    to: Value<'k, u64>,
) {
    match unit {
        1 => k.st(out.cast::<Byte>().index_wide(to), k.ld(rows.cast::<Byte>().index_wide(from))),
        2 => k.st(out.cast::<F16>().index_wide(to), k.ld(rows.cast::<F16>().index_wide(from))),
        4 => k.st(out.index_wide(to), k.ld(rows.index_wide(from))),
        _ => {
            let vector = k.ld_v::<_, _, 4>(rows.index_wide(from * u64::from(VECTOR)));
            k.st_v(out.index_wide(to * u64::from(VECTOR)), vector);
        }
    }
}
