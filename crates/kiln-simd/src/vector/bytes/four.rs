use super::portable::PortableBytes;
use super::{AFFINE_ORDER, Bytes};

/// 16 bytes of an instruction set with registers of 128 bits, and the four sums that go with them.
///
/// As with [`Bytes`], a value is the witness that the instruction set is there.
pub(super) trait Piece: Copy {
    /// Four sums of 32 bits.
    type Ints: Copy;
    /// Four sums in f32.
    type Floats: Copy;

    /// # Safety
    /// The instruction set is there; `p` is good for reading 16 bytes.
    unsafe fn load(p: *const u8) -> Self;
    /// Asks for the cache line at `p`. Any address will do.
    #[inline(always)]
    fn prefetch(_p: *const u8) {}
    /// The bits of every byte that are in the mask.
    fn and(self, mask: u8) -> Self;
    /// Bitwise or.
    fn or(self, b: Self) -> Self;
    /// Every byte shifted left, or right where `BY` is negative. What leaves its byte may end up in another one.
    fn shift<const BY: i32>(self) -> Self;
    /// The bytes as integers.
    fn widen(self) -> [Self::Ints; 4];

    /// # Safety
    /// The instruction set is there.
    unsafe fn zeros() -> Self::Ints;
    /// A code times 256, twice, and the code, twice.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn scale(code: i32) -> Self::Ints;
    /// [`Bytes::dot`] for these bytes; the correction is of eight words.
    ///
    /// # Safety
    /// The planes are good for reading 16 bytes, and the correction too where there is one.
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: Self::Ints,
        sums: Self::Ints,
    ) -> Self::Ints;
    /// The sums of the products of eight signed bytes with eight integers of 16 bits, two to a lane.
    ///
    /// # Safety
    /// The instruction set is there; `w` is good for reading eight bytes and `x` 16.
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> Self::Ints;

    /// # Safety
    /// The instruction set is there.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// # Safety
    /// The instruction set is there; `p` is good for reading four f32.
    unsafe fn load_floats(p: *const f32) -> Self::Floats;
    /// # Safety
    /// `p` is good for writing four f32.
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
pub(super) struct Four<P>([P; 4]);

/// Both halves of a register of codes: the first two pieces belong to one sub-block, the others to the next.
#[inline(always)]
fn sub_blocks(register: usize) -> [usize; 4] {
    let [a, b] = [AFFINE_ORDER[2 * register], AFFINE_ORDER[2 * register + 1]];
    [a, a, b, b]
}

