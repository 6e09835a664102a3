//! The microkernel: a tile of C that stays in registers while k runs.
//!
//! Every element of the tile is one chain of multiply-adds in the order of k, whatever the extents of the tile, so an
//! element has the same bits whichever tile computes it. Accumulators are addressed by literals only: in an array
//! that a loop indexes, LLVM would keep them in memory.

use crate::Isa;
use crate::tile::{first_vectors, in_order};
use crate::vector::{Registers, Routine, Vector, by_isa, routine};

/// Rows of the largest tile of any instruction set.
pub(super) const MAX_ROWS: usize = 16;

/// Expands `$body` with the constant `$i` for every row below `$rows`, each a literal. Inline constants here and below:
/// LLVM never sees a branch on a false one, and compiling it would take minutes.
macro_rules! each_row {
    ($rows:expr, $i:ident => $body:block) => {
        each_row!(@ $rows, $i, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $rows:expr, $i:ident, $body:block, $($n:literal)*) => {
        $(if const { $n < $rows } {
            const $i: usize = $n;
            $body
        })*
    };
}

/// An array with an equal entry for each possible row of a tile, written out: a loop that fills it would force it into
/// memory.
macro_rules! for_rows {
    ($e:expr) => {
        [$e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e, $e]
    };
}

pub(crate) use {each_row, for_rows};

/// The sizes of the largest tiles of an instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileShape {
    /// Rows of the tiles of one, two and three vectors for row-major A and B; 0 if they do not fit.
    rows_of: [usize; 3],
    /// Rows of the tiles of two vectors.
    pub(super) rows: usize,
    /// Lanes of a vector.
    pub(super) lanes: usize,
    /// Whether a tile may read a partial vector of B in place; otherwise the last columns are copied first.
    pub(super) masked: bool,
}

impl TileShape {
    /// Columns of two vectors, which are a panel of a packed B.
    pub(super) const fn columns(&self) -> usize {
        2 * self.lanes
    }

    /// The first panel of this many columns of a row-major B, for tiles of a kind.
    #[inline]
    pub(super) fn direct_panel(&self, columns: usize, kind: usize) -> DirectPanel {
        let most = if kind == ROWS && self.rows_of[2] > 0 { 3 } else { 2 };
        // Comparisons are faster than a division; five or more vectors are treated alike.
        let there = (1..5).fold(1, |vectors, at| vectors + usize::from(columns > at * self.lanes));
        let vectors = first_vectors(there, most).min(there);
        let columns = columns.min(vectors * self.lanes);
        DirectPanel { vectors, columns, last: columns - (vectors - 1) * self.lanes, rows: self.rows_of[vectors - 1] }
    }
}

/// Some columns of a row-major B.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectPanel {
    /// Vectors in a row.
    pub(super) vectors: usize,
    /// Columns.
    pub(super) columns: usize,
    /// Columns in the last vector.
    pub(super) last: usize,
    /// Rows of the largest tile of this many vectors.
    pub(super) rows: usize,
}

/// Maximum rows of a tile such that accumulators, vectors of B and one of A fit the registers; an unfused product needs
/// one more register. Only row-major operands have tiles of three vectors: their 12 loads serve 27 products, while with
/// two vectors 16 loads serve 28, which matters by a tenth of the time if another thread of the core needs the load
/// units too. Packed tiles of three vectors are no faster, and A takes longer to pack.
const fn rows(registers: usize, fused: bool, vectors: usize, kind: usize) -> usize {
    if registers >= 32 {
        match vectors {
            1 if kind < PANELS => MAX_ROWS,
            1 | 2 => 14,
            _ if kind == ROWS => 9,
            _ => 0,
        }
    } else if vectors == 3 {
        0
    } else if fused && registers >= 16 {
        6
    } else {
        4
    }
}

