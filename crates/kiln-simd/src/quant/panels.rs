//! Products of several rows with quantised weights, in tiles.
//!
//! A panel is as many rows of weights as a register has lanes, unpacked once for all rows of x: unsigned bytes, four neighbours
//! of a row to a lane, with the scales and minima of each piece of 32. A tile multiplies a panel with up to 16 rows of x, which
//! are rounded to integers with a unit for each piece: of a piece, `s u Σ q x - m u Σ x`, where `s` and `m` are the scale and
//! minimum, `u` is the unit, and the sums of integers are exact. Signed weights are stored with an offset, whose product with
//! `Σ x` is where the sum starts.
//!
//! If x may be rounded to 8 bits ([`Precision::Int8`]), AVX-512 takes, for a row of x and a piece of 16 rows of weights, 8
//! products, a conversion, a product of scales and a multiply-add: products of bytes and of f32 share ports, so a tile reaches at
//! most 0.8 of the rate of products of bytes, which is four times that of f32. AVX2 takes some 27 instructions for 8 rows of
//! weights. The terms of pieces are added in f32, in order: the same bits for every width of registers, number of rows and of
//! threads.
//!
//! Otherwise x is rounded to 16 bits, as products of fewer rows do it, in two planes of bytes: 16 products of bytes instead of 8.
//! Terms are rounded and added as in the eight lanes of those products: first those of every eighth piece, then their totals.
//! Registers of 16 lanes alone are faster than those products.

use std::cell::RefCell;
use std::marker::PhantomData;

use kiln_ir::quant::{Scales, Values};
use kiln_ir::{Precision, QuantFormat};

use super::activations::{Line, MOST, MOST_BYTE, RUN, Rounding, integers};
use super::product::{PARALLEL, exact};
use super::weights::{Weights, for_weights, large_enough};
use crate::Isa;
use crate::simd::Simd;
use crate::threads::{self, Shared};
use crate::vector::{
    PIECE, PlainKernel, WordKernel, WordLimits, Words, dispatch_plain, dispatch_words, interleave, with_avx2,
};

/// Elements of a row of weights that are unpacked at once: a block of any format, or several.
const CHUNK: usize = 256;

/// Bytes of panels that a thread unpacks before it multiplies: they stay in the second-level cache while rows of x stream past.
const PANELS: usize = 256 << 10;

/// Elements of x that a thread rounds at once.
const ROUND: usize = 4096;

/// The properties of a format's integers.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    format: QuantFormat,
    /// Planes of bytes of x: one for 8 bits, two for 16.
    planes: usize,
    /// Groups with a scale in a piece: one or two.
    groups: usize,
    /// Whether groups have minima. The integers are unsigned then.
    affine: bool,
    /// The offset that makes integers unsigned.
    offset: u8,
}

impl Kind {
    const fn of(format: QuantFormat, planes: usize) -> Self {
        let layout = format.layout();
        let affine = layout.minimum().is_some();
        Self { format, planes, groups: PIECE / layout.group, affine, offset: format.least().unsigned_abs() }
    }

    /// The kind for a product with `rows` rows of x; `None` if it is not computed here.
    pub(super) fn new(simd: &Simd, format: QuantFormat, rows: usize) -> Option<Self> {
        let limits = WordLimits::new(simd.isa())?;
        let kind = Self::of(format, if simd.precision() == Precision::Int8 { 1 } else { 2 });
        // With two planes, a lane of products of fewer rows has the terms of a group of 32.
        let fits = kind.most() <= limits.most && (kind.planes == 1 || limits.planes == 2 && kind.groups == 1);
        (fits && rows >= kind.least_rows()).then_some(kind)
    }

    /// Rows of x from which unpacking the weights pays, on a Zen 4: products of fewer rows unpack weights in registers.
    const fn least_rows(self) -> usize {
        match self.format {
            QuantFormat::Q6K => 32,
            _ if self.planes == 2 => 32,
            _ => 12,
        }
    }

