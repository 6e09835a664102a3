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
    type Codes = ([u8; 8], [u8; 8]);
    type SignedCodes = [i8; 16];
    type Scales = [i32; 4];
    type Halves = [f32; 4];

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
    unsafe fn correct(planes: [&[i8; 64]; 2], offset: i16, correction: *mut u8) {
        let words: [i16; 32] = std::array::from_fn(|word| {
            let at = 4 * (word / 8 * 4 + word % 4);
            -offset * planes[word / 4 % 2][at..at + 4].iter().map(|&x| i16::from(x)).sum::<i16>()
        });
        // SAFETY: the caller's contract.
        unsafe { correction.cast::<[i16; 32]>().write_unaligned(words) }
    }

    #[inline(always)]
    unsafe fn dot<const CORRECTED: bool>(
        self,
        planes: [*const u8; 2],
        correction: *const u8,
        scale: [i32; 4],
        sums: [i32; 16],
    ) -> [i32; 16] {
        let plane = |i: usize| -> [i32; 16] {
            // SAFETY: the caller's contract.
            let x = unsafe { planes[i].cast::<[i8; 64]>().read() };
            std::array::from_fn(|l| (0..4).map(|i| i32::from(self.0[4 * l + i]) * i32::from(x[4 * l + i])).sum::<i32>())
        };
        let (high, low) = (plane(0), plane(1));
        let correction =
            // SAFETY: the caller's contract.
            if CORRECTED { unsafe { correction.cast::<[i16; 32]>().read_unaligned() } } else { [0; 32] };
        std::array::from_fn(|l| {
            let (group, pair) = (l / 4, l / 4 * 4 + l % 2 * 2);
            let corrected = i32::from(correction[2 * l]) + i32::from(correction[2 * l + 1]);
            let sum = if l % 4 < 2 {
                (high[pair] + high[pair + 1] + corrected) << 8
            } else {
                low[pair] + low[pair + 1] + corrected
            };
            sums[l].wrapping_add(scale[group].wrapping_mul(sum))
        })
    }

    #[inline(always)]
    unsafe fn codes(scales: [u8; 8], minima: [u8; 8]) -> Self::Codes {
        (scales, minima)
    }
    #[inline(always)]
    unsafe fn signed_codes(p: *const u8) -> [i8; 16] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[i8; 16]>().read() }
    }
    #[inline(always)]
    fn scales<const V: usize>(codes: Self::Codes) -> [i32; 4] {
        std::array::from_fn(|i| i32::from(codes.0[AFFINE_ORDER[2 * V + i / 2]]))
    }
    #[inline(always)]
    fn signed_scales<const V: usize>(codes: [i8; 16]) -> [i32; 4] {
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
    fn add_ints(sums: [f32; 16], value: [i32; 16], factor: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|l| sums[l] + factor[l] * value[l] as f32)
    }
    #[inline(always)]
    fn add_two_ints(sums: [f32; 16], a: [i32; 16], b: [i32; 16], factor: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|l| sums[l] + factor[l] * (a[l] as f32 + b[l] as f32))
    }
    #[inline(always)]
    unsafe fn sub_minima(sums: [f32; 16], codes: Self::Codes, x: *const f32, factor: [f32; 16]) -> [f32; 16] {
        // SAFETY: the caller's contract.
        let x = unsafe { x.cast::<[f32; 16]>().read_unaligned() };
        std::array::from_fn(|l| sums[l] - factor[l] * (f32::from(codes.1[l / 2]) * x[l]))
    }
    #[inline(always)]
    fn total(sums: [f32; 16]) -> f32 {
        let eight: [f32; 8] = std::array::from_fn(|l| sums[l] + sums[l + 8]);
        let four: [f32; 4] = std::array::from_fn(|l| eight[l] + eight[l + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> [f32; 4] {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[[u8; 2]; 4]>().read() }.map(kiln_core::quant::half)
    }

    #[inline(always)]
    fn factor<const I: usize>(halves: [f32; 4], unit: f32) -> [f32; 16] {
        [halves[I] * unit; 16]
    }
    #[inline(always)]
    fn four(halves: [f32; 4]) -> [f32; 4] {
        halves
    }

    #[inline(always)]
    unsafe fn store<const AFFINE: bool>(self, offset: i32, steps: [(f32, f32); 4], out: [*mut f32; 4]) {
        for (quarter, ((scale, minimum), out)) in self.0.as_chunks::<16>().0.iter().zip(steps.into_iter().zip(out)) {
            let values = quarter.map(|q| {
                let product = scale * (i32::from(q) - offset) as f32;
                if AFFINE { product - minimum } else { product }
            });
            // SAFETY: the caller's contract.
            unsafe { out.cast::<[f32; 16]>().write_unaligned(values) }
        }
    }
    #[inline(always)]
    unsafe fn store_signed(p: *const u8, scale: f32, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe {
            let values = p.cast::<[i8; 32]>().read().map(|q| scale * f32::from(q));
            out.cast::<[f32; 32]>().write_unaligned(values);
        }
    }
}
