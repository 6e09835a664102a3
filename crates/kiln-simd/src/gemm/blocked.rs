//! The packed way: loops over blocks that fit the caches, around tiles that fit the registers.
//!
//! Blocks of k and of columns follow one another. In each, the threads take blocks of rows, pack these of A for themselves,
//! and run the tiles. A B whose rows are contiguous is packed by every thread for itself: its first tile of a panel stores
//! what it loads anyway, and what other threads have packed would have to come from far caches as well. Any other B has to be
//! turned, which takes time; all threads do it together, a few panels at a time, and have room for two blocks of it.
//!
//! Counters alone keep the threads in step: who comes late finds less to do, nobody waits for a thread that has not begun,
//! and who finds no more rows goes on with the next block while others still work on this one. Only the end of the product
//! finds them together.
//!
//! Packing reads matrices that lie in far caches or in memory. So that it finds them near, tiles ask for what will be packed
//! next while they compute.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::blocks::{K_BLOCK, Tiles, blocks, k_blocks, panel_width};
use super::driver::Gemm;
use super::matrix::{MatrixRef, Source};
use super::pack::{self, PanelArgs};
use super::tile::{Ask, PACKING, PANELS, TURN, TileArgs, TileSet, last_turns};
use crate::Isa;
use crate::scratch::Workspace;
use crate::threads::{self, Shared};
use crate::vector::MAX_LANES;

/// Rows of A packed at a time, in tiles of 14: 336 rows of a block of k are 344 KiB, a part of any L2 cache.
const M_BLOCK: usize = 336;

/// Columns of B packed at a time: 2 MiB of a block of k, in the L3 cache or the part of L2 that A leaves.
const N_BLOCK: usize = 2048;

/// Panels of B that a thread packs at a time: 512 bytes of a row at 16 lanes.
const PANELS_AT_ONCE: usize = 4;

/// Something of which every block has as many pieces, taken or finished one by one.
#[derive(Default)]
struct Pieces(AtomicUsize);

impl Pieces {
    /// The next piece, of those before `end`.
    fn claim(&self, end: usize) -> Option<usize> {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < end).then_some(n + 1)).ok()
    }

    fn finish(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Waits until `end` pieces are finished. Those not yet finished are in the hands of threads that run.
    fn wait(&self, end: usize) {
        threads::wait_until(|| self.0.load(Ordering::Acquire) >= end);
    }
}

/// A block of rows: its first tile and the end, and how often it is done.
struct Rows {
    tiles: Range<usize>,
    done: Pieces,
}

impl Rows {
    /// The rows of `tiles` tiles, in blocks of at most [`M_BLOCK`]: of even size for one thread, for several ever smaller
    /// ones, so that they end together even where one is slower than the others.
    fn cut(tiles: usize, rows_of_tile: usize, threads: usize) -> Vec<Self> {
        let most = M_BLOCK.div_ceil(rows_of_tile);
        let even = tiles.div_ceil(tiles.div_ceil(most));
        let mut blocks = Vec::new();
        let mut start = 0;
        while start < tiles {
            let left = tiles - start;
            let size = if threads == 1 { even } else { left.div_ceil(2 * threads).clamp(2, most) };
            let end = tiles.min(start + size);
            blocks.push(Self { tiles: start..end, done: Pieces::default() });
            start = end;
        }
        blocks
    }
}

/// What a product and its blocks have in common.
struct Blocked<'a> {
    gemm: &'a Gemm,
    isa: Isa,
    set: &'a TileSet,
    /// The first column, and the columns of the B of which this product has some.
    column: usize,
    b_columns: usize,
    tiles: Tiles,
    /// Blocks of rows.
    rows: Vec<Rows>,
    threads: usize,
    /// Whether every thread packs B for itself.
    by_each: bool,
}

// SAFETY: the product is one that its caller vouches for; blocks are disjoint.
unsafe impl Sync for Blocked<'_> {}

/// A block of k and of columns.
#[derive(Debug, Clone, Copy)]
struct Block {
    number: usize,
    p0: usize,
    k: usize,
    j0: usize,
    n: usize,
}

