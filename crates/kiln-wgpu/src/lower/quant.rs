use std::ops::RangeInclusive;

use kiln_device::lower;
use kiln_ir::graph::NormLimits;
use kiln_ir::op::{Dequantize, Elementwise, Op, QuantMatmul, Quantize, RmsNorm};
use kiln_ir::{QuantFormat, Result};
use kiln_shaders::Access;

use super::matmul::Parts;
use super::pieces::{Piece, pieces};
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Dispatch, Grid, Slice, Target, Word};

/// Number of parts of 32 elements.
fn parts(elements: usize) -> usize {
    elements / 32
}

impl Lower<GpuDevice> for Quantize {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (len, bytes) = (self.format.block_len(), self.format.block_bytes());
        // The sources add this to products; -0 adds nothing.
        let zero: Word = (-0.0f32).into();
        for piece in pieces(&plan.target.limits, inputs[0].ty.shape.numel() / len, &[4 * len, bytes]) {
            let words: Word = (piece.len * bytes).div_ceil(4).into();
            let pairs = piece.len.div_ceil(2);
            // Sixteen blocks of 32 elements per workgroup.
            let whole = |kernel| {
                let groups = piece.len.div_ceil(16);
                let params = [piece.len.into(), words, groups.into(), zero];
                (kernel, vec![kiln_shaders::constant(self.format)], params.to_vec(), groups)
            };
            let (kernel, constants, params, groups) = match self.format {
                QuantFormat::Q8_0 => {
                    let groups = piece.len.div_ceil(32);
                    let params = [(piece.len * len / 4).into(), words, groups.into(), zero];
                    (kiln_shaders::QUANTIZE_ROUNDED, Vec::new(), params.to_vec(), groups)
                }
                QuantFormat::Mxfp4 => {
                    // One block per invocation.
                    let groups = piece.len.div_ceil(kiln_shaders::WORKGROUP as usize);
                    let params = [piece.len.into(), words, groups.into(), zero];
                    (kiln_shaders::QUANTIZE_MXFP4, Vec::new(), params.to_vec(), groups)
                }
                QuantFormat::Q4_0 | QuantFormat::Q5_0 | QuantFormat::Iq4Nl => whole(kiln_shaders::QUANTIZE_SCALED),
                QuantFormat::Q4_1 | QuantFormat::Q5_1 => whole(kiln_shaders::QUANTIZE_SHIFTED),
                QuantFormat::Q2K | QuantFormat::Q4K | QuantFormat::Q5K => {
                    // Sixteen sub-blocks per workgroup.
                    let groups = (piece.len * len / self.format.layout().group).div_ceil(16);
                    let params = [piece.len.into(), groups.into(), zero];
                    let constants = vec![kiln_shaders::constant(self.format)];
                    (kiln_shaders::QUANTIZE_AFFINE, constants, params.to_vec(), groups)
                }
                QuantFormat::Q3K | QuantFormat::Q6K | QuantFormat::Iq4Xs => {
                    let params = [piece.len.into(), words, pairs.into(), zero];
                    (
                        kiln_shaders::QUANTIZE_SYMMETRIC,
                        vec![kiln_shaders::constant(self.format)],
                        params.to_vec(),
                        pairs,
                    )
                }
            };
            let buffers = vec![piece.of(inputs[0], 4 * len), piece.of(outputs[0], bytes)];
            plan.dispatch(Code::Kernel(kernel, constants), buffers, &params, Grid::groups_of(groups));
        }
        Ok(())
    }
}

impl Lower<GpuDevice> for Dequantize {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (len, bytes) = (self.format.block_len(), self.format.block_bytes());
        for piece in pieces(&plan.target.limits, outputs[0].ty.shape.numel() / len, &[4 * len, bytes]) {
            let parts = parts(piece.len * len);
            let kernel = Code::Kernel(kiln_shaders::DEQUANTIZE, vec![kiln_shaders::constant(self.format)]);
            let buffers = vec![piece.of(inputs[0], bytes), piece.of(outputs[0], 4 * len)];
            plan.dispatch(kernel, buffers, &[parts.into()], Grid::invocations(4 * parts));
        }
        Ok(())
    }
}

/// The kernel for a product with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Lanes share rows of the weights: rows of x at a time, and number of lanes.
    Rows { rows: usize, lanes: usize },
    /// Tiles of 16 `tall` rows and 64 columns.
    Tiles { tall: usize },
    /// Tiles of cooperative matrices of integers.
    Integers(Integers),
    /// Tiles of cooperative matrices.
    Cooperative(Cooperative),
}

impl Way {
    /// Whether its kernel adds something to the product.
    fn adds(self) -> bool {
        matches!(self, Self::Rows { .. } | Self::Integers(_))
    }
}

/// The kernel on a device for `m` rows of x and `n` of the weights with `k` elements in each. `splits` says whether k may be divided.
fn way_on(target: &Target, format: QuantFormat, [m, n, k]: [usize; 3], splits: bool) -> Way {
    if let Some(integers) = Integers::new(target, format, [m, n, k], splits) {
        return Way::Integers(integers);
    }
    Cooperative::new(target, [m, n, k], splits).map_or_else(|| way(m, n, k), Way::Cooperative)
}

