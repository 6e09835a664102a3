//! Blocking: the loops around the tile, and how they are split over threads.

use super::pack::{MatrixRef, PanelArgs, panel, panels};
use super::tile::{TileArgs, TileFn, TileShape, tile};
use super::workspace::Workspace;
use crate::Isa;
use crate::threads::{self, Shared};
use crate::vector::MAX_LANES;

/// Products in a chain at most: a block of k. At 256 a panel of B (32 KiB) stays in the L1 cache beside the panel of A
/// that streams past it; up to 320 one block is better than two short ones. Every path cuts k at the same places.
const K_BLOCK: usize = 320;

/// Rows of A packed at a time, in tiles of 14: 336 rows of a block of k are 344 KiB, a part of any L2 cache.
const M_BLOCK: usize = 336;

/// Columns of B packed at a time: 2 MiB of a block of k, in the L3 cache or the part of L2 that A leaves.
const N_BLOCK: usize = 2048;

/// Rows up to which B is read where it lies, once, a few rows at a time.
pub(super) const SKINNY: usize = 16;

/// Rows of B that a skinny product reads at a time: the whole width of so few rows streams like a copy does.
const SKINNY_K: usize = 64;

/// As many where rows lie whole pages apart, so that all of them share the same few sets of the L1 cache.
const SKINNY_K_PAGES: usize = 16;

/// How far ahead in its rows a skinny product asks for B: the next panels, while there are that many rows that no
/// prefetcher of the hardware follows them.
const SKINNY_AHEAD: usize = 256;

/// Columns of a skinny product at a time, so that the running sums stay in the L2 cache.
const SKINNY_N: usize = 4096;

/// `m * n * k` up to which nothing is packed: A and B lie in the caches, and copies would not pay.
const DIRECT: usize = 320 * 320 * 320;

/// `m * n * k` below which a second thread does not pay: it has to be woken, which costs microseconds.
pub(super) const PARALLEL: usize = 120 * 120 * 120;

/// Where B comes from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// A matrix in memory.
    Matrix(MatrixRef),
    /// Packed in advance: all blocks of k, each all panels of its rows.
    Packed(*const f32),
}

// SAFETY: the pointer is only read, by callers who vouch for it.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

/// A product `C = A B` or `C += A B`.
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
    /// Distance of the rows of C.
    pub(crate) c_stride: usize,
    /// Whether the product is added to C.
    pub(crate) add: bool,
}

/// How a product is computed: a function of its extents alone, so that parts of it agree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Nothing is packed.
    Direct,
    /// A few rows of B at a time, where they lie.
    Skinny,
    /// A and B are packed.
    Packed,
}

/// The blocks that `0..len` is cut into: as even as can be, none longer than `most`, all but the last a multiple of
/// `unit`.
fn blocks(len: usize, most: usize, unit: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = len.div_ceil(most).max(1);
    let size = len.div_ceil(count).next_multiple_of(unit).max(1);
    (0..len.div_ceil(size)).map(move |b| (b * size, size.min(len - b * size)))
}

/// The blocks of k: start and length.
pub(crate) fn k_blocks(k: usize) -> impl Iterator<Item = (usize, usize)> {
    blocks(k, K_BLOCK, 1)
}

/// The rows of tiles: as few as can be, their heights at most one apart.
#[derive(Clone, Copy)]
struct Tiles {
    count: usize,
    height: usize,
    taller: usize,
}

impl Tiles {
    fn new(rows: usize, most: usize) -> Self {
        let count = rows.div_ceil(most);
        Self { count, height: rows / count, taller: rows % count }
    }

    /// First row and height of a tile.
    fn at(&self, t: usize) -> (usize, usize) {
        (t * self.height + t.min(self.taller), self.height + usize::from(t < self.taller))
    }
}

/// The tile functions that one part needs: the two heights at one or two vectors.
struct TileFns {
    height: usize,
    fns: [[TileFn; 2]; 2],
}

