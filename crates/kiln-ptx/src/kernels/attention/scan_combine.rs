//! Combines the partial results of [`ScanAttention`](super::ScanAttention) over parts of the keys.

use kiln_ir::Result;
use kiln_ir::op::AttentionExtents;

use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::math::{self, F32, maximum};
use crate::kernels::team;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Target, Value};

/// Threads of a block.
const BLOCK: u32 = 128;
/// Parts that a thread reads at once: each read takes as long as the memory does, and is of little.
const AT_ONCE: u32 = 16;
/// Parts that a thread reads at once where there are few.
const FEW_AT_ONCE: u32 = 4;
/// Maximum parts for which each thread processes all of them.
const FEW_PARTS: u32 = 32;
/// Maximum queries.
const MOST: u64 = 1 << 31;

type Word<'k> = Value<'k, u32>;

/// `Σₚ wₚ sumsₚ / (Σₚ wₚ totalₚ + exp(sink - m))` for each query, with `wₚ = exp(greatestₚ - m)` and the greatest m of these and of
/// the sink: what blocks of [`ScanAttention`](super::ScanAttention) have left of parts of the keys. A part whose total is below zero is left out; where
/// all are, the query sees no key and gets zeros. A block a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScanCombine {
    target: Target,
}

impl ScanCombine {
    /// The kernel for devices from `target` on.
    pub fn new(target: Target) -> Self {
        Self { target }
    }