/// A product through cooperative matrices, of formats of blocks of 256 elements whose weights are integers times a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Integers {
    /// Rows and columns of a tile, as in the source.
    tile: [usize; 2],
    /// Parts of k.
    splits: usize,
    /// Blocks in each part except the last.
    slice: usize,
}

impl Integers {
    /// Minimum rows for which it takes less time than lanes, and the maximum where it has no fewer passes than large tiles, which then take
    /// less time. Measured on an H200 with a model of 8 billion weights.
    const ROWS: RangeInclusive<usize> = 9..=64;

    /// The division of a product of `m` rows of x and `n` of the weights with `k` elements; `None` if another kernel takes less time.
    /// `splits` says whether k may be divided.
    fn new(target: &Target, format: QuantFormat, [m, n, k]: [usize; 3], splits: bool) -> Option<Self> {
        // Those whose products of step and integer need a second matrix have less memory for lines.
        let is_double = match format {
            QuantFormat::Q2K | QuantFormat::Q3K | QuantFormat::Q4K | QuantFormat::Q5K => false,
            QuantFormat::Q6K => true,
            _ => return None,
        };
        let has_fewer_passes = !is_double && !target.rounds();
        let is_of_rows = Self::ROWS.contains(&m) || has_fewer_passes && m > *Self::ROWS.end();
        if !target.is_cooperative() || !is_of_rows || n < WIDE || k == 0 {
            return None;
        }
        let rows = m.next_power_of_two().clamp(16, 64);
        let columns = if is_double || rows == 16 { 64 } else { 128 };
        let whole = Self { tile: [rows, columns], splits: 1, slice: k / format.block_len() };
        let [down, across] = whole.tiles(m, n);
        // A multiprocessor takes two of the narrow tiles at once, and one of the others, because its workgroups share the
        // 50 to 57 KB of workgroup memory (measured through Vulkan on an H200). More tiles than that wait for others.
        let enough = if columns == 64 { BUSY } else { BUSY / 2 };
        let parts = if splits { (enough / (down * across)).clamp(1, whole.slice) } else { 1 };
        let slice = whole.slice.div_ceil(parts);
        Some(Self { splits: whole.slice.div_ceil(slice), slice, ..whole })
    }

    /// The tiles of a product, down and across.
    fn tiles(&self, m: usize, n: usize) -> [usize; 2] {
        [m.div_ceil(self.tile[0]), n.div_ceil(self.tile[1])]
    }
}

/// A product through cooperative matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cooperative {
    /// Products of f16 for each product: three if both operands are a number and its rest, one if they are rounded.
    passes: usize,
    /// Parts of k.
    splits: usize,
    /// Slices in each part except the last.
    slice: usize,
}

/// Maximum rows of x for which lanes take less time than tiles. Measured on an H200 with a model of 8 billion weights.
const FEW: usize = 32;
/// Minimum rows of weights for which tiles of cooperative matrices take less time than those of f32. Measured on an H100.
const WIDE: usize = 256;

impl Cooperative {
    /// Columns of a tile, as in the source.
    const COLUMNS: usize = 128;

    /// The division of a product of `m` rows of x and `n` of the weights with `k` elements; `None` if tiles of f32 take
    /// less time. `splits` says whether k may be divided.
    fn new(target: &Target, [m, n, k]: [usize; 3], splits: bool) -> Option<Self> {
        if !target.is_cooperative() || m <= FEW || n < WIDE || k == 0 {
            return None;
        }
        let passes = if target.rounds() { 1 } else { 3 };
        let whole = Self { passes, splits: 1, slice: parts(k) };
        let [down, across] = whole.tiles(m, n);
        // A multiprocessor takes two of the small tiles at once. A part of k must be long enough to justify its tile of
        // results, which is written and read once more.
        let enough = if passes == 1 { BUSY / 2 } else { BUSY };
        let wanted = if splits { enough.div_ceil(down * across).min(parts(k) / 16).max(1) } else { 1 };
        let slice = parts(k).div_ceil(wanted);
        Some(Self { splits: parts(k).div_ceil(slice), slice, ..whole })
    }

    /// The tiles of a product, down and across: a single pass leaves memory for twice as many rows.
    fn tiles(&self, m: usize, n: usize) -> [usize; 2] {
        [m.div_ceil(if self.passes == 1 { 256 } else { 128 }), n.div_ceil(Self::COLUMNS)]
    }
}

/// Workgroups that keep a large device busy.
const BUSY: usize = 256;

/// The kernel of every device for `m` rows of x, `n` of the weights and `k` elements in each.
fn way(m: usize, n: usize, k: usize) -> Way {
    let tiles = |tall: usize| m.div_ceil(16 * tall) * n.div_ceil(64);
    if m > FEW {
        // Tall tiles read the weights less often, but only many of them use the whole device. If there are few tiles of
        // any height, lanes are faster, because many share a row.
        let fits = |tall: usize| m > 8 * tall && tiles(tall) >= BUSY;
        if let Some(tall) = [8, 4].into_iter().find(|&tall| fits(tall)) {
            return Way::Tiles { tall };
        }
        if tiles(2) >= BUSY / 2 {
            return Way::Tiles { tall: 2 };
        }
    }
    // Each row of the weights is decoded once for a tile of x: fewer rows of x take more work, but more workgroups.
    let of = |rows: usize| (rows, lanes(rows, m.div_ceil(rows), n, k));
    let is_busy = |&(rows, lanes): &(usize, usize)| m.div_ceil(rows) * n.div_ceil(1024 / lanes) >= BUSY / 2;
    let most = m.clamp(1, 8).next_power_of_two();
    let (rows, lanes) =
        [8, 4].into_iter().filter(|&rows| rows <= most).map(of).find(is_busy).unwrap_or(of(most.min(2)));
    Way::Rows { rows, lanes }
}