impl Gemm {
    /// Columns `column .. column + self.n` of a product whose B has `b_columns`.
    ///
    /// # Safety
    /// As [`Gemm::run`].
    pub(super) unsafe fn blocked(&self, isa: Isa, set: &TileSet, threads: usize, column: usize, b_columns: usize) {
        let nr = set.shape.columns();
        let tiles = Tiles::new(self.m, set.shape.rows);
        let rows = Rows::cut(tiles.count, set.shape.rows, threads);
        let k_most = self.k.min(K_BLOCK);
        let in_advance = matches!(self.b, Source::Packed(_));
        let alone = threads == 1;
        // Where all rows are one block, a panel of B is read this once: copies of a few at a time stay in near caches.
        let passing = alone && rows.len() == 1 && !in_advance;
        let n_most = self.n.next_multiple_of(nr).min(if passing { PANELS_AT_ONCE * nr } else { N_BLOCK });
        let count = k_blocks(self.k).count() * blocks(self.n, n_most, nr).count();
        let b_len = n_most * k_most;
        let by_each = alone || matches!(self.b, Source::Matrix(b) if b.column_stride == 1);
        let together = !by_each && !in_advance;
        let mut shared = Workspace::take(if together { count.min(2) * b_len } else { 0 });
        let shared = Shared::new(shared.as_mut_ptr());
        let a_len = rows.iter().map(|r| r.tiles.len()).max().unwrap_or(0) * set.shape.rows * k_most + MAX_LANES;
        let this = Blocked { gemm: self, isa, set, column, b_columns, tiles, rows, threads, by_each };
        // Pieces of B in a block; the last block of columns may have fewer, then some are empty.
        let pieces = if together { n_most.div_ceil(PANELS_AT_ONCE * nr) } else { 0 };
        let [packing, packed, taken] = &<[Pieces; 3]>::default();
        let (k, n) = (self.k, self.n);
        threads::for_each(threads, threads, |_| {
            let this = &this; // the whole of it, which is Sync, not its fields
            let mut a_space = Workspace::take(a_len);
            let a_block = a_space.as_mut_ptr();
            let mut b_space = Workspace::take(if by_each && !in_advance { b_len } else { 0 });
            let own_b = b_space.as_mut_ptr();
            let (mut in_a, mut in_b) = (None, None);
            let of_columns = || blocks(n, n_most, nr);
            let all = k_blocks(k).flat_map(|(p0, k)| of_columns().map(move |(j0, n)| (p0, k, j0, n)));
            let all = all.enumerate().map(|(number, (p0, k, j0, n))| Block { number, p0, k, j0, n });
            let mut all = all.peekable();
            while let Some(block) = all.next() {
                let next = all.peek().copied();
                let (number, passed) = (block.number, block.number + 1);
                let b_block = if together { shared.get().wrapping_add(number % 2 * b_len) } else { own_b };
                // SAFETY: the caller's contract. Pieces of B and blocks of rows are written by the thread that took
                // them; B is read once it is whole, and written again once all rows of the block before the last are
                // done; rows are taken once they are done in the block before.
                unsafe {
                    while let Some(piece) = packing.claim(passed * pieces) {
                        this.rows.iter().for_each(|rows| rows.done.wait(number.saturating_sub(1)));
                        this.pack_b(block, piece % pieces * PANELS_AT_ONCE * nr, PANELS_AT_ONCE, b_block);
                        packed.finish();
                    }
                    packed.wait(passed * pieces);
                    while let Some(rows) = taken.claim(passed * this.rows.len()) {
                        let rows = rows % this.rows.len();
                        this.rows[rows].done.wait(number);
                        let has = in_a.replace((block.p0, rows)) == Some((block.p0, rows));
                        let to_pack = by_each && in_b.replace(number) != Some(number);
                        this.rows(block, next, rows, (a_block, has), (b_block, to_pack));
                        this.rows[rows].done.finish();
                    }
                }
            }
        });
    }

