use super::Vector;

/// One lane of plain Rust. The baseline build has no fused multiply-add, so this rounds twice, as SSE2 does.
#[derive(Clone, Copy)]
pub(crate) struct Scalar(f32);

super::operators!(Scalar: Add add add, Sub sub sub, Mul mul mul, Div div div; neg |x: Scalar| Scalar(-x.0));

macro_rules! operation {
    ($($name:ident $op:tt),*) => {
        // `unsafe` only to have the signature of an intrinsic.
        $(#[inline(always)] unsafe fn $name(a: f32, b: f32) -> f32 { a $op b })*
    };
}
operation!(add +, sub -, mul *, div /);

impl Vector for Scalar {
    const LANES: usize = 1;
    const FUSED: bool = false;
    const REGISTERS: usize = 16;
    type Mask = bool;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { p.read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's contract; nothing is read for n = 0.
        if n == 0 { Self(0.0) } else { unsafe { Self::load(p) } }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { p.write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        if n > 0 {
            // SAFETY: the caller's contract.
            unsafe { self.store(p) }
        }
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Self(self.0 * b.0 + c.0)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.sqrt())
    }
    #[inline(always)]
    fn lesser(self, b: Self) -> Self {
        if self.0 < b.0 { self } else { b }
    }
    #[inline(always)]
    fn greater(self, b: Self) -> Self {
        if self.0 > b.0 { self } else { b }
    }
    #[inline(always)]
    fn scale_pow2(self, n: Self) -> Self {
        // Two powers that are normal numbers: the first product is exact, the second rounds once.
        let n = n.0.clamp(-250.0, 250.0) as i32;
        let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
        Self(self.0 * power(n >> 1) * power(n - (n >> 1)))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // The product is exact in f64; rounding the sum twice costs at most 2^-29 units in the last place.
        Self((f64::from(self.0) * f64::from(b.0) + f64::from(c.0)) as f32)
    }
    #[inline(always)]
    fn shift_exponent(self, shifted: Self) -> Self {
        Self(f32::from_bits(self.0.to_bits().wrapping_add(shifted.0.to_bits() << 23)))
    }
    #[inline(always)]
    fn mantissa_exponent(self) -> (Self, Self) {
        let tiny = self.0 < f32::MIN_POSITIVE;
        let normal = if tiny { self.0 * 16_777_216.0 } else { self.0 };
        // Relative to the bits of 0.75, the exponent field counts from there.
        let offset = (normal.to_bits() as i32).wrapping_sub(0x3f40_0000);
        let m = f32::from_bits(((offset & 0x007f_ffff) + 0x3f40_0000) as u32);
        let k = (offset >> 23) as f32 - if tiny { 24.0 } else { 0.0 };
        super::with_logarithm_rules(self, Self(m), Self(k))
    }

    #[inline(always)]
    fn and(self, b: Self) -> Self {
        Self(f32::from_bits(self.0.to_bits() & b.0.to_bits()))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(f32::from_bits(self.0.to_bits() | b.0.to_bits()))
    }
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        Self(f32::from_bits(self.0.to_bits() ^ b.0.to_bits()))
    }

    #[inline(always)]
    fn lt(self, b: Self) -> bool {
        self.0 < b.0
    }
    #[inline(always)]
    fn le(self, b: Self) -> bool {
        self.0 <= b.0
    }
    #[inline(always)]
    fn eq(self, b: Self) -> bool {
        self.0 == b.0
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.0.is_nan()
    }
    #[inline(always)]
    fn select(mask: bool, yes: Self, no: Self) -> Self {
        if mask { yes } else { no }
    }
    #[inline(always)]
    fn bits(mask: bool) -> u32 {
        u32::from(mask)
    }
    #[inline(always)]
    fn either(a: bool, b: bool) -> bool {
        a | b
    }
    #[inline(always)]
    fn both(a: bool, b: bool) -> bool {
        a & b
    }
}
