use super::Bytes;
use super::portable::PortableBytes;

/// 16 bytes in an instruction set with 128-bit registers, and the corresponding four sums.
pub(super) trait Piece: Copy {
    /// Four 32-bit sums.
    type Ints: Copy;
    /// Four sums in f32.
    type Floats: Copy;
    /// [`Bytes::APART`].
    const APART: bool = false;

    /// Prefetches the cache line at `p`. Any address is allowed.
    #[inline(always)]
    fn prefetch(_p: *const u8) {}
    /// # Safety
    /// The instruction set is available; `p` is readable for 16 bytes.
    unsafe fn load(p: *const u8) -> Self;
    /// The bits in the mask of every byte after a shift left, or right if `by` is negative. Bits that would leave their
    /// byte must not be in the mask.
    fn bits(self, by: i32, mask: u8) -> Self;
    /// Bitwise or.
    fn or(self, b: Self) -> Self;
    /// The lower halves of `a` and `b` interleaved in 32-bit units, then the upper ones.
    fn interleave_32(a: Self, b: Self) -> [Self; 2];
    /// The lower halves of `a` and `b`, then the upper ones.
    fn interleave_64(a: Self, b: Self) -> [Self; 2];

    /// `256 high + low`, where a lane sums the products of its four bytes of each of `weights`, below 64, with the
    /// signed bytes at `x` (high) and at `x + 256` (low); each further element of `weights` uses the bytes 64 further.
    /// If `INT8`, only `high`.
    ///
    /// # Safety
    /// `x` is readable for 464 bytes, or 208.
    unsafe fn dots<const INT8: bool>(weights: [Self; 4], x: *const u8) -> Self::Ints;
    /// The sums of the products of eight signed bytes with eight 16-bit integers, two to a lane.
    ///
    /// # Safety
    /// The instruction set is available; `w` is readable for eight bytes and `x` for 16.
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> Self::Ints;
    /// Sums, four to a lane, of the products of 16 signed bytes with 16 others, at least -127.
    ///
    /// # Safety
    /// The instruction set is available; `w` and `x` are readable for 16 bytes.
    unsafe fn byte_dot(w: *const u8, x: *const u8) -> Self::Ints;

    /// # Safety
    /// The instruction set is available; `p` is readable for four integers.
    unsafe fn load_ints(p: *const i32) -> Self::Ints;
    /// `a + b`.
    fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// The sums of adjacent pairs of `a`, then of `b`.
    fn add_pairs(a: Self::Ints, b: Self::Ints) -> Self::Ints;

    /// # Safety
    /// The instruction set is available.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// # Safety
    /// The instruction set is available; `p` is readable for four f32.
    unsafe fn load_floats(p: *const f32) -> Self::Floats;
    /// # Safety
    /// `p` is writable for four f32.
    unsafe fn store_floats(x: Self::Floats, p: *mut f32);
    /// Nearest f32.
    fn to_floats(x: Self::Ints) -> Self::Floats;
    /// `a + b`.
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a - b`.
    fn sub(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b`.
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
}

/// Four registers.
#[derive(Clone, Copy)]
pub(super) struct Four<P>(P);

/// Quarter `C` of the lanes of a block of Q4_K or Q5_K: sub-blocks `2 C` and `2 C + 1`. From the 32 bytes that they
/// share, bytes `16 PART ..`.
///
/// # Safety
/// The conditions of [`Bytes::block`] hold.
#[inline(always)]
unsafe fn affine<P: Piece, const BITS: usize, const C: usize, const PART: usize>(
    low: *const u8,
    high: *const u8,
) -> [P; 2] {
    // SAFETY: the caller's contract; offsets are those of the layouts.
    unsafe {
        let q = P::load(low.add(32 * C + 16 * PART));
        let (mut even, mut odd) = (q.bits(0, 15), q.bits(-4, 15));
        if BITS == 5 {
            let (fifth, by) = (P::load(high.add(16 * PART)), 4 - 2 * C as i32);
            (even, odd) = (even.or(fifth.bits(by, 16)), odd.or(fifth.bits(by - 1, 16)));
        }
        P::interleave_64(even, odd)
    }
}

