//! The transpose of matrices.

use kiln_core::op::Transpose;
use kiln_core::{DataMut, Operand, Result};

use crate::Isa;
use crate::gemm::turn_square;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch, unaligned};

/// Rows of the source that are read side by side: one line of each stays in the L1 cache until all of it is used.
const BLOCK: usize = 64;

/// Columns of the source that are turned before the next ones: as many rows of the result, each a page of its own in a
/// large matrix, whose addresses stay translated. From 64 to 512 are alike; 1024 take twice the time for 2048 rows.
const STRIP: usize = 128;

/// Elements below which one thread is faster.
const PARALLEL: usize = 256 * 1024;

/// Rows of the source from which on the result is written in aligned vectors: stores that straddle two cache lines cost
/// a third to two thirds of the rate on an AVX-512 Xeon, wherever the result lies. Shorter rows would be cut into more
/// pieces than that is worth.
const ALIGNED: usize = 128;

/// Elements of a source that is read and written from beyond the second-level cache.
const FAR: usize = 256 * 1024;

/// Elements of a result that is written past the caches, which do not hold it: where the stride of its rows is a large
/// power of two, lines would be thrown out of the second-level cache before it knows that all of them is new. On an
/// AVX-512 Xeon, 4096 rows take 0.4 of the time, 2048 as long as without.
const STREAM: usize = 8 << 20;

/// The instruction set for matrices whose shorter side has this many elements: squares of 16 lanes would be empty for the
/// most part, and are turned with as many instructions as full ones. On an AVX-512 Xeon, AVX2 was ahead by 36 % on
/// 20000 x 3, by 31 % on 5 x 300 and by 23 % on 3000 x 6.
fn filled(isa: Isa, short: usize) -> Isa {
    if short <= 8 && isa == Isa::Avx512 && Isa::Avx2.is_available() { Isa::Avx2 } else { isa }
}

impl Execute for Transpose {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (count, rows, columns) = self.extents(&inputs[0].shape())?;
        let (from, out) = (f32s(inputs, 0), outputs[0].f32());
        if out.is_empty() {
            return Ok(());
        }
        let stream = rows * columns >= STREAM;
        let threads = if out.len() < PARALLEL { 1 } else { simd.threads() };
        // Columns of the source are rows of the result: split there, in whole blocks.
        let strip = columns.div_ceil(2 * threads).next_multiple_of(BLOCK).min(STRIP).min(columns);
        let strips = columns.div_ceil(strip);
        let isa = filled(simd.isa(), rows.min(columns));
        let out = Shared::new(out.as_mut_ptr());
        threads::for_each(count * strips, threads, |part| {
            let (matrix, j) = (part / strips * rows * columns, part % strips * strip);
            let width = strip.min(columns - j);
            // SAFETY: matrix and strip lie inside of both slices, strips of the result are disjoint, and the
            // instruction set is that of a `Simd` or has been asked for.
            unsafe {
                let from = from.as_ptr().add(matrix + j);
                let out = out.get().add(matrix + j * rows);
                dispatch(isa, Strip { from, columns, out, rows, width, stream });
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
    stream: bool,
}

impl Kernel for Strip {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { from, columns, out, rows, width, stream } = self;
        let far = rows * columns >= FAR;
        let head = if rows < ALIGNED { 0 } else { unaligned::<V>(out) };
        let aligned = |p: *mut f32| (p as usize).is_multiple_of(4 * V::LANES);
        let stream = stream && rows.is_multiple_of(V::LANES) && aligned(out.wrapping_add(head));
        // Rows of whole vectors come and go fast enough by themselves; of others, some lines are written in two halves, and
        // it pays to ask for the lines of the next block.
        let ask = far && !rows.is_multiple_of(V::LANES);
        let mut i1 = 0;
        while i1 < rows {
            let i0 = i1;
            i1 = rows.min(if i0 == 0 { head } else { i0 } + BLOCK);
            for j in (0..width).step_by(V::LANES) {
                let high = V::LANES.min(width - j);
                let mut i = i0;
                while i < i1 {
                    let wide = if i < head { head } else { V::LANES.min(i1 - i) };
                    // SAFETY: the contract of `Strip`.
                    unsafe {
                        let (from, out) = (from.add(i * columns + j), out.add(j * rows + i));
                        if ask {
                            for r in 0..V::LANES {
                                V::prefetch_far(from.wrapping_add((BLOCK + r) * columns));
                                V::prefetch_far(out.wrapping_add(r * rows + BLOCK));
                            }
                        }
                        if stream && wide == V::LANES && high == V::LANES {
                            let turned = V::load_columns(from, columns);
                            for (r, row) in turned.into_iter().enumerate().take(V::LANES) {
                                row.stream(out.add(r * rows));
                            }
                        } else {
                            turn_square::<V>(from, columns, wide, high, out, rows, wide);
                        }
                    }
                    i += wide;
                }
            }
        }
        if stream {
            // SAFETY: the instruction set is there.
            unsafe { V::splat(0.0) }.fence();
        }
    }
}
