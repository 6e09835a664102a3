//! The packed way: loops over blocks that fit the caches, around tiles that fit the registers.
//!
//! Blocks of k and of columns follow one another. In each, B is packed once, by all threads together, a few panels at a
//! time; then the threads take blocks of rows, pack these of A for themselves, and run the tiles. Counters alone keep
//! them in step: who comes late finds less to do, and nobody waits for a thread that has not begun.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::blocks::{K_BLOCK, Tiles, blocks, k_blocks, panel_width};
use super::driver::Gemm;
use super::matrix::Source;
use super::pack::{PanelArgs, panel, panels};
use super::tile::{PANELS, TileArgs, TileSet};
use super::workspace::Workspace;
use crate::Isa;
use crate::threads::{self, Shared};
use crate::vector::MAX_LANES;

/// Rows of A packed at a time, in tiles of 14: 336 rows of a block of k are 344 KiB, a part of any L2 cache.
const M_BLOCK: usize = 336;

/// Columns of B packed at a time: 2 MiB of a block of k, in the L3 cache or the part of L2 that A leaves.
const N_BLOCK: usize = 2048;

/// Panels of B that a thread packs at a time.
const PANELS_AT_ONCE: usize = 4;

/// Blocks of rows for each thread, where there are several, so that they end together.
const SHARES: usize = 4;

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
    row_blocks: usize,
    b_block: Shared<f32>,
}

// SAFETY: the product is one that its caller vouches for; blocks are disjoint.
unsafe impl Sync for Blocked<'_> {}

/// A block of k and of columns.
#[derive(Debug, Clone, Copy)]
struct Block {
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
        let most = tiles.count.div_ceil(M_BLOCK.div_ceil(set.shape.rows));
        let row_blocks = if threads == 1 { most } else { most.max(SHARES * threads).next_multiple_of(threads) };
        let row_blocks = row_blocks.min(tiles.count);
        let k_most = self.k.min(K_BLOCK);
        let n_most = self.n.next_multiple_of(nr).min(N_BLOCK);
        let in_advance = matches!(self.b, Source::Packed(_));
        let mut shared = Workspace::take(if in_advance { 0 } else { n_most * k_most });
        let b_block = Shared::new(shared.as_mut_ptr());
        let this = Blocked { gemm: self, isa, set, column, b_columns, tiles, row_blocks, b_block };
        // Pieces of B in a block; the last block of columns may have fewer, then some are empty.
        let pieces = if in_advance { 0 } else { n_most.div_ceil(PANELS_AT_ONCE * nr) };
        let [packing, packed, taken, done] = &<[Pieces; 4]>::default();
        let (k, n) = (self.k, self.n);
        threads::for_each(threads, threads, |_| {
            let this = &this; // the whole of it, which is Sync, not its fields
            let a_len = (tiles.count.div_ceil(row_blocks) * set.shape.rows) * k_most + MAX_LANES;
            let mut workspace = Workspace::take(a_len);
            let a_block = workspace.as_mut_ptr();
            let mut in_a = None;
            let mut passed = 0;
            for (p0, k) in k_blocks(k) {
                for (j0, n) in blocks(n, N_BLOCK, nr) {
                    let block = Block { p0, k, j0, n };
                    // SAFETY: the caller's contract. Pieces of B and blocks of rows are written by the thread that took
                    // them; B is read once it is whole, and written again once all rows are done.
                    unsafe {
                        while let Some(piece) = packing.claim((passed + 1) * pieces) {
                            this.pack_b(block, piece % pieces);
                            packed.finish();
                        }
                        packed.wait((passed + 1) * pieces);
                        while let Some(rows) = taken.claim((passed + 1) * row_blocks) {
                            let rows = rows % row_blocks;
                            let has = in_a.replace((p0, rows)) == Some((p0, rows));
                            this.rows(block, rows, a_block, has);
                            done.finish();
                        }
                    }
                    passed += 1;
                    done.wait(passed * row_blocks);
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
            unsafe { panel(isa, PanelArgs { from, long: k, short: height, width: height, out, slack: true }) };
        }
    }
}

impl Blocked<'_> {
    /// Packs a piece of a block of B.
    ///
    /// # Safety
    /// As [`Gemm::run`]; the piece is the caller's.
    unsafe fn pack_b(&self, block: Block, piece: usize) {
        let Source::Matrix(b) = self.gemm.b else { return };
        let width = PANELS_AT_ONCE * self.set.shape.columns();
        let start = piece * width;
        if start < block.n {
            let out = self.b_block.get().wrapping_add(start * block.k);
            let columns = width.min(block.n - start);
            // SAFETY: the caller's contract; the memory holds the whole block.
            unsafe { panels(b, self.isa, block.p0, block.k, self.column + block.j0 + start, columns, out) };
        }
    }

    /// A block of rows times a block of B.
    ///
    /// # Safety
    /// As [`Gemm::run`]; `a_block` holds a block of rows, and has it where `packed`.
    unsafe fn rows(&self, block: Block, rows: usize, a_block: *mut f32, packed: bool) {
        let Block { p0, k, j0, n } = block;
        let Self { gemm, set, tiles, .. } = self;
        let (nr, lanes) = (set.shape.columns(), set.shape.lanes);
        let (t0, t1) = (rows * tiles.count / self.row_blocks, (rows + 1) * tiles.count / self.row_blocks);
        let b_block = match gemm.b {
            // Before this block of k stand all panels of the rows before, every one a whole vector.
            Source::Packed(all) => {
                all.wrapping_add(p0 * self.b_columns.next_multiple_of(lanes) + (self.column + j0) * k)
            }
            Source::Matrix(_) => self.b_block.get().cast_const(),
        };
        // SAFETY: the caller's contract.
        unsafe {
            if !packed {
                gemm.pack_a(self.isa, tiles, t0, t1, p0, k, a_block);
            }
            let i0 = tiles.start(t0);
            for j in (0..n).step_by(nr) {
                let width = (n - j).min(nr);
                let (b_width, last) = panel_width(width, lanes);
                let b = b_block.wrapping_add(j * k);
                for t in t0..t1 {
                    let (i, height) = tiles.at(t);
                    // Each tile asks for its part of the next panel.
                    let part = (k / 4).saturating_sub(height) * 16 * (t - t0);
                    let next = if j + nr < n && part < nr * k { b.wrapping_add(b_width * k + part) } else { b };
                    set.get(PANELS, height, width)(&TileArgs {
                        a: a_block.wrapping_add((i - i0) * k),
                        a_stride: height,
                        b,
                        b_stride: b_width,
                        k,
                        init: std::ptr::null(),
                        init_stride: 0,
                        c: gemm.c.add(i * gemm.c_stride + j0 + j),
                        c_stride: gemm.c_stride,
                        last,
                        add: gemm.add || p0 > 0,
                        ahead: 0,
                        next,
                    });
                }
            }
        }
    }
}