/// The work of a tile: `C = (init or 0) + A B`, or the same added to C.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileArgs {
    /// A: element (i, p) is at `a + i * a_stride + p` for [`ROWS`] and [`ADDED`], at `a + i + p * a_stride` for
    /// [`COLUMNS`], at `a + i + p * rows` for [`PANELS`] and [`PACKING`].
    pub(super) a: *const f32,
    /// See `a`.
    pub(super) a_stride: usize,
    /// B: row p is at `b + p * b_stride`, in [`PANELS`] at `p` times the vectors of the tile.
    pub(super) b: *const f32,
    /// See `b`.
    pub(super) b_stride: usize,
    /// Products in each element.
    pub(super) k: usize,
    /// The initial sums; null for zeros. Only for [`COLUMNS`].
    pub(super) init: *const f32,
    /// Distance between its rows.
    pub(super) init_stride: usize,
    /// C.
    pub(super) c: *mut f32,
    /// Distance between its rows.
    pub(super) c_stride: usize,
    /// Columns in the last vector.
    pub(super) last: usize,
    /// The addend of the sums; null without one. Not for [`ROWS`].
    pub(super) plus: *const f32,
    /// Distance between its rows.
    pub(super) plus_stride: usize,
    /// For [`COLUMNS`]: how far ahead the elements of a row of B are prefetched, if rows are long and only a part is
    /// read.
    pub(super) ahead: usize,
    /// For [`COLUMNS`]: the number of adjacent tiles to compute in turn. More than one only if they are whole.
    pub(super) repeat: usize,
    /// For [`PANELS`] and [`PACKING`]: rows of 32 elements of B that are read later. One row is prefetched every
    /// [`TURN`] steps, until the rows of C are: the two lines beginning with that of its first element; if it begins
    /// inside a line, the rest belongs to the adjacent rows.
    pub(super) later_b: Ask,
    /// The same for the lines of a row of A.
    pub(super) later_a: Ask,
    /// For [`PANELS`] and [`PACKING`]: the rows of C that are prefetched in the last turns: those that are read, or, if
    /// the sums are added to cached memory, those that are written.
    pub(super) soon_c: Ask,
    /// For [`PACKING`]: the panel to which B is copied.
    pub(super) panel: *mut f32,
}

/// Memory to prefetch in parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    /// The first part. Any address is allowed.
    pub(super) p: *const f32,
    /// Distance between parts.
    pub(super) stride: usize,
}

impl TileArgs {
    /// No prefetch, as in most tiles.
    pub(super) const NOTHING: Self = Self {
        a: std::ptr::null(),
        a_stride: 0,
        b: std::ptr::null(),
        b_stride: 0,
        k: 0,
        init: std::ptr::null(),
        init_stride: 0,
        c: std::ptr::null_mut(),
        c_stride: 0,
        last: 0,
        plus: std::ptr::null(),
        plus_stride: 0,
        ahead: 0,
        repeat: 1,
        later_b: Ask::nothing(std::ptr::null()),
        later_a: Ask::nothing(std::ptr::null()),
        soon_c: Ask::nothing(std::ptr::null()),
        panel: std::ptr::null_mut(),
    };
}

impl Ask {
    /// A prefetch of memory that is cached already.
    pub(super) const fn nothing(there: *const f32) -> Self {
        Self { p: there, stride: 0 }
    }
}

/// Whether an iteration of a loop over k has several steps. When compiling for WebAssembly, LLVM moves each product
/// down to the next one of its chain, past the loads of the steps between, and no fence prevents it: all loaded values
/// would be live at once, and engines spill them to the stack. Products of 512 x 512 then take a quarter longer.
const UNROLL: bool = !cfg!(target_family = "wasm");

/// Steps of k in an iteration of the loop over panels, if it has several.
pub(super) const TURN: usize = 4;

/// Iterations at the end of a tile in which its rows of C are prefetched, including some for the last to arrive.
pub(super) const fn last_turns(rows: usize) -> usize {
    rows + 4
}

