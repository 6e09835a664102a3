//! Attention without its matrix of weights.
//!
//! Query rows that share keys, those of all heads of a group, are one list, cut into blocks. For a block, the keys are
//! walked in blocks too, with the running maximum, sum and mean of an online softmax. Scores are computed transposed, a
//! key a row and queries across the lanes: keys are broadcast from where they stand, the maximum and the sum over keys
//! need no horizontal steps, and the weights are a column-major matrix for the product with the values. Where so few
//! queries share keys that they would leave lanes empty, as when a text is generated, scores are inner products instead.

mod adjust;
mod block;
mod few;
mod more;

use kiln_ir::op::Attention;
use kiln_ir::{Data, DataMut, Error, Operand, Result};

use crate::cast::to_f32;
use crate::scratch;
use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};
use crate::vector::dispatch;
use block::Block;
use more::{Mask, More};

/// Queries of a block, which are the lanes of a row of scores.
const QUERIES: usize = 64;

/// Keys of a block. Together with the queries, the scores and values of a block fit the second-level cache.
const KEYS: usize = 128;

/// Flops below which one thread is faster.
const PARALLEL: usize = 1_000_000;

impl Execute for Attention {
    const READS_STORED: bool = true;

    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let e = self.extents(&inputs[0].shape(), &inputs[1].shape(), &inputs[2].shape())?;
        let places = self.places();
        let lengths = places.lengths.map(|place| inputs[place].data().u32());
        // Checked before anything is written.
        self.check_lengths(lengths.unwrap_or(&[]), e.t)?;
        let out = outputs[0].f32();
        if out.is_empty() || e.t == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let wide;
        let q = match inputs[0].data() {
            Data::F32(q) => q,
            narrow => {
                let mut q = kiln_ir::zeros(inputs[0].shape().numel())?;
                // SAFETY: a `Simd` exists only for an available instruction set.
                unsafe { to_f32(simd.isa(), narrow, &mut q) };
                wide = q;
                &wide[..]
            }
        };
        let (k, v) = (inputs[1].data(), inputs[2].data());
        let positions = places.positions.map(|place| inputs[place].data().u32());
        let [sinks, slopes] = [places.sinks, places.slopes].map(|place| place.map(|place| inputs[place].data()));
        let mask = places.mask.map(|place| (inputs[place].data(), e.mask_strides(&inputs[place].shape())));
        // The index of the key head for a query head.
        let of_head = |head: usize| {
            let (sequence, first) = (head / e.kv_heads, head % e.kv_heads * e.group);
            More {
                op: *self,
                // One length for all sequences, or one for each.
                length: lengths.map_or(e.t, |lengths| lengths[sequence.min(lengths.len() - 1)] as usize),
                positions: positions.map(|positions| &positions[sequence * e.s % positions.len().max(1)..][..e.s]),
                mask: mask.map(|(data, [a, b, c, d])| Mask {
                    data,
                    first: sequence * a + first * b,
                    strides: [b, c, d],
                }),
                sinks: sinks.map(|sinks| of_heads(sinks, first, e.group)),
                slopes: slopes.map(|slopes| of_heads(slopes, first, e.group)),
            }
        };
        let work = out.len().saturating_mul(e.t).saturating_mul(4);
        let threads = if work < PARALLEL { 1 } else { simd.threads() };
        let rows = e.group * e.s;
        let blocks = rows.div_ceil(QUERIES);
        let lanes = simd.isa().lanes();
        let (depth, deep) = (e.d.next_multiple_of(lanes), e.dv.next_multiple_of(lanes));
        // Rows longer than those of any model may need more scratch memory than exists.
        let wide = if rows > lanes / 2 { QUERIES } else { rows };
        let of_rows = |depth: usize| depth.checked_mul(wide).ok_or(Error::OutOfMemory { bytes: usize::MAX });
        let of_stored = |data: Data<'_>, width: usize| match data {
            Data::F32(_) => Ok(0),
            _ => width.checked_mul(KEYS).ok_or(Error::OutOfMemory { bytes: usize::MAX }),
        };
        let lengths = [
            of_rows(depth)?,
            KEYS * QUERIES,
            of_rows(deep)?,
            KEYS * 2 * lanes,
            3 * QUERIES,
            of_stored(k, e.d)?,
            of_stored(v, e.dv)?,
        ];
        scratch::room(&lengths, threads)?;
        let bytes = [k, v].map(|data| data.bytes() / (e.batch * e.kv_heads));
        // Other types are cast one block at a time, in order.
        let far = matches!((k, v), (Data::F32(k), Data::F32(_)) if k.len() >= few::FAR);
        let out = Shared::new(out.as_mut_ptr());
        threads::for_each(e.batch * e.kv_heads * blocks, threads, |part| {
            // The last blocks of a causal head see the most keys, so they start first.
            let (head, first) = (part / blocks, (blocks - 1 - part % blocks) * QUERIES);
            let n = QUERIES.min(rows - first);
            let [k, v] =
                [(k, bytes[0]), (v, bytes[1])].map(|(data, bytes)| data.part(head * bytes..(head + 1) * bytes));
            scratch::slices(lengths, |[queries, scores, sums, values, state, wide_k, wide_v]| {
                let at = head * rows + first;
                let block = Block {
                    isa: simd.isa(),
                    e,
                    more: of_head(head),
                    scale: self.scale(e.d),
                    first,
                    n,
                    far,
                    q: &q[at * e.d..(at + n) * e.d],
                    k,
                    v,
                    // SAFETY: the rows of this block, which no other part writes.
                    out: unsafe { std::slice::from_raw_parts_mut(out.get().add(at * e.dv), n * e.dv) },
                    queries,
                    scores,
                    sums,
                    wide: [wide_k, wide_v],
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

/// The elements of `heads` heads, given one element for each head.
fn of_heads(data: Data<'_>, first: usize, heads: usize) -> Data<'_> {
    let size = data.dtype().size();
    data.part(first * size..(first + heads) * size)
}
