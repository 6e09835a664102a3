//! Pooling.

use kiln_ir::Result;
use kiln_ir::op::{Pool2d, Pooling};
use kiln_shaders::numerics::SMALL_WINDOW;
use kiln_shaders::{POOL, POOL_WIDE};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Word};

impl Lower<GpuDevice> for Pool2d {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let e = self.extents(&inputs[0].ty.shape)?;
        let area = self.window.0 * self.window.1;
        let (window, stride) = (self.window, self.stride);
        let extents = [e.h, e.w, window.0, window.1, stride.0, stride.1, e.out_h, e.out_w].map(Word::from);
        let constants = vec![("MAX", u32::from(self.pooling == Pooling::Max))];
        let bytes = [4 * e.h * e.w, 4 * e.out_h * e.out_w];
        for piece in pieces(&plan.target.limits, e.planes, &bytes) {
            let n = piece.len * e.out_h * e.out_w;
            let params = [&extents[..], &[(area as f32).into(), n.into()]].concat();
            let small = area <= SMALL_WINDOW;
            let (kernel, grid) = if small { (POOL, Grid::invocations(n)) } else { (POOL_WIDE, Grid::groups_of(n)) };
            let buffers = vec![piece.of(inputs[0], bytes[0]), piece.of(outputs[0], bytes[1])];
            plan.dispatch(Code::Kernel(kernel, constants.clone()), buffers, &params, grid);
        }
        Ok(())
    }
}
