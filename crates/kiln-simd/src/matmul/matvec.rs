//! The product of a matrix and a vector, at the speed at which the matrix is read.

use std::mem::MaybeUninit;

use super::blocks::k_blocks;
use crate::Isa;
use crate::threads::{self, Shared};
use crate::vector::{Kernel, MAX_LANES, Stored, Vector, dispatch};

/// Rows that are multiplied with the same part of x while it is in a register.
const ROWS: usize = 4;

/// Chains of a row in a group of [`ROWS`]: eight in total, as many as the latency of multiply-add needs.
const CHAINS: usize = 2;

/// Steps of a chain before it is added to the sum.
const STEPS: usize = 128;

/// Columns whose sums stay in the L1 cache while rows stream past them. More columns mean longer contiguous reads.
const COLUMNS: usize = 4096;

/// Rows that are added to the sums at once.
const AT_ONCE: usize = 8;

/// Elements of a matrix from which the rows of such a group are prefetched: hardware prefetchers lag behind this many
/// streams from far caches and from memory. From nearer caches, the prefetches alone would take a tenth more time.
const FAR: usize = 2 * 1024 * 1024;

/// Bytes of a matrix from which rows of inner products are prefetched: 128 MiB, which are read from memory. On an
/// AVX-512 Xeon 512 MiB take 0.91 to 0.95 of the time; data in the L3 cache would take 1.04 of it.
const VAST: usize = 128 * 1024 * 1024;

/// The same for elements of 16 bits: those of a matrix beyond the second-level cache, because matrices of that type are the weights of
/// a model, whose others have replaced them in farther caches.
const FAR_HALVES: usize = 2 * 1024 * 1024;

/// The number of elements to prefetch ahead in a row. Rows of 16 bits are short: there it is the same position in the next rows.
const AHEAD: usize = 512;

/// Elements of a matrix below which one thread is faster.
const PARALLEL: usize = 128 * 1024;

/// A row-major matrix of `rows * columns`, a vector and the result.
#[derive(Clone, Copy)]
pub(super) struct Matvec<E = f32> {
    /// Row-major, rows contiguous.
    pub(super) a: *const E,
    /// Rows of A.
    pub(super) rows: usize,
    /// Columns of A.
    pub(super) columns: usize,
    /// The vector.
    pub(super) x: *const f32,
    /// The result.
    pub(super) y: *mut f32,
}

// SAFETY: parts of the work read A and x and write elements of y that no other part does.
unsafe impl<E> Sync for Matvec<E> {}

impl<E: Stored> Matvec<E> {
    /// `y = A x`. The result does not depend on the number of threads.
    ///
    /// # Safety
    /// A and x are readable; y is writable, accessed by nobody else and disjoint from both; the instruction set is
    /// available.
    pub(super) unsafe fn run(&self, isa: Isa, threads: usize) {
        self.in_parts(self.rows, threads, ROWS, |start, len, y| {
            let part = Matvec { a: self.a.wrapping_add(start * self.columns), rows: len, y, ..*self };
            // SAFETY: the caller's contract; parts are disjoint.
            unsafe {
                let far = if size_of::<E>() == 2 { FAR_HALVES } else { VAST };
                if self.rows.saturating_mul(self.columns).saturating_mul(size_of::<E>()) >= far {
                    dispatch(isa, Rows::<E, true>(part));
                } else {
                    dispatch(isa, Rows::<E, false>(part));
                }
            }
        });
    }

    /// Splits the results, each with the work of the whole matrix divided by their number.
    fn in_parts(&self, results: usize, threads: usize, unit: usize, run: impl Fn(usize, usize, *mut f32) + Sync) {
        let threads = if self.rows.saturating_mul(self.columns) < PARALLEL { 1 } else { threads };
        let part = results.div_ceil(threads).next_multiple_of(unit).max(1);
        let y = Shared::new(self.y);
        threads::for_each(results.div_ceil(part), threads, |i| {
            let start = i * part;
            run(start, part.min(results - start), y.get().wrapping_add(start));
        });
    }
}

impl Matvec {
    /// `y = Aᵀ x`, otherwise as [`Matvec::run`].
    ///
    /// # Safety
    /// The conditions of [`Matvec::run`].
    pub(super) unsafe fn run_transposed(&self, isa: Isa, threads: usize) {
        let whole = *self;
        self.in_parts(self.columns, threads, 64, |start, len, y| {
            let whole = &whole; // the whole struct, which is Sync, not its fields
            let part = Matvec { a: whole.a.wrapping_add(start), y, ..*whole };
            // SAFETY: the caller's contract; parts are disjoint.
            unsafe { dispatch(isa, Columns { part, width: len }) };
        });
    }
}

/// `y = A x`: inner products of the rows. `ASK` enables prefetching.
struct Rows<E, const ASK: bool>(Matvec<E>);

impl<E: Stored, const ASK: bool> Kernel for Rows<E, ASK> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let m = self.0;
        let mut i = 0;
        // SAFETY: the contract of `Matvec::run`.
        unsafe {
            while i + ROWS <= m.rows {
                let a = m.a.add(i * m.columns);
                inner::<V, E, ROWS, CHAINS, ASK>(a, m.columns, m.columns, m.x, m.y.add(i));
                i += ROWS;
            }
            while i < m.rows {
                inner::<V, E, 1, { ROWS * CHAINS }, false>(
                    m.a.add(i * m.columns),
                    m.columns,
                    m.columns,
                    m.x,
                    m.y.add(i),
                );
                i += 1;
            }
        }
    }
}