/// The number of lanes that share rows of the weights, `n` of `k` elements, if `down` groups of `rows` rows of x are
/// multiplied with them.
pub(super) fn lanes(rows: usize, down: usize, n: usize, k: usize) -> usize {
    // A piece of x in workgroup memory serves at most this many lanes.
    let most = parts(k).min(128 / rows);
    // A workgroup has four rows of the weights for each slot of lanes: more lanes give more workgroups, which lay out x more often.
    let groups = |lanes: usize| down * n.div_ceil(1024 / lanes);
    // Measured for one row on an H200 with Q4_K and Q6_K: 32 are faster than 16 and 64 from 11 264 rows of weights on, and 64 than 16, 32
    // and 128 for up to 6144, also where 1024 rows join products with more.
    let one = if groups(32) < BUSY + BUSY / 4 { 64 } else { 32 };
    let few = |lanes: usize| if rows == 1 { lanes < one } else { lanes < 32 || groups(lanes) < 3 * BUSY };
    let mut lanes = 8;
    while 2 * lanes <= most && few(lanes) {
        lanes *= 2;
    }
    lanes
}

impl Lower<GpuDevice> for QuantMatmul {
    /// A third operand is added to the result: the device requests
    /// [`FusionLimits::addends`](kiln_ir::graph::FusionLimits::addends).
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (x, w) = (inputs[0].ty.shape, inputs[1].ty.shape);
        let (m, n, k) = (x.rows(), w.rows(), w.columns());
        let product = Product { format: self.format, n, blocks: k / self.format.block_len() };
        let row_bytes = product.blocks * self.format.block_bytes();
        let target = plan.target;
        // What `split` writes takes up to 4.25 k bytes a row, of whole sixteens of rows: below 5 k from 85 rows on.
        let planes = if target.is_cooperative() { 5 * k } else { 4 * k };
        let rows_of_x = pieces(&target.limits, m, &[4 * k, planes, 4 * n]);
        let of_weights = pieces(&target.limits, n, &[row_bytes]);
        let way =
            |rows: &Piece, columns: &Piece| way_on(target, self.format, [rows.len, columns.len, k], columns.len == n);
        if let Some(&addend) = inputs.get(2)
            && rows_of_x.iter().any(|rows| of_weights.iter().any(|columns| !way(rows, columns).adds()))
        {
            let product = plan.scratch(outputs[0].ty);
            self.lower(plan, &inputs[..2], &[product])?;
            return Elementwise::add().lower(plan, &[product, addend], outputs);
        }
        for rows in &rows_of_x {
            let (x, out) = (rows.of(inputs[0], 4 * k), rows.of(outputs[0], 4 * n));
            let addend = inputs.get(2).map(|addend| rows.of(*addend, 4 * n));
            for columns in &of_weights {
                let (here, first) = ([rows.len, columns.len, k], columns.start);
                let buffers = [x, columns.of(inputs[1], row_bytes), out];
                match way(rows, columns) {
                    Way::Cooperative(way) => {
                        plan.part(|plan| product.cooperative(plan, way, here, first, buffers))?;
                    }
                    Way::Integers(way) => {
                        plan.part(|plan| product.integers(plan, way, here, first, buffers, addend))?;
                    }
                    Way::Rows { rows, lanes } => {
                        let more = addend.map_or(More::Nothing, More::Addend);
                        product.of_rows(plan, [rows, lanes], here, first, buffers, more);
                    }
                    Way::Tiles { tall } => product.in_tiles(plan, tall, here, first, buffers),
                }
            }
        }
        Ok(())
    }
}

/// Products of one row normalise it themselves. Every workgroup then repeats that, which takes less time than a dispatch of its own:
/// measured on an H200 with models of 1.1 and of 8 billion weights.
pub(crate) const NORMS: NormLimits =
    NormLimits { rows: 1, formats: &QuantFormat::ALL, many: usize::MAX, multiples: &[] };

/// A product of rows that are normalised first, in one step if [`NORMS`] includes it.
pub(crate) fn lower_normed(
    norm: &RmsNorm,
    op: &Op,
    plan: &mut Lowering<'_>,
    inputs: &[Value],
    outputs: &[Value],
) -> Result<()> {
    let (&Op::QuantMatmul(QuantMatmul { format }), &[x, weights, gamma]) = (op, inputs) else {
        return lower::normed(norm, op, plan, inputs, outputs);
    };
    let (m, n, k) = (x.ty.shape.rows(), weights.ty.shape.rows(), weights.ty.shape.columns());
    if m != 1 {
        return lower::normed(norm, op, plan, inputs, outputs);
    }
    let product = Product { format, n, blocks: k / format.block_len() };
    let row_bytes = product.blocks * format.block_bytes();
    for columns in &pieces(&plan.target.limits, n, &[row_bytes]) {
        let lanes = lanes(1, 1, columns.len, k);
        let buffers = [x.into(), columns.of(weights, row_bytes), outputs[0].into()];
        let more = More::Norm(norm.eps.get(), gamma.into());
        product.of_rows(plan, [1, lanes], [1, columns.len, k], columns.start, buffers, more);
    }
    Ok(())
}

