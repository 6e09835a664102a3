//! Numbers of f32 in two parts that the tensor cores take: `x = hi + lo`, each in TF32.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::math::F32;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Rows and columns that a block reads.
const TILE: u32 = 32;
/// Elements of a row of it in shared memory: one more, so that the elements of a column are in different banks.
const PITCH: u32 = TILE + 1;
/// Threads of a block.
const BLOCK: u32 = 256;
/// Rows that a block reads or writes at once.
const ROWS: u32 = BLOCK / TILE;
/// Maximum extents, so that the end of the last tile fits 32 bits.
const MOST: u64 = (1 << 31) - 1;
/// Rows of planes are multiples of this many elements, as tensor copies require.
const PIECE: usize = 4;

/// Elements of a row of a plane.
pub(super) fn pitch(k: usize) -> usize {
    k.div_ceil(PIECE).saturating_mul(PIECE)
}

/// Writes each of some matrices of f32 as two planes with k innermost, one of upper parts and one of lower: `hi` is `x` in
/// TF32, to nearest, and `lo` what is left, in TF32 again. Their sum is `x` within 2⁻²³ of it. Of infinities and NaN the lower
/// part is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tf32Planes {
    transposes: bool,
}

impl Tf32Planes {
    /// `transposes`: matrices are stored with k outside, as an A that is transposed or a B that is not.
    pub fn new(transposes: bool) -> Self {
        Self { transposes }
    }

    /// Bytes of the planes of `matrices` of this many rows of C, or columns, by `k`; none where that is beyond a `usize`.
    pub fn bytes(matrices: usize, rows: usize, k: usize) -> Option<usize> {
        [2, rows, pitch(k), size_of::<f32>()].into_iter().try_fold(matrices, usize::checked_mul)
    }

    /// The launch for such matrices. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 rows, columns or tiles.
    pub fn launch(&self, matrices: usize, rows: usize, k: usize) -> Result<Launch> {
        let (rows, depth) = (extent("rows", rows, MOST)?, extent("k", k, MOST - PIECE as u64)?);
        let pitch = pitch(k) as u32;
        let [down, across] = [rows, pitch].map(|extent| extent.div_ceil(TILE));
        let tiles = matrices.saturating_mul(down as usize).saturating_mul(across as usize);
        let words = [rows, depth, pitch, down, across].map(Argument::U32);
        let arguments = [Argument::Buffer(0), Argument::Buffer(1)].into_iter().chain(words).collect();
        Ok(Launch { grid: [extent("tiles", tiles, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [x, out] = ["x", "out"].map(|name| k.buffer::<f32>(name));
        let [rows, depth, pitch, down, across] =
            ["rows", "depth", "pitch", "down", "across"].map(|name| k.parameter::<u32>(name));
        let (block, thread) = (k.ctaid_x(), k.tid_x());
        let (first_along, rest) = (block % across * TILE, block / across);
        let (first_row, matrix) = (rest % down * TILE, rest / down);
        let x = x.index_wide(k.cvt_u64(matrix) * k.mul_wide(rows, depth));
        let plane = k.mul_wide(rows, pitch);
        let out = out.index_wide(k.cvt_u64(matrix) * plane * 2u64);
        let (across, down) = (thread & (TILE - 1), thread >> TILE.ilog2());
        let write = |row: Value<'_, u32>, along, element| {
            let there = k.and(k.lt(row, rows), k.lt(along, pitch));
            let upper = out.index_wide(k.mad_wide(row, pitch, k.cvt_u64(along)));
            let lower: Pointer<'_, Global, f32> = upper.index_wide(plane);
            let [hi, lo] = parts(k, element);
            k.st_if(there, upper, hi);
            k.st_if(there, lower, lo);
        };
        let read = |there, row, column, columns| {
            k.ld_if(there, x.index_wide(k.mad_wide(row, columns, k.cvt_u64(column))), 0.0)
        };
        let steps = (0..TILE).step_by(ROWS as usize);
        if !self.transposes {
            for step in steps {
                let (row, along) = (first_row + down + step, first_along + across);
                let there = k.and(k.lt(row, rows), k.lt(along, depth));
                write(row, along, read(there, row, along, depth));
            }
            return;
        }
        let tile = k.shared::<f32>(TILE * PITCH);
        for step in steps.clone() {
            let (along, row) = (first_along + down + step, first_row + across);
            let there = k.and(k.lt(row, rows), k.lt(along, depth));
            k.st(tile.index(k.mad(down + step, PITCH, across)), read(there, along, row, rows));
        }
        k.bar_sync(0u32);
        for step in steps {
            let element = k.ld(tile.index(k.mad(across, PITCH, down + step)));
            write(first_row + down + step, first_along + across, element);
        }
    }
}

/// The upper and the lower part of a number.
fn parts<'k>(k: &'k Builder, x: F32<'k>) -> [F32<'k>; 2] {
    // The conversion leaves the bits below TF32 undefined.
    let hi = k.bits_f32(k.cvt_rna_tf32(x) & 0xffff_e000u32);
    [hi, k.bits_f32(k.cvt_rna_tf32(x - hi))]
}

impl Kernel for Tf32Planes {
    fn name(&self) -> String {
        if self.transposes { "tf32_planes_transposed" } else { "tf32_planes" }.to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
