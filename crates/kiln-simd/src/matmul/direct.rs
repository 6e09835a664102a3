//! Products that fit the L2 cache: their tiles read A and B in place. The smallest take less time than a few dozen
//! instructions beside their tiles would, so their path is short.

use super::blocks::{K_BLOCK, Tiles};
use super::matrix::MatrixRef;
use super::pack::{PanelArgs, panel};
use super::tile::{COLUMNS, DirectPanel, ROWS, TileArgs, TileSet};
use crate::Isa;
use crate::scratch::Workspace;

/// Maximum elements of A, B and C together for which only crowded panels are packed: they fit the L2 cache, and copies
/// would cost more than they save. If more of B is in the L3 cache, packed products are faster by 10 to 20 %.
const MOST: usize = 3 * 320 * 320;

/// Number of lines of a panel of B in one set of the L1 cache beyond which tiles do not read it in place. Rows that are
/// a power of two apart, or a small multiple of one, share few sets: every tile would fetch them from the L2 cache
/// again. That costs little while a core runs one thread, and up to a third beside another busy thread of the core, as
/// when all threads of a machine compute.
const CROWDED: usize = 16;

/// Number of tiles that must read a crowded panel to justify a copy of the panel, on one thread.
const COPIED: usize = 12;

/// Whether this many rows of a panel, this many elements apart, are [`CROWDED`] in an L1 cache of 64 sets of lines of 64 bytes.
pub(super) fn is_crowded(rows: usize, stride: usize) -> bool {
    let stride = stride.saturating_mul(size_of::<f32>());
    let places = if stride.is_multiple_of(64) { 4096 >> stride.trailing_zeros().min(12) } else { 64 };
    rows >= (CROWDED + 1) * places
}

/// A product `C = A B` with a single block of k, row-major B, and A in either order.
#[derive(Clone, Copy)]
pub(super) struct Direct {
    /// Rows of A and C.
    pub(super) m: usize,
    /// Products in each element.
    pub(super) k: usize,
    /// Columns of B and C.
    pub(super) n: usize,
    /// A.
    pub(super) a: MatrixRef,
    /// B.
    pub(super) b: MatrixRef,
    /// C, rows contiguous.
    pub(super) c: *mut f32,
    /// Distance between the rows of C.
    pub(super) c_stride: usize,
}

impl Direct {
    /// Whether the product is small enough, and its matrices have the required layout.
    #[inline]
    pub(super) fn suits(&self) -> bool {
        let Self { m, k, n, a, b, .. } = *self;
        let lies = b.column_stride == 1 && (a.row_stride == 1 || a.column_stride == 1);
        // Larger extents exceed the limit anyway; with these the products with k do not overflow.
        let elements = || m.saturating_mul(n).saturating_add(k * (m + n));
        lies && k <= K_BLOCK && (m | n) <= MOST && elements() <= MOST
    }

    /// Computes the product.
    ///
    /// # Safety
    /// A, B and C are as described, with rows and columns; nothing else writes C, and it does not overlap A or B; the
    /// instruction set is available.
    pub(super) unsafe fn run(&self, isa: Isa) {
        let set = TileSet::of(isa);
        let whole = set.shape.masked || self.n.is_multiple_of(set.shape.lanes);
        // SAFETY: the caller's contract.
        unsafe {
            if whole && (self.m < COPIED || !is_crowded(self.k, self.b.row_stride)) {
                self.panels::<false>(isa, set)
            } else {
                self.panels::<true>(isa, set)
            }
        }
    }

    /// Computes one panel of B after the other; `COPIES` if some may have to be copied.
    ///
    /// # Safety
    /// The conditions of [`Direct::run`] hold.
    unsafe fn panels<const COPIES: bool>(&self, isa: Isa, set: &TileSet) {
        let shape = &set.shape;
        let (kind, a_stride) =
            if self.a.column_stride == 1 { (ROWS, self.a.row_stride) } else { (COLUMNS, self.a.column_stride) };
        let mut args = TileArgs { a_stride, k: self.k, c_stride: self.c_stride, ..TileArgs::NOTHING };
        // The tiles of the current panels, recomputed only if the width changes: a division is expensive for a small
        // product.
        let (mut cut_for, mut tiles) = (0, Tiles::new(0, 1));
        let crowded = COPIES && is_crowded(self.k, self.b.row_stride);
        let mut copy = None;
        let mut j = 0;
        while j < self.n {
            let DirectPanel { vectors, columns, last, rows } = shape.direct_panel(self.n - j, kind);
            if vectors != cut_for {
                (cut_for, tiles) = (vectors, Tiles::new(self.m, rows));
            }
            (args.b, args.b_stride, args.last) = (self.b.p.wrapping_add(j), self.b.row_stride, last);
            (args.a, args.c) = (self.a.p, self.c.wrapping_add(j));
            // SAFETY: the caller's contract; the workspace holds a panel.
            unsafe {
                if COPIES && (crowded && tiles.count >= COPIED || last != shape.lanes && !shape.masked) {
                    let out = copy.get_or_insert_with(|| Workspace::take(self.k * 3 * shape.lanes)).as_mut_ptr();
                    let (from, width) = (self.b.at(0, j), vectors * shape.lanes);
                    panel(isa, PanelArgs { from, long: self.k, short: columns, width, out, slack: false });
                    (args.b, args.b_stride) = (out, width);
                }
                for t in 0..tiles.count {
                    let height = tiles.height_of(t);
                    set.tile(kind, height, vectors)(&args);
                    args.a = args.a.wrapping_add(height * self.a.row_stride);
                    args.c = args.c.wrapping_add(height * self.c_stride);
                }
            }
            j += columns;
        }
    }
}
