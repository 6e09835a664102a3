//! Numbers of 16 bits: what their bits stand for, and the nearest to others, on every target; and whole tensors of them.

use kiln_ir::Result;

use super::math::F32;
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Bf16, Builder, F16, Kernel, Launch, PtxKernel, PtxType, Value};

type Word<'k> = Value<'k, u32>;

/// The number with these 16 bits in half precision; what stands above them is ignored.
pub(super) fn widen<'k>(k: &'k Builder, bits: Word<'k>) -> F32<'k> {
    let magnitude = (bits & 0x7fffu32) << 13;
    // The exponent grows by 112; subnormal numbers become normal.
    let scaled = k.bits_u32(k.bits_f32(magnitude) * f32::from_bits((112 + 127) << 23));
    let special = k.eq(bits & 0x7c00u32, 0x7c00u32);
    let magnitude = k.selp(magnitude | 0x7f80_0000u32, scaled, special);
    k.bits_f32(magnitude | (bits & 0x8000u32) << 16)
}

/// The bits of the nearest number in half precision, the even one of two; zeros above.
pub(super) fn narrow<'k>(k: &'k Builder, x: F32<'k>) -> Word<'k> {
    let bits = k.bits_u32(x);
    let magnitude = bits & 0x7fff_ffffu32;
    // Added to less than 2⁻¹⁴, a half leaves the nearest multiple of 2⁻²⁴ in its lower bits.
    let lifted = k.bits_u32(k.bits_f32(magnitude) + 0.5f32);
    let subnormal = lifted - 0.5f32.to_bits();
    // The exponent shrinks by 112; half a unit less one, and one for odd numbers, carry where that rounds up.
    let odd = magnitude >> 13 & 1u32;
    let normal = (magnitude + 0xfffu32.wrapping_sub(112 << 23) + odd) >> 13;
    let finite = k.selp(subnormal, normal, k.lt(magnitude, (127 - 14) << 23));
    // From 65 520 on it is an infinity; what is more than the infinity of f32 is no number.
    let beyond = k.selp(0x7e00u32, 0x7c00, k.gt(magnitude, f32::INFINITY.to_bits()));
    let rounded = k.selp(beyond, finite, k.ge(magnitude, 65_520f32.to_bits()));
    rounded | bits >> 16 & 0x8000u32
}

/// Two numbers in 16 bits each, the first in the lower half.
pub(super) fn pack<'k>(k: &'k Builder, ty: PtxType, [first, second]: [F32<'k>; 2]) -> Value<'k, u32> {
    match ty {
        PtxType::F16 => k.cvt_rn_x2::<F16>(second, first),
        _ => k.cvt_rn_x2::<Bf16>(second, first),
    }
}

/// Threads of a block.
const BLOCK: u32 = 256;
/// Pairs at most: 32 bits count what the last block reaches over.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// The same numbers as f32 or f16. What is f16 is read and written in pairs: memory ends with a whole word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Convert {
    from_half: bool,
    to_half: bool,
}

impl Convert {
    /// From f16 where `from_half`, to f16 where `to_half`; else from and to f32.
    pub fn new(from_half: bool, to_half: bool) -> Self {
        Self { from_half, to_half }
    }

    /// Every kernel.
    pub fn all() -> [Self; 4] {
        [(false, false), (false, true), (true, false), (true, true)].map(|(from, to)| Self::new(from, to))
    }

    /// The launch for so many elements. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 elements.
    pub fn launch(&self, elements: usize) -> Result<Launch> {
        let n = extent("elements", elements, MOST)?;
        let blocks = extent("blocks", n.div_ceil(2 * BLOCK) as usize, MAX_GRID_X)?;
        let arguments = vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(n)];
        Ok(Launch { grid: [blocks, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        // Pairs of f16 and f32 are both counted in words.
        let [x, out] = ["x", "out"].map(|name| k.buffer::<u32>(name));
        let n = k.parameter::<u32>("n");
        let pair = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        let first = pair * 2u32;
        k.if_(k.lt(first, n), || {
            let both = k.lt(first + 1, n);
            let at = |half: bool| if half { pair } else { first };
            let (x, out) = (x.index(at(self.from_half)), out.index(at(self.to_half)));
            let word = k.ld(x);
            let numbers = if self.from_half {
                [widen(k, word), widen(k, word >> 16)]
            } else {
                [word, k.ld_if(both, x.offset(1), 0u32)].map(|bits| k.bits_f32(bits))
            };
            if self.to_half {
                let [lower, upper] = numbers.map(|number| narrow(k, number));
                k.st(out, lower | upper << 16);
            } else {
                let [first, second] = numbers.map(|number| k.bits_u32(number));
                k.st(out, first);
                k.st_if(both, out.offset(1), second);
            }
        });
    }
}

impl Kernel for Convert {
    fn name(&self) -> String {
        let name = |half| if half { "f16" } else { "f32" };
        format!("convert_{}_{}", name(self.from_half), name(self.to_half))
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
