use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{MAX_LANES, Vector};
use crate::array::from_fn;

/// Eight lanes with fused multiply-add.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

super::operators!(Avx2: Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps;
    neg |x: Avx2| x.of(-0.0) - x);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller guarantees it, so AVX2 and FMA are available.
        unsafe { $e }
    };
}

/// A window of eight starting at `8 - n` has its first `n` entries set.
static FIRST: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// # Safety
/// AVX2 is available, and `n <= 8`.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    // SAFETY: the window is inside the array for n <= 8.
    unsafe { _mm256_loadu_si256(FIRST.as_ptr().add(8 - n).cast()) }
}

impl Vector for Avx2 {
    const LANES: usize = 8;
    const FUSED: bool = true;
    const REGISTERS: usize = 16;
    // On an EPYC (Zen 4), whose schedulers hold two or three formulas, this gains 5 to 20 % for most functions,
    // although registers are scarce: only tanh loses 8 %.
    const PAIRS: bool = true;
    type Mask = __m256;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(call!(_mm256_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: the caller's contract; every processor with this set that is taken has F16C.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        // SAFETY: the caller's contract. The bits of bf16 are the upper half of those of f32.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's contract; lanes beyond n are not accessed.
        Self(unsafe { _mm256_maskload_ps(p, first(n)) })
    }
    #[inline(always)]
    unsafe fn load_first_or(p: *const f32, n: usize, fill: f32) -> Self {
        // SAFETY: the caller's contract; lanes beyond n are not accessed.
        unsafe {
            let mask = first(n);
            let fill = _mm256_set1_ps(fill);
            Self(_mm256_blendv_ps(fill, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask)))
        }
    }
    #[inline(always)]
    unsafe fn load_within(p: *const f32, skip: usize, n: usize, fill: f32) -> Self {
        // SAFETY: the caller's contract; lanes before `skip` and from `skip + n` on are not accessed.
        unsafe {
            let mask = _mm256_andnot_si256(first(skip), first(skip + n));
            let lanes = _mm256_maskload_ps(p.wrapping_sub(skip), mask);
            Self(_mm256_blendv_ps(_mm256_set1_ps(fill), lanes, _mm256_castsi256_ps(mask)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        if n >= Self::LANES {
            // SAFETY: the caller's contract.
            return unsafe { self.store(p) };
        }
        // In halves: a masked store is some forty operations on AMD processors, and takes 14 cycles. SAFETY: the
        // caller's contract; the parts are 4, 2 and 1 of the n elements, stored before the pointer advances.
        unsafe {
            let (mut lanes, mut p) = (_mm256_castps256_ps128(self.0), p);
            if n & 4 != 0 {
                _mm_storeu_ps(p, lanes);
                (lanes, p) = (_mm256_extractf128_ps::<1>(self.0), p.add(4));
            }
            if n & 2 != 0 {
                _mm_storel_epi64(p.cast(), _mm_castps_si128(lanes));
                (lanes, p) = (_mm_movehl_ps(lanes, lanes), p.add(2));
            }
            if n & 1 != 0 {
                _mm_store_ss(p, lanes);
            }
        }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32) {
        // SAFETY: the caller's contract, alignment included.
        unsafe { _mm256_stream_ps(p, self.0) }
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
    unsafe fn load_columns(p: *const f32, stride: usize) -> [Self; MAX_LANES] {
        // The last round of a transpose moves halves of registers, which loads do as well, and on more ports: u[4g + c]
        // gets columns 4g .. 4g + 4 of rows c and c + 4. SAFETY: the caller's contract.
        unsafe {
            macro_rules! turn {
                ($($g:literal)*) => { [$({
                    let half = |row: usize| _mm_loadu_ps(p.add(row * stride + 4 * $g));
                    let both = |c: usize| _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(half(c)), half(c + 4));
                    let (a, b, c, d) = (both(0), both(1), both(2), both(3));
                    let (ab_lo, ab_hi) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                    let (cd_lo, cd_hi) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                    [
                        Self(_mm256_shuffle_ps::<0x44>(ab_lo, cd_lo)),
                        Self(_mm256_shuffle_ps::<0xee>(ab_lo, cd_lo)),
                        Self(_mm256_shuffle_ps::<0x44>(ab_hi, cd_hi)),
                        Self(_mm256_shuffle_ps::<0xee>(ab_hi, cd_hi)),
                    ]
                },)*] };
            }
            let [a, b] = turn!(0 1);
            let mut turned = [a[0]; MAX_LANES];
            for i in 0..4 {
                (turned[i], turned[4 + i]) = (a[i], b[i]);
            }
            turned
        }
    }
    #[inline(always)]
    fn transpose(square: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        let mut turned = square;
        // Three rounds with vectors 1, 2, 4 apart, in 32, 64 and 128-bit pieces.
        call!({
            macro_rules! round {
                ($from:ident, $lo:expr, $hi:expr, $(($a:literal, $b:literal))*) => {
                    [$($lo($from[$a], $from[$b]), $hi($from[$a], $from[$b]),)*]
                };
            }
            let t = round!(
                square,
                |a: Self, b: Self| _mm256_unpacklo_ps(a.0, b.0),
                |a: Self, b: Self| _mm256_unpackhi_ps(a.0, b.0),
                (0, 1)(2, 3)(4, 5)(6, 7)
            );
            let lo = |a, b| _mm256_shuffle_ps::<0x44>(a, b);
            let hi = |a, b| _mm256_shuffle_ps::<0xee>(a, b);
            // u[4g + c]: columns c and c + 4 of rows 4g .. 4g + 4, one in each half.
            let u = round!(t, lo, hi, (0, 2)(1, 3)(4, 6)(5, 7));
            let lo = |a, b| _mm256_permute2f128_ps::<0x20>(a, b);
            let hi = |a, b| _mm256_permute2f128_ps::<0x31>(a, b);
            let v = round!(u, lo, hi, (0, 4)(1, 5)(2, 6)(3, 7));
            macro_rules! put { ($($to:literal $from:literal),*) => { $(turned[$to] = Self(v[$from]);)* }; }
            put!(0 0, 1 2, 2 4, 3 6, 4 1, 5 3, 6 5, 7 7);
        });
        turned
    }

    #[inline(always)]
    fn unzip(a: Self, b: Self) -> (Self, Self) {
        call!({
            // First within the halves, which leaves the 64-bit pieces in the order 0, 2, 1, 3.
            let order = |v| _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(v)));
            let (even, odd) = (_mm256_shuffle_ps::<0x88>(a.0, b.0), _mm256_shuffle_ps::<0xdd>(a.0, b.0));
            (Self(order(even)), Self(order(odd)))
        })
    }
    #[inline(always)]
    fn zip(a: Self, b: Self) -> (Self, Self) {
        call!({
            let (lo, hi) = (_mm256_unpacklo_ps(a.0, b.0), _mm256_unpackhi_ps(a.0, b.0));
            (Self(_mm256_permute2f128_ps::<0x20>(lo, hi)), Self(_mm256_permute2f128_ps::<0x31>(lo, hi)))
        })
    }

    #[inline(always)]
    fn unzip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        // Three and the number of lanes are coprime, so the elements of a vector come from distinct lanes: they are
        // blended into one vector, which is then permuted once.
        call!({
            let order = |v, start| Self(_mm256_permutevar8x32_ps(v, multiples(3, start)));
            let x = _mm256_blend_ps::<0x24>(_mm256_blend_ps::<0x92>(a.0, b.0), c.0);
            let y = _mm256_blend_ps::<0x49>(_mm256_blend_ps::<0x24>(a.0, b.0), c.0);
            let z = _mm256_blend_ps::<0x92>(_mm256_blend_ps::<0x49>(a.0, b.0), c.0);
            [order(x, 0), order(y, 1), order(z, 2)]
        })
    }
    #[inline(always)]
    fn zip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        // The same in reverse: three times 3 is one more than the number of lanes.
        call!({
            let a = _mm256_permutevar8x32_ps(a.0, multiples(3, 0));
            let b = _mm256_permutevar8x32_ps(b.0, multiples(3, -3));
            let c = _mm256_permutevar8x32_ps(c.0, multiples(3, -6));
            let x = _mm256_blend_ps::<0x24>(_mm256_blend_ps::<0x92>(a, b), c);
            let y = _mm256_blend_ps::<0x49>(_mm256_blend_ps::<0x24>(a, b), c);
            let z = _mm256_blend_ps::<0x92>(_mm256_blend_ps::<0x49>(a, b), c);
            [Self(x), Self(y), Self(z)]
        })
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Self(call!(_mm256_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(call!(_mm256_sqrt_ps(self.0)))
    }
    #[inline(always)]
    fn lesser(self, b: Self) -> Self {
        Self(call!(_mm256_min_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn greater(self, b: Self) -> Self {
        Self(call!(_mm256_max_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn scale_pow2(self, n: Self) -> Self {
        // Two powers that are normal numbers: the first product is exact, the second rounds once.
        call!({
            let n = _mm256_cvtps_epi32(n.0);
            let half = _mm256_srai_epi32::<1>(n);
            let power =
                |n: __m256i| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
            self * Self(power(half)) * Self(power(_mm256_sub_epi32(n, half)))
        })
    }
    #[inline(always)]
    fn shift_exponent(self, shifted: Self) -> Self {
        call!({
            let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted.0));
            Self(_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(self.0), n)))
        })
    }
    #[inline(always)]
    fn mantissa_exponent(self) -> (Self, Self) {
        let tiny = self.lt(self.of(f32::MIN_POSITIVE));
        let normal = Self::select(tiny, self * self.of(16_777_216.0), self);
        call!({
            // Relative to the bits of 0.75, the exponent field counts from there.
            let start = _mm256_set1_epi32(0x3f40_0000);
            let offset = _mm256_sub_epi32(_mm256_castps_si256(normal.0), start);
            let m = _mm256_add_epi32(_mm256_and_si256(offset, _mm256_set1_epi32(0x007f_ffff)), start);
            let k = Self(_mm256_cvtepi32_ps(_mm256_srai_epi32::<23>(offset)));
            let k = k - Self(_mm256_and_ps(tiny, _mm256_set1_ps(24.0)));
            super::with_logarithm_rules(self, Self(_mm256_castsi256_ps(m)), k)
        })
    }

    #[inline(always)]
    fn and(self, b: Self) -> Self {
        Self(call!(_mm256_and_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(call!(_mm256_or_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        Self(call!(_mm256_xor_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn lt(self, b: Self) -> __m256 {
        call!(_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn le(self, b: Self) -> __m256 {
        call!(_mm256_cmp_ps::<_CMP_LE_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn eq(self, b: Self) -> __m256 {
        call!(_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn is_nan(self) -> __m256 {
        call!(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0))
    }
    #[inline(always)]
    fn select(mask: __m256, yes: Self, no: Self) -> Self {
        Self(call!(_mm256_blendv_ps(no.0, yes.0, mask)))
    }
    #[inline(always)]
    fn bits(mask: __m256) -> u32 {
        call!(_mm256_movemask_ps(mask)) as u32
    }
    #[inline(always)]
    fn either(a: __m256, b: __m256) -> __m256 {
        call!(_mm256_or_ps(a, b))
    }
    #[inline(always)]
    fn both(a: __m256, b: __m256) -> __m256 {
        call!(_mm256_and_ps(a, b))
    }
    #[inline(always)]
    fn and_numbers(mask: __m256, a: Self, b: Self) -> __m256 {
        call!(_mm256_and_ps(mask, _mm256_cmp_ps::<_CMP_ORD_Q>(a.0, b.0)))
    }
    #[inline(always)]
    fn upper(self, n: usize) -> Self {
        call!(match n {
            4 => Self(_mm256_castps128_ps256(_mm256_extractf128_ps::<1>(self.0))),
            2 => Self(_mm256_permute_ps::<0b1110>(self.0)),
            _ => Self(_mm256_permute_ps::<0b01>(self.0)),
        })
    }
}

/// `start + factor i` for lane i. A permutation uses only the lowest three bits.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
unsafe fn multiples(factor: i32, start: i32) -> __m256i {
    let lanes: [i32; 8] = from_fn(|i| start + factor * i as i32);
    // SAFETY: the array is one vector.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}
