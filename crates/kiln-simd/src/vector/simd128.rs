use std::arch::wasm32::*;

use super::{MAX_LANES, ROUNDER, Vector};

/// Four WebAssembly lanes. Programs that are built with relaxed instructions have a fused multiply-add.
///
/// The module exists only if the whole program is built with the feature, so its intrinsics are safe functions.
#[derive(Clone, Copy)]
pub(crate) struct Simd128(v128);

/// Whether products and sums are fused here: an engine may round the relaxed form once or twice, but always in the same
/// way.
#[cfg(target_feature = "relaxed-simd")]
pub(super) fn fuses() -> bool {
    // The square is 1 + 2^-11 + 2^-24; rounding the product removes the last term.
    let [x, y] = std::hint::black_box([1.0 + 2048.0 * f32::EPSILON, -1.0 - 4096.0 * f32::EPSILON]);
    let x = f32x4_splat(x);
    v128_any_true(f32x4_relaxed_madd(x, x, f32x4_splat(y)))
}

/// The relaxed instructions, whose results are those of IEEE 754 if [`fuses`] returns true.
#[cfg(target_feature = "relaxed-simd")]
mod arithmetic {
    use std::arch::wasm32::*;

    #[inline(always)]
    pub(super) fn mul_add(a: v128, b: v128, c: v128) -> v128 {
        f32x4_relaxed_madd(a, b, c)
    }
    /// For masks of whole lanes, as all masks are.
    #[inline(always)]
    pub(super) fn select(mask: v128, yes: v128, no: v128) -> v128 {
        i32x4_relaxed_laneselect(yes, no, mask)
    }
    // The compiler lowers relaxed minima and maxima to pmin and pmax, which return either operand if one is NaN.
    #[inline(always)]
    pub(super) fn lesser(a: v128, b: v128) -> v128 {
        select(f32x4_lt(a, b), a, b)
    }
    #[inline(always)]
    pub(super) fn greater(a: v128, b: v128) -> v128 {
        select(f32x4_gt(a, b), a, b)
    }
}

#[cfg(not(target_feature = "relaxed-simd"))]
mod arithmetic {
    use std::arch::wasm32::*;

    #[inline(always)]
    pub(super) fn mul_add(a: v128, b: v128, c: v128) -> v128 {
        f32x4_add(f32x4_mul(a, b), c)
    }
    #[inline(always)]
    pub(super) fn select(mask: v128, yes: v128, no: v128) -> v128 {
        v128_bitselect(yes, no, mask)
    }
    #[inline(always)]
    pub(super) fn lesser(a: v128, b: v128) -> v128 {
        // pmin(x, y) is y < x ? y : x.
        f32x4_pmin(b, a)
    }
    #[inline(always)]
    pub(super) fn greater(a: v128, b: v128) -> v128 {
        // pmax(x, y) is x < y ? y : x.
        f32x4_pmax(b, a)
    }
}

// Partial accesses are separate functions: kernels contain many and rarely run them. They loop over the lanes, because
// a byte copy of variable length is a call out of the module.

/// [`Vector::load_first`].
///
/// # Safety
/// The conditions of [`Vector::load_first`] hold.
#[inline(never)]
unsafe fn load_first(p: *const f32, n: usize) -> Simd128 {
    // SAFETY: no more than n are read.
    Simd128(unsafe {
        match n {
            0 => f32x4_splat(0.0),
            1 => v128_load32_zero(p.cast()),
            2 => v128_load64_zero(p.cast()),
            3 => v128_load32_lane::<2>(v128_load64_zero(p.cast()), p.add(2).cast()),
            _ => v128_load(p.cast()),
        }
    })
}

/// [`Vector::load_within`].
///
/// # Safety
/// The conditions of [`Vector::load_within`] hold.
#[inline(never)]
unsafe fn load_within(p: *const f32, skip: usize, n: usize, fill: f32) -> Simd128 {
    let mut lanes = [fill; 4];
    for (i, lane) in lanes[skip..].iter_mut().take(n).enumerate() {
        // SAFETY: i < n.
        *lane = unsafe { *p.add(i) };
    }
    let [a, b, c, d] = lanes;
    Simd128(f32x4(a, b, c, d))
}

/// [`Vector::store_first`].
///
/// # Safety
/// The conditions of [`Vector::store_first`] hold.
#[inline(never)]
unsafe fn store_first(v: Simd128, p: *mut f32, n: usize) {
    // SAFETY: no more than n are written.
    unsafe {
        match n {
            0 => {}
            1 => v128_store32_lane::<0>(v.0, p.cast()),
            2 => v128_store64_lane::<0>(v.0, p.cast()),
            3 => {
                v128_store64_lane::<0>(v.0, p.cast());
                v128_store32_lane::<2>(v.0, p.add(2).cast());
            }
            _ => v128_store(p.cast(), v.0),
        }
    }
}

