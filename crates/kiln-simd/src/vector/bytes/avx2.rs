use std::arch::x86_64::*;

use super::{BYTE_OF_BIT, Bytes, SIGNED};

/// Two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Bytes;

/// Converts four f16 in memory to f32. With the intrinsics, if only one of the four is used the compiler loads it into
/// a register that is in use, which creates a false dependency.
///
/// # Safety
/// F16C is available; `p` is readable for eight bytes.
#[inline]
#[target_feature(enable = "f16c")]
pub(super) unsafe fn four_halves(p: *const u8) -> __m128 {
    let four: __m128;
    // SAFETY: the instruction reads eight bytes, which the caller guarantees, and writes a register.
    unsafe {
        std::arch::asm!(
            "vcvtph2ps {four}, qword ptr [{p}]",
            four = out(xmm_reg) four,
            p = in(reg) p,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    four
}

/// The bits in the mask, shifted left by `BY`, or right if it is negative. Bits that would leave their byte must not be
/// in the mask.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
unsafe fn bits<const BY: i32>(x: __m256i, mask: i8) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        let shifted = match BY {
            0 => x,
            1.. => _mm256_sll_epi16(x, _mm_cvtsi32_si128(BY)),
            _ => _mm256_srl_epi16(x, _mm_cvtsi32_si128(-BY)),
        };
        _mm256_and_si256(shifted, _mm256_set1_epi8(mask))
    }
}

/// Half `HALF` of the lanes of a block of Q4_K or Q5_K: sub-blocks `4 HALF ..`, one sub-block for every 64 bits. From
/// each 32 bytes that two sub-blocks share, bytes `16 PART ..`.
///
/// # Safety
/// The conditions of [`Bytes::block`] hold.
#[inline(always)]
unsafe fn affine<const BITS: usize, const HALF: usize, const PART: usize>(
    low: *const u8,
    high: *const u8,
) -> [__m256i; 2] {
    // SAFETY: the caller's contract; offsets are those of the layouts.
    unsafe {
        let low = low.add(64 * HALF + 16 * PART);
        let q = _mm256_loadu2_m128i(low.add(32).cast(), low.cast());
        let (mut even, mut odd) = (bits::<0>(q, 15), bits::<-4>(q, 15));
        if BITS == 5 {
            // Moves bit 4 HALF to position 4 and, in the upper pair, the bit two above.
            let fifth = _mm256_broadcastsi128_si256(_mm_loadu_si128(high.add(16 * PART).cast()));
            let fifth = _mm256_srlv_epi64(fifth, _mm256_setr_epi64x(0, 0, 2, 2));
            let (of_even, of_odd) = match HALF {
                0 => (bits::<4>(fifth, 16), bits::<3>(fifth, 16)),
                _ => (bits::<0>(fifth, 16), bits::<-1>(fifth, 16)),
            };
            (even, odd) = (_mm256_or_si256(even, of_even), _mm256_or_si256(odd, of_odd));
        }
        [_mm256_unpacklo_epi64(even, odd), _mm256_unpackhi_epi64(even, odd)]
    }
}

/// Half `HALF` of the lanes of a block of Q6_K.
///
/// # Safety
/// The conditions of [`Bytes::block`] hold.
#[inline(always)]
unsafe fn symmetric<const HALF: usize>(low: *const u8, high: *const u8) -> [__m256i; 4] {
    // SAFETY: the caller's contract; offsets are those of the layout, loads are unaligned.
    unsafe {
        let row = |i: usize| _mm256_loadu_si256(low.add(64 * HALF + 32 * i).cast());
        let (first, second) = (row(0), row(1));
        let pairs = _mm256_loadu_si256(high.add(32 * HALF).cast());
        let rows = [
            _mm256_or_si256(bits::<0>(first, 15), bits::<4>(pairs, 0x30)),
            _mm256_or_si256(bits::<0>(second, 15), bits::<2>(pairs, 0x30)),
            _mm256_or_si256(bits::<-4>(first, 15), bits::<0>(pairs, 0x30)),
            _mm256_or_si256(bits::<-4>(second, 15), bits::<-2>(pairs, 0x30)),
        ];
        // Each row is two sub-blocks of 16: transposes them, so that four bytes of every sub-block are together.
        let (a, b) = (_mm256_unpacklo_epi32(rows[0], rows[1]), _mm256_unpacklo_epi32(rows[2], rows[3]));
        let (c, d) = (_mm256_unpackhi_epi32(rows[0], rows[1]), _mm256_unpackhi_epi32(rows[2], rows[3]));
        [
            _mm256_unpacklo_epi64(a, b),
            _mm256_unpackhi_epi64(a, b),
            _mm256_unpacklo_epi64(c, d),
            _mm256_unpackhi_epi64(c, d),
        ]
    }
}

