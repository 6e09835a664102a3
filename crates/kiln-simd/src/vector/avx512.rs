use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{MAX_LANES, Vector};
use crate::array::from_fn;

/// Sixteen lanes, mask registers, 32 vector registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

super::operators!(Avx512: Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps;
    neg |x: Avx512| x.of(-0.0) - x);

macro_rules! call {
    ($e:expr) => {
        // SAFETY: a value of this type exists or the caller guarantees it, so AVX-512 F, BW, DQ and VL are available.
        unsafe { $e }
    };
}

/// The first `n <= 16` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// The ternary operation `a & b & c`.
const AND: i32 = 0b1000_0000;

/// Division and square root by Newton's method from a hardware estimate of 14 bits, followed by a correction by the
/// exact remainder. The results are correctly rounded if operands and results are [`Avx512::are_moderate`]: then no
/// step leaves the range of normal numbers and every remainder is exact.
impl Avx512 {
    #[inline(always)]
    fn moderate_quotient(self, b: Self) -> Self {
        call!({
            // y (1 - e)⁻¹ = y (1 + e + e² + ...) is 1 / b, and e² is the last significant term. Rounding up decides the
            // reciprocal of the largest mantissa, which is 2^-48 above the midpoint of two numbers.
            let y = Self(_mm512_rcp14_ps(b.0));
            let e = (-b).mul_add(y, b.of(1.0));
            let e = Self(_mm512_fmadd_round_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(e.0, e.0, e.0));
            let y = y.mul_add(e, y);
            let q = self * y;
            (-b).mul_add(q, self).mul_add(y, q)
        })
    }

    #[inline(always)]
    fn moderate_square_root(self) -> Self {
        let y = Self(call!(_mm512_rsqrt14_ps(self.0)));
        // Converges to √x and 1 / 2√x at once.
        let (g, h) = (self * y, y * y.of(0.5));
        let r = (-g).mul_add(h, g.of(0.5));
        let (g, h) = (g.mul_add(r, g), h.mul_add(r, h));
        (-g).mul_add(g, self).mul_add(h, g)
    }

    /// The bits of the numbers with 52 added to their exponents: bit 30 of the sum is set for magnitudes from 2^-51 to
    /// 2^77, and not for zeros, infinities and NaN.
    #[inline(always)]
    fn raised(self) -> __m512i {
        call!(_mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(52 << 23)))
    }

    /// Whether bit 30 is set in every lane of `common`, the bitwise and of [`Avx512::raised`] numbers.
    #[inline(always)]
    fn are_moderate(common: __m512i) -> bool {
        call!(_mm512_testn_epi32_mask(common, _mm512_set1_epi32(1 << 30)) == 0)
    }
}