    /// Packs tiles `t0 .. t1` of rows, columns `p0 .. p0 + k` of A.
    ///
    /// # Safety
    /// As [`Gemm::run`]; `out` is good for writing the rows times `k` and a vector more.
    pub(super) unsafe fn pack_a(
        &self,
        isa: Isa,
        tiles: &Tiles,
        t0: usize,
        t1: usize,
        p0: usize,
        k: usize,
        out: *mut f32,
    ) {
        let (i0, _) = tiles.at(t0);
        for t in t0..t1 {
            let (i, height) = tiles.at(t);
            let from = self.a.at(i, p0).transposed();
            let out = out.wrapping_add((i - i0) * k);
            // SAFETY: the caller's contract.
            unsafe { pack::panel(isa, PanelArgs { from, long: k, short: height, width: height, out, slack: true }) };
        }
    }
}

impl Blocked<'_> {
    /// Packs some panels of a block of B, from column `start` of it, where there are any.
    ///
    /// # Safety
    /// As [`Gemm::run`]; the panels are the caller's.
    unsafe fn pack_b(&self, block: Block, start: usize, panels: usize, b_block: *mut f32) {
        let Source::Matrix(b) = self.gemm.b else { return };
        if start < block.n {
            let out = b_block.wrapping_add(start * block.k);
            let columns = (panels * self.set.shape.columns()).min(block.n - start);
            // SAFETY: the caller's contract; the memory holds the whole block.
            unsafe { pack::panels(b, self.isa, block.p0, block.k, self.column + block.j0 + start, columns, out) };
        }
    }

    /// A block of rows times a block of B.
    ///
    /// # Safety
    /// As [`Gemm::run`]; `a_block` has room for a block of rows, and has it where `packed`; `own_b` has the block of B, or
    /// room for it where it is `to_pack`.
    unsafe fn rows(
        &self,
        block: Block,
        next: Option<Block>,
        rows: usize,
        (a_block, packed): (*mut f32, bool),
        (own_b, to_pack): (*mut f32, bool),
    ) {
        let Block { p0, k, j0, n, .. } = block;
        let Self { gemm, set, tiles, .. } = self;
        let (nr, lanes) = (set.shape.columns(), set.shape.lanes);
        let Range { start: t0, end: t1 } = self.rows[rows].tiles;
        let b_block = match gemm.b {
            // Before this block of k stand all panels of the rows before, every one a whole vector.
            Source::Packed(all) => {
                all.wrapping_add(p0 * self.b_columns.next_multiple_of(lanes) + (self.column + j0) * k)
            }
            Source::Matrix(_) => own_b.cast_const(),
        };
        let asks = Asks::new(self, block, next, rows, to_pack);
        // SAFETY: the caller's contract.
        unsafe {
            if !packed {
                gemm.pack_a(self.isa, tiles, t0, t1, p0, k, a_block);
            }
            let i0 = tiles.start(t0);
            for j in (0..n).step_by(nr) {
                let width = (n - j).min(nr);
                let (b_width, last) = panel_width(width, lanes);
                let panel = b_block.wrapping_add(j * k);
                let packing = match gemm.b {
                    Source::Matrix(b) if to_pack => {
                        let whole = b.column_stride == 1 && width == nr;
                        if !whole {
                            self.pack_b(block, j, 1, own_b);
                        }
                        whole.then(|| b.at(p0, self.column + j0 + j))
                    }
                    _ => None,
                };
                for t in t0..t1 {
                    let (i, height) = tiles.at(t);
                    let (kind, b, b_stride) = match packing {
                        Some(from) if t == t0 => (PACKING, from.p, from.row_stride),
                        _ => (PANELS, panel, b_width),
                    };
                    set.get(kind, height, width)(&TileArgs {
                        a: a_block.wrapping_add((i - i0) * k),
                        a_stride: height,
                        b,
                        b_stride,
                        k,
                        init: std::ptr::null(),
                        init_stride: 0,
                        c: gemm.c.add(i * gemm.c_stride + j0 + j),
                        c_stride: gemm.c_stride,
                        last,
                        add: p0 > 0,
                        ahead: 0,
                        repeat: 1,
                        asks: [asks.of_b(j, t - t0, b_block), asks.of_a(j, t - t0)]
                            .map(|ask| ask.unwrap_or(Ask::nothing(panel))),
                        panel: panel.cast_mut(),
                    });
                }
            }
        }
    }
}