/// Maximum rows of x whose products are computed in one step with the gate that takes two of them.
pub(crate) const GATED_ROWS: usize = 1;

/// A gate and the two products of one row that it takes, in one step if each tensor of weights fits a binding.
pub(crate) fn lower_gated(
    gate: &Elementwise,
    norm: Option<&RmsNorm>,
    op: &Op,
    plan: &mut Lowering<'_>,
    inputs: &[Value],
    outputs: &[Value],
) -> Result<()> {
    let (&Op::QuantMatmul(QuantMatmul { format }), &[x, weights, ups, ref gamma @ ..]) = (op, inputs) else {
        return lower::gated(gate, norm, op, plan, inputs, outputs);
    };
    let (m, n, k) = (x.ty.shape.rows(), weights.ty.shape.rows(), weights.ty.shape.columns());
    let product = Product { format, n, blocks: k / format.block_len() };
    if m != 1 || pieces(&plan.target.limits, n, &[product.blocks * format.block_bytes()]).len() != 1 {
        return lower::gated(gate, norm, op, plan, inputs, outputs);
    }
    let lanes = lanes(1, 1, 2 * n, k);
    let (normed, eps) = norm.map_or((0, 0.0), |norm| (1, norm.eps.get()));
    let [format, gate] = [kiln_shaders::constant(format), kiln_shaders::constant(gate.kind())];
    let constants = vec![format, ("ROWS", 1), ("LANES", lanes as u32), ("NORMED", normed), ("GATED", 1), gate];
    let code = Code::Kernel(kiln_shaders::QUANT_GATED, constants);
    // x takes the place of gamma.
    let gamma = gamma.first().unwrap_or(&x);
    let buffers = [x, weights, ups, outputs[0], *gamma].map(Slice::from).to_vec();
    // A slot of lanes has two rows of each tensor.
    product.dispatch(plan, code, buffers, [1, n, 0], [1, n.div_ceil(512 / lanes)], &[eps.into()]);
    Ok(())
}

/// Whether one of the last steps is this one, and no step after it writes what it reads or has written. Products of the same
/// rows then share it.
fn is_done(steps: &[Dispatch], split: &Dispatch) -> bool {
    // Products of the same rows are at most this many steps apart.
    const LAST: usize = 16;
    let is_same =
        |step: &Dispatch| (&step.code, &step.buffers, &step.params) == (&split.code, &split.buffers, &split.params);
    let is_of_split = |buffer: &Slice| split.buffers.iter().any(|other| other.at == buffer.at);
    let writes = |step: &Dispatch| {
        // Heads are read from texts, so only those of steps that use one of the buffers.
        let uses = step.buffers.iter().any(is_of_split);
        uses && step.code.head().bindings.iter().zip(&step.buffers).any(|(binding, buffer)| {
            let written = binding.access == Access::Write;
            written && is_of_split(buffer)
        })
    };
    steps.iter().rev().take(LAST).find(|step| is_same(step) || writes(step)).is_some_and(is_same)
}

/// An operation that is fused with a product of few rows.
#[derive(Debug, Clone, Copy)]
enum More {
    Nothing,
    /// Adds this to the product.
    Addend(Slice),
    /// Normalises the row first, with this eps and gamma.
    Norm(f32, Slice),
}

/// A product with the weights of a tensor: their format, its rows, and the blocks of a row.
#[derive(Debug, Clone, Copy)]
struct Product {
    format: QuantFormat,
    n: usize,
    blocks: usize,
}

impl Product {
    /// Adds the product of `m` rows of x with `n` rows of weights from `first` on: lanes share rows of the weights.
    fn of_rows(
        &self,
        plan: &mut Lowering<'_>,
        [rows, lanes]: [usize; 2],
        [m, n, _]: [usize; 3],
        first: usize,
        [x, w, out]: [Slice; 3],
        more: More,
    ) {
        let format = kiln_shaders::constant(self.format);
        // Any binding takes the place of one that is not used.
        let (adds, normed, more, eps) = match more {
            More::Nothing => (0, 0, x, 0.0),
            More::Addend(addend) => (1, 0, addend, 0.0),
            More::Norm(eps, gamma) => (0, 1, gamma, eps),
        };
        let constants =
            vec![format, ("ROWS", rows as u32), ("LANES", lanes as u32), ("ADDS", adds), ("NORMED", normed)];
        let code = Code::Kernel(kiln_shaders::QUANT_MATVEC, constants);
        let tiles = [m.div_ceil(rows), n.div_ceil(1024 / lanes)];
        self.dispatch(plan, code, vec![x, w, out, more], [m, n, first], tiles, &[eps.into()]);
    }

