//! Rows of a tensor replaced by others, chosen by position.

use kiln_ir::Result;
use kiln_ir::op::{self, WriteExtents};

use super::gather::{copy_unit, unit_of};
use super::team::WARP;
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Extents at most: 32 bits count what the last block reaches over.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// `outₚ = rowsᵢ, p = positionᵢ` in every matrix of a stack, of rows of any number of bytes; see [`op::WriteRows`]. A warp copies a
/// row, after it has looked through all positions.
///
/// If a position is out of range, nothing is written, and it is reported: the last buffer is one word of 64 bits, at first all
/// ones, and is the position of the first such position times 2³² and that position afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WriteRows {
    /// Bytes of the units that rows consist of: 16, 4, 2 or 1; 0 where they have none, and positions alone are looked at.
    unit: u32,
}

impl WriteRows {
    /// For rows of `row` bytes.
    pub fn new(row: usize) -> Self {
        Self { unit: unit_of(row) }
    }

    /// Every kernel.
    pub fn all() -> [Self; 5] {
        [16, 4, 2, 1, 0].map(|unit| Self { unit })
    }

    /// The launch for rows of `row` bytes and this many positions, at least one. Buffers: rows, positions, result, report.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 rows, positions, or units of a row.
    pub fn launch(&self, extents: &WriteExtents, row: usize, positions: usize) -> Result<Launch> {
        let WriteExtents { outer, sharing, n, s, .. } = *extents;
        let units = row.checked_div(self.unit as usize).unwrap_or(0);
        let count = extent("rows", outer.saturating_mul(s), MOST)?;
        let [sharing, n, s] =
            [("matrices", sharing.max(1)), ("rows", n), ("rows", s)].map(|(what, n)| extent(what, n, MOST));
        let units = extent("columns", units, MOST)?;
        let words = [sharing?, n?, s?, units, extent("positions", positions, MOST)?, count].map(Argument::U32);
        let arguments = (0..4).map(Argument::Buffer).chain(words).collect();
        // One block looks at the positions where there is nothing to write.
        let blocks = count.div_ceil(BLOCK / WARP).max(1);
        Ok(Launch { grid: [extent("blocks", blocks as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [rows, positions, out] = ["rows", "positions", "out"].map(|name| k.buffer::<u32>(name));
        let report = k.buffer::<u64>("report");
        let [sharing, n, s, units, all, count] =
            ["sharing", "n", "s", "units", "all", "count"].map(|name| k.parameter::<u32>(name));
        let thread = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        let (number, lane) = (thread / WARP, thread & (WARP - 1));
        let is_row = k.lt(number, count);
        let row = k.selp(number, 0u32, is_row);
        let matrix = row / s;
        let from_set = matrix / sharing * s;
        let (i, end) = (row - matrix * s, from_set + s);
        let at = from_set + i;
        let chosen = k.ld(positions.index(at));
        // What any lane finds against writing the row: a position out of range, or one that a later row has.
        let against = k.variable::<u32>(0u32);
        k.for_(lane, all, WARP, |j| {
            let other = k.ld(positions.index(j));
            let is_stray = k.and(k.le(n, other), k.ne(other, op::WriteRows::SKIPPED));
            k.if_(k.and(is_stray, k.eq(number, 0u32)), || k.red_min(report, k.join(other, j)));
            let is_later = k.and(k.eq(other, chosen), k.and(k.lt(at, j), k.lt(j, end)));
            k.if_(k.or(is_stray, is_later), || against.set(1u32));
        });
        if self.unit == 0 {
            return;
        }
        let found = [16u32, 8, 4, 2, 1]
            .into_iter()
            .fold(k.or(against, 0u32), |found, mask| found | k.shfl_bfly(found, mask, WARP - 1, u32::MAX));
        let is_written = k.and(is_row, k.and(k.eq(found, 0u32), k.ne(chosen, op::WriteRows::SKIPPED)));
        k.if_(is_written, || {
            let source = k.mul_wide(row, units);
            let target = k.cvt_u64(matrix) * k.cvt_u64(n) + k.cvt_u64(chosen);
            let target = target * k.cvt_u64(units);
            k.for_(lane, units, WARP, |unit| {
                let unit = k.cvt_u64(unit);
                copy_unit(k, self.unit, rows, source + unit, out, target + unit);
            });
        });
    }
}

impl Kernel for WriteRows {
    fn name(&self) -> String {
        format!("write_rows_{}", super::gather::unit_name(self.unit))
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
