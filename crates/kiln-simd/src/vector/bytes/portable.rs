use super::{Bytes, element, signed_sub_block};
use crate::array::from_fn;

/// Arrays, which the compiler vectorises for the baseline of an architecture.
#[derive(Clone, Copy)]
pub(crate) struct PortableBytes;

/// The integers of a block in element order.
///
/// # Safety
/// The conditions of [`Bytes::block`] hold.
#[inline(never)]
unsafe fn integers<const BITS: usize>(low: *const u8, high: *const u8) -> [u8; 256] {
    let mut integers = [0; 256];
    for (row, integers) in integers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // Two rows share 32 bytes of nibbles: neighbours in Q4_K and Q5_K, the first and the second half of four in Q6_K.
        let (pair, shift) = if BITS == 6 { (row / 4 * 2 + row % 2, row % 4 / 2 * 4) } else { (row / 2, row % 2 * 4) };
        // SAFETY: the caller's contract; offsets are those of the layouts.
        let nibbles = unsafe { low.add(32 * pair).cast::<[u8; 32]>().read() };
        *integers = nibbles.map(|byte| byte >> shift & 15);
        if BITS > 4 {
            let (shift, mask, at) = if BITS == 6 { (row % 4 * 2, 3, row / 4 * 32) } else { (row, 1, 0) };
            // SAFETY: as above.
            let bits = unsafe { high.add(at).cast::<[u8; 32]>().read() };
            for (integer, bits) in integers.iter_mut().zip(bits) {
                *integer |= (bits >> shift & mask) << 4;
            }
        }
    }
    integers
}

/// Adds the products of a block with the planes of a row.
///
/// # Safety
/// `x` is readable for its planes.
#[inline(never)]
unsafe fn add_dots<const BITS: usize, const INT8: bool>(weights: &[u8; 256], x: *const u8, sums: &mut [i32; 16]) {
    // SAFETY: the caller's contract.
    let [high, low] = unsafe {
        let x = x.cast::<[i8; 256]>();
        if INT8 { [[0; 256], x.read()] } else { [x.read(), x.add(1).read()] }
    };
    for group in 0..64 {
        let first = element(BITS, 4 * group);
        for b in 0..4 {
            let x = i32::from(high[4 * group + b]) * 256 + i32::from(low[4 * group + b]);
            sums[group % 16] += i32::from(weights[first + b]) * x;
        }
    }
}

impl Bytes for PortableBytes {
    type Ints = [i32; 16];
    type Floats = [f32; 16];
    type EightInts = [i32; 8];
    type Eight = [f32; 8];
    type Halves = [f32; 4];
    type Block = [*const u8; 2];
    type Wide = [u8; 32];
    const APART: bool = true;

    #[inline(always)]
    unsafe fn block<const BITS: usize>(low: *const u8, high: *const u8) -> [*const u8; 2] {
        [low, high]
    }

    #[inline(always)]
    unsafe fn dots<const BITS: usize, const INT8: bool, const R: usize>(
        [low, high]: [*const u8; 2],
        x: [*const u8; R],
        mut sums: [[i32; 16]; R],
    ) -> [[i32; 16]; R] {
        // SAFETY: the caller's contract.
        let weights = unsafe { integers::<BITS>(low, high) };
        for r in 0..R {
            // SAFETY: the caller's contract.
            unsafe { add_dots::<BITS, INT8>(&weights, x[r], &mut sums[r]) };
        }
        sums
    }

