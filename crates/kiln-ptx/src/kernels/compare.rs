//! Comparisons, the choice between two tensors, and functions of integers.

use kiln_ir::op::{Comparison, IntegerFunction};
use kiln_ir::{DType, Result};

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

type Word<'k> = Value<'k, u32>;

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements of a thread.
const EACH: u32 = 4;
/// Maximum elements, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - EACH * BLOCK) as u64;

/// The number of elements as 32 bits, and the grid that covers them.
fn grid(elements: usize) -> Result<(u32, [u32; 3])> {
    let n = extent("elements", elements, MOST)?;
    Ok((n, [extent("blocks", n.div_ceil(EACH * BLOCK) as usize, MAX_GRID_X)?, 1, 1]))
}

/// The arguments: buffers in their order, then the elements of the result and of each operand.
fn arguments(n: u32, lengths: &[usize]) -> Result<Vec<Argument>> {
    let mut arguments: Vec<Argument> = (0..=lengths.len()).map(Argument::Buffer).collect();
    arguments.push(Argument::U32(n));
    for &length in lengths {
        arguments.push(Argument::U32(extent("elements of an operand", length, MOST)?));
    }
    Ok(arguments)
}

/// Whether a comparison holds, for each pair of elements that are words: a byte each. A thread compares four. Operands repeat.
/// Memory ends with a whole word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Compare {
    comparison: Comparison,
    dtype: DType,
}

impl Compare {
    /// A kernel for elements of f32, i32 or u32.
    pub fn new(comparison: Comparison, dtype: DType) -> Self {
        Self { comparison, dtype }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let types = [DType::F32, DType::I32, DType::U32];
        let of = |dtype| Comparison::ALL.iter().map(move |&comparison| Self { comparison, dtype });
        types.into_iter().flat_map(of).collect()
    }

    /// The launch for a result of `elements` elements. `lengths` are the elements of the operands. Buffers: both operands, the result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 1025 elements.
    pub fn launch(&self, elements: usize, lengths: [usize; 2]) -> Result<Launch> {
        let (n, grid) = grid(elements)?;
        Ok(Launch { grid, arguments: arguments(n, &lengths)? })
    }

    fn write(&self, k: &Builder) {
        let [a, b, out] = ["a", "b", "out"].map(|name| k.buffer::<u32>(name));
        let [n, length_a, length_b] = ["n", "length_a", "length_b"].map(|name| k.parameter::<u32>(name));
        let group = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        let first = group * EACH;
        k.if_(k.lt(first, n), || {
            let bytes: Vec<Word<'_>> = (0..EACH)
                .map(|lane| {
                    let at = first + lane;
                    let there = k.lt(at, n);
                    let [x, y] =
                        [(a, length_a), (b, length_b)].map(|(x, length)| k.ld_if(there, x.index(at % length), 0u32));
                    k.selp(1u32 << (8 * lane), 0, self.holds(k, x, y))
                })
                .collect();
            k.st(out.index(group), bytes[0] | bytes[1] | bytes[2] | bytes[3]);
        });
    }

    fn holds<'k>(&self, k: &'k Builder, a: Word<'k>, b: Word<'k>) -> Value<'k, bool> {
        macro_rules! compared {
            ($a:expr, $b:expr) => {
                match self.comparison {
                    Comparison::Eq => k.eq($a, $b),
                    // The instruction for `ne` is false for NaN.
                    Comparison::Ne => k.not(k.eq($a, $b)),
                    Comparison::Lt => k.lt($a, $b),
                    Comparison::Le => k.le($a, $b),
                    Comparison::Gt => k.gt($a, $b),
                    Comparison::Ge => k.ge($a, $b),
                }
            };
        }
        match self.dtype {
            DType::F32 => compared!(k.bits_f32(a), k.bits_f32(b)),
            DType::I32 => compared!(k.bits_s32(a), k.bits_s32(b)),
            _ => compared!(a, b),
        }
    }
}