impl TileFns {
    fn new(isa: Isa, shape: TileShape, tiles: &Tiles, n: usize, columns: bool) -> Self {
        // Small products take less time than a few look-ups: only those that will be called.
        let wide = if n > shape.lanes { 2 } else { 1 };
        let rest = n % shape.columns();
        let narrow = if rest > 0 && rest <= shape.lanes { 1 } else { wide };
        let row = |height| {
            let fast = tile(isa, height, wide, columns);
            [if narrow == wide { fast } else { tile(isa, height, narrow, columns) }, fast]
        };
        let low = row(tiles.height);
        Self { height: tiles.height, fns: [low, if tiles.taller > 0 { row(tiles.height + 1) } else { low }] }
    }

    fn get(&self, height: usize, columns: usize, lanes: usize) -> TileFn {
        self.fns[usize::from(height != self.height)][usize::from(columns > lanes)]
    }
}

/// The vectors of a panel of `columns`, in elements, and how many of the last are in use.
fn panel_width(columns: usize, lanes: usize) -> (usize, usize) {
    if columns > lanes { (2 * lanes, columns - lanes) } else { (lanes, columns) }
}

impl Gemm {
    /// Computes the product with at most `threads` threads. The result does not depend on how many.
    ///
    /// # Safety
    /// A, B and C are what they are said to be; C is written by nobody else and does not overlap A or B; the
    /// instruction set is there.
    pub(crate) unsafe fn run(&self, isa: Isa, threads: usize) {
        if self.m == 0 || self.n == 0 {
            return;
        }
        if self.k == 0 {
            if !self.add {
                // SAFETY: the rows of C are writable.
                (0..self.m).for_each(|i| unsafe { self.c.add(i * self.c_stride).write_bytes(0, self.n) });
            }
            return;
        }
        let shape = TileShape::of(isa);
        let way = self.way();
        let work = self.m.saturating_mul(self.n).saturating_mul(self.k);
        let threads = if work < PARALLEL { 1 } else { threads.min(work / (PARALLEL / 2)) };
        // SAFETY: the caller's contract; parts are disjoint.
        unsafe {
            if threads <= 1 {
                return self.part(isa, shape, way, 0, self.m, 0, self.n);
            }
            let c = Shared::new(self.c);
            let whole = *self;
            // Where nothing is packed, smaller parts cost nothing and a thread that wakes late finds less to do.
            let parts = if way == Way::Direct { 2 * threads } else { threads };
            if self.n >= self.m {
                let width = self.n.div_ceil(parts).next_multiple_of(shape.columns());
                threads::for_each(self.n.div_ceil(width), threads, |part| {
                    let (j, part) = (part * width, Self { c: c.get(), ..whole });
                    part.part(isa, shape, way, 0, part.m, j, width.min(part.n - j));
                });
            } else {
                let height = self.m.div_ceil(parts).next_multiple_of(shape.rows);
                threads::for_each(self.m.div_ceil(height), threads, |part| {
                    let (i, part) = (part * height, Self { c: c.get(), ..whole });
                    part.part(isa, shape, way, i, height.min(part.m - i), 0, part.n);
                });
            }
        }
    }

    fn way(&self) -> Way {
        let in_rows = match self.b {
            Source::Matrix(b) => b.column_stride == 1,
            Source::Packed(_) => return Way::Packed,
        };
        let direct_a = self.a.row_stride == 1 || self.a.column_stride == 1;
        if !in_rows || !direct_a {
            Way::Packed
        } else if self.m.saturating_mul(self.n).saturating_mul(self.k) <= DIRECT && self.k <= K_BLOCK {
            Way::Direct
        } else if self.m <= SKINNY {
            Way::Skinny
        } else {
            Way::Packed
        }
    }

