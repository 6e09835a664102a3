//! The matrix product of f32 as in textbooks, `C = A B`: two simple kernels to compare [`Gemm`](super::Gemm) with. Matrices are
//! stored row by row, a thread computes one element of C, and adds its products in the order of k, each by one multiply-add.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel};

/// Rows and columns of C of a block.
const TILE: u32 = 16;
/// Maximum extents, so that the end of the last tile fits 32 bits.
const MOST: u64 = (1 << 31) - 1;

/// A product in which every thread reads its row of A and its column of B from memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NaiveGemm;

/// A product in tiles: step by step along k, a block loads a tile of A and one of B into shared memory, a thread an element of
/// each, and reads every element 16 times there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TiledGemm;

/// The launch of either. Buffers: A, B, C.
fn launch([m, k, n]: [usize; 3]) -> Result<Launch> {
    let (m, k, n) = (extent("m", m, MOST)?, extent("k", k, MOST)?, extent("n", n, MOST)?);
    let grid = [
        extent("tiles along n", n.div_ceil(TILE) as usize, MAX_GRID_X)?,
        extent("tiles along m", m.div_ceil(TILE) as usize, MAX_GRID_YZ)?,
        1,
    ];
    let buffers = [0, 1, 2].map(Argument::Buffer);
    Ok(Launch { grid, arguments: buffers.into_iter().chain([m, k, n].map(Argument::U32)).collect() })
}

impl NaiveGemm {
    /// The launch for A of `m` rows and `k` columns, and B of `k` rows and `n` columns. Buffers: A, B, C.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 for an extent, or 65 535 tiles along m.
    pub fn launch(&self, extents: [usize; 3]) -> Result<Launch> {
        launch(extents)
    }

    fn write(&self, k: &Builder) {
        let [a, b, c] = ["a", "b", "c"].map(|name| k.buffer::<f32>(name));
        let [m, depth, n] = ["m", "k", "n"].map(|name| k.parameter::<u32>(name));
        let row = k.ctaid_y() * TILE + k.tid_y();
        let column = k.ctaid_x() * TILE + k.tid_x();
        k.if_(k.and(k.lt(row, m), k.lt(column, n)), || {
            let (a, b) = (a.index_wide(k.mul_wide(row, depth)), b.index(column));
            let sum = k.variable(0.0f32);
            k.for_(0, depth, 1, |p| {
                let product = [k.ld(a.index(p)), k.ld(b.index_wide(k.mul_wide(p, n)))];
                sum.set(k.fma(product[0], product[1], sum));
            });
            k.st(c.index_wide(k.mad_wide(row, n, k.cvt_u64(column))), sum);
        });
    }
}

impl TiledGemm {
    /// The launch for A of `m` rows and `k` columns, and B of `k` rows and `n` columns. Buffers: A, B, C.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 for an extent, or 65 535 tiles along m.
    pub fn launch(&self, extents: [usize; 3]) -> Result<Launch> {
        launch(extents)
    }

    fn write(&self, k: &Builder) {
        let [a, b, c] = ["a", "b", "c"].map(|name| k.buffer::<f32>(name));
        let [m, depth, n] = ["m", "k", "n"].map(|name| k.parameter::<u32>(name));
        let [tile_a, tile_b] = [0, 1].map(|_| k.shared::<f32>(TILE * TILE));
        let (x, y) = (k.tid_x(), k.tid_y());
        let (row, column) = (k.ctaid_y() * TILE + y, k.ctaid_x() * TILE + x);
        let (row_there, column_there) = (k.lt(row, m), k.lt(column, n));
        // Source and destination of this thread's elements of the tiles, and the elements that it reads.
        let (from_a, from_b) = (a.index_wide(k.mul_wide(row, depth)), b.index(column));
        let place = k.mad(y, TILE, x);
        let (to_a, to_b) = (tile_a.index(place), tile_b.index(place));
        let (row_of_a, column_of_b) = (tile_a.index(y * TILE), tile_b.index(x));

        let sum = k.variable(0.0f32);
        k.for_(0, depth, TILE, |begin| {
            let (along_a, along_b) = (begin + x, begin + y);
            k.st(to_a, k.ld_if(k.and(row_there, k.lt(along_a, depth)), from_a.index(along_a), 0.0));
            let from_b = from_b.index_wide(k.mul_wide(along_b, n));
            k.st(to_b, k.ld_if(k.and(column_there, k.lt(along_b, depth)), from_b, 0.0));
            k.bar_sync(0u32);
            k.for_(0, TILE, 1, |p| {
                let product = [k.ld(row_of_a.index(p)), k.ld(column_of_b.index(p * TILE))];
                sum.set(k.fma(product[0], product[1], sum));
            });
            // No thread writes the next tiles before all have read these.
            k.bar_sync(0u32);
        });
        k.if_(k.and(row_there, column_there), || {
            k.st(c.index_wide(k.mad_wide(row, n, k.cvt_u64(column))), sum);
        });
    }
}

impl Kernel for NaiveGemm {
    fn name(&self) -> String {
        "gemm_naive".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [TILE, TILE, 1], |k| self.write(k))
    }
}

impl Kernel for TiledGemm {
    fn name(&self) -> String {
        "gemm_tiled".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [TILE, TILE, 1], |k| self.write(k))
    }
}
