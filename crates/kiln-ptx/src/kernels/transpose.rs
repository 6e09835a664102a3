//! The transpose of matrices: a tile goes through shared memory, so that reads and writes are both whole lines.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel};

/// Rows and columns of a tile.
const TILE: u32 = 32;
/// Elements of a row of it in shared memory: one more, so that the elements of a column are in different banks.
const PITCH: u32 = TILE + 1;
/// Threads of a block.
const BLOCK: u32 = 256;
/// Rows that a block reads or writes at once.
const ROWS: u32 = BLOCK / TILE;
/// Maximum extents, so that the end of the last tile fits 32 bits.
const MOST: u64 = (1 << 31) - 1;

/// `yⱼᵢ = xᵢⱼ`, of any number of matrices of any extents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Transpose;

impl Transpose {
    /// The launch for `matrices` of `m` rows and `n` columns. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 rows, columns or tiles.
    pub fn launch(&self, matrices: usize, m: usize, n: usize) -> Result<Launch> {
        let (m, n) = (extent("rows", m, MOST)?, extent("columns", n, MOST)?);
        let (down, across) = (m.div_ceil(TILE), n.div_ceil(TILE));
        let tiles = matrices.saturating_mul(down as usize).saturating_mul(across as usize);
        let words = [m, n, down, across].map(Argument::U32);
        let arguments = [Argument::Buffer(0), Argument::Buffer(1)].into_iter().chain(words).collect();
        Ok(Launch { grid: [extent("tiles", tiles, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [x, out] = ["x", "out"].map(|name| k.buffer::<f32>(name));
        let [m, n, down, across] = ["m", "n", "down", "across"].map(|name| k.parameter::<u32>(name));
        let tile = k.shared::<f32>(TILE * PITCH);
        let (block, thread) = (k.ctaid_x(), k.tid_x());
        let (first_column, rest) = (block % across * TILE, block / across);
        let (first_row, matrix) = (rest % down * TILE, rest / down);
        let elements = k.cvt_u64(matrix) * k.mul_wide(m, n);
        let [x, out] = [x, out].map(|at| at.index_wide(elements));
        let (row, column) = (thread >> TILE.ilog2(), thread & (TILE - 1));
        for step in (0..TILE).step_by(ROWS as usize) {
            let row = row + step;
            let (i, j) = (first_row + row, first_column + column);
            let there = k.and(k.lt(i, m), k.lt(j, n));
            let element = k.ld_if(there, x.index_wide(k.mad_wide(i, n, k.cvt_u64(j))), 0.0);
            k.st(tile.index(k.mad(row, PITCH, column)), element);
        }
        k.bar_sync(0u32);
        for step in (0..TILE).step_by(ROWS as usize) {
            let row = row + step;
            let (j, i) = (first_column + row, first_row + column);
            let there = k.and(k.lt(j, n), k.lt(i, m));
            let element = k.ld(tile.index(k.mad(column, PITCH, row)));
            k.st_if(there, out.index_wide(k.mad_wide(j, m, k.cvt_u64(i))), element);
        }
    }
}

impl Kernel for Transpose {
    fn name(&self) -> String {
        "transpose".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