    /// The largest integer with its offset.
    const fn most(self) -> u8 {
        match self.format.layout().values {
            Values::Book(book) => book[book.len() - 1].unsigned_abs() + self.offset,
            _ => (u8::MAX as u16 >> (8 - self.format.layout().bits)) as u8,
        }
    }

    /// Bytes of a piece of a panel: its integers, scales, and minima.
    const fn piece(self, lanes: usize) -> usize {
        lanes * (PIECE + self.groups * size_of::<f32>() * (1 + self.affine as usize))
    }

    /// Bytes of a piece of a row of x: its integers, unit, and the sum of each group.
    const fn row(self) -> usize {
        self.planes * PIECE + size_of::<f32>() * (1 + self.groups)
    }

    /// The place of each of `pieces` pieces in panels and in rows of x.
    fn order(self, pieces: usize) -> Order {
        let mut starts = [0; LANES];
        let mut at = 0;
        for lane in PASSES {
            starts[lane] = at;
            at += (pieces + LANES - 1 - lane) / LANES;
        }
        Order { starts: (self.planes == 2).then_some(starts) }
    }
}

/// The lanes of products of fewer rows, which have the terms of every eighth piece.
const LANES: usize = 8;

/// The lanes in the order in which a tile computes them: totals of two are added as soon as both are there.
const PASSES: [usize; LANES] = [0, 4, 2, 6, 1, 5, 3, 7];

/// The order of the pieces of a row.
#[derive(Clone, Copy)]
struct Order {
    /// The beginnings of the pieces of each lane, if they are apart.
    starts: Option<[usize; LANES]>,
}

impl Order {
    fn place(self, piece: usize) -> usize {
        self.starts.map_or(piece, |starts| starts[piece % LANES] + piece / LANES)
    }
}

/// The rows of x: as many large tiles as there are, then smaller ones.
#[derive(Clone, Copy)]
struct Rows {
    count: usize,
    large: usize,
}

impl Rows {
    /// The first row and the number of rows of the tile with this row.
    fn tile(self, row: usize) -> [usize; 2] {
        let (mut first, mut rows) = (row / self.large * self.large, self.large);
        let rest = self.count - first;
        if rest >= rows {
            return [first, rows];
        }
        // A small tile for each bit of the rest.
        loop {
            rows /= 2;
            if rest & rows != 0 {
                if row < first + rows {
                    return [first, rows];
                }
                first += rows;
            }
        }
    }

    /// The first row and the number of rows of each tile.
    fn tiles(self) -> impl Iterator<Item = [usize; 2]> {
        let next = move |[first, rows]: [usize; 2]| (first + rows < self.count).then(|| self.tile(first + rows));
        std::iter::successors(Some(self.tile(0)), move |&tile| next(tile))
    }
}

/// Rounds a row of x.
///
/// # Safety
/// `out` is writable for the pieces of x, and nothing else accesses those of this row.
struct Round<'a> {
    x: &'a [f32],
    kind: Kind,
    /// The tile with the row.
    tile: [usize; 2],
    row: usize,
    order: Order,
    out: *mut u8,
}

impl PlainKernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        if self.kind.planes == 1 {
            for (i, x) in self.x.as_chunks::<PIECE>().0.iter().enumerate() {
                let (q, unit) = integers::<PIECE>(x, MOST_BYTE);
                self.write(i, &q, unit);
            }
        } else if Rounding::of(self.kind.format, false).len() == RUN {
            for (i, x) in self.x.as_chunks::<RUN>().0.iter().enumerate() {
                let (q, unit) = integers::<RUN>(x, MOST);
                for (j, q) in q.as_chunks::<PIECE>().0.iter().enumerate() {
                    self.write(i * (RUN / PIECE) + j, q, unit);
                }
            }
        } else {
            for (i, x) in self.x.as_chunks::<PIECE>().0.iter().enumerate() {
                let (q, unit) = integers::<PIECE>(x, MOST);
                self.write(i, &q, unit);
            }
        }
    }
}

