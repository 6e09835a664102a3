//! The transpose of matrices.

use kiln_core::op::Transpose;
use kiln_core::{DataMut, Operand, Result};

use crate::gemm::turn_square;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Rows of the source that are read side by side: one line of each stays in the L1 cache until all of it is used.
const BLOCK: usize = 64;

/// Columns of the source that are turned before the next ones: as many rows of the result, each a page of its own in a
/// large matrix, whose addresses stay translated. From 64 to 512 are alike; 1024 take twice the time for 2048 rows.
const STRIP: usize = 128;

/// Elements below which one thread is faster.
const PARALLEL: usize = 256 * 1024;

impl Execute for Transpose {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (count, rows, columns) = self.extents(&inputs[0].shape())?;
        let (from, out) = (f32s(inputs, 0), outputs[0].f32());
        if out.is_empty() {
            return Ok(());
        }
        let threads = if out.len() < PARALLEL { 1 } else { simd.threads() };
        // Columns of the source are rows of the result: split there, in whole blocks.
        let strip = columns.div_ceil(2 * threads).next_multiple_of(BLOCK).min(STRIP).min(columns);
        let strips = columns.div_ceil(strip);
        let out = Shared::new(out.as_mut_ptr());
        threads::for_each(count * strips, threads, |part| {
            let (matrix, j) = (part / strips * rows * columns, part % strips * strip);
            let width = strip.min(columns - j);
            // SAFETY: matrix and strip lie inside of both slices, strips of the result are disjoint, and a `Simd` has
            // its instruction set.
            unsafe {
                let from = from.as_ptr().add(matrix + j);
                let out = out.get().add(matrix + j * rows);
                dispatch(simd.isa(), Strip { from, columns, out, rows, width });
            }
        });
        Ok(())
    }
}

/// `width` columns of a matrix, as rows.
///
/// # Safety
/// `rows` runs of `width` f32, `columns` apart, are readable; `width` runs of `rows` f32 are writable.
struct Strip {
    from: *const f32,
    columns: usize,
    out: *mut f32,
    rows: usize,
    width: usize,
}

impl Kernel for Strip {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { from, columns, out, rows, width } = self;
        for i0 in (0..rows).step_by(BLOCK) {
            let i1 = rows.min(i0 + BLOCK);
            for j in (0..width).step_by(V::LANES) {
                let high = V::LANES.min(width - j);
                for i in (i0..i1).step_by(V::LANES) {
                    let wide = V::LANES.min(i1 - i);
                    // SAFETY: the contract of `Strip`.
                    unsafe {
                        let from = from.add(i * columns + j);
                        turn_square::<V>(from, columns, wide, high, out.add(j * rows + i), rows, wide);
                    }
                }
            }
        }
    }
}
