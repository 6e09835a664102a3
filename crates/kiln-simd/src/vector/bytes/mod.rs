//! Vectors of integers for products of quantised weights.
//!
//! Every instruction set holds the same integers, 16 integer sums and 16 f32 sums, in one register or in several, so an
//! algorithm is written once and its sums are the same bits everywhere: integers are exact, and the f32 lanes add in
//! the same order.
//!
//! Dot products of bytes have instructions of their own on most processors with AVX-512 (VNNI), and on later ones so has the
//! unpacking of bits (GFNI and VBMI). That is found out here and shows nowhere else.

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

/// The operations for products of blocks: on integers, 16 integer sums, and f32 sums of 16 groups of 16 elements or of eight
/// groups of 32.
///
/// The integers of a block of 256 are stored in four times 64 bytes, in the order of [`element`]: every lane of the
/// sums uses four bytes of each, all from one sub-block, so that scales multiply sums instead of integers.
pub(crate) trait Bytes: Copy {
    /// 16 sums of 32 bits.
    type Ints: Copy;
    /// 16 sums in f32.
    type Floats: Copy;
    /// Eight sums of 32 bits.
    type EightInts: Copy;
    /// Eight sums in f32.
    type Eight: Copy;
    /// Four f32.
    type Halves: Copy;
    /// The integers of a block: in registers if there are enough to unpack one block ahead, else their address.
    type Block: Copy;
    /// 32 bytes.
    type Wide: Copy;
    /// Whether the integers of a run are in memory between unpacking and products, because registers are few. Functions that are not
    /// inlined then do both for every number of rows: the instruction set is the one that the whole program is compiled for, which
    /// they do not lose.
    const APART: bool = false;

    /// Prefetches the cache line at `p`, to be read soon. Any address is allowed.
    #[inline(always)]
    fn prefetch(_p: *const u8) {}

    /// The integers of a block, of `BITS` bits: 4 (nibbles at `low`), 5 (the fifth bits at `high`) or 6 (two more at
    /// `high`), in the layouts of Q4_K, Q5_K and Q6_K.
    ///
    /// # Safety
    /// The instruction set is available; `low` is readable for 128 bytes, `high` for 32 with five bits and 64 with six,
    /// for as long as the result is in use.
    unsafe fn block<const BITS: usize>(low: *const u8, high: *const u8) -> Self::Block;

    /// `start + 256 high + low` for each of `R` rows, where `high` and `low` are the products of the integers with the
    /// signed bytes of the two consecutive planes of 256 bytes at `x`. If `INT8`, there is one plane: `start + high`.
    ///
    /// # Safety
    /// The instruction set is available, the block was made with the same `BITS`, and each of `x` is readable for its
    /// planes.
    unsafe fn dots<const BITS: usize, const INT8: bool, const R: usize>(
        block: Self::Block,
        x: [*const u8; R],
        start: [Self::Ints; R],
    ) -> [Self::Ints; R];

    /// The 32 bytes at `p`.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for 32 bytes.
    unsafe fn wide(p: *const u8) -> Self::Wide;
    /// The low nibbles of the 16 bytes at `p`, then the high ones.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for 16 bytes.
    unsafe fn nibbles(p: *const u8) -> Self::Wide;
    /// `w` with fifth bits from the word at `bits`, whose bit `i` belongs to byte `i`.
    ///
    /// # Safety
    /// The instruction set is available; `bits` is readable for four bytes.
    unsafe fn with_bits(w: Self::Wide, bits: *const u8) -> Self::Wide;
    /// `w` with third bits: those of `third` are 0 or 1.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn with_third(w: Self::Wide, third: Self::Wide) -> Self::Wide;
    /// The bits in the mask of each byte after a right shift below 8. They must come from the same byte.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn masked(w: Self::Wide, right: usize, mask: u8) -> Self::Wide;
    /// Each byte plus a number.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn shifted(w: Self::Wide, by: i8) -> Self::Wide;
    /// Looks up the bytes, each below 16, in a code book.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn looked_up(w: Self::Wide, book: &[i8; 16]) -> Self::Wide;
    /// The sums of the products of 32 signed bytes with 32 16-bit integers, two to a lane.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for 64 bytes.
    unsafe fn dot(w: Self::Wide, x: *const u8) -> Self::Ints;
    /// The sum of the products of each of eight times 32 signed bytes with 16-bit integers, or if `INT8` with signed bytes, none of
    /// them -128.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for 512 bytes, or 256.
    unsafe fn dots_of_run<const INT8: bool>(q: &[Self::Wide; 8], x: *const u8) -> Self::EightInts;

