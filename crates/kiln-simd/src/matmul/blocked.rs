//! The packed algorithm: loops over blocks that fit the caches, around tiles that fit the registers.
//!
//! Blocks of columns and of k, a few of k at a time, follow one another. In each, the threads take blocks of rows, and for each
//! block of k pack these of A for themselves and run the tiles. Between blocks of k the sums stay in a place of their own in
//! the L2 cache, tile after tile: C would pass through the caches once for each, and where its rows stand a power of two
//! apart, a block of it shares so few sets that no cache holds it.
//!
//! A B whose rows are contiguous is packed by every thread for itself: its first tile of a panel stores what it loads anyway,
//! and what other threads have packed would have to come from far caches as well. Any other B has to be turned, which takes
//! time; all threads do it together, a few panels at a time, and have room for two blocks of it.
//!
//! Counters alone keep the threads in step: who comes late finds less to do, nobody waits for a thread that has not begun,
//! and who finds no more rows goes on with the next block while others still work on this one. Only the end of the product
//! finds them together.
//!
//! Packing reads matrices that lie in far caches or in memory. So that it finds them near, tiles ask for what will be packed
//! next while they compute.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::blocks::{Tiles, panel_width};
use super::cut::{Block, Cut, PANELS_AT_ONCE, Step};
use super::driver::Gemm;
use super::matrix::{MatrixRef, Source};
use super::pack::{self, PanelArgs};
use super::tile::{Ask, PACKING, PANELS, TURN, TileArgs, TileSet, last_turns};
use crate::Isa;
use crate::scratch::Workspace;
use crate::threads::{self, Shared};
use crate::vector::MAX_LANES;
use crate::wait::wait_until;

/// Counts claimed and finished pieces over all blocks, which have equal numbers of pieces.
#[derive(Default)]
struct Pieces(AtomicUsize);

impl Pieces {
    /// Claims the next piece before `end`.
    fn claim(&self, end: usize) -> Option<usize> {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < end).then_some(n + 1)).ok()
    }

    fn finish(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Waits until `end` pieces are finished. Running threads have claimed the unfinished ones.
    fn wait(&self, end: usize) {
        wait_until(|| self.0.load(Ordering::Acquire) >= end);
    }
}

/// A block of rows: its first tile, the end, and how often it was computed.
struct Rows {
    tiles: Range<usize>,
    done: Pieces,
}

impl Rows {
    /// Divides the rows of `tiles` tiles into blocks of at most `most`: equal ones for one thread, ever smaller ones
    /// for several, so that they end together even if one is slower than the others.
    fn cut(tiles: usize, most: usize, threads: usize) -> Vec<Self> {
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

/// Data that the blocks of a product share.
struct Blocked<'a> {
    gemm: &'a Gemm,
    isa: Isa,
    set: &'a TileSet,
    /// The first column in B, and the number of columns of the whole B.
    column: usize,
    b_columns: usize,
    tiles: Tiles,
    /// Blocks of rows.
    rows: Vec<Rows>,
}

// SAFETY: the product is one that its caller vouches for; blocks are disjoint.
unsafe impl Sync for Blocked<'_> {}

/// The memory of a thread.
struct Space {
    /// A packed block of rows of A.
    a: *mut f32,
    /// The start of k and the block of rows that it contains.
    in_a: Option<(usize, usize)>,
    /// A packed block of B.
    b: *mut f32,
    /// Sums of a block of rows and columns, in panels like B.
    sums: *mut f32,
}

impl Gemm {
    /// Columns `column .. column + self.n` of a product whose B has `b_columns`.
    ///
    /// # Safety
    /// The conditions of [`Gemm::run`] hold.
    pub(super) unsafe fn blocked(&self, isa: Isa, set: &TileSet, threads: usize, column: usize, b_columns: usize) {
        let nr = set.shape.columns();
        let tiles = Tiles::new(self.m, set.shape.rows);
        let in_advance = matches!(self.b, Source::Packed(_));
        let by_each = threads == 1 || matches!(self.b, Source::Matrix(b) if b.column_stride == 1);
        let together = !by_each && !in_advance;
        let cut = Cut::new(self, nr, threads, by_each);
        let rows = Rows::cut(tiles.count, cut.rows / set.shape.rows, threads);
        let rows_most = rows.iter().map(|r| r.tiles.len()).max().unwrap_or(0) * set.shape.rows;
        let this = Blocked { gemm: self, isa, set, column, b_columns, tiles, rows };
        let mut shared = Workspace::take(if together { cut.blocks().count().min(2) * cut.b_len() } else { 0 });
        let shared = Shared::new(shared.as_mut_ptr());
        // Pieces of B in a block; in a smaller last block of columns some are empty.
        let pieces = if together { cut.columns.div_ceil(PANELS_AT_ONCE * nr) } else { 0 };
        let [packing, packed, taken] = &<[Pieces; 3]>::default();
        threads::for_each(threads, threads, |_| {
            let this = &this; // the whole struct, which is Sync, not its fields
            let mut a = Workspace::take(rows_most * cut.slice + MAX_LANES);
            let mut own_b = Workspace::take(if by_each && !in_advance { cut.b_len() } else { 0 });
            let mut sums = Workspace::take(if cut.slices > 1 { rows_most * cut.columns } else { 0 });
            let (a, b, sums) = (a.as_mut_ptr(), own_b.as_mut_ptr(), sums.as_mut_ptr());
            let mut space = Space { a, in_a: None, b, sums };
            let mut in_b = None;
            let mut all = cut.blocks().peekable();
            while let Some(block) = all.next() {
                let next = all.peek().copied();
                let (number, passed) = (block.number, block.number + 1);
                if together {
                    space.b = shared.get().wrapping_add(number % 2 * cut.b_len());
                }
                // SAFETY: the caller's contract. Pieces of B and blocks of rows are written only by the thread that
                // claimed them; B is read once it is complete, and overwritten only after all rows of the block before
                // the last are done; rows are claimed only after they are done in the block before.
                unsafe {
                    while let Some(piece) = packing.claim(passed * pieces) {
                        this.rows.iter().for_each(|rows| rows.done.wait(number.saturating_sub(1)));
                        this.pack_b(block, piece % pieces * PANELS_AT_ONCE * nr, space.b);
                        packed.finish();
                    }
                    packed.wait(passed * pieces);
                    let row_blocks = this.rows.len();
                    while let Some(rows) = taken.claim(passed * row_blocks) {
                        let rows = rows % row_blocks;
                        this.rows[rows].done.wait(number);
                        // The step that this thread will probably run next.
                        let after = || match rows + threads {
                            r if r < row_blocks => block.steps(r, false).next(),
                            r => next?.steps((r - row_blocks).min(row_blocks - 1), by_each).next(),
                        };
                        let mut steps = block.steps(rows, by_each && in_b.replace(number) != Some(number)).peekable();
                        while let Some(step) = steps.next() {
                            this.step(step, steps.peek().copied().or_else(after), &mut space);
                        }
                        this.rows[rows].done.finish();
                    }
                }
            }
        });
    }

