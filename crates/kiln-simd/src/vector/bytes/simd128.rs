use std::arch::wasm32::*;

use super::four::Piece;

/// One register of WebAssembly. Weights are below 128, so that products of signed bytes do.
#[derive(Clone, Copy)]
pub(super) struct Simd128Piece(v128);

/// The sums of four products; those of two fit a word.
#[inline(always)]
fn fours(bytes: v128, x: v128) -> v128 {
    let pairs = |words| i32x4_extadd_pairwise_i16x8(words);
    let (first, second) = (pairs(i16x8_extmul_low_i8x16(bytes, x)), pairs(i16x8_extmul_high_i8x16(bytes, x)));
    add_pairs(first, second)
}

/// The sums of neighbours of `a`, then of `b`.
#[inline(always)]
fn add_pairs(a: v128, b: v128) -> v128 {
    i32x4_add(i32x4_shuffle::<0, 2, 4, 6>(a, b), i32x4_shuffle::<1, 3, 5, 7>(a, b))
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
    fn and(self, mask: u8) -> Self {
        Self(v128_and(self.0, u8x16_splat(mask)))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(v128_or(self.0, b.0))
    }
    #[inline(always)]
    fn shift<const BY: i32>(self) -> Self {
        Self(if BY >= 0 { u8x16_shl(self.0, BY as u32) } else { u8x16_shr(self.0, -BY as u32) })
    }
    #[inline(always)]
    fn widen(self) -> [v128; 4] {
        let (low, high) = (u16x8_extend_low_u8x16(self.0), u16x8_extend_high_u8x16(self.0));
        [
            u32x4_extend_low_u16x8(low),
            u32x4_extend_high_u16x8(low),
            u32x4_extend_low_u16x8(high),
            u32x4_extend_high_u16x8(high),
        ]
    }

    #[inline(always)]
    unsafe fn zeros() -> v128 {
        i32x4_splat(0)
    }
    #[inline(always)]
    unsafe fn scale(code: i32) -> v128 {
        i32x4(code << 8, code << 8, code, code)
    }
    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: v128,
        sums: v128,
    ) -> v128 {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let [high, low] = planes.map(|plane| fours(self.0, v128_load(plane.cast())));
            let mut eights = add_pairs(high, low);
            if CORRECTED {
                eights = i32x4_add(eights, i32x4_extadd_pairwise_i16x8(v128_load(correction.cast())));
            }
            i32x4_add(sums, i32x4_mul(eights, scale))
        }
    }
    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> v128 {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe { i32x4_dot_i16x8(i16x8_load_extend_i8x8(w.cast()), v128_load(x.cast())) }
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
