//! Attention: in blocks of queries, or for a few queries at the speed of memory; keys are split where there are few blocks.

use kiln_ir::op::{Attention, AttentionExtents, Dequantize, Operation, Param};
use kiln_ir::{DType, QuantFormat, Result, Shape, TensorType};
use kiln_shaders::{
    ATTENTION, ATTENTION_FEW, ATTENTION_FEW_MORE, ATTENTION_MERGE, ATTENTION_MERGE_MORE, ATTENTION_MORE,
    ATTENTION_SIGHTS, WORKGROUP, number,
};

use super::cast::widened;
use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};
use kiln_device::Location;

/// Queries and keys of a block, as in the source.
const BLOCK: usize = 64;

/// About twice as many workgroups as a large device runs at once.
const PLENTY: usize = 256;

/// The constant that compiles shared sources for kernels with options.
const MORE: (&str, u32) = ("MORE", 1);

/// Maximum number of queries for the kernel for few queries.
const FEW: usize = 8;

/// Maximum elements of keys and values for the kernel for few queries.
const FEW_ELEMENTS: usize = 256;

impl Lower<GpuDevice> for Attention {
    const READS: &'static [DType] = &[DType::F16, DType::Bf16];

    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let e = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape, &inputs[2].ty.shape)?;
        let empty = outputs[0].ty.shape.is_empty();
        if empty && self.operands.lengths.is_none() {
            return Ok(());
        }
        let q = as_f32(plan, inputs[0])?;
        let few = e.group * e.s <= FEW
            && e.t > 0
            && [e.d, e.dv].iter().all(|d| d.is_multiple_of(4) && (4..=FEW_ELEMENTS).contains(d));
        let plain = self.is_plain() && e.d == e.dv && inputs[1..3].iter().all(|kv| kv.ty.dtype == DType::F32);
        // The kernel for few queries without options is not causal: every query sees all keys.
        let stored = Stored::of([inputs[1].ty.dtype, inputs[2].ty.dtype])
            .filter(|_| few && (!plain || e.s == 1 || !self.causal));
        let more = match stored {
            Some(_) if plain => None,
            None if self.is_plain() => None,
            _ => Some(More::new(plan, self, &e, inputs)?),
        };
        if empty {
            return Ok(());
        }
        let [k, v] = match stored {
            Some(_) => [inputs[1], inputs[2]],
            None => [as_f32(plan, inputs[1])?, as_f32(plan, inputs[2])?],
        };
        let bytes =
            [4 * e.group * e.s * e.d, row_bytes(k, e.d) * e.t, row_bytes(v, e.dv) * e.t, 4 * e.group * e.s * e.dv];
        for piece in pieces(&plan.target.limits, e.batch * e.kv_heads, &bytes) {
            let values = [q, k, v, outputs[0]];
            let [q, k, v, out] = [0, 1, 2, 3].map(|i: usize| piece.of(values[i], bytes[i]));
            let e = AttentionExtents { batch: 1, kv_heads: piece.len, ..e };
            let more = more.as_ref().map(|more| More { first_head: piece.start * e.group, ..*more });
            match (stored, &more) {
                (Some(stored), _) => scan(plan, &e, self.scale(e.d), [q, k, v, out], stored, more.as_ref())?,
                (None, more) => blocks(plan, &e, self, [q, k, v, out], more.as_ref())?,
            }
        }
        Ok(())
    }
}

/// Bytes of a row of keys or values.
fn row_bytes(value: Value, elements: usize) -> usize {
    match value.ty.dtype {
        DType::Blocks(format) => elements / format.block_len() * format.block_bytes(),
        dtype => elements * dtype.size(),
    }
}

/// Casts floats or blocks to f32 for the duration of this step.
fn as_f32(plan: &mut Lowering<'_>, value: Value) -> Result<Value> {
    match value.ty.dtype {
        DType::F32 => Ok(value),
        DType::Blocks(format) => {
            let wide = plan.scratch(TensorType::f32(value.ty.shape));
            if !value.ty.shape.is_empty() {
                Dequantize { format }.lower(plan, &[value], &[wide])?;
            }
            Ok(wide)
        }
        _ => Ok(widened(plan, value)),
    }
}

/// The storage of the keys and values for few queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    Floats(DType),
    Q8_0,
}

impl Stored {
    /// The type that the kernel reads directly: both must have it.
    fn of([k, v]: [DType; 2]) -> Option<Self> {
        match k {
            _ if k != v => None,
            DType::F32 | DType::F16 | DType::Bf16 => Some(Self::Floats(k)),
            DType::Blocks(QuantFormat::Q8_0) => Some(Self::Q8_0),
            _ => None,
        }
    }

