//! How a packed product is cut into blocks, and these into steps.

use super::blocks::{blocks, k_blocks};
use super::driver::Gemm;
use super::matrix::Source;

/// Rows of A packed at a time: 126 rows of a block of k are 158 KiB at most, and leave room in the L2 cache for B and C. More
/// would read B less often, which spares less than it drives out.
const M_BLOCK: usize = 126;

/// As many where B passes once, a few panels at a time, and all rows of A stay: 420 KiB at most.
const M_BLOCK_OF_ALL: usize = 336;

/// As many where sums have a place of their own: 98 rows of a block of columns are 784 KiB, A takes 123 KiB at most. Together
/// they stay in half of an L2 cache of 2 MiB, beside the B that streams past and another thread of the core.
const M_BLOCK_OF_SUMS: usize = 98;

/// Elements of C that stay in the caches themselves while k runs.
const C_NEAR: usize = 512 * 1024;

/// Columns of B packed at a time: 2.5 MiB of a block of k.
const N_BLOCK: usize = 2048;

/// Blocks of k of a B packed at a time where sums have a place of their own: 20 MiB, for the L3 cache. Where that is smaller,
/// memory has to give 4 bytes for 196 operations, to a thread of 200 GFLOP/s 4 GB/s.
const SLICES: usize = 8;

/// As many of all threads together that pack B for themselves: 40 MiB. Many threads add up in C, as one block at a time asks.
const SLICES_OF_ALL: usize = 16;

/// Panels of B that a thread packs at a time: 512 bytes of a row at 16 lanes.
pub(super) const PANELS_AT_ONCE: usize = 4;

/// Some columns of B and some blocks of k.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Its place among all.
    pub(super) number: usize,
    /// Where its part of k begins, and how long it is.
    pub(super) p0: usize,
    pub(super) k: usize,
    /// The length of a block of k, but for the last.
    slice: usize,
    /// Where its columns begin, and how many they are.
    pub(super) j0: usize,
    pub(super) n: usize,
}

/// What a thread does at a time: a block of rows times one block of k and the columns of a [`Block`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) block: Block,
    /// The block of rows.
    pub(super) rows: usize,
    /// Where the block of k begins, and how long it is.
    pub(super) p0: usize,
    pub(super) k: usize,
    /// Whether B is packed on the way.
    pub(super) packs: bool,
}

impl Block {
    /// Its blocks of k, one by one.
    pub(super) fn steps(self, rows: usize, packs: bool) -> impl Iterator<Item = Step> {
        let end = self.p0 + self.k;
        let starts = (self.p0..end).step_by(self.slice);
        starts.map(move |p0| Step { block: self, rows, p0, k: self.slice.min(end - p0), packs })
    }
}

/// How a product is cut into blocks.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    k: usize,
    n: usize,
    /// Columns of a panel.
    nr: usize,
    /// Columns of a [`Block`] at most.
    pub(super) columns: usize,
    /// The length of a block of k, and how many of them a [`Block`] has at most: of more than one, sums have a place of
    /// their own in between.
    pub(super) slice: usize,
    pub(super) slices: usize,
    /// Rows of a block of them at most.
    pub(super) rows: usize,
}

impl Cut {
    /// For panels of `nr` columns. `by_each` says that every thread packs B for itself.
    pub(super) fn new(gemm: &Gemm, nr: usize, threads: usize, by_each: bool) -> Self {
        let Gemm { m, k, n, .. } = *gemm;
        // Where all rows are one block, a panel of B is read this once: copies of a few at a time stay in near caches.
        let passing = threads == 1 && m <= M_BLOCK_OF_ALL && !matches!(gemm.b, Source::Packed(_));
        let columns = n.next_multiple_of(nr).min(if passing { PANELS_AT_ONCE * nr } else { N_BLOCK });
        let all = k_blocks(k).count();
        let most = match (!passing && m.saturating_mul(n) > C_NEAR, by_each) {
            (false, _) => 1,
            (true, true) => SLICES.min(SLICES_OF_ALL / threads).max(1),
            (true, false) => SLICES,
        };
        let slices = all.div_ceil(all.div_ceil(most));
        let rows = match slices {
            2.. => M_BLOCK_OF_SUMS,
            _ if passing => M_BLOCK_OF_ALL,
            _ => M_BLOCK,
        };
        Self { k, n, nr, columns, slice: k.div_ceil(all), slices, rows }
    }

    /// Elements of B in a block at most.
    pub(super) fn b_len(&self) -> usize {
        self.columns * (self.slices * self.slice).min(self.k)
    }

    /// All blocks, those of a part of k one after the other.
    pub(super) fn blocks(self) -> impl Iterator<Item = Block> {
        let Self { k, n, nr, columns, slice, slices, .. } = self;
        let stretch = slices * slice;
        (0..k)
            .step_by(stretch)
            .flat_map(move |p0| blocks(n, columns, nr).map(move |(j0, n)| (p0, j0, n)))
            .enumerate()
            .map(move |(number, (p0, j0, n))| Block { number, p0, k: stretch.min(k - p0), slice, j0, n })
    }
}
