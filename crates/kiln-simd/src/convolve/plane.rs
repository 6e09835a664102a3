//! Convolution plane by plane: a stencil over rows.
//!
//! A block of four rows and two vectors of results stays in registers. For each column of the kernel, every row of the
//! picture under the block is loaded once, at that shift, and used for all the results that see it: seven loads serve
//! forty products of a kernel of five rows, so that loads, which straddle cache lines here, do not set the pace.
//!
//! Taller kernels are cut into slices of at most five rows, input channels and the phases of a stride into passes; the
//! results of later passes are added.

use kiln_core::op::ConvolveExtents;

use super::frame::{Fill, Frame};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};
use crate::{Isa, scratch};

/// Elements of a block of rows: it stays in the second-level cache while it is read again.
const BLOCK: usize = 32 * 1024;

pub(super) fn run(
    isa: Isa,
    threads: usize,
    e: &ConvolveExtents,
    stride: (usize, usize),
    x: &[f32],
    kernel: &[f32],
    y: &mut [f32],
) {
    let whole = Frame::new(e, stride, e.out_h);
    // A picture without padding, with stride 1 across, is its own frame.
    let in_place = stride.1 == 1 && e.top == 0 && e.left == 0 && fits(e, stride);
    // Blocks of whole register blocks.
    let rows = (BLOCK / (whole.columns * whole.phases.0 * whole.phases.1)).max(1).next_multiple_of(4).min(e.out_h);
    let blocks = e.out_h.div_ceil(rows);
    let out = Shared::new(y.as_mut_ptr());
    threads::for_each(e.batch * blocks, threads, |part| {
        let (n, first) = (part / blocks, part % blocks * rows);
        let rows = rows.min(e.out_h - first);
        let frame = Frame::new(e, stride, rows);
        scratch::slices([if in_place { 0 } else { frame.plane() }], |[copy]| {
            for c in 0..e.c_in {
                let picture = x[(n * e.c_in + c) * e.h * e.w..].as_ptr();
                if !in_place {
                    let fill = Fill { frame, first, planes: 1, x: picture, to: copy.as_mut_ptr() };
                    // SAFETY: a `Simd` exists only for an available instruction set; the scratch is a plane long.
                    unsafe { dispatch(isa, fill) };
                }
                for o in 0..e.c_out {
                    for phase in 0..frame.phases.0 {
                        let heights = (e.kh - phase).div_ceil(stride.0);
                        for slice in (0..heights).step_by(TALLEST) {
                            let p = phase + slice * stride.0;
                            let (from, step) = if in_place {
                                (picture.wrapping_add((first * stride.0 + p) * e.w), stride.0 * e.w)
                            } else {
                                (copy.as_ptr().wrapping_add(frame.offset(p, 0)), frame.columns)
                            };
                            let w = ((o * e.c_in + c) * e.kh + p) * e.kw;
                            let pass = Pass {
                                x: from,
                                x_stride: step,
                                phases: (frame.phases.1, frame.rows * frame.columns),
                                stride: stride.1,
                                w: kernel[w..].as_ptr(),
                                w_stride: stride.0 * e.kw,
                                kh: (heights - slice).min(TALLEST),
                                kw: e.kw,
                                // SAFETY: the rows of this part; no other part has them.
                                y: unsafe { out.get().add(((n * e.c_out + o) * e.out_h + first) * e.out_w) },
                                rows,
                                columns: e.out_w,
                                add: c > 0 || phase > 0 || slice > 0,
                            };
                            // SAFETY: a `Simd` exists only for an available instruction set. The rows of the picture or
                            // of the frame reach (k - 1) / stride beyond the results, down and across.
                            unsafe { dispatch(isa, pass) };
                        }
                    }
                }
            }
        });
    });
}

/// Whether every pixel that a result sees lies inside of the picture.
fn fits(e: &ConvolveExtents, stride: (usize, usize)) -> bool {
    (e.out_h - 1) * stride.0 + e.kh <= e.h && (e.out_w - 1) * stride.1 + e.kw <= e.w
}

/// The rows of the tallest slice of a kernel.
const TALLEST: usize = 5;