    pub(super) fn launch(rows: u32, parts: u32, extents: &AttentionExtents, sinks: u32) -> Result<Launch> {
        let heads = extents.kv_heads.saturating_mul(extents.group);
        let words = [
            rows,
            parts,
            extent("elements of a row", extents.dv, MOST)?,
            extent("queries", extents.s, MOST)?,
            extent("heads", heads, MOST)?,
            sinks,
        ];
        let arguments = (0..3).map(Argument::Buffer).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [extent("queries", rows as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [sums, out, sinks] = ["parts", "out", "sinks"].map(|name| k.buffer::<f32>(name));
        let [rows, parts, width, s, heads, sinks_given] =
            ["rows", "count", "width", "s", "heads", "sinks_given"].map(|name| k.parameter::<u32>(name));
        let row = k.ctaid_x();
        let sink = k.ld_if(k.gt(sinks_given, 0), sinks.index(row / s % heads), f32::NEG_INFINITY);

        // Few parts are combined by each thread separately.
        k.if_else(
            k.le(parts, FEW_PARTS),
            || self.add_few(k, [sums, out.index_wide(k.mul_wide(row, width))], [row, rows, parts, width], sink),
            || self.add_many(k, [sums, out.index_wide(k.mul_wide(row, width))], [row, rows, parts, width], sink),
        );
    }

    /// The reference score of a part's sums and the total of its weights.
    fn of_part<'k>(
        k: &'k Builder,
        sums: Pointer<'k, Global, f32>,
        [row, rows, parts, width]: [Word<'k>; 4],
        part: Word<'k>,
    ) -> Pointer<'k, Global, f32> {
        let weights = sums.index_wide(k.mul_wide(parts, rows) * k.cvt_u64(width));
        weights.index_wide(k.mad_wide(part, rows, k.cvt_u64(row)) * 2u64)
    }

    /// For few parts: each thread computes the weights of all parts.
    fn add_few<'k>(
        &self,
        k: &'k Builder,
        [sums, out]: [Pointer<'k, Global, f32>; 2],
        place: [Word<'k>; 4],
        sink: F32<'k>,
    ) {
        let [row, rows, parts, width] = place;
        let thread = k.tid_x();
        // The reference score and the total of a part; a missing one is hidden.
        let read = |part: Word<'k>| {
            let (at, there) = (Self::of_part(k, sums, place, part), k.lt(part, parts));
            (k.ld_if(there, at, 0.0), k.ld_if(there, at.offset(1), -1.0))
        };
        let (greatest, sees) = (k.variable(sink), k.variable(0u32));
        k.for_(0u32, parts, FEW_AT_ONCE, |first| {
            let read: Vec<_> = (0..FEW_AT_ONCE).map(|i| read(first + i)).collect();
            for (of_part, total) in read {
                let hidden = k.lt(total, 0.0);
                greatest.set(maximum(self.target, greatest.get(), k.selp(f32::NEG_INFINITY, of_part, hidden)));
                sees.set(k.selp(sees.get(), 1u32, hidden));
            }
        });
        let origin = k.selp(0.0, greatest.get(), k.eq(greatest, f32::NEG_INFINITY));
        k.for_(thread, width, BLOCK, |column| {
            let (sum, total) = (k.variable(0.0f32), k.variable(math::exp(sink - origin)));
            k.for_(0u32, parts, FEW_AT_ONCE, |first| {
                let of = |i: u32| {
                    let (part, at) = (first + i, k.mad_wide(first + i, rows, k.cvt_u64(row)) * k.cvt_u64(width));
                    (read(part), k.ld_if(k.lt(part, parts), sums.index_wide(at).index(column), 0.0))
                };
                let all: Vec<_> = (0..FEW_AT_ONCE).map(of).collect();
                for ((of_part, of_weights), value) in all {
                    let hidden = k.lt(of_weights, 0.0);
                    let weight = k.selp(0.0, math::exp(of_part - origin), hidden);
                    total.set(k.fma(weight, of_weights, total));
                    sum.set(k.fma(weight, k.selp(0.0, value, hidden), sum));
                }
            });
            k.st(out.index(column), k.selp(sum.get() / total.get(), 0.0, k.ne(sees, 0)));
        });
    }

    /// For many parts: threads share the computation of the weights.
    fn add_many<'k>(
        &self,
        k: &'k Builder,
        [sums, out]: [Pointer<'k, Global, f32>; 2],
        place: [Word<'k>; 4],
        sink: F32<'k>,
    ) {
        let [row, rows, parts, width] = place;
        let thread = k.tid_x();
        let of_part = |part: Word<'k>| Self::of_part(k, sums, place, part);
        let greatest = k.variable(f32::NEG_INFINITY);
        let sees = k.variable(0.0f32);
        k.for_(thread, parts, BLOCK, |part| {
            let (of_part, total) = (k.ld(of_part(part)), k.ld(of_part(part).offset(1)));
            // A NaN total belongs to a visible part.
            let hidden = k.lt(total, 0.0);
            greatest.set(maximum(self.target, greatest.get(), k.selp(f32::NEG_INFINITY, of_part, hidden)));
            sees.set(k.selp(sees.get(), 1.0, hidden));
        });
        let greatest = team::combine(k, BLOCK, thread, greatest.get(), |a, b| maximum(self.target, a, b));
        let sees = team::combine(k, BLOCK, thread, sees.get(), |a, b| k.max(a, b));
        let greatest = maximum(self.target, greatest, sink);
        let origin = k.selp(0.0, greatest, k.eq(greatest, f32::NEG_INFINITY));
        let total = k.variable(0.0f32);
        k.for_(thread, parts, BLOCK, |part| {
            let (greatest, of_part) = (k.ld(of_part(part)), k.ld(of_part(part).offset(1)));
            let hidden = k.lt(of_part, 0.0);
            total.set(k.selp(total.get(), k.fma(math::exp(greatest - origin), of_part, total), hidden));
        });
        let total = team::combine(k, BLOCK, thread, total.get(), |a, b| a + b) + math::exp(sink - origin);

        let of_parts = k.shared::<f32>(BLOCK);
        let first_column = k.variable(0u32);
        k.while_(
            || k.lt(first_column, width),
            || {
                let column = first_column.get() + thread;
                let sum = k.variable(0.0f32);
                k.for_(0u32, parts, BLOCK, |first| {
                    let part = first + thread;
                    let there = k.lt(part, parts);
                    let at = of_part(part);
                    let (of_part, hidden) = (k.ld_if(there, at, 0.0), k.lt(k.ld_if(there, at.offset(1), -1.0), 0.0));
                    k.st(of_parts.index(thread), k.selp(-1.0, math::exp(of_part - origin), hidden));
                    k.bar_sync(0u32);
                    k.for_(0u32, k.min(parts - first, BLOCK), AT_ONCE, |i| {
                        let read = |n: u32| {
                            let part = i + n;
                            let weight = k.ld(of_parts.index(part));
                            let there = k.and(k.not(k.lt(weight, 0.0)), k.lt(column, width));
                            let row = k.mad_wide(first + part, rows, k.cvt_u64(row));
                            let at = sums.index_wide(row * k.cvt_u64(width)).index(column);
                            (k.selp(weight, 0.0, there), k.ld_if(there, at, 0.0))
                        };
                        let read: Vec<_> = (0..AT_ONCE).map(read).collect();
                        read.into_iter().for_each(|(weight, value)| sum.set(k.fma(weight, value, sum)));
                    });
                    k.bar_sync(0u32);
                });
                let mean = k.selp(sum.get() / total, 0.0, k.gt(sees, 0.0));
                k.st_if(k.lt(column, width), out.index(column), mean);
                first_column.set(first_column.get() + BLOCK);
            },
        );
    }
}

impl Kernel for ScanCombine {
    fn name(&self) -> String {
        "attention_scan_combine".into()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
