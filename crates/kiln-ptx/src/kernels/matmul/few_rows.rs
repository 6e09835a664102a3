//! The product of a few rows of f32 with the transpose of a matrix in f16 or bf16, at the speed of memory.
//!
//! `yᵢⱼ = Σₖ xᵢₖ Wⱼₖ`, all sums in f32. A block of threads has some rows of W. Its warps take pieces of k in turns, a lane 16 bytes of
//! each row, and what a lane reads of x serves all rows of W. Sums of lanes are added up by exchanges, those of warps through shared
//! memory.

use kiln_ir::{Error, Result};

use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::half::unpack;
use crate::kernels::math::F32;
use crate::kernels::team;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, PtxType, Value, Variable};

/// Threads of a block.
const BLOCK: u32 = 128;
/// Warps of a block.
/// Rows of W of a block.
const WEIGHTS: u32 = 4;
/// Elements that a lane reads of a row at once.
const PIECE: u32 = 8;
/// Elements of a row that the lanes of a block read at once.
const STEP: u32 = BLOCK * PIECE;
/// Maximum rows of x.
const MOST_ROWS: u32 = 8;
/// Maximum extents, so that the end of the last piece fits 32 bits.
const MOST: u64 = (1 << 31) - 1;

/// The product of up to eight rows of f32 with the transpose of a matrix of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FewRowsGemm {
    weights: PtxType,
    /// Rows of x: 1, 2, 4 or 8.
    rows: u32,
}

impl FewRowsGemm {
    /// For this many rows of x and a matrix in [`PtxType::F16`] or [`PtxType::Bf16`]; none for more rows and other types.
    pub fn new(rows: usize, weights: PtxType) -> Option<Self> {
        let serves = (1..=MOST_ROWS as usize).contains(&rows) && matches!(weights, PtxType::F16 | PtxType::Bf16);
        serves.then(|| Self { weights, rows: rows.next_power_of_two() as u32 })
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let of = |weights| [1, 2, 4, 8].map(|rows| Self { weights, rows });
        [PtxType::F16, PtxType::Bf16].into_iter().flat_map(of).collect()
    }

    /// The launch for `m` rows of x of `k` elements and `n` rows of W. Buffers: x, W, result.
    ///
    /// # Errors
    /// [`Error::Shape`] for more rows than the kernel is for, and unless k is a multiple of 8, above 0; [`Error::Limit`] beyond
    /// 2³¹ - 1 for an extent.
    pub fn launch(&self, [m, k, n]: [usize; 3]) -> Result<Launch> {
        if m > self.rows as usize || k == 0 || !k.is_multiple_of(PIECE as usize) {
            return Err(Error::Shape {
                op: "matmul",
                reason: format!(
                    "{} takes at most {} rows of a multiple of {PIECE} elements above 0, not {m} of {k}",
                    self.name(),
                    self.rows
                ),
            });
        }
        let words = [("rows", m), ("columns", n), ("k", k)].map(|(what, asked)| extent(what, asked, MOST));
        let [m, n, k] = words;
        let (m, n, k) = (m?, n?, k?);
        let arguments = (0..3).map(Argument::Buffer).chain([m, n, k].map(Argument::U32)).collect();
        Ok(Launch { grid: [extent("blocks", n.div_ceil(WEIGHTS) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    /// Pieces of a row of W that a lane loads at once.
    fn at_once(&self) -> u32 {
        if self.rows <= 2 { 2 } else { 1 }
    }

    fn write<'k>(&self, k: &'k Builder) {
        let x: Pointer<'_, Global, f32> = k.buffer("x");
        let weights = k.buffer::<u32>("weights");
        let out = k.buffer::<f32>("out");
        let [m, n, depth] = ["m", "n", "depth"].map(|name| k.parameter::<u32>(name));
        let (thread, first) = (k.tid_x(), k.ctaid_x() * WEIGHTS);
        // Missing rows are read as the last one, and not written.
        let rows_of_x: Vec<_> = (0..self.rows).map(|i| x.index_wide(k.mul_wide(k.min(m - 1, i), depth))).collect();
        let rows: Vec<_> =
            (0..WEIGHTS).map(|j| weights.index_wide(k.mul_wide(k.min(first + j, n - 1), depth >> 1))).collect();
        let sums: Vec<Vec<Variable<'_, f32>>> =
            rows.iter().map(|_| rows_of_x.iter().map(|_| k.variable(0.0f32)).collect()).collect();
        k.for_(thread * PIECE, depth, STEP * self.at_once(), |at| {
            let read = |turn: u32| {
                let at = at + turn * STEP;
                let there = k.lt(at, depth);
                let pieces: Vec<[Value<'_, u32>; 4]> =
                    rows.iter().map(|row| k.ld_v_if(there, row.index(at >> 1), 0u32)).collect();
                (at, there, pieces)
            };
            let read: Vec<_> = (0..self.at_once()).map(read).collect();
            for (at, there, pieces) in read {
                let of_x = |row: &Pointer<'k, Global, f32>| {
                    let halves: [[F32<'_>; 4]; 2] =
                        [0, 4].map(|i: i32| k.ld_v_if(there, row.index(at).offset(i), 0.0f32));
                    halves.concat()
                };
                let of_x: Vec<Vec<F32<'_>>> = rows_of_x.iter().map(of_x).collect();
                for (piece, sums) in pieces.iter().zip(&sums) {
                    let elements: Vec<F32<'_>> = piece.iter().flat_map(|&word| unpack(k, self.weights, word)).collect();
                    for (x, sum) in of_x.iter().zip(sums) {
                        let total = x.iter().zip(&elements).fold(sum.get(), |sum, (&x, &w)| k.fma(x, w, sum));
                        sum.set(total);
                    }
                }
            }
        });
        team::totals(k, BLOCK, &sums, |at, sum| {
            let (j, i) = (first + at / self.rows, at % self.rows);
            let there = k.and(k.lt(i, m), k.lt(j, n));
            k.st_if(there, out.index_wide(k.mad_wide(i, n, k.cvt_u64(j))), sum);
        });
    }
}

impl Kernel for FewRowsGemm {
    fn name(&self) -> String {
        format!("gemm_few_rows_{}_{}", self.weights.word(), self.rows)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
