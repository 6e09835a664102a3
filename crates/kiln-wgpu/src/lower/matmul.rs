//! Products of matrices: tiles for large ones, rows or columns at the speed of memory where one operand is a few vectors.

use kiln_ir::op::{Matmul, Matvec, StridedCopy};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_shaders::{MATMUL, MATMUL_COOPERATIVE, MATVEC_COLUMNS, MATVEC_ROWS, SPLIT_SUM, WORKGROUP, number};

use super::cast::cast;
use super::pieces::{fits, pieces};
use super::shape::strided;
use super::transpose::{transpose, turned};
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice};

/// A stack of products `C = A B`, row-major; C is contiguous.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    pub(super) a: Slice,
    pub(super) b: Slice,
    pub(super) c: Slice,
    /// The floating-point types of A and B.
    pub(super) types: [DType; 2],
    /// A is stored as `[k, m]`.
    pub(super) transpose_a: bool,
    /// B is stored as `[n, k]`.
    pub(super) transpose_b: bool,
    pub(super) batch: usize,
    /// All products of the stack share one A.
    pub(super) shared_a: bool,
    /// All products of the stack share one B.
    pub(super) shared_b: bool,
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) n: usize,
}

/// Maximum number of vectors for the kernels for few vectors.
const FEW: usize = 8;

/// Rows of a tile of cooperative matrices, as in the source.
const COOPERATIVE_ROWS: usize = 128;

/// About twice as many workgroups as a large device runs at once.
const PLENTY: usize = 256;

/// The tiles of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Side of a tile.
    pub(super) tile: usize,
    /// Rows and columns of tiles.
    pub(super) down: usize,
    pub(super) across: usize,
    /// Parts of k.
    pub(super) splits: usize,
    /// Products in each part except the last: a multiple of the depth of a slice.
    pub(super) slice: usize,
}

impl Tiling {
    /// The tile with the least work that gives enough workgroups; splits k if there would be too few.
    pub(super) fn of(batch: usize, m: usize, k: usize, n: usize) -> Self {
        let tiles = |tile: usize| batch * m.div_ceil(tile) * n.div_ceil(tile);
        // A part of k must be long enough to justify its tile of C, which is written and read once more.
        let parts = |tile: usize| (k / (8 * tile)).clamp(1, 64);
        // 200 workgroups are as good as PLENTY. Small tiles waste less at the edges, but each of their products takes
        // longer.
        let work = |&(tile, pace): &(usize, usize)| tiles(tile) * tile * tile * pace;
        let enough = [(128, 10), (64, 14), (32, 22)].into_iter().filter(|&(tile, _)| tiles(tile) * parts(tile) >= 200);
        let tile = enough.min_by_key(work).map_or(32, |(tile, _)| tile);
        let depth = 2048 / tile;
        let splits = PLENTY.div_ceil(tiles(tile).max(1)).min(parts(tile));
        let slice = if tiles(tile) >= 200 { k } else { k.div_ceil(splits) }.next_multiple_of(depth).max(depth);
        let splits = k.div_ceil(slice).max(1);
        Self { tile, down: m.div_ceil(tile), across: n.div_ceil(tile), splits, slice }
    }

    pub(super) fn groups(&self, batch: usize) -> usize {
        self.down * self.across * self.splits * batch
    }

    /// Whether k ends inside a slice of a tile.
    pub(super) fn edge(&self, k: usize) -> bool {
        k == 0 || !k.is_multiple_of(2048 / self.tile)
    }
}

/// The destination of results: the result itself, or memory for `splits` partial results that are summed afterwards.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    pub(super) at: Slice,
    /// Elements between parts.
    pub(super) stride: usize,
    splits: usize,
    result: Slice,
}

impl Parts {
    pub(super) fn new(plan: &mut Lowering<'_>, result: Slice, elements: usize, splits: usize) -> Result<Self> {
        let stride = elements.next_multiple_of(4);
        let at = match splits {
            1 => result,
            _ => plan.scratch(TensorType::f32(Shape::new(&[splits, stride])?)).into(),
        };
        Ok(Self { at, stride, splits, result })
    }