impl Round<'_> {
    /// Writes a piece.
    #[inline(always)]
    fn write(&self, piece: usize, q: &[i32; PIECE], unit: f32) {
        let [first, rows] = self.tile;
        let Kind { planes, groups, .. } = self.kind;
        let r = self.row - first;
        let at = (first * (self.x.len() / PIECE) + rows * self.order.place(piece)) * self.kind.row();
        let mut bytes = [[0i8; PIECE]; 2];
        for l in 0..PIECE {
            // The low byte as a signed number, and what is left.
            bytes[1][l] = q[l] as i8;
            bytes[0][l] = ((q[l] - i32::from(bytes[1][l])) >> 8) as i8;
        }
        // SAFETY: the contract of `Round`. For each piece, a tile has the integers of its rows, then their units, then their sums.
        unsafe {
            let piece = self.out.add(at);
            // Not a loop: that becomes a copy of a variable length, which waits for the stores of `bytes`.
            let integers = piece.add(r * planes * PIECE).cast::<[i8; PIECE]>();
            if planes == 2 {
                integers.write(bytes[0]);
            }
            integers.add(planes - 1).write(bytes[1]);
            let units = piece.add(rows * planes * PIECE).cast::<f32>();
            units.add(r).write_unaligned(unit);
            for g in 0..groups {
                let len = PIECE / groups;
                let sum: i32 = q[g * len..(g + 1) * len].iter().sum();
                let sums = units.add(rows + r * groups + g);
                if self.kind.affine {
                    sums.write_unaligned(unit * sum as f32);
                } else {
                    sums.cast::<i32>().write_unaligned(-i32::from(self.kind.offset) * sum);
                }
            }
        }
    }
}

thread_local! {
    /// The rounded x of a product, reused between calls.
    static ROUNDED: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    /// The panels of a thread, reused between calls.
    static UNPACKED: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// `out = x wᵀ` for extents `[m, n, k]`, none of them zero, and what [`Kind::new`] returned.
pub(super) fn multiply(simd: &Simd, kind: Kind, x: &[f32], w: &[u8], extents: [usize; 3], out: &mut [f32]) {
    let [m, n, k] = extents;
    let Some(limits) = WordLimits::new(simd.isa()) else { return };
    let rows = Rows { count: m, large: limits.rows };
    let pieces = k / PIECE;
    let order = kind.order(pieces);
    let threads = if m.saturating_mul(n).saturating_mul(k) < PARALLEL { 1 } else { simd.threads() };
    // Taken out while in use, so that a nested call finds an empty buffer instead of a borrowed one.
    let mut scratch = ROUNDED.with(RefCell::take);
    grow(&mut scratch, m * pieces * kind.row());
    let rounded = Shared::new(scratch.as_mut_ptr().cast::<u8>());
    let part = (ROUND / k).clamp(1, m);
    threads::for_each(m.div_ceil(part), threads, |i| {
        for row in i * part..m.min((i + 1) * part) {
            let x = &x[row * k..(row + 1) * k];
            let round = Round { x, kind, tile: rows.tile(row), row, order, out: rounded.get() };
            // SAFETY: the scratch memory holds the pieces of every row; rows do not overlap. A `Simd` exists only for an
            // available instruction set.
            unsafe { dispatch_plain(simd.isa(), round) };
        }
    });
    let panel = pieces * kind.piece(limits.lanes);
    // Few enough for the cache, and for every thread to get several parts.
    let panels = (PANELS / panel).min(n / (limits.lanes * threads * 4)).max(1);
    let part = panels * limits.lanes;
    let out = Shared::new(out.as_mut_ptr());
    threads::for_each(n.div_ceil(part), threads, |i| {
        let mut scratch = UNPACKED.with(RefCell::take);
        grow(&mut scratch, panels * panel);
        let (first, count) = (i * part, part.min(n - i * part));
        let panels = scratch.as_mut_ptr().cast();
        let (isa, rounded, out) = (simd.isa(), rounded.get(), out.get());
        let part = Part { isa, limits, kind, order, x, w, rounded, panels, out, extents, first, count };
        // SAFETY: the pieces have been written; the scratch memory holds the panels of a part; the output holds m * n, and parts
        // have their own columns. The instruction set is available and has limits.
        unsafe { part.compute() };
        UNPACKED.with(|s| s.replace(scratch));
    });
    ROUNDED.with(|s| s.replace(scratch));
}

/// Makes room for this many bytes.
fn grow(scratch: &mut Vec<Line>, bytes: usize) {
    let lines = bytes.div_ceil(size_of::<Line>());
    if scratch.len() < lines {
        scratch.resize(lines, Line::ZERO);
    }
}

/// Rows `first .. first + count` of the weights times every row of x.
///
/// # Safety
/// `rounded` is readable for the pieces of x, `panels` writable for the panels of the part, `out` for `m * n` f32; nothing else
/// writes the columns of this part or reads its panels.
#[derive(Clone, Copy)]
struct Part<'a> {
    isa: Isa,
    limits: WordLimits,
    kind: Kind,
    order: Order,
    x: &'a [f32],
    w: &'a [u8],
    rounded: *const u8,
    panels: *mut u8,
    out: *mut f32,
    extents: [usize; 3],
    first: usize,
    count: usize,
}

