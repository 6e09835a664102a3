//! Rows of a tensor replaced by others, chosen by position.

use kiln_ir::op::{self, WriteExtents};
use kiln_ir::{DType, Result};

use super::gather::{copy_unit, unit_name, unit_of};
use super::half;
use super::team::WARP;
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Maximum extents, so that the number of each warp fits 32 bits.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// Elements that a lane rounds at once.
const ROUNDED: u32 = 4;

/// `outₚ = rowsᵢ, p = positionᵢ` in every matrix of a stack, of rows of any number of bytes, or of f32 that is rounded to 16 bits;
/// see [`op::WriteRows`]. A warp copies a row, after it has looked through all positions.
///
/// If a position is out of range, nothing is written, and it is reported: the last buffer is one word of 64 bits, at first all
/// ones, and is the position of the first such position times 2³² and that position afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WriteRows {
    unit: Unit,
}

/// The unit that a lane writes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Unit {
    /// This many bytes: 16, 4, 2 or 1; 0 for rows without bytes, for which only positions are checked.
    Bytes(u32),
    /// Four elements of f32, as f16.
    F16,
    /// Four elements of f32, as bf16.
    Bf16,
}

impl WriteRows {
    /// For rows of `row` bytes.
    pub fn new(row: usize) -> Self {
        Self { unit: Unit::Bytes(unit_of(row)) }
    }

    /// For rows of `elements` f32 that are stored as f16 or bf16; none for other types, and where they are not whole fours.
    pub fn rounding(elements: usize, [from, to]: [DType; 2]) -> Option<Self> {
        let unit = match (from, to) {
            (DType::F32, DType::F16) => Unit::F16,
            (DType::F32, DType::Bf16) => Unit::Bf16,
            _ => return None,
        };
        (elements > 0 && elements.is_multiple_of(ROUNDED as usize)).then_some(Self { unit })
    }

    /// Every kernel.
    pub fn all() -> [Self; 7] {
        let bytes = Unit::Bytes;
        [bytes(16), bytes(4), bytes(2), bytes(1), bytes(0), Unit::F16, Unit::Bf16].map(|unit| Self { unit })
    }

    /// The launch for rows of `row` bytes as they are given, and this many positions, at least one. Buffers: rows, positions,
    /// result, report.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 rows, positions, or units of a row.
    pub fn launch(&self, extents: &WriteExtents, row: usize, positions: usize) -> Result<Launch> {
        let WriteExtents { outer, sharing, n, s, .. } = *extents;
        let units = match self.unit {
            Unit::Bytes(unit) => row.checked_div(unit as usize).unwrap_or(0),
            Unit::F16 | Unit::Bf16 => row / (4 * ROUNDED as usize),
        };
        let count = extent("rows", outer.saturating_mul(s), MOST)?;
        let [sharing, n, s] =
            [("matrices", sharing.max(1)), ("rows", n), ("rows", s)].map(|(what, n)| extent(what, n, MOST));
        let units = extent("columns", units, MOST)?;
        let words = [sharing?, n?, s?, units, extent("positions", positions, MOST)?, count].map(Argument::U32);
        let arguments = (0..4).map(Argument::Buffer).chain(words).collect();
        // One block checks the positions if there is nothing to write.
        let blocks = count.div_ceil(BLOCK / WARP).max(1);
        Ok(Launch { grid: [extent("blocks", blocks as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [rows, positions, out] = ["rows", "positions", "out"].map(|name| k.buffer::<u32>(name));
        let report = k.buffer::<u64>("report");
        let [sharing, n, s, units, all, count] =
            ["sharing", "n", "s", "units", "all", "count"].map(|name| k.parameter::<u32>(name));
        let number = k.mad(k.ctaid_x(), BLOCK / WARP, k.tid_x() / WARP);
        let lane = k.tid_x() & (WARP - 1);
        let is_row = k.lt(number, count);
        let row = k.selp(number, 0u32, is_row);
        let matrix = row / s;
        let from_set = matrix / sharing * s;
        let (i, end) = (row - matrix * s, from_set + s);
        let at = from_set + i;
        let chosen = k.ld(positions.index(at));
        // Whether any lane finds a reason not to write the row: a position out of range, or a later row with the same
        // position.
        let against = k.variable::<u32>(0u32);
        k.for_(lane, all, WARP, |j| {
            let other = k.ld(positions.index(j));
            let is_stray = k.and(k.le(n, other), k.ne(other, op::WriteRows::SKIPPED));
            k.if_(k.and(is_stray, k.eq(number, 0u32)), || k.red_min(report, k.join(other, j)));
            let is_later = k.and(k.eq(other, chosen), k.and(k.lt(at, j), k.lt(j, end)));
            k.if_(k.or(is_stray, is_later), || against.set(1u32));
        });
        if self.unit == Unit::Bytes(0) {
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
                self.write_unit(k, [rows, out], [source + unit, target + unit]);
            });
        });
    }

    /// Writes a unit; positions count units.
    fn write_unit<'k>(
        &self,
        k: &'k Builder,
        [rows, out]: [Pointer<'k, Global, u32>; 2],
        [source, target]: [Value<'k, u64>; 2],
    ) {
        let round = match self.unit {
            Unit::Bytes(unit) => return copy_unit(k, unit, rows, source, out, target),
            Unit::F16 => half::narrow,
            Unit::Bf16 => half::upper,
        };
        let x = k.ld_v::<_, _, 4>(rows.cast::<f32>().index_wide(source * u64::from(ROUNDED)));
        let [a, b, c, d] = x.map(|x| round(k, x));
        k.st_v(out.index_wide(target * u64::from(ROUNDED / 2)), [a | b << 16, c | d << 16]);
    }
}

impl Kernel for WriteRows {
    fn name(&self) -> String {
        let unit = match self.unit {
            Unit::Bytes(unit) => unit_name(unit),
            Unit::F16 => "f32_f16",
            Unit::Bf16 => "f32_bf16",
        };
        format!("write_rows_{unit}")
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
