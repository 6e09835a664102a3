//! The choice of a product's algorithm, and its split over threads.

use super::blocks::{K_BLOCK, Tiles, blocks, k_blocks, panel_width};
use super::direct::{Direct, is_crowded};
use super::matrix::{MatrixRef, Source};
use super::pack::{PanelArgs, panel, panels};
use super::tile::{ADDED, COLUMNS, ROWS, TileArgs, TileSet};
use crate::Isa;
use crate::scratch::Workspace;
use crate::threads::{self, Shared};
use crate::vector::MAX_LANES;

/// Maximum rows for which B is read in place, once, a few rows at a time.
pub(super) const SKINNY: usize = 16;

/// Rows of B that a skinny product reads at a time: full-width access to a few rows streams like a copy.
const SKINNY_K: usize = 64;

/// The same if rows are whole pages apart, so that all of them share the same few sets of the L1 cache. Measured: 16
/// and 64 are slower by a tenth.
const SKINNY_K_PAGES: usize = 32;

/// The distance at which a skinny product prefetches B along its rows: two panels. With this many rows no hardware
/// prefetcher follows them.
const SKINNY_AHEAD: usize = 64;

/// Columns of a skinny product at a time, so that the running sums stay in the L2 cache.
const SKINNY_N: usize = 4096;

/// Maximum columns for which A is read in place.
const NARROW: usize = 96;

/// Rows of a tile that reads A in place. Rows may be whole pages apart, and the L1 cache holds twelve such lines, for
/// which another thread of the core may compete. Eight rows are as fast as ten.
const NARROW_ROWS: usize = 8;

/// Blocks of k whose rows of B are packed at a time for such tiles: at most 1.5 MiB, in the L2 cache.
const NARROW_BLOCKS: usize = 13;

/// Number of tiles that must read a crowded panel of B to justify packing A and B, on several threads. On one thread
/// packing would cost a twentieth while the core runs nothing else.
const SHARED: usize = 3;

/// `m * n * k` below which a second thread is not faster: waking it costs microseconds.
pub(super) const PARALLEL: usize = 120 * 120 * 120;

/// The number of threads that share one product with `work` multiplications.
pub(super) fn threads_of(work: usize, threads: usize) -> usize {
    if work < PARALLEL { 1 } else { threads.min(work / (PARALLEL / 2)) }
}

/// Minimum row tiles per thread for which threads share one packed B.
const TOGETHER: usize = 4;

/// A product `C = A B`.
#[derive(Clone, Copy)]
pub(crate) struct Gemm {
    /// Rows of A and C.
    pub(crate) m: usize,
    /// Products in each element.
    pub(crate) k: usize,
    /// Columns of B and C.
    pub(crate) n: usize,
    /// A.
    pub(crate) a: MatrixRef,
    /// B.
    pub(crate) b: Source,
    /// C, rows contiguous.
    pub(crate) c: *mut f32,
    /// Distance between the rows of C.
    pub(crate) c_stride: usize,
}

/// The algorithm of a product. Every algorithm sums the same terms in the same order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Nothing is packed.
    Direct,
    /// Reads a few rows of B at a time in place.
    Skinny,
    /// Packs B and reads A in place.
    Narrow,
    /// A and B are packed.
    Packed,
}

impl Gemm {
    /// Computes the product with at most `threads` threads. The result does not depend on their number.
    ///
    /// # Safety
    /// A, B and C are as described; nothing else writes C, and it does not overlap A or B; the instruction set is
    /// available.
    #[inline]
    pub(crate) unsafe fn run(&self, isa: Isa, threads: usize) {
        if self.m == 0 || self.n == 0 {
            return;
        }
        match self.direct() {
            // SAFETY: the caller's contract; there are rows and columns.
            Some(direct) if threads <= 1 || self.m * self.n * self.k < PARALLEL => unsafe { direct.run(isa) },
            // SAFETY: the caller's contract.
            direct => unsafe { self.run_in_parts(isa, threads, direct.is_some()) },
        }
    }

    /// The product as a [`Direct`] one, if it suits.
    #[inline]
    fn direct(&self) -> Option<Direct> {
        let &Self { m, k, n, a, b, c, c_stride } = self;
        let Source::Matrix(b) = b else { return None };
        Some(Direct { m, k, n, a, b, c, c_stride }).filter(Direct::suits)
    }