    /// Packs tiles `t0 .. t1` of rows, columns `p0 .. p0 + k` of A.
    ///
    /// # Safety
    /// The conditions of [`Gemm::run`] hold; `out` is writable for the rows times `k` plus a vector.
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
            let out = out.wrapping_add((i - i0) * k);
            // SAFETY: the caller's contract.
            unsafe {
                let from = self.a.at(i, p0).transposed();
                pack::panel(isa, PanelArgs { from, long: k, short: height, width: height, out, slack: true });
            }
        }
    }
}

impl Blocked<'_> {
    /// Packs some panels of a block of B, beginning at its column `start`, if there are any.
    ///
    /// # Safety
    /// The conditions of [`Gemm::run`] hold; nothing else accesses the panels.
    unsafe fn pack_b(&self, block: Block, start: usize, b_block: *mut f32) {
        let Source::Matrix(b) = self.gemm.b else { return };
        if start < block.n {
            let columns = (PANELS_AT_ONCE * self.set.shape.columns()).min(block.n - start);
            for step in block.steps(0, true) {
                let out = self.b_of(step, b_block).wrapping_add(start * step.k);
                // SAFETY: the caller's contract; the memory holds the whole block.
                unsafe { pack::panels(b, self.isa, step.p0, step.k, self.column + block.j0 + start, columns, out) };
            }
        }
    }

    /// The beginning of a step's B in a packed block.
    fn b_of(&self, Step { block, p0, .. }: Step, b_block: *mut f32) -> *mut f32 {
        b_block.wrapping_add((p0 - block.p0) * block.n.next_multiple_of(self.set.shape.lanes))
    }

    /// # Safety
    /// The conditions of [`Gemm::run`] hold; `space` has room for the blocks, and contains the A that it names, B
    /// unless the step packs it, and the sums of the step before, if that had the same block and rows.
    unsafe fn step(&self, step: Step, then: Option<Step>, space: &mut Space) {
        let Step { block: Block { j0, n, .. }, rows, p0, k, packs } = step;
        let Self { gemm, set, tiles, .. } = self;
        let (nr, lanes) = (set.shape.columns(), set.shape.lanes);
        let Range { start: t0, end: t1 } = self.rows[rows].tiles;
        let b_block = match gemm.b {
            // The memory before this block of k holds all panels of the earlier rows, each padded to whole vectors.
            Source::Packed(all) => {
                all.wrapping_add(p0 * self.b_columns.next_multiple_of(lanes) + (self.column + j0) * k)
            }
            Source::Matrix(_) => self.b_of(step, space.b).cast_const(),
        };
        let asks = Asks::new(self, step, then);
        let (starts, ends) = (p0 == step.block.p0, p0 + k == step.block.p0 + step.block.k);
        // SAFETY: the caller's contract.
        unsafe {
            if space.in_a.replace((p0, rows)) != Some((p0, rows)) {
                gemm.pack_a(self.isa, tiles, t0, t1, p0, k, space.a);
            }
            let (i0, rows) = (tiles.start(t0), tiles.start(t1) - tiles.start(t0));
            let mut number = 0;
            for j in (0..n).step_by(nr) {
                let width = (n - j).min(nr);
                let (b_width, last) = panel_width(width, lanes);
                let panel = b_block.wrapping_add(j * k);
                let sums = space.sums.wrapping_add(j * rows);
                let packing = match gemm.b {
                    Source::Matrix(b) if packs => {
                        let whole = b.column_stride == 1 && width == nr;
                        if !whole {
                            pack::panels(b, self.isa, p0, k, self.column + j0 + j, width, panel.cast_mut());
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
                    let in_c = (gemm.c.add(i * gemm.c_stride + j0 + j), gemm.c_stride);
                    let in_sums = (sums.wrapping_add((i - i0) * b_width), b_width);
                    let (c, c_stride) = if ends { in_c } else { in_sums };
                    let (plus, plus_stride) = match (p0, starts) {
                        (0, _) => (std::ptr::null_mut(), 0),
                        (_, true) => in_c,
                        _ => in_sums,
                    };
                    set.get(kind, height, width)(&TileArgs {
                        a: space.a.wrapping_add((i - i0) * k),
                        a_stride: height,
                        b,
                        b_stride,
                        k,
                        plus,
                        plus_stride,
                        c,
                        c_stride,
                        last,
                        later_b: asks.of_b(j, t - t0, b_block).unwrap_or(Ask::nothing(panel)),
                        later_a: asks.of_a(number).unwrap_or(Ask::nothing(panel)),
                        soon_c: match starts && p0 > 0 {
                            true => Ask { p: plus, stride: plus_stride },
                            false => Ask { p: c, stride: c_stride },
                        },
                        panel: panel.cast_mut(),
                        ..TileArgs::NOTHING
                    });
                    number += 1;
                }
            }
        }
    }
}

/// The data that the tiles of a step prefetch: A of the next rows, and B of a later panel, if this thread packs B and has
/// not packed that panel yet.
struct Asks {
    /// Number of rows that a tile can prefetch.
    turns: usize,
    nr: usize,
    columns: usize,
    k: usize,
    /// Row 0 of B at the panels that are packed next, and the number of columns from there.
    to_pack: Option<(MatrixRef, usize)>,
    /// The same for the next step, used when this one has no more panels.
    to_pack_then: Option<(MatrixRef, usize)>,
    /// A at the rows that are packed next. A tile prefetches one row: prefetching lines of all rows of a column would
    /// need as many TLB entries.
    a: Option<MatrixRef>,
    /// Elements of the row between turns; some turns prefetch the same line.
    a_stride: usize,
    /// The first tile that prefetches A, chosen so that the last tiles prefetch the last rows.
    a_first: usize,
}

impl Asks {
    fn new(of: &Blocked<'_>, step: Step, then: Option<Step>) -> Self {
        let (nr, columns) = (of.set.shape.columns(), step.block.n);
        let turns = (step.k / TURN).saturating_sub(last_turns(of.tiles.height + 1));
        let b_of = |step: Step| match of.gemm.b {
            Source::Matrix(b) if b.column_stride == 1 && step.packs => {
                Some((b.at(step.p0, of.column + step.block.j0), step.block.n))
            }
            _ => None,
        };
        let other = |then: &Step| turns > 0 && (then.p0 != step.p0 || then.rows != step.rows);
        let mut asks = Self {
            turns,
            nr,
            columns,
            k: step.k,
            to_pack: b_of(step),
            to_pack_then: then.and_then(b_of),
            a: None,
            a_stride: 0,
            a_first: 0,
        };
        let a = of.gemm.a;
        if a.column_stride == 1
            && let Some(then) = then.filter(other)
        {
            let Range { start, end } = of.rows[then.rows].tiles;
            let first = of.tiles.start(start);
            let tiles = columns.div_ceil(nr) * of.rows[step.rows].tiles.len();
            asks.a = Some(a.at(first, then.p0));
            asks.a_stride = then.k.div_ceil(turns);
            asks.a_first = tiles.saturating_sub(of.tiles.start(end) - first);
        }
        asks
    }

    /// The share of a tile, the `t`th of those of the panel at `j`, in prefetching B.
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

    /// The share of a tile, the `number`th of the step, in prefetching A.
    fn of_a(&self, number: usize) -> Option<Ask> {
        Some(Ask { p: self.a?.at(number.checked_sub(self.a_first)?, 0).p, stride: self.a_stride })
    }
}
