//! The division of a packed product into blocks, and of these into steps.

use super::blocks::{blocks, k_blocks};
use super::driver::Gemm;
use super::matrix::Source;

/// Rows of A packed at a time: 126 rows of a block of k are at most 158 KiB, which leaves room in the L2 cache for B
/// and C. More rows would read B less often, which saves less than the evictions cost.
const M_BLOCK: usize = 126;

/// The same if B is read once, a few panels at a time, and all rows of A stay in the cache: at most 420 KiB.
const M_BLOCK_OF_ALL: usize = 336;

/// The same if sums have separate memory: 98 rows of a block of columns are 784 KiB, A takes at most 123 KiB. Together
/// they stay in half of an L2 cache of 2 MiB, shared with the B that streams past and another thread of the core.
const M_BLOCK_OF_SUMS: usize = 98;

/// Elements of C that stay in the caches by themselves during the loop over k.
const C_NEAR: usize = 512 * 1024;

/// Columns of B packed at a time: 2.5 MiB of a block of k.
const N_BLOCK: usize = 2048;

/// Blocks of k of a B packed at a time if sums have separate memory: 20 MiB, for the L3 cache. If that is smaller,
/// memory has to supply 4 bytes for 196 operations: 4 GB/s for a thread of 200 GFLOP/s.
const SLICES: usize = 8;

/// The same for all threads together if each packs B for itself: 40 MiB. With many threads the sums are kept in C, one
/// block at a time.
const SLICES_OF_ALL: usize = 16;

/// Panels of B that a thread packs at a time: 512 bytes of a row with 16 lanes.
pub(super) const PANELS_AT_ONCE: usize = 4;

/// A range of columns of B and of blocks of k.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Its index among all blocks.
    pub(super) number: usize,
    /// The beginning and the length of its part of k.
    pub(super) p0: usize,
    pub(super) k: usize,
    /// The length of a block of k, except for the last.
    slice: usize,
    /// The beginning and the number of its columns.
    pub(super) j0: usize,
    pub(super) n: usize,
}

/// The unit of work of a thread: a block of rows times one block of k and the columns of a [`Block`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) block: Block,
    /// The index of the block of rows.
    pub(super) rows: usize,
    /// The beginning and the length of the block of k.
    pub(super) p0: usize,
    pub(super) k: usize,
    /// Whether the step packs B.
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

/// The division of a product into blocks.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    k: usize,
    n: usize,
    /// Columns of a panel.
    nr: usize,
    /// Maximum columns of a [`Block`].
    pub(super) columns: usize,
    /// The length of a block of k, and the maximum number of them in a [`Block`]: with more than one, sums have
    /// separate memory meanwhile.
    pub(super) slice: usize,
    pub(super) slices: usize,
    /// Maximum rows of a block.
    pub(super) rows: usize,
}

impl Cut {
    /// For panels of `nr` columns. `by_each` means that every thread packs B for itself.
    pub(super) fn new(gemm: &Gemm, nr: usize, threads: usize, by_each: bool) -> Self {
        let Gemm { m, k, n, .. } = *gemm;
        // If all rows are one block, a panel of B is read only once: copies of a few panels at a time stay in near
        // caches.
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

    /// Maximum elements of B in a block.
    pub(super) fn b_len(&self) -> usize {
        self.columns * (self.slices * self.slice).min(self.k)
    }

    /// All blocks, grouped by part of k.
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
