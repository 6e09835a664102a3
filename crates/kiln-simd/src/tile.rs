//! The register tile of convolution and attention: a few rows times one to three vectors of a product `A B`.
//!
//! It packs nothing. An element of A is broadcast from its place; a row of B is loaded from wherever a table of
//! offsets says, which makes a shifted image or a matrix of any row stride a B without a copy.

use std::marker::PhantomData;

use crate::vector::{Routine, Vector};

/// The elements of A that a tile reads, column by column.
pub(crate) trait Left: Copy {
    /// # Safety
    /// Row `r` of the current column exists.
    unsafe fn at(self, r: usize) -> *const f32;

    /// The next column.
    ///
    /// # Safety
    /// The pointers of the next column may be computed; they need not be readable.
    unsafe fn next(self) -> Self;
}

/// A row-major A. Every third row has a pointer: x86 addressing modes cover a base plus one and two strides.
#[derive(Clone, Copy)]
pub(crate) struct RowMajor {
    bases: [*const f32; 5],
    stride: usize,
}

impl RowMajor {
    /// Rows from `p`, `stride` elements apart.
    #[inline(always)]
    pub(crate) fn new(p: *const f32, stride: usize) -> Self {
        let at = |i: usize| p.wrapping_add(3 * i * stride);
        Self { bases: [at(0), at(1), at(2), at(3), at(4)], stride }
    }
}

impl Left for RowMajor {
    #[inline(always)]
    unsafe fn at(self, r: usize) -> *const f32 {
        self.bases[r / 3].wrapping_add(r % 3 * self.stride)
    }

    #[inline(always)]
    unsafe fn next(self) -> Self {
        let [a, b, c, d, e] = self.bases;
        let next = |p: *const f32| p.wrapping_add(1);
        Self { bases: [next(a), next(b), next(c), next(d), next(e)], ..self }
    }
}

/// A column-major A: the rows of a column are contiguous.
#[derive(Clone, Copy)]
pub(crate) struct ColumnMajor {
    /// The current column.
    pub(crate) p: *const f32,
    /// Distance between columns.
    pub(crate) stride: usize,
}

impl Left for ColumnMajor {
    #[inline(always)]
    unsafe fn at(self, r: usize) -> *const f32 {
        self.p.wrapping_add(r)
    }

    #[inline(always)]
    unsafe fn next(self) -> Self {
        Self { p: self.p.wrapping_add(self.stride), ..self }
    }
}

/// Vectors in a row of the widest tile.
pub(crate) const fn most_vectors(registers: usize) -> usize {
    if registers >= 32 { 3 } else { 2 }
}

/// Vectors of the next tile when this many remain: as wide as possible, except that two tiles of two vectors are
/// preferred to one of three and a last of one, which is slow.
pub(crate) const fn first_vectors(vectors: usize, most: usize) -> usize {
    if most == 3 && vectors != 4 { 3 } else { 2 }
}

/// The number of leading tiles of three vectors for this many vectors.
pub(crate) const fn wide_tiles(vectors: usize, most: usize) -> usize {
    match (most, vectors % 3) {
        (2, _) => 0,
        (_, 1) => (vectors / 3).saturating_sub(1),
        _ => vectors / 3,
    }
}

/// With greedy division the first tiles are the wide ones, and no single vector is left.
const _: () = {
    let mut vectors = 0;
    while vectors < 64 {
        let (mut left, mut wide) = (vectors, 0);
        while left >= first_vectors(left, 3) && first_vectors(left, 3) == 3 {
            (left, wide) = (left - 3, wide + 1);
        }
        assert!(wide_tiles(vectors, 3) == wide && wide_tiles(vectors, 2) == 0);
        assert!(left == 0 || left == 2 || left == 4 || vectors == 1);
        vectors += 1;
    }
};

/// Maximum rows of a tile this many vectors wide: an accumulator for each, and registers for a row of B and an element
/// of A. 0 if three vectors leave registers for too few rows.
pub(crate) const fn max_rows<V: Vector>(vectors: usize) -> usize {
    match (V::REGISTERS >= 32, vectors) {
        (true, 3) => 9,
        (true, _) => 14,
        (false, 3) => 0,
        (false, _) => 6,
    }
}

/// Divides `m` rows into as few tiles as possible of nearly equal height: `(first, rows)` of each.
pub(crate) fn panels(m: usize, max: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = m.div_ceil(max);
    (0..count).map(move |i| {
        let first = i * m / count;
        (first, (i + 1) * m / count - first)
    })
}

/// The destination of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The address of its first element.
    pub(crate) p: *mut f32,
    /// Distance between rows.
    pub(crate) stride: usize,
    /// Whether it is added to the target instead of replacing it.
    pub(crate) add: bool,
}

/// [`multiply`] as a separate function, for kernels that call it in many places.
pub(crate) struct Product<A, const VECTORS: usize>(PhantomData<A>);