    fn constants(self) -> [(&'static str, u32); 2] {
        let (dtype, blocks) = match self {
            Self::Floats(dtype) => (dtype, 0),
            Self::Q8_0 => (DType::F32, 1),
        };
        [("STORED", number(dtype)), ("BLOCKS", blocks)]
    }
}

/// The options of attention: the output of `attention_sights`, a mask, a cap of scores.
#[derive(Debug, Clone, Copy)]
struct More {
    sights: Slice,
    /// The offsets of the sinks and the slopes of heads in the words of `sights`.
    sinks: usize,
    slopes: usize,
    /// The mask, or a placeholder.
    mask: Slice,
    /// 0 without a mask, 1 for an additive mask, 2 for booleans, as in the source.
    mask_kind: u32,
    mask_strides: [usize; 4],
    cap: Option<Param>,
    /// Query heads of a sequence.
    heads: usize,
    /// The first query head of this piece.
    first_head: usize,
}

impl More {
    fn new(plan: &mut Lowering<'_>, op: &Attention, e: &AttentionExtents, inputs: &[Value]) -> Result<Self> {
        let places = op.places();
        let (queries, heads) = (e.batch * e.s, e.kv_heads * e.group);
        // Missing operands are not read: a few bytes that any binding allows take their place.
        let nothing = plan.scratch(TensorType::u32(Shape::new(&[4])?));
        let word = |plan: &mut Lowering<'_>, place: Option<usize>| match place.map(|place| inputs[place]) {
            Some(value) if value.ty.dtype.is_float() => as_f32(plan, value),
            other => Ok(other.unwrap_or(nothing)),
        };
        let given = [places.positions, places.lengths, places.sinks, places.slopes];
        let operands: Vec<Value> = given.into_iter().map(|place| word(plan, place)).collect::<Result<_>>()?;
        let mask = word(plan, places.mask)?;
        let n = queries + heads;
        let mut params: Vec<Word> = [e.s, e.t, queries, heads].map(Word::from).to_vec();
        params.extend([u32::from(op.causal), op.window.unwrap_or(u32::MAX)].map(Word::from));
        params.extend(given.map(|place| Word::from(place.map_or(0, |place| inputs[place].ty.shape.numel()))));
        params.push(n.into());
        // The layers of a model whose operands are the same share them.
        let key: Vec<u32> = params.iter().map(|word| word.0).collect();
        let real: Vec<Location> = operands.iter().map(|operand| operand.at).filter(|&at| at != nothing.at).collect();
        let bytes = 4 * (3 * queries + 2 * heads);
        let (sights, is_new) = plan.kept_bytes("sights", &key, &real, bytes);
        let sights = Slice::new(sights, bytes);
        if is_new {
            let fault = match places.lengths {
                Some(_) => Slice::fault(plan.fault(op.name(), e.t + 1)),
                None => Slice::new(plan.scratch_bytes(16), 16),
            };
            let buffers: Vec<Slice> = operands.into_iter().map(Slice::from).chain([sights, fault]).collect();
            plan.run(ATTENTION_SIGHTS, &[], &buffers, &params, Grid::invocations(n.max(1)));
        }
        let mask_kind = match places.mask {
            None => 0,
            Some(_) if mask.ty.dtype == DType::F32 => 1,
            Some(_) => 2,
        };
        let mask_strides = places.mask.map_or([0; 4], |_| e.mask_strides(&mask.ty.shape));
        Ok(Self {
            sights,
            sinks: 3 * queries,
            slopes: 3 * queries + heads,
            mask: mask.into(),
            mask_kind,
            mask_strides,
            cap: op.soft_cap,
            heads,
            first_head: 0,
        })
    }

    /// The parameters of a kernel that scores.
    fn params(&self) -> Vec<Word> {
        let mut params: Vec<Word> = vec![self.first_head.into(), self.heads.into(), self.slopes.into()];
        params.push(self.cap.map_or(0.0, Param::get).into());
        params.push(self.mask_kind.into());
        params.extend(self.mask_strides.map(Word::from));
        params
    }
}

/// The destination of a kernel: the result, or partial results followed by the statistics of each query.
struct Parts {
    at: Slice,
    /// Queries of all heads.
    rows: usize,
    d: usize,
    splits: usize,
}

impl Parts {
    /// Partial results if keys are split, or if their results must be combined.
    fn new(
        plan: &mut Lowering<'_>,
        out: Slice,
        rows: usize,
        d: usize,
        splits: usize,
        more: Option<&More>,
    ) -> Result<Self> {
        let at = match (splits, more) {
            (1, None) => out,
            _ => plan.scratch(TensorType::f32(Shape::new(&[splits, rows, d + 2])?)).into(),
        };
        Ok(Self { at, rows, d, splits })
    }

    /// Elements of a part.
    fn stride(&self) -> usize {
        self.rows * self.d
    }

