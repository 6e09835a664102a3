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
    fn round(self) -> Self {
        // Adding and taking away 1.5 * 2^23 rounds smaller numbers; larger ones are integers already.
        let magic = 12_582_912.0f32;
        if self.0.abs() < 4_194_304.0 { Self(((self.0 + magic) - magic).copysign(self.0)) } else { self }
    }
    #[inline(always)]
    fn scale_pow2(self, n: Self) -> Self {
        // The product of two f32 is exact in f64, whose range holds 2^±1000; one rounding remains.
        let n = n.0.clamp(-1000.0, 1000.0) as i64;
        Self((f64::from(self.0) * f64::from_bits(((n + 1023) as u64) << 52)) as f32)
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