    /// [`Gemm::run`] for products with at least one row and column.
    ///
    /// # Safety
    /// The conditions of [`Gemm::run`] hold.
    unsafe fn run_in_parts(&self, isa: Isa, threads: usize, direct: bool) {
        if self.k == 0 {
            // SAFETY: the rows of C are writable.
            return (0..self.m).for_each(|i| unsafe { self.c.add(i * self.c_stride).write_bytes(0, self.n) });
        }
        let set = TileSet::of(isa);
        let work = self.m.saturating_mul(self.n).saturating_mul(self.k);
        let threads = threads_of(work, threads);
        let way = self.way(threads, set.shape.rows, direct);
        // SAFETY: the caller's contract; parts are disjoint.
        unsafe {
            if threads <= 1 {
                return self.part(isa, set, way, 0, self.m, 0, self.n);
            }
            if way == Way::Packed && self.m >= TOGETHER * set.shape.rows * threads {
                return self.blocked(isa, set, threads, 0, self.n);
            }
            let c = Shared::new(self.c);
            let whole = *self;
            // If nothing is packed, smaller parts cost nothing, and a thread that wakes late finds less to do.
            let (parts, unit) = match way {
                Way::Direct => (2 * threads, set.shape.lanes),
                _ => (threads, set.shape.columns()),
            };
            if self.n >= self.m {
                let width = self.n.div_ceil(parts).next_multiple_of(unit);
                threads::for_each(self.n.div_ceil(width), threads, |part| {
                    let (j, part) = (part * width, Self { c: c.get(), ..whole });
                    part.part(isa, set, way, 0, part.m, j, width.min(part.n - j));
                });
            } else {
                let height = self.m.div_ceil(parts).next_multiple_of(set.shape.rows);
                threads::for_each(self.m.div_ceil(height), threads, |part| {
                    let (i, part) = (part * height, Self { c: c.get(), ..whole });
                    part.part(isa, set, way, i, height.min(part.m - i), 0, part.n);
                });
            }
        }
    }

    /// The algorithm for this many threads and tiles of this many rows; `direct` if the product suits [`Direct`].
    fn way(&self, threads: usize, rows: usize, direct: bool) -> Way {
        let (a, Source::Matrix(b)) = (self.a, self.b) else { return Way::Packed };
        let in_rows = b.column_stride == 1;
        let direct_a = a.row_stride == 1 || a.column_stride == 1;
        if !in_rows || !direct_a {
            Way::Packed
        } else if direct {
            let shared = threads > 1 && self.m > (SHARED - 1) * rows && is_crowded(self.k, b.row_stride);
            if shared { Way::Packed } else { Way::Direct }
        } else if self.m <= SKINNY {
            Way::Skinny
        } else if self.n <= NARROW && a.column_stride == 1 {
            Way::Narrow
        } else {
            Way::Packed
        }
    }

    /// Rows `i .. i + m` and columns `j .. j + n` of the product.
    ///
    /// # Safety
    /// The conditions of [`Gemm::run`] hold.
    unsafe fn part(&self, isa: Isa, set: &TileSet, way: Way, i: usize, m: usize, j: usize, n: usize) {
        let part = Self { m, n, a: self.a.at(i, 0), c: self.c.wrapping_add(i * self.c_stride + j), ..*self };
        // SAFETY: the caller's contract.
        unsafe {
            match (way, self.b) {
                (Way::Direct, Source::Matrix(b)) => {
                    let Self { k, a, c, c_stride, .. } = part;
                    Direct { m, k, n, a, b: b.at(0, j), c, c_stride }.run(isa);
                }
                (Way::Skinny, Source::Matrix(b)) => part.skinny(isa, set, b.at(0, j)),
                (Way::Narrow, Source::Matrix(b)) => part.narrow(isa, set, b.at(0, j)),
                _ => part.blocked(isa, set, 1, j, self.n),
            }
        }
    }

