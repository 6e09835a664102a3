//! The division of extents into blocks for the caches and tiles for the registers.

/// Maximum products in a chain: a block of k. At 256 a panel of B (32 KiB) stays in the L1 cache while a panel of A
/// streams past it; up to 320 one block is better than two short ones. Every algorithm divides k at the same positions.
pub(super) const K_BLOCK: usize = 320;

/// Divides `0..len` into blocks that are as equal as possible, none longer than `most`, all except the last a multiple
/// of `unit`.
pub(super) fn blocks(len: usize, most: usize, unit: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = len.div_ceil(most).max(1);
    let size = len.div_ceil(count).next_multiple_of(unit).max(1);
    (0..len.div_ceil(size)).map(move |b| (b * size, size.min(len - b * size)))
}

/// The blocks of k: start and length.
pub(super) fn k_blocks(k: usize) -> impl Iterator<Item = (usize, usize)> {
    blocks(k, K_BLOCK, 1)
}

/// Divides rows into as few tiles as possible, whose heights differ by at most one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    pub(super) count: usize,
    pub(super) height: usize,
    pub(super) taller: usize,
}

impl Tiles {
    pub(super) fn new(rows: usize, most: usize) -> Self {
        if rows <= most {
            return Self { count: 1, height: rows, taller: 0 };
        }
        let count = rows.div_ceil(most);
        Self { count, height: rows / count, taller: rows % count }
    }

    /// First row and height of a tile.
    pub(super) fn at(&self, t: usize) -> (usize, usize) {
        (self.start(t), self.height_of(t))
    }

    /// The first row of a tile, or the end of the last.
    pub(super) fn start(&self, t: usize) -> usize {
        t * self.height + t.min(self.taller)
    }

    /// The height of a tile.
    pub(super) fn height_of(&self, t: usize) -> usize {
        self.height + usize::from(t < self.taller)
    }
}

/// The width of a panel of `columns` in whole vectors, one or two, and the number of used columns in the last vector.
pub(super) fn panel_width(columns: usize, lanes: usize) -> (usize, usize) {
    match columns {
        c if c > lanes => (2 * lanes, c - lanes),
        c => (lanes, c),
    }
}
