//! Softmax and its logarithm, of rows of any length.
//!
//! `m = max x` of the row, then `exp(xᵢ - m) / Σ exp(xⱼ - m)` or `xᵢ - m - ln Σ exp(xⱼ - m)`. The exponential is that of the
//! element-wise functions. Rows that fit the registers of a team are read once; longer ones three times, for which the sum
//! runs in f64: a thread adds thousands of exponentials one after the other there.

use kiln_ir::Result;

use super::math::{self, F32, maximum};
use super::rows::{self, Absent, Hold, STREAMING, Walk};
use super::team::{self, WARP};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Target};

/// How threads hold rows on every target, shortest rows first.
const HOLDS: [Hold; 7] = [
    Hold::by(WARP, 4),
    Hold::by(WARP, 16),
    Hold::by(256, 4),
    Hold::by(256, 8),
    Hold::by(256, 16),
    Hold::by(256, 32),
    Hold::by(512, 32),
];
/// The same for longer rows without clusters.
const LONG: [Hold; 1] = [Hold::by(1024, 32)];
/// The same on Hopper with asynchronous copies, for rows of whole vectors.
const BROUGHT: [Hold; 3] = [
    Hold::by(1024, 32).brought(1),
    Hold::by(256, 32).in_clusters(8).brought(4),
    Hold::by(512, 32).in_clusters(8).brought(1),
];
/// The same with clusters, for other rows.
const CLUSTERS: [Hold; 3] = [
    Hold::by(256, 32).in_clusters(4).counting(),
    Hold::by(256, 32).in_clusters(8).counting(),
    Hold::by(512, 32).in_clusters(8).counting(),
];

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
        let long: &[&[Hold]] = match target {
            Target::Sm90a => &[&HOLDS, &BROUGHT, &CLUSTERS],
            _ if target >= Target::Sm90 => &[&HOLDS, &CLUSTERS],
            _ => &[&HOLDS, &LONG],
        };
        Self { logarithm, walk: Walk::of(columns, long), target }
    }

    /// Every kernel for targets without clusters, or those that need them, or those for Hopper alone.
    pub fn all(target: Target) -> Vec<Self> {
        let both = |walk| [false, true].map(|logarithm| Self { logarithm, walk, target });
        match target {
            Target::Sm90a => return Walk::held(&BROUGHT).flat_map(both).collect(),
            _ if target >= Target::Sm90 => return Walk::held(&CLUSTERS).flat_map(both).collect(),
            _ => {}
        }
        Walk::held(&HOLDS).chain(Walk::held(&LONG)).chain([Walk::Streamed]).flat_map(both).collect()
    }

    /// The launch for `rows` rows of `columns` elements. Buffer 0 is read, 1 is written; they may be the same.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 2049 columns or 2³¹ - 1 rows, divided by the blocks of a cluster
    /// where those hold a row, or where `columns` is more than the kernel holds.
    /// [`Error::Parameter`](kiln_ir::Error::Parameter) where `columns` are no whole vectors and the kernel is for those.
    pub fn launch(&self, rows: usize, columns: usize) -> Result<Launch> {
        let [blocks, n] = self.walk.extents(rows, columns)?;
        let arguments = vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(rows as u32), Argument::U32(n)];
        Ok(Launch { grid: [blocks, 1, 1], arguments })
    }

    /// The factor of every element of the row, or the number that is subtracted from it.
    fn last<'k>(&self, sum: F32<'k>) -> F32<'k> {
        if self.logarithm { math::ln(sum) } else { sum.builder.rcp(sum) }
    }

    fn held<'k>(&self, k: &'k Builder, [x, out]: [Pointer<'k, Global, f32>; 2], hold: Hold) {
        let (rows, n) = (k.parameter::<u32>("rows"), k.parameter::<u32>("n"));
        let share = hold.share(k, self.target, rows, n);
        share.each(x, Absent::Number(f32::NEG_INFINITY), |held| {
            let greater = |a, b| maximum(self.target, a, b);
            let greatest = held.elements.iter().filter_map(|row| team::tree(row.clone(), greater)).collect();
            let greatest = share.combine(greatest, greater);
            let apart = |(row, m): (&Vec<F32<'k>>, &F32<'k>)| row.iter().map(|&x| x - *m).collect::<Vec<_>>();
            let differences: Vec<_> = held.elements.iter().zip(&greatest).map(apart).collect();
            let exp = |row: &Vec<F32<'k>>| row.iter().map(|&x| math::exp_lifted(x)).collect::<Vec<_>>();
            let exponentials: Vec<_> = differences.iter().map(exp).collect();
            let sum = |(row, m): (&Vec<F32<'k>>, &F32<'k>)| {
                // m - m is 0 for finite numbers, else NaN, which makes all results NaN.
                team::tree(row.clone(), |a, b| a + b).map(|sum| sum + k.sub(*m, *m))
            };
            let sums = exponentials.iter().zip(&greatest).filter_map(sum).collect();
            for (row, sum) in share.combine(sums, |a, b| a + b).into_iter().enumerate() {
                let last = self.last(if self.logarithm { math::lowered(sum) } else { sum });
                let result = |(&difference, &exponential): (&F32<'k>, &F32<'k>)| {
                    if self.logarithm { difference - last } else { exponential * last }
                };
                let results = differences[row].iter().zip(&exponentials[row]).map(result);
                share.store(out, &held, row, 0..differences[row].len(), results);
            }
        });
    }

    fn streamed<'k>(&self, k: &'k Builder, [x, out]: [Pointer<'k, Global, f32>; 2]) {
        let (_, n) = (k.parameter::<u32>("rows"), k.parameter::<u32>("n"));
        let [row, thread] = team::place(k, STREAMING, STREAMING);
        let first = k.mul_wide(row, n);
        let [x, out] = [x, out].map(|at| at.index_wide(first));
        let greatest = k.variable(f32::NEG_INFINITY);
        rows::stream(k, x, thread, n, f32::NEG_INFINITY, |elements| {
            let all = elements.iter().map(|element| element.x).chain([greatest.get()]).collect();
            if let Some(m) = team::tree(all, |a, b| maximum(self.target, a, b)) {
                greatest.set(m);
            }
        });
        let m = team::combine(k, STREAMING, thread, greatest.get(), |a, b| maximum(self.target, a, b));
        let sum = k.variable(0.0f64);
        // Missing elements are -∞, whose exponential adds nothing.
        rows::stream(k, x, thread, n, f32::NEG_INFINITY, |elements| {
            elements.iter().for_each(|element| sum.set(k.add(sum, k.cvt_f64(math::exp(element.x - m)))));
        });
        let sum = team::combine(k, STREAMING, thread, sum.get(), |a, b| a + b);
        let last = self.last(k.cvt_rn_f32(sum));
        rows::stream(k, x, thread, n, 0.0, |elements| {
            for element in elements {
                let difference = element.x - m;
                let y = if self.logarithm { difference - last } else { math::exp(difference) * last };
                k.st_if(element.there, out.index(element.column), y);
            }
        });
    }
}

impl Kernel for Softmax {
    fn name(&self) -> String {
        let name = if self.logarithm { "log_softmax" } else { "softmax" };
        format!("{name}_{}", self.walk.suffix())
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.walk.block(), 1, 1], |k| {
            let buffers = [k.buffer::<f32>("x"), k.buffer::<f32>("out")];
            match self.walk {
                Walk::Held(hold) => self.held(k, buffers, hold),
                Walk::Streamed => self.streamed(k, buffers),
            }
        })
    }
}