super::operators!(Simd128: Add add f32x4_add, Sub sub f32x4_sub, Mul mul f32x4_mul, Div div f32x4_div;
    neg |x: Simd128| Simd128(f32x4_neg(x.0)));

impl Vector for Simd128 {
    const LANES: usize = 4;
    const FUSED: bool = cfg!(target_feature = "relaxed-simd");
    // WebAssembly has no named registers. Its machines have 16 or more, and engines reserve some.
    const REGISTERS: usize = 15;
    // Engines materialise a constant at each use, with three instructions: two vectors share it.
    const PAIRS: bool = true;
    type Mask = v128;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(f32x4_splat(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { v128_load(p.cast()) })
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's contract.
        unsafe { load_first(p, n) }
    }
    #[inline(always)]
    unsafe fn load_first_or(p: *const f32, n: usize, fill: f32) -> Self {
        // SAFETY: the caller's contract.
        unsafe { load_within(p, 0, n, fill) }
    }
    #[inline(always)]
    unsafe fn load_within(p: *const f32, skip: usize, n: usize, fill: f32) -> Self {
        // SAFETY: the caller's contract.
        unsafe { load_within(p, skip, n, fill) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { v128_store(p.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { store_first(self, p, n) }
    }

    #[inline(always)]
    fn transpose(square: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        let mut turned = square;
        let [a, b, c, d] = [square[0].0, square[1].0, square[2].0, square[3].0];
        let (ab, cd) = (i32x4_shuffle::<0, 4, 1, 5>(a, b), i32x4_shuffle::<0, 4, 1, 5>(c, d));
        let (ab_high, cd_high) = (i32x4_shuffle::<2, 6, 3, 7>(a, b), i32x4_shuffle::<2, 6, 3, 7>(c, d));
        turned[0] = Self(i64x2_shuffle::<0, 2>(ab, cd));
        turned[1] = Self(i64x2_shuffle::<1, 3>(ab, cd));
        turned[2] = Self(i64x2_shuffle::<0, 2>(ab_high, cd_high));
        turned[3] = Self(i64x2_shuffle::<1, 3>(ab_high, cd_high));
        turned
    }
    #[inline(always)]
    fn unzip(a: Self, b: Self) -> (Self, Self) {
        (Self(i32x4_shuffle::<0, 2, 4, 6>(a.0, b.0)), Self(i32x4_shuffle::<1, 3, 5, 7>(a.0, b.0)))
    }
    #[inline(always)]
    fn zip(a: Self, b: Self) -> (Self, Self) {
        (Self(i32x4_shuffle::<0, 4, 1, 5>(a.0, b.0)), Self(i32x4_shuffle::<2, 6, 3, 7>(a.0, b.0)))
    }
    #[inline(always)]
    fn unzip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        // From the first two vectors, then with the third; lanes that are not used yet have arbitrary sources.
        let x = i32x4_shuffle::<0, 3, 6, 6>(a.0, b.0);
        let y = i32x4_shuffle::<1, 4, 7, 7>(a.0, b.0);
        let z = i32x4_shuffle::<2, 5, 5, 5>(a.0, b.0);
        [
            Self(i32x4_shuffle::<0, 1, 2, 5>(x, c.0)),
            Self(i32x4_shuffle::<0, 1, 2, 6>(y, c.0)),
            Self(i32x4_shuffle::<0, 1, 4, 7>(z, c.0)),
        ]
    }
    #[inline(always)]
    fn zip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        let x = i32x4_shuffle::<0, 4, 0, 1>(a.0, b.0);
        let y = i32x4_shuffle::<5, 2, 6, 6>(a.0, b.0);
        let z = i32x4_shuffle::<3, 7, 7, 7>(a.0, b.0);
        [
            Self(i32x4_shuffle::<0, 1, 4, 3>(x, c.0)),
            Self(i32x4_shuffle::<0, 5, 1, 2>(y, c.0)),
            Self(i32x4_shuffle::<6, 0, 1, 7>(z, c.0)),
        ]
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Self(arithmetic::mul_add(self.0, b.0, c.0))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(f32x4_sqrt(self.0))
    }
    #[inline(always)]
    fn lesser(self, b: Self) -> Self {
        Self(arithmetic::lesser(self.0, b.0))
    }
    #[inline(always)]
    fn greater(self, b: Self) -> Self {
        Self(arithmetic::greater(self.0, b.0))
    }
    #[inline(always)]
    fn scale_pow2(self, n: Self) -> Self {
        // Two powers that are normal numbers: the first product is exact, the second rounds once. Integers are
        // extracted by an addition: a conversion instruction has to saturate, which takes several processor
        // instructions.
        let shifted = n * n.of(0.5) + n.of(ROUNDER);
        let rest = (n - (shifted - n.of(ROUNDER))) + n.of(ROUNDER);
        let power = |shifted: Self| n.of(1.0).shift_exponent(shifted);
        self * power(shifted) * power(rest)
    }

    #[inline(always)]
    fn and(self, b: Self) -> Self {
        Self(v128_and(self.0, b.0))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(v128_or(self.0, b.0))
    }
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        Self(v128_xor(self.0, b.0))
    }

