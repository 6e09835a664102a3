//! Packing: copies of blocks of A and B in the order in which tiles read them.
//!
//! A panel of A is as high as its tile and lies column by column: element (i, p) at `i + p * rows`. A panel of B is one
//! or two vectors wide and lies row by row, padded with zeros: element (p, j) at `p * width + j`.

use crate::Isa;
use crate::vector::{MAX_LANES, Routine, Vector, routine};

/// A matrix in memory: element (i, j) stands at `p + i * row_stride + j * column_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixRef {
    /// Element (0, 0).
    pub(crate) p: *const f32,
    /// Distance of neighbours in a column.
    pub(crate) row_stride: usize,
    /// Distance of neighbours in a row.
    pub(crate) column_stride: usize,
}

// SAFETY: a matrix is only read; whoever reads it states why it may.
unsafe impl Send for MatrixRef {}
// SAFETY: as above.
unsafe impl Sync for MatrixRef {}

impl MatrixRef {
    /// A row-major matrix of `columns`, or its transpose.
    pub(crate) fn new(data: &[f32], columns: usize, transpose: bool) -> Self {
        let (row_stride, column_stride) = if transpose { (1, columns) } else { (columns, 1) };
        Self { p: data.as_ptr(), row_stride, column_stride }
    }

    /// The matrix that begins at an element.
    pub(crate) fn at(self, i: usize, j: usize) -> Self {
        Self { p: self.p.wrapping_add(i * self.row_stride + j * self.column_stride), ..self }
    }

    /// Rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self { p: self.p, row_stride: self.column_stride, column_stride: self.row_stride }
    }
}

/// A source of panels of B: a matrix, or what only looks like one, such as the patches of an image under a kernel.
pub(crate) trait Columns: Sync {
    /// Writes rows `p .. p + k` of columns `j .. j + columns` to `out`, `width` apart, zeros beyond the columns.
    /// `width` is one or two vectors of the instruction set and at least `columns`.
    ///
    /// # Safety
    /// The rows and columns are inside of the matrix; `out` is good for writing `k * width` f32; the instruction set
    /// is there.
    unsafe fn pack(&self, isa: Isa, p: usize, k: usize, j: usize, columns: usize, width: usize, out: *mut f32);
}

impl Columns for MatrixRef {
    unsafe fn pack(&self, isa: Isa, p: usize, k: usize, j: usize, columns: usize, width: usize, out: *mut f32) {
        let args = PanelArgs { from: self.at(p, j), long: k, short: columns, width, out };
        // SAFETY: the caller's contract; element (i, j) of the panel's source is element (j, i) seen from `Rows`.
        unsafe { panel(isa, args) }
    }
}

/// A panel to be packed: `long` rows of `short <= width` elements, written `width` apart.
pub(super) struct PanelArgs {
    /// Element (0, 0); `long` counts its rows.
    pub(super) from: MatrixRef,
    /// Rows.
    pub(super) long: usize,
    /// Columns.
    pub(super) short: usize,
    /// Distance of the rows of the copy; columns beyond `short` become zeros.
    pub(super) width: usize,
    /// The copy.
    pub(super) out: *mut f32,
}

/// Packs one panel. A panel of A is one of its transpose.
///
/// # Safety
/// The source is readable, `out` is good for writing `long * width` f32, the instruction set is there.
pub(super) unsafe fn panel(isa: Isa, args: PanelArgs) {
    let pack = match (args.from.column_stride, args.from.row_stride) {
        (1, _) => routine::<CopyRows>(isa),
        (_, 1) => routine::<TurnColumns>(isa),
        _ => routine::<Gather>(isa),
    };
    // SAFETY: the caller's contract.
    unsafe { pack(&args) }
}

/// Rows that lie as the copy wants them.
struct CopyRows;

impl Routine for CopyRows {
    type Args = PanelArgs;