impl Vector for Avx512 {
    const LANES: usize = 16;
    const FUSED: bool = true;
    const REGISTERS: usize = 32;
    const MASKED: bool = true;
    const TABLES: bool = true;
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(call!(_mm512_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract; the load is unaligned.
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: the caller's contract; every processor with this set that is taken has F16C.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        // SAFETY: the caller's contract. The bits of bf16 are the upper half of those of f32.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's contract; lanes beyond n are not accessed.
        Self(unsafe { _mm512_maskz_loadu_ps(first(n), p) })
    }
    #[inline(always)]
    unsafe fn load_first_or(p: *const f32, n: usize, fill: f32) -> Self {
        // SAFETY: the caller's contract; lanes beyond n are not accessed.
        unsafe { Self(_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(n), p)) }
    }
    #[inline(always)]
    unsafe fn load_within(p: *const f32, skip: usize, n: usize, fill: f32) -> Self {
        // SAFETY: the caller's contract; lanes before `skip` and from `skip + n` on are not accessed.
        unsafe { Self(_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(n) << skip, p.wrapping_sub(skip))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract; the store is unaligned.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: the caller's contract; lanes beyond n are not accessed.
        unsafe { _mm512_mask_storeu_ps(p, first(n), self.0) }
    }
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32) {
        // SAFETY: the caller's contract, alignment included.
        unsafe { _mm512_stream_ps(p, self.0) }
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
        // SAFETY: the caller's contract.
        unsafe { columns::<16>(p, stride, 16) }
    }
    #[inline(always)]
    fn transpose(square: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        // Four rounds, which pair vectors 1, 2, 4, 8 apart, in 32, 64, 128, 256-bit pieces.
        call!({
            macro_rules! round {
                ($from:ident, $lo:expr, $hi:expr, $(($a:literal, $b:literal))*) => {
                    [$($lo($from[$a], $from[$b]), $hi($from[$a], $from[$b]),)*]
                };
            }
            // t[2i], t[2i + 1]: the low and the high halves of the 128-bit pieces of rows 2i and 2i + 1, interleaved.
            let t = round!(
                square,
                |a: Self, b: Self| _mm512_unpacklo_ps(a.0, b.0),
                |a: Self, b: Self| _mm512_unpackhi_ps(a.0, b.0),
                (0, 1)(2, 3)(4, 5)(6, 7)(8, 9)(10, 11)(12, 13)(14, 15)
            );
            let pd = |v| _mm512_castps_pd(v);
            let lo = |a, b| _mm512_castpd_ps(_mm512_unpacklo_pd(pd(a), pd(b)));
            let hi = |a, b| _mm512_castpd_ps(_mm512_unpackhi_pd(pd(a), pd(b)));
            // u[4g + c]: columns c, c + 4, c + 8, c + 12 of rows 4g .. 4g + 4, one in each 128-bit piece.
            let u = round!(t, lo, hi, (0, 2)(1, 3)(4, 6)(5, 7)(8, 10)(9, 11)(12, 14)(13, 15));
            // Pieces 0 and 2, then 1 and 3, of two groups of rows.
            let even = |a, b| _mm512_shuffle_f32x4::<0x88>(a, b);
            let odd = |a, b| _mm512_shuffle_f32x4::<0xdd>(a, b);
            let v = round!(u, even, odd, (0, 4)(1, 5)(2, 6)(3, 7)(8, 12)(9, 13)(10, 14)(11, 15));
            // v[2c], v[2c + 1]: columns {c, c + 8}, {c + 4, c + 12} of rows 0..8; from v[8] on, of rows 8..16.
            let w = round!(v, even, odd, (0, 8)(1, 9)(2, 10)(3, 11)(4, 12)(5, 13)(6, 14)(7, 15));
            // w[4c], w[4c + 1], w[4c + 2], w[4c + 3]: columns c, c + 8, c + 4, c + 12.
            macro_rules! pick { ($($i:literal)*) => { [$(Self(w[$i]),)*] }; }
            pick!(0 4 8 12 2 6 10 14 1 5 9 13 3 7 11 15)
        })
    }

    #[inline(always)]
    fn sums(square: [Self; MAX_LANES]) -> Self {
        // Each of four rounds adds two halves of two vectors to one vector: half the shuffles of a transpose.
        call!({
            let halves = |a: Self, b: Self| {
                let (low, high) = (_mm512_unpacklo_ps(a.0, b.0), _mm512_unpackhi_ps(a.0, b.0));
                Self(low) + Self(high)
            };
            let quarters = |a: Self, b: Self| {
                let (a, b) = (_mm512_castps_pd(a.0), _mm512_castps_pd(b.0));
                let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
                Self(_mm512_castpd_ps(low)) + Self(_mm512_castpd_ps(high))
            };
            // Reduces within each 128-bit piece: four vectors to one, then to half as many, and to one.
            let four = |a, b, c, d| quarters(halves(a, b), halves(c, d));
            let pieces = |a: Self, b: Self| {
                let even = _mm512_shuffle_f32x4::<0x88>(a.0, b.0);
                Self(even) + Self(_mm512_shuffle_f32x4::<0xdd>(a.0, b.0))
            };
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = square;
            let low = pieces(four(a, b, c, d), four(e, f, g, h));
            pieces(low, pieces(four(i, j, k, l), four(m, n, o, p)))
        })
    }

