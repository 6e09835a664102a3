//! The sum of the parts of a product that was cut along k.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements of a vector.
const VECTOR: u32 = 4;
/// Maximum elements of a part, so that the end of the last block fits 32 bits.
const MOST: u64 = u32::MAX as u64 - (BLOCK * VECTOR) as u64;

/// `yᵢ = Σ xₚᵢ` over parts p that lie one behind the other, added in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitSum {
    parts: usize,
    /// Whether parts are whole vectors.
    vectors: bool,
}

impl SplitSum {
    /// The sum of this many parts of `len` elements.
    pub fn new(parts: usize, len: usize) -> Self {
        Self { parts, vectors: len.is_multiple_of(VECTOR as usize) }
    }

    /// The launch for parts of `len` elements. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) where 32 bits do not count the elements of a part.
    pub fn launch(&self, len: usize) -> Result<Launch> {
        let len = extent("elements of a product", len, MOST)?;
        let blocks = extent("blocks", len.div_ceil(BLOCK * self.at_once()) as usize, MAX_GRID_X)?;
        let arguments = vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(len)];
        Ok(Launch { grid: [blocks, 1, 1], arguments })
    }

    /// Elements of a thread.
    fn at_once(&self) -> u32 {
        if self.vectors { VECTOR } else { 1 }
    }

    fn write(&self, k: &Builder) {
        let [x, y] = ["x", "y"].map(|name| k.buffer::<f32>(name));
        let len = k.parameter::<u32>("len");
        let first = k.mad(k.ctaid_x(), BLOCK, k.tid_x()) * self.at_once();
        k.if_(k.lt(first, len), || {
            let parts = (0..self.parts).map(|part| x.index(first).index_wide(k.mul_wide(len, part as u32)));
            if self.vectors {
                let parts: Vec<[Value<'_, f32>; 4]> = parts.map(|at| k.ld_v(at)).collect();
                let sums =
                    std::array::from_fn::<_, 4, _>(|i| parts[1..].iter().fold(parts[0][i], |sum, part| sum + part[i]));
                k.st_v(y.index(first), sums);
            } else {
                let parts: Vec<Value<'_, f32>> = parts.map(|at| k.ld(at)).collect();
                k.st(y.index(first), parts[1..].iter().fold(parts[0], |sum, &part| sum + part));
            }
        });
    }
}

impl Kernel for SplitSum {
    fn name(&self) -> String {
        format!("split_sum_{}{}", self.parts, if self.vectors { "_vectors" } else { "" })
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
