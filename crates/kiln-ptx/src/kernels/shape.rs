//! Memory moved from one strided arrangement to another, and memory filled with one value.

use kiln_ir::op::StridedCopy as Plan;
use kiln_ir::{MAX_RANK, Result};

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Byte, F16, Kernel, Launch, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Maximum units, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - BLOCK) as u64;
/// Words of a vector.
const VECTOR: u32 = 4;

/// `out[to + Σ iₔ toₔ] = x[from + Σ iₔ fromₔ]` for every index, of units of 1, 2, 4 or 16 bytes: a unit a thread, the innermost
/// dimension along neighbouring threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StridedCopy {
    /// Bytes of a unit.
    unit: u32,
    /// Number of dimensions, at least one.
    rank: u32,
}

impl StridedCopy {
    /// For such a copy, in the widest units that it can be counted in.
    pub fn new(plan: &Plan) -> Self {
        let plan = widest(plan);
        Self { unit: plan.unit() as u32, rank: plan.dims().len().max(1) as u32 }
    }

    /// Every kernel.
    pub fn all() -> Vec<Self> {
        let ranks = 1..=MAX_RANK as u32;
        [1, 2, 4, 16].into_iter().flat_map(|unit| ranks.clone().map(move |rank| Self { unit, rank })).collect()
    }

    /// The launch for the copy that the kernel is for. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 units, or of a place or a stride that does not fit 32 bits.
    pub fn launch(&self, plan: &Plan) -> Result<Launch> {
        let plan = widest(plan);
        let word = |what, value: usize| extent(what, value, u32::MAX.into()).map(Argument::U32);
        let n = extent("units of a copy", plan.len(), MOST)?;
        let [from, to] = plan.first();
        let mut arguments = vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(n)];
        arguments.extend([word("the first offset read", from)?, word("the first offset written", to)?]);
        // Innermost first; the kernel for a single unit has one dimension too.
        for d in 0..self.rank as usize {
            let dim = plan.dims().iter().rev().nth(d);
            let [extent, from, to] = dim.map_or([1, 0, 0], |dim| [dim.extent, dim.from, dim.to]);
            arguments.extend([word("an extent", extent)?, word("a stride", from)?, word("a stride", to)?]);
        }
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [x, out] = ["x", "out"].map(|name| k.buffer::<u32>(name));
        let [n, from, to] = ["n", "from", "to"].map(|name| k.parameter::<u32>(name));
        let dims: Vec<[Value<'_, u32>; 3]> = (0..self.rank as usize)
            .map(|d| ["extent", "from", "to"].map(|name| k.parameter::<u32>((name, d))))
            .collect();
        let i = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(i, n), || {
            let mut at = [from, to].map(|first| k.cvt_u64(first));
            let mut rest = i;
            for (d, [extent, from, to]) in dims.into_iter().enumerate() {
                // The remaining index is that of the outermost dimension.
                let outermost = d + 1 == self.rank as usize;
                let here = if outermost { rest } else { rest % extent };
                at = [k.mad_wide(here, from, at[0]), k.mad_wide(here, to, at[1])];
                if !outermost {
                    rest = rest / extent;
                }
            }
            let [from, to] = at;
            match self.unit {
                1 => k.st(out.cast::<Byte>().index_wide(to), k.ld(x.cast::<Byte>().index_wide(from))),
                2 => k.st(out.cast::<F16>().index_wide(to), k.ld(x.cast::<F16>().index_wide(from))),
                4 => k.st(out.index_wide(to), k.ld(x.index_wide(from))),
                _ => {
                    let [x, out] = [(x, from), (out, to)].map(|(at, i)| at.index_wide(i * u64::from(VECTOR)));
                    k.st_v(out, k.ld_v::<_, _, 4>(x));
                }
            }
        });
    }
}

/// The copy in the largest units that the kernels support: vectors, words, or parts of words.
fn widest(plan: &Plan) -> Plan {
    let wide = plan.widened(16);
    if wide.unit() == 16 { wide } else { plan.widened(4) }
}

impl Kernel for StridedCopy {
    fn name(&self) -> String {
        let unit = match self.unit {
            1 => "b8",
            2 => "b16",
            4 => "b32",
            _ => "x4",
        };
        format!("strided_copy_{unit}_{}d", self.rank)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

/// Every word of a buffer is one value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fill;

impl Fill {
    /// The launch for this many words. Buffer 0 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 words.
    pub fn launch(&self, value: u32, words: usize) -> Result<Launch> {
        let n = extent("words", words, MOST)?;
        let arguments = vec![Argument::Buffer(0), Argument::U32(value), Argument::U32(n)];
        Ok(Launch { grid: [extent("blocks", n.div_ceil(BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let out = k.buffer::<u32>("out");
        let [value, n] = ["value", "n"].map(|name| k.parameter::<u32>(name));
        let i = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.st_if(k.lt(i, n), out.index(i), value);
    }
}

impl Kernel for Fill {
    fn name(&self) -> String {
        "fill".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
