//! Combines the partial results of [`FlashAttention`](super::FlashAttention) over parts of the keys.

use kiln_ir::{Error, Result};

use super::softmax::base_2;
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::half::store_pair;
use crate::kernels::math::F32;
use crate::kernels::team::{self, WARP};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, PtxType};

/// Threads of a block.
const BLOCK: u32 = 128;
/// Warps of a block, which share the parts of a row.
const WARPS: u32 = BLOCK / WARP;
/// Parts that a warp reads at once: there are few rows, so the latency of the parts matters, not their size.
const AT_ONCE: u32 = 8;
/// Maximum rows, one block each.
const MOST: u64 = MAX_GRID_X;

/// The launches of an attention by kernel `K`: one, or two where keys are divided into parts.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionPlan<K> {
    /// The first launch. Buffers: queries, keys, values, and the result, or scratch if there is any.
    pub attention: (K, Launch),
    /// The launch that adds up parts, and the bytes of scratch between both. Buffers: scratch, result.
    pub combine: Option<(FlashCombine, Launch, usize)>,
}

/// `Σₚ wₚ sumsₚ / Σₚ wₚ totalₚ` for each row, with `wₚ = exp(scale (greatestₚ - maxₚ greatestₚ))`: the sums of weighted values
/// of parts of the keys, the totals of these weights, and the scores that they are relative to. A block a row; its warps add up some parts each, and these sums are added in their order.
///
/// Scratch: of each part the sums of all rows, then of each part `greatest` and `total` of all rows; f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlashCombine {
    output: PtxType,
    width: u32,
}

impl FlashCombine {
    pub(super) fn new(output: PtxType, width: u32) -> Self {
        Self { output, width }
    }

    pub(super) fn scratch_bytes(rows: usize, width: u32, parts: u32) -> Result<usize> {
        let words = [rows, parts as usize, width as usize + 2];
        let bytes = words.into_iter().try_fold(size_of::<f32>(), usize::checked_mul);
        bytes.ok_or(Error::Limit { what: "parts of results", device: "a kernel".into(), asked: u64::MAX, limit: MOST })
    }

    pub(super) fn launch(&self, rows: usize, parts: u32, scale: f32) -> Result<Launch> {
        let rows = extent("queries", rows, MOST)?;
        let words = [Argument::U32(rows), Argument::U32(parts), Argument::F32(base_2(scale)?)];
        let arguments = [0, 1].map(Argument::Buffer).into_iter().chain(words).collect();
        Ok(Launch { grid: [rows, 1, 1], arguments })
    }

    fn write<'k>(&self, k: &'k Builder) {
        let (sums, out) = (k.buffer::<f32>("parts"), k.buffer::<u32>("out"));
        let [rows, parts] = ["rows", "count"].map(|name| k.parameter::<u32>(name));
        let scale = k.parameter::<f32>("scale");
        let (row, thread) = (k.ctaid_x(), k.tid_x());
        let (warp, lane) = (thread / WARP, thread % WARP);
        let weights = sums.index_wide(k.mul_wide(parts, rows) * u64::from(self.width));
        let of_part = |at: Pointer<'k, Global, f32>, part, columns: u32| {
            at.index_wide(k.mad_wide(part, rows, k.cvt_u64(row)) * u64::from(columns))
        };
        let greatest = k.variable(f32::NEG_INFINITY);
        k.for_(lane, parts, WARP, |part| greatest.set(k.max(greatest, k.ld(of_part(weights, part, 2)))));
        let greatest = team::combine(k, WARP, lane, greatest.get(), |a, b| k.max(a, b));
        let base = k.selp(0.0, greatest, k.eq(greatest, f32::NEG_INFINITY));
        // A lane has two columns of every 64.
        let columns = lane * 2u32;
        let chunks: Vec<u32> = (0..self.width.div_ceil(2 * WARP)).map(|chunk| 2 * WARP * chunk).collect();
        let in_row: Vec<_> = chunks.iter().map(|&chunk| k.lt(columns + chunk, self.width)).collect();
        let total = k.variable(0.0f32);
        let added: Vec<_> = chunks.iter().map(|_| [0; 2].map(|_| k.variable(0.0f32))).collect();
        k.for_(warp, parts, WARPS * AT_ONCE, |first| {
            let read = |i: u32| {
                let part = first + i * WARPS;
                let there = k.lt(part, parts);
                // Missing parts have weight zero, because their score is masked.
                let score = k.ld_if(there, of_part(weights, part, 2), f32::NEG_INFINITY);
                let of_weights = k.ld_if(there, of_part(weights, part, 2).offset(1), 0.0);
                let from = of_part(sums, part, self.width).index(columns);
                let values = chunks.iter().zip(&in_row).map(|(&chunk, &in_row)| {
                    k.ld_v_if::<_, _, 2>(k.and(there, in_row), from.offset(chunk as i32), 0.0)
                });
                (score, of_weights, values.collect::<Vec<[F32<'k>; 2]>>())
            };
            let parts: Vec<_> = (0..AT_ONCE).map(read).collect();
            for (score, of_weights, values) in parts {
                // Scaled last: for large scores, rounding the products would affect the difference.
                let weight = k.ex2((score - base) * scale);
                total.set(k.fma(weight, of_weights, total));
                for (added, values) in added.iter().zip(values) {
                    added.iter().zip(values).for_each(|(sum, value)| sum.set(k.fma(weight, value, *sum)));
                }
            }
        });

        let (totals, of_warps) = (k.shared::<f32>(WARPS), k.shared::<f32>(WARPS * self.width));
        k.st_if(k.eq(lane, 0), totals.index(warp), total);
        let mine = of_warps.index(k.mad(warp, self.width, columns));
        for ((&chunk, &in_row), added) in chunks.iter().zip(&in_row).zip(&added) {
            k.st_v_if(in_row, mine.offset(chunk as i32), *added);
        }
        k.bar_sync(0u32);
        let pair = thread * 2u32;
        k.if_(k.lt(pair, self.width), || {
            let add = |values: Vec<F32<'k>>| team::tree(values, |a, b| a + b).unwrap_or(total.get());
            let share = k.rcp(add((0..WARPS).map(|warp| k.ld(totals.offset(warp as i32))).collect()));
            let from = of_warps.index(pair);
            let of_warp = |warp: u32| k.ld_v::<_, _, 2>(from.offset((warp * self.width) as i32));
            let sums: Vec<[F32<'k>; 2]> = (0..WARPS).map(of_warp).collect();
            let values = [0, 1].map(|i: usize| add(sums.iter().map(|pair| pair[i]).collect()) * share);
            let halves = u32::from(self.output != PtxType::F32);
            let at = out.index_wide(k.mul_wide(row, self.width * self.output.bytes() / 4)).index(pair >> halves);
            store_pair(k, self.output, at, values);
        });
    }
}

impl Kernel for FlashCombine {
    fn name(&self) -> String {
        format!("flash_combine_{}_{}", self.output.word(), self.width)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
