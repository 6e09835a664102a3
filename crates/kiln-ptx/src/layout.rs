//! The layout of matrices in shared memory for asynchronous copies and tensor cores.

use crate::builder::operands::SharedAt;
use crate::kernel::TensorMap;
use crate::{Builder, Operand, Pointer, PtxType, Shared, Value};

/// Bytes of a row of a panel.
const ROW: u32 = 128;
/// Bytes that are never separated.
const PIECE: u32 = 16;
/// Rows after which the order of pieces repeats.
const ATOM: u32 = 8;

/// A matrix in shared memory, cut into panels of columns: a row of a panel is 128 bytes, and its eight pieces of 16 bytes
/// are swizzled, so that a column of pieces lies in all banks: piece p of row r is at p xor (r mod 8). From this one value
/// come the addresses of elements, the descriptors of the operands of `wgmma`, and the boxes of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panels {
    element: PtxType,
    rows: u32,
    columns: u32,
}

impl Panels {
    /// The alignment of every panel.
    pub const ALIGN: u32 = ROW * ATOM;

    /// Panels for a matrix of this many rows and columns, whose elements are adjacent along a row.
    ///
    /// # Panics
    /// If the rows are not a multiple of 8 or more than the 256 of a copy, or the columns are not whole panels.
    pub fn new(element: PtxType, rows: u32, columns: u32) -> Self {
        let panels = Self { element, rows, columns };
        assert!(rows.is_multiple_of(ATOM) && rows <= 256, "{rows} rows of panels");
        assert!(columns.is_multiple_of(panels.width()) && columns > 0, "{columns} columns of panels");
        panels
    }

    /// Columns of a panel.
    pub fn width(&self) -> u32 {
        ROW / self.element.bytes()
    }

    /// Panels side by side.
    pub fn count(&self) -> u32 {
        self.columns / self.width()
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> u32 {
        self.rows * ROW
    }

    /// Bytes of a row of a panel.
    pub fn row_bytes(&self) -> u32 {
        ROW
    }

    /// Bytes of all panels.
    pub fn bytes(&self) -> u32 {
        self.count() * self.panel_bytes()
    }

    /// The address of a piece of 16 bytes of the first panel.
    pub fn piece<'k, T>(
        &self,
        k: &'k Builder,
        at: Pointer<'k, Shared, T>,
        row: Value<'k, u32>,
        piece: Value<'k, u32>,
    ) -> Pointer<'k, Shared, T>
    where
        Pointer<'k, Shared, T>: Operand<SharedAt>,
    {
        at.byte_index(k.mad(row, ROW, (piece ^ (row & (ATOM - 1))) * PIECE))
    }

    /// The address at which a lane reads rows for `ldmatrix`, in the block of 16 rows by two pieces at `at`, and from there in all
    /// others.
    pub fn blocks<'k, T>(
        &self,
        k: &'k Builder,
        at: Pointer<'k, Shared, T>,
        lane: Value<'k, u32>,
        order: BlockOrder,
    ) -> MatrixBlocks<'k> {
        let (row, piece) = match order {
            BlockOrder::Down => (lane & 15, (lane >> 4) & 1u32),
            BlockOrder::Across => (lane & 7 | (lane >> 4 & 1u32) << 3, (lane >> 3) & 1u32),
        };
        MatrixBlocks { panels: *self, first: self.piece(k, at.cast(), row, piece) }
    }

    /// The `wgmma` descriptor of an operand with this layout, without its address; `across`: rows are along k, not
    /// columns.
    pub(crate) fn descriptor(&self, across: bool) -> u64 {
        // The strides of 8 rows and of panels: the latter is between groups of rows or columns of C, and has no meaning
        // if columns are along k.
        let (rows, panels) = (ATOM * ROW, if across { self.panel_bytes() } else { PIECE });
        const SWIZZLE_128: u64 = 1 << 62;
        SWIZZLE_128 | u64::from(rows / PIECE) << 32 | u64::from(panels / PIECE) << 16
    }

    /// The offset in bytes of a `wgmma` step along k: rows, or two pieces of a row of each panel.
    pub(crate) fn step(&self, across: bool, step: u32) -> u32 {
        const STEP: u32 = 2 * PIECE;
        match across {
            true => step * (STEP / self.element.bytes() * ROW),
            false => step * STEP / ROW * self.panel_bytes() + step * STEP % ROW,
        }
    }

    /// The tensor of matrices in a buffer that is copied a panel at a time: `extents` in elements, the innermost first,
    /// `strides` in elements of all but the innermost.
    pub fn tensor_map(&self, buffer: usize, extents: [u64; 3], strides: [u64; 2]) -> TensorMap {
        let bytes = u64::from(self.element.bytes());
        TensorMap {
            buffer,
            element: self.element,
            extents,
            strides: strides.map(|stride| stride * bytes),
            tile: [self.width(), self.rows, 1],
            swizzles: true,
        }
    }

    /// These panels with at most `rows` rows, rounded up to the period of the swizzle: missing rows take as long to copy as
    /// others. The memory of the rows that are not copied keeps its earlier contents.
    pub fn clipped(&self, rows: u32) -> Self {
        Self { rows: self.rows.min(rows.next_multiple_of(ATOM)), ..*self }
    }
}

/// The order of the four matrices of 8 rows by a piece of a block of 16 rows by two pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOrder {
    /// The second below the first, the third to its right.
    Down,
    /// The second to the right of the first, the third below it.
    Across,
}

/// The addresses at which a lane reads rows of blocks of [`Panels`] for [`Builder::ldmatrix_x4`].
#[derive(Clone, Copy)]
pub struct MatrixBlocks<'k> {
    panels: Panels,
    first: Pointer<'k, Shared, u32>,
}

impl<'k> MatrixBlocks<'k> {
    /// This many bytes further, a multiple of 1024.
    pub fn byte_index(self, bytes: Value<'k, u32>) -> Self {
        Self { first: self.first.byte_index(bytes), ..self }
    }

    /// This many pairs of pieces further along the row of the panel; blocks that are read from there move equally.
    pub(crate) fn beside(self, pairs: Value<'k, u32>) -> Self {
        Self { first: self.first.flipped(pairs * (2 * PIECE)), ..self }
    }

    /// In the block this many blocks below and beside the first.
    pub fn at(&self, below: u32, beside: u32) -> Pointer<'k, Shared, u32> {
        const PAIR: u32 = 2 * PIECE;
        let bytes = beside * PAIR / ROW * self.panels.panel_bytes() + below * 2 * ATOM * ROW;
        // Vertically, the order of pieces is the same; horizontally, bits of the address are flipped.
        let bits = beside * PAIR % ROW;
        let first = if bits == 0 { self.first } else { self.first.flipped(bits) };
        first.bytes(bytes as i32)
    }
}