/// Quarter `C` of the lanes of a block of Q6_K: 16 bytes of each of four rows of 32, which are four sub-blocks.
///
/// # Safety
/// The conditions of [`Bytes::block`] hold.
#[inline(always)]
unsafe fn symmetric<P: Piece, const C: usize>(low: *const u8, high: *const u8) -> [P; 4] {
    let (half, part) = (C / 2, C % 2);
    // SAFETY: the caller's contract; offsets are those of the layout.
    unsafe {
        let (low, high) = (low.add(64 * half + 16 * part), high.add(32 * half + 16 * part));
        let (first, second, pairs) = (P::load(low), P::load(low.add(32)), P::load(high));
        let rows = [
            first.bits(0, 15).or(pairs.bits(4, 0x30)),
            second.bits(0, 15).or(pairs.bits(2, 0x30)),
            first.bits(-4, 15).or(pairs.bits(0, 0x30)),
            second.bits(-4, 15).or(pairs.bits(-2, 0x30)),
        ];
        let ([a, b], [c, d]) = (P::interleave_32(rows[0], rows[1]), P::interleave_32(rows[2], rows[3]));
        let ([a, b], [c, d]) = (P::interleave_64(a, c), P::interleave_64(b, d));
        [a, b, c, d]
    }
}

/// Adds quarter `C` of the lanes of [`Bytes::dots`].
///
/// # Safety
/// The conditions of [`Bytes::block`] hold for the addresses in the block.
#[inline(always)]
unsafe fn quarter_dots<P: Piece, const BITS: usize, const INT8: bool, const R: usize, const C: usize>(
    low: *const u8,
    high: *const u8,
    x: [*const u8; R],
    sums: &mut [[P::Ints; 4]; R],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let weights = if BITS == 6 {
            symmetric::<P, C>(low, high)
        } else {
            let [a, b] = affine::<P, BITS, C, 0>(low, high);
            let [c, d] = affine::<P, BITS, C, 1>(low, high);
            [a, b, c, d]
        };
        for r in 0..R {
            sums[r][C] = P::add_ints(sums[r][C], P::dots::<INT8>(weights, x[r].add(16 * C)));
        }
    }
}

impl<P: Piece> Bytes for Four<P> {
    type Ints = [P::Ints; 4];
    type Floats = [P::Floats; 4];
    type EightInts = [P::Ints; 2];
    type Eight = [P::Floats; 2];
    type Halves = [f32; 4];
    /// A quarter is unpacked at a time.
    type Block = [*const u8; 2];
    type Wide = [u8; 32];
    const APART: bool = P::APART;

    #[inline(always)]
    fn prefetch(p: *const u8) {
        P::prefetch(p);
    }

    #[inline(always)]
    unsafe fn block<const BITS: usize>(low: *const u8, high: *const u8) -> [*const u8; 2] {
        [low, high]
    }

    #[inline(always)]
    unsafe fn dots<const BITS: usize, const INT8: bool, const R: usize>(
        [low, high]: [*const u8; 2],
        x: [*const u8; R],
        mut sums: [[P::Ints; 4]; R],
    ) -> [[P::Ints; 4]; R] {
        // SAFETY: the caller's contract.
        unsafe {
            quarter_dots::<P, BITS, INT8, R, 0>(low, high, x, &mut sums);
            quarter_dots::<P, BITS, INT8, R, 1>(low, high, x, &mut sums);
            quarter_dots::<P, BITS, INT8, R, 2>(low, high, x, &mut sums);
            quarter_dots::<P, BITS, INT8, R, 3>(low, high, x, &mut sums);
        }
        sums
    }

