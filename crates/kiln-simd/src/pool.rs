//! Pooling: windows are folded down their columns first, a whole row of the picture at a time, then across.

use std::marker::PhantomData;

use kiln_core::op::{Pool2d, PoolExtents, Pooling};
use kiln_core::{DataMut, Operand, Result};

use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Elements of input below which one thread is faster.
const PARALLEL: usize = 200_000;

/// Elements of input of one part of the work.
const PART: usize = 32 * 1024;

impl Execute for Pool2d {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let e = self.extents(&inputs[0].shape())?;
        let (x, y) = (f32s(inputs, 0), outputs[0].f32());
        if y.is_empty() {
            return Ok(());
        }
        let threads = if x.len() < PARALLEL { 1 } else { simd.threads() };
        // Rows of results, whatever plane they are in.
        let rows = e.planes * e.out_h;
        let each = (PART / e.w.saturating_mul(self.window.0)).clamp(1, rows);
        let y = Shared::new(y.as_mut_ptr());
        threads::for_each(rows.div_ceil(each), threads, |part| {
            let rows = part * each..rows.min((part + 1) * each);
            // Two phases of a row, or the row itself; the tail of a vector may be read beyond either.
            scratch::slices([e.w, e.w], |[even, odd]| {
                let (even, odd) = (even.as_mut_ptr(), odd.as_mut_ptr());
                let call = Call { op: *self, e, x: x.as_ptr(), y: y.get(), rows, even, odd };
                // SAFETY: a `Simd` exists only for an available instruction set; parts write different rows.
                unsafe {
                    match self.pooling {
                        Pooling::Max => dispatch(simd.isa(), Run(call, PhantomData::<Greatest>)),
                        Pooling::Average => dispatch(simd.isa(), Run(call, PhantomData::<Mean>)),
                    }
                }
            });
        });
        Ok(())
    }
}

/// How elements of a window are combined.
trait Fold {
    fn join<V: Vector>(a: V, b: V) -> V;
    fn finish<V: Vector>(a: V, area: f32) -> V;
}

struct Greatest;

impl Fold for Greatest {
    #[inline(always)]
    fn join<V: Vector>(a: V, b: V) -> V {
        a.maximum(b)
    }

    #[inline(always)]
    fn finish<V: Vector>(a: V, _: f32) -> V {
        a
    }
}

struct Mean;

impl Fold for Mean {
    #[inline(always)]
    fn join<V: Vector>(a: V, b: V) -> V {
        a + b
    }

    #[inline(always)]
    fn finish<V: Vector>(a: V, area: f32) -> V {
        a / a.of(area)
    }
}

/// Some rows of results.
///
/// # Safety
/// `x` is the input and `y` the output of these extents, in which nothing else writes these rows; `even` and `odd` are good
/// for a row of the input and a cache line more.
struct Call {
    op: Pool2d,
    e: PoolExtents,
    x: *const f32,
    y: *mut f32,
    rows: std::ops::Range<usize>,
    even: *mut f32,
    odd: *mut f32,
}

struct Run<F>(Call, PhantomData<F>);

impl<F: Fold> Kernel for Run<F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Call { op, e, x, y, rows, even, odd } = self.0;
        let ((kh, kw), (sh, sw)) = (op.window, op.stride);
        for row in rows {
            let (plane, i) = (row / e.out_h, row % e.out_h);
            // SAFETY: rows i sh .. i sh + kh lie inside of the plane; the scratch holds a row and a line.
            unsafe {
                let x = x.add((plane * e.h + i * sh) * e.w);
                let down = |at: usize| {
                    let rest = e.w.saturating_sub(at).min(V::LANES);
                    let load = |p: *const f32| {
                        if rest == V::LANES { V::load(p.add(at)) } else { V::load_first(p.wrapping_add(at), rest) }
                    };
                    (1..kh).fold(load(x), |folded, p| F::join(folded, load(x.add(p * e.w))))
                };
                if sw == 2 {
                    for at in (0..e.w).step_by(2 * V::LANES) {
                        let (a, b) = V::unzip(down(at), down(at + V::LANES));
                        a.store(even.add(at / 2));
                        b.store(odd.add(at / 2));
                    }
                } else {
                    for at in (0..e.w).step_by(V::LANES) {
                        down(at).store(even.add(at));
                    }
                }
                let y = y.add(row * e.out_w);
                for j in (0..e.out_w).step_by(V::LANES) {
                    let lanes = V::LANES.min(e.out_w - j);
                    let across = |q: usize| match sw {
                        1 => V::load_first(even.add(j + q), lanes),
                        2 => V::load_first(if q.is_multiple_of(2) { even } else { odd }.add(j + q / 2), lanes),
                        _ => {
                            let mut gathered = [0.0f32; 64];
                            for (l, v) in gathered.iter_mut().enumerate().take(lanes) {
                                *v = *even.add((j + l) * sw + q);
                            }
                            V::load(gathered.as_ptr())
                        }
                    };
                    let folded = (1..kw).fold(across(0), |folded, q| F::join(folded, across(q)));
                    F::finish(folded, (kh * kw) as f32).store_first(y.add(j), lanes);
                }
            }
        }
    }
}

macro_rules! methods {
    ($($name:ident $into:ident $op:ident $what:literal;)*) => {
        impl Simd {
            $(
                #[doc = concat!($what, " of each window of a picture `[h, w]`, `[c, h, w]` or `[n, c, h, w]`.")]
                ///
                /// # Errors
                /// [`kiln_core::Error::Length`] when `x` does not have these extents, [`kiln_core::Error::Parameter`] for a
                /// window or a stride of zero, [`kiln_core::Error::Shape`] for a window larger than the picture.
                pub fn $name(
                    &self,
                    x: &[f32],
                    dims: &[usize],
                    window: (usize, usize),
                    stride: (usize, usize),
                ) -> Result<Vec<f32>> {
                    self.f32_vec(Pool2d::$op(window, stride), &[Operand::f32(x, dims)?])
                }

                #[doc = concat!("[`Simd::", stringify!($name), "`] into `out`.")]
                ///
                /// # Errors
                #[doc = concat!("As [`Simd::", stringify!($name), "`].")]
                pub fn $into(
                    &self,
                    x: &[f32],
                    dims: &[usize],
                    window: (usize, usize),
                    stride: (usize, usize),
                    out: &mut [f32],
                ) -> Result<()> {
                    self.f32_into(Pool2d::$op(window, stride), &[Operand::f32(x, dims)?], out)
                }
            )*
        }
    };
}

methods! {
    max_pool2d max_pool2d_into max "The greatest element";
    avg_pool2d avg_pool2d_into average "The mean";
}
