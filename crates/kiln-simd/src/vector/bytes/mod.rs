//! 64 bytes at a time: what products of quantised weights need beside f32 lanes.
//!
//! Every instruction set holds the same 64 bytes, 16 integer sums and 16 f32 sums, in one register or in several, so an
//! algorithm is written once and its sums are the same bits everywhere: integers are exact, and the f32 lanes add in
//! the same order. Integer sums wrap; callers see to it that the final value of a lane fits.
//!
//! Dot products of bytes have instructions of their own on most processors with AVX-512 (VNNI; those that also have GFNI
//! take them). That is found out here and shows nowhere else.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")))]
mod four;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(target_arch = "x86_64")]
mod sse2;

use crate::Isa;

/// 64 unsigned bytes, and the sums that go with them. Lane `l` of the sums belongs to bytes `4 l .. 4 l + 4`.
///
/// A value is the witness that its instruction set is there: making one is unsafe, computing with it is not.
pub(crate) trait Bytes: Copy {
    /// 16 sums of 32 bits.
    type Ints: Copy;
    /// 16 sums in f32.
    type Floats: Copy;
    /// The 6-bit codes of a block: eight scales and eight minima.
    type Codes: Copy;
    /// The sixteen signed codes of a block.
    type SignedCodes: Copy;
    /// Codes brought to the lanes they belong to.
    type Scales: Copy;
    /// Four f32.
    type Halves: Copy;

    /// # Safety
    /// The instruction set is there; `p` is good for reading 64 bytes.
    unsafe fn load(p: *const u8) -> Self;
    /// The same 32 bytes in both halves.
    ///
    /// # Safety
    /// The instruction set is there; `p` is good for reading 32 bytes.
    unsafe fn load_twice(p: *const u8) -> Self;
    /// Asks for the cache line at `p`, to be read soon. Any address will do.
    #[inline(always)]
    fn prefetch(_p: *const u8) {}
    /// The low nibble of every byte.
    fn low_nibbles(self) -> Self;
    /// The high nibble of every byte.
    fn high_nibbles(self) -> Self;
    /// `self | (bits & mask)`, where `bits` is shifted left by `A` in its first half and by `B` in its second (right
    /// where they are negative; not one of each sign). What leaves its byte must not be in the mask.
    fn with_bits<const A: i32, const B: i32>(self, bits: Self, mask: u8) -> Self;

    /// # Safety
    /// The instruction set is there.
    unsafe fn ints() -> Self::Ints;
    /// # Safety
    /// The instruction set is there.
    unsafe fn floats() -> Self::Floats;

    /// Writes what [`Bytes::dot`] adds to take `offset` from every weight: `-offset` times the sums of four of the high
    /// and of the low plane, in words.
    ///
    /// # Safety
    /// The instruction set is there; `correction` is good for writing 32 words.
    unsafe fn correct(planes: [&[i8; 64]; 2], offset: i16, correction: *mut u8);

    /// Adds `scale * (256 high + low)` to the sums, where `high` and `low` are the products of the bytes with the
    /// signed bytes of two planes, each byte less the offset of the correction where there is one.
    ///
    /// Within four lanes, those of 16 bytes, the first two take the sums of eight products with the high plane, times
    /// 256, the last two those with the low plane. Sums of four products fit 16 bits.
    ///
    /// # Safety
    /// The planes are good for reading 64 bytes, and the correction too where there is one.
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: Self::Scales,
        sums: Self::Ints,
    ) -> Self::Ints;

    /// # Safety
    /// The instruction set is there.
    unsafe fn codes(scales: [u8; 8], minima: [u8; 8]) -> Self::Codes;
    /// # Safety
    /// The instruction set is there; `p` is good for reading 16 bytes.
    unsafe fn signed_codes(p: *const u8) -> Self::SignedCodes;
    /// The scales of the `V`th of the four `Bytes` of a block in [`AFFINE_ORDER`].
    fn scales<const V: usize>(codes: Self::Codes) -> Self::Scales;
    /// The scales of the `V`th of the four `Bytes` of a block, a code for 16 bytes.
    fn signed_scales<const V: usize>(codes: Self::SignedCodes) -> Self::Scales;

    /// The sums of the products of 32 signed bytes with 32 integers of 16 bits, two to a lane.
    ///
    /// # Safety
    /// The instruction set is there; `w` is good for reading 32 bytes and `x` 64.
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> Self::Ints;

    /// `sums + factor * value`.
    fn add_ints(sums: Self::Floats, value: Self::Ints, factor: Self::Floats) -> Self::Floats;
    /// `sums + factor * (a + b)`.
    fn add_two_ints(sums: Self::Floats, a: Self::Ints, b: Self::Ints, factor: Self::Floats) -> Self::Floats;
    /// `sums - factor * (minima * x)`, each minimum for two lanes.
    ///
    /// # Safety
    /// `x` is good for reading 16 f32.
    unsafe fn sub_minima(sums: Self::Floats, codes: Self::Codes, x: *const f32, factor: Self::Floats) -> Self::Floats;
    /// The total of the lanes, halves upon halves.
    fn total(sums: Self::Floats) -> f32;

    /// Writes `scale * (byte - offset)`, and where `AFFINE` less the minimum, for each quarter of the bytes with its
    /// own scale, minimum and place.
    ///
    /// # Safety
    /// Each place is good for writing 16 f32.
    unsafe fn store<const AFFINE: bool>(self, offset: i32, steps: [(f32, f32); 4], out: [*mut f32; 4]);
    /// Writes `scale * byte` for 32 signed bytes.
    ///
    /// # Safety
    /// The instruction set is there; `p` is good for reading 32 bytes, `out` for writing 32 f32.
    unsafe fn store_signed(p: *const u8, scale: f32, out: *mut f32);

    /// The f32 of four f16.
    ///
    /// # Safety
    /// The instruction set is there; `p` is good for reading eight bytes.
    unsafe fn halves(p: *const u8) -> Self::Halves;
    /// The `I`th of four times `unit`, in every lane.
    fn factor<const I: usize>(halves: Self::Halves, unit: f32) -> Self::Floats;
    /// The four.
    fn four(halves: Self::Halves) -> [f32; 4];
}

