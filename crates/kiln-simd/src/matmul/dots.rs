//! Few rows of A times a transposed B: inner products of rows, each matrix read where it lies, B once. Many rows times
//! few columns are the same with the names exchanged.

use super::matvec::add_lanes;
use super::tile::{each_row, for_rows};
use crate::Isa;
use crate::scratch::Workspace;
use crate::threads::{self, Shared};
use crate::vector::{Routine, Vector, routine};

/// Maximum rows of A at a time.
const ROWS: usize = 8;

/// Columns of C at a time.
const COLUMNS: usize = 3;

/// Elements of B below which one thread is faster.
const PARALLEL: usize = 128 * 1024;

/// Vectors of a chain before its lanes are summed: eight rows of A of this length, 32 KiB with 16 lanes, stay in the L1
/// cache while B passes by.
const STEPS: usize = 64;

/// Minimum products in an element: summing the lanes costs as much as some vectors of products.
pub(super) const LEAST_K: usize = 128;

/// Maximum columns of C for which inner products are faster, because a tile would leave many lanes idle.
pub(super) const FEW_COLUMNS: usize = 8;

/// `C = A Bᵀ` for a few rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct DotsArgs {
    /// Row-major A.
    pub(super) a: *const f32,
    /// Distance between its rows.
    pub(super) a_stride: usize,
    /// Row-major Bᵀ.
    pub(super) b: *const f32,
    /// Distance between its rows.
    pub(super) b_stride: usize,
    /// C.
    pub(super) c: *mut f32,
    /// Distances between its rows and between its columns.
    pub(super) c_strides: (usize, usize),
    /// Products in each element.
    pub(super) k: usize,
    /// Rows of Bᵀ, columns of C.
    pub(super) n: usize,
}

// SAFETY: parts of the work read A and B and write elements of C that no other part does.
unsafe impl Sync for DotsArgs {}

impl DotsArgs {
    /// The product for `m` rows of A. The result does not depend on the number of threads.
    ///
    /// # Safety
    /// The matrices are readable, C is writable and accessed by nobody else, the instruction set is available.
    pub(super) unsafe fn run(&self, isa: Isa, threads: usize, m: usize) {
        let threads = if self.n.saturating_mul(self.k) < PARALLEL { 1 } else { threads };
        let width = self.n.div_ceil(threads).next_multiple_of(COLUMNS);
        let c = Shared::new(self.c);
        let whole = self;
        threads::for_each(self.n.div_ceil(width), threads, |part| {
            let whole: &DotsArgs = whole; // the whole struct, which is Sync, not its fields
            let j = part * width;
            let b = whole.b.wrapping_add(j * whole.b_stride);
            let c = c.get().wrapping_add(j * whole.c_strides.1);
            // SAFETY: the caller's contract; parts are disjoint.
            unsafe { dots(isa, m, DotsArgs { b, c, n: width.min(whole.n - j), ..*whole }) };
        });
    }
}

/// # Safety
/// The conditions of [`DotsArgs::run`] hold.
unsafe fn dots(isa: Isa, m: usize, args: DotsArgs) {
    let most = if isa.lanes() >= 16 { ROWS } else { ROWS / 2 };
    // A copy whose rows are not whole pages apart, because such rows evict one another from the L1 cache.
    let mut copy = None;
    let mut args = args;
    if m > 1 && args.a_stride.is_multiple_of(512) && args.n >= 4 * m {
        let stride = args.a_stride + 16;
        let out = copy.insert(Workspace::take(m * stride)).as_mut_ptr();
        for i in 0..m {
            // SAFETY: row i of A, and row i of the copy.
            unsafe { std::ptr::copy_nonoverlapping(args.a.add(i * args.a_stride), out.add(i * stride), args.k) };
        }
        (args.a, args.a_stride) = (out, stride);
    }
    // Number of rows of Bᵀ that stay in the L2 cache while groups of rows of A pass by; a single group needs no limit.
    let together = if m <= most { args.n } else { (64 * 1024 / args.k.max(1)).next_multiple_of(COLUMNS).max(COLUMNS) };
    let together = together.max(1);
    for j in (0..args.n).step_by(together) {
        let n = together.min(args.n - j);
        let groups = m.div_ceil(most);
        for g in 0..groups {
            let (i, end) = (m * g / groups, m * (g + 1) / groups);
            let part = DotsArgs {
                a: args.a.wrapping_add(i * args.a_stride),
                b: args.b.wrapping_add(j * args.b_stride),
                c: args.c.wrapping_add(i * args.c_strides.0 + j * args.c_strides.1),
                n,
                ..args
            };
            let run = match end - i {
                1 => routine::<Dots<1>>(isa),
                2 => routine::<Dots<2>>(isa),
                3 => routine::<Dots<3>>(isa),
                4 => routine::<Dots<4>>(isa),
                5 => routine::<Dots<5>>(isa),
                6 => routine::<Dots<6>>(isa),
                7 => routine::<Dots<7>>(isa),
                _ => routine::<Dots<8>>(isa),
            };
            // SAFETY: the caller's contract.
            unsafe { run(&part) };
        }
    }
}

