use std::arch::x86_64::*;

use super::{MAX_LANES, Vector};

/// Four lanes; no fused multiply-add, no masked memory access, no rounding instruction.
#[derive(Clone, Copy)]
pub(crate) struct Sse2(__m128);

super::operators!(Sse2: Add add _mm_add_ps, Sub sub _mm_sub_ps, Mul mul _mm_mul_ps, Div div _mm_div_ps;
    neg |x: Sse2| x.of(-0.0) - x);

// SAFETY of the blocks below that give no other reason: the intrinsics need SSE2, which every x86-64 has.
macro_rules! call {
    ($e:expr) => {
        // SAFETY: SSE2 is part of x86-64, and the operands are values.
        unsafe { $e }
    };
}

/// A window of four starting at `4 - n` has its first `n` entries set.
static FIRST: [i32; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

/// # Safety
/// `n <= 4`.
#[inline(always)]
unsafe fn first(n: usize) -> __m128 {
    // SAFETY: the window is inside the array for n <= 4.
    unsafe { _mm_loadu_ps(FIRST.as_ptr().add(4 - n).cast()) }
}

impl Vector for Sse2 {
    const LANES: usize = 4;
    const FUSED: bool = false;
    const REGISTERS: usize = 16;
    type Mask = __m128;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(call!(_mm_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { _mm_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // Not through memory: a load that covers several stores waits until they have left the store buffer. SAFETY:
        // the caller gives n readable f32.
        Self(unsafe {
            let two = || _mm_castsi128_ps(_mm_loadl_epi64(p.cast()));
            match n {
                0 => _mm_setzero_ps(),
                1 => _mm_load_ss(p),
                2 => two(),
                3 => _mm_movelh_ps(two(), _mm_load_ss(p.add(2))),
                _ => _mm_loadu_ps(p),
            }
        })
    }
    #[inline(always)]
    unsafe fn load_within(p: *const f32, skip: usize, n: usize, fill: f32) -> Self {
        // SAFETY: the caller's contract, and `skip + n <= 4`.
        unsafe {
            let lanes = _mm_castps_si128(Self::load_first(p, n).0);
            let lanes = _mm_castsi128_ps(match skip {
                0 => lanes,
                1 => _mm_slli_si128::<4>(lanes),
                2 => _mm_slli_si128::<8>(lanes),
                _ => _mm_slli_si128::<12>(lanes),
            });
            let mask = _mm_andnot_ps(first(skip), first(skip + n));
            Self(_mm_or_ps(_mm_and_ps(mask, lanes), _mm_andnot_ps(mask, _mm_set1_ps(fill))))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { _mm_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller gives n writable f32.
        unsafe {
            match n {
                0 => {}
                1 => _mm_store_ss(p, self.0),
                2 => _mm_storel_epi64(p.cast(), _mm_castps_si128(self.0)),
                3 => {
                    _mm_storel_epi64(p.cast(), _mm_castps_si128(self.0));
                    _mm_store_ss(p.add(2), _mm_movehl_ps(self.0, self.0));
                }
                _ => _mm_storeu_ps(p, self.0),
            }
        }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32) {
        // SAFETY: the caller's contract, alignment included.
        unsafe { _mm_stream_ps(p, self.0) }
    }
    #[inline(always)]
    fn fence(self) {
        call!(_mm_sfence());
    }

    #[inline(always)]
    fn prefetch(p: *const f32) {
        call!(_mm_prefetch::<_MM_HINT_T0>(p.cast()));
    }
    #[inline(always)]
    fn prefetch_far(p: *const f32) {
        call!(_mm_prefetch::<_MM_HINT_T1>(p.cast()));
    }
    #[inline(always)]
    fn transpose(square: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        let mut turned = square;
        call!({
            let [a, b, c, d] = [square[0].0, square[1].0, square[2].0, square[3].0];
            let (ab, cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
            turned[0] = Self(_mm_movelh_ps(ab, cd));
            turned[1] = Self(_mm_movehl_ps(cd, ab));
            turned[2] = Self(_mm_movelh_ps(ab_high, cd_high));
            turned[3] = Self(_mm_movehl_ps(cd_high, ab_high));
        });
        turned
    }

    #[inline(always)]
    fn unzip(a: Self, b: Self) -> (Self, Self) {
        call!((Self(_mm_shuffle_ps::<0x88>(a.0, b.0)), Self(_mm_shuffle_ps::<0xdd>(a.0, b.0))))
    }
    #[inline(always)]
    fn zip(a: Self, b: Self) -> (Self, Self) {
        call!((Self(_mm_unpacklo_ps(a.0, b.0)), Self(_mm_unpackhi_ps(a.0, b.0))))
    }
    #[inline(always)]
    fn unzip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        // Duplicates the elements that belong to one vector, then takes every other element.
        call!({
            let x = _mm_shuffle_ps::<0b10_00_11_00>(a.0, _mm_shuffle_ps::<0b01_01_10_10>(b.0, c.0));
            let y = (_mm_shuffle_ps::<0b00_00_01_01>(a.0, b.0), _mm_shuffle_ps::<0b10_10_11_11>(b.0, c.0));
            let z = _mm_shuffle_ps::<0b11_00_10_00>(_mm_shuffle_ps::<0b01_01_10_10>(a.0, b.0), c.0);
            [Self(x), Self(_mm_shuffle_ps::<0b10_00_10_00>(y.0, y.1)), Self(z)]
        })
    }
    #[inline(always)]
    fn zip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        call!({
            let x = (_mm_shuffle_ps::<0b00_00_00_00>(a.0, b.0), _mm_shuffle_ps::<0b01_01_00_00>(c.0, a.0));
            let y = (_mm_shuffle_ps::<0b01_01_01_01>(b.0, c.0), _mm_shuffle_ps::<0b10_10_10_10>(a.0, b.0));
            let z = (_mm_shuffle_ps::<0b11_11_10_10>(c.0, a.0), _mm_shuffle_ps::<0b11_11_11_11>(b.0, c.0));
            [
                Self(_mm_shuffle_ps::<0b10_00_10_00>(x.0, x.1)),
                Self(_mm_shuffle_ps::<0b10_00_10_00>(y.0, y.1)),
                Self(_mm_shuffle_ps::<0b10_00_10_00>(z.0, z.1)),
            ]
        })
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        self * b + c
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(call!(_mm_sqrt_ps(self.0)))
    }
    #[inline(always)]
    fn lesser(self, b: Self) -> Self {
        Self(call!(_mm_min_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn greater(self, b: Self) -> Self {
        Self(call!(_mm_max_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn scale_pow2(self, n: Self) -> Self {
        // Two powers that are normal numbers: the first product is exact, the second rounds once.
        call!({
            let n = _mm_cvtps_epi32(n.0);
            let half = _mm_srai_epi32::<1>(n);
            let power = |n: __m128i| _mm_castsi128_ps(_mm_slli_epi32::<23>(_mm_add_epi32(n, _mm_set1_epi32(127))));
            self * Self(power(half)) * Self(power(_mm_sub_epi32(n, half)))
        })
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // The product is exact in f64; rounding the sum twice costs at most 2^-29 units in the last place.
        call!({
            let half = |a, b, c| {
                let product = _mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b));
                _mm_cvtpd_ps(_mm_add_pd(product, _mm_cvtps_pd(c)))
            };
            let upper = |x: Self| _mm_movehl_ps(x.0, x.0);
            Self(_mm_movelh_ps(half(self.0, b.0, c.0), half(upper(self), upper(b), upper(c))))
        })
    }
    #[inline(always)]
    fn shift_exponent(self, shifted: Self) -> Self {
        call!({
            let n = _mm_slli_epi32::<23>(_mm_castps_si128(shifted.0));
            Self(_mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(self.0), n)))
        })
    }
    #[inline(always)]
    fn mantissa_exponent(self) -> (Self, Self) {
        let tiny = self.lt(self.of(f32::MIN_POSITIVE));
        let normal = Self::select(tiny, self * self.of(16_777_216.0), self);
        call!({
            // Relative to the bits of 0.75, the exponent field counts from there.
            let start = _mm_set1_epi32(0x3f40_0000);
            let offset = _mm_sub_epi32(_mm_castps_si128(normal.0), start);
            let m = _mm_add_epi32(_mm_and_si128(offset, _mm_set1_epi32(0x007f_ffff)), start);
            let k = Self(_mm_cvtepi32_ps(_mm_srai_epi32::<23>(offset)));
            let k = k - Self(_mm_and_ps(tiny, _mm_set1_ps(24.0)));
            super::with_logarithm_rules(self, Self(_mm_castsi128_ps(m)), k)
        })
    }

    #[inline(always)]
    fn and(self, b: Self) -> Self {
        Self(call!(_mm_and_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(call!(_mm_or_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        Self(call!(_mm_xor_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn lt(self, b: Self) -> __m128 {
        call!(_mm_cmplt_ps(self.0, b.0))
    }
    #[inline(always)]
    fn le(self, b: Self) -> __m128 {
        call!(_mm_cmple_ps(self.0, b.0))
    }
    #[inline(always)]
    fn eq(self, b: Self) -> __m128 {
        call!(_mm_cmpeq_ps(self.0, b.0))
    }
    #[inline(always)]
    fn is_nan(self) -> __m128 {
        call!(_mm_cmpunord_ps(self.0, self.0))
    }
    #[inline(always)]
    fn select(mask: __m128, yes: Self, no: Self) -> Self {
        Self(call!(_mm_or_ps(_mm_and_ps(mask, yes.0), _mm_andnot_ps(mask, no.0))))
    }
    #[inline(always)]
    fn bits(mask: __m128) -> u32 {
        call!(_mm_movemask_ps(mask)) as u32
    }
    #[inline(always)]
    fn either(a: __m128, b: __m128) -> __m128 {
        call!(_mm_or_ps(a, b))
    }
    #[inline(always)]
    fn both(a: __m128, b: __m128) -> __m128 {
        call!(_mm_and_ps(a, b))
    }
    #[inline(always)]
    fn and_numbers(mask: __m128, a: Self, b: Self) -> __m128 {
        call!(_mm_and_ps(mask, _mm_cmpord_ps(a.0, b.0)))
    }
    #[inline(always)]
    fn upper(self, n: usize) -> Self {
        call!(match n {
            2 => Self(_mm_movehl_ps(self.0, self.0)),
            _ => Self(_mm_shuffle_ps::<0b01>(self.0, self.0)),
        })
    }
}
