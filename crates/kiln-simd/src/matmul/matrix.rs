//! Matrices in memory, and operands that are read like them.

/// A matrix in memory: element (i, j) is at `p + i * row_stride + j * column_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixRef {
    /// Element (0, 0).
    pub(crate) p: *const f32,
    /// Distance between neighbours in a column.
    pub(crate) row_stride: usize,
    /// Distance between neighbours in a row.
    pub(crate) column_stride: usize,
}

// SAFETY: a matrix is only read, and each reader states why it may.
unsafe impl Send for MatrixRef {}
// SAFETY: as above.
unsafe impl Sync for MatrixRef {}

impl MatrixRef {
    /// A row-major matrix of `columns`, or its transpose.
    pub(crate) fn new(data: &[f32], columns: usize, transpose: bool) -> Self {
        let (row_stride, column_stride) = if transpose { (1, columns) } else { (columns, 1) };
        Self { p: data.as_ptr(), row_stride, column_stride }
    }

    /// The submatrix that begins at an element.
    pub(crate) fn at(self, i: usize, j: usize) -> Self {
        Self { p: self.p.wrapping_add(i * self.row_stride + j * self.column_stride), ..self }
    }

    /// The transpose.
    pub(crate) fn transposed(self) -> Self {
        Self { p: self.p, row_stride: self.column_stride, column_stride: self.row_stride }
    }
}

/// The source of B.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// A matrix in memory.
    Matrix(MatrixRef),
    /// Packed in advance: all blocks of k, each with all panels of its rows.
    Packed(*const f32),
}

// SAFETY: the pointer is only read, by callers that state why they may.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}