/// What the tiles of a block of rows ask for: A of the rows that come next, and B of a later panel, which a thread that
/// packs for itself has yet to pack when it comes by for the first time.
struct Asks {
    /// Rows that a tile can ask for.
    turns: usize,
    nr: usize,
    tiles: usize,
    columns: usize,
    k: usize,
    /// Row 0 of B where the panels stand that are packed next, and the number of columns from there.
    to_pack: Option<(MatrixRef, usize)>,
    /// As above, in the next block, when this one has no more.
    to_pack_then: Option<(MatrixRef, usize)>,
    /// A where the rows stand that are packed next, and their extents.
    a: Option<(MatrixRef, usize, usize)>,
}

impl Asks {
    fn new(of: &Blocked<'_>, block: Block, next: Option<Block>, rows: usize, to_pack: bool) -> Self {
        let row_blocks = of.rows.len();
        let turns = (block.k / TURN).saturating_sub(last_turns(of.tiles.height + 1));
        // The last rows that this thread will probably take.
        let ends = rows + of.threads >= row_blocks;
        let b = match of.gemm.b {
            Source::Matrix(b) if b.column_stride == 1 && of.by_each => Some(b),
            _ => None,
        };
        let there = |block: Block| b.map(|b| (b.at(block.p0, of.column + block.j0), block.n));
        // The rows that this thread will probably take.
        let then = match rows + of.threads {
            r if r < row_blocks => Some((block, r)),
            r => next.map(|block| (block, (r - row_blocks).min(row_blocks - 1))),
        };
        let other = |then: &(Block, usize)| then.0.p0 != block.p0 || then.1 != rows;
        let a = then.filter(other).filter(|_| of.gemm.a.column_stride == 1).map(|(block, r)| {
            let Range { start, end } = of.rows[r].tiles;
            let (first, end) = (of.tiles.start(start), of.tiles.start(end));
            (of.gemm.a.at(first, block.p0), end - first, block.k)
        });
        Self {
            turns,
            nr: of.set.shape.columns(),
            tiles: of.rows[rows].tiles.len(),
            columns: block.n,
            k: block.k,
            to_pack: there(block).filter(|_| to_pack),
            to_pack_then: next.and_then(there).filter(|_| ends),
            a,
        }
    }

    /// The part of a tile, the `t`th of those of panel `j`, in asking for B.
    fn of_b(&self, j: usize, t: usize, packed: *const f32) -> Option<Ask> {
        let row = t * self.turns;
        if row >= self.k {
            return None;
        }
        let later = j + PANELS_AT_ONCE * self.nr;
        let place = match (self.to_pack, self.to_pack_then) {
            (Some((b, n)), _) if later < n => Some((b, later)),
            (_, Some((b, n))) if later >= self.columns => {
                Some((b, later.saturating_sub(self.columns.next_multiple_of(self.nr)))).filter(|&(_, j)| j < n)
            }
            _ => None,
        };
        match place {
            Some((b, j)) => Some(Ask { p: b.at(row, j).p, stride: b.row_stride }),
            None if j + self.nr < self.columns => {
                Some(Ask { p: packed.wrapping_add((j + self.nr) * self.k + row * self.nr), stride: self.nr })
            }
            None => None,
        }
    }

    /// The part of a tile, the `t`th of those of panel `j`, in asking for A: some rows of 32 elements, such that the last
    /// tiles ask for the last.
    fn of_a(&self, j: usize, t: usize) -> Option<Ask> {
        let (a, rows, k) = self.a.filter(|_| self.turns > 0)?;
        let groups = rows.div_ceil(self.turns);
        let all = self.columns.div_ceil(self.nr) * self.tiles;
        let place = (j / self.nr * self.tiles + t + groups * k.div_ceil(32)).checked_sub(all)?;
        Some(Ask { p: a.at(place % groups * self.turns, place / groups * 32).p, stride: a.row_stride })
    }
}