impl<P: Piece> Bytes for Four<P> {
    type Ints = [P::Ints; 4];
    type Floats = [P::Floats; 4];
    type Codes = ([u8; 8], [u8; 8]);
    type SignedCodes = [i8; 16];
    type Scales = [P::Ints; 4];
    type Halves = [f32; 4];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract.
        Self([0, 16, 32, 48].map(|at| unsafe { P::load(p.add(at)) }))
    }
    #[inline(always)]
    unsafe fn load_twice(p: *const u8) -> Self {
        // SAFETY: the caller's contract.
        Self([0, 16, 0, 16].map(|at| unsafe { P::load(p.add(at)) }))
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        P::prefetch(p);
    }
    #[inline(always)]
    fn low_nibbles(self) -> Self {
        Self(self.0.map(|x| x.and(15)))
    }
    #[inline(always)]
    fn high_nibbles(self) -> Self {
        Self(self.0.map(|x| x.shift::<-4>().and(15)))
    }
    #[inline(always)]
    fn with_bits<const A: i32, const B: i32>(self, bits: Self, mask: u8) -> Self {
        Self(std::array::from_fn(|i| {
            let bits = if i < 2 { bits.0[i].shift::<A>() } else { bits.0[i].shift::<B>() };
            self.0[i].or(bits.and(mask))
        }))
    }

    #[inline(always)]
    unsafe fn ints() -> [P::Ints; 4] {
        // SAFETY: the caller's contract.
        [unsafe { P::zeros() }; 4]
    }
    #[inline(always)]
    unsafe fn floats() -> [P::Floats; 4] {
        // SAFETY: the caller's contract.
        [unsafe { P::splat(0.0) }; 4]
    }

    #[inline(always)]
    unsafe fn correct(planes: [&[i8; 64]; 2], offset: i16, correction: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::correct(planes, offset, correction) }
    }

    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: [P::Ints; 4],
        sums: [P::Ints; 4],
    ) -> [P::Ints; 4] {
        std::array::from_fn(|i| {
            // Without a correction the pointer leads nowhere.
            let at = |p: *const u8| p.wrapping_add(16 * i);
            // SAFETY: the caller's contract, a quarter at a time.
            unsafe { self.0[i].dot::<CORRECTED>(planes.map(at), at(correction), scale[i], sums[i]) }
        })
    }

    #[inline(always)]
    unsafe fn codes(scales: [u8; 8], minima: [u8; 8]) -> Self::Codes {
        (scales, minima)
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [i8; 16] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[i8; 16]>().read() }
    }
    #[inline(always)]
    fn scales<const V: usize>(codes: Self::Codes) -> [P::Ints; 4] {
        // SAFETY: codes are made only where the instruction set is there.
        sub_blocks(V).map(|block| unsafe { P::scale(i32::from(codes.0[block])) })
    }
    #[inline(always)]
    fn signed_scales<const V: usize>(codes: [i8; 16]) -> [P::Ints; 4] {
        // SAFETY: as above.
        std::array::from_fn(|i| unsafe { P::scale(i32::from(codes[4 * V + i])) })
    }

    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> [P::Ints; 4] {
        // SAFETY: the caller's contract.
        std::array::from_fn(|i| unsafe { P::wide_dot(w.add(8 * i), x.add(16 * i)) })
    }

    #[inline(always)]
    fn add_ints(sums: [P::Floats; 4], value: [P::Ints; 4], factor: [P::Floats; 4]) -> [P::Floats; 4] {
        std::array::from_fn(|i| P::add(sums[i], P::mul(P::to_floats(value[i]), factor[i])))
    }
    #[inline(always)]
    fn add_two_ints(sums: [P::Floats; 4], a: [P::Ints; 4], b: [P::Ints; 4], factor: [P::Floats; 4]) -> [P::Floats; 4] {
        std::array::from_fn(|i| {
            let value = P::add(P::to_floats(a[i]), P::to_floats(b[i]));
            P::add(sums[i], P::mul(value, factor[i]))
        })
    }
    #[inline(always)]
    unsafe fn sub_minima(
        sums: [P::Floats; 4],
        codes: Self::Codes,
        x: *const f32,
        factor: [P::Floats; 4],
    ) -> [P::Floats; 4] {
        let minima: [f32; 16] = std::array::from_fn(|l| f32::from(codes.1[l / 2]));
        std::array::from_fn(|i| {
            // SAFETY: the caller's contract; there are 16 minima.
            let products = unsafe { P::mul(P::load_floats(minima.as_ptr().add(4 * i)), P::load_floats(x.add(4 * i))) };
            P::sub(sums[i], P::mul(products, factor[i]))
        })
    }
    #[inline(always)]
    fn total(sums: [P::Floats; 4]) -> f32 {
        let mut four = [0.0f32; 4];
        let sum = P::add(P::add(sums[0], sums[2]), P::add(sums[1], sums[3]));
        // SAFETY: there is room for four.
        unsafe { P::store_floats(sum, four.as_mut_ptr()) };
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::halves(p) }
    }
    #[inline(always)]
    fn factor<const I: usize>(halves: [f32; 4], unit: f32) -> [P::Floats; 4] {
        // SAFETY: halves are read only where the instruction set is there.
        [unsafe { P::splat(halves[I] * unit) }; 4]
    }
    #[inline(always)]
    fn four(halves: [f32; 4]) -> [f32; 4] {
        halves
    }

    #[inline(always)]
    unsafe fn store<const AFFINE: bool>(self, offset: i32, steps: [(f32, f32); 4], out: [*mut f32; 4]) {
        for (i, (scale, minimum)) in steps.into_iter().enumerate() {
            // SAFETY: a value of this type exists; the caller's contract for the places.
            unsafe {
                let (scale, minimum, offset) = (P::splat(scale), P::splat(minimum), P::splat(offset as f32));
                for (j, q) in self.0[i].widen().into_iter().enumerate() {
                    let product = P::mul(P::sub(P::to_floats(q), offset), scale);
                    let y = if AFFINE { P::sub(product, minimum) } else { product };
                    P::store_floats(y, out[i].add(4 * j));
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn store_signed(p: *const u8, scale: f32, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { PortableBytes::store_signed(p, scale, out) }
    }
}