    /// Rows `i .. i + m` and columns `j .. j + n` of the product.
    ///
    /// # Safety
    /// As [`Gemm::run`].
    unsafe fn part(&self, isa: Isa, shape: TileShape, way: Way, i: usize, m: usize, j: usize, n: usize) {
        let part = Self { m, n, a: self.a.at(i, 0), c: self.c.wrapping_add(i * self.c_stride + j), ..*self };
        // SAFETY: the caller's contract.
        unsafe {
            match (way, self.b) {
                (Way::Direct, Source::Matrix(b)) => part.direct(isa, shape, b.at(0, j)),
                (Way::Skinny, Source::Matrix(b)) => part.skinny(isa, shape, b.at(0, j)),
                _ => part.packed(isa, shape, j, self.n),
            }
        }
    }

    /// A as a tile reads it where it lies: whether by columns, and the stride.
    fn a_in_place(&self) -> (bool, usize) {
        if self.a.column_stride == 1 { (false, self.a.row_stride) } else { (true, self.a.column_stride) }
    }

    /// # Safety
    /// As [`Gemm::run`]; k is one block.
    unsafe fn direct(&self, isa: Isa, shape: TileShape, b: MatrixRef) {
        let (columns, a_stride) = self.a_in_place();
        let tiles = Tiles::new(self.m, shape.rows);
        let fns = TileFns::new(isa, shape, &tiles, self.n, columns);
        let mut edge = None;
        let mut j = 0;
        while j < self.n {
            let width = (self.n - j).min(shape.columns());
            let (padded, last) = panel_width(width, shape.lanes);
            let (mut b_at, mut b_stride) = (b.at(0, j).p, b.row_stride);
            // SAFETY: the caller's contract; the workspace holds a panel.
            unsafe {
                if last != shape.lanes && !shape.masked {
                    let p = edge.insert(Workspace::take(self.k * padded)).as_mut_ptr();
                    let from = b.at(0, j);
                    panel(isa, PanelArgs { from, long: self.k, short: width, width: padded, out: p, slack: false });
                    (b_at, b_stride) = (p, padded);
                }
                for t in 0..tiles.count {
                    let (i, height) = tiles.at(t);
                    fns.get(height, width, shape.lanes)(&TileArgs {
                        a: self.a.at(i, 0).p,
                        a_stride,
                        b: b_at,
                        b_stride,
                        k: self.k,
                        init: std::ptr::null(),
                        init_stride: 0,
                        c: self.c.add(i * self.c_stride + j),
                        c_stride: self.c_stride,
                        last,
                        add: self.add,
                        ahead: 0,
                    });
                }
            }
            j += width;
        }
    }

