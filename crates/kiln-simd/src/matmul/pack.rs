//! Packing: copies of blocks of A and B in the order in which tiles read them.
//!
//! A panel of A is as high as its tile and lies column by column: element (i, p) at `i + p * rows`. A panel of B is one
//! or two vectors wide and lies row by row, padded with zeros: element (p, j) at `p * width + j`.

use super::matrix::MatrixRef;
use crate::Isa;
use crate::vector::{MAX_LANES, Routine, Vector, routine};

/// A panel to be packed: `long` rows of `short <= width` elements, written `width` apart.
pub(super) struct PanelArgs {
    /// Element (0, 0); `long` counts its rows.
    pub(super) from: MatrixRef,
    /// Rows.
    pub(super) long: usize,
    /// Columns.
    pub(super) short: usize,
    /// Distance between the rows of the copy; columns beyond `short` become zeros.
    pub(super) width: usize,
    /// The copy.
    pub(super) out: *mut f32,
    /// Whether a vector beyond the copy may be overwritten: whole stores are faster than partial ones.
    pub(super) slack: bool,
}

/// Packs one panel. A panel of A is passed as a panel of its transpose.
///
/// # Safety
/// The source is readable, `out` is writable for `long * width` f32, plus a vector if there is slack; the instruction
/// set is available.
pub(super) unsafe fn panel(isa: Isa, args: PanelArgs) {
    let pack = match (args.from.column_stride, args.from.row_stride) {
        (1, _) => routine::<CopyRows>(isa),
        (_, 1) => routine::<TurnColumns>(isa),
        _ => routine::<Gather>(isa),
    };
    // SAFETY: the caller's contract.
    unsafe { pack(&args) }
}

/// Rows that are contiguous in the source.
struct CopyRows;

impl Routine for CopyRows {
    type Args = PanelArgs;

    #[inline(always)]
    unsafe fn run<V: Vector>(args: &PanelArgs) {
        let (mut from, mut out) = (args.from.p, args.out);
        // SAFETY: the contract of `panel`.
        unsafe {
            if args.short == args.width && args.width.is_multiple_of(V::LANES) {
                for _ in 0..args.long {
                    for j in (0..args.width).step_by(V::LANES) {
                        V::load(from.add(j)).store(out.add(j));
                    }
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

/// Copies whole panels of B with contiguous rows: `panels` of them side by side, so that a row is read in long runs.
struct CopyPanels;

/// The arguments of [`CopyPanels`].
pub(super) struct PanelsArgs {
    /// Element (0, 0).
    from: *const f32,
    /// Distance between rows.
    stride: usize,
    /// Rows.
    k: usize,
    /// Panels of two vectors.
    panels: usize,
    /// The copy.
    out: *mut f32,
}

/// The number of rows that are prefetched ahead of the copy: a run of a few lines of each row is too short for hardware
/// prefetchers.
const ROWS_AHEAD: usize = 8;

impl Routine for CopyPanels {
    type Args = PanelsArgs;

    #[inline(always)]
    unsafe fn run<V: Vector>(args: &PanelsArgs) {
        let width = 2 * V::LANES;
        for p in 0..args.k {
            let mut from = args.from.wrapping_add(p * args.stride);
            let mut out = args.out.wrapping_add(p * width);
            for _ in 0..args.panels {
                // SAFETY: the contract of `panels`.
                unsafe {
                    let (a, b) = (V::load(from), V::load(from.add(V::LANES)));
                    V::prefetch(from.wrapping_add(ROWS_AHEAD * args.stride));
                    V::prefetch(from.wrapping_add(ROWS_AHEAD * args.stride + V::LANES));
                    a.store(out);
                    b.store(out.add(V::LANES));
                }
                from = from.wrapping_add(width);
                out = out.wrapping_add(args.k * width);
            }
        }
    }
}

/// Packs rows `p .. p + k` of columns `j .. j + n` of B, panel after panel.
///
/// # Safety
/// The rows and columns are inside the matrix; `out` is writable for `k` times `n` rounded up to whole vectors; the
/// instruction set is available.
pub(crate) unsafe fn panels(b: MatrixRef, isa: Isa, p: usize, k: usize, j: usize, n: usize, out: *mut f32) {
    /// Panels side by side: 512 bytes of a row with 16 lanes, and as many write streams as the caches can follow.
    const TOGETHER: usize = 4;
    let lanes = isa.lanes();
    let width = 2 * lanes;
    let mut done = 0;
    while done < n {
        let columns = (n - done).min(width);
        let out = out.wrapping_add(done * k);
        let from = b.at(p, j + done);
        // SAFETY: the caller's contract.
        unsafe {
            if b.column_stride == 1 && columns == width {
                let panels = ((n - done) / width).min(TOGETHER);
                routine::<CopyPanels>(isa)(&PanelsArgs { from: from.p, stride: b.row_stride, k, panels, out });
                done += panels * width;
            } else {
                let width = columns.next_multiple_of(lanes);
                panel(isa, PanelArgs { from, long: k, short: columns, width, out, slack: false });
                done += columns;
            }
        }
    }
}

/// Columns that are contiguous in the source: squares are transposed in registers.
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
                // The next row overwrites what a whole store writes beyond a row.
                let whole = args.slack && args.width < V::LANES;
                let write = if whole { V::LANES } else { (args.width - j).min(V::LANES) };
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
/// The instruction set is available; `columns` runs of `rows` f32 are readable, `rows` runs of `write` writable; none
/// exceeds `LANES`.
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
        if rows == V::LANES && write == V::LANES {
            let turned = if columns == V::LANES {
                V::load_columns(from, stride)
            } else {
                V::load_columns_first(from, stride, columns)
            };
            lanes!(I => turned[I].store(out.add(I * out_stride)));
        } else {
            let z = V::splat(0.0);
            let mut square: [V; MAX_LANES] = [z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z];
            lanes!(I => if I < columns { square[I] = V::load_first(from.add(I * stride), rows) });
            let turned = V::transpose(square);
            lanes!(I => if I < rows {
                let row = out.add(I * out_stride);
                if write == V::LANES { turned[I].store(row) } else { turned[I].store_first(row, write) }
            });
        }
    }
}

/// Arbitrary strides, one element at a time.
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
