//! The microkernel: a tile of C that stays in registers while k runs.
//!
//! Every element of the tile is one chain of multiply-adds in the order of k, whatever the extents of the tile, so an
//! element has the same bits whichever tile computes it. Accumulators are addressed by literals only: in an array
//! that a loop indexes, LLVM would keep them in memory.

use crate::Isa;
use crate::vector::{Kernel, Routine, Vector, dispatch, routine};

/// Rows of the largest tile of any instruction set.
pub(super) const MAX_ROWS: usize = 14;

/// Runs `$body` with the constant `$i` for every row below `$rows`, each a literal.
macro_rules! each_row {
    ($rows:expr, $i:ident => $body:block) => {
        each_row!(@ $rows, $i, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    (@ $rows:expr, $i:ident, $body:block, $($n:literal)*) => {
        $(if $n < $rows {
            const $i: usize = $n;
            $body
        })*
    };
}

/// An array of as many equal entries as a tile has rows, written out: a loop that fills it would bind it to memory.
macro_rules! fourteen {
    ($e:expr) => {
        [$e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e]
    };
}

pub(super) use {each_row, fourteen};

/// The largest tile of an instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TileShape {
    /// Rows.
    pub(crate) rows: usize,
    /// Lanes of a vector.
    pub(crate) lanes: usize,
    /// Whether a tile may read a part of a vector of B where it lies; otherwise the last columns are copied first.
    pub(crate) masked: bool,
}

impl TileShape {
    /// Columns: two vectors.
    pub(crate) fn columns(&self) -> usize {
        2 * self.lanes
    }

    /// The shape for an instruction set.
    pub(crate) fn of(isa: Isa) -> Self {
        struct Ask;
        impl Kernel for Ask {
            type Output = TileShape;
            #[inline(always)]
            unsafe fn run<V: Vector>(self) -> TileShape {
                TileShape { rows: rows::<V>(), lanes: V::LANES, masked: V::MASKED }
            }
        }
        // SAFETY: only constants are read; no instruction of the set runs.
        unsafe { dispatch(isa, Ask) }
    }
}

/// Rows of a tile of two vectors such that accumulators, two vectors of B and one of A fit the registers; a product
/// that is not fused needs one more.
const fn rows<V: Vector>() -> usize {
    if V::REGISTERS >= 32 {
        MAX_ROWS
    } else if V::FUSED {
        6
    } else {
        4
    }
}

/// A tile's work: `C = (init or 0) + A B`, or that added to C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileArgs {
    /// A: element (i, p) stands at `a + i * a_stride + p`, in a tile of columns at `a + i + p * a_stride`.
    pub(crate) a: *const f32,
    /// As above.
    pub(crate) a_stride: usize,
    /// B: row p stands at `b + p * b_stride`.
    pub(crate) b: *const f32,
    /// As above.
    pub(crate) b_stride: usize,
    /// Products in each element.
    pub(crate) k: usize,
    /// Where the sums start; null for zeros.
    pub(crate) init: *const f32,
    /// Distance of its rows.
    pub(crate) init_stride: usize,
    /// C.
    pub(crate) c: *mut f32,
    /// Distance of its rows.
    pub(crate) c_stride: usize,
    /// Columns in the last vector.
    pub(crate) last: usize,
    /// Whether the sums are added to C or replace it.
    pub(crate) add: bool,
    /// How far ahead of a row of B its next elements are asked for, where rows are long and only a part is read.
    pub(crate) ahead: usize,
}

/// The tile of `R` rows and `C` vectors; `COLUMNS` where A lies column by column.
struct Tile<const R: usize, const C: usize, const COLUMNS: bool>;

impl<const R: usize, const C: usize, const COLUMNS: bool> Routine for Tile<R, C, COLUMNS> {
    type Args = TileArgs;