/// A is row-major, B in any layout. The options that these tiles ignore would cost small products a tenth.
pub(super) const ROWS: usize = 0;
/// The same, added to something.
pub(super) const ADDED: usize = 1;
/// A is column-major, B in any layout.
pub(super) const COLUMNS: usize = 2;
/// A and B are packed.
pub(super) const PANELS: usize = 3;
/// A is packed; B is two whole vectors wide in any layout, and the tile packs it: the tile stores the vectors that it
/// loads anyway, which takes no additional time.
pub(super) const PACKING: usize = 4;

/// The number of rows that a packing tile prefetches B ahead.
const ROWS_AHEAD: usize = 8;

/// The tile of `R` rows and `C` vectors for the operand layout `KIND`.
struct Tile<const R: usize, const C: usize, const KIND: usize>;

impl<const R: usize, const C: usize, const KIND: usize> Routine for Tile<R, C, KIND> {
    type Args = TileArgs;

    /// # Safety
    /// Everything that [`TileArgs`] describes is readable, C writable and not accessed by others. If the last vector is
    /// not whole, rows of B are readable as if it were, unless the instruction set is [`Vector::MASKED`].
    #[inline(always)]
    unsafe fn run<V: Vector>(t: &TileArgs) {
        // A tile with more rows than fit the registers is never called; returning here keeps the rest from being
        // compiled.
        if const { R > rows(V::REGISTERS, V::FUSED, C, KIND) } {
            return;
        }
        let tiles = if KIND == COLUMNS { t.repeat } else { 1 };
        for tile in 0..tiles {
            // SAFETY: the contract of this function.
            unsafe { Self::one::<V>(t, tile * C * V::LANES) }
        }
    }
}