    /// The same in tiles of f32.
    fn in_tiles(&self, plan: &mut Lowering<'_>, tall: usize, [m, n, _]: [usize; 3], first: usize, buffers: [Slice; 3]) {
        let constants = vec![kiln_shaders::constant(self.format), ("TALL", tall as u32)];
        let tiles = [m.div_ceil(16 * tall), n.div_ceil(64)];
        let code = Code::Kernel(kiln_shaders::QUANT_MATMUL, constants);
        self.dispatch(plan, code, buffers.to_vec(), [m, n, first], tiles, &[]);
    }

    fn dispatch(
        &self,
        plan: &mut Lowering<'_>,
        code: Code,
        buffers: Vec<Slice>,
        [m, n, first]: [usize; 3],
        [down, across]: [usize; 2],
        further: &[Word],
    ) {
        let total = down * across;
        let params = [m, n, self.blocks, self.n, first, down, total].map(Word::from);
        plan.dispatch(code, buffers, &[&params, further].concat(), Grid::groups_of(total));
    }

    /// The same through cooperative matrices of integers.
    fn integers(
        &self,
        plan: &mut Lowering<'_>,
        way: Integers,
        [m, n, k]: [usize; 3],
        first: usize,
        [x, w, out]: [Slice; 3],
        addend: Option<Slice>,
    ) -> Result<()> {
        let Integers { tile: [rows, _], splits, slice } = way;
        // Numbers, rests and sums of sixteens.
        let [planes, units] = split(plan, x, [m, k], 2);
        let parts = Parts::new(plan, out, m * n, splits)?;
        let [down, across] = way.tiles(m, n);
        let total = splits * down * across;
        let params = [m, n, self.blocks, self.n, first, down, across, slice, parts.stride, total].map(Word::from);
        // Partial products take no addend; their sum does.
        let added = addend.filter(|_| splits == 1);
        let constants =
            vec![kiln_shaders::constant(self.format), ("ROWS", rows as u32), ("ADDS", added.is_some().into())];
        let code = Code::Kernel(kiln_shaders::QUANT_COOPERATIVE_INTEGERS, constants);
        // x takes the place of an addend.
        let buffers = vec![x, planes, units, w, added.unwrap_or(x), parts.at];
        plan.dispatch(code, buffers, &params, Grid::groups_of(total));
        parts.finish(plan, addend);
        Ok(())
    }

    /// The same through cooperative matrices.
    fn cooperative(
        &self,
        plan: &mut Lowering<'_>,
        way: Cooperative,
        [m, n, k]: [usize; 3],
        first: usize,
        [x, w, out]: [Slice; 3],
    ) -> Result<()> {
        let Cooperative { passes, splits, slice } = way;
        let [planes, units] = split(plan, x, [m, k], passes);
        let parts = Parts::new(plan, out, m * n, splits)?;
        let [down, across] = way.tiles(m, n);
        let total = splits * down * across;
        let params = [m, n, self.blocks, self.n, first, down, across, slice, parts.stride, total].map(Word::from);
        let constants = vec![kiln_shaders::constant(self.format), ("PASSES", passes as u32)];
        let code = Code::Kernel(kiln_shaders::QUANT_COOPERATIVE, constants);
        plan.dispatch(code, vec![x, planes, units, w, parts.at], &params, Grid::groups_of(total));
        parts.finish(plan, None);
        Ok(())
    }
}

/// Writes `m` rows of `k` elements as numbers of f16 for as many passes, and the unit of each row, unless that is done.
fn split(plan: &mut Lowering<'_>, x: Slice, [m, k]: [usize; 2], passes: usize) -> [Slice; 2] {
    // Numbers, with more than one pass their rests, and with two the sums of sixteens, of whole sixteens of rows.
    let bytes = match passes {
        1 => m * 2 * k,
        2 => m.next_multiple_of(16) * (4 * k + k / 4),
        _ => m * 4 * k,
    };
    let [planes, units] = [bytes, 4 * m].map(|bytes| Slice::new(plan.scratch_bytes(bytes), bytes));
    let split = Dispatch {
        code: Code::Kernel(kiln_shaders::QUANT_SPLIT, vec![("PASSES", passes as u32)]),
        buffers: vec![x, planes, units],
        params: [m, k / 4, m].map(|n| Word::from(n).0).to_vec(),
        groups: Grid::groups_of(m).folded(plan.target.limits.max_compute_workgroups_per_dimension),
    };
    if !is_done(plan.steps(), &split) {
        plan.push(split);
    }
    [planes, units]
}

#[cfg(all(test, not(target_arch = "wasm32")))] // waiting for devices needs threads
mod tests {
    use kiln_device::Plan;
    use kiln_ir::graph::Graph;
    use kiln_ir::op::Op;
    use kiln_ir::{Precision, Record, Shape, TensorType};

    use super::super::small_bindings::run;
    use super::*;
    use crate::{AdapterChoice, GpuDevice};

