//! Softmax and its logarithm, of rows of any length.
//!
//! `m = max x` of the row, then `exp(xᵢ - m) / Σ exp(xⱼ - m)` or `xᵢ - m - ln Σ exp(xⱼ - m)`. The exponential is that of the
//! element-wise functions. Rows that fit the registers of a team are read once. Longer ones are cut into parts, and each part has its
//! own m and sum: `Σ exp(xⱼ - m) = Σ exp(m of a part - m) (sum of the part)` (Milakov and Gimelshein 2018). These sums are in f64,
//! because a thread adds many exponentials one after the other.

use kiln_ir::Result;

use super::math::{self, F32, maximum};
use super::rows::{Absent, Element, Hold, Part, RowsPlan, Walk};
use super::team::{self, WARP};
use crate::{Builder, Global, Kernel, Pointer, PtxKernel, Target};

/// Distributions of rows over threads on every target, shortest rows first.
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
    /// Softmax of `rows` rows of `columns` elements, for devices from `target` on; its logarithm where `logarithm`. Buffer 0 is
    /// read, 1 is written, 2 is scratch; 0 and 1 may be the same.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 2049 columns, or 2³¹ - 1 blocks: one for each row or part of a row, or
    /// several where the blocks of a cluster hold a row.
    pub fn plan(rows: usize, columns: usize, logarithm: bool, target: Target) -> Result<RowsPlan<Self>> {
        let holds: &[&[Hold]] = match target {
            Target::Sm90a => &[&HOLDS, &BROUGHT, &CLUSTERS],
            _ if target >= Target::Sm90 => &[&HOLDS, &CLUSTERS],
            _ => &[&HOLDS, &LONG],
        };
        Walk::plan([rows, columns], holds, 2, 2, &[], |walk| Self { logarithm, walk, target })
    }

    /// Every kernel for targets without clusters, or those that need them, or those for Hopper alone.
    pub fn all(target: Target) -> Vec<Self> {
        let both = |walk| [false, true].map(|logarithm| Self { logarithm, walk, target });
        match target {
            Target::Sm90a => return Walk::held(&BROUGHT).flat_map(both).collect(),
            _ if target >= Target::Sm90 => return Walk::held(&CLUSTERS).flat_map(both).collect(),
            _ => {}
        }
        Walk::held(&HOLDS).chain(Walk::held(&LONG)).chain([Walk::States, Walk::Results]).flat_map(both).collect()
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

    /// Writes the greatest element of a part and the sum of the exponentials.
    fn states<'k>(&self, k: &'k Builder, x: Pointer<'k, Global, f32>, states: Pointer<'k, Global, f64>) {
        let part = Part::of_block(k, k.parameter::<u32>("n"));
        let x = part.of_matrix(x);
        let greatest = k.variable(f32::NEG_INFINITY);
        part.stream(x, |elements| {
            let there = |element: &Element<'k>| k.selp(element.x, f32::NEG_INFINITY, element.there);
            let all = elements.iter().map(there).chain([greatest.get()]).collect();
            if let Some(m) = team::tree(all, |a, b| maximum(self.target, a, b)) {
                greatest.set(m);
            }
        });
        let m = part.combine(greatest.get(), |a, b| maximum(self.target, a, b));
        // Of a part without a greater element the sum is 0, which only the elements of other parts may change.
        let least = k.eq(m, f32::NEG_INFINITY);
        let origin = k.selp(0.0, m, least);
        let sum = k.variable(0.0f64);
        part.stream(x, |elements| {
            for element in elements {
                let exponential = k.selp(math::exp(element.x - origin), 0.0, element.there);
                sum.set(k.add(sum, k.cvt_f64(exponential)));
            }
        });
        let sum = part.combine(sum.get(), |a, b| a + b);
        part.write(states, &[k.cvt_f64(m), sum]);
    }

    /// Combines the states of the row and writes the results of a part.
    fn results<'k>(&self, k: &'k Builder, [x, out]: [Pointer<'k, Global, f32>; 2], states: Pointer<'k, Global, f64>) {
        let part = Part::of_block(k, k.parameter::<u32>("n"));
        let greater = |a, b| maximum(self.target, a, b);
        let greatest = k.variable(f32::NEG_INFINITY);
        part.states(states, |[m, _]| greatest.set(greater(greatest.get(), k.cvt_rn_f32(m))));
        let m = part.combine(greatest.get(), greater);
        let sum = k.variable(0.0f64);
        part.states(states, |[of_part, sum_of_part]| {
            // NaN where both are infinite: then every result is NaN.
            let factor = k.cvt_f64(math::exp(k.cvt_rn_f32(of_part) - m));
            sum.set(k.add(sum, sum_of_part * factor));
        });
        let last = self.last(k.cvt_rn_f32(part.combine(sum.get(), |a, b| a + b)));
        let [x, out] = [x, out].map(|matrix| part.of_matrix(matrix));
        part.stream(x, |elements| {
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
            let x = k.buffer::<f32>("x");
            match self.walk {
                Walk::Held(hold) => self.held(k, [x, k.buffer::<f32>("out")], hold),
                Walk::States => self.states(k, x, k.buffer::<f64>("states")),
                Walk::Results => self.results(k, [x, k.buffer::<f32>("out")], k.buffer::<f64>("states")),
            }
        })
    }
}