impl<const R: usize, const C: usize, const KIND: usize> Tile<R, C, KIND> {
    /// The tile that begins `at` columns after the beginnings of B and C.
    ///
    /// # Safety
    /// The conditions of [`Routine::run`] hold.
    #[inline(always)]
    unsafe fn one<V: Vector>(t: &TileArgs, at: usize) {
        let whole = t.last == V::LANES;
        // SAFETY: the contract of this function.
        unsafe {
            let zero = V::splat(0.0);
            let mut acc = for_rows!([zero, zero, zero]);
            if const { KIND >= PANELS } {
                let (mut a, mut b, mut panel) = (t.a, t.b, t.panel);
                let TileArgs { mut later_b, mut later_a, mut soon_c, .. } = *t;
                // A constant if B is packed, so that few instructions are between the products.
                let b_stride = if const { KIND == PACKING } { t.b_stride } else { C * V::LANES };
                /// One step of an iteration.
                macro_rules! packed_step {
                    ($n:literal) => {
                        step::<V, Column, R, C>(&mut acc, b.add($n * b_stride), None, Column(a.add($n * R)));
                        if const { KIND == PACKING } {
                            let row = b.add($n * b_stride);
                            V::prefetch(row.wrapping_add(ROWS_AHEAD * b_stride));
                            V::prefetch(row.wrapping_add(ROWS_AHEAD * b_stride + V::LANES));
                            V::load(row).store(panel.add($n * C * V::LANES));
                            V::load(row.add(V::LANES)).store(panel.add($n * C * V::LANES + V::LANES));
                        }
                    };
                }
                macro_rules! ahead {
                    ($n:literal) => {
                        a = a.wrapping_add($n * R);
                        b = b.wrapping_add($n * b_stride);
                        panel = panel.wrapping_add($n * C * V::LANES);
                    };
                }
                let turns = if const { UNROLL } { t.k / TURN } else { 0 };
                for left in (0..turns).rev() {
                    // Before the products: LLVM would move those of the last step past a branch after them, and keep
                    // the sums in memory meanwhile.
                    if left >= last_turns(R) {
                        V::prefetch_far(later_b.p);
                        V::prefetch_far(later_b.p.wrapping_add(16));
                        V::prefetch_far(later_a.p);
                        later_b.p = later_b.p.wrapping_add(later_b.stride);
                        later_a.p = later_a.p.wrapping_add(later_a.stride);
                    } else {
                        // The rows of C are prefetched one by one: all at once, they would fill the buffers that the
                        // loads of A and B need too. They are prefetched late, because A and B would evict them again.
                        V::prefetch(soon_c.p);
                        if const { C == 2 } {
                            V::prefetch(soon_c.p.wrapping_add(V::LANES));
                        }
                        V::prefetch(soon_c.p.wrapping_add(C * V::LANES - 1));
                        soon_c.p = soon_c.p.wrapping_add(soon_c.stride);
                    }
                    packed_step!(0);
                    packed_step!(1);
                    packed_step!(2);
                    packed_step!(3);
                    ahead!(4);
                }
                for _ in turns * TURN..t.k {
                    packed_step!(0);
                    ahead!(1);
                }
            } else {
                if const { KIND != ROWS } && !t.plus.is_null() {
                    each_row!(R, I => {
                        let row = t.plus.wrapping_add(at + I * t.plus_stride);
                        V::prefetch(row);
                        V::prefetch(row.wrapping_add(C * V::LANES - 1));
                    });
                }
                if const { KIND == COLUMNS } && !t.init.is_null() {
                    each_row!(R, I => {
                        let row = t.init.add(at + I * t.init_stride);
                        for v in 0..C {
                            acc[I][v] = load::<V>(row.add(v * V::LANES), t.last, whole || v + 1 < C);
                        }
                    });
                }
                let mut b = t.b.wrapping_add(at);
                // Addresses the rows of A as a few pointers plus offsets of one and two strides, which an addressing
                // mode supports.
                let s = if KIND == COLUMNS { 0 } else { t.a_stride };
                let mut rows = [
                    t.a,
                    t.a.wrapping_add(3 * s),
                    t.a.wrapping_add(6 * s),
                    t.a.wrapping_add(9 * s),
                    t.a.wrapping_add(12 * s),
                    t.a.wrapping_add(15 * s),
                ];
                macro_rules! walk {
                    ($masked:expr) => {
                        let last = if $masked { Some(t.last) } else { None };
                        if const { KIND == COLUMNS } {
                            for _ in 0..t.k {
                                step::<V, Column, R, C>(&mut acc, b, last, Column(rows[0]));
                                if t.ahead > 0 {
                                    V::prefetch_far(b.wrapping_add(t.ahead));
                                    if const { C == 2 } {
                                        V::prefetch_far(b.wrapping_add(t.ahead + V::LANES));
                                    }
                                }
                                rows[0] = rows[0].wrapping_add(t.a_stride);
                                b = b.wrapping_add(t.b_stride);
                            }
                        } else {
                            let mut left = t.k;
                            if const { UNROLL && R <= UNROLLED && !$masked } {
                                for _ in 0..t.k / TURN {
                                    step::<V, RowsAt, R, C>(&mut acc, b, last, RowsAt { rows, stride: s, at: 0 });
                                    in_order();
                                    let next = b.add(t.b_stride);
                                    step::<V, RowsAt, R, C>(&mut acc, next, last, RowsAt { rows, stride: s, at: 1 });
                                    in_order();
                                    let next = b.add(2 * t.b_stride);
                                    step::<V, RowsAt, R, C>(&mut acc, next, last, RowsAt { rows, stride: s, at: 2 });
                                    in_order();
                                    let next = b.add(3 * t.b_stride);
                                    step::<V, RowsAt, R, C>(&mut acc, next, last, RowsAt { rows, stride: s, at: 3 });
                                    in_order();
                                    b = b.wrapping_add(TURN * t.b_stride);
                                    rows = moved(rows, TURN);
                                }
                                left = t.k % TURN;
                            }
                            for _ in 0..left {
                                step::<V, RowsAt, R, C>(&mut acc, b, last, RowsAt { rows, stride: s, at: 0 });
                                b = b.wrapping_add(t.b_stride);
                                rows = moved(rows, 1);
                            }
                        }
                    };
                }
                // A partial load costs an arithmetic instruction that whole loads do not.
                if const { !V::MASKED } || whole {
                    walk!(false);
                } else {
                    walk!(true);
                }
                let _ = (b, rows);
            }

            // Masks cost next to nothing here, and the code exists only once.
            if const { !V::MASKED } && whole {
                Self::finish::<V>(t, at, &acc, true);
            } else {
                Self::finish::<V>(t, at, &acc, false);
            }
        }
    }