    /// With few columns a packed A is not worth its cost: each of its elements would be copied for only a few products.
    ///
    /// # Safety
    /// The conditions of [`Gemm::run`] hold; the rows of A are contiguous.
    unsafe fn narrow(&self, isa: Isa, set: &TileSet, b: MatrixRef) {
        let a = self.a;
        let shape = set.shape;
        let tiles = Tiles::new(self.m, shape.rows.min(NARROW_ROWS));
        let padded = self.n.next_multiple_of(shape.lanes);
        let mut workspace = Workspace::take(self.k.min(NARROW_BLOCKS * K_BLOCK) * padded);
        let packed = workspace.as_mut_ptr();
        for first in (0..k_blocks(self.k).count()).step_by(NARROW_BLOCKS) {
            let of_k = || k_blocks(self.k).skip(first).take(NARROW_BLOCKS);
            let start = of_k().next().map_or(0, |(p, _)| p);
            let place = |p: usize| packed.wrapping_add((p - start) * padded);
            // SAFETY: the caller's contract; the workspace holds these rows of B.
            unsafe {
                of_k().for_each(|(p, k)| panels(b, isa, p, k, 0, self.n, place(p)));
                for t in 0..tiles.count {
                    let (i, height) = tiles.at(t);
                    for (p, k) in of_k() {
                        for j in (0..self.n).step_by(shape.columns()) {
                            let width = (self.n - j).min(shape.columns());
                            let (b_stride, last) = panel_width(width, shape.lanes);
                            let kind = if p > 0 { ADDED } else { ROWS };
                            set.get(kind, height, width)(&TileArgs {
                                a: a.at(i, p).p,
                                a_stride: a.row_stride,
                                b: place(p).wrapping_add(j * k),
                                b_stride,
                                k,
                                c: self.c.add(i * self.c_stride + j),
                                c_stride: self.c_stride,
                                last,
                                plus: if p > 0 { self.c.add(i * self.c_stride + j) } else { std::ptr::null_mut() },
                                plus_stride: self.c_stride,
                                ..TileArgs::NOTHING
                            });
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// The conditions of [`Gemm::run`] hold.
    unsafe fn skinny(&self, isa: Isa, set: &TileSet, b: MatrixRef) {
        let shape = set.shape;
        let tiles = Tiles::new(self.m, shape.rows);
        let k_most = self.k.min(K_BLOCK);
        let n_most = self.n.min(SKINNY_N);
        let a_len = (self.m * k_most + MAX_LANES).next_multiple_of(16);
        let pages = b.row_stride.is_multiple_of(1024);
        let steps = if pages { SKINNY_K_PAGES } else { SKINNY_K };
        let edge_len = steps * shape.columns();
        let mut workspace = Workspace::take(a_len + edge_len + self.m * n_most);
        let a = workspace.as_mut_ptr();
        let edge = a.wrapping_add(a_len);
        let sums = edge.wrapping_add(edge_len);
        for (j0, n) in blocks(self.n, SKINNY_N, shape.columns()) {
            for (p0, k) in k_blocks(self.k) {
                // SAFETY: the caller's contract; the workspace holds a block of A, an edge and the running sums.
                unsafe {
                    self.pack_a(isa, &tiles, 0, tiles.count, p0, k, a);
                    // The chain of a block is stored in memory between steps: in C itself for the first block, in
                    // separate memory for later ones, whose sums are then added to C.
                    let first = p0 == 0;
                    let mut p = 0;
                    while p < k {
                        let step = (k - p).min(steps);
                        let ends = p + step == k;
                        let mut j = 0;
                        while j < n {
                            let width = (n - j).min(shape.columns());
                            let (padded, last) = panel_width(width, shape.lanes);
                            // With only a few steps, a tile takes little longer than its call.
                            let repeat = if tiles.count == 1 { ((n - j) / shape.columns()).max(1) } else { 1 };
                            let from = b.at(p0 + p, j0 + j);
                            let (mut b_at, mut b_stride) = (from.p, b.row_stride);
                            if last != shape.lanes && !shape.masked {
                                panel(
                                    isa,
                                    PanelArgs {
                                        from,
                                        long: step,
                                        short: width,
                                        width: padded,
                                        out: edge,
                                        slack: false,
                                    },
                                );
                                (b_at, b_stride) = (edge, padded);
                            }
                            for t in 0..tiles.count {
                                let (i, height) = tiles.at(t);
                                let c = self.c.add(i * self.c_stride + j0 + j);
                                let sum = sums.add(i * n_most + j);
                                let (running, running_stride) = if first { (c, self.c_stride) } else { (sum, n_most) };
                                let into_c = first || ends;
                                set.get(COLUMNS, height, width)(&TileArgs {
                                    a: a.add(i * k + p * height),
                                    a_stride: height,
                                    b: b_at,
                                    b_stride,
                                    k: step,
                                    init: if p == 0 { std::ptr::null() } else { running },
                                    init_stride: running_stride,
                                    c: if into_c { c } else { sum },
                                    c_stride: if into_c { self.c_stride } else { n_most },
                                    last,
                                    plus: if ends && !first { c } else { std::ptr::null_mut() },
                                    plus_stride: self.c_stride,
                                    ahead: SKINNY_AHEAD,
                                    repeat,
                                    ..TileArgs::NOTHING
                                });
                            }
                            j += repeat * width;
                        }
                        p += step;
                    }
                }
            }
        }
    }
}