impl Part<'_> {
    /// Computes the part.
    ///
    /// # Safety
    /// The conditions of [`Part`] hold, and its instruction set is available and has its limits.
    unsafe fn compute(&self) {
        let [m, _, k] = self.extents;
        let WordLimits { lanes, rows, .. } = self.limits;
        let panels = self.count.div_ceil(lanes);
        let size = k / PIECE * self.kind.piece(lanes);
        // SAFETY: the caller's contract; every set with words has AVX2.
        unsafe {
            for panel in 0..panels {
                let out = self.panels.add(panel * size);
                for_weights!(self.kind.format, false, F => with_avx2(Unpack::<F> { part: self, panel, out, format: PhantomData }));
            }
            for [first, rows] in (Rows { count: m, large: rows }).tiles() {
                for panel in 0..panels {
                    let tile = Tile { part: self, first, panel, unpacked: self.panels.add(panel * size) };
                    match rows {
                        16 => tile.compute::<16>(),
                        8 => tile.compute::<8>(),
                        4 => tile.compute::<4>(),
                        2 => tile.compute::<2>(),
                        _ => tile.compute::<1>(),
                    }
                }
            }
        }
    }

    /// The rows of weights of a panel of this many lanes.
    fn rows(&self, panel: usize, lanes: usize) -> [usize; 2] {
        let at = panel * lanes;
        [self.first + at, lanes.min(self.count - at)]
    }
}

/// Some rows of x times a panel.
///
/// # Safety
/// The conditions of [`Part`] hold, its instruction set is available, the panel is unpacked, and the rows of x are a tile.
#[derive(Clone, Copy)]
struct Tile<'a> {
    part: &'a Part<'a>,
    /// The first row of x.
    first: usize,
    panel: usize,
    unpacked: *const u8,
}

impl Tile<'_> {
    /// Computes the tile, of `R` rows of x: one function for each kind of integers, because one function with all of them takes
    /// several times as long to compile.
    ///
    /// # Safety
    /// The conditions of [`Tile`] hold.
    unsafe fn compute<const R: usize>(self) {
        let Kind { planes, groups, affine, .. } = self.part.kind;
        let isa = self.part.isa;
        // SAFETY: the caller's contract.
        unsafe {
            match (planes, groups, affine) {
                (2, _, false) => dispatch_words(isa, TwoPlanes::<R, false>(self)),
                (2, _, true) => dispatch_words(isa, TwoPlanes::<R, true>(self)),
                (_, 1, false) => dispatch_words(isa, OnePlane::<R, 1, false>(self)),
                (_, 1, true) => dispatch_words(isa, OnePlane::<R, 1, true>(self)),
                (_, _, false) => dispatch_words(isa, OnePlane::<R, 2, false>(self)),
                (_, _, true) => dispatch_words(isa, OnePlane::<R, 2, true>(self)),
            }
        }
    }
}

/// A tile of `R` rows for one plane of x and pieces of `G` groups, with minima if `AFFINE`.
struct OnePlane<'a, const R: usize, const G: usize, const AFFINE: bool>(Tile<'a>);