    /// Sums the parts, and adds the addend to the sum. (Without parts the operation has to do that itself.)
    pub(super) fn finish(&self, plan: &mut Lowering<'_>, addend: Option<Slice>) {
        if self.splits > 1 {
            let vectors = self.stride / 4;
            // The invocations that share a vector.
            let share = if self.splits <= 4 { 1 } else { 8 };
            let groups = vectors.div_ceil(WORKGROUP as usize / share);
            let params = [vectors.into(), self.splits.into(), groups.into()];
            let code = Code::Kernel(SPLIT_SUM, vec![("SHARE", share as u32), ("ADDS", addend.is_some().into())]);
            // The parts take the place of an addend.
            let buffers = vec![self.at, addend.unwrap_or(self.at), self.result];
            plan.dispatch(code, buffers, &params, Grid::groups_of(groups));
        }
    }
}

impl Product {
    /// Adds the dispatches; C has at least one element.
    pub(super) fn lower(mut self, plan: &mut Lowering<'_>) -> Result<()> {
        if self.shared_b && !self.transpose_a && !self.shared_a {
            // The rows of a stack of A form one matrix.
            (self.m, self.batch) = (self.m * self.batch, 1);
        }
        if (self.batch, self.m) == (1, 1) {
            // A single row is also a column: then the other matrix is the one whose rows can be split.
            (self.a, self.b, self.m, self.n) = (self.b, self.a, self.n, 1);
            (self.transpose_a, self.transpose_b) = (!self.transpose_b, true);
            (self.shared_a, self.shared_b) = (false, false);
            self.types.reverse();
        }
        let Self { a, b, c, batch, m, k, n, .. } = self;
        if batch == 1 {
            return self.one(plan);
        }
        let [size_a, size_b] = self.types.map(DType::size);
        let of = |shared: bool, bytes: usize| if shared { 0 } else { bytes };
        let bytes = [of(self.shared_a, size_a * m * k), of(self.shared_b, size_b * k * n), 4 * m * n];
        for piece in pieces(&plan.target.limits, batch, &bytes) {
            let at = |slice: Slice, bytes: usize| if bytes == 0 { slice } else { piece.of(slice, bytes) };
            let part = Self { a: at(a, bytes[0]), b: at(b, bytes[1]), c: at(c, bytes[2]), batch: piece.len, ..self };
            plan.part(|plan| if piece.len == 1 { part.one(plan) } else { part.whole(plan) })?;
        }
        Ok(())
    }

    /// One product. If a binding cannot hold A or C, their rows are split. If it cannot hold B, the transposed product
    /// is computed, so that the split rows are those of B, and the result is transposed.
    fn one(mut self, plan: &mut Lowering<'_>) -> Result<()> {
        let Self { m, k, n, c, .. } = self;
        let limits = &plan.target.limits;
        if self.transpose_a && !(fits(limits, self.types[0].size() * m * k) && fits(limits, 4 * m * n)) {
            self.a = wide(plan, self.a, self.types[0], m * k)?;
            self.a = turned(plan, self.a, 1, k, m)?;
            (self.types[0], self.transpose_a) = (DType::F32, false);
        }
        let [size_a, size_b] = self.types.map(DType::size);
        if !self.transpose_a {
            let pieces = pieces(limits, m, &[size_a * k, 4 * n]);
            if pieces.len() > 1 {
                for piece in pieces {
                    let part = Self { a: piece.of(self.a, size_a * k), c: piece.of(c, 4 * n), m: piece.len, ..self };
                    plan.part(|plan| part.one(plan))?;
                }
                return Ok(());
            }
        }
        // Rows of B, unless it is stored as columns, have been cast to f32.
        let row = if self.transpose_b { size_b } else { 4 } * k;
        if fits(limits, size_b * k * n) || pieces(limits, n, &[row, 4 * m]).len() == 1 {
            return self.whole(plan);
        }
        if !self.transpose_b {
            self.b = wide(plan, self.b, self.types[1], k * n)?;
            self.b = turned(plan, self.b, 1, k, n)?;
            self.types[1] = DType::F32;
        }
        let back: Slice = plan.scratch(TensorType::f32(Shape::new(&[n, m])?)).into();
        let swapped = Self {
            a: self.b,
            b: self.a,
            c: back,
            types: [self.types[1], self.types[0]],
            transpose_a: false,
            transpose_b: !self.transpose_a,
            m: n,
            n: m,
            ..self
        };
        swapped.one(plan)?;
        transpose(plan, back, c, 1, n, m);
        Ok(())
    }