    /// # Safety
    /// As [`Gemm::run`].
    unsafe fn skinny(&self, isa: Isa, shape: TileShape, b: MatrixRef) {
        let tiles = Tiles::new(self.m, shape.rows);
        let fns = TileFns::new(isa, shape, &tiles, self.n, true);
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
                    // The chain of a block runs through memory from one step to the next: in C itself in the first
                    // block, in a place of its own in the later ones, whose sums are then added to C.
                    let first = p0 == 0 && !self.add;
                    let mut p = 0;
                    while p < k {
                        let step = (k - p).min(steps);
                        let ends = p + step == k;
                        let mut j = 0;
                        while j < n {
                            let width = (n - j).min(shape.columns());
                            let (padded, last) = panel_width(width, shape.lanes);
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
                                fns.get(height, width, shape.lanes)(&TileArgs {
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
                                    add: ends && !first,
                                    ahead: SKINNY_AHEAD,
                                });
                            }
                            j += width;
                        }
                        p += step;
                    }
                }
            }
        }
    }

    /// Packs tiles `t0 .. t1` of rows, columns `p0 .. p0 + k` of A.
    ///
    /// # Safety
    /// As [`Gemm::run`]; `out` is good for writing the rows times `k` and a vector more.
    unsafe fn pack_a(&self, isa: Isa, tiles: &Tiles, t0: usize, t1: usize, p0: usize, k: usize, out: *mut f32) {
        let (i0, _) = tiles.at(t0);
        for t in t0..t1 {
            let (i, height) = tiles.at(t);
            let from = self.a.at(i, p0).transposed();
            let out = out.wrapping_add((i - i0) * k);
            // SAFETY: the caller's contract.
            unsafe { panel(isa, PanelArgs { from, long: k, short: height, width: height, out, slack: true }) };
        }
    }

    /// Columns `column .. column + self.n` of a product whose B has `b_columns`.
    ///
    /// # Safety
    /// As [`Gemm::run`].
    unsafe fn packed(&self, isa: Isa, shape: TileShape, column: usize, b_columns: usize) {
        let tiles = Tiles::new(self.m, shape.rows);
        let fns = TileFns::new(isa, shape, &tiles, self.n, true);
        let (nr, lanes) = (shape.columns(), shape.lanes);
        let k_most = self.k.min(K_BLOCK);
        let m_most = self.m.min(M_BLOCK + shape.rows);
        let n_most = self.n.next_multiple_of(nr).min(N_BLOCK);
        let b_len = if let Source::Packed(_) = self.b { 0 } else { n_most * k_most };
        let mut workspace = Workspace::take(b_len + m_most * k_most + MAX_LANES);
        let b_block = workspace.as_mut_ptr();
        let a_block = b_block.wrapping_add(b_len);
        for (p0, k) in k_blocks(self.k) {
            let add = self.add || p0 > 0;
            let mut a_packed = None;
            for (j0, n) in blocks(self.n, N_BLOCK, nr) {
                // SAFETY: the caller's contract; the workspace holds a block of A and one of B.
                unsafe {
                    let b_block: *const f32 = match self.b {
                        Source::Packed(all) => {
                            // Before this block of k stand all panels of the rows before, every one a whole vector.
                            all.add(p0 * b_columns.next_multiple_of(lanes) + (column + j0) * k)
                        }
                        _ => {
                            panels(&self.b, isa, lanes, p0, k, column + j0, n, b_block);
                            b_block
                        }
                    };
                    for (t0, count) in blocks(tiles.count, M_BLOCK.div_ceil(shape.rows), 1) {
                        let (i0, _) = tiles.at(t0);
                        if a_packed != Some(t0) {
                            self.pack_a(isa, &tiles, t0, t0 + count, p0, k, a_block);
                            a_packed = Some(t0);
                        }
                        let mut j = 0;
                        while j < n {
                            let width = (n - j).min(nr);
                            let (b_stride, last) = panel_width(width, lanes);
                            for t in t0..t0 + count {
                                let (i, height) = tiles.at(t);
                                fns.get(height, width, lanes)(&TileArgs {
                                    a: a_block.add((i - i0) * k),
                                    a_stride: height,
                                    b: b_block.add(j * k),
                                    b_stride,
                                    k,
                                    init: std::ptr::null(),
                                    init_stride: 0,
                                    c: self.c.add(i * self.c_stride + j0 + j),
                                    c_stride: self.c_stride,
                                    last,
                                    add,
                                    ahead: 0,
                                });
                            }
                            j += width;
                        }
                    }
                }
            }
        }
    }
}

/// The length of a `k * n` matrix packed in advance.
pub(super) fn packed_len(shape: TileShape, k: usize, n: usize) -> usize {
    k * n.next_multiple_of(shape.lanes)
}

/// Packs a whole `k * n` matrix in advance, as [`Source::Packed`] wants it.
///
/// # Safety
/// As [`MatrixRef::pack`]; `out` is good for writing [`packed_len`].
pub(super) unsafe fn pack_all(isa: Isa, b: MatrixRef, k: usize, n: usize, out: *mut f32) {
    let shape = TileShape::of(isa);
    for (p0, block) in k_blocks(k) {
        // SAFETY: the caller's contract.
        unsafe {
            panels(&Source::Matrix(b), isa, shape.lanes, p0, block, 0, n, out.add(p0 * n.next_multiple_of(shape.lanes)))
        };
    }
}