impl<const R: usize, const G: usize, const AFFINE: bool> WordKernel for OnePlane<'_, R, G, AFFINE> {
    #[inline(always)]
    unsafe fn run<W: Words>(self) {
        // Larger tiles are never asked for, and not compiled.
        if const { R <= W::ROWS } {
            // SAFETY: the conditions of the tile hold.
            unsafe { self.0.multiply::<W, R, G, AFFINE>() }
        }
    }
}

/// A tile of `R` rows for two planes of x, with minima if `AFFINE`.
struct TwoPlanes<'a, const R: usize, const AFFINE: bool>(Tile<'a>);

impl<const R: usize, const AFFINE: bool> WordKernel for TwoPlanes<'_, R, AFFINE> {
    #[inline(always)]
    unsafe fn run<W: Words>(self) {
        if const { R <= W::ROWS && W::PLANES == 2 } {
            // SAFETY: the conditions of the tile hold.
            unsafe { self.0.multiply_planes::<W, R, AFFINE>() }
        }
    }
}

impl Tile<'_> {
    /// [`OnePlane`].
    ///
    /// # Safety
    /// The conditions of [`Tile`] hold.
    #[inline(always)]
    unsafe fn multiply<W: Words, const R: usize, const G: usize, const AFFINE: bool>(self) {
        let Part { kind, rounded, extents: [_, _, k], .. } = *self.part;
        let register = 4 * W::LANES;
        let (piece, row) = (kind.piece(W::LANES), kind.row());
        // SAFETY: the caller's contract; offsets are those of the layouts of panels and of rounded rows.
        unsafe {
            let (mut w, mut x) = (self.unpacked, rounded.add(self.first * (k / PIECE) * row));
            let mut sums = [W::zero(); R];
            for _ in 0..k / PIECE {
                let mut weights = [W::no_ints(); 8];
                for i in 0..8 {
                    weights[i] = W::ints(w.add(i * register));
                }
                let factors = w.add(8 * register).cast::<f32>();
                let mut scales = [W::zero(); G];
                for g in 0..G {
                    scales[g] = W::floats(factors.add(g * W::LANES));
                }
                let units = x.add(R * PIECE).cast::<f32>();
                // Written out, because the compiler keeps the sums of a long loop in memory.
                macro_rules! rows {
                    ($($r:literal)*) => { $(if const { $r < R } {
                        let x = x.add($r * PIECE);
                        let of_x = units.add(R + $r * G);
                        let product = if G == 1 {
                            let start = if AFFINE { W::no_ints() } else { W::start(of_x.cast()) };
                            W::mul(W::to_floats(W::dots::<0, 8>(&weights, x, start)), scales[0])
                        } else {
                            let mut starts = [W::no_ints(); 2];
                            if !AFFINE {
                                starts = [W::start(of_x.cast()), W::start(of_x.add(1).cast())];
                            }
                            let first = W::mul(W::to_floats(W::dots::<0, 4>(&weights, x, starts[0])), scales[0]);
                            W::mul_add(W::to_floats(W::dots::<4, 4>(&weights, x, starts[1])), scales[G - 1], first)
                        };
                        sums[$r % R] = W::mul_add(product, W::same(units.add($r)), sums[$r % R]);
                        if AFFINE {
                            for g in 0..G {
                                let minima = W::floats(factors.add((G + g) * W::LANES));
                                sums[$r % R] = W::mul_sub(minima, W::same(of_x.add(g)), sums[$r % R]);
                            }
                        }
                    })* };
                }
                rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
                w = w.add(piece);
                x = x.add(R * row);
            }
            self.store::<W, R>(sums);
        }
    }

    /// [`TwoPlanes`].
    ///
    /// # Safety
    /// The conditions of [`Tile`] hold.
    #[inline(always)]
    unsafe fn multiply_planes<W: Words, const R: usize, const AFFINE: bool>(self) {
        let Part { kind, rounded, extents: [_, _, k], .. } = *self.part;
        let register = 4 * W::LANES;
        let (piece, row, pieces) = (kind.piece(W::LANES), kind.row(), k / PIECE);
        // SAFETY: the caller's contract; offsets are those of the layouts of panels and of rounded rows.
        unsafe {
            let (mut w, mut x) = (self.unpacked, rounded.add(self.first * pieces * row));
            // Totals of lanes that wait for others: of one lane, two and four.
            let mut waiting = [[W::zero(); R]; 3];
            for (pass, lane) in PASSES.into_iter().enumerate() {
                let mut sums = [W::zero(); R];
                for _ in 0..(pieces + LANES - 1 - lane) / LANES {
                    let mut weights = [W::no_ints(); 8];
                    for i in 0..8 {
                        weights[i] = W::ints(w.add(i * register));
                    }
                    let factors = w.add(8 * register).cast::<f32>();
                    let scales = W::floats(factors);
                    let minima = if AFFINE { W::floats(factors.add(W::LANES)) } else { W::zero() };
                    let units = x.add(2 * R * PIECE).cast::<f32>();
                    // Written out, because the compiler keeps the sums of a long loop in memory.
                    macro_rules! rows {
                        ($($r:literal)*) => { $(if const { $r < R } {
                            let x = x.add(2 * $r * PIECE);
                            let of_x = units.add(R + $r);
                            let start = if AFFINE { W::no_ints() } else { W::start(of_x.cast()) };
                            let high = W::dots::<0, 8>(&weights, x, W::no_ints());
                            let value = W::with_high(W::dots::<0, 8>(&weights, x.add(PIECE), start), high);
                            let product = W::mul(W::to_floats(value), scales);
                            let sum = W::add(sums[$r % R], W::mul(product, W::same(units.add($r))));
                            sums[$r % R] = if AFFINE { W::sub(sum, W::mul(minima, W::same(of_x))) } else { sum };
                        })* };
                    }
                    rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
                    w = w.add(piece);
                    x = x.add(R * row);
                }
                // As many totals wait as there are ones at the end of the number of the pass.
                let joins = pass.trailing_ones() as usize;
                for waiting in &waiting[..joins] {
                    for r in 0..R {
                        sums[r] = W::add(waiting[r], sums[r]);
                    }
                }
                if joins < waiting.len() {
                    waiting[joins] = sums;
                } else {
                    self.store::<W, R>(sums);
                }
            }
        }
    }

    /// Writes the products of the tile; those that are not finite are computed from the elements.
    ///
    /// # Safety
    /// The conditions of [`Tile`] hold.
    #[inline(always)]
    unsafe fn store<W: Words, const R: usize>(self, sums: [W::Floats; R]) {
        let Part { kind, x, w, extents: [_, n, k], out, .. } = *self.part;
        let [column, valid] = self.part.rows(self.panel, W::LANES);
        // SAFETY: the caller's contract.
        unsafe {
            for r in 0..R {
                let mut products = [0.0; MOST_LANES];
                W::store(products.as_mut_ptr(), sums[r]);
                let products = &mut products[..valid];
                if products.iter().any(|y| !y.is_finite()) {
                    for (j, y) in products.iter_mut().enumerate().filter(|(_, y)| !y.is_finite()) {
                        *y = exact(kind.format, x, w, k, self.first + r, column + j);
                    }
                }
                let out = out.add((self.first + r) * n + column);
                out.copy_from_nonoverlapping(products.as_ptr(), valid);
            }
        }
    }
}