    #[inline(always)]
    unsafe fn wide(p: *const u8) -> [u8; 32] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[u8; 32]>().read() }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [u8; 32] {
        // SAFETY: the caller's contract.
        let bytes = unsafe { p.cast::<[u8; 16]>().read() };
        let mut w = [0; 32];
        for i in 0..16 {
            w[i] = bytes[i] & 15;
            w[i + 16] = bytes[i] >> 4;
        }
        w
    }
    #[inline(always)]
    unsafe fn with_bits(mut w: [u8; 32], bits: *const u8) -> [u8; 32] {
        // SAFETY: the caller's contract.
        let bits = u32::from_le_bytes(unsafe { bits.cast::<[u8; 4]>().read() });
        for i in 0..32 {
            w[i] |= ((bits >> i & 1) << 4) as u8;
        }
        w
    }
    #[inline(always)]
    unsafe fn with_third(mut w: [u8; 32], third: [u8; 32]) -> [u8; 32] {
        for i in 0..32 {
            w[i] |= third[i] << 2;
        }
        w
    }
    #[inline(always)]
    unsafe fn masked(mut w: [u8; 32], right: usize, mask: u8) -> [u8; 32] {
        for byte in &mut w {
            *byte = *byte >> right & mask;
        }
        w
    }
    #[inline(always)]
    unsafe fn shifted(mut w: [u8; 32], by: i8) -> [u8; 32] {
        for byte in &mut w {
            *byte = byte.wrapping_add_signed(by);
        }
        w
    }
    #[inline(always)]
    unsafe fn looked_up(mut w: [u8; 32], book: &[i8; 16]) -> [u8; 32] {
        for byte in &mut w {
            *byte = book[usize::from(*byte & 15)] as u8;
        }
        w
    }
    #[inline(always)]
    unsafe fn dot(w: [u8; 32], x: *const u8) -> [i32; 16] {
        // SAFETY: the caller's contract.
        let x = unsafe { x.cast::<[i16; 32]>().read_unaligned() };
        let product = |i: usize| i32::from(w[i] as i8) * i32::from(x[i]);
        std::array::from_fn(|l| product(2 * l) + product(2 * l + 1))
    }

    // One sum for each piece: the compiler makes better code of that than of the totals of lanes.
    #[inline(always)]
    unsafe fn dots_of_run<const INT8: bool>(q: &[[u8; 32]; 8], x: *const u8) -> [i32; 8] {
        let mut sums = [0; 8];
        for (piece, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            let x: [i16; 32] = unsafe {
                if INT8 {
                    from_fn(|i| i16::from(x.add(32 * piece + i).cast::<i8>().read()))
                } else {
                    x.add(64 * piece).cast::<[i16; 32]>().read_unaligned()
                }
            };
            for (&w, x) in q[piece].iter().zip(x) {
                *sum += i32::from(w as i8) * i32::from(x);
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn no_ints() -> [i32; 16] {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn load_ints(p: *const i32) -> [i32; 16] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[i32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 16] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 16] {
        [x; 16]
    }

    #[inline(always)]
    unsafe fn pair(first: f32, second: f32) -> [f32; 16] {
        std::array::from_fn(|l| if l < 8 { first } else { second })
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[[u8; 2]; 4]>().read() }.map(kiln_ir::quant::half)
    }
    #[inline(always)]
    unsafe fn factor<const I: usize>(halves: [f32; 4], unit: f32) -> [f32; 16] {
        [halves[I] * unit; 16]
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [f32; 16] {
        // SAFETY: the caller's contract.
        let codes = unsafe { p.cast::<[i8; 16]>().read() };
        std::array::from_fn(|l| f32::from(codes[signed_sub_block(l)]))
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|l| a[l] * b[l])
    }
    #[inline(always)]
    unsafe fn add(sums: [f32; 16], value: [i32; 16], steps: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|l| sums[l] + steps[l] * value[l] as f32)
    }
    #[inline(always)]
    unsafe fn sub(sums: [f32; 16], x: *const f32, steps: [f32; 16]) -> [f32; 16] {
        // SAFETY: the caller's contract.
        let x = unsafe { x.cast::<[f32; 16]>().read_unaligned() };
        std::array::from_fn(|l| sums[l] - steps[l] * x[l])
    }
    #[inline(always)]
    unsafe fn total(sums: [f32; 16]) -> f32 {
        // SAFETY: plain Rust.
        unsafe { Self::total_eight(std::array::from_fn(|l| sums[l] + sums[l + 8])) }
    }

    #[inline(always)]
    unsafe fn fold(sums: [i32; 16]) -> [i32; 8] {
        std::array::from_fn(|l| sums[2 * l] + sums[2 * l + 1])
    }
    #[inline(always)]
    unsafe fn zero_eight() -> [f32; 8] {
        [0.0; 8]
    }
    #[inline(always)]
    unsafe fn load_eight(p: *const f32) -> [f32; 8] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn eight_halves<const STRIDE: usize>(p: *const u8) -> [f32; 8] {
        // SAFETY: the caller's contract.
        std::array::from_fn(|i| kiln_ir::quant::half(unsafe { p.add(i * STRIDE).cast::<[u8; 2]>().read() }))
    }
    #[inline(always)]
    unsafe fn eight_scales<const I: usize>(codes: [u8; 8], halves: [f32; 4]) -> [f32; 8] {
        codes.map(|code| f32::from(code) * halves[I])
    }
    #[inline(always)]
    unsafe fn add_eight(sums: [f32; 8], value: [i32; 8], scales: [f32; 8], units: *const f32) -> [f32; 8] {
        // SAFETY: the caller's contract.
        let units = unsafe { Self::load_eight(units) };
        std::array::from_fn(|l| sums[l] + value[l] as f32 * scales[l] * units[l])
    }
    #[inline(always)]
    unsafe fn sub_eight(sums: [f32; 8], minima: [f32; 8], x: *const f32) -> [f32; 8] {
        // SAFETY: the caller's contract.
        let x = unsafe { Self::load_eight(x) };
        std::array::from_fn(|l| sums[l] - minima[l] * x[l])
    }
    #[inline(always)]
    unsafe fn total_eight(sums: [f32; 8]) -> f32 {
        let four: [f32; 4] = std::array::from_fn(|l| sums[l] + sums[l + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
}