    #[inline(always)]
    unsafe fn wide(p: *const u8) -> [u8; 32] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::wide(p) }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [u8; 32] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::nibbles(p) }
    }
    #[inline(always)]
    unsafe fn with_bits(w: [u8; 32], bits: *const u8) -> [u8; 32] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::with_bits(w, bits) }
    }
    #[inline(always)]
    unsafe fn with_third(w: [u8; 32], third: [u8; 32]) -> [u8; 32] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::with_third(w, third) }
    }
    #[inline(always)]
    unsafe fn masked(w: [u8; 32], right: usize, mask: u8) -> [u8; 32] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::masked(w, right, mask) }
    }
    #[inline(always)]
    unsafe fn shifted(w: [u8; 32], by: i8) -> [u8; 32] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::shifted(w, by) }
    }
    #[inline(always)]
    unsafe fn looked_up(w: [u8; 32], book: &[i8; 16]) -> [u8; 32] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::looked_up(w, book) }
    }
    #[inline(always)]
    unsafe fn dot(w: [u8; 32], x: *const u8) -> [P::Ints; 4] {
        // SAFETY: the caller's contract; there are 32 bytes.
        let of = |i: usize| unsafe { P::wide_dot(w.as_ptr().add(8 * i), x.add(16 * i)) };
        [of(0), of(1), of(2), of(3)]
    }

    #[inline(always)]
    unsafe fn dots_of_run<const INT8: bool>(q: &[[u8; 32]; 8], x: *const u8) -> [P::Ints; 2] {
        // SAFETY: the caller's contract; there are eight integers.
        unsafe {
            if const { P::APART } {
                // From integers in memory, the compiler makes faster code for SSE2 than that of the pieces.
                let sums = PortableBytes::dots_of_run::<INT8>(q, x);
                return [P::load_ints(sums.as_ptr()), P::load_ints(sums.as_ptr().add(4))];
            }
            let mut sums = [P::load_ints([0; 4].as_ptr()); 8];
            for piece in 0..8 {
                sums[piece] = if INT8 {
                    let (w, x) = (q[piece].as_ptr(), x.add(32 * piece));
                    P::add_ints(P::byte_dot(w, x), P::byte_dot(w.add(16), x.add(16)))
                } else {
                    let [a, b, c, d] = Self::dot(q[piece], x.add(64 * piece));
                    P::add_ints(P::add_ints(a, b), P::add_ints(c, d))
                };
            }
            let [a, b, c, d, e, f, g, h] = sums;
            let first = P::add_pairs(P::add_pairs(a, b), P::add_pairs(c, d));
            [first, P::add_pairs(P::add_pairs(e, f), P::add_pairs(g, h))]
        }
    }

    #[inline(always)]
    unsafe fn no_ints() -> [P::Ints; 4] {
        // SAFETY: the caller's contract; four integers are read.
        [unsafe { P::load_ints([0; 4].as_ptr()) }; 4]
    }
    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> [P::Ints; 4] {
        // SAFETY: the caller's contract.
        let of = |i: usize| unsafe { P::load_ints(p.add(4 * i)) };
        [of(0), of(1), of(2), of(3)]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [P::Floats; 4] {
        // SAFETY: the caller's contract.
        let of = |i: usize| unsafe { P::load_floats(p.add(4 * i)) };
        [of(0), of(1), of(2), of(3)]
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [P::Floats; 4] {
        // SAFETY: the caller's contract.
        [unsafe { P::splat(x) }; 4]
    }

    #[inline(always)]
    unsafe fn pair(first: f32, second: f32) -> [P::Floats; 4] {
        // SAFETY: the caller's contract.
        let [first, second] = unsafe { [P::splat(first), P::splat(second)] };
        [first, first, second, second]
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::halves(p) }
    }
    #[inline(always)]
    unsafe fn factor<const I: usize>(halves: [f32; 4], unit: f32) -> [P::Floats; 4] {
        // SAFETY: the caller's contract.
        [unsafe { P::splat(halves[I] * unit) }; 4]
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [P::Floats; 4] {
        // SAFETY: the caller's contract; there are sixteen.
        unsafe { Self::load(PortableBytes::signed_codes(p).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn mul(a: [P::Floats; 4], b: [P::Floats; 4]) -> [P::Floats; 4] {
        let of = |i: usize| P::mul(a[i], b[i]);
        [of(0), of(1), of(2), of(3)]
    }
    #[inline(always)]
    unsafe fn add(sums: [P::Floats; 4], value: [P::Ints; 4], steps: [P::Floats; 4]) -> [P::Floats; 4] {
        let of = |i: usize| P::add(sums[i], P::mul(steps[i], P::to_floats(value[i])));
        [of(0), of(1), of(2), of(3)]
    }
    #[inline(always)]
    unsafe fn sub(sums: [P::Floats; 4], x: *const f32, steps: [P::Floats; 4]) -> [P::Floats; 4] {
        // SAFETY: the caller's contract.
        let of = |i: usize| P::sub(sums[i], P::mul(steps[i], unsafe { P::load_floats(x.add(4 * i)) }));
        [of(0), of(1), of(2), of(3)]
    }
    #[inline(always)]
    unsafe fn total(sums: [P::Floats; 4]) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { Self::total_eight([P::add(sums[0], sums[2]), P::add(sums[1], sums[3])]) }
    }

    #[inline(always)]
    unsafe fn fold(sums: [P::Ints; 4]) -> [P::Ints; 2] {
        [P::add_pairs(sums[0], sums[1]), P::add_pairs(sums[2], sums[3])]
    }
    #[inline(always)]
    unsafe fn zero_eight() -> [P::Floats; 2] {
        // SAFETY: the caller's contract.
        [unsafe { P::splat(0.0) }; 2]
    }
    #[inline(always)]
    unsafe fn load_eight(p: *const f32) -> [P::Floats; 2] {
        // SAFETY: the caller's contract.
        unsafe { [P::load_floats(p), P::load_floats(p.add(4))] }
    }
    #[inline(always)]
    unsafe fn eight_halves<const STRIDE: usize>(p: *const u8) -> [P::Floats; 2] {
        // SAFETY: the caller's contract; there are eight.
        unsafe { Self::load_eight(PortableBytes::eight_halves::<STRIDE>(p).as_ptr()) }
    }
    #[inline(always)]
    unsafe fn eight_scales<const I: usize>(codes: [u8; 8], halves: [f32; 4]) -> [P::Floats; 2] {
        // SAFETY: the caller's contract; there are eight.
        unsafe { Self::load_eight(PortableBytes::eight_scales::<I>(codes, halves).as_ptr()) }
    }
    #[inline(always)]
    unsafe fn add_eight(
        sums: [P::Floats; 2],
        value: [P::Ints; 2],
        scales: [P::Floats; 2],
        units: *const f32,
    ) -> [P::Floats; 2] {
        // SAFETY: the caller's contract.
        let units = unsafe { Self::load_eight(units) };
        let of = |i: usize| P::add(sums[i], P::mul(P::mul(P::to_floats(value[i]), scales[i]), units[i]));
        [of(0), of(1)]
    }
    #[inline(always)]
    unsafe fn sub_eight(sums: [P::Floats; 2], minima: [P::Floats; 2], x: *const f32) -> [P::Floats; 2] {
        // SAFETY: the caller's contract.
        let x = unsafe { Self::load_eight(x) };
        let of = |i: usize| P::sub(sums[i], P::mul(minima[i], x[i]));
        [of(0), of(1)]
    }
    #[inline(always)]
    unsafe fn total_eight(sums: [P::Floats; 2]) -> f32 {
        let mut four = [0.0f32; 4];
        // SAFETY: there is room for four.
        unsafe { P::store_floats(P::add(sums[0], sums[1]), four.as_mut_ptr()) };
        (four[0] + four[2]) + (four[1] + four[3])
    }
}