    /// Combines the partial results of heads with `s` queries.
    fn finish(&self, plan: &mut Lowering<'_>, out: Slice, s: usize, more: Option<&More>) {
        let statistics = self.splits * self.stride();
        let mut params: Vec<Word> = vec![self.d.into(), self.splits.into(), self.rows.into(), statistics.into()];
        let mut constants = vec![("WIDTH", 1), ("TEAM", WORKGROUP)];
        let (kernel, buffers) = match more {
            Some(more) => {
                constants.push(MORE);
                params.extend([s, more.first_head, more.heads, more.sinks].map(Word::from));
                (ATTENTION_MERGE_MORE, vec![self.at, out, more.sights])
            }
            None if self.splits > 1 => (ATTENTION_MERGE, vec![self.at, out]),
            None => return,
        };
        plan.dispatch(Code::Kernel(kernel, constants), buffers, &params, Grid::groups_of(self.rows));
    }
}

/// Few queries.
fn scan(
    plan: &mut Lowering<'_>,
    e: &AttentionExtents,
    scale: f32,
    buffers: [Slice; 4],
    stored: Stored,
    more: Option<&More>,
) -> Result<()> {
    let [q, k, v, out] = buffers;
    let (units, rows) = (e.batch * e.kv_heads, e.group * e.s);
    let held = [1, 4, FEW].into_iter().find(|&held| rows <= held).unwrap_or(FEW);
    let longest = if held == FEW { 128 } else { 256 };
    let slice = (units * e.t).div_ceil(2 * PLENTY).next_multiple_of(32).min(longest);
    let splits = e.t.div_ceil(slice);
    let lanes = [8, 16, 32].into_iter().find(|lanes| e.dv <= 4 * lanes).unwrap_or(64);
    let parts = Parts::new(plan, out, units * rows, e.dv, splits, more)?;
    let total = units * splits;
    let mut params: Vec<Word> = vec![rows.into(), e.t.into(), e.d.into()];
    if more.is_some() {
        params.extend([e.dv, e.s].map(Word::from));
    }
    params.push(scale.into());
    params.extend([splits, slice, parts.stride(), splits * parts.stride(), total].map(Word::from));
    let mut constants = vec![("ROWS", held as u32), ("LANES", lanes as u32)];
    let mut buffers = vec![q, k, v, parts.at];
    let kernel = match more {
        Some(more) => {
            params.extend(more.params());
            constants.extend(stored.constants());
            constants.push(MORE);
            buffers.extend([more.sights, more.mask]);
            ATTENTION_FEW_MORE
        }
        None => ATTENTION_FEW,
    };
    plan.dispatch(Code::Kernel(kernel, constants), buffers, &params, Grid::groups_of(total));
    parts.finish(plan, out, e.s, more);
    Ok(())
}

fn blocks(
    plan: &mut Lowering<'_>,
    e: &AttentionExtents,
    op: &Attention,
    buffers: [Slice; 4],
    more: Option<&More>,
) -> Result<()> {
    let [q, k, v, out] = buffers;
    // Short heads that share keys form one block of queries.
    let together = if e.s < BLOCK { e.group } else { 1 };
    let (units, rows, sharing) = (e.batch * e.kv_heads * e.group / together, together * e.s, e.group / together);
    let chunk = if e.dv <= 64 { 64 } else { 128 };
    let (blocks, chunks) = (rows.div_ceil(BLOCK), e.dv.div_ceil(chunk));
    let groups = units * blocks * chunks;
    // A part has at least four blocks of keys.
    let wanted = if groups < PLENTY / 2 { PLENTY.div_ceil(groups).clamp(1, (e.t / (4 * BLOCK)).max(1)) } else { 1 };
    let slice = e.t.div_ceil(wanted).next_multiple_of(BLOCK).max(BLOCK);
    let splits = e.t.div_ceil(slice).max(1);
    let parts = Parts::new(plan, out, units * rows, e.dv, splits, more)?;
    let total = groups * splits;
    let mut params: Vec<Word> = [rows, e.s, e.t, e.d, e.dv].map(Word::from).to_vec();
    params.extend([Word::from(op.scale(e.d)), u32::from(op.causal).into()]);
    let layout = [sharing, blocks, chunks, splits, slice, parts.stride(), splits * parts.stride(), total];
    params.extend(layout.map(Word::from));
    let vectors = e.d.is_multiple_of(4) && e.dv.is_multiple_of(4);
    let mut constants = vec![("TILE", 64), ("CHUNK", chunk as u32), ("VECTORS", vectors.into())];
    let mut buffers = vec![q, k, v, parts.at];
    let kernel = match more {
        Some(more) => {
            params.extend(more.params());
            buffers.extend([more.sights, more.mask]);
            constants.push(MORE);
            ATTENTION_MORE
        }
        None => ATTENTION,
    };
    plan.dispatch(Code::Kernel(kernel, constants), buffers, &params, Grid::groups_of(total));
    parts.finish(plan, out, e.s, more);
    Ok(())
}