    /// The same for operands that fit a binding.
    fn whole(self, plan: &mut Lowering<'_>) -> Result<()> {
        let (few_rows, few_columns) = (self.m <= FEW, self.n <= FEW);
        if few_rows && (self.n >= self.m || !few_columns) {
            let copies = self.copies(self.shared_a);
            let v = wide(plan, self.a, self.types[0], copies * self.m * self.k)?;
            let v = rows_of(plan, v, self.transpose_a, copies, self.k, self.m)?;
            let vectors = Vectors { at: v, count: self.m, shared: self.shared_a };
            let matrix = Factor { at: self.b, dtype: self.types[1], shared: self.shared_b, length: self.n };
            self.few(plan, vectors, matrix, self.transpose_b, (1, self.n))
        } else if few_columns {
            let copies = self.copies(self.shared_b);
            let v = wide(plan, self.b, self.types[1], copies * self.k * self.n)?;
            let v = rows_of(plan, v, !self.transpose_b, copies, self.k, self.n)?;
            let vectors = Vectors { at: v, count: self.n, shared: self.shared_b };
            let matrix = Factor { at: self.a, dtype: self.types[0], shared: self.shared_a, length: self.m };
            self.few(plan, vectors, matrix, !self.transpose_a, (self.n, 1))
        } else {
            self.tiled(plan)
        }
    }

    fn copies(&self, shared: bool) -> usize {
        if shared { 1 } else { self.batch }
    }

    fn tiled(&self, plan: &mut Lowering<'_>) -> Result<()> {
        let &Self { m, k, n, batch, .. } = self;
        if let Some(columns) = self.cooperative(plan) {
            self.through_cooperative_matrices(plan, columns);
            return Ok(());
        }
        let tiling = Tiling::of(batch, m, k, n);
        let rows = [if self.transpose_a { m } else { k }, if self.transpose_b { k } else { n }, n];
        let vectors = rows.iter().all(|length| length.is_multiple_of(4));
        let constants = [
            ("TILE", tiling.tile as u32),
            ("TRANSPOSE_A", self.transpose_a.into()),
            ("TRANSPOSE_B", self.transpose_b.into()),
            ("VECTORS", vectors.into()),
            ("EDGE", (vectors && tiling.edge(k)).into()),
            ("STORED_A", number(self.types[0])),
            ("STORED_B", number(self.types[1])),
        ];
        let parts = Parts::new(plan, self.c, batch * m * n, tiling.splits)?;
        let total = tiling.groups(batch);
        let params = [
            m.into(),
            n.into(),
            k.into(),
            if self.shared_a { 0 } else { m * k }.into(),
            if self.shared_b { 0 } else { k * n }.into(),
            tiling.down.into(),
            tiling.across.into(),
            tiling.splits.into(),
            tiling.slice.into(),
            parts.stride.into(),
            total.into(),
        ];
        let code = Code::Kernel(MATMUL, constants.to_vec());
        plan.dispatch(code, vec![self.a, self.b, parts.at], &params, Grid::groups_of(total));
        parts.finish(plan, None);
        Ok(())
    }

    /// The width of the tiles for cooperative matrices, if they support the product: f16 with rows of whole vectors. A
    /// product with few tiles and long sums is better split.
    fn cooperative(&self, plan: &Lowering<'_>) -> Option<usize> {
        let &Self { m, k, n, batch, .. } = self;
        let rows = [if self.transpose_a { m } else { k }, if self.transpose_b { k } else { n }];
        let fits = rows.iter().all(|length| length.is_multiple_of(4)) && k > 0;
        let tiles = |columns: usize| batch * m.div_ceil(COOPERATIVE_ROWS) * n.div_ceil(columns);
        let enough = tiles(128) >= 64 || k <= 4096;
        let usable = plan.target.is_cooperative() && self.types == [DType::F16; 2] && fits && enough;
        usable.then_some(if tiles(256) >= PLENTY { 256 } else { 128 })
    }