/// Writes a panel of the format of `F`, a constant: divisions by the lengths of blocks would take longer than what is done here.
///
/// # Safety
/// The conditions of [`Part`] hold, AVX2 is available, and `out` is writable for a panel.
struct Unpack<'a, F> {
    part: &'a Part<'a>,
    panel: usize,
    out: *mut u8,
    format: PhantomData<F>,
}

impl<F: Weights> PlainKernel for Unpack<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Part { kind, order, w, extents: [_, _, k], limits: WordLimits { lanes, .. }, .. } = *self.part;
        let [first, rows] = self.part.rows(self.panel, lanes);
        if rows < lanes {
            // Lanes without a row of weights get the scale zero.
            // SAFETY: the contract of `Unpack`.
            unsafe { self.out.write_bytes(0, k / PIECE * kind.piece(lanes)) };
        }
        let stride = k / F::FORMAT.block_len() * F::FORMAT.block_bytes();
        let weights = &w[first * stride..][..rows * stride];
        let mut chunk = Chunk { q: [0; MOST_LANES * CHUNK], lanes, rows };
        let mut at = 0;
        while at < k {
            let blocks = &weights[at / F::FORMAT.block_len() * F::FORMAT.block_bytes()..];
            let place = |piece: usize| order.place(at / PIECE + piece);
            // SAFETY: the contract of `Unpack`.
            unsafe { chunk.unpack::<F>(blocks, stride, CHUNK.min(k - at), self.out, place) };
            at += CHUNK;
        }
    }
}