/// One pass: rows of results (+)= a slice of the kernel over rows of the picture.
///
/// # Safety
/// `x` is good for reading `rows + kh - 1` rows of the pixels that the kernel reaches, `w` for `kh` rows of `kw`, `y` for
/// writing `rows * columns`, and nothing else writes there.
struct Pass {
    x: *const f32,
    x_stride: usize,
    /// Phases across, and elements from one to the next.
    phases: (usize, usize),
    stride: usize,
    w: *const f32,
    w_stride: usize,
    kh: usize,
    kw: usize,
    y: *mut f32,
    rows: usize,
    columns: usize,
    add: bool,
}

impl Kernel for Pass {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the contract of `Pass`.
        unsafe {
            match self.kh {
                1 => self.slice::<V, 1>(),
                2 => self.slice::<V, 2>(),
                3 => self.slice::<V, 3>(),
                4 => self.slice::<V, 4>(),
                _ => self.slice::<V, TALLEST>(),
            }
        }
    }
}

impl Pass {
    /// # Safety
    /// The contract of [`Pass`], and `kh` is `KH`.
    #[inline(always)]
    unsafe fn slice<V: Vector, const KH: usize>(&self) {
        let mut row = 0;
        // SAFETY: rows stay below `self.rows`.
        unsafe {
            while row + 4 <= self.rows {
                self.row_block::<V, KH, 4>(row);
                row += 4;
            }
            while row < self.rows {
                self.row_block::<V, KH, 1>(row);
                row += 1;
            }
        }
    }

    /// # Safety
    /// As [`Pass::slice`]; rows `row .. row + R` exist.
    #[inline(always)]
    unsafe fn row_block<V: Vector, const KH: usize, const R: usize>(&self, row: usize) {
        let mut at = 0;
        // SAFETY: columns stay below `self.columns`.
        unsafe {
            while at + 2 * V::LANES <= self.columns {
                self.block::<V, KH, R, 2, false>(row, at);
                at += 2 * V::LANES;
            }
            if at + V::LANES <= self.columns {
                self.block::<V, KH, R, 1, false>(row, at);
                at += V::LANES;
            }
            if at < self.columns {
                self.block::<V, KH, R, 1, true>(row, at);
            }
        }
    }

    /// `R` rows and `N` vectors of results; where `TAIL`, only the columns that are left.
    ///
    /// # Safety
    /// As [`Pass::row_block`]; the columns from `at` exist.
    #[inline(always)]
    unsafe fn block<V: Vector, const KH: usize, const R: usize, const N: usize, const TAIL: bool>(
        &self,
        row: usize,
        at: usize,
    ) {
        let rest = self.columns - at;
        // SAFETY: the contract of this function.
        unsafe {
            let load = |p: *const f32| if TAIL { V::load_first(p, rest) } else { V::load(p) };
            let mut sums = [[V::splat(0.0); N]; R];
            let x = self.x.add(row * self.x_stride + at);
            // The column of the kernel: its phase, and how far it is shifted there.
            let (mut phase, mut shift) = (0, 0);
            for column in 0..self.kw {
                let x = x.add(phase * self.phases.1 + shift);
                let weights: [V; KH] = std::array::from_fn(|p| V::splat(*self.w.add(p * self.w_stride + column)));
                for i in 0..R + KH - 1 {
                    let pixels: [V; N] = std::array::from_fn(|v| load(x.add(i * self.x_stride + v * V::LANES)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        if i >= r && i - r < KH {
                            for (sum, &pixel) in sums.iter_mut().zip(&pixels) {
                                *sum = pixel.mul_add(weights[i - r], *sum);
                            }
                        }
                    }
                }
                phase += 1;
                if phase == self.stride {
                    (phase, shift) = (0, shift + 1);
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums.into_iter().enumerate() {
                    let y = self.y.add((row + r) * self.columns + at + v * V::LANES);
                    let sum = if self.add { load(y) + sum } else { sum };
                    if TAIL { sum.store_first(y, rest) } else { sum.store(y) }
                }
            }
        }
    }
}