/// Inner products of `R` rows, `stride` apart, and x, each in `U` chains of vectors that are summed at intervals; `ASK`
/// enables prefetching of the rows.
///
/// # Safety
/// `n` elements of every row and of x are readable, `R` of y writable; the instruction set is available.
#[inline(always)]
unsafe fn inner<V: Vector, E: Stored, const R: usize, const U: usize, const ASK: bool>(
    a: *const E,
    stride: usize,
    n: usize,
    x: *const f32,
    y: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut totals = [0.0f32; R];
        let step = U * V::LANES;
        let mut start = 0;
        while start < n {
            let end = n.min(start + STEPS * step);
            let mut acc = [[V::splat(0.0); U]; R];
            let mut p = start;
            while p + step <= end {
                for u in 0..U {
                    let x = V::load(x.add(p + u * V::LANES));
                    for r in 0..R {
                        let row = a.add(r * stride + p + u * V::LANES);
                        if const { ASK } {
                            let ahead = if size_of::<E>() == 2 { R * stride } else { AHEAD };
                            V::prefetch_far(row.wrapping_add(ahead).cast());
                        }
                        acc[r][u] = E::load::<V>(row).mul_add(x, acc[r][u]);
                    }
                }
                p += step;
            }
            while p < end {
                let len = V::LANES.min(end - p);
                let x = V::load_first(x.add(p), len);
                for r in 0..R {
                    acc[r][0] = E::load_first::<V>(a.add(r * stride + p), len).mul_add(x, acc[r][0]);
                }
                p += V::LANES;
            }
            for r in 0..R {
                let mut sum = acc[r][0];
                for u in 1..U {
                    sum = sum + acc[r][u];
                }
                totals[r] += add_lanes(sum);
            }
            start = end;
        }
        for r in 0..R {
            *y.add(r) = totals[r];
        }
    }
}

/// The sum of the lanes, folded by halves.
#[inline(always)]
pub(super) fn add_lanes<V: Vector>(v: V) -> f32 {
    let mut lanes = [0.0f32; MAX_LANES];
    // SAFETY: no vector has more than MAX_LANES lanes.
    unsafe { v.store(lanes.as_mut_ptr()) };
    let mut half = V::LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `y = Aᵀ x`: the sum of the rows of A, each times an element of x, for `width` columns.
struct Columns {
    part: Matvec,
    width: usize,
}

impl Kernel for Columns {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let m = self.part;
        // Not filled: that takes longer than a small product.
        let mut apart = [MaybeUninit::<f32>::uninit(); COLUMNS];
        let mut j = 0;
        // SAFETY: the contract of `Matvec::run`.
        unsafe {
            if m.rows == 0 {
                m.y.write_bytes(0, self.width);
            }
            while j < self.width {
                let width = COLUMNS.min(self.width - j);
                for (p0, k) in k_blocks(m.rows) {
                    // The sums of the first block are in y itself, those of later blocks in separate memory, which the first rows
                    // fill.
                    let sums = if p0 == 0 { m.y.add(j) } else { apart.as_mut_ptr().cast() };
                    let mut p = 0;
                    while p < k {
                        let a = m.a.add((p0 + p) * m.columns + j);
                        let x = m.x.add(p0 + p);
                        if k - p >= AT_ONCE {
                            if m.rows.saturating_mul(m.columns) >= FAR {
                                add_rows::<V, AT_ONCE, true>(a, m.columns, x, sums, width, p == 0);
                            } else {
                                add_rows::<V, AT_ONCE, false>(a, m.columns, x, sums, width, p == 0);
                            }
                            p += AT_ONCE;
                        } else if k - p >= 2 {
                            add_rows::<V, 2, false>(a, m.columns, x, sums, width, p == 0);
                            p += 2;
                        } else {
                            add_rows::<V, 1, false>(a, m.columns, x, sums, width, p == 0);
                            p += 1;
                        }
                    }
                    if p0 > 0 {
                        let one = 1.0;
                        add_rows::<V, 1, false>(sums, 0, &one, m.y.add(j), width, false);
                    }
                }
                j += width;
            }
        }
    }
}

/// Adds `R` rows, `stride` apart, each times its element of x, to the sums, which start at zero if `first`. `ASK`
/// enables prefetching.
///
/// # Safety
/// `width` elements of the rows and `R` of x are readable, `width` sums writable; the instruction set is available.
#[inline(always)]
unsafe fn add_rows<V: Vector, const R: usize, const ASK: bool>(
    a: *const f32,
    stride: usize,
    x: *const f32,
    sums: *mut f32,
    width: usize,
    first: bool,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut factors = [V::splat(0.0); R];
        for (r, factor) in factors.iter_mut().enumerate() {
            *factor = V::splat(*x.add(r));
        }
        let mut j = 0;
        while j + V::LANES <= width {
            let mut sum = if first { V::splat(0.0) } else { V::load(sums.add(j)) };
            for r in 0..R {
                let row = a.add(r * stride + j);
                if ASK {
                    V::prefetch_far(row.wrapping_add(AHEAD).cast());
                }
                sum = factors[r].mul_add(V::load(row), sum);
            }
            sum.store(sums.add(j));
            j += V::LANES;
        }
        let rest = width - j;
        if rest > 0 {
            let mut sum = if first { V::splat(0.0) } else { V::load_first(sums.add(j), rest) };
            for r in 0..R {
                sum = factors[r].mul_add(V::load_first(a.add(r * stride + j), rest), sum);
            }
            sum.store_first(sums.add(j), rest);
        }
    }
}