    fn through_cooperative_matrices(&self, plan: &mut Lowering<'_>, columns: usize) {
        let &Self { m, k, n, batch, .. } = self;
        let (down, across) = (m.div_ceil(COOPERATIVE_ROWS), n.div_ceil(columns));
        let total = batch * down * across;
        // The k of a slice, as in the source.
        let depth = if columns == 256 { 32 } else { 64 };
        let constants = [
            ("COLUMNS", columns as u32),
            ("TRANSPOSE_A", self.transpose_a.into()),
            ("TRANSPOSE_B", self.transpose_b.into()),
            ("EDGE", (!k.is_multiple_of(depth)).into()),
        ];
        let params = [
            m.into(),
            n.into(),
            k.into(),
            if self.shared_a { 0 } else { m * k }.into(),
            if self.shared_b { 0 } else { k * n }.into(),
            down.into(),
            across.into(),
            total.into(),
        ];
        let code = Code::Kernel(MATMUL_COOPERATIVE, constants.to_vec());
        plan.dispatch(code, vec![self.a, self.b, self.c], &params, Grid::groups_of(total));
    }

    /// Products of the rows of a matrix (of its columns, unless `by_rows`) with few vectors. `strides` are the
    /// distances in C between rows of the matrix and between vectors.
    fn few(
        &self,
        plan: &mut Lowering<'_>,
        vectors: Vectors,
        Factor { at: x, dtype, shared, length }: Factor,
        by_rows: bool,
        strides: (usize, usize),
    ) -> Result<()> {
        let &Self { k, batch, .. } = self;
        let batches = [
            if shared { 0 } else { length * k }.into(),
            if vectors.shared { 0 } else { vectors.count * k }.into(),
            (self.m * self.n).into(),
        ];
        let extents = [length.into(), k.into(), vectors.count.into()];
        let strides = [strides.0.into(), strides.1.into()];
        let count = [1, 4, FEW].into_iter().find(|&count| vectors.count <= count).unwrap_or(FEW) as u32;
        if by_rows {
            let lanes = lanes(batch, length, k);
            let across = length.div_ceil(4 * WORKGROUP as usize / lanes);
            let total = batch * across;
            let constants = [
                ("COUNT", count),
                ("LANES", lanes as u32),
                ("VECTORS", k.is_multiple_of(4).into()),
                ("STORED", number(dtype)),
            ];
            let params = [&extents[..], &batches, &strides, &[across.into(), total.into()]].concat();
            let code = Code::Kernel(MATVEC_ROWS, constants.to_vec());
            plan.dispatch(code, vec![x, vectors.at, self.c], &params, Grid::groups_of(total));
            return Ok(());
        }
        let across = length.div_ceil(128);
        // Eight invocations share a column. The chain of each has at most 256 products, and at least 16.
        let wanted = (2 * PLENTY).div_ceil(across * batch).clamp(1, 64).max(k.div_ceil(2048));
        let slice = k.div_ceil(wanted).next_multiple_of(32).max(128);
        let splits = k.div_ceil(slice).max(1);
        let total = across * splits * batch;
        let parts = Parts::new(plan, self.c, batch * self.m * self.n, splits)?;
        let vectorised = k.is_multiple_of(4) && length.is_multiple_of(4);
        let constants = [("COUNT", count), ("VECTORS", vectorised.into()), ("STORED", number(dtype))];
        let cut = [across.into(), splits.into(), slice.into(), parts.stride.into(), total.into()];
        let params = [&extents[..], &batches, &strides, &cut].concat();
        let code = Code::Kernel(MATVEC_COLUMNS, constants.to_vec());
        plan.dispatch(code, vec![x, vectors.at, parts.at], &params, Grid::groups_of(total));
        parts.finish(plan, None);
        Ok(())
    }
}

/// A few vectors, each contiguous.
struct Vectors {
    at: Slice,
    count: usize,
    shared: bool,
}

/// The matrix that few vectors are multiplied with: this many rows, or columns.
struct Factor {
    at: Slice,
    dtype: DType,
    shared: bool,
    length: usize,
}

/// The elements as f32: a copy if they have another type.
fn wide(plan: &mut Lowering<'_>, at: Slice, dtype: DType, elements: usize) -> Result<Slice> {
    if dtype == DType::F32 || elements == 0 {
        return Ok(at);
    }
    let copy = plan.scratch(TensorType::f32(Shape::new(&[elements])?)).into();
    cast(plan, [at, copy], [dtype, DType::F32], elements);
    Ok(copy)
}

