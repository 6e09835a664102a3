//! The output of products in tiles: as a whole, with sums that are computed again, or in parts of k, which are added up.

use kiln_ir::{QuantFormat, Result};

use super::byte_weights::Step;
use super::{ExactRow, Word};
use crate::kernel::extent;
use crate::kernels::math::F32;
use crate::kernels::team;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Value};

/// Threads of a block that adds up parts.
const THREADS: u32 = 256;
/// Maximum elements of the result and of a row.
const MOST: u64 = (1 << 30) - 1;

/// Number of parts of k, of `chunks` that are not divided, for products with this many tiles each, which run at once on a device that
/// runs `at_once` tiles. A power of two, so that there are few kernels that add up parts.
pub(super) fn parts(tiles: impl Iterator<Item = usize>, at_once: usize, chunks: usize) -> u32 {
    let tiles = tiles.fold(0, usize::saturating_add).max(1);
    let most = (at_once / tiles).min(chunks).max(1);
    1 << most.ilog2()
}

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
    fn exact(&self, [row, of_weights]: [Word<'k>; 2]) -> F32<'k> {
        let k = self.k;
        let x = self.x.index_wide(k.mul_wide(row, self.depth));
        let row = ExactRow { x, gamma: None, depth: self.depth };
        k.cvt_rn_f32(row.product(k, self.format, self.weights, of_weights))
    }
}

fn is_finite<'k>(k: &'k Builder, x: F32<'k>) -> Value<'k, bool> {
    k.lt(k.abs(x), f32::INFINITY)
}

/// The destination of a thread's sums of a product.
pub(super) struct Results<'k> {
    pub(super) k: &'k Builder,
    /// The result or a part of it, and its columns.
    pub(super) out: Pointer<'k, Global, f32>,
    pub(super) columns: Word<'k>,
    /// The computation that repeats sums that are not finite, if the kernel has it.
    pub(super) repair: Option<Repair<'k>>,
    /// The addend of the sums.
    pub(super) addend: Option<Pointer<'k, Global, f32>>,
}

impl<'k> Results<'k> {
    /// Writes `count` sums. `place` gives the row and the column of a sum by its number, and whether they exist; `sum` the sum,
    /// given its number, its row, and whether that exists.
    pub(super) fn store(
        &self,
        count: u32,
        place: impl Fn(Word<'k>) -> ([Word<'k>; 2], Value<'k, bool>),
        sum: impl Fn(u32, Word<'k>, Value<'k, bool>) -> F32<'k>,
    ) {
        let &Self { k, out, columns, repair, addend } = self;
        let at = |[i, j]: [Word<'k>; 2]| k.mad_wide(i, columns, k.cvt_u64(j));
        let store = |number: u32| {
            let (place, is_there) = place(k.constant(number));
            let sum = sum(number, place[0], is_there);
            let finite = is_finite(k, sum);
            let at = at(place);
            let result = addend.map_or(sum, |addend| sum + k.ld_if(is_there, addend.index_wide(at), 0.0f32));
            k.st_if(is_there, out.index_wide(at), result);
            finite
        };
        let finite = team::tree((0..count).map(store).collect(), |a, b| k.and(a, b));
        let (Some(repair), Some(finite)) = (repair, finite) else { return };
        k.if_(k.not(finite), || {
            k.for_(0u32, count, 1u32, |number| {
                let (place, is_there) = place(number);
                let to = out.index_wide(at(place));
                let found = k.ld_if(is_there, to, 0.0f32);
                k.if_(k.not(is_finite(k, found)), || {
                    let exact = repair.exact(place);
                    let addend = addend.map(|addend| k.ld(addend.index_wide(at(place))));
                    k.st(to, addend.map_or(exact, |addend| exact + addend));
                });
            });
        });
    }
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
