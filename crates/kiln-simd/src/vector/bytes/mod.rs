//! 64 bytes at a time: what products of quantised weights need beside f32 lanes.
//!
//! Every instruction set holds the same 64 bytes, 16 integer sums and 16 f32 sums, in one register or in several, so an
//! algorithm is written once and its sums are the same bits everywhere: integers are exact, and the f32 lanes add in
//! the same order. Integer sums wrap; callers see to it that the final value of a lane fits.
//!
//! Dot products of bytes have instructions of their own on some processors with AVX-512 (VNNI). That is found out here
//! and shows nowhere else.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::Isa;

/// 64 unsigned bytes, and the sums that go with them. Lane `l` of the sums belongs to bytes `4 l .. 4 l + 4`.
///
/// A value is the witness that its instruction set is there: making one is unsafe, computing with it is not.
pub(crate) trait Bytes: Copy {
    /// 16 sums of 32 bits.
    type Ints: Copy;
    /// 16 sums in f32.
    type Floats: Copy;
    /// 16 codes of 16 bits, one for each four lanes of four consecutive `Bytes`.
    type Codes: Copy;
    /// Codes brought to the lanes they belong to.
    type Scales: Copy;

    /// # Safety
    /// The instruction set is there; `p` is good for reading 64 bytes.
    unsafe fn load(p: *const u8) -> Self;
    /// The same 32 bytes in both halves.
    ///
    /// # Safety
    /// The instruction set is there; `p` is good for reading 32 bytes.
    unsafe fn load_twice(p: *const u8) -> Self;
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

    /// Writes what [`Bytes::dot`] adds to take `offset` from every weight: `-offset` times the sums of the `x` that
    /// meet in one partial sum.
    ///
    /// # Safety
    /// The instruction set is there; `correction` is good for writing 64 bytes.
    unsafe fn correct(x: &[i8; 64], offset: i16, correction: *mut u8);

    /// `sums + scale * (Σ of four products of a byte with the signed byte of x)`, each byte less the offset of the
    /// correction where there is one. The sum of four, and partial sums of two, fit 16 bits.
    ///
    /// # Safety
    /// `x` is good for reading 64 bytes, and `correction` too unless it is null.
    unsafe fn dot<const CORRECTED: bool>(
        self,
        x: *const u8,
        correction: *const u8,
        scale: Self::Scales,
        sums: Self::Ints,
    ) -> Self::Ints;

    /// The 6-bit codes of a block in the order of four `Bytes` whose halves are sub-blocks 0 2, 1 3, 4 6, 5 7: scales
    /// and minima.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn affine_codes(scales: [u8; 8], minima: [u8; 8]) -> (Self::Codes, Self::Codes);
    /// Sixteen codes as they stand in memory.
    ///
    /// # Safety
    /// The instruction set is there; `p` is good for reading 16 bytes.
    unsafe fn signed_codes(p: *const u8) -> Self::Codes;
    /// The scales of the `V`th of four `Bytes`.
    fn scales<const V: usize>(codes: Self::Codes) -> Self::Scales;

    /// The sums of the products of 32 signed bytes with 32 integers of 16 bits, two to a lane.
    ///
    /// # Safety
    /// The instruction set is there; `w` is good for reading 32 bytes and `x` 64.
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> Self::Ints;

    /// `sums + factor * (256 high + low)`; the integer fits 32 bits.
    fn add_planes(sums: Self::Floats, high: Self::Ints, low: Self::Ints, factor: f32) -> Self::Floats;
    /// `sums + factor * value`.
    fn add_ints(sums: Self::Floats, value: Self::Ints, factor: f32) -> Self::Floats;
    /// `sums - factor * (codes * x)`, the codes being unsigned.
    ///
    /// # Safety
    /// `x` is good for reading 16 f32.
    unsafe fn sub_codes(sums: Self::Floats, codes: Self::Codes, x: *const f32, factor: f32) -> Self::Floats;
    /// The total of the lanes, halves upon halves.
    fn total(sums: Self::Floats) -> f32;

    /// The f32 of an f16.
    ///
    /// # Safety
    /// The instruction set is there; `p` is good for reading two bytes.
    unsafe fn half(p: *const u8) -> f32;
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
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
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
            // SAFETY: the caller vouches for AVX-512; the standard library caches what it found out about VNNI.
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => return unsafe { vnni(kernel) },
            // SAFETY: the caller vouches for it.
            Isa::Avx512 => return unsafe { avx512(kernel) },
            // SAFETY: the caller vouches for it.
            Isa::Avx2 => return unsafe { avx2(kernel) },
            _ => {}
        }
    }
    let _ = isa;
    // SAFETY: plain Rust, compiled for the baseline of the architecture.
    unsafe { kernel.run::<portable::PortableBytes>() }
}

/// Where each half of four `Bytes` of an affine block comes from: its sub-block.
pub(crate) const AFFINE_ORDER: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];
