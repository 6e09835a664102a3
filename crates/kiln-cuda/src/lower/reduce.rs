//! Reductions and the inner product.

use kiln_ir::Result;
use kiln_ir::graph::Fetch;
use kiln_ir::op::{Dot, Elementwise, Reduce, Reduction};
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::reduce;

use kiln_device::Location;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Reduce {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (outer, along, inner) = self.extents(&inputs[0].ty.shape)?;
        run(plan, self.reduction, [outer, along, inner], inputs[0].at, outputs[0].at)
    }
}

impl Lower<CudaDevice> for Dot {
    /// The products, then their sum.
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let n = inputs[0].ty.shape.numel();
        let products = plan.scratch_bytes(4 * n);
        let kernel = Chain::of(&Elementwise::mul(), &[Fetch::Whole; 2], plan.target.target)?;
        let launch = kernel.launch(n, &[n; 2], &[[0.0; 2]])?;
        plan.run(kernel, launch, &[inputs[0].at, inputs[1].at, products]);
        run(plan, Reduction::Sum, [1, n, 1], products, outputs[0].at)
    }
}

/// Adds the launches of a reduction of `[outer, along, inner]` along the middle.
fn run(
    plan: &mut Lowering<'_>,
    reduction: Reduction,
    extents: [usize; 3],
    from: Location,
    out: Location,
) -> Result<()> {
    let levels = reduce::plan(reduction, extents, plan.target.target)?;
    let [first, second] = levels.scratch.map(|bytes| plan.scratch_bytes(bytes));
    for (kernel, launch) in levels.steps {
        plan.run(kernel, launch, &[from, out, first, second]);
    }
    Ok(())
}