    #[inline(always)]
    fn lt(self, b: Self) -> v128 {
        f32x4_lt(self.0, b.0)
    }
    #[inline(always)]
    fn le(self, b: Self) -> v128 {
        f32x4_le(self.0, b.0)
    }
    #[inline(always)]
    fn eq(self, b: Self) -> v128 {
        f32x4_eq(self.0, b.0)
    }
    #[inline(always)]
    fn is_nan(self) -> v128 {
        f32x4_ne(self.0, self.0)
    }
    #[inline(always)]
    fn select(mask: v128, yes: Self, no: Self) -> Self {
        Self(arithmetic::select(mask, yes.0, no.0))
    }
    #[inline(always)]
    fn bits(mask: v128) -> u32 {
        u32::from(i32x4_bitmask(mask))
    }
    #[inline(always)]
    fn either(a: v128, b: v128) -> v128 {
        v128_or(a, b)
    }
    #[inline(always)]
    fn both(a: v128, b: v128) -> v128 {
        v128_and(a, b)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(f32x4_abs(self.0))
    }
    // The instructions have the NaN and zero rules of IEEE 754-2019 `maximum` and `minimum`.
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        Self(f32x4_max(self.0, b.0))
    }
    #[inline(always)]
    fn minimum(self, b: Self) -> Self {
        Self(f32x4_min(self.0, b.0))
    }
    #[inline(always)]
    fn upper(self, n: usize) -> Self {
        match n {
            2 => Self(i64x2_shuffle::<1, 1>(self.0, self.0)),
            _ => Self(i32x4_shuffle::<1, 1, 1, 1>(self.0, self.0)),
        }
    }
    #[inline(always)]
    fn first(self) -> f32 {
        f32x4_extract_lane::<0>(self.0)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        if const { Self::FUSED } {
            return self.mul_add(b, c);
        }
        // The product is exact in f64; rounding the sum twice costs at most 2^-29 units in the last place.
        let half = |a, b, c| {
            let product = f64x2_mul(f64x2_promote_low_f32x4(a), f64x2_promote_low_f32x4(b));
            f32x4_demote_f64x2_zero(f64x2_add(product, f64x2_promote_low_f32x4(c)))
        };
        let upper = |x: Self| i64x2_shuffle::<1, 1>(x.0, x.0);
        let (low, high) = (half(self.0, b.0, c.0), half(upper(self), upper(b), upper(c)));
        // Not a shuffle of both operands, nor one that selects zeros: the compiler would convert the numbers one by
        // one.
        const SWAPPED: v128 = u8x16(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
        Self(v128_or(low, i8x16_swizzle(high, SWAPPED)))
    }
    #[inline(always)]
    fn shift_exponent(self, shifted: Self) -> Self {
        Self(i32x4_add(self.0, i32x4_shl(shifted.0, 23)))
    }
    #[inline(always)]
    fn mantissa_exponent(self) -> (Self, Self) {
        let tiny = self.lt(self.of(f32::MIN_POSITIVE));
        let normal = Self::select(tiny, self * self.of(16_777_216.0), self);
        // Relative to the bits of 0.75, the exponent field counts from there.
        let start = i32x4_splat(0x3f40_0000);
        let offset = i32x4_sub(normal.0, start);
        let m = i32x4_add(v128_and(offset, i32x4_splat(0x007f_ffff)), start);
        let k = Self(f32x4_convert_i32x4(i32x4_shr(offset, 23)));
        let k = Self::select(tiny, k - self.of(24.0), k);
        super::with_logarithm_rules(self, Self(m), k)
    }
}
