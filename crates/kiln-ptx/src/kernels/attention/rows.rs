//! Attention with a warp for each query: a readable reference, used for extents that larger tiles do not support.
//!
//! `softmax(scale Q Kᵀ) V`. The lanes of a warp share the elements of the query, of a key and of a value; the scores of a
//! few keys are added up together. The maximum so far is taken away from them, and what was summed up is scaled when it
//! grows, so that keys and values are read once. Where there are fewer queries than a device has room for, keys are cut into
//! parts, and [`FlashCombine`] adds up what their warps leave.

use kiln_ir::Result;
use kiln_ir::op::AttentionExtents;

use super::combine::{AttentionPlan, FlashCombine};
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::math::{self, F32, maximum};
use crate::kernels::team::{self, WARP};
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, PtxType, Target, Variable};

/// Threads of a block.
const BLOCK: u32 = 128;
/// Supported numbers of elements of a row per lane, ascending.
const SHARES: [u32; 5] = [1, 2, 4, 8, 32];
/// Maximum rows, so that the end of a block does not overflow.
const MOST: u64 = 1 << 31;

/// Approximate number of resident warps per multiprocessor.
const RESIDENT: u32 = 16;
/// Minimum keys of a part: fewer take less time than combining parts.
const LEAST_KEYS: usize = 16;
/// Maximum number of parts.
const MOST_PARTS: usize = 128;
/// Maximum elements of rows that [`FlashCombine`] combines, two per lane.
const MOST_COMBINED: usize = 256;

/// Attention of rows of up to this many elements, of any number of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attention {
    causal: bool,
    /// Elements of a row that a lane holds.
    share: u32,
    /// Whether it writes partial results to be combined.
    parts: bool,
    target: Target,
}

impl Attention {
    /// For rows of `d` elements, for devices from `target` on.
    pub fn new(d: usize, causal: bool, target: Target) -> Self {
        let share = SHARES.into_iter().find(|&share| d <= (share * WARP) as usize);
        Self { causal, share: share.unwrap_or(SHARES[SHARES.len() - 1]), parts: false, target }
    }

    /// Plans the launches for these extents on a device with this number of multiprocessors.
    ///
    /// # Errors
    /// The errors of [`Attention::launch`].
    pub fn plan(self, extents: &AttentionExtents, scale: f32, multiprocessors: u32) -> Result<AttentionPlan<Self>> {
        let AttentionExtents { batch, kv_heads, group, s, t, d, .. } = *extents;
        let queries = batch.saturating_mul(kv_heads).saturating_mul(group).saturating_mul(s);
        let room = ((multiprocessors * RESIDENT) as usize).checked_div(queries).unwrap_or(0);
        let parts = room.min(t / LEAST_KEYS).min(MOST_PARTS);
        if parts < 2 || d % 2 != 0 || d > MOST_COMBINED {
            return Ok(AttentionPlan { attention: (self, self.launch(extents, scale)?), combine: None });
        }
        let keys = t.div_ceil(parts);
        let parts = t.div_ceil(keys) as u32;
        let kernel = Self { parts: true, ..self };
        let Launch { grid: [blocks, ..], mut arguments } = kernel.launch(extents, scale)?;
        arguments.push(Argument::U32(extent("keys", keys, MOST)?));
        let combine = FlashCombine::new(PtxType::F32, d as u32);
        // Scores are scaled already.
        let adding = combine.launch(queries, parts, 1.0)?;
        let scratch = FlashCombine::scratch_bytes(queries, d as u32, parts)?;
        Ok(AttentionPlan {
            attention: (kernel, Launch { grid: [blocks, parts, 1], arguments }),
            combine: Some((combine, adding, scratch)),
        })
    }

    /// Every kernel for devices from `target` on.
    pub fn all(target: Target) -> Vec<Self> {
        let of = |share, causal| {
            // Longer rows are never divided.
            let parts = [false, true].into_iter().filter(move |&parts| !parts || share * WARP <= MOST_COMBINED as u32);
            parts.map(move |parts| Self { causal, share, parts, target })
        };
        SHARES
            .into_iter()
            .flat_map(|share| [false, true].into_iter().flat_map(move |causal| of(share, causal)))
            .collect()
    }