/// The number of invocations that share a row of `k` elements: as few as give enough workgroups and chains of at most 256
/// products.
pub(super) fn lanes(batch: usize, rows: usize, k: usize) -> usize {
    let groups = |lanes: usize| batch * rows.div_ceil(4 * WORKGROUP as usize / lanes);
    let enough = |lanes: usize| groups(lanes) >= 2 * PLENTY || 8 * lanes > k;
    [8, 32, 64, 128].into_iter().find(|&lanes| enough(lanes) && k <= 256 * lanes).unwrap_or(256)
}

/// The operand as vectors of `k` elements: a transposed copy if it is stored as `[k, count]`.
fn rows_of(
    plan: &mut Lowering<'_>,
    at: Slice,
    transposed: bool,
    copies: usize,
    k: usize,
    count: usize,
) -> Result<Slice> {
    if transposed && count > 1 && k > 0 { turned(plan, at, copies, k, count) } else { Ok(at) }
}

/// A stack with a matrix for each product: itself, or a copy that repeats its matrices.
fn repeated(plan: &mut Lowering<'_>, stack: Value, batch: usize, repeat: Option<StridedCopy>) -> Result<Value> {
    let Some(repeat) = repeat else { return Ok(stack) };
    let matrix = &stack.ty.shape.dims()[stack.ty.shape.rank() - 2..];
    let shape = Shape::new(&[batch, matrix[0], matrix[1]])?;
    let copy = plan.scratch(TensorType { dtype: stack.ty.dtype, shape });
    strided(plan, &repeat, stack, copy)?;
    Ok(copy)
}

impl Lower<GpuDevice> for Matmul {
    const READS: &'static [DType] = &[DType::F16, DType::Bf16];

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let e = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        let [repeat_a, repeat_b] = self.repeats(&inputs[0].ty, &inputs[1].ty)?;
        let a = repeated(plan, inputs[0], e.batch, repeat_a)?;
        let b = repeated(plan, inputs[1], e.batch, repeat_b)?;
        let product = Product {
            a: a.into(),
            b: b.into(),
            c: outputs[0].into(),
            types: [inputs[0].ty.dtype, inputs[1].ty.dtype],
            transpose_a: self.transpose_a,
            transpose_b: self.transpose_b,
            batch: e.batch,
            shared_a: e.shared_a && e.batch > 1,
            shared_b: e.shared_b,
            m: e.m,
            k: e.k,
            n: e.n,
        };
        product.lower(plan)
    }
}

impl Lower<GpuDevice> for Matvec {
    const READS: &'static [DType] = &[DType::F16, DType::Bf16];

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (k, m) = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        let product = Product {
            a: inputs[0].into(),
            b: inputs[1].into(),
            c: outputs[0].into(),
            types: [inputs[0].ty.dtype, inputs[1].ty.dtype],
            transpose_a: self.transpose,
            transpose_b: false,
            batch: 1,
            shared_a: false,
            shared_b: false,
            m,
            k,
            n: 1,
        };
        product.lower(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fill_a_large_device() {
        let cut = |batch, m, k, n| {
            let tiling = Tiling::of(batch, m, k, n);
            assert!(tiling.slice.is_multiple_of(2048 / tiling.tile) && (tiling.splits - 1) * tiling.slice < k.max(1));
            (tiling.tile, tiling.splits)
        };
        assert_eq!(cut(1, 4096, 4096, 4096), (128, 1));
        assert_eq!(cut(1, 1024, 1024, 1024), (64, 1));
        assert_eq!(cut(1, 512, 512, 512), (32, 1));
        // Few tiles and long sums.
        assert_eq!(cut(1, 256, 100_000, 256), (128, 64));
        assert_eq!(cut(1, 64, 4096, 64), (32, 16));
        assert_eq!(cut(1, 16, 16, 16), (32, 1));
        assert_eq!(cut(300, 100, 0, 100), (128, 1));
        // Checks that each case of `tests/variants.rs` selects its intended variant.
        for (batch, m, n, tile) in [(50, 250, 251, 128), (50, 256, 252, 128), (52, 121, 122, 64), (52, 124, 128, 64)] {
            assert_eq!(cut(batch, m, 24, n), (tile, 1));
        }
        assert_eq!(cut(1, 130, 18, 13 * 1024), (128, 1));
        assert_eq!(cut(1, 66, 18, 7 * 961), (64, 1));
    }
}
