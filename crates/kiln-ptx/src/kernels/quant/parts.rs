//! Products whose k is cut in parts, and the sums that are computed again.

use kiln_ir::{QuantFormat, Result};

use super::weights::Step;
use super::{ExactRow, Word};
use crate::kernel::extent;
use crate::kernels::math::F32;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Threads of a block that adds up parts.
const THREADS: u32 = 256;
/// Maximum elements of the result and of a row.
const MOST: u64 = (1 << 30) - 1;

/// The operands for recomputing sums that are not finite.
#[derive(Clone, Copy)]
pub(super) struct Repair<'k> {
    pub(super) k: &'k Builder,
    pub(super) format: QuantFormat,
    pub(super) x: Pointer<'k, Global, f32>,
    pub(super) weights: Pointer<'k, Global, u32>,
    pub(super) depth: Word<'k>,
}

impl<'k> Repair<'k> {
    /// The product of a row of x with a row of the weights.
    pub(super) fn exact(&self, [row, of_weights]: [Word<'k>; 2]) -> F32<'k> {
        let k = self.k;
        let x = self.x.index_wide(k.mul_wide(row, self.depth));
        let row = ExactRow { x, gamma: None, depth: self.depth };
        k.cvt_rn_f32(row.product(k, self.format, self.weights, of_weights))
    }
}

pub(super) fn is_finite<'k>(k: &'k Builder, x: F32<'k>) -> Value<'k, bool> {
    k.lt(k.abs(x), f32::INFINITY)
}

/// Adds up the parts of a product, and what is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JoinParts {
    format: QuantFormat,
    parts: u32,
    adds: bool,
}

impl JoinParts {
    /// A kernel for each format and for some numbers of parts; one adds.
    pub fn all() -> Vec<Self> {
        let formats = QuantFormat::ALL.into_iter().filter(|&format| Step::of(format).is_some());
        formats
            .zip([2, 4, 8, 16].into_iter().cycle())
            .map(|(format, parts)| Self { format, parts, adds: parts == 4 })
            .collect()
    }

    pub(super) fn new(format: QuantFormat, parts: u32, adds: bool) -> Self {
        Self { format, parts, adds }
    }

    /// The kernel with its launch for `m` rows of `n` elements that were summed over `depth`. Buffers: parts, result, x, weights, and
    /// what is added to the result if anything is.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ - 1 elements of the result or of a row.
    pub(super) fn launched(self, [m, depth, n]: [usize; 3]) -> Result<(Self, Launch)> {
        let len = extent("elements of a product", m.saturating_mul(n), MOST)?;
        let words = [len, extent("rows of weights", n, MOST)?, extent("elements of a row", depth, MOST)?];
        let buffers = 4 + usize::from(self.adds);
        let arguments = (0..buffers).map(Argument::Buffer).chain(words.map(Argument::U32)).collect();
        Ok((self, Launch { grid: [len.div_ceil(THREADS), 1, 1], arguments }))
    }

    fn write(&self, k: &Builder) {
        let [parts, out, x] = ["parts", "out", "x"].map(|name| k.buffer::<f32>(name));
        let weights = k.buffer::<u32>("weights");
        let addend = self.adds.then(|| k.buffer::<f32>("addend"));
        let [len, n, depth] = ["len", "n", "depth"].map(|name| k.parameter::<u32>(name));
        let at = k.mad(k.ctaid_x(), THREADS, k.tid_x());
        k.if_(k.lt(at, len), || {
            let parts: Vec<F32<'_>> =
                (0..self.parts).map(|part| k.ld(parts.index_wide(k.mul_wide(len, part)).index(at))).collect();
            let Some(sum) = parts.into_iter().reduce(|sum, part| sum + part) else { return };
            let result = k.variable(sum);
            k.if_(k.not(is_finite(k, sum)), || {
                let repair = Repair { k, format: self.format, x, weights, depth };
                result.set(repair.exact([at / n, at % n]));
            });
            let addend = addend.map(|addend| k.ld(addend.index(at)));
            k.st(out.index(at), addend.map_or(result.get(), |addend| result.get() + addend));
        });
    }
}

impl Kernel for JoinParts {
    fn name(&self) -> String {
        format!("join_parts_{}_{}{}", self.format.name(), self.parts, if self.adds { "_adding" } else { "" })
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [THREADS, 1, 1], |k| self.write(k))
    }
}
