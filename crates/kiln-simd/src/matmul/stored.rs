//! Products of rows with the rows of a 16-bit matrix, which is read as stored. For a single row, elements are cast to f32 as
//! they are loaded. For more rows, a few rows of B at a time are cast to f32 in a cache, and the kernels for f32 read them there.
//! So an element costs two bytes of memory traffic instead of ten, and no f32 copy of the whole matrix is allocated.
//!
//! Results have the bits of a product with the whole matrix cast to f32.

use kiln_ir::Data;

use super::{Gemm, MatrixRef, Source, dots, driver, matvec};
use crate::cast::widen;
use crate::scratch;
use crate::simd::Simd;
use crate::threads::{self, Shared};
use crate::vector::Stored;

/// Elements of B that one thread casts at once: 128 KiB of f32 stay in the second-level cache.
const FEW: usize = 32 << 10;

/// Elements of B that all threads cast before they multiply them with many rows: 16 MiB of f32, so that packing A again for each of
/// them costs little, and the last-level cache may hold them.
const MANY: usize = 4 << 20;

/// `y = a x` for the floats of a matrix of `[rows, columns]`.
pub(super) fn matvec(simd: &Simd, a: Data<'_>, extents: [usize; 2], x: &[f32], y: &mut [f32]) {
    fn run<E: Stored>(simd: &Simd, a: &[E], [rows, columns]: [usize; 2], x: &[f32], y: &mut [f32]) {
        let m = matvec::Matvec { a: a.as_ptr(), rows, columns, x: x.as_ptr(), y: y.as_mut_ptr() };
        // SAFETY: the slices have the lengths of the extents; y is borrowed for writing; a `Simd` has its instruction set.
        unsafe { m.run(simd.isa(), simd.threads()) };
    }
    match a {
        Data::F16(a) => run(simd, a, extents, x, y),
        Data::Bf16(a) => run(simd, a, extents, x, y),
        a => run(simd, a.f32(), extents, x, y),
    }
}

/// `c = a bᵀ` for extents `(m, k, n)`, none of them zero, and a `b` of f16 or bf16 that [`takes`] takes.
pub(super) fn product(simd: &Simd, (m, k, n): (usize, usize, usize), a: &[f32], b: Data<'_>, c: &mut [f32]) {
    if m == 1 {
        return matvec(simd, b, [n, k], a, c);
    }
    let threads = if m.saturating_mul(k).saturating_mul(n) < driver::PARALLEL { 1 } else { simd.threads() };
    let out = Shared::new(c.as_mut_ptr());
    let rows = |first: usize, count: usize, threads: usize, wide: &mut [f32]| {
        widen(simd, b.part(2 * first * k..2 * (first + count) * k), &mut wide[..count * k], threads);
        // SAFETY: the slices have the lengths of the extents; only this call writes these columns of the output; a `Simd` has its
        // instruction set.
        unsafe { part(simd, threads, [m, k, n], a, wide, count, out.get().add(first)) };
    };
    if m > driver::SKINNY {
        let count = (MANY / k).clamp(1, n);
        scratch::with(count * k, |wide| {
            for first in (0..n).step_by(count) {
                rows(first, count.min(n - first), threads, wide);
            }
        });
        return;
    }
    // Several parts for a thread, so that none waits long for another.
    let of_thread = n.div_ceil(4 * threads);
    let count = (FEW / k).clamp(1, of_thread);
    threads::for_each(n.div_ceil(of_thread), threads, |i| {
        let end = n.min((i + 1) * of_thread);
        scratch::with(count * k, |wide| {
            for first in (i * of_thread..end).step_by(count) {
                rows(first, count.min(end - first), 1, wide);
            }
        });
    });
}

/// The product with `count` rows of B, in the way that suits the whole product: another way would give other bits.
///
/// # Safety
/// The slices have the lengths that the extents require; `c` is writable for `count` columns of rows of `n` f32, which nobody else
/// writes; the instruction set is available.
unsafe fn part(simd: &Simd, threads: usize, [m, k, n]: [usize; 3], a: &[f32], b: &[f32], count: usize, c: *mut f32) {
    let isa = simd.isa();
    // SAFETY: the caller's contract, in every branch.
    unsafe {
        if m <= driver::SKINNY && k >= dots::LEAST_K {
            let (a, b) = (a.as_ptr(), b.as_ptr());
            let dots = dots::DotsArgs { a, a_stride: k, b, b_stride: k, c, c_strides: (n, 1), k, n: count };
            dots.run(isa, threads, m);
        } else {
            let b = Source::Matrix(MatrixRef::new(b, k, true));
            Gemm { m, k, n: count, a: MatrixRef::new(a, k, false), b, c, c_stride: n }.run(isa, threads);
        }
    }
}

/// Whether the product with a matrix of `n` rows is computed here: few columns of the result may be computed in another way, for
/// which all of B has to be f32.
pub(super) fn takes(n: usize) -> bool {
    n > dots::FEW_COLUMNS
}