    #[test]
    fn few_rows_go_to_lanes_and_many_to_tiles() {
        // More lanes for fewer weights.
        assert_eq!(way(1, 28_672, 8192), Way::Rows { rows: 1, lanes: 32 });
        assert_eq!(way(1, 6144, 4096), Way::Rows { rows: 1, lanes: 64 });
        assert_eq!(way(1, 64, 14_336), Way::Rows { rows: 1, lanes: 64 });
        assert_eq!(way(1, 64, 256), Way::Rows { rows: 1, lanes: 8 });
        assert_eq!(way(1, 1, 0), Way::Rows { rows: 1, lanes: 8 });
        assert_eq!(way(1, 128_256, 4096), Way::Rows { rows: 1, lanes: 32 });
        // No more lanes than parts in a piece of x.
        assert_eq!(way(2, 4096, 4096), Way::Rows { rows: 2, lanes: 64 });
        assert_eq!(way(3, 4096, 4096), Way::Rows { rows: 4, lanes: 32 });
        // Fewer rows at a time if that keeps more of the device busy.
        assert_eq!(way(8, 14_336, 4096), Way::Rows { rows: 8, lanes: 16 });
        assert_eq!(way(8, 4096, 4096), Way::Rows { rows: 4, lanes: 32 });
        assert_eq!(way(8, 1024, 4096), Way::Rows { rows: 2, lanes: 64 });
        assert_eq!(way(32, 4096, 4096), Way::Rows { rows: 8, lanes: 16 });
        // Of the test of every size.
        assert_eq!(way(30, 500, 1280), Way::Rows { rows: 4, lanes: 32 });
        assert_eq!(way(29, 2000, 768), Way::Rows { rows: 8, lanes: 16 });
        // Many rows with few weights use lanes until there are enough tiles.
        assert_eq!(way(33, 1024, 8192), Way::Rows { rows: 4, lanes: 32 });
        assert_eq!(way(33, 4096, 8192), Way::Tiles { tall: 2 });
        assert_eq!(way(64, 28_672, 8192), Way::Tiles { tall: 4 });
        assert_eq!(way(512, 4096, 4096), Way::Tiles { tall: 8 });
        assert_eq!(way(4096, 4096, 4096), Way::Tiles { tall: 8 });
    }

    #[test]
    fn many_rows_go_to_cooperative_matrices_where_a_device_has_them() {
        let limits = wgpu::Limits::default();
        let target = |cooperative, precision| Target { limits: limits.clone(), cooperative, precision };
        let contract = target(true, Precision::Contract);
        let of = |m, n, k| Cooperative::new(&contract, [m, n, k], true);
        let three = |splits, slice| Some(Cooperative { passes: 3, splits, slice });
        assert_eq!(of(512, 14_336, 4096), three(1, 128));
        // Few tiles: k is divided, down to sixteen slices, and the last part is what is left.
        assert_eq!(of(512, 4096, 4096), three(2, 64));
        assert_eq!(of(33, 256, 4096), three(8, 16));
        assert_eq!(of(33, 256, 1056), three(2, 17));
        assert_eq!(Cooperative::new(&contract, [512, 4096, 4096], false), three(1, 128), "pieces of the weights");
        for [m, n, k] in [[FEW, 4096, 4096], [512, 255, 4096], [512, 4096, 0]] {
            assert_eq!(of(m, n, k), None, "{m} x {n} x {k}");
        }
        let few = target(false, Precision::Bf16);
        assert_eq!(Cooperative::new(&few, [512, 4096, 4096], true), None);
        for precision in Precision::ALL {
            let passes = if matches!(precision, Precision::Contract | Precision::Tf32x3) { 3 } else { 1 };
            let way = Cooperative::new(&target(true, precision), [512, 4096, 4096], true);
            assert_eq!(way, Some(Cooperative { passes, splits: 2, slice: 64 }), "{precision}");
        }
    }

    #[test]
    fn formats_with_integers_go_to_their_own_tiles() {
        let target = |precision| Target { limits: wgpu::Limits::default(), cooperative: true, precision };
        let of = |format, size, splits| Integers::new(&target(Precision::Contract), format, size, splits);
        let way = |tile, splits, slice| Some(Integers { tile, splits, slice });
        let small = |splits, slice| way([16, 64], splits, slice);
        let large = |splits, slice| way([64, 128], splits, slice);
        // As many tiles as a large device takes at once.
        assert_eq!(of(QuantFormat::Q4K, [9, 4096, 4096], true), small(4, 4));
        assert_eq!(of(QuantFormat::Q2K, [9, 1024, 4096], true), small(16, 1));
        assert_eq!(of(QuantFormat::Q5K, [17, 4096, 4096], true), way([32, 128], 4, 4));
        assert_eq!(of(QuantFormat::Q3K, [64, 14_336, 4096], true), large(1, 16));
        assert_eq!(of(QuantFormat::Q4K, [40, 1500, 7 * 256], true), large(7, 1));
        assert_eq!(of(QuantFormat::Q4K, [512, 4096, 4096], true), large(1, 16));
        assert_eq!(of(QuantFormat::Q4K, [65, 1500, 7 * 256], true), large(4, 2));
        assert_eq!(of(QuantFormat::Q4K, [16, 4096, 4096], false), small(1, 16), "pieces of the weights");
        // Two matrices of weights.
        assert_eq!(of(QuantFormat::Q6K, [16, 4096, 14_336], true), small(4, 14));
        assert_eq!(of(QuantFormat::Q6K, [32, 4096, 4096], true), way([32, 64], 4, 4));
        assert_eq!(of(QuantFormat::Q6K, [33, 4096, 4096], true), way([64, 64], 4, 4));
        for size in [[8, 4096, 4096], [16, 255, 4096], [16, 4096, 0]] {
            assert_eq!(of(QuantFormat::Q4K, size, true), None, "{size:?}");
        }
        for (format, rows) in [(QuantFormat::Q8_0, 16), (QuantFormat::Q6K, 65)] {
            assert_eq!(of(format, [rows, 4096, 4096], true), None, "{format:?}");
        }
        let rounded = |rows| Integers::new(&target(Precision::Bf16), QuantFormat::Q4K, [rows, 4096, 4096], true);
        assert!(rounded(64).is_some() && rounded(65).is_none());
        let plain = Target { cooperative: false, ..target(Precision::Contract) };
        assert_eq!(Integers::new(&plain, QuantFormat::Q4K, [16, 4096, 4096], true), None);
    }

