//! Attention without its matrix of weights.
//!
//! Query rows that share keys, those of all heads of a group, are one list, cut into blocks. For a block, the keys are
//! walked in blocks too, with the running maximum, sum and mean of an online softmax. Scores are computed transposed, a
//! key a row and queries across the lanes: keys are broadcast from where they stand, the maximum and the sum over keys
//! need no horizontal steps, and the weights are a column-major matrix for the product with the values. Where so few
//! queries share keys that they would leave lanes empty, as when a text is generated, scores are inner products instead.

mod block;
mod few;

use kiln_ir::op::Attention;
use kiln_ir::{DataMut, Error, Operand, Result};

use crate::scratch;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::dispatch;
use block::Block;

/// Queries of a block: lanes of a row of scores.
const QUERIES: usize = 64;

/// Keys of a block. With the queries, scores and values of a block they fit the second-level cache.
const KEYS: usize = 128;

/// Flops below which one thread is faster.
const PARALLEL: usize = 1_000_000;

impl Execute for Attention {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let e = self.extents(&inputs[0].shape(), &inputs[1].shape(), &inputs[2].shape())?;
        let (q, k, v) = (f32s(inputs, 0), f32s(inputs, 1), f32s(inputs, 2));
        let out = outputs[0].f32();
        if out.is_empty() || e.t == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let work = out.len().saturating_mul(e.t).saturating_mul(4);
        let threads = if work < PARALLEL { 1 } else { simd.threads() };
        let rows = e.group * e.s;
        let blocks = rows.div_ceil(QUERIES);
        let lanes = simd.isa().lanes();
        let depth = e.d.next_multiple_of(lanes);
        // Rows that are longer than any model's may need more than there is.
        let wide = if rows > lanes / 2 { QUERIES } else { rows };
        let of_rows = depth.checked_mul(wide).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
        let lengths = [of_rows, KEYS * QUERIES, of_rows, KEYS * 2 * lanes, 3 * QUERIES];
        scratch::room(&lengths, threads)?;
        let out = Shared::new(out.as_mut_ptr());
        threads::for_each(e.batch * e.kv_heads * blocks, threads, |part| {
            // The last blocks of a causal head see the most keys: they start first.
            let (head, first) = (part / blocks, (blocks - 1 - part % blocks) * QUERIES);
            let n = QUERIES.min(rows - first);
            scratch::slices(lengths, |[queries, scores, sums, values, state]| {
                let at = (head * rows + first) * e.d;
                let block = Block {
                    isa: simd.isa(),
                    e,
                    causal: self.causal,
                    scale: self.scale(e.d),
                    first,
                    n,
                    far: k.len() >= few::FAR,
                    q: &q[at..at + n * e.d],
                    k: &k[head * e.t * e.d..][..e.t * e.d],
                    v: &v[head * e.t * e.d..][..e.t * e.d],
                    // SAFETY: the rows of this block, which no other part writes.
                    out: unsafe { std::slice::from_raw_parts_mut(out.get().add(at), n * e.d) },
                    queries,
                    scores,
                    sums,
                    values,
                    state,
                };
                // SAFETY: a `Simd` exists only for an available instruction set.
                unsafe { dispatch(simd.isa(), block) };
            });
        });
        Ok(())
    }
}