impl Kernel for Compare {
    fn name(&self) -> String {
        format!("compare_{}_{}", self.comparison.name(), self.dtype)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

/// Words of one tensor where a condition holds, a byte each, and of another elsewhere. A thread chooses four. Operands repeat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Select;

impl Select {
    /// The launch for a result of `elements` elements. `lengths` are the elements of the operands. Buffers: the condition, both
    /// tensors, the result.
    ///
    /// # Errors
    /// The errors of [`Compare::launch`].
    pub fn launch(&self, elements: usize, lengths: [usize; 3]) -> Result<Launch> {
        let (n, grid) = grid(elements)?;
        Ok(Launch { grid, arguments: arguments(n, &lengths)? })
    }

    fn write(&self, k: &Builder) {
        let buffers: [Pointer<'_, Global, u32>; 4] = ["condition", "a", "b", "out"].map(|name| k.buffer(name));
        let [condition, a, b, out] = buffers;
        let [n, length_condition, length_a, length_b] =
            ["n", "length_condition", "length_a", "length_b"].map(|name| k.parameter::<u32>(name));
        let first = k.mad(k.ctaid_x(), BLOCK, k.tid_x()) * EACH;
        for lane in 0..EACH {
            let at = first + lane;
            k.if_(k.lt(at, n), || {
                let place = at % length_condition;
                let byte = k.ld(condition.index(place / 4u32)) >> ((place % 4u32) * 8u32) & 0xffu32;
                let [x, y] = [(a, length_a), (b, length_b)].map(|(x, length)| k.ld(x.index(at % length)));
                k.st(out.index(at), k.selp(y, x, k.eq(byte, 0u32)));
            });
        }
    }
}

impl Kernel for Select {
    fn name(&self) -> String {
        "select".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

/// A function of each pair of integers, of their type. A thread computes four, which are a word of types of a byte. Operands repeat.
/// Memory ends with a whole word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arithmetic {
    function: IntegerFunction,
    dtype: DType,
}

impl Arithmetic {
    /// A kernel for elements of i32, u32, i8 or u8.
    pub fn new(function: IntegerFunction, dtype: DType) -> Self {
        Self { function, dtype }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let types = [DType::I32, DType::U32, DType::I8, DType::U8];
        let of = |dtype| IntegerFunction::ALL.iter().map(move |&function| Self { function, dtype });
        types.into_iter().flat_map(of).collect()
    }

    /// The launch for a result of `elements` elements. `lengths` are the elements of the operands. Buffers: both operands, the result.
    ///
    /// # Errors
    /// The errors of [`Compare::launch`].
    pub fn launch(&self, elements: usize, lengths: [usize; 2]) -> Result<Launch> {
        let (n, grid) = grid(elements)?;
        Ok(Launch { grid, arguments: arguments(n, &lengths)? })
    }

    fn write(&self, k: &Builder) {
        let [a, b, out] = ["a", "b", "out"].map(|name| k.buffer::<u32>(name));
        let [n, length_a, length_b] = ["n", "length_a", "length_b"].map(|name| k.parameter::<u32>(name));
        let group = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        let first = group * EACH;
        let bytes = self.dtype.size() == 1;
        let result = |at: Word<'_>| {
            let [x, y] = [(a, length_a), (b, length_b)].map(|(x, length)| {
                let place = at % length;
                if bytes {
                    self.extended(k.ld(x.index(place / 4u32)) >> ((place % 4u32) * 8u32))
                } else {
                    k.ld(x.index(place))
                }
            });
            self.of(k, x, y)
        };
        if !bytes {
            for lane in 0..EACH {
                let at = first + lane;
                k.if_(k.lt(at, n), || k.st(out.index(at), result(at)));
            }
            return;
        }
        k.if_(k.lt(first, n), || {
            // Beyond the end it is the byte of another element, which is not used.
            let lanes = (0..EACH).map(|lane| (result(first + lane) & 0xffu32) << (8 * lane));
            let word = lanes.reduce(|word, byte| word | byte).unwrap_or_else(|| k.constant(0u32));
            k.st(out.index(group), word);
        });
    }

    /// The lowest byte as a word.
    fn extended<'k>(&self, byte: Word<'k>) -> Word<'k> {
        let k = byte.builder;
        let high = byte << 24;
        if self.dtype == DType::I8 { k.bits_u32(k.bits_s32(high) >> 24) } else { high >> 24 }
    }

    /// Sums, differences and products have the same bits for both signs.
    fn of<'k>(&self, k: &'k Builder, a: Word<'k>, b: Word<'k>) -> Word<'k> {
        let signed = matches!(self.dtype, DType::I32 | DType::I8);
        let (x, y) = (k.bits_s32(a), k.bits_s32(b));
        match self.function {
            IntegerFunction::Add => a + b,
            IntegerFunction::Sub => a - b,
            IntegerFunction::Mul => a * b,
            IntegerFunction::Min if signed => k.bits_u32(k.min(x, y)),
            IntegerFunction::Max if signed => k.bits_u32(k.max(x, y)),
            IntegerFunction::Min => k.min(a, b),
            IntegerFunction::Max => k.max(a, b),
        }
    }
}

impl Kernel for Arithmetic {
    fn name(&self) -> String {
        format!("{}_{}", self.function.name(), self.dtype)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