    #[inline(always)]
    unsafe fn load_columns_first(p: *const f32, stride: usize, n: usize) -> [Self; MAX_LANES] {
        // SAFETY: the caller's contract.
        unsafe { if n >= 12 { columns::<12>(p, stride, n) } else { columns::<0>(p, stride, n) } }
    }

    #[inline(always)]
    fn unzip(a: Self, b: Self) -> (Self, Self) {
        call!({
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
            (Self(_mm512_permutex2var_ps(a.0, even, b.0)), Self(_mm512_permutex2var_ps(a.0, odd, b.0)))
        })
    }
    #[inline(always)]
    fn zip(a: Self, b: Self) -> (Self, Self) {
        call!({
            let lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let hi = _mm512_or_si512(lo, _mm512_set1_epi32(8));
            (Self(_mm512_permutex2var_ps(a.0, lo, b.0)), Self(_mm512_permutex2var_ps(a.0, hi, b.0)))
        })
    }

    #[inline(always)]
    fn unzip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        // Three and the number of lanes are coprime, so the elements of a vector come from distinct lanes: they are
        // blended into one vector, which is then permuted once.
        call!({
            let pick = |second: u16, third: u16, start: i32| {
                let all = _mm512_mask_blend_ps(third, _mm512_mask_blend_ps(second, a.0, b.0), c.0);
                Self(_mm512_permutexvar_ps(multiples(3, start), all))
            };
            [pick(0x4924, 0x2492, 0), pick(0x9249, 0x4924, 1), pick(0x2492, 0x9249, 2)]
        })
    }
    #[inline(always)]
    fn zip3([a, b, c]: [Self; 3]) -> [Self; 3] {
        // The same in reverse: 11 times 3 is one more than twice the number of lanes.
        call!({
            let a = _mm512_permutexvar_ps(multiples(11, 0), a.0);
            let b = _mm512_permutexvar_ps(multiples(11, -11), b.0);
            let c = _mm512_permutexvar_ps(multiples(11, -22), c.0);
            let pick =
                |second: u16, third: u16| Self(_mm512_mask_blend_ps(third, _mm512_mask_blend_ps(second, a, b), c));
            [pick(0x2492, 0x4924), pick(0x9249, 0x2492), pick(0x4924, 0x9249)]
        })
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Self(call!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(call!(_mm512_sqrt_ps(self.0)))
    }
    #[inline(always)]
    fn quotients(a: [Self; 4], b: [Self; 4]) -> [Self; 4] {
        // The divider needs ten cycles for sixteen lanes; meanwhile the multipliers process other vectors.
        let [mut w, mut x, mut y, z] =
            [a[0].moderate_quotient(b[0]), a[1].moderate_quotient(b[1]), a[2].moderate_quotient(b[2]), a[3] / b[3]];
        let moderate = call!({
            let first = _mm512_ternarylogic_epi32::<AND>(w.raised(), b[0].raised(), x.raised());
            let second = _mm512_ternarylogic_epi32::<AND>(y.raised(), b[1].raised(), b[2].raised());
            Self::are_moderate(_mm512_and_si512(first, second))
        });
        if !moderate {
            (w, x, y) = (a[0] / b[0], a[1] / b[1], a[2] / b[2]);
        }
        [w, x, y, z]
    }
    #[inline(always)]
    fn square_roots(x: [Self; 4]) -> [Self; 4] {
        let common = call!(_mm512_ternarylogic_epi32::<AND>(x[0].raised(), x[1].raised(), x[2].raised()));
        if Self::are_moderate(common) {
            let [a, b, c, d] = x;
            [a.moderate_square_root(), b.moderate_square_root(), c.moderate_square_root(), d.sqrt()]
        } else {
            [x[0].sqrt(), x[1].sqrt(), x[2].sqrt(), x[3].sqrt()]
        }
    }
    #[inline(always)]
    fn reciprocal_sqrt(self) -> Self {
        call!({
            // One step of Newton's method doubles the 14 bits. For zeros, infinities, NaN and negative numbers the
            // estimate is the result, which the step would destroy.
            let y = Self(_mm512_rsqrt14_ps(self.0));
            let error = (-(self * y)).mul_add(y, self.of(1.0));
            let refined = (y * self.of(0.5)).mul_add(error, y);
            Self(_mm512_mask_mov_ps(refined.0, _mm512_fpclass_ps_mask::<0b1101_1111>(self.0), y.0))
        })
    }
    #[inline(always)]
    fn lesser(self, b: Self) -> Self {
        Self(call!(_mm512_min_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn greater(self, b: Self) -> Self {
        Self(call!(_mm512_max_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn scale_pow2(self, n: Self) -> Self {
        Self(call!(_mm512_scalef_ps(self.0, n.0)))
    }
    #[inline(always)]
    fn shift_exponent(self, shifted: Self) -> Self {
        call!({
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), n)))
        })
    }
    #[inline(always)]
    fn mantissa_exponent(self) -> (Self, Self) {
        // These instructions implement the rules for special values. The exponent that `getmant` removed is that of the
        // operand minus the one that remains in the mantissa.
        call!({
            let m = _mm512_getmant_ps::<_MM_MANT_NORM_P75_1P5, _MM_MANT_SIGN_NAN>(self.0);
            (Self(m), Self(_mm512_getexp_ps(self.0)) - Self(_mm512_getexp_ps(m)))
        })
    }
    #[inline(always)]
    fn limited(self, limit: Self) -> Self {
        // The smaller magnitude, with a positive sign.
        Self(call!(_mm512_range_ps::<0b1010>(self.0, limit.0)))
    }
    #[inline(always)]
    fn quarter_of_octave(self) -> Self {
        Self(call!(_mm512_castsi512_ps(_mm512_srli_epi32::<21>(_mm512_castps_si512(self.0)))))
    }
    #[inline(always)]
    fn lookup(self, table: &[f32; 16]) -> Self {
        // The instruction uses the lowest four bits.
        Self(call!(_mm512_permutexvar_ps(_mm512_castps_si512(self.0), _mm512_loadu_ps(table.as_ptr()))))
    }
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        let (first, second) = (self.greater(b), b.greater(self));
        // Bitwise or where the third operand is set, bitwise and elsewhere, which is the sign. See `Vector::maximum`.
        call!({
            let everything_but_the_sign = _mm512_set1_epi32(0x7fff_ffff);
            let (first, second) = (_mm512_castps_si512(first.0), _mm512_castps_si512(second.0));
            let bits = _mm512_ternarylogic_epi32::<0b1110_1000>(first, second, everything_but_the_sign);
            Self(_mm512_castsi512_ps(bits))
        })
    }

    #[inline(always)]
    fn and(self, b: Self) -> Self {
        Self(call!(_mm512_and_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn or(self, b: Self) -> Self {
        Self(call!(_mm512_or_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn xor(self, b: Self) -> Self {
        Self(call!(_mm512_xor_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn lt(self, b: Self) -> __mmask16 {
        call!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn le(self, b: Self) -> __mmask16 {
        call!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn eq(self, b: Self) -> __mmask16 {
        call!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, b.0))
    }
    #[inline(always)]
    fn is_nan(self) -> __mmask16 {
        call!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0))
    }
    #[inline(always)]
    fn select(mask: __mmask16, yes: Self, no: Self) -> Self {
        Self(call!(_mm512_mask_blend_ps(mask, no.0, yes.0)))
    }
    #[inline(always)]
    fn bits(mask: __mmask16) -> u32 {
        u32::from(mask)
    }
    #[inline(always)]
    fn either(a: __mmask16, b: __mmask16) -> __mmask16 {
        a | b
    }
    #[inline(always)]
    fn both(a: __mmask16, b: __mmask16) -> __mmask16 {
        a & b
    }
    #[inline(always)]
    fn and_numbers(mask: __mmask16, a: Self, b: Self) -> __mmask16 {
        // One instruction that applies the mask and checks two vectors.
        call!(_mm512_mask_cmp_ps_mask::<_CMP_ORD_Q>(mask, a.0, b.0))
    }
    #[inline(always)]
    fn upper(self, n: usize) -> Self {
        call!(match n {
            8 => Self(_mm512_shuffle_f32x4::<0b1110>(self.0, self.0)),
            4 => Self(_mm512_shuffle_f32x4::<0b01>(self.0, self.0)),
            2 => Self(_mm512_permute_ps::<0b1110>(self.0)),
            _ => Self(_mm512_permute_ps::<0b01>(self.0)),
        })
    }
}

/// `start + factor i` for lane i. A permutation uses only the lowest four bits.
///
/// # Safety
/// AVX-512 is available.
#[inline(always)]
unsafe fn multiples(factor: i32, start: i32) -> __m512i {
    let lanes: [i32; 16] = from_fn(|i| start + factor * i as i32);
    // SAFETY: the array is one vector.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

/// [`Vector::load_columns_first`] for `n` of at least `SURE`.
///
/// # Safety
/// The conditions of that method hold, and `SURE <= n`.
#[inline(always)]
unsafe fn columns<const SURE: usize>(p: *const f32, stride: usize, n: usize) -> [Avx512; MAX_LANES] {
    // SAFETY: the caller's contract.
    unsafe {
        let [a, b, c, d] = four_columns::<SURE>(p, stride, n);
        let [e, f, g, h] = four_columns::<SURE>(p.wrapping_add(4), stride, n);
        let [i, j, k, l] = four_columns::<SURE>(p.wrapping_add(8), stride, n);
        let [m, n, o, p] = four_columns::<SURE>(p.wrapping_add(12), stride, n);
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

/// Four columns of 16 rows, beginning at `p`.
///
/// # Safety
/// The conditions of [`columns`] hold for four columns.
#[inline(always)]
unsafe fn four_columns<const SURE: usize>(p: *const f32, stride: usize, n: usize) -> [Avx512; 4] {
    // Shuffles of whole registers use one port. Half of those of a transpose move 128-bit pieces, which loads do as
    // well: they place four floats of rows i, i + 4, i + 8 and i + 12 side by side. SAFETY: the caller's contract: rows
    // below n are readable.
    unsafe {
        macro_rules! piece {
            ($row:expr) => {
                if $row < SURE || $row < n { _mm_loadu_ps(p.wrapping_add($row * stride)) } else { _mm_setzero_ps() }
            };
        }
        macro_rules! rows {
            ($row:literal) => {{
                let v = _mm512_castps128_ps512(piece!($row));
                let v = _mm512_insertf32x4::<1>(v, piece!($row + 4));
                let v = _mm512_insertf32x4::<2>(v, piece!($row + 8));
                _mm512_insertf32x4::<3>(v, piece!($row + 12))
            }};
        }
        let (a, b, c, d) = (rows!(0), rows!(1), rows!(2), rows!(3));
        let (ab_lo, ab_hi) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let (cd_lo, cd_hi) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let pd = |v| _mm512_castps_pd(v);
        [
            Avx512(_mm512_castpd_ps(_mm512_unpacklo_pd(pd(ab_lo), pd(cd_lo)))),
            Avx512(_mm512_castpd_ps(_mm512_unpackhi_pd(pd(ab_lo), pd(cd_lo)))),
            Avx512(_mm512_castpd_ps(_mm512_unpacklo_pd(pd(ab_hi), pd(cd_hi)))),
            Avx512(_mm512_castpd_ps(_mm512_unpackhi_pd(pd(ab_hi), pd(cd_hi)))),
        ]
    }
}