    /// # Safety
    /// Everything that [`TileArgs`] describes is readable, C writable and not accessed by others. Where the last
    /// vector is not whole and the instruction set is not [`Vector::MASKED`], rows of B are readable as if it were.
    #[inline(always)]
    unsafe fn run<V: Vector>(t: &TileArgs) {
        // A tile with more rows than the registers hold is never looked up; leaving here keeps it from being compiled.
        if R > rows::<V>() {
            return;
        }
        let whole = t.last == V::LANES;
        // SAFETY: the contract of this function.
        unsafe {
            let zero = V::splat(0.0);
            let mut acc = fourteen!([zero, zero]);
            if t.add {
                // Rows at such distances share a few sets of the L1 cache, which do not hold them all: the L2 does.
                let far = t.c_stride.is_multiple_of(256);
                each_row!(R, I => {
                    let row = t.c.wrapping_add(I * t.c_stride);
                    if far {
                        V::prefetch_far(row);
                        V::prefetch_far(row.wrapping_add(C * V::LANES - 1));
                    } else {
                        V::prefetch(row);
                        V::prefetch(row.wrapping_add(C * V::LANES - 1));
                    }
                });
            }
            if !t.init.is_null() {
                each_row!(R, I => {
                    let row = t.init.add(I * t.init_stride);
                    if C == 2 {
                        acc[I] = [V::load(row), load::<V>(row.add(V::LANES), t.last, whole)];
                    } else {
                        acc[I][0] = load::<V>(row, t.last, whole);
                    }
                });
            }

            let mut b = t.b;
            // Rows of A as five pointers and offsets of one and two strides, which an address can hold.
            let s = if COLUMNS { 0 } else { t.a_stride };
            let mut rows = [
                t.a,
                t.a.wrapping_add(3 * s),
                t.a.wrapping_add(6 * s),
                t.a.wrapping_add(9 * s),
                t.a.wrapping_add(12 * s),
            ];
            macro_rules! step {
                () => {
                    let b0 = if C == 1 && V::MASKED { V::load_first(b, t.last) } else { V::load(b) };
                    let b1 = match C {
                        1 => b0,
                        _ if V::MASKED => V::load_first(b.add(V::LANES), t.last),
                        _ => V::load(b.add(V::LANES)),
                    };
                    each_row!(R, I => {
                        let a = V::splat(*if COLUMNS { rows[0].add(I) } else { rows[I / 3].add(I % 3 * s) });
                        acc[I][0] = a.mul_add(b0, acc[I][0]);
                        if C == 2 {
                            acc[I][1] = a.mul_add(b1, acc[I][1]);
                        }
                    });
                    if COLUMNS && t.ahead > 0 {
                        V::prefetch_far(b.wrapping_add(t.ahead));
                        if C == 2 {
                            V::prefetch_far(b.wrapping_add(t.ahead + 2 * V::LANES - 1));
                        }
                    }
                    b = b.wrapping_add(t.b_stride);
                    if COLUMNS {
                        rows[0] = rows[0].wrapping_add(t.a_stride);
                    } else {
                        rows[0] = rows[0].wrapping_add(1);
                        if R > 3 {
                            rows[1] = rows[1].wrapping_add(1);
                        }
                        if R > 6 {
                            rows[2] = rows[2].wrapping_add(1);
                        }
                        if R > 9 {
                            rows[3] = rows[3].wrapping_add(1);
                        }
                        if R > 12 {
                            rows[4] = rows[4].wrapping_add(1);
                        }
                    }
                };
            }
            let mut p = t.k;
            if COLUMNS {
                // Two steps a turn; on rows LLVM would load the broadcasts of both at once and run out of registers.
                while p >= 2 {
                    step!();
                    step!();
                    p -= 2;
                }
                if p == 1 {
                    step!();
                }
            } else {
                while p > 0 {
                    step!();
                    p -= 1;
                }
            }
            let _ = (b, rows);

            macro_rules! finish {
                ($whole:expr) => {
                    each_row!(R, I => {
                        let row = t.c.add(I * t.c_stride);
                        let [mut c0, mut c1] = acc[I];
                        if t.add {
                            if C == 2 {
                                c0 = V::load(row) + c0;
                                c1 = load::<V>(row.add(V::LANES), t.last, $whole) + c1;
                            } else {
                                c0 = load::<V>(row, t.last, $whole) + c0;
                            }
                        }
                        if C == 2 {
                            c0.store(row);
                            store(c1, row.add(V::LANES), t.last, $whole);
                        } else {
                            store(c0, row, t.last, $whole);
                        }
                    });
                };
            }
            if whole {
                finish!(true);
            } else {
                finish!(false);
            }
        }
    }
}

/// # Safety
/// As [`Vector::load`] when `whole`, else as [`Vector::load_first`].
#[inline(always)]
unsafe fn load<V: Vector>(p: *const f32, n: usize, whole: bool) -> V {
    // SAFETY: the caller's contract.
    unsafe { if whole { V::load(p) } else { V::load_first(p, n) } }
}

/// # Safety
/// As [`Vector::store`] when `whole`, else as [`Vector::store_first`].
#[inline(always)]
unsafe fn store<V: Vector>(v: V, p: *mut f32, n: usize, whole: bool) {
    // SAFETY: the caller's contract.
    unsafe { if whole { v.store(p) } else { v.store_first(p, n) } }
}

/// A tile compiled for an instruction set.
pub(crate) type TileFn = unsafe fn(&TileArgs);

/// The tile of `rows` rows and `vectors` (1 or 2) vectors; `columns` where A lies column by column.
///
/// # Panics
/// When there is no such tile: `rows` is between 1 and those of [`TileShape`].
pub(crate) fn tile(isa: Isa, rows: usize, vectors: usize, columns: bool) -> TileFn {
    fn pick<const C: usize, const COLUMNS: bool>(isa: Isa, rows: usize) -> TileFn {
        macro_rules! rows {
            ($($r:literal)*) => {
                match rows {
                    $($r => routine::<Tile<$r, C, COLUMNS>>(isa),)*
                    _ => unreachable!("a tile of {rows} rows"),
                }
            };
        }
        rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    }
    match (vectors, columns) {
        (1, false) => pick::<1, false>(isa, rows),
        (1, true) => pick::<1, true>(isa, rows),
        (_, false) => pick::<2, false>(isa, rows),
        (_, true) => pick::<2, true>(isa, rows),
    }
}