    #[test]
    fn rows_as_numbers_of_f16_fit_a_binding() {
        let limits = wgpu::Limits { max_storage_buffer_binding_size: 1 << 20, ..wgpu::Limits::default() };
        let target = Target { limits, cooperative: true, precision: Precision::default() };
        let (m, n, k) = (600, 256, 512);
        let mut graph = Graph::new();
        let x = graph.input(TensorType::f32(Shape::new(&[m, k]).unwrap()));
        let format = QuantFormat::Q4K;
        let weights = graph.input(TensorType::blocks(format, Shape::new(&[n, k]).unwrap()).unwrap());
        let product = graph.record(QuantMatmul { format }, &[x, weights]).unwrap();
        let plan = Plan::<GpuDevice>::new(&graph, &[product], &target).unwrap();
        let rows =
            plan.steps.iter().filter(|step| step.code.name() == "quant_split").map(|step| step.params[0] as usize);
        let rows: Vec<usize> = rows.collect();
        assert_eq!(rows.iter().sum::<usize>(), m);
        assert!(rows.iter().all(|rows| rows.next_multiple_of(16) * (4 * k + k / 4) <= 1 << 20), "{rows:?}");
    }

    #[test]
    fn an_addend_is_added_once() {
        let format = QuantFormat::Q4K;
        let target = Target { limits: wgpu::Limits::default(), cooperative: true, precision: Precision::default() };
        // The kernels, with whether they add: k is split for few rows of weights.
        let split = ("quant_split", None);
        for (n, expected) in [
            (256, vec![split, ("quant_cooperative_integers", Some(0)), ("split_sum", Some(1))]),
            (16_384, vec![split, ("quant_cooperative_integers", Some(1))]),
        ] {
            let mut graph = Graph::new();
            let mut input = |dims: &[usize]| graph.input(TensorType::f32(Shape::new(dims).unwrap()));
            let (x, addend) = (input(&[16, 512]), input(&[16, n]));
            let weights = graph.input(TensorType::blocks(format, Shape::new(&[n, 512]).unwrap()).unwrap());
            let product = graph.record(QuantMatmul { format }, &[x, weights]).unwrap();
            let sum = graph.record(Elementwise::add(), &[product, addend]).unwrap();
            let plan = Plan::<GpuDevice>::new(&graph, &[sum], &target).unwrap();
            let adds = |step: &Dispatch| match &step.code {
                Code::Kernel(_, constants) => constants.iter().find(|constant| constant.0 == "ADDS").map(|adds| adds.1),
                _ => None,
            };
            let found: Vec<_> = plan.steps.iter().map(|step| (step.code.name(), adds(step))).collect();
            assert_eq!(found, expected, "{n} rows of weights");
        }
    }

    #[test]
    fn products_of_several_kernels_split_the_same_rows_for_each() {
        let target = Target { limits: wgpu::Limits::default(), cooperative: true, precision: Precision::default() };
        let mut graph = Graph::new();
        let x = graph.input(TensorType::f32(Shape::new(&[40, 256]).unwrap()));
        let square = Shape::new(&[256, 256]).unwrap();
        let products = [QuantFormat::Q4K, QuantFormat::Q8_0, QuantFormat::Q4K].map(|format| {
            let weights = graph.input(TensorType::blocks(format, square).unwrap());
            graph.record(QuantMatmul { format }, &[x, weights]).unwrap()
        });
        let plan = Plan::<GpuDevice>::new(&graph, &products, &target).unwrap();
        let of = |step: &Dispatch| step.code.name();
        let names: Vec<_> = plan.steps.iter().map(of).filter(|&name| name != "split_sum").collect();
        let [split, integers, other] = ["quant_split", "quant_cooperative_integers", "quant_cooperative"];
        assert!(
            [[split, integers, split, other, split, integers].as_slice(), &[split, integers, integers, split, other]]
                .contains(&&names[..]),
            "{names:?}"
        );
    }

    #[test]
    fn products_of_the_same_rows_split_them_once() {
        let format = QuantFormat::Q8_0;
        let mut graph = Graph::new();
        let mut input = |ty| graph.input(ty);
        let square = Shape::new(&[256, 256]).unwrap();
        let x = input(TensorType::f32(square));
        let weights = [(); 3].map(|()| input(TensorType::blocks(format, square).unwrap()));
        let mut product = |x, w| graph.record(QuantMatmul { format }, &[x, w]).unwrap();
        let [first, second] = [product(x, weights[0]), product(x, weights[1])];
        let third = product(first, weights[2]);
        // Its planes take the place of those of x, which is multiplied again when the third product can be added.
        let again = product(x, weights[2]);
        let fourth = graph.record(Elementwise::add(), &[again, third]).unwrap();
        let target = Target { limits: wgpu::Limits::default(), cooperative: true, precision: Precision::default() };
        let plan = Plan::<GpuDevice>::new(&graph, &[second, fourth], &target).unwrap();
        let names: Vec<_> = plan.steps.iter().map(|step| step.code.name()).collect();
        let [split, product] = ["quant_split", "quant_cooperative"];
        assert_eq!(names, [split, product, product, split, product, split, product, "elementwise"]);
    }