    /// # Safety
    /// The instruction set is available.
    unsafe fn no_ints() -> Self::Ints;
    /// # Safety
    /// The instruction set is available; `p` is readable for 16 integers.
    unsafe fn load_ints(p: *const i32) -> Self::Ints;
    /// # Safety
    /// The instruction set is available; `p` is readable for 16 f32.
    unsafe fn load(p: *const f32) -> Self::Floats;
    /// The same in every lane.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn splat(x: f32) -> Self::Floats;

    /// `first` in the first eight lanes, `second` in the others.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn pair(first: f32, second: f32) -> Self::Floats;

    /// The f32 of four f16.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for eight bytes.
    unsafe fn halves(p: *const u8) -> Self::Halves;
    /// The `I`th of four, times `unit`, in every lane.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn factor<const I: usize>(halves: Self::Halves, unit: f32) -> Self::Floats;
    /// Sixteen signed codes, each for the lane of its sub-block of 16.
    ///
    /// # Safety
    /// The instruction set is available; `p` is readable for 16 bytes.
    unsafe fn signed_codes(p: *const u8) -> Self::Floats;

    /// `a * b`.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `sums + steps * value`.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn add(sums: Self::Floats, value: Self::Ints, steps: Self::Floats) -> Self::Floats;
    /// `sums - steps * x`.
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for 16 f32.
    unsafe fn sub(sums: Self::Floats, x: *const f32, steps: Self::Floats) -> Self::Floats;
    /// The total of the lanes, folded by halves.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn total(sums: Self::Floats) -> f32;

    /// The sums of neighbours: of lanes `2 i` and `2 i + 1`.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn fold(sums: Self::Ints) -> Self::EightInts;
    /// Zero in every lane.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn zero_eight() -> Self::Eight;
    /// # Safety
    /// The instruction set is available; `p` is readable for eight f32.
    unsafe fn load_eight(p: *const f32) -> Self::Eight;
    /// Eight f16, `STRIDE` bytes apart.
    ///
    /// # Safety
    /// The instruction set is available; each is readable.
    unsafe fn eight_halves<const STRIDE: usize>(p: *const u8) -> Self::Eight;
    /// Eight codes times the `I`th of four.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn eight_scales<const I: usize>(codes: [u8; 8], halves: Self::Halves) -> Self::Eight;
    /// `sums + (value * scales) * units`
    ///
    /// # Safety
    /// The instruction set is available; `units` is readable for eight f32.
    unsafe fn add_eight(
        sums: Self::Eight,
        value: Self::EightInts,
        scales: Self::Eight,
        units: *const f32,
    ) -> Self::Eight;
    /// `sums - minima * x`
    ///
    /// # Safety
    /// The instruction set is available; `x` is readable for eight f32.
    unsafe fn sub_eight(sums: Self::Eight, minima: Self::Eight, x: *const f32) -> Self::Eight;
    /// The total of the lanes, folded by halves.
    ///
    /// # Safety
    /// The instruction set is available.
    unsafe fn total_eight(sums: Self::Eight) -> f32;
}

/// The index of the element that is stored at this byte of 256, for blocks of integers of `bits` bits.
///
/// With `i` the index among four times 64 bytes, lane `l` uses bytes `4 l .. 4 l + 4`. For Q4_K and Q5_K two lanes
/// belong to a sub-block of 32; for Q6_K one lane to a sub-block of 16, in the order that results from transposing its
/// rows of 16 bytes.
pub(crate) const fn element(bits: usize, byte: usize) -> usize {
    let (i, lane, b) = (byte / 64, byte % 64 / 4, byte % 4);
    if bits == 6 { 16 * signed_sub_block(lane) + 4 * i + b } else { 32 * (lane / 2) + 8 * i + 4 * (lane % 2) + b }
}

