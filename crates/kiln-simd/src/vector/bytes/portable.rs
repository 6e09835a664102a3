use super::{AFFINE_ORDER, Bytes};

/// Arrays: what the compiler makes of them for the baseline of an architecture.
#[derive(Clone, Copy)]
pub(crate) struct PortableBytes([u8; 64]);

fn shift<const BY: i32>(byte: u8) -> u8 {
    if BY >= 0 { byte << BY } else { byte >> -BY }
}

impl Bytes for PortableBytes {
    type Ints = [i32; 16];
    type Floats = [f32; 16];
    type Codes = [i16; 16];
    type Scales = [i32; 4];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { p.cast::<[u8; 64]>().read() })
    }
    #[inline(always)]
    unsafe fn load_twice(p: *const u8) -> Self {
        // SAFETY: the caller's contract.
        let half = unsafe { p.cast::<[u8; 32]>().read() };
        Self(std::array::from_fn(|i| half[i % 32]))
    }
    #[inline(always)]
    fn low_nibbles(self) -> Self {
        Self(self.0.map(|b| b & 15))
    }
    #[inline(always)]
    fn high_nibbles(self) -> Self {
        Self(self.0.map(|b| b >> 4))
    }
    #[inline(always)]
    fn with_bits<const A: i32, const B: i32>(self, bits: Self, mask: u8) -> Self {
        let bit = |i: usize| if i < 32 { shift::<A>(bits.0[i]) } else { shift::<B>(bits.0[i]) };
        Self(std::array::from_fn(|i| self.0[i] | bit(i) & mask))
    }

    #[inline(always)]
    unsafe fn ints() -> [i32; 16] {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn floats() -> [f32; 16] {
        [0.0; 16]
    }

    #[inline(always)]
    unsafe fn correct(x: &[i8; 64], offset: i16, correction: *mut u8) {
        let sums: [i32; 16] =
            std::array::from_fn(|l| -i32::from(offset) * (0..4).map(|i| i32::from(x[4 * l + i])).sum::<i32>());
        // SAFETY: the caller's contract.
        unsafe { correction.cast::<[i32; 16]>().write_unaligned(sums) }
    }

    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        x: *const u8,
        correction: *const u8,
        scale: [i32; 4],
        sums: [i32; 16],
    ) -> [i32; 16] {
        // SAFETY: the caller's contract.
        let x = unsafe { x.cast::<[i8; 64]>().read() };
        let correction =
            // SAFETY: the caller's contract.
            if CORRECTED { unsafe { correction.cast::<[i32; 16]>().read_unaligned() } } else { [0; 16] };
        std::array::from_fn(|l| {
            let products = (0..4).map(|i| i32::from(self.0[4 * l + i]) * i32::from(x[4 * l + i])).sum::<i32>();
            sums[l].wrapping_add(scale[l / 4] * (correction[l] + products))
        })
    }

    #[inline(always)]
    unsafe fn affine_codes(scales: [u8; 8], minima: [u8; 8]) -> ([i16; 16], [i16; 16]) {
        let spread = |codes: [u8; 8]| std::array::from_fn(|i| i16::from(codes[AFFINE_ORDER[i / 2]]));
        (spread(scales), spread(minima))
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [i16; 16] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[i8; 16]>().read() }.map(i16::from)
    }
    #[inline(always)]
    fn scales<const V: usize>(codes: [i16; 16]) -> [i32; 4] {
        std::array::from_fn(|i| i32::from(codes[4 * V + i]))
    }

    #[inline(always)]
    unsafe fn wide_dot(w: *const u8, x: *const u8) -> [i32; 16] {
        // SAFETY: the caller's contract.
        let (w, x) = unsafe { (w.cast::<[i8; 32]>().read(), x.cast::<[i16; 32]>().read_unaligned()) };
        let product = |i: usize| i32::from(w[i]) * i32::from(x[i]);
        std::array::from_fn(|l| product(2 * l) + product(2 * l + 1))
    }

    #[inline(always)]
    fn add_planes(sums: [f32; 16], high: [i32; 16], low: [i32; 16], factor: f32) -> [f32; 16] {
        Self::add_ints(sums, std::array::from_fn(|l| (high[l] << 8).wrapping_add(low[l])), factor)
    }
    #[inline(always)]
    fn add_ints(sums: [f32; 16], value: [i32; 16], factor: f32) -> [f32; 16] {
        std::array::from_fn(|l| sums[l] + factor * value[l] as f32)
    }
    #[inline(always)]
    unsafe fn sub_codes(sums: [f32; 16], codes: [i16; 16], x: *const f32, factor: f32) -> [f32; 16] {
        // SAFETY: the caller's contract.
        let x = unsafe { x.cast::<[f32; 16]>().read_unaligned() };
        std::array::from_fn(|l| sums[l] - factor * (f32::from(codes[l]) * x[l]))
    }
    #[inline(always)]
    fn total(sums: [f32; 16]) -> f32 {
        let eight: [f32; 8] = std::array::from_fn(|l| sums[l] + sums[l + 8]);
        let four: [f32; 4] = std::array::from_fn(|l| eight[l] + eight[l + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    unsafe fn half(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        kiln_core::quant::half(unsafe { p.cast::<[u8; 2]>().read() })
    }
}