    /// The launch for these extents. Buffers: queries, keys, values, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ queries or keys, or rows longer than 1024 elements.
    pub fn launch(&self, extents: &AttentionExtents, scale: f32) -> Result<Launch> {
        let AttentionExtents { batch, kv_heads, group, s, t, d, .. } = *extents;
        let queries = batch.saturating_mul(kv_heads).saturating_mul(group).saturating_mul(s);
        let rows = extent("queries", queries, MOST)?;
        let words = [
            rows,
            extent("queries", s, MOST)?,
            extent("keys", t, MOST)?,
            extent("elements of a row", d, (self.share * WARP).into())?,
            extent("heads", group, MOST)?,
        ];
        let scalars = words.map(Argument::U32).into_iter().chain([Argument::F32(scale)]);
        let arguments = (0..4).map(Argument::Buffer).chain(scalars).collect();
        Ok(Launch { grid: [extent("blocks", rows.div_ceil(BLOCK / WARP) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write<'k>(&self, k: &'k Builder) {
        let [q, keys, values, out] = ["q", "k", "v", "out"].map(|name| k.buffer::<f32>(name));
        let [rows, s, t, d, group] = ["rows", "s", "t", "d", "group"].map(|name| k.parameter::<u32>(name));
        let scale = k.parameter::<f32>("scale");
        let [row, lane] = team::place(k, BLOCK, WARP);
        let (head, query) = (row / s, row % s);
        let first = k.mul_wide(row, d);
        let output = out;
        let [q, out] = [q, out].map(|at| at.index_wide(first).index(lane));
        let first = k.mul_wide(head / group, t) * k.cvt_u64(d);
        let [keys, values] = [keys, values].map(|at| at.index_wide(first).index(lane));
        // A warp without a query loads nothing, but takes part in the rest.
        let there: Vec<_> = (0..self.share).map(|e| k.and(k.lt(lane + e * WARP, d), k.lt(row, rows))).collect();
        let load = |at: Pointer<'k, Global, f32>| -> Vec<F32<'k>> {
            let element = |(e, &there)| k.ld_if(there, at.offset((e as u32 * WARP) as i32), 0.0);
            there.iter().enumerate().map(element).collect()
        };
        let query_elements: Vec<F32<'_>> = load(q);
        let seen = if self.causal { (t - s) + query + 1 } else { t };
        let seen = k.selp(seen, 0, k.lt(row, rows));
        let (begin, end) = if self.parts {
            let keys = k.parameter::<u32>("part_keys");
            let begin = k.ctaid_y() * keys;
            (begin, k.min(begin + keys, seen))
        } else {
            (k.constant(0u32), seen)
        };

        let greatest = k.variable(f32::NEG_INFINITY);
        let total = k.variable(0.0f32);
        let sums: Vec<Variable<'_, f32>> = (0..self.share).map(|_| k.variable(0.0f32)).collect();
        k.for_(begin, end, 1, |j| {
            let at = k.mul_wide(j, d);
            let (key, value) = (load(keys.index_wide(at)), load(values.index_wide(at)));
            let products: Vec<F32<'_>> = query_elements.iter().zip(key).map(|(&q, key)| q * key).collect();
            let Some(product) = team::tree(products, |a, b| a + b) else { return };
            let score = team::combine(k, WARP, lane, product, |a, b| a + b) * scale;
            let before = greatest.get();
            let now = maximum(self.target, before, score);
            // If all scores are -∞, nothing is subtracted: the weights are 0, and so is their sum.
            let base = k.selp(0.0, now, k.eq(now, f32::NEG_INFINITY));
            let (kept, weight) = (math::exp(before - base), math::exp(score - base));
            greatest.set(now);
            total.set(k.fma(total, kept, weight));
            for (sum, value) in sums.iter().zip(value) {
                sum.set(k.fma(weight, value, sum.get() * kept));
            }
        });
        if self.parts {
            // For each part the sums of all rows, then for each part their reference scores and the totals of the
            // weights.
            let row = k.mad_wide(k.ctaid_y(), rows, k.cvt_u64(row));
            let parts = k.mul_wide(k.nctaid_y(), rows);
            let at = output.index_wide(row * k.cvt_u64(d)).index(lane);
            for (e, (sum, &there)) in sums.iter().zip(&there).enumerate() {
                k.st_if(there, at.offset((e as u32 * WARP) as i32), sum.get());
            }
            let weights = output.index_wide(parts * k.cvt_u64(d) + row * 2u64);
            let first = k.and(k.eq(lane, 0), there[0]);
            k.if_(first, || k.st_v(weights, [greatest.get(), total.get()]));
            return;
        }
        let none = k.eq(seen, 0);
        for (e, (sum, &there)) in sums.iter().zip(&there).enumerate() {
            let mean = k.selp(0.0, sum.get() / total.get(), none);
            k.st_if(there, out.offset((e as u32 * WARP) as i32), mean);
        }
    }
}

impl Kernel for Attention {
    fn name(&self) -> String {
        let (causal, parts) = (if self.causal { "_causal" } else { "" }, if self.parts { "_parts" } else { "" });
        format!("attention{causal}_rows{}{parts}", self.share * WARP)
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
