use kiln_ir::op::Transpose;
use kiln_ir::{Result, Shape, TensorType};
use kiln_shaders::TRANSPOSE;

use super::pieces::{fits, pieces};
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice};

/// The side of the tile that a workgroup transposes, as in the source.
const TILE: usize = 32;

impl Lower<GpuDevice> for Transpose {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (matrices, rows, columns) = self.extents(&inputs[0].ty.shape)?;
        transpose(plan, inputs[0].into(), outputs[0].into(), matrices, rows, columns);
        Ok(())
    }
}

/// Transposes a stack of `rows x columns` matrices of f32. If one matrix does not fit a binding, rows of it are
/// transposed to columns of the result, as many of both as fit.
pub(super) fn transpose(plan: &mut Lowering<'_>, x: Slice, out: Slice, matrices: usize, rows: usize, columns: usize) {
    let elements = rows * columns;
    for piece in pieces(&plan.target.limits, matrices, &[4 * elements]) {
        let (x, out) = (piece.of(x, 4 * elements), piece.of(out, 4 * elements));
        if piece.len > 1 || fits(&plan.target.limits, 4 * elements) {
            let whole = Block { rows: (0, rows), columns: (0, columns) };
            whole.turn(plan, x, out, piece.len, rows, columns);
            continue;
        }
        for down in pieces(&plan.target.limits, rows, &[4 * columns]) {
            for across in pieces(&plan.target.limits, columns, &[4 * rows]) {
                let block = Block { rows: (down.start, down.len), columns: (across.start, across.len) };
                block.turn(plan, down.of(x, 4 * columns), across.of(out, 4 * rows), 1, rows, columns);
            }
        }
    }
}

/// A transposed copy of a stack of f32 matrices in scratch memory.
pub(super) fn turned(plan: &mut Lowering<'_>, x: Slice, matrices: usize, rows: usize, columns: usize) -> Result<Slice> {
    let copy = plan.scratch(TensorType::f32(Shape::new(&[matrices, columns, rows])?)).into();
    transpose(plan, x, copy, matrices, rows, columns);
    Ok(copy)
}

/// First row and rows, first column and columns, of a matrix.
struct Block {
    rows: (usize, usize),
    columns: (usize, usize),
}

impl Block {
    /// Transposes it in each matrix of a stack. The operand begins with its first row, the result with its first
    /// column.
    fn turn(&self, plan: &mut Lowering<'_>, x: Slice, out: Slice, matrices: usize, rows: usize, columns: usize) {
        let across = self.columns.1.div_ceil(TILE);
        let tiles = self.rows.1.div_ceil(TILE) * across;
        let total = matrices * tiles;
        let block = [self.rows.1, self.columns.1, rows * columns, columns, rows, self.columns.0, self.rows.0];
        let params: Vec<_> = block.into_iter().chain([across, tiles, total]).map(Into::into).collect();
        plan.dispatch(Code::Kernel(TRANSPOSE, Vec::new()), vec![x, out], &params, Grid::groups_of(total));
    }
}