    #[test]
    fn norms_are_part_of_the_products_of_one_row() {
        let target = Target { limits: wgpu::Limits::default(), cooperative: false, precision: Precision::default() };
        let names = |rows: usize, reads_norm: bool| {
            let mut graph = Graph::new();
            let [rows, vector, square] = [&[rows, 256][..], &[256], &[256, 256]].map(|dims| Shape::new(dims).unwrap());
            let (x, gamma) = (graph.input(TensorType::f32(rows)), graph.input(TensorType::f32(vector)));
            let normal = graph.record(RmsNorm::new(1e-5), &[x, gamma]).unwrap();
            let products = [QuantFormat::Q4K, QuantFormat::Q6K].map(|format| {
                let weights = graph.input(TensorType::blocks(format, square).unwrap());
                graph.record(QuantMatmul { format }, &[normal, weights]).unwrap()
            });
            let mut wanted = products.to_vec();
            wanted.extend(reads_norm.then_some(normal));
            let plan = Plan::<GpuDevice>::new(&graph, &wanted, &target).unwrap();
            plan.steps.iter().map(|step| step.code.name()).collect::<Vec<_>>()
        };
        assert_eq!(names(1, false), ["quant_matvec"], "both in one dispatch");
        for several in [names(2, false), names(1, true)] {
            assert_eq!(several, ["rms_norm", "quant_matvec"]);
        }
    }

    #[test]
    fn gates_are_part_of_the_products_of_one_row() {
        let names = |rows: usize, most: u64| {
            let limits = wgpu::Limits { max_storage_buffer_binding_size: most, ..wgpu::Limits::default() };
            let target = Target { limits, cooperative: false, precision: Precision::default() };
            let mut graph = Graph::new();
            let [rows, vector, square] = [&[rows, 256][..], &[256], &[256, 256]].map(|dims| Shape::new(dims).unwrap());
            let (x, gamma) = (graph.input(TensorType::f32(rows)), graph.input(TensorType::f32(vector)));
            let normal = graph.record(RmsNorm::new(1e-5), &[x, gamma]).unwrap();
            let format = QuantFormat::Q4K;
            let products = [(); 2].map(|()| {
                let weights = graph.input(TensorType::blocks(format, square).unwrap());
                graph.record(QuantMatmul { format }, &[normal, weights]).unwrap()
            });
            let gate = graph.record(Elementwise::swiglu(), &products).unwrap();
            let plan = Plan::<GpuDevice>::new(&graph, &[gate], &target).unwrap();
            plan.steps.iter().map(|step| step.code.name()).collect::<Vec<_>>()
        };
        assert_eq!(names(1, 1 << 20), ["quant_gated"]);
        assert_eq!(names(2, 1 << 20), ["rms_norm", "quant_matvec", "elementwise"]);
        // Half of the weights fit a binding.
        assert_eq!(names(1, 256 * 144 / 2), [&["quant_matvec"; 4][..], &["elementwise"]].concat());
    }

    #[test]
    fn pieces_are_the_same_as_the_whole() {
        let Ok(device) = GpuDevice::open(&AdapterChoice::Any) else {
            eprintln!("skipped: no device");
            return;
        };
        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        // With KILN_SAMPLE each format takes one operation, and the next format another.
        let step = kiln_device::conformance::sample().min(3);
        for (number, format) in QuantFormat::ALL.into_iter().enumerate() {
            let (rows, k) = (700, 2 * format.block_len());
            let x: Vec<f32> = (0..rows * k).map(|i| (i * i % 1009) as f32 - 500.0).collect();
            let (ty, blocks_ty) =
                (TensorType::f32(shape(&[rows, k])), TensorType::blocks(format, shape(&[rows, k])).unwrap());
            let mut blocks = vec![0; blocks_ty.bytes()];
            format.encode(&x, &mut blocks).unwrap();
            let few = TensorType::f32(shape(&[300, k]));
            let (x, some) = (bytes(&x), bytes(&x[..300 * k]));
            // In the product the result is too large, so its rows are split, and for most formats also the weights.
            let most = 4 * 600 * format.block_len() as u64;
            for (op, inputs, most) in [
                (Op::from(Quantize { format }), vec![(ty, x.clone())], most),
                (Op::from(Dequantize { format }), vec![(blocks_ty, blocks.clone())], most),
                (Op::from(QuantMatmul { format }), vec![(few, some), (blocks_ty, blocks)], 200_000),
            ]
            .into_iter()
            .skip(number % step)
            .step_by(step)
            {
                let (one, whole) = run(&device, op, &inputs, None);
                let (many, cut) = run(&device, op, &inputs, Some(most));
                assert!(one == 1 && many > 1, "{op:?}: {one} and {many} dispatches");
                assert!(cut == whole, "{op:?}");
            }
        }
    }
}