/// `R` rows of A.
struct Dots<const R: usize>;

impl<const R: usize> Routine for Dots<R> {
    type Args = DotsArgs;

    /// # Safety
    /// The conditions of [`dots`] hold for `R` rows.
    #[inline(always)]
    unsafe fn run<V: Vector>(t: &DotsArgs) {
        // Never called: see the limit of rows above.
        if const { R > ROWS / 2 && V::LANES < 16 } {
            return;
        }
        // SAFETY: the contract of this function.
        unsafe {
            for start in (0..t.k).step_by(STEPS * V::LANES) {
                let mut j = 0;
                while j + COLUMNS <= t.n {
                    columns::<V, R, COLUMNS>(t, start, j);
                    j += COLUMNS;
                }
                while j < t.n {
                    columns::<V, R, 1>(t, start, j);
                    j += 1;
                }
            }
        }
    }
}

/// Products from `start` on, for `S` columns of C.
///
/// # Safety
/// The conditions of [`DotsArgs::run`] hold for `R` rows; the columns are inside of C.
#[inline(always)]
unsafe fn columns<V: Vector, const R: usize, const S: usize>(t: &DotsArgs, start: usize, j: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let zero = V::splat(0.0);
        let b = t.b.add(j * t.b_stride);
        let end = t.k.min(start + STEPS * V::LANES);
        let mut acc = for_rows!([zero, zero, zero]);
        macro_rules! step {
            ($p:expr, $load:expr) => {
                let b0 = $load(b.add($p));
                let b1 = if const { S > 1 } { $load(b.add(t.b_stride + $p)) } else { zero };
                let b2 = if const { S > 1 } { $load(b.add(2 * t.b_stride + $p)) } else { zero };
                each_row!(R, I => {
                    let a = $load(t.a.add(I * t.a_stride + $p));
                    acc[I][0] = a.mul_add(b0, acc[I][0]);
                    if const { S > 1 } {
                        acc[I][1] = a.mul_add(b1, acc[I][1]);
                        acc[I][2] = a.mul_add(b2, acc[I][2]);
                    }
                });
            };
        }
        let mut p = start;
        while p + V::LANES <= end {
            if const { S > 1 } {
                // Prefetches the next rows: hardware prefetchers do not know where these runs end and others begin.
                let next = b.wrapping_add(COLUMNS * t.b_stride + p);
                V::prefetch_far(next);
                V::prefetch_far(next.wrapping_add(t.b_stride));
                V::prefetch_far(next.wrapping_add(2 * t.b_stride));
            }
            step!(p, |p| V::load(p));
            p += V::LANES;
        }
        if p < end {
            let rest = end - p;
            step!(p, |p| V::load_first(p, rest));
        }
        each_row!(R, I => {
            let add = |s: usize, sum: V| {
                let c = t.c.add(I * t.c_strides.0 + (j + s) * t.c_strides.1);
                *c = if start == 0 { 0.0 } else { *c } + add_lanes(sum);
            };
            add(0, acc[I][0]);
            if const { S > 1 } {
                add(1, acc[I][1]);
                add(2, acc[I][2]);
            }
        });
    }
}