/// The arguments of [`Product`].
pub(crate) struct ProductArgs<A> {
    /// Rows of the tile.
    pub(crate) rows: usize,
    /// A, from its first element in the tile.
    pub(crate) a: A,
    /// The base of the offsets.
    pub(crate) b: *const f32,
    /// The offsets of the rows of B.
    pub(crate) offsets: *const [usize],
    /// C.
    pub(crate) target: Target,
}

impl<A: Left, const VECTORS: usize> Routine for Product<A, VECTORS> {
    type Args = ProductArgs<A>;

    /// # Safety
    /// The conditions of [`multiply`] hold.
    #[inline(always)]
    unsafe fn run<V: Vector>(t: &ProductArgs<A>) {
        // SAFETY: the contract of this function.
        unsafe { multiply::<V, A, VECTORS>(t.rows, t.a, t.b, &*t.offsets, t.target) }
    }
}

macro_rules! tile {
    ($($rows:literal: $($r:literal)*;)*) => {
        /// `C[r] (+)= Σₖ A[r][k] B[k]` for `rows` rows of one to three vectors: a running sum over k in registers.
        ///
        /// # Safety
        /// The instruction set of `V` is available; `rows` is at most [`max_rows`]; A has `rows` rows and as many
        /// columns as there are offsets; at each offset from `b`, and at each row of the target, this many vectors may
        /// be accessed.
        #[inline(always)]
        pub(crate) unsafe fn multiply<V: Vector, A: Left, const VECTORS: usize>(
            rows: usize,
            a: A,
            b: *const f32,
            offsets: &[usize],
            target: Target,
        ) {
            // SAFETY: the contract of this function.
            unsafe {
                let zero = V::splat(0.0);
                match rows {
                    $($rows if const { $rows <= max_rows::<V>(VECTORS) } => {
                        // Indices are literals, so that the arrays stay in registers.
                        let (mut first, mut second, mut third) = ([zero; $rows], [zero; $rows], [zero; $rows]);
                        let mut a = a;
                        macro_rules! step {
                            ($offset:expr) => {
                                let b = b.add($offset);
                                let b0 = V::load(b);
                                let b1 = if const { VECTORS > 1 } { V::load(b.add(V::LANES)) } else { b0 };
                                let b2 = if const { VECTORS > 2 } { V::load(b.add(2 * V::LANES)) } else { b0 };
                                $(
                                    let x = V::splat(*a.at($r));
                                    first[$r] = x.mul_add(b0, first[$r]);
                                    if const { VECTORS > 1 } {
                                        second[$r] = x.mul_add(b1, second[$r]);
                                    }
                                    if const { VECTORS > 2 } {
                                        third[$r] = x.mul_add(b2, third[$r]);
                                    }
                                )*
                                a = a.next();
                            };
                        }
                        // Two steps per iteration halve the instructions for pointers of A and the loop.
                        let (pairs, rest) = offsets.as_chunks::<2>();
                        for &[offset, next] in pairs {
                            step!(offset);
                            in_order();
                            step!(next);
                        }
                        for &offset in rest {
                            step!(offset);
                        }
                        $(
                            let p = target.p.add($r * target.stride);
                            finish(first[$r], p, target.add);
                            if const { VECTORS > 1 } {
                                finish(second[$r], p.add(V::LANES), target.add);
                            }
                            if const { VECTORS > 2 } {
                                finish(third[$r], p.add(2 * V::LANES), target.add);
                            }
                        )*
                    })*
                    _ => {}
                }
            }
        }
    };
}

tile! {
    1: 0;
    2: 0 1;
    3: 0 1 2;
    4: 0 1 2 3;
    5: 0 1 2 3 4;
    6: 0 1 2 3 4 5;
    7: 0 1 2 3 4 5 6;
    8: 0 1 2 3 4 5 6 7;
    9: 0 1 2 3 4 5 6 7 8;
    10: 0 1 2 3 4 5 6 7 8 9;
    11: 0 1 2 3 4 5 6 7 8 9 10;
    12: 0 1 2 3 4 5 6 7 8 9 10 11;
    13: 0 1 2 3 4 5 6 7 8 9 10 11 12;
    14: 0 1 2 3 4 5 6 7 8 9 10 11 12 13;
}

/// Keeps the compiler from moving loads between steps: it would load the elements of A several steps ahead and run out
/// of registers.
#[inline(always)]
pub(crate) fn in_order() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Writes an accumulator, or adds it to the target.
///
/// # Safety
/// `p` is valid for a vector.
#[inline(always)]
unsafe fn finish<V: Vector>(sum: V, p: *mut f32, add: bool) {
    // SAFETY: the contract of this function.
    unsafe { if add { (V::load(p) + sum).store(p) } else { sum.store(p) } }
}
