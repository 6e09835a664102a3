//! Pooling: windows are folded down their columns first, a whole row of the image at a time, then across.

use std::marker::PhantomData;

use kiln_ir::op::{Pool2d, PoolExtents, Pooling};
use kiln_ir::{DataMut, Operand, Result};

use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Kernel, MAX_LANES, Vector, dispatch};

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
        // Rows of results over all planes.
        let rows = e.planes * e.out_h;
        let each = (PART / e.w.saturating_mul(self.window.0)).clamp(1, rows);
        let y = Shared::new(y.as_mut_ptr());
        threads::for_each(rows.div_ceil(each), threads, |part| {
            let rows = part * each..rows.min((part + 1) * each);
            // The two phases of a row, or the row itself; a partial vector may be read beyond the end of either.
            scratch::slices([e.w, e.w], |[even, odd]| {
                let (even, odd) = (even.as_mut_ptr(), odd.as_mut_ptr());
                let call = Call { op: *self, e, x: x.as_ptr(), y: y.get(), rows, even, odd };
                // SAFETY: a `Simd` exists only for an available instruction set; parts write different rows.
                unsafe {
                    match self.pooling {
                        Pooling::Max => dispatch(simd.isa(), Run::<Greatest, false>(call, PhantomData)),
                        Pooling::Average if self.window.0.max(self.window.1) <= RUN => {
                            dispatch(simd.isa(), Run::<Mean, false>(call, PhantomData));
                        }
                        Pooling::Average => dispatch(simd.isa(), Run::<Mean, true>(call, PhantomData)),
                    }
                }
            });
        });
        Ok(())
    }
}

/// Number of elements that are summed in a chain.
const RUN: usize = 16;

/// Combines `$n` vectors, counted by `$i`: in a chain or, if `$tree`, as runs of [`RUN`] whose results are combined as
/// a binary tree, which limits rounding in large windows. Not a function with a closure, which might be compiled
/// without the instruction set.
macro_rules! folded {
    ($fold:ident, $tree:expr, $n:expr, $i:ident => $vector:expr) => {{
        let n = $n;
        macro_rules! run {
            ($from:expr, $to:expr) => {{
                let (from, to) = ($from, $to);
                let $i = from;
                let mut run = $vector;
                for $i in from + 1..to {
                    run = $fold::join(run, $vector);
                }
                run
            }};
        }
        if $tree {
            let mut folded = run!(0, n.min(RUN));
            // One subtree for each bit of the number of runs so far.
            let mut subtrees = [folded; usize::BITS as usize];
            let mut runs = 0usize;
            for from in (RUN..n).step_by(RUN) {
                for level in 0..runs.trailing_ones() as usize {
                    folded = $fold::join(subtrees[level], folded);
                }
                subtrees[runs.trailing_ones() as usize] = folded;
                (folded, runs) = (run!(from, n.min(from + RUN)), runs + 1);
            }
            while runs > 0 {
                folded = $fold::join(subtrees[runs.trailing_zeros() as usize], folded);
                runs &= runs - 1;
            }
            folded
        } else {
            run!(0, n)
        }
    }};
}

/// The combination of the elements of a window.
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
/// `x` and `y` are the input and output with these extents, and nothing else writes these rows; `even` and `odd` are
/// valid for a row of the input plus a cache line.
struct Call {
    op: Pool2d,
    e: PoolExtents,
    x: *const f32,
    y: *mut f32,
    rows: std::ops::Range<usize>,
    even: *mut f32,
    odd: *mut f32,
}

/// Windows of at most [`RUN`] rows and columns, and maxima, need no `TREE`.
struct Run<F, const TREE: bool>(Call, PhantomData<F>);

impl<F: Fold, const TREE: bool> Kernel for Run<F, TREE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Call { op, e, x, y, rows, even, odd } = self.0;
        let ((kh, kw), (sh, sw)) = (op.window, op.stride);
        for row in rows {
            let (plane, i) = (row / e.out_h, row % e.out_h);
            // SAFETY: rows i sh .. i sh + kh are inside the plane; the scratch holds a row and a line.
            unsafe {
                let x = x.add((plane * e.h + i * sh) * e.w);
                let mut at = 0;
                if sw == 2 {
                    while at < e.w {
                        let next = at + V::LANES;
                        let second = if next < e.w { down::<V, F, TREE>(x, e.w, kh, next) } else { V::splat(0.0) };
                        let (a, b) = V::unzip(down::<V, F, TREE>(x, e.w, kh, at), second);
                        a.store(even.add(at / 2));
                        b.store(odd.add(at / 2));
                        at += 2 * V::LANES;
                    }
                } else {
                    while at < e.w {
                        down::<V, F, TREE>(x, e.w, kh, at).store(even.add(at));
                        at += V::LANES;
                    }
                }
                let y = y.add(row * e.out_w);
                let mut j = 0;
                while j < e.out_w {
                    // Vectors may reach beyond the row into the next cache line, whose content is not used.
                    let lanes = V::LANES.min(e.out_w - j);
                    let folded = folded!(F, TREE, kw, q => across::<V>(even, odd, sw, lanes, j, q));
                    let folded = F::finish(folded, (kh * kw) as f32);
                    if lanes == V::LANES {
                        folded.store(y.add(j))
                    } else {
                        folded.store_first(y.add(j), lanes)
                    }
                    j += V::LANES;
                }
            }
        }
    }
}

/// A vector of the columns from `at` on, folded over `kh` rows of `w`.
///
/// # Safety
/// The instruction set is available, the rows are readable and `at < w`.
#[inline(always)]
unsafe fn down<V: Vector, F: Fold, const TREE: bool>(x: *const f32, w: usize, kh: usize, at: usize) -> V {
    let rest = w - at;
    // SAFETY: the caller's contract.
    unsafe {
        let x = x.add(at);
        if rest >= V::LANES {
            folded!(F, TREE, kh, p => V::load(x.add(p * w)))
        } else {
            folded!(F, TREE, kh, p => V::load_first(x.add(p * w), rest))
        }
    }
}

/// The columns at position `q` of the windows of the `lanes` results from `j` on.
///
/// # Safety
/// The instruction set is available; `even` and `odd` hold the phases of a row, or `even` a row, plus a line.
#[inline(always)]
unsafe fn across<V: Vector>(even: *const f32, odd: *const f32, sw: usize, lanes: usize, j: usize, q: usize) -> V {
    // SAFETY: the caller's contract: the last result reads at most to the end of the row.
    unsafe {
        match sw {
            1 => V::load(even.add(j + q)),
            2 => V::load(if q.is_multiple_of(2) { even } else { odd }.add(j + q / 2)),
            _ => {
                let mut gathered = [0.0f32; MAX_LANES];
                for (l, v) in gathered.iter_mut().enumerate().take(lanes) {
                    *v = *even.add((j + l) * sw + q);
                }
                V::load(gathered.as_ptr())
            }
        }
    }
}
