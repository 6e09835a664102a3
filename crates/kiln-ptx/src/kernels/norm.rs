//! Normalisation of rows of any length: layer norm and RMS norm.
//!
//! `(xᵢ - μ) / √(σ² + eps) γᵢ + βᵢ`, or `xᵢ / √(Σ xⱼ² / n + eps) γᵢ`. Mean, squares and root are taken in f64: squares of f32 are
//! exact there and neither overflow nor vanish, and an offset of the row costs nothing. A row is read once for each sum and
//! once for the result; all but the first time it comes out of a cache, unless it is longer than that.

use kiln_core::Result;

use super::team::{self, WARP};
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel, Value};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Columns up to which a warp has a row to itself.
const SHORT: usize = 1024;
/// Elements of a row at most: 32 bits count what the last threads would read, too.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// Layer norm or RMS norm, for short rows or for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Norm {
    /// The mean is taken away and `beta` added: layer norm.
    centred: bool,
    /// Threads that share a row.
    team: u32,
}

impl Norm {
    /// Layer norm, for rows of about so many columns. Buffers: `x`, `gamma`, `beta`, result.
    pub fn layer(columns: usize) -> Self {
        Self { centred: true, team: if columns <= SHORT { WARP } else { BLOCK } }
    }

    /// RMS norm, for rows of about so many columns. Buffers: `x`, `gamma`, result.
    pub fn rms(columns: usize) -> Self {
        Self { centred: false, ..Self::layer(columns) }
    }

    /// Every kernel.
    pub fn all() -> [Self; 4] {
        [Self::layer(0), Self::layer(usize::MAX), Self::rms(0), Self::rms(usize::MAX)]
    }

    /// The launch for `rows` rows of `columns` elements.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_core::Error::Limit) beyond 2³² - 257 columns or 2³¹ - 1 rows.
    pub fn launch(&self, rows: usize, columns: usize, eps: f32) -> Result<Launch> {
        let n = extent("columns", columns, MOST)?;
        let rows = extent("rows", rows, MAX_GRID_X)?;
        let buffers = if self.centred { 4 } else { 3 };
        let scalars = [Argument::U32(rows), Argument::U32(n), Argument::F32(eps)];
        let arguments = (0..buffers).map(Argument::Buffer).chain(scalars).collect();
        let blocks = if n == 0 { 0 } else { rows.div_ceil(BLOCK / self.team) };
        Ok(Launch { grid: [blocks, 1, 1], arguments })
    }

    fn write<'k>(&self, k: &'k Builder) {
        let (x, gamma) = (k.buffer::<f32>("x"), k.buffer::<f32>("gamma"));
        let beta = self.centred.then(|| k.buffer::<f32>("beta"));
        let out = k.buffer::<f32>("out");
        let (rows, n, eps) = (k.parameter::<u32>("rows"), k.parameter::<u32>("n"), k.parameter::<f32>("eps"));
        let [row, thread] = team::place(k, BLOCK, self.team);
        let first = k.mul_wide(row, n);
        let [x, out] = [x, out].map(|at| at.index_wide(first));
        // A team without a row reads nothing, and goes along.
        let end = k.selp(n, 0, k.lt(row, rows));
        let count = k.cvt_rn_f64(n);
        let element = |i: Value<'k, u32>| k.cvt_f64(k.ld(x.index(i)));
        let mean = |term: &dyn Fn(Value<'k, f64>) -> Value<'k, f64>| {
            let sum = k.variable(0.0f64);
            k.for_(thread, end, self.team, |i| sum.set(k.add(sum, term(element(i)))));
            team::combine(k, self.team, thread, sum.get(), |a, b| a + b) / count
        };
        let middle = self.centred.then(|| mean(&|x| x));
        let apart = |x: Value<'k, f64>| middle.map_or(x, |middle| x - middle);
        let square = mean(&|x| {
            let x = apart(x);
            x * x
        });
        let scale = k.rcp(k.sqrt(square + k.cvt_f64(eps)));
        k.for_(thread, end, self.team, |i| {
            let z = k.cvt_rn_f32(apart(element(i)) * scale);
            let gamma = k.ld(gamma.index(i));
            k.st(out.index(i), beta.map_or_else(|| z * gamma, |beta| k.fma(z, gamma, k.ld(beta.index(i)))));
        });
    }
}

impl Kernel for Norm {
    fn name(&self) -> String {
        format!("{}_norm_rows{}", if self.centred { "layer" } else { "rms" }, self.team)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(&self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
