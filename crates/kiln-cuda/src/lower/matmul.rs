//! Products of matrices.

use kiln_core::Result;
use kiln_core::op::{Matmul, MatmulExtents, Matvec};
use kiln_ptx::kernels::gemm::{Gemm, Tile};

use super::{Lower, Lowering, Value};

/// Large tiles that keep a device busy.
const BUSY: usize = 128;

/// Adds `C = A B`.
fn product(plan: &mut Lowering<'_>, op: Matmul, mut extents: MatmulExtents, [a, b, c]: [&Value; 3]) -> Result<()> {
    if extents.shared_b && !op.transpose_a {
        // The rows of all A are those of one.
        (extents.m, extents.batch) = (extents.m * extents.batch, 1);
    }
    let MatmulExtents { batch, m, n, .. } = extents;
    let large = batch.saturating_mul(m.div_ceil(128)).saturating_mul(n.div_ceil(128));
    let kernel = Gemm::new(op, if large >= BUSY { Tile::LARGE } else { Tile::SMALL });
    let launch = kernel.launch(extents, 1.0, 0.0)?;
    plan.run(kernel, launch, &[a.at, b.at, c.at]);
    Ok(())
}

impl Lower for Matmul {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let extents = self.extents(&inputs[0].ty.shape, &inputs[1].ty.shape)?;
        product(plan, *self, extents, [&inputs[0], &inputs[1], &outputs[0]])
    }
}

impl Lower for Matvec {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (rows, columns) = (inputs[0].ty.shape.rows(), inputs[0].ty.shape.columns());
        let (m, k) = if self.transpose { (columns, rows) } else { (rows, columns) };
        let op = Matmul { transpose_a: self.transpose, transpose_b: false };
        let extents = MatmulExtents { batch: 1, shared_b: true, m, k, n: 1 };
        product(plan, op, extents, [&inputs[0], &inputs[1], &outputs[0]])
    }
}
