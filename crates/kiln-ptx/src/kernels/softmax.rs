//! Softmax and its logarithm, of rows of any length.
//!
//! `m = max x` of the row, then `exp(xᵢ - m) / Σ exp(xⱼ - m)` or `xᵢ - m - ln Σ exp(xⱼ - m)`. The exponential is that of the
//! element-wise functions. Rows that fit the registers of a team are read once; longer ones three times, for which the sum
//! runs in f64: a thread adds thousands of exponentials one after the other there.

use kiln_core::Result;

use super::math::{self, F32, maximum};
use super::team::{self, WARP};
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Target};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements of a row at most: 32 bits count what the last threads would read, too.
const MOST: u64 = (u32::MAX - BLOCK) as u64;

/// How a team of threads goes through its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Walk {
    /// A thread holds so many elements.
    Held { team: u32, elements: u32 },
    /// A block reads the row again and again.
    Streamed,
}

/// What rows are, shortest first.
const WALKS: [Walk; 7] = [
    Walk::Held { team: WARP, elements: 4 },
    Walk::Held { team: WARP, elements: 16 },
    Walk::Held { team: BLOCK, elements: 4 },
    Walk::Held { team: BLOCK, elements: 8 },
    Walk::Held { team: BLOCK, elements: 16 },
    Walk::Held { team: BLOCK, elements: 32 },
    Walk::Streamed,
];

impl Walk {
    fn team(self) -> u32 {
        match self {
            Self::Held { team, .. } => team,
            Self::Streamed => BLOCK,
        }
    }
}

/// Softmax of rows whose length lies in a range, or its logarithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Softmax {
    logarithm: bool,
    walk: Walk,
    target: Target,
}

impl Softmax {
    /// Of rows of `columns` elements, for devices from `target` on; of the logarithm where `logarithm`.
    pub fn new(columns: usize, logarithm: bool, target: Target) -> Self {
        let fits = |walk: &Walk| match *walk {
            Walk::Held { team, elements } => columns <= (team * elements) as usize,
            Walk::Streamed => true,
        };
        let walk = WALKS.into_iter().find(fits).unwrap_or(Walk::Streamed);
        Self { logarithm, walk, target }
    }

    /// Every kernel.
    pub fn all(target: Target) -> Vec<Self> {
        let both = |walk| [false, true].map(|logarithm| Self { logarithm, walk, target });
        WALKS.into_iter().flat_map(both).collect()
    }

    /// The launch for `rows` rows of `columns` elements. Buffer 0 is read, 1 is written; they may be the same.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_core::Error::Limit) beyond 2³² - 257 columns or 2³¹ - 1 rows, or where `columns` is more than
    /// the kernel holds.
    pub fn launch(&self, rows: usize, columns: usize) -> Result<Launch> {
        let most = match self.walk {
            Walk::Held { team, elements } => u64::from(team * elements),
            Walk::Streamed => MOST,
        };
        let n = extent("columns", columns, most)?;
        let blocks = extent("rows", rows, MAX_GRID_X)?.div_ceil(BLOCK / self.walk.team());
        let arguments = vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(rows as u32), Argument::U32(n)];
        Ok(Launch { grid: [if n == 0 { 0 } else { blocks }, 1, 1], arguments })
    }

    /// What every element of the row is multiplied by, or what is taken from it.
    fn last<'k>(&self, sum: F32<'k>) -> F32<'k> {
        if self.logarithm { math::ln(sum) } else { sum.builder.rcp(sum) }
    }

    fn held<'k>(&self, k: &'k Builder, [x, out]: [Pointer<'k, Global, f32>; 2], team: u32, elements: u32) {
        let (rows, n) = (k.parameter::<u32>("rows"), k.parameter::<u32>("n"));
        let [row, thread] = team::place(k, BLOCK, team);
        let first = k.mul_wide(row, n);
        let [x, out] = [x, out].map(|at| at.index_wide(first).index(thread));
        // A team without a row reads nothing, and goes along.
        let n = k.selp(n, 0, k.lt(row, rows));
        let there: Vec<_> = (0..elements).map(|e| k.lt(thread + e * team, n)).collect();
        let place = |e: usize| (e as u32 * team) as i32;
        let load = |(e, &there)| k.ld_if(there, x.offset(place(e)), f32::NEG_INFINITY);
        let elements: Vec<F32<'k>> = there.iter().enumerate().map(load).collect();

        let combine = |value: Vec<F32<'k>>, by: &dyn Fn(F32<'k>, F32<'k>) -> F32<'k>| {
            team::tree(value, by).map(|share| team::combine(k, team, thread, share, by))
        };
        let Some(m) = combine(elements.clone(), &|a, b| maximum(self.target, a, b)) else { return };
        let differences: Vec<F32<'k>> = elements.into_iter().map(|x| x - m).collect();
        let exponentials: Vec<F32<'k>> = differences.iter().map(|&x| math::exp(x)).collect();
        let Some(sum) = combine(exponentials.clone(), &|a, b| a + b) else { return };
        let last = self.last(sum);
        for (e, &there) in there.iter().enumerate() {
            let y = if self.logarithm { differences[e] - last } else { exponentials[e] * last };
            k.st_if(there, out.offset(place(e)), y);
        }
    }

    fn streamed<'k>(&self, k: &'k Builder, [x, out]: [Pointer<'k, Global, f32>; 2]) {
        let (_, n) = (k.parameter::<u32>("rows"), k.parameter::<u32>("n"));
        let [row, thread] = team::place(k, BLOCK, BLOCK);
        let first = k.mul_wide(row, n);
        let [x, out] = [x, out].map(|at| at.index_wide(first));

        let greatest = k.variable(f32::NEG_INFINITY);
        k.for_(thread, n, BLOCK, |i| greatest.set(maximum(self.target, greatest.get(), k.ld(x.index(i)))));
        let m = team::combine(k, BLOCK, thread, greatest.get(), |a, b| maximum(self.target, a, b));
        let sum = k.variable(0.0f64);
        k.for_(thread, n, BLOCK, |i| sum.set(k.add(sum, k.cvt_f64(math::exp(k.ld(x.index(i)) - m)))));
        let sum = team::combine(k, BLOCK, thread, sum.get(), |a, b| a + b);
        let last = self.last(k.cvt_rn_f32(sum));
        k.for_(thread, n, BLOCK, |i| {
            let difference = k.ld(x.index(i)) - m;
            k.st(out.index(i), if self.logarithm { difference - last } else { math::exp(difference) * last });
        });
    }
}

impl Kernel for Softmax {
    fn name(&self) -> String {
        let name = if self.logarithm { "log_softmax" } else { "softmax" };
        match self.walk {
            Walk::Held { team, elements } => format!("{name}_rows{team}x{elements}"),
            Walk::Streamed => format!("{name}_streamed"),
        }
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(&self.name(), [BLOCK, 1, 1], |k| {
            let buffers = [k.buffer::<f32>("x"), k.buffer::<f32>("out")];
            match self.walk {
                Walk::Held { team, elements } => self.held(k, buffers, team, elements),
                Walk::Streamed => self.streamed(k, buffers),
            }
        })
    }
}
