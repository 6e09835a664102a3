//! Rows of a table, chosen by index.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements of a vector.
const VECTOR: u32 = 4;
/// Extents at most: 32 bits count what the last block reaches over.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// `yᵢ = tableₖ, k = indexᵢ`, of rows of any length.
///
/// An index outside of the table is reported: the last buffer is one word of 64 bits, at first all ones, and is the position
/// of the index times 2³² and the index, of the first such position, afterwards. The row of it in the result is left as it
/// was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gather {
    unit: Unit,
}

/// What a thread copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Unit {
    /// Nothing: rows have no columns. Their indices are looked at.
    Nothing,
    Element,
    /// Rows are whole vectors.
    Vector,
}

impl Gather {
    /// For rows of so many columns.
    pub fn new(columns: usize) -> Self {
        let unit = match columns {
            0 => Unit::Nothing,
            _ if columns.is_multiple_of(VECTOR as usize) => Unit::Vector,
            _ => Unit::Element,
        };
        Self { unit }
    }

    /// Every kernel.
    pub fn all() -> [Self; 3] {
        [Unit::Nothing, Unit::Element, Unit::Vector].map(|unit| Self { unit })
    }

    /// The launch for `indices` indices into a table of `rows` rows of `columns` elements. Buffers: table, indices, result,
    /// report.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 indices, rows, or elements (vectors, where rows are whole
    /// ones) of the result.
    pub fn launch(&self, indices: usize, rows: usize, columns: usize) -> Result<Launch> {
        let units = match self.unit {
            Unit::Nothing => 1,
            Unit::Element => columns,
            Unit::Vector => columns / VECTOR as usize,
        };
        let n = extent("elements", indices.saturating_mul(units), MOST)?;
        let (rows, units) = (extent("rows", rows, MOST)?, extent("columns", units, MOST)?);
        let words = [n, rows, units].map(Argument::U32);
        let arguments = (0..4).map(Argument::Buffer).chain(words).collect();
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let table = k.buffer::<f32>("table");
        let indices = k.buffer::<u32>("indices");
        let out = k.buffer::<f32>("out");
        let report = k.buffer::<u64>("report");
        let [n, rows, units] = ["n", "rows", "units"].map(|name| k.parameter::<u32>(name));
        let i = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(i, n), || {
            if self.unit == Unit::Nothing {
                let index = k.ld(indices.index(i));
                return k.if_(k.le(rows, index), || k.red_min(report, k.join(index, i)));
            }
            let (position, unit) = (i / units, i % units);
            let index = k.ld(indices.index(position));
            k.if_else(
                k.lt(index, rows),
                || self.copy(k, table, k.mad_wide(index, units, k.cvt_u64(unit)), out, k.cvt_u64(i)),
                || k.red_min(report, k.join(index, position)),
            );
        });
    }

    /// Copies an element or a vector, counted in those.
    fn copy<'k>(
        &self,
        k: &'k Builder,
        table: Pointer<'k, Global, f32>,
        from: Value<'k, u64>,
        out: Pointer<'k, Global, f32>,
        to: Value<'k, u64>,
    ) {
        if self.unit == Unit::Vector {
            let vector = k.ld_v::<_, _, 4>(table.index_wide(from * u64::from(VECTOR)));
            k.st_v(out.index_wide(to * u64::from(VECTOR)), vector);
        } else {
            k.st(out.index_wide(to), k.ld(table.index_wide(from)));
        }
    }
}

impl Kernel for Gather {
    fn name(&self) -> String {
        match self.unit {
            Unit::Nothing => "gather_x0",
            Unit::Element => "gather",
            Unit::Vector => "gather_x4",
        }
        .to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