    /// Writes the sums, of whole vectors if `all_whole`, a constant.
    ///
    /// # Safety
    /// The conditions of [`Routine::run`] hold.
    #[inline(always)]
    unsafe fn finish<V: Vector>(t: &TileArgs, at: usize, acc: &[[V; 3]; MAX_ROWS], all_whole: bool) {
        let TileArgs { plus, plus_stride, .. } = *t;
        // SAFETY: the contract of this function.
        unsafe {
            // Advances from row to row by one addition each: the addresses of all rows at once would need multiplications,
            // and registers that the tile needs.
            let mut row = t.c.wrapping_add(at);
            each_row!(R, I => {
                let mut c = acc[I];
                for v in 0..C {
                    let whole = all_whole || v + 1 < C;
                    if const { KIND != ROWS } && !plus.is_null() {
                        let row = plus.add(at + I * plus_stride + v * V::LANES);
                        c[v] = load::<V>(row, t.last, whole) + c[v];
                    }
                    store(c[v], row.add(v * V::LANES), t.last, whole);
                }
                row = row.wrapping_add(t.c_stride);
            });
            let _ = row;
        }
    }
}

/// The elements of A in a step.
trait Elements: Copy {
    /// # Safety
    /// The row exists.
    unsafe fn row(self, i: usize) -> *const f32;
}

/// The rows of a column-major or packed A.
#[derive(Clone, Copy)]
struct Column(*const f32);

impl Elements for Column {
    #[inline(always)]
    unsafe fn row(self, i: usize) -> *const f32 {
        // SAFETY: the caller's contract.
        unsafe { self.0.add(i) }
    }
}

/// The rows of a row-major A: every third has a pointer.
#[derive(Clone, Copy)]
struct RowsAt {
    rows: [*const f32; 6],
    stride: usize,
    at: usize,
}

impl Elements for RowsAt {
    #[inline(always)]
    unsafe fn row(self, i: usize) -> *const f32 {
        // SAFETY: the caller's contract.
        unsafe { self.rows[i / 3].add(i % 3 * self.stride + self.at) }
    }
}

/// One step of k: a row of B from `b`, with as many elements in the last vector as `last` says, a constant if it says nothing. One
/// function for all steps of tiles of a size: in a macro, every step of every tile would have the branches of the largest tile, which
/// take longer to compile than the code that is left.
///
/// # Safety
/// The row of B and `R` rows of A are readable; the instruction set is available.
#[inline(always)]
unsafe fn step<V: Vector, A: Elements, const R: usize, const C: usize>(
    acc: &mut [[V; 3]; MAX_ROWS],
    b: *const f32,
    last: Option<usize>,
    a: A,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let zero = V::splat(0.0);
        /// One vector of the row.
        macro_rules! vector {
            ($v:literal) => {
                if const { $v >= C } {
                    zero
                } else if const { $v + 1 == C } {
                    match last {
                        Some(last) => V::load_first(b.add($v * V::LANES), last),
                        None => V::load(b.add($v * V::LANES)),
                    }
                } else {
                    V::load(b.add($v * V::LANES))
                }
            };
        }
        let b = [vector!(0), vector!(1), vector!(2)];
        each_row!(R, I => {
            let a = V::splat(*a.row(I));
            acc[I][0] = a.mul_add(b[0], acc[I][0]);
            if const { C > 1 } {
                acc[I][1] = a.mul_add(b[1], acc[I][1]);
            }
            if const { C > 2 } {
                acc[I][2] = a.mul_add(b[2], acc[I][2]);
            }
        });
    }
}

/// Advances each pointer by `n` elements.
#[inline(always)]
fn moved([a, b, c, d, e, f]: [*const f32; 6], n: usize) -> [*const f32; 6] {
    [a.wrapping_add(n), b.wrapping_add(n), c.wrapping_add(n), d.wrapping_add(n), e.wrapping_add(n), f.wrapping_add(n)]
}

