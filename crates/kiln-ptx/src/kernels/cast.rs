//! Casts of whole tensors between element types.

use kiln_ir::{DType, Error, Result};

use super::half;
use super::math::F32;
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel, Value};

type Word<'k> = Value<'k, u32>;

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements of a thread: whole words of every type.
const EACH: u32 = 4;
/// Maximum groups of elements, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - EACH * BLOCK) as u64;

/// The same numbers as elements of another type, as [`kiln_ir::op::Cast`] defines it. Memory ends with a whole word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cast {
    from: DType,
    to: DType,
}

/// An intermediate value of a cast.
enum Number<'k> {
    Float(F32<'k>),
    Signed(Value<'k, i32>),
    Unsigned(Word<'k>),
}

impl Cast {
    /// From one type of single elements to another.
    ///
    /// # Errors
    /// [`Error::Type`] for blocks.
    pub fn new(from: DType, to: DType) -> Result<Self> {
        match [from, to].into_iter().position(|dtype| matches!(dtype, DType::Blocks(_))) {
            Some(index) => Err(Error::Type { op: "cast", index, expected: DType::F32, found: [from, to][index] }),
            None => Ok(Self { from, to }),
        }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        DType::ALL.iter().flat_map(|&from| DType::ALL.iter().map(move |&to| Self { from, to })).collect()
    }

    /// The launch that casts `elements` elements. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond 2³² - 1025 elements.
    pub fn launch(&self, elements: usize) -> Result<Launch> {
        let n = extent("elements", elements, MOST)?;
        let blocks = extent("blocks", n.div_ceil(EACH * BLOCK) as usize, MAX_GRID_X)?;
        let arguments = vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(n)];
        Ok(Launch { grid: [blocks, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [x, out] = ["x", "out"].map(|name| k.buffer::<u32>(name));
        let n = k.parameter::<u32>("n");
        let group = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        let first = group * EACH;
        k.if_(k.lt(first, n), || {
            // A word exists if its first element does.
            let there = |word: u32, size: usize| k.lt(first + word * EACH / size as u32, n);
            let (from, to) = (self.from.size(), self.to.size());
            let (x, out) = (x.index(group * from as u32), out.index(group * to as u32));
            let words: Vec<Word<'_>> =
                (0..from as u32).map(|i| k.ld_if(there(i, from), x.offset(i as i32), 0u32)).collect();
            let bits = (0..EACH as usize).map(|i| {
                let (per, width) = (4 / from, 8 * from as u32);
                let (word, shift) = (words[i / per], (i % per) as u32 * width);
                self.store(k, self.load(k, if shift == 0 { word } else { word >> shift }))
            });
            let bits: Vec<Word<'_>> = bits.collect();
            let width = 8 * to as u32;
            for (i, parts) in bits.chunks(4 / to).enumerate() {
                let word =
                    parts.iter().zip(0u32..).skip(1).fold(parts[0], |word, (&part, j)| word | part << (j * width));
                k.st_if(there(i as u32, to), out.offset(i as i32), word);
            }
        });
    }

    /// The value in the lowest bits of a word; the bits above are ignored.
    fn load<'k>(&self, k: &'k Builder, bits: Word<'k>) -> Number<'k> {
        match self.from {
            DType::F32 => Number::Float(k.bits_f32(bits)),
            DType::F16 => Number::Float(half::widen(k, bits)),
            DType::Bf16 => Number::Float(k.bits_f32(bits << 16)),
            DType::I32 => Number::Signed(k.bits_s32(bits)),
            DType::I8 => Number::Signed(k.shr(k.bits_s32(bits << 24), 24u32)),
            DType::U32 => Number::Unsigned(bits),
            DType::Bool => Number::Unsigned(k.min(bits & 0xffu32, 1u32)),
            DType::U8 => Number::Unsigned(bits & 0xffu32),
            DType::Blocks(_) => unreachable!("`Cast::new` takes no blocks"),
        }
    }

    /// The bits of the nearest element, with zeros above.
    fn store<'k>(&self, k: &'k Builder, x: Number<'k>) -> Word<'k> {
        let float = |x: Number<'k>| match x {
            Number::Float(x) => x,
            Number::Signed(x) => k.cvt_rn_f32(x),
            Number::Unsigned(x) => k.cvt_rn_f32(x),
        };
        let signed = |x: Number<'k>| match x {
            Number::Float(x) => k.cvt_rzi_s32(x),
            Number::Signed(x) => x,
            Number::Unsigned(x) => k.bits_s32(k.min(x, i32::MAX as u32)),
        };
        let unsigned = |x: Number<'k>| match x {
            Number::Float(x) => k.cvt_rzi_u32(x),
            Number::Signed(x) => k.bits_u32(k.max(x, 0)),
            Number::Unsigned(x) => x,
        };
        match self.to {
            DType::F32 => k.bits_u32(float(x)),
            DType::F16 => half::narrow(k, float(x)),
            DType::Bf16 => half::upper(k, float(x)),
            DType::I32 => k.bits_u32(signed(x)),
            DType::I8 => k.bits_u32(k.max(k.min(signed(x), 127), -128)) & 0xffu32,
            DType::U32 => unsigned(x),
            DType::U8 => k.min(unsigned(x), 255u32),
            DType::Blocks(_) => unreachable!("`Cast::new` takes no blocks"),
            DType::Bool => {
                let bits = match x {
                    // Both zeros are false.
                    Number::Float(x) => k.bits_u32(x) & 0x7fff_ffffu32,
                    Number::Signed(x) => k.bits_u32(x),
                    Number::Unsigned(x) => x,
                };
                k.min(bits, 1u32)
            }
        }
    }
}

impl Kernel for Cast {
    fn name(&self) -> String {
        format!("cast_{}_{}", self.from, self.to)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