/// An algorithm over bytes, to be compiled for every instruction set.
pub(crate) trait ByteKernel {
    /// The algorithm. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The instruction set of `B` is there.
    unsafe fn run<B: Bytes>(self);
}

/// Runs an algorithm over bytes on an instruction set.
///
/// # Safety
/// [`Isa::is_available`] holds for `isa`.
pub(crate) unsafe fn dispatch_bytes<K: ByteKernel>(isa: Isa, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
        )]
        unsafe fn vnni<K: ByteKernel>(kernel: K) {
            // SAFETY: this function is entered only where its features are.
            unsafe { kernel.run::<avx512::Avx512Bytes<true>>() }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn avx512<K: ByteKernel>(kernel: K) {
            // SAFETY: as above.
            unsafe { kernel.run::<avx512::Avx512Bytes<false>>() }
        }
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn avx2<K: ByteKernel>(kernel: K) {
            // SAFETY: as above.
            unsafe { kernel.run::<avx2::Avx2Bytes>() }
        }
        match isa {
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("gfni") => {
                // SAFETY: the caller vouches for AVX-512, the guard for the rest; the standard library caches it.
                return unsafe { vnni(kernel) };
            }
            // SAFETY: the caller vouches for it.
            Isa::Avx512 => return unsafe { avx512(kernel) },
            // SAFETY: the caller vouches for it.
            Isa::Avx2 => return unsafe { avx2(kernel) },
            // SAFETY: SSE2 is part of x86-64.
            Isa::Sse2 => return unsafe { kernel.run::<four::Four<sse2::Sse2Piece>>() },
            _ => {}
        }
    }
    #[cfg(target_arch = "aarch64")]
    if isa == Isa::Neon {
        // SAFETY: NEON is part of 64-bit ARM.
        return unsafe { kernel.run::<four::Four<neon::NeonPiece>>() };
    }
    // A build with vectors has no other set.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    // SAFETY: the program is built with the feature.
    unsafe {
        let _ = isa;
        kernel.run::<four::Four<simd128::Simd128Piece>>();
    }
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    // SAFETY: plain Rust, compiled for the baseline of the architecture.
    unsafe {
        let _ = isa;
        kernel.run::<portable::PortableBytes>();
    }
}

/// What shuffles of bytes take from 16 bytes of codes to make the scales of the `V`th of four `Bytes`: in every 128 bits
/// four words of a scale times 256, for the high sums, and four of the scale, for the low ones.
#[cfg(target_arch = "x86_64")]
struct Order<const V: usize>;

#[cfg(target_arch = "x86_64")]
impl<const V: usize> Order<V> {
    /// An index that gives zero.
    const ZERO: u8 = 0x80;

    /// From eight bytes of scales: a byte in the upper half of a word or in the lower.
    const AFFINE: [u8; 64] = {
        let mut order = [Self::ZERO; 64];
        let mut b = 0;
        while b < 64 {
            if (b % 16 < 8) == (b % 2 == 1) {
                order[b] = AFFINE_ORDER[2 * V + b / 32] as u8;
            }
            b += 1;
        }
        order
    };

    /// From eight words of scales: the lower byte in the upper half of a word, or the word.
    const SIGNED: [u8; 64] = {
        let mut order = [Self::ZERO; 64];
        let mut b = 0;
        while b < 64 {
            let code = 2 * ((4 * V + b / 16) % 8) as u8;
            if b % 16 >= 8 {
                order[b] = code + (b % 2) as u8;
            } else if b % 2 == 1 {
                order[b] = code;
            }
            b += 1;
        }
        order
    };
}

/// What a shuffle of bytes takes to make integers of 32 bits of eight bytes of minima, each for two lanes.
#[cfg(target_arch = "x86_64")]
const MINIMA: [u8; 64] = {
    let mut order = [0x80; 64];
    let mut lane = 0;
    while lane < 16 {
        order[4 * lane] = (lane / 2) as u8;
        lane += 1;
    }
    order
};

/// Where each half of four `Bytes` of an affine block comes from: its sub-block.
pub(crate) const AFFINE_ORDER: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];