/// # Safety
/// The conditions of [`Vector::load`] hold if `whole`, else those of [`Vector::load_first`].
#[inline(always)]
unsafe fn load<V: Vector>(p: *const f32, n: usize, whole: bool) -> V {
    // SAFETY: the caller's contract.
    unsafe { if whole { V::load(p) } else { V::load_first(p, n) } }
}

/// # Safety
/// The conditions of [`Vector::store`] hold if `whole`, else those of [`Vector::store_first`].
#[inline(always)]
unsafe fn store<V: Vector>(v: V, p: *mut f32, n: usize, whole: bool) {
    // SAFETY: the caller's contract.
    unsafe { if whole { v.store(p) } else { v.store_first(p, n) } }
}

/// Maximum rows of a tile for which steps over rows of A are unrolled: with more, the compiler runs out of registers.
const UNROLLED: usize = 11;

/// A tile compiled for an instruction set.
pub(super) type TileFn = unsafe fn(&TileArgs);

/// The tiles of an instruction set.
#[derive(Clone, Copy)]
pub(super) struct TileSet {
    /// The largest tiles.
    pub(super) shape: TileShape,
    /// Tile functions by kind, vectors minus one, rows minus one.
    fns: [[[TileFn; MAX_ROWS]; 3]; 5],
}

impl TileSet {
    /// The tiles of an instruction set, from a table: small products take less time than a few branches.
    pub(super) fn of(isa: Isa) -> &'static Self {
        static SETS: [TileSet; Isa::ALL.len()] = by_isa!(TileSet::new);
        &SETS[isa as usize]
    }

    const fn new(isa: Isa) -> Self {
        // Fills the entries of tiles that no instruction set has: even an empty function takes time to compile.
        let none = [routine::<Tile<1, 1, ROWS>>(isa); MAX_ROWS];
        macro_rules! heights {
            ($c:literal, $kind:expr, $($r:literal)*) => {{
                let mut fns = none;
                $(fns[$r - 1] = routine::<Tile<$r, $c, { $kind }>>(isa);)*
                fns
            }};
        }
        macro_rules! one {
            ($kind:expr) => { heights!(1, $kind, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16) };
        }
        macro_rules! two {
            ($kind:expr) => { heights!(2, $kind, 1 2 3 4 5 6 7 8 9 10 11 12 13 14) };
        }
        let of_rows = [one!(ROWS), two!(ROWS), heights!(3, ROWS, 1 2 3 4 5 6 7 8 9)];
        let added = [heights!(1, ADDED, 1 2 3 4 5 6 7 8), heights!(2, ADDED, 1 2 3 4 5 6 7 8), none];
        let of_columns = [one!(COLUMNS), two!(COLUMNS), none];
        let of_panels = [heights!(1, PANELS, 1 2 3 4 5 6 7 8 9 10 11 12 13 14), two!(PANELS), none];
        let Registers { lanes, count, fused, masked } = isa.registers();
        let rows_of = [rows(count, fused, 1, ROWS), rows(count, fused, 2, ROWS), rows(count, fused, 3, ROWS)];
        let shape = TileShape { rows_of, rows: rows_of[1], lanes, masked };
        Self { shape, fns: [of_rows, added, of_columns, of_panels, [none, two!(PACKING), none]] }
    }

    /// The tile of this many rows and vectors.
    #[inline]
    pub(super) fn tile(&self, kind: usize, rows: usize, vectors: usize) -> TileFn {
        debug_assert!(rows <= self.shape.rows_of[vectors - 1]);
        self.fns[kind][vectors - 1][rows - 1]
    }

    /// The tile of `rows` rows and one or two vectors, as needed for `columns`.
    pub(super) fn get(&self, kind: usize, rows: usize, columns: usize) -> TileFn {
        self.tile(kind, rows, 1 + usize::from(columns > self.shape.lanes))
    }
}