/// The sums of four products of each of four times 32 bytes with those of a plane, which are 64 apart, multiplied by
/// `times`.
///
/// # Safety
/// AVX2 is available; `x` is readable for 224 bytes.
#[inline(always)]
unsafe fn plane<const BITS: usize>(block: [__m256i; 4], x: *const u8, times: i16) -> __m256i {
    // SAFETY: the caller's contract; loads are unaligned.
    unsafe {
        let pairs = |i: usize| _mm256_maddubs_epi16(block[i], _mm256_loadu_si256(x.add(64 * i).cast()));
        let (first, second) = (_mm256_add_epi16(pairs(0), pairs(1)), _mm256_add_epi16(pairs(2), pairs(3)));
        let times = _mm256_set1_epi16(times);
        if BITS == 6 {
            // Eight products of 63 and 128 would exceed 16 bits.
            _mm256_add_epi32(_mm256_madd_epi16(first, times), _mm256_madd_epi16(second, times))
        } else {
            _mm256_madd_epi16(_mm256_add_epi16(first, second), times)
        }
    }
}

/// Adds half `HALF` of the lanes of [`Bytes::dots`].
///
/// # Safety
/// The conditions of [`Bytes::block`] hold for the addresses in the block.
#[inline(always)]
unsafe fn half_dots<const BITS: usize, const INT8: bool, const R: usize, const HALF: usize>(
    low: *const u8,
    high: *const u8,
    x: [*const u8; R],
    sums: &mut [[__m256i; 2]; R],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let block = if BITS == 6 {
            symmetric::<HALF>(low, high)
        } else {
            let [a, b] = affine::<BITS, HALF, 0>(low, high);
            let [c, d] = affine::<BITS, HALF, 1>(low, high);
            [a, b, c, d]
        };
        for r in 0..R {
            let x = x[r].add(32 * HALF);
            let sum = if INT8 {
                plane::<BITS>(block, x, 1)
            } else {
                _mm256_add_epi32(plane::<BITS>(block, x, 256), plane::<BITS>(block, x.add(256), 1))
            };
            sums[r][HALF] = _mm256_add_epi32(sums[r][HALF], sum);
        }
    }
}