/// The integers of [`CHUNK`] elements of each row of a panel.
struct Chunk {
    q: [i8; MOST_LANES * CHUNK],
    /// Lanes of a register.
    lanes: usize,
    /// Rows of weights in the panel.
    rows: usize,
}

impl Chunk {
    /// Writes the pieces of `len` elements of a panel, each to its place. Rows of blocks are `stride` bytes apart.
    ///
    /// # Safety
    /// AVX2 is available, and `out` writable for the pieces.
    #[inline(always)]
    unsafe fn unpack<F: Weights>(
        &mut self,
        blocks: &[u8],
        stride: usize,
        len: usize,
        out: *mut u8,
        place: impl Fn(usize) -> usize,
    ) {
        // The planes of x do not matter.
        let Kind { format, groups, affine, offset, .. } = const { Kind::of(F::FORMAT, 1) };
        let (lanes, piece) = (self.lanes, const { Kind::of(F::FORMAT, 1) }.piece(self.lanes));
        let book = match format.layout().values {
            Values::Book(book) => Some(book),
            _ => None,
        };
        let (mut scales, mut minima) = ([0.0; CHUNK / 16], [0.0; CHUNK / 16]);
        for row in 0..self.rows {
            let blocks = &blocks[row * stride..];
            let q = &mut self.q[row * CHUNK..][..CHUNK];
            let (count, whole) = (len / PIECE * groups, const { CHUNK / PIECE * Kind::of(F::FORMAT, 1).groups });
            // Lengths agree, so it cannot fail. The last elements of a row, if they are fewer, are not worth a copy of the code.
            let _ = if len == CHUNK {
                let blocks = &blocks[..const { CHUNK / F::FORMAT.block_len() * F::FORMAT.block_bytes() }];
                QuantFormat::unpack_as::<F>(blocks, q, &mut scales[..whole], &mut minima[..whole])
            } else {
                let blocks = &blocks[..len / F::FORMAT.block_len() * F::FORMAT.block_bytes()];
                format.unpack(blocks, &mut q[..len], &mut scales[..count], &mut minima[..count])
            };
            for g in 0..count {
                if matches!(format.layout().scales, Scales::Power { .. }) {
                    scales[g] = large_enough(scales[g]);
                }
                // SAFETY: the caller's contract; the scales and the minima of a piece follow its integers.
                unsafe {
                    let factors = out.add(place(g / groups) * piece + lanes * PIECE).cast::<f32>();
                    let lane = factors.add(g % groups * lanes + row);
                    lane.write_unaligned(scales[g]);
                    if affine {
                        lane.add(groups * lanes).write_unaligned(minima[g]);
                    }
                }
            }
        }
        for i in 0..len / PIECE {
            for eight in 0..lanes / 8 {
                // SAFETY: the caller's contract; each lane has a row of `CHUNK` integers.
                unsafe {
                    let rows = self.q.as_ptr().cast::<u8>().add(i * PIECE + 8 * eight * CHUNK);
                    let out = out.add(place(i) * piece + 32 * eight);
                    interleave(rows, CHUNK, book, offset, out, 4 * lanes);
                }
            }
        }
    }
}

/// The most lanes of a register.
const MOST_LANES: usize = 16;