    #[inline(always)]
    unsafe fn run<V: Vector>(args: &PanelArgs) {
        let (mut from, mut out) = (args.from.p, args.out);
        // SAFETY: the contract of `panel`.
        unsafe {
            if args.short == 2 * V::LANES && args.width == 2 * V::LANES {
                for _ in 0..args.long {
                    let (a, b) = (V::load(from), V::load(from.add(V::LANES)));
                    a.store(out);
                    b.store(out.add(V::LANES));
                    from = from.wrapping_add(args.from.row_stride);
                    out = out.wrapping_add(args.width);
                }
                return;
            }
            for _ in 0..args.long {
                let mut j = 0;
                while j < args.width {
                    let read = args.short.saturating_sub(j).min(V::LANES);
                    let write = (args.width - j).min(V::LANES);
                    let v = V::load_first(from.wrapping_add(j), read);
                    if write == V::LANES {
                        v.store(out.add(j))
                    } else {
                        v.store_first(out.add(j), write)
                    }
                    j += V::LANES;
                }
                from = from.wrapping_add(args.from.row_stride);
                out = out.wrapping_add(args.width);
            }
        }
    }
}

/// Columns that lie contiguous: squares are turned in registers.
struct TurnColumns;

impl Routine for TurnColumns {
    type Args = PanelArgs;

    #[inline(always)]
    unsafe fn run<V: Vector>(args: &PanelArgs) {
        let stride = args.from.column_stride;
        // SAFETY: the contract of `panel`.
        unsafe {
            let mut j = 0;
            while j < args.width {
                let columns = args.short.saturating_sub(j).min(V::LANES);
                let write = (args.width - j).min(V::LANES);
                let mut p = 0;
                while p < args.long {
                    let from = args.from.p.wrapping_add(j * stride + p);
                    let out = args.out.add(p * args.width + j);
                    let rows = (args.long - p).min(V::LANES);
                    turn_square::<V>(from, stride, columns, rows, out, args.width, write);
                    p += V::LANES;
                }
                j += V::LANES;
            }
        }
    }
}

/// Writes `rows` rows of `write` elements, `out_stride` apart: element (p, j) is `from[j * stride + p]` for
/// `j < columns`, zero beyond.
///
/// # Safety
/// The instruction set is there; `columns` runs of `rows` f32 are readable, `rows` runs of `write` writable; none is
/// more than `LANES`.
#[inline(always)]
pub(crate) unsafe fn turn_square<V: Vector>(
    from: *const f32,
    stride: usize,
    columns: usize,
    rows: usize,
    out: *mut f32,
    out_stride: usize,
    write: usize,
) {
    macro_rules! lanes {
        ($i:ident => $body:expr) => { lanes!(@ $i, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
        (@ $i:ident, $body:expr, $($n:literal)*) => { $(if $n < V::LANES { const $i: usize = $n; $body; })* };
    }
    // SAFETY: the caller's contract.
    unsafe {
        let zero = V::splat(0.0);
        let z = zero;
        let mut square: [V; MAX_LANES] = [z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z];
        if columns == V::LANES && rows == V::LANES {
            lanes!(I => square[I] = V::load(from.add(I * stride)));
            let turned = V::transpose(square);
            if write == V::LANES {
                lanes!(I => turned[I].store(out.add(I * out_stride)));
            } else {
                lanes!(I => turned[I].store_first(out.add(I * out_stride), write));
            }
        } else {
            lanes!(I => if I < columns { square[I] = V::load_first(from.add(I * stride), rows) });
            let turned = V::transpose(square);
            lanes!(I => if I < rows { turned[I].store_first(out.add(I * out_stride), write) });
        }
    }
}

/// Any strides, one element at a time.
struct Gather;

impl Routine for Gather {
    type Args = PanelArgs;

    #[inline(always)]
    unsafe fn run<V: Vector>(args: &PanelArgs) {
        for i in 0..args.long {
            for j in 0..args.width {
                // SAFETY: the contract of `panel`.
                unsafe {
                    let value = if j < args.short { *args.from.at(i, j).p } else { 0.0 };
                    *args.out.add(i * args.width + j) = value;
                }
            }
        }
    }
}