impl Bytes for Avx2Bytes {
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];
    type EightInts = __m256i;
    type Eight = __m256;
    type Halves = __m128;
    /// Sixteen registers cannot hold a block in addition to its sums.
    type Block = [*const u8; 2];
    type Wide = __m256i;

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a prefetch is only a hint; every processor with this set supports it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn block<const BITS: usize>(low: *const u8, high: *const u8) -> [*const u8; 2] {
        [low, high]
    }

    #[inline(always)]
    unsafe fn dots<const BITS: usize, const INT8: bool, const R: usize>(
        [low, high]: [*const u8; 2],
        x: [*const u8; R],
        mut sums: [[__m256i; 2]; R],
    ) -> [[__m256i; 2]; R] {
        // SAFETY: the caller's contract.
        unsafe {
            half_dots::<BITS, INT8, R, 0>(low, high, x, &mut sums);
            half_dots::<BITS, INT8, R, 1>(low, high, x, &mut sums);
        }
        sums
    }

    #[inline(always)]
    unsafe fn wide(p: *const u8) -> __m256i {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> __m256i {
        // SAFETY: the caller's contract; the load is unaligned. Bits that a shift moves in from the next byte are
        // masked out.
        unsafe {
            let low = _mm_loadu_si128(p.cast());
            let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), _mm_srli_epi16::<4>(low));
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        }
    }
    #[inline(always)]
    unsafe fn with_bits(w: __m256i, bits: *const u8) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe {
            let bits = _mm256_set1_epi32(bits.cast::<i32>().read_unaligned());
            // Copies to each byte the byte that contains its bit, then isolates that bit.
            let bytes = _mm256_shuffle_epi8(bits, _mm256_loadu_si256(BYTE_OF_BIT.as_ptr().cast()));
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
            _mm256_or_si256(w, _mm256_and_si256(is_set, _mm256_set1_epi8(16)))
        }
    }
    #[inline(always)]
    unsafe fn with_third(w: __m256i, third: __m256i) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe { _mm256_or_si256(w, _mm256_slli_epi16::<2>(third)) }
    }
    #[inline(always)]
    unsafe fn masked(w: __m256i, right: usize, mask: u8) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe {
            let down = _mm256_srl_epi16(w, _mm_cvtsi32_si128(right as i32));
            _mm256_and_si256(down, _mm256_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn shifted(w: __m256i, by: i8) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe { _mm256_add_epi8(w, _mm256_set1_epi8(by)) }
    }
    #[inline(always)]
    unsafe fn looked_up(w: __m256i, book: &[i8; 16]) -> __m256i {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(book.as_ptr().cast())), w) }
    }
    #[inline(always)]
    unsafe fn dot(w: __m256i, x: *const u8) -> [__m256i; 2] {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let of = |w: __m128i, i: usize| {
                _mm256_madd_epi16(_mm256_cvtepi8_epi16(w), _mm256_loadu_si256(x.add(32 * i).cast()))
            };
            [of(_mm256_castsi256_si128(w), 0), of(_mm256_extracti128_si256::<1>(w), 1)]
        }
    }

    #[inline(always)]
    unsafe fn dots_of_run<const INT8: bool>(q: &[__m256i; 8], x: *const u8) -> __m256i {
        // SAFETY: the caller's contract; loads are unaligned.
        unsafe {
            let mut sums = [_mm256_setzero_si256(); 8];
            for i in 0..8 {
                sums[i] = if INT8 {
                    // Products of magnitudes with what has the sign of both: two of 128 and 127 fit 16 bits.
                    let x = _mm256_loadu_si256(x.add(32 * i).cast());
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q[i]), _mm256_sign_epi8(x, q[i]));
                    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
                } else {
                    let [a, b] = Self::dot(q[i], x.add(64 * i));
                    _mm256_add_epi32(a, b)
                };
            }
            Self::totals(sums)
        }
    }

    #[inline(always)]
    unsafe fn no_ints() -> [__m256i; 2] {
        // SAFETY: the caller's contract.
        [unsafe { _mm256_setzero_si256() }; 2]
    }
    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> [__m256i; 2] {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [__m256; 2] {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [__m256; 2] {
        // SAFETY: the caller's contract.
        [unsafe { _mm256_set1_ps(x) }; 2]
    }

    #[inline(always)]
    unsafe fn pair(first: f32, second: f32) -> [__m256; 2] {
        // SAFETY: the caller's contract.
        unsafe { [_mm256_set1_ps(first), _mm256_set1_ps(second)] }
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> __m128 {
        // SAFETY: the caller's contract; this set is available only if F16C is.
        unsafe { four_halves(p) }
    }
    #[inline(always)]
    unsafe fn factor<const I: usize>(halves: __m128, unit: f32) -> [__m256; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let scaled = _mm_mul_ps(halves, _mm_set1_ps(unit));
            let all = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(scaled), _mm256_set1_epi32(I as i32));
            [if I == 0 { _mm256_broadcastss_ps(scaled) } else { all }; 2]
        }
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [__m256; 2] {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let codes = _mm_shuffle_epi8(_mm_loadu_si128(p.cast()), _mm_loadu_si128(SIGNED.as_ptr().cast()));
            let upper = _mm_unpackhi_epi64(codes, codes);
            [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(upper))]
        }
    }

    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller's contract.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn add(sums: [__m256; 2], value: [__m256i; 2], steps: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let of = |i: usize| _mm256_add_ps(sums[i], _mm256_mul_ps(steps[i], _mm256_cvtepi32_ps(value[i])));
            [of(0), of(1)]
        }
    }
    #[inline(always)]
    unsafe fn sub(sums: [__m256; 2], x: *const f32, steps: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the caller's contract; the loads are unaligned.
        unsafe {
            let of = |i: usize| _mm256_sub_ps(sums[i], _mm256_mul_ps(steps[i], _mm256_loadu_ps(x.add(8 * i))));
            [of(0), of(1)]
        }
    }
    #[inline(always)]
    unsafe fn total(sums: [__m256; 2]) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { Self::total_eight(_mm256_add_ps(sums[0], sums[1])) }
    }

    #[inline(always)]
    unsafe fn fold(sums: [__m256i; 2]) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe { _mm256_permute4x64_epi64::<0xd8>(_mm256_hadd_epi32(sums[0], sums[1])) }
    }
    #[inline(always)]
    unsafe fn zero_eight() -> __m256 {
        // SAFETY: the caller's contract.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn load_eight(p: *const f32) -> __m256 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn eight_halves<const STRIDE: usize>(p: *const u8) -> __m256 {
        // SAFETY: the caller's contract; this set is available only if F16C is.
        unsafe {
            let of = |i: usize| p.add(i * STRIDE).cast::<i16>().read_unaligned();
            _mm256_cvtph_ps(_mm_setr_epi16(of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)))
        }
    }
    #[inline(always)]
    unsafe fn eight_scales<const I: usize>(codes: [u8; 8], halves: __m128) -> __m256 {
        // SAFETY: the caller's contract.
        unsafe {
            let codes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(codes)));
            let half = if I == 0 { halves } else { _mm_shuffle_ps::<0x55>(halves, halves) };
            _mm256_mul_ps(_mm256_cvtepi32_ps(codes), _mm256_broadcastss_ps(half))
        }
    }
    #[inline(always)]
    unsafe fn add_eight(sums: __m256, value: __m256i, scales: __m256, units: *const f32) -> __m256 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe {
            let product = _mm256_mul_ps(_mm256_cvtepi32_ps(value), scales);
            _mm256_add_ps(sums, _mm256_mul_ps(product, _mm256_loadu_ps(units)))
        }
    }
    #[inline(always)]
    unsafe fn sub_eight(sums: __m256, minima: __m256, x: *const f32) -> __m256 {
        // SAFETY: the caller's contract; the load is unaligned.
        unsafe { _mm256_sub_ps(sums, _mm256_mul_ps(minima, _mm256_loadu_ps(x))) }
    }
    #[inline(always)]
    unsafe fn total_eight(sums: __m256) -> f32 {
        // SAFETY: the caller's contract.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
}

impl Avx2Bytes {
    /// The totals of eight times eight sums.
    ///
    /// # Safety
    /// AVX2 is available.
    #[inline(always)]
    pub(super) unsafe fn totals([a, b, c, d, e, f, g, h]: [__m256i; 8]) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe {
            let first = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
            join(first, _mm256_hadd_epi32(_mm256_hadd_epi32(e, f), _mm256_hadd_epi32(g, h)))
        }
    }
}

/// The sums of the lower and upper halves of `a`, then of `b`.
///
/// # Safety
/// AVX2 is available.
#[inline(always)]
pub(super) unsafe fn join(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe { _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)) }
}
