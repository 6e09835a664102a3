//! Attention: in blocks of queries, or for a few queries at the speed of memory; keys are split where there are few blocks.

use kiln_ir::op::{Attention, AttentionExtents};
use kiln_ir::{Result, Shape, TensorType};
use kiln_shaders::{ATTENTION, ATTENTION_FEW, ATTENTION_MERGE, WORKGROUP};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice};

/// Queries of a block, and keys, as in the source.
const BLOCK: usize = 64;

/// Workgroups that fill a large device about twice.
const PLENTY: usize = 256;

/// The most queries that are few.
const FEW: usize = 8;

impl Lower<GpuDevice> for Attention {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let e = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape, &inputs[2].ty.shape)?;
        let all_seen = e.s == 1 || !self.causal;
        let bytes = [4 * e.group * e.s * e.d, 4 * e.t * e.d];
        for piece in pieces(&plan.target.limits, e.batch * e.kv_heads, &bytes) {
            let keys = [inputs[1].at, inputs[2].at].map(|at| piece.of(at, bytes[1]));
            let buffers = [piece.of(inputs[0].at, bytes[0]), keys[0], keys[1], piece.of(outputs[0].at, bytes[0])];
            let e = AttentionExtents { batch: 1, kv_heads: piece.len, ..e };
            if e.group * e.s <= FEW && all_seen && e.t > 0 && e.d.is_multiple_of(4) && e.d <= 256 {
                few(plan, &e, self.scale(e.d), buffers)?;
            } else {
                blocks(plan, &e, self, buffers)?;
            }
        }
        Ok(())
    }
}

/// Where a kernel writes: the result, or parts of it with the statistics of each query behind them.
struct Parts {
    at: Slice,
    /// Queries of all heads.
    rows: usize,
    d: usize,
    splits: usize,
}

impl Parts {
    fn new(plan: &mut Lowering<'_>, out: Slice, rows: usize, d: usize, splits: usize) -> Result<Self> {
        let at = match splits {
            1 => out,
            _ => plan.scratch(TensorType::f32(Shape::new(&[splits, rows, d + 2])?)).at.into(),
        };
        Ok(Self { at, rows, d, splits })
    }

    /// Elements of a part.
    fn stride(&self) -> usize {
        self.rows * self.d
    }

    fn finish(&self, plan: &mut Lowering<'_>, out: Slice) {
        if self.splits > 1 {
            let statistics = self.splits * self.stride();
            let params = [self.d.into(), self.splits.into(), self.rows.into(), statistics.into()];
            let code = Code::Kernel(ATTENTION_MERGE, vec![("WIDTH", 1), ("TEAM", WORKGROUP)]);
            plan.dispatch(code, vec![self.at, out], &params, Grid::groups_of(self.rows));
        }
    }
}

fn few(plan: &mut Lowering<'_>, e: &AttentionExtents, scale: f32, buffers: [Slice; 4]) -> Result<()> {
    let [q, k, v, out] = buffers;
    let (units, rows) = (e.batch * e.kv_heads, e.group * e.s);
    let held = [1, 4, FEW].into_iter().find(|&held| rows <= held).unwrap_or(FEW);
    let longest = if held == FEW { 128 } else { 256 };
    let slice = (units * e.t).div_ceil(2 * PLENTY).next_multiple_of(32).min(longest);
    let splits = e.t.div_ceil(slice);
    let lanes = [8, 16, 32].into_iter().find(|lanes| e.d <= 4 * lanes).unwrap_or(64);
    let parts = Parts::new(plan, out, units * rows, e.d, splits)?;
    let total = units * splits;
    let params = [
        rows.into(),
        e.t.into(),
        e.d.into(),
        scale.into(),
        splits.into(),
        slice.into(),
        parts.stride().into(),
        (splits * parts.stride()).into(),
        total.into(),
    ];
    let constants = [("ROWS", held as u32), ("LANES", lanes as u32)];
    let code = Code::Kernel(ATTENTION_FEW, constants.to_vec());
    plan.dispatch(code, vec![q, k, v, parts.at], &params, Grid::groups_of(total));
    parts.finish(plan, out);
    Ok(())
}

fn blocks(plan: &mut Lowering<'_>, e: &AttentionExtents, op: &Attention, buffers: [Slice; 4]) -> Result<()> {
    let [q, k, v, out] = buffers;
    // Short heads that share keys are one block of queries.
    let together = if e.s < BLOCK { e.group } else { 1 };
    let (units, rows, sharing) = (e.batch * e.kv_heads * e.group / together, together * e.s, e.group / together);
    let chunk = if e.d <= 64 { 64 } else { 128 };
    let (blocks, chunks) = (rows.div_ceil(BLOCK), e.d.div_ceil(chunk));
    let groups = units * blocks * chunks;
    // A part has at least four blocks of keys.
    let wanted = if groups < PLENTY / 2 { PLENTY.div_ceil(groups).clamp(1, (e.t / (4 * BLOCK)).max(1)) } else { 1 };
    let slice = e.t.div_ceil(wanted).next_multiple_of(BLOCK).max(BLOCK);
    let splits = e.t.div_ceil(slice).max(1);
    let parts = Parts::new(plan, out, units * rows, e.d, splits)?;
    let total = groups * splits;
    let params = [
        rows.into(),
        e.s.into(),
        e.t.into(),
        e.d.into(),
        op.scale(e.d).into(),
        u32::from(op.causal).into(),
        sharing.into(),
        blocks.into(),
        chunks.into(),
        splits.into(),
        slice.into(),
        parts.stride().into(),
        (splits * parts.stride()).into(),
        total.into(),
    ];
    let constants = [("TILE", 64), ("CHUNK", chunk as u32), ("VECTORS", e.d.is_multiple_of(4).into())];
    let code = Code::Kernel(ATTENTION, constants.to_vec());
    plan.dispatch(code, vec![q, k, v, parts.at], &params, Grid::groups_of(total));
    parts.finish(plan, out);
    Ok(())
}
