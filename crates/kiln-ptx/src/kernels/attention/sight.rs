//! The number of keys that each query sees, computed from positions of queries and numbers of keys that are operands.

use kiln_ir::Result;
use kiln_ir::op::{AttentionExtents, AttentionOperands};

use super::flash::MOST;
use crate::kernel::{MAX_GRID_X, MAX_GRID_YZ, extent};
use crate::kernels::team;
use crate::{Argument, Builder, Kernel, Launch, PtxKernel, Running};

/// Rows of a block, and of each stored minimum and maximum.
const ROWS: u32 = Running::ROWS;

/// Counts the keys that causal queries see: `min(length, position + 1)`, or without positions `min(length, length - s + i + 1)` of
/// query `i` of `s`. For each sequence it writes the counts of its `s` queries. Queries that share a head of keys are rows of one
/// matrix, head by head, cut in blocks of 64 from the last row on; before the counts of all sequences it writes for each block of
/// each sequence the least and the greatest count. Rows before the first of a block that is not whole count as the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CausalSight;

impl CausalSight {
    /// Bytes of what it writes for matrices of `blocks` blocks.
    pub fn bytes(extents: &AttentionExtents, blocks: usize) -> Option<usize> {
        let of_sequence = extents.s.checked_add(blocks.checked_mul(2)?)?;
        of_sequence.checked_mul(extents.batch)?.checked_mul(4)
    }

    /// The launch for matrices of `blocks` blocks and this many positions and lengths. Buffers: positions, lengths, result, and the
    /// report of lengths beyond the keys, a word of 64 bits as that of a gather; any buffer may take the place of what is missing.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1024 queries or keys, or 65 535 sequences.
    pub fn launch(
        &self,
        extents: &AttentionExtents,
        blocks: usize,
        given: &AttentionOperands<usize>,
    ) -> Result<Launch> {
        let AttentionExtents { batch, group, s, t, .. } = *extents;
        let count = |count: Option<usize>| extent("positions or lengths", count.unwrap_or(0), MOST);
        let words = [
            extent("queries", group.saturating_mul(s), MOST)?,
            extent("queries", s, MOST)?,
            extent("keys", t, MOST)?,
            count(given.positions)?,
            count(given.lengths)?,
        ];
        let sequences = extent("sequences", batch, MAX_GRID_YZ)?;
        let blocks = extent("blocks", blocks, MAX_GRID_X)?;
        let arguments = (0..4).map(Argument::Buffer).chain(words.map(Argument::U32)).collect();
        Ok(Launch { grid: [blocks, sequences, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [positions, lengths, out] = ["positions", "lengths", "out"].map(|name| k.buffer::<u32>(name));
        let report = k.buffer::<u64>("report");
        let [rows, s, t, positions_given, lengths_given] =
            ["rows", "s", "t", "positions_given", "lengths_given"].map(|name| k.parameter::<u32>(name));
        let (thread, block, sequence) = (k.tid_x(), k.ctaid_x(), k.ctaid_y());
        let blocks = k.nctaid_x();
        let length = k.variable(t);
        k.if_(k.gt(lengths_given, 0), || {
            let at = k.min(sequence, lengths_given - 1u32);
            let given = k.ld(lengths.index(at));
            k.if_(k.and(k.gt(given, t), k.eq(thread, 0)), || k.red_min(report, k.join(given, at)));
            length.set(k.min(given, t));
        });
        // The last block ends with the last row.
        let row = block * ROWS + thread + rows - blocks * ROWS;
        let row = k.selp(0u32, row, k.lt(k.bits_s32(row), 0));
        let i = row % s;
        // Zero if the sequence has fewer keys than queries.
        let seen = k.variable(k.max(length.get() + i + 1u32, s) - s);
        k.if_(k.gt(positions_given, 0), || {
            let at = k.ld(positions.index((sequence * s + i) % positions_given));
            seen.set(k.max(at, at + 1u32));
        });
        let seen = k.min(seen, length);
        let counts = out.index_wide(k.mul_wide(k.nctaid_y(), blocks) * 2u64);
        k.st_if(k.lt(row, s), counts.index_wide(k.mad_wide(sequence, s, k.cvt_u64(i))), seen);
        // Both bounds in one number: the minimum as its difference from the largest word.
        let both = k.join(k.constant(u32::MAX) - seen, seen);
        let larger = |a, b| {
            let ([a, b], [c, d]) = (k.split(a), k.split(b));
            k.join(k.max(a, c), k.max(b, d))
        };
        let [missing, most] = k.split(team::combine(k, ROWS, thread, both, larger));
        let bounds = out.index_wide(k.mad_wide(sequence, blocks, k.cvt_u64(block)) * 2u64);
        k.if_(k.eq(thread, 0), || k.st_v(bounds, [k.constant(u32::MAX) - missing, most]));
    }
}

impl Kernel for CausalSight {
    fn name(&self) -> String {
        "attention_causal_sight".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [ROWS, 1, 1], |k| self.write(k))
    }
}
