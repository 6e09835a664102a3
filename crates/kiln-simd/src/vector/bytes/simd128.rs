use std::arch::wasm32::*;

use super::four::Piece;

/// One WebAssembly register. Weights are below 128, so products of signed bytes suffice.
#[derive(Clone, Copy)]
pub(super) struct Simd128Piece(v128);

/// The sums of four products of weights with a plane.
///
/// # Safety
/// `x` is readable for 208 bytes.
#[cfg(target_feature = "relaxed-simd")]
#[inline(always)]
unsafe fn plane(weights: [Simd128Piece; 4], x: *const u8) -> v128 {
    let mut sums = i32x4_splat(0);
    for (i, w) in weights.into_iter().enumerate() {
        // SAFETY: the caller's contract; the load is unaligned.
        let x = unsafe { v128_load(x.add(64 * i).cast()) };
        // The relaxed part is the interpretation of bytes of 128 and more in the second operand, which do not occur.
        sums = i32x4_relaxed_dot_i8x16_i7x16_add(x, w.0, sums);
    }
    sums
}

/// The sums of four products of weights with a plane.
///
/// # Safety
/// `x` is readable for 208 bytes.
#[cfg(not(target_feature = "relaxed-simd"))]
#[inline(always)]
unsafe fn plane(weights: [Simd128Piece; 4], x: *const u8) -> v128 {
    let of = |i: usize| {
        // SAFETY: the caller's contract; the load is unaligned.
        let (w, x) = (weights[i].0, unsafe { v128_load(x.add(64 * i).cast()) });
        (i16x8_extmul_low_i8x16(w, x), i16x8_extmul_high_i8x16(w, x))
    };
    // Four products of 63 and 128 fit 16 bits.
    let (mut first, mut second) = of(0);
    for i in 1..4 {
        let (low, high) = of(i);
        (first, second) = (i16x8_add(first, low), i16x8_add(second, high));
    }
    Simd128Piece::add_pairs(i32x4_extadd_pairwise_i16x8(first), i32x4_extadd_pairwise_i16x8(second))
}

impl Piece for Simd128Piece {
    type Ints = v128;
    type Floats = v128;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { v128_load(p.cast()) })
    }
    #[inline(always)]
    fn bits(self, by: i32, mask: u8) -> Self {
        let shifted = if by >= 0 { u8x16_shl(self.0, by as u32) } else { u8x16_shr(self.0, -by as u32) };
        Self(v128_and(shifted, u8x16_splat(mask)))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(v128_or(self.0, b.0))
    }
    #[inline(always)]
    fn interleave_32(a: Self, b: Self) -> [Self; 2] {
        [Self(i32x4_shuffle::<0, 4, 1, 5>(a.0, b.0)), Self(i32x4_shuffle::<2, 6, 3, 7>(a.0, b.0))]
    }
    #[inline(always)]
    fn interleave_64(a: Self, b: Self) -> [Self; 2] {
        [Self(i64x2_shuffle::<0, 2>(a.0, b.0)), Self(i64x2_shuffle::<1, 3>(a.0, b.0))]
    }

    #[inline(always)]
    unsafe fn dots<const INT8: bool>(weights: [Self; 4], x: *const u8) -> v128 {
        // SAFETY: the caller's contract.
        unsafe {
            let high = plane(weights, x);
            if INT8 { high } else { i32x4_add(i32x4_shl(high, 8), plane(weights, x.add(256))) }
        }
    }
    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> v128 {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe { i32x4_dot_i16x8(i16x8_load_extend_i8x8(w.cast()), v128_load(x.cast())) }
    }

    #[inline(always)]
    unsafe fn byte_dot(w: *const u8, x: *const u8) -> v128 {
        // SAFETY: the caller's contract; the loads are unaligned.
        let (w, x) = unsafe { (v128_load(w.cast()), v128_load(x.cast())) };
        // Two products of 128 and 127 fit 16 bits.
        i32x4_extadd_pairwise_i16x8(i16x8_add(i16x8_extmul_low_i8x16(w, x), i16x8_extmul_high_i8x16(w, x)))
    }

    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> v128 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { v128_load(p.cast()) }
    }
    #[inline(always)]
    fn add_ints(a: v128, b: v128) -> v128 {
        i32x4_add(a, b)
    }
    #[inline(always)]
    fn add_pairs(a: v128, b: v128) -> v128 {
        i32x4_add(i32x4_shuffle::<0, 2, 4, 6>(a, b), i32x4_shuffle::<1, 3, 5, 7>(a, b))
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> v128 {
        f32x4_splat(x)
    }
    #[inline(always)]
    unsafe fn load_floats(p: *const f32) -> v128 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { v128_load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_floats(x: v128, p: *mut f32) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { v128_store(p.cast(), x) }
    }
    #[inline(always)]
    fn to_floats(x: v128) -> v128 {
        f32x4_convert_i32x4(x)
    }
    #[inline(always)]
    fn add(a: v128, b: v128) -> v128 {
        f32x4_add(a, b)
    }
    #[inline(always)]
    fn sub(a: v128, b: v128) -> v128 {
        f32x4_sub(a, b)
    }
    #[inline(always)]
    fn mul(a: v128, b: v128) -> v128 {
        f32x4_mul(a, b)
    }
}
