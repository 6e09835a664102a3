use kiln_core::Result;
use kiln_core::op::Transpose;

use super::{Lower, Lowering, Value};
use crate::plan::Grid;

/// The side of the tile that a workgroup turns, as in the source.
const TILE: usize = 32;

impl Lower for Transpose {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (matrices, rows, columns) = self.extents(&inputs[0].ty.shape)?;
        let across = columns.div_ceil(TILE);
        let tiles = rows.div_ceil(TILE) * across;
        let total = matrices * tiles;
        let params = [rows.into(), columns.into(), across.into(), tiles.into(), total.into()];
        plan.run(kiln_shaders::TRANSPOSE, &[], &[inputs[0].at, outputs[0].at], &params, Grid::groups_of(total));
        Ok(())
    }
}