/// The sub-block of 16 to which a lane belongs.
pub(crate) const fn signed_sub_block(lane: usize) -> usize {
    lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2
}

/// An algorithm on bytes that is compiled for every instruction set.
pub(crate) trait ByteKernel {
    /// The algorithm. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The instruction set of `B` is available.
    unsafe fn run<B: Bytes>(self);
}

/// Whether a variable is set with which a build with debug assertions, which tests are, runs code that a machine with certain features
/// would never run otherwise.
#[cfg(target_arch = "x86_64")]
macro_rules! is_left_out {
    ($variable:literal) => {{
        #[cfg(debug_assertions)]
        {
            static WITHOUT: std::sync::LazyLock<bool> =
                std::sync::LazyLock::new(|| std::env::var_os($variable).is_some_and(|value| !value.is_empty()));
            *WITHOUT
        }
        #[cfg(not(debug_assertions))]
        false
    }};
}
/// Whether this machine has VNNI.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni") && !is_left_out!("KILN_TEST_WITHOUT_VNNI")
}

/// Whether this machine has VBMI and GFNI.
#[cfg(target_arch = "x86_64")]
fn has_gfni() -> bool {
    is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("gfni")
        && !is_left_out!("KILN_TEST_WITHOUT_GFNI")
}

/// Runs an algorithm on bytes with an instruction set.
///
/// # Safety
/// [`Isa::is_available`] holds for `isa`.
pub(crate) unsafe fn dispatch_bytes<K: ByteKernel>(isa: Isa, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
        )]
        unsafe fn gfni<K: ByteKernel>(kernel: K) {
            // SAFETY: this function is entered only if its features are available.
            unsafe { kernel.run::<avx512::Avx512Bytes<true, true>>() }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn vnni<K: ByteKernel>(kernel: K) {
            // SAFETY: as above.
            unsafe { kernel.run::<avx512::Avx512Bytes<true, false>>() }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn avx512<K: ByteKernel>(kernel: K) {
            // SAFETY: as above.
            unsafe { kernel.run::<avx512::Avx512Bytes<false, false>>() }
        }
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn avx2<K: ByteKernel>(kernel: K) {
            // SAFETY: as above.
            unsafe { kernel.run::<avx2::Avx2Bytes>() }
        }
        // Apart, as is the next function: a caller would have its stack frame even if it enters another set.
        #[inline(never)]
        unsafe fn sse2<K: ByteKernel>(kernel: K) {
            // SAFETY: as above.
            unsafe { kernel.run::<four::Four<sse2::Sse2Piece>>() }
        }
        match isa {
            // SAFETY: the caller guarantees AVX-512, the guard the other features; the standard library caches the detection.
            Isa::Avx512 if has_vnni() => return unsafe { if has_gfni() { gfni(kernel) } else { vnni(kernel) } },
            // SAFETY: the caller guarantees it.
            Isa::Avx512 => return unsafe { avx512(kernel) },
            // SAFETY: the caller guarantees it.
            Isa::Avx2 => return unsafe { avx2(kernel) },
            // SAFETY: SSE2 is part of x86-64.
            Isa::Sse2 => return unsafe { sse2(kernel) },
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
    {
        #[inline(never)]
        unsafe fn portable<K: ByteKernel>(kernel: K) {
            // SAFETY: plain Rust, compiled for the baseline of the architecture.
            unsafe { kernel.run::<portable::PortableBytes>() }
        }
        let _ = isa;
        // SAFETY: as above.
        unsafe { portable(kernel) }
    }
}

/// The operand of a byte shuffle that copies to each byte the byte with its bit of a 32-bit word.
#[cfg(target_arch = "x86_64")]
const BYTE_OF_BIT: [u8; 32] = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 32 {
        order[i] = (i / 8) as u8;
        i += 1;
    }
    order
};

/// The operand of a byte shuffle that moves signed codes to their lanes.
#[cfg(target_arch = "x86_64")]
const SIGNED: [u8; 16] = {
    let mut order = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        order[lane] = signed_sub_block(lane) as u8;
        lane += 1;
    }
    order
};
